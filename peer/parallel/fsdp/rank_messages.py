"""Commands of the lead to its ranks, and their answers. Every command has one answer; numbers lie in the arena."""

from __future__ import annotations

from msgspec import Struct

from peer.planning.plan.sharding_strategy import Sharding


class RankSetup(Struct, frozen=True, kw_only=True, tag=True):
    """What a rank is: its first message."""

    spec: str
    """As TOML."""
    rank: int
    ranks: int
    device: str
    sharding: Sharding
    group: int
    offloads: bool
    rendezvous: str
    """A file that is not there yet, for all ranks to meet."""
    sizes: tuple[int, ...]
    """Elements of each layer."""
    payload_bytes: int
    threads: int
    begins: bool
    """Whether parameters are θ; else the arena has them, and they are loaded."""


# ---- on the step channel ----


class Backward(Struct, frozen=True, kw_only=True, tag=True):
    """Forward and backward of this rank's share of a micro-batch."""

    tokens: bytes
    """int32 (rows, context + 1), with the flags of `peer.training.data.chat.token_flags`."""
    rows: int
    scale: float
    """Of the loss per token of these rows: their share of the step. 0: they are there to be gathered with."""
    seed: int | None = None
    """Of the random generator, at the first micro-batch of a step."""


class FinishStep(Struct, frozen=True, kw_only=True, tag=True):
    """Clip, and have the optimizers step."""

    learning_rate: float
    scale: float
    """Of the gradients: of a step that ended before all its micro-batches, or did not predict all it read."""


class StandAtAnchor(Struct, frozen=True, tag=True):
    """Keep the local parameters aside, and have θ in their place."""


class MeasureLoss(Struct, frozen=True, kw_only=True, tag=True):
    """The summed loss of these rows, in nats; of none of them if `counts` is false."""

    tokens: bytes
    rows: int
    counts: bool


class StandBack(Struct, frozen=True, tag=True):
    """Have the local parameters again."""


class BeginVersion(Struct, frozen=True, tag=True):
    """From now on no layer may be read until it is published at the version that the answer names."""


class LoadLayer(Struct, frozen=True, kw_only=True, tag=True):
    """Take over what the arena has of the local parameters and of the optimizers' memory of one layer."""

    layer: int
    memory: tuple[Moment, ...]


class StopRank(Struct, frozen=True, tag=True):
    """End in order."""


# ---- on the round channel, which a thread of its own serves ----


class PartWork(Struct, frozen=True, kw_only=True):
    """What an update does to one part, see `peer.training.outer.kernels.PartUpdate`; payloads by where they lie."""

    start: int
    """In the whole model, in elements."""
    size: int
    outer: tuple[float, float] | None = None
    mean: tuple[int, int] | None = None
    """First byte and number of bytes in the arena's payload."""
    mine: tuple[int, int] | None = None
    kept: float | None = None
    gives_up: bool = False
    own: float | None = None


class LayerWork(Struct, frozen=True, kw_only=True, tag=True):
    """One call of `peer.training.outer.kernels.Kernels`: each rank does it to what it owns of the layer."""

    call: str
    layer: int
    origin: str
    """The name of `peer.training.outer.layer_tensors.Origin`."""
    parts: tuple[PartWork, ...] = ()


class FollowLayer(Struct, frozen=True, kw_only=True, tag=True):
    """All ranks have begun a layer anew: take what the others own of it and this one holds as well."""

    layer: int


class PublishLayer(Struct, frozen=True, kw_only=True, tag=True):
    """A layer is as every rank shall read it."""

    layer: int
    version: int


class CopyLayer(Struct, frozen=True, kw_only=True, tag=True):
    """Have in the arena what this rank holds of the parameters and of the optimizers' memory of one layer."""

    layer: int


# ---- answers ----


class Moment(Struct, frozen=True, kw_only=True):
    """One thing that an optimizer remembers of a parameter."""

    name: str
    """As `peer.training.train.optimizers.Optimizers.state_of` calls it."""
    slot: str
    """first or second: it lies there in the arena, where the parameter lies in the layer; else empty."""
    value: float | None = None
    """What is one number; None for neither."""


class RankAnswer(Struct, frozen=True, kw_only=True, tag=True):
    value: float = 0.0
    """A loss, a norm (of what was given up) or a squared norm, whatever was asked for."""
    octets: int = 0
    """Of encoded parts that were read or written."""
    memory: tuple[Moment, ...] = ()
    version: int = 0
    waited_s: float = 0.0
    """How long the newest inner step has waited for layers, in all."""
    peak_bytes: int = 0
    """The most that the newest inner step has had on the device; 0 where it does not count."""


class NoRoomThere(Struct, frozen=True, tag=True):
    """The device's memory was full. The ranks are not in step any more; parameters and optimizers are as they were."""

    text: str


class RankFailed(Struct, frozen=True, kw_only=True, tag=True):
    """It cannot go on."""

    text: str
    is_lost: bool
    """Whether its device has failed for good."""


Command = (
    RankSetup | Backward | FinishStep | StandAtAnchor | MeasureLoss | StandBack | BeginVersion | LoadLayer
    | StopRank | LayerWork | FollowLayer | PublishLayer | CopyLayer
)  # fmt: skip
Answer = RankAnswer | NoRoomThere | RankFailed
