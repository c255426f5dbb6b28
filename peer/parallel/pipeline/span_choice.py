"""Assigns neighbouring layers to the homes of a cluster so that the slowest home delays the others as little as
possible.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from dht.errors import BadInput
from peer.planning.placement.block_shares import (
    WIRE_BYTES,
    BlockLayout,
    Dealing,
    StageHome,
    deal_blocks,
    deal_in_order,
)
from peer.schema.ipc import Assignment, HomeOffer, StageHolder

Wire = Literal["int8", "bfloat16", "float32"]
VALUE_BYTES = {"int8": WIRE_BYTES, "bfloat16": 2, "float32": 4}
"""The bytes of a value between two stages: see `peer.parallel.pipeline.activation_codec`."""


def choose_spans(
    layout: BlockLayout, homes: Sequence[HomeOffer], stages: int, epoch: int, wire: Wire, order: Sequence[str] = ()
) -> Assignment:
    """Assign whole blocks to `stages` of the homes, as `deal_blocks` deals them. The lead, the first of `homes`, gets
    the first stage. Homes that were found for an `order` of stages, in which round trips count, too, are dealt to in
    that order if all are here. There are no spares yet. Raises BadInput if the model does not fit, or has fewer blocks
    than stages."""
    require_blocks(layout, stages)
    offered = [_stage_home(home) for home in homes]
    dealt = _dealt_in(order, layout, homes, offered, wire) or deal_blocks(layout, offered, stages, VALUE_BYTES[wire])
    if dealt is None:
        whole = sum(layout.sizes) / 1e6
        raise BadInput(f"{len(homes)} homes have no room for the {whole:,.0f} M parameters in {stages} stages")
    ends = (*dealt.starts[1:], len(layout.sizes))
    held = zip(dealt.order, dealt.starts, ends, strict=True)
    return Assignment(
        epoch, tuple(StageHolder(homes[home].peer, first, end - 1) for home, first, end in held), (), wire
    )  # fmt: skip


def _dealt_in(
    order: Sequence[str], layout: BlockLayout, homes: Sequence[HomeOffer], offered: Sequence[StageHome], wire: Wire
) -> Dealing | None:
    numbers = {home.peer: number for number, home in enumerate(homes)}
    if not order or not set(order) <= numbers.keys():
        return None
    return deal_in_order(layout, offered, [numbers[peer] for peer in order], VALUE_BYTES[wire])


def _stage_home(home: HomeOffer) -> StageHome:
    return StageHome(
        tokens_per_s=home.tokens_per_s, room_bytes=home.memory_gb * 1e9, upload_bps=home.upload_mbps * 1e6
    )  # fmt: skip


def require_blocks(layout: BlockLayout, stages: int) -> None:
    """Raises BadInput if the model has fewer blocks than stages."""
    blocks = len(layout.blocks)
    if blocks < stages:
        raise BadInput(f"a model of {blocks} blocks cannot be trained by {stages} homes")


def has_room(home: HomeOffer, layout: BlockLayout, held: range) -> bool:
    """Whether this home can train these layers, if it states its memory."""
    return not home.memory_gb or layout.needed_bytes(held) <= home.memory_gb * 1e9
