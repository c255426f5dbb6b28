"""The size of a peer's folder on its disk."""

from __future__ import annotations

from dataclasses import dataclass

from peer.consensus.codec.codec import Codec
from peer.consensus.codec.state_digest import FLOAT32_BYTES
from peer.node.store.snapshots import KEPT as SNAPSHOTS_KEPT
from peer.schema.spec import RunSpec

CHECKPOINTS_KEPT = 2
CHECKPOINTS_BYTES = 20 << 30
"""If two checkpoints would need more than this, only one is kept."""


@dataclass(frozen=True, kw_only=True)
class DiskFootprint:
    """What a peer keeps on disk, in bytes."""

    snapshot: int
    """θ and m."""
    checkpoint: int
    """Within a round: the residual, local parameters and moments; also the start of the steps where training goes on
    during an agreement. Right after an update it is smaller."""
    contributions: int
    """Encoded contributions of twice as many rounds as votes are remembered: the rounds since the older checkpoint
    are settled again."""
    chain: int
    """Encoded means: as many as fit in the quota, and at least those since the older snapshot."""

    @property
    def checkpoints_kept(self) -> int:
        return checkpoints_kept(self.checkpoint)

    @property
    def least(self) -> int:
        """The minimum for writing anything: snapshots and checkpoints, and one more of each being written."""
        return (SNAPSHOTS_KEPT + 1) * self.snapshot + (self.checkpoints_kept + 1) * self.checkpoint

    @property
    def at_rest(self) -> int:
        """While neither a snapshot nor a checkpoint is being written."""
        kept = SNAPSHOTS_KEPT * self.snapshot + self.checkpoints_kept * self.checkpoint
        return kept + self.contributions + self.chain

    @property
    def peak(self) -> int:
        """While both are being written."""
        return self.at_rest + self.snapshot + self.checkpoint


def checkpoints_kept(checkpoint_bytes: int) -> int:
    """How many checkpoints of this size are kept while none is being written."""
    return CHECKPOINTS_KEPT if CHECKPOINTS_KEPT * checkpoint_bytes <= CHECKPOINTS_BYTES else 1


def disk_of(parameters: int, training_bytes: int, spec: RunSpec, chain_bytes: int) -> DiskFootprint:
    """The disk use of a model with `parameters` parameters, which needs `training_bytes` in training (itself,
    gradients and moments, float32), for a peer that keeps `chain_bytes` of updates."""
    vector_bytes, table = FLOAT32_BYTES * parameters, spec.round
    goes_on = table.overlap != "none" or table.fragments > 1
    codec, averaged = Codec(spec.codec.wire), -(-parameters // table.fragments)
    return DiskFootprint(
        snapshot=2 * vector_bytes,
        checkpoint=training_bytes - 2 * vector_bytes + (3 if goes_on else 2) * vector_bytes,
        contributions=2 * table.keep_rounds * codec.part_bytes(averaged),
        chain=max(chain_bytes, 2 * table.snapshot_rounds * codec.of_means.part_bytes(averaged)),
    )
