"""Assigns neighbouring layers to the homes of a cluster so that the slowest home delays the others as little as
possible.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from dht.errors import BadInput
from peer.planning.placement.block_shares import HELD_BYTES, WIRE_BYTES, BlockLayout, StageHome, deal_blocks
from peer.schema.ipc import Assignment, HomeOffer, StageHolder
from peer.training.model.flat_parameters import Layer

Wire = Literal["int8", "bfloat16", "float32"]
VALUE_BYTES = {"int8": WIRE_BYTES, "bfloat16": 2, "float32": 4}
"""The bytes of a value between two stages: see `peer.parallel.pipeline.activation_codec`."""


def choose_spans(
    layers: Sequence[Layer], width: int, homes: Sequence[HomeOffer], stages: int, epoch: int, wire: Wire
) -> Assignment:
    """Assign whole blocks to `stages` of the homes, as `deal_blocks` deals them. The lead, the first of `homes`, gets
    the first stage. There are no spares yet. Raises BadInput if the model does not fit, or has fewer blocks than
    stages."""
    require_blocks(layers, stages)
    blocks = tuple(number for number, layer in enumerate(layers) if layer.is_block)
    layout = BlockLayout(sizes=tuple(layer.size for layer in layers), blocks=blocks, width=width)
    dealt = deal_blocks(layout, [_stage_home(home) for home in homes], stages, VALUE_BYTES[wire])
    if dealt is None:
        whole = sum(layout.sizes) / 1e6
        raise BadInput(f"{len(homes)} homes have no room for the {whole:,.0f} M parameters in {stages} stages")
    ends = (*dealt.starts[1:], len(layers))
    held = zip(dealt.order, dealt.starts, ends, strict=True)
    return Assignment(
        epoch, tuple(StageHolder(homes[home].peer, first, end - 1) for home, first, end in held), (), wire
    )  # fmt: skip


def _stage_home(home: HomeOffer) -> StageHome:
    return StageHome(
        tokens_per_s=home.tokens_per_s, room_bytes=home.memory_gb * 1e9, upload_bps=home.upload_mbps * 1e6
    )  # fmt: skip


def require_blocks(layers: Sequence[Layer], stages: int) -> None:
    """Raises BadInput if the model has fewer blocks than stages."""
    blocks = sum(layer.is_block for layer in layers)
    if blocks < stages:
        raise BadInput(f"a model of {blocks} blocks cannot be trained by {stages} homes")


def has_room(home: HomeOffer, layers: Sequence[Layer]) -> bool:
    """Whether this home can train these layers, if it states its memory."""
    return not home.memory_gb or HELD_BYTES * sum(layer.size for layer in layers) <= home.memory_gb * 1e9
