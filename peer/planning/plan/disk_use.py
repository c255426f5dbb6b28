"""The size of a peer's folder on its disk."""

from __future__ import annotations

from dataclasses import dataclass

from peer.consensus.codec.codec import Codec
from peer.consensus.codec.state_digest import FLOAT32_BYTES
from peer.schema.spec import RunSpec

SNAPSHOTS_KEPT = 2
CHECKPOINTS_KEPT = 2
CHECKPOINTS_BYTES = 20 << 30
"""Checkpoints that would take more are not kept twice."""


@dataclass(frozen=True, kw_only=True)
class DiskFootprint:
    """In bytes."""

    snapshot: int
    """θ and m."""
    checkpoint: int
    """Within a round: the residual, local parameters and moments; with steps while a round is agreed, where they began.
    Right after an update it takes less."""
    contributions: int
    """Encoded, of twice as many rounds as votes are remembered: those since the older checkpoint are settled again."""
    chain: int
    """Encoded means: those at the quota, and no fewer than since the older snapshot."""

    @property
    def checkpoints_kept(self) -> int:
        return checkpoints_kept(self.checkpoint)

    @property
    def least(self) -> int:
        """Without which nothing can be written: snapshots and checkpoints, and one more of each on its way."""
        return (SNAPSHOTS_KEPT + 1) * self.snapshot + (self.checkpoints_kept + 1) * self.checkpoint

    @property
    def at_rest(self) -> int:
        """While neither is written."""
        kept = SNAPSHOTS_KEPT * self.snapshot + self.checkpoints_kept * self.checkpoint
        return kept + self.contributions + self.chain

    @property
    def peak(self) -> int:
        """While both are written."""
        return self.at_rest + self.snapshot + self.checkpoint


def checkpoints_kept(checkpoint_bytes: int) -> int:
    """How many of this size are kept while none is written."""
    return CHECKPOINTS_KEPT if CHECKPOINTS_KEPT * checkpoint_bytes <= CHECKPOINTS_BYTES else 1


def disk_of(parameters: int, training_bytes: int, spec: RunSpec, chain_bytes: int) -> DiskFootprint:
    """Of a model of so many parameters which takes so much memory in training (itself, gradients and moments, float32),
    for a peer that keeps so many bytes of updates."""
    vector_bytes, table = FLOAT32_BYTES * parameters, spec.round
    goes_on = table.overlap != "none" or table.fragments > 1
    codec, averaged = Codec(spec.codec.wire), -(-parameters // table.fragments)
    return DiskFootprint(
        snapshot=2 * vector_bytes,
        checkpoint=training_bytes - 2 * vector_bytes + (3 if goes_on else 2) * vector_bytes,
        contributions=2 * table.keep_rounds * codec.part_bytes(averaged),
        chain=max(chain_bytes, 2 * table.snapshot_rounds * codec.of_means.part_bytes(averaged)),
    )
