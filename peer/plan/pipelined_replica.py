"""Replicas that span peers: what an inner step of a pipeline takes, and what averaging the replicas costs.

Formulas only: no run of today is made so. Placement (`placing/`) decides which peers make a pipeline.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from peer.plan.model_shape import ModelShape

HALF_BYTES = 2


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Some consecutive blocks on one peer."""

    blocks: int
    micro_s: float
    """Forward and backward of one micro-batch."""


def balanced(
    shape: ModelShape, seconds_per_block: Sequence[float], most_blocks: Sequence[int] | None = None
) -> tuple[Stage, ...]:  # fmt: skip
    """Blocks shared out so that the slowest stage is as fast as it can be; each stage has one at least.

    `seconds_per_block` is of each peer, for one micro-batch; `most_blocks` is what each has memory for. The greedy
    choice is optimal for equal blocks: each next block goes where it ends first, of those who have room. Raises
    ValueError for fewer blocks than peers, and for less room than blocks.
    """
    peers = len(seconds_per_block)
    room = [shape.blocks] * peers if most_blocks is None else most_blocks
    if shape.blocks < peers:
        raise ValueError(f"{shape.blocks} blocks cannot be cut into {peers} stages")
    if not have_room(shape, room):
        raise ValueError(f"{shape.blocks} blocks do not fit on peers that hold {', '.join(map(str, room))}")
    blocks = [1] * peers
    for _ in range(shape.blocks - peers):
        free = [peer for peer in range(peers) if blocks[peer] < room[peer]]
        blocks[min(free, key=lambda peer: (blocks[peer] + 1) * seconds_per_block[peer])] += 1
    return tuple(
        Stage(blocks=count, micro_s=count * each) for count, each in zip(blocks, seconds_per_block, strict=True)
    )


def have_room(shape: ModelShape, most_blocks: Sequence[int]) -> bool:
    """Whether all blocks fit on peers that hold so many each, with one on every peer."""
    return min(most_blocks) >= 1 and sum(most_blocks) >= shape.blocks


def stage_layers(shape: ModelShape, stage: int, blocks: Sequence[int]) -> tuple[int, ...]:
    """Parameters of the layers of one stage of a model that is cut into so many blocks each.

    What comes before the first block is with the first stage, what comes after the last one with the last.
    """
    first = shape.before + sum(blocks[:stage])
    last = first + blocks[stage]
    is_last = stage == len(blocks) - 1
    return shape.layers[first if stage else 0 : len(shape.layers) if is_last else last]


def cut_bytes(shape: ModelShape, sequences: int, context: int) -> float:
    """Activations of one micro-batch at a cut, in 16 bit; as much comes back as gradients (AMP, arXiv:2210.07297)."""
    return HALF_BYTES * sequences * context * shape.width


def pipeline_step_s(stages: Sequence[Stage], cut_s: Sequence[float], micro_batches: int) -> float:
    """AMP's T = Σ e + Σ c + (B − 1) · max e (arXiv:2210.07297): fill, then the slowest stage sets the pace.

    `cut_s` is of each cut, both ways of one micro-batch. A cut that is slower than every stage sets the pace instead,
    which AMP leaves out and DT-FM's overlapped streams do not (arXiv:2206.01288, section 2): ours takes the larger.
    """
    assert len(cut_s) == len(stages) - 1
    assert micro_batches >= 1
    slowest = max([stage.micro_s for stage in stages] + list(cut_s))
    return sum(stage.micro_s for stage in stages) + sum(cut_s) + (micro_batches - 1) * slowest
