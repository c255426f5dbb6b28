"""Commands of the lead to its ranks, and their answers. Every command has one answer; numbers lie in the arena."""

from __future__ import annotations

from msgspec import Struct

from peer.planning.plan.sharding_strategy import Sharding


class RankSetup(Struct, frozen=True, kw_only=True, tag=True):
    """A rank's first message: its role."""

    spec: str
    """The spec as TOML."""
    rank: int
    ranks: int
    device: str
    sharding: Sharding
    group: int
    offloads: bool
    rendezvous: str
    """A file that does not exist yet, where all ranks meet."""
    sizes: tuple[int, ...]
    """The number of elements in each layer."""
    payload_bytes: int
    threads: int
    begins: bool
    """Whether the parameters are θ; otherwise they are loaded from the arena."""


# ---- on the step channel ----


class Backward(Struct, frozen=True, kw_only=True, tag=True):
    """Forward and backward of this rank's share of a micro-batch."""

    tokens: bytes
    """int32 of shape (rows, context + 1), with the flags of `peer.training.data.chat.token_flags`."""
    rows: int
    scale: float
    """The factor for the loss per token of these rows: their share of the step. 0 for rows that are only there so
    that this rank gathers, too."""
    seed: int | None = None
    """The seed of the random generator, at the first micro-batch of a step."""
    is_last: bool = True
    """Whether it is the step's last one: ranks that hold copies of the same shares add up their gradients then."""


class FinishStep(Struct, frozen=True, kw_only=True, tag=True):
    """Clip the gradients, and make the optimizers' step."""

    learning_rate: float
    scale: float
    """The factor for the gradients, for a step that ended before all its micro-batches or did not predict every
    token."""


class StandAtAnchor(Struct, frozen=True, tag=True):
    """Put the local parameters aside, and replace them by θ."""


class MeasureLoss(Struct, frozen=True, kw_only=True, tag=True):
    """Measure the summed loss of these rows, in nats; 0 if `counts` is false."""

    tokens: bytes
    rows: int
    counts: bool


class StandBack(Struct, frozen=True, tag=True):
    """Restore the local parameters."""


class BeginVersion(Struct, frozen=True, tag=True):
    """From now on no layer may be read until it is published at the version in the answer."""


class LoadLayer(Struct, frozen=True, kw_only=True, tag=True):
    """Load one layer's local parameters and moments from the arena."""

    layer: int
    memory: tuple[Moment, ...]


class StopRank(Struct, frozen=True, tag=True):
    """End in order."""


# ---- on the round channel, which a thread of its own serves ----


class PartWork(Struct, frozen=True, kw_only=True):
    """What an update does to one part, see `peer.training.outer.kernels.PartUpdate`; payloads are given by their
    place."""

    start: int
    """The part's first element in the whole model."""
    size: int
    outer: tuple[float, float] | None = None
    mean: tuple[int, int] | None = None
    """The first byte and the number of bytes in the arena's payload."""
    mine: tuple[int, int] | None = None
    kept: float | None = None
    gives_up: bool = False
    own: float | None = None


class LayerWork(Struct, frozen=True, kw_only=True, tag=True):
    """One call of `peer.training.outer.kernels.Kernels`, which each rank executes on what it owns of the layer."""

    call: str
    layer: int
    origin: str
    """The name of a member of `peer.training.outer.layer_tensors.Origin`."""
    parts: tuple[PartWork, ...] = ()


class FollowLayer(Struct, frozen=True, kw_only=True, tag=True):
    """All ranks have reset a layer to its start: copy the parts that other ranks own and this one holds, too."""

    layer: int


class PublishLayer(Struct, frozen=True, kw_only=True, tag=True):
    """Every rank may read this layer from now on."""

    layer: int
    version: int


class CopyLayer(Struct, frozen=True, kw_only=True, tag=True):
    """Copy this rank's parameters and moments of one layer to the arena."""

    layer: int


# ---- answers ----


class Moment(Struct, frozen=True, kw_only=True):
    """One value that an optimizer keeps for a parameter."""

    name: str
    """The name in `peer.training.train.optimizers.Optimizers.state_of`."""
    slot: str
    """"first" or "second" if the value lies in that vector of the arena, where the parameter lies in the layer;
    otherwise empty."""
    value: float | None = None
    """The value if it is a single number; None if it lies in the arena or is empty."""


class RankAnswer(Struct, frozen=True, kw_only=True, tag=True):
    value: float = 0.0
    """A loss, a norm (of what was given up) or a squared norm, depending on the command."""
    octets: int = 0
    """The bytes of encoded parts that were read or written."""
    memory: tuple[Moment, ...] = ()
    version: int = 0
    waited_s: float = 0.0
    """Seconds that the newest inner step has waited for layers, in total."""
    peak_bytes: int = 0
    """The peak memory of the newest inner step on the device; 0 if the device does not count it."""


class NoRoomThere(Struct, frozen=True, tag=True):
    """The device's memory was full. The ranks are no longer in step; parameters and optimizers are unchanged."""

    text: str


class RankFailed(Struct, frozen=True, kw_only=True, tag=True):
    """The rank cannot go on."""

    text: str
    is_lost: bool
    """Whether its device has failed for good."""


Command = (
    RankSetup | Backward | FinishStep | StandAtAnchor | MeasureLoss | StandBack | BeginVersion | LoadLayer
    | StopRank | LayerWork | FollowLayer | PublishLayer | CopyLayer
)  # fmt: skip
Answer = RankAnswer | NoRoomThere | RankFailed
