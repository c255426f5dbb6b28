"""Messages between a peer's trainer and its link: structs with a bound on every field.

The two are processes of one machine and share its monotonic clock. Large data does not travel here: contributions and
means lie in files that both sides read. `peer.network.link.channel` carries the messages.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct
from msgspec.msgpack import Decoder

M = TypeVar("M")

MAX_BYTES = 1 << 30
"""Of one message."""
_MOST = (1 << 63) - 1

Digest = Annotated[bytes, Meta(min_length=32, max_length=32)]
DigestOrEmpty = Annotated[bytes, Meta(max_length=32)]
Packed = Annotated[bytes, Meta(max_length=MAX_BYTES)]
PeerId = Annotated[str, Meta(max_length=128)]
Members = Annotated[tuple[PeerId, ...], Meta(max_length=4096)]
Text = Annotated[str, Meta(max_length=1 << 16)]
Count = Annotated[int, Meta(ge=0, le=_MOST)]
Seconds = Annotated[float, Meta(ge=0, le=1e12)]
Figure = Annotated[float, Meta(ge=0, le=1e15)]


class BadMessage(ValueError):
    """Bytes that are no message, or one with a field that is missing, misspelt or out of bounds."""


class ToLink(Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Base of what the trainer says."""


class LinkLimits(Struct, frozen=True, forbid_unknown_fields=True):
    """Those of the owner's settings that a link obeys while it runs; see `peer.schema.settings`."""

    chain_mb: Count
    disk_gb: Figure
    upload_mbps: Figure
    download_mbps: Figure
    newcomers_mbps: Figure


class OpenLink(ToLink, frozen=True):
    """The first message: which run to join, and how."""

    invite: Text
    name: Text
    listen: Annotated[tuple[Text, ...], Meta(max_length=64)]
    limits: LinkLimits
    stages: Count
    """Of more than one: this peer leads a cluster of so many homes."""
    cluster: Text
    """The invite of a cluster in which this home is a worker."""


class StageHolder(Struct, frozen=True, forbid_unknown_fields=True):
    """A home that trains some neighbouring layers of the model."""

    peer: PeerId
    first: Count
    """Layer, counted from 0."""
    last: Count
    """Likewise, and it is one of them."""

    @property
    def layers(self) -> range:
        return range(self.first, self.last + 1)


class Assignment(Struct, frozen=True, forbid_unknown_fields=True):
    """Who of a cluster trains which layers. A later epoch ends all that an earlier one began."""

    epoch: Count
    stages: Annotated[tuple[StageHolder, ...], Meta(min_length=2, max_length=32)]
    """In model order, every layer once; the lead's is the first."""
    spares: Annotated[tuple[StageHolder, ...], Meta(max_length=32)]
    """Who keeps θ and m of some stage up to date, and trains nothing now."""
    wire: Literal["int8", "bfloat16", "float32"]
    """How values between stages are sent."""

    @property
    def lead(self) -> str:
        return self.stages[0].peer

    @property
    def workers(self) -> tuple[StageHolder, ...]:
        """The stages of all homes but the lead's: its delegates."""
        return self.stages[1:]

    def of(self, peer: str) -> StageHolder | None:
        """What this home holds; None for a stranger."""
        return next((holder for holder in (*self.stages, *self.spares) if holder.peer == peer), None)


class HomeOffer(Struct, frozen=True, forbid_unknown_fields=True):
    """A home that would work in a cluster, and what it says of itself. A figure of 0 is not known."""

    peer: PeerId
    name: Text
    memory_gb: Figure
    """For parameters, gradients, moments and a micro-batch, in 10^9 bytes."""
    tokens_per_s: Figure
    """Of the whole model, if it had room for it."""
    upload_mbps: Figure
    """What its line sends."""


class HomesExpelled(ToLink, frozen=True):
    """From a lead: these homes get no layers again, so that others may take their places."""

    homes: Members


class SeekWork(ToLink, frozen=True):
    """Said by a worker that has no stage yet: what it may offer. Both as in `HomeOffer`."""

    memory_gb: Figure
    tokens_per_s: Figure


class LookForHomes(ToLink, frozen=True):
    """Said instead of Hello by a home that cannot hold the model alone: the link looks for others, and answers
    HomesFound. The figures are as in `HomeOffer`."""

    memory_gb: Figure
    tokens_per_s: Figure
    avoid: Members
    """Homes that did not come to a cluster that was found before."""


class AssignStages(ToLink, frozen=True):
    """Said by a lead: who trains what from now on."""

    assignment: Assignment


class StartLooked(ToLink, frozen=True):
    """The model from which the run starts was not on this machine: whether it is now, from huggingface.co. Else the
    link asks peers."""

    is_here: bool


class LayersHeld(ToLink, frozen=True):
    """Said by every home of a cluster with or before Hello: the layers of which it keeps θ and m."""

    first: Count
    last: Count


class ChangeLimits(ToLink, frozen=True):
    """The owner has changed them; said at any time."""

    limits: LinkLimits


class Hello(ToLink, frozen=True):
    """What the model looks like, and the anchor where the trainer stands: empty before its first round."""

    layer_sizes: Annotated[tuple[Count, ...], Meta(min_length=1, max_length=1 << 20)]
    first_state: Digest
    """Of the initial parameters, which all peers of a run share."""
    anchor: DigestOrEmpty


class ReportProgress(ToLink, frozen=True):
    """The share of this peer's part of the round that is made, and how training goes."""

    share: Figure
    loss: float | None
    tokens_per_s: Figure
    device_gb: Figure | None


class OfferContribution(ToLink, frozen=True):
    """What was learned for this anchor is encoded on disk."""

    anchor: Digest


class PausedAt(ToLink, frozen=True):
    """No step follows at this anchor: what is on disk for it is offered, or nothing."""

    anchor: Digest


class StepsGoOn(ToLink, frozen=True):
    """A pause is over."""


class StandsAt(ToLink, frozen=True):
    """The trainer has computed this anchor; `state` is H(θ, m), empty where it has some layers alone."""

    anchor: Digest
    state: DigestOrEmpty


class LossMeasured(ToLink, frozen=True):
    """Held-out loss of this round's anchor, in nats per token."""

    round: Count
    loss: float


class Leave(ToLink, frozen=True):
    """The last word: the run is finished here, or its owner wants this peer to leave."""

    finished: bool


class ToTrainer(Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Base of what the link says."""


class SpecText(ToTrainer, frozen=True):
    """The run, as TOML."""

    toml: Annotated[str, Meta(max_length=1 << 20)]


class Waiting(ToTrainer, frozen=True):
    """What the link waits for, in words."""

    why: Text


class StartBrought(ToTrainer, frozen=True):
    """The model from which the run starts is on this machine."""


class BeginAt(ToTrainer, frozen=True):
    """The chain knows this anchor: the trainer's own, or the first one. What was decided since follows."""

    anchor: Digest
    members: Members


class ReplayBlock(ToTrainer, frozen=True):
    """A block of the chain on this disk, which ends at `last_round`: decided before this start."""

    block: Packed
    last_round: Count


class ResumeAt(ToTrainer, frozen=True):
    """Here the chain on this disk ends."""

    anchor: Digest


class BlockCommitted(ToTrainer, frozen=True):
    """A round is decided and leads to `anchor`: what it cost in bytes, and when the link heard of it."""

    block: Packed
    anchor: Digest
    bytes_sent: Count
    bytes_received: Count
    agreed_at: Seconds


class AdoptSnapshot(ToTrainer, frozen=True):
    """Stand where a snapshot on this disk was taken, wherever the trainer stood before; its work goes along."""

    round: Count
    anchor: Digest
    members: Members


class InStep(ToTrainer, frozen=True):
    """Whether this peer stands where the electorate stands; it trains only then."""

    here: bool


class AskSubmit(ToTrainer, frozen=True):
    """The others are done: offer what there is."""


class OthersSpeeds(ToTrainer, frozen=True):
    """What each other peer of the electorate says of its tokens per second."""

    tokens_per_s: Annotated[dict[PeerId, Figure], Meta(max_length=4096)]


class ReportEvent(ToTrainer, frozen=True):
    """Something to tell people: the name of an event of `peer.schema.events`, and its fields."""

    name: Text
    fields: dict[str, Any]


class HomesOffered(ToTrainer, frozen=True):
    """To a lead: the homes that would work in its cluster now."""

    homes: Annotated[tuple[HomeOffer, ...], Meta(max_length=256)]


class HomesFound(ToTrainer, frozen=True):
    """Homes have found each other: who leads, all of them in the order of their stages, and what they expect."""

    lead: PeerId
    order: Annotated[tuple[PeerId, ...], Meta(max_length=32)]
    tokens_per_s: Figure
    line: Text
    """With which the others work in the lead's cluster; empty for the lead itself."""
    upload_mbps: Figure
    """Of this home's line, as it was told to the others; 0 if it is not known."""


class HomesMissing(ToTrainer, frozen=True):
    """Homes that found each other do not form a cluster, since these did not come in time."""

    missing: Members


class StagesAssigned(ToTrainer, frozen=True):
    """To a worker: who trains what from now on, by its lead's word."""

    assignment: Assignment


class HomeLost(ToTrainer, frozen=True):
    """A home of the cluster has no stream to this one any more."""

    peer: PeerId
    why: Text


class LinkFailed(ToTrainer, frozen=True):
    """The last word: why the link ends, by the name of an error of `dht.errors`."""

    error: Text
    text: Text


AnyToLink = (
    OpenLink | ChangeLimits | Hello | ReportProgress | OfferContribution | PausedAt | StepsGoOn | StandsAt
    | LossMeasured | Leave | AssignStages | HomesExpelled | LayersHeld | StartLooked | SeekWork | LookForHomes
)  # fmt: skip
AnyToTrainer = (
    SpecText | Waiting | BeginAt | ReplayBlock | ResumeAt | BlockCommitted | AdoptSnapshot | InStep
    | AskSubmit | OthersSpeeds | ReportEvent | HomesOffered | StagesAssigned | HomeLost | LinkFailed | StartBrought
    | HomesFound | HomesMissing
)  # fmt: skip


def _plain(value: Any) -> float:
    """numpy's float64 is a float, for msgspec not."""
    if isinstance(value, float):
        return float(value)
    raise TypeError(f"a {type(value).__name__} is no value of a message")


encode = msgspec.msgpack.Encoder(enc_hook=_plain).encode
_TO_LINK: Decoder[AnyToLink] = Decoder(AnyToLink)
_TO_TRAINER: Decoder[AnyToTrainer] = Decoder(AnyToTrainer)


def decode_to_link(packed: bytes) -> AnyToLink:
    """Raises BadMessage for what `encode` never makes of a `ToLink` within its bounds."""
    return _decoded(_TO_LINK, packed)


def decode_to_trainer(packed: bytes) -> AnyToTrainer:
    """Raises BadMessage for what `encode` never makes of a `ToTrainer` within its bounds."""
    return _decoded(_TO_TRAINER, packed)


def _decoded(decoder: Decoder[M], packed: bytes) -> M:
    try:
        return decoder.decode(packed)
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors, and so is text that is no UTF-8
        raise BadMessage(str(error)) from error
