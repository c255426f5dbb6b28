"""The inputs and effects of a peer's lifecycle: what it is told, what its trainer does next, and what else it asks for.

No clock, no torch and no files here: whoever drives the lifecycle has those (`peer.session`, the simulator, the tests).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, Protocol

from msgspec import Struct

from peer.consensus.protocol.block import Update
from peer.node.limits.policy import Hold
from peer.schema.events import Event
from peer.schema.ipc import ToLink

# ---- what a trainer is ----


class TrainerStatus(Struct, frozen=True, kw_only=True):
    """What others may know about a trainer."""

    round: int
    """Of the anchor where it stands."""
    step: int = 0
    """Inner steps made in the present round."""
    fresh: bool = False
    """Whether work was done that the next contribution would offer for the first time."""
    on_device: bool = True
    """Whether the model is where it can train."""
    can_leave: bool = True
    """Whether there is a device whose memory others may want."""
    offered: bool = False
    """Whether this anchor's contribution is offered."""
    device_gb: float | None = None
    """Memory of the GPU that it trains on; None without one."""


class Trainer(Protocol):
    """What the lifecycle drives: one piece of work at a time."""

    @property
    def status(self) -> TrainerStatus: ...

    def enter_thread(self) -> None:
        """Called once by the thread that will `do` everything."""

    def write_snapshot(self, anchor: bytes, state: bytes) -> None:
        """Begin to write the anchor in place, if a snapshot is due; from any thread, which does not wait for it."""

    def do(self, work: Work, post: Post, stop: Callable[[], bool]) -> None:
        """Do it, and post one `Done`; later perhaps `Written`, `LayersReady` and `Saved`, from any thread. Once
        `stop` says so, which it is asked between micro-batches, the work ends early: a step counts the micro-batches
        that were made."""


# ---- what it does: one at a time ----


class Step(Struct, frozen=True):
    """Inner steps, at most so many: a real trainer makes one, a simulated one many at once."""

    most: int
    position: float
    """The position between step 0 and step H of the round at which the learning rate of the first step is taken."""
    members: tuple[str, ...] | None
    """The members that share the data from now on; None: as before."""


class Submit(Struct, frozen=True):
    """Offer what was learned for this anchor. `Done` follows at once, `Written` when all is on disk."""

    anchor: bytes
    members: tuple[str, ...] | None


class TakeBack(Struct, frozen=True):
    """The contribution could not be written: nothing is offered, nothing is lost."""


class Apply(Struct, frozen=True):
    """Move to the next anchor.

    `beside`: `Done` follows once every byte was checked, and the layers beside the next steps; then `LayersReady`.
    """

    update: Update
    beside: bool


class Replay(Struct, frozen=True):
    """Move to the next anchor, which was decided before this start."""

    update: Update


class Adopt(Struct, frozen=True):
    """Stand where the snapshot of `anchor` was taken; `left` names the anchor where the trainer stood before."""

    round: int
    anchor: bytes
    left: bytes


class Resume(Struct, frozen=True):
    """Stand at `anchor`, where the trainer is: what it offered for that is offered again."""

    anchor: bytes


class Evaluate(Struct, frozen=True):
    """Measure the held-out loss of this round's anchor."""

    round: int


class ContinuePrompts(Struct, frozen=True):
    """Continue the prompts of the run from this round's anchor."""

    round: int


LOOKS = (Evaluate, ContinuePrompts)
"""What changes nothing, and is left undone where the device is wanted."""


class Save(Struct, frozen=True):
    """Write a checkpoint: `due` beside the next steps, `now` before anything else happens, `last` before the end."""

    anchor: bytes
    when: Literal["due", "now", "last"]


class LeaveDevice(Struct, frozen=True):
    """Give the device's memory to others."""


class TakeDevice(Struct, frozen=True):
    """Have the model on the device again."""


Work = (
    Step | Submit | TakeBack | Apply | Replay | Adopt | Resume | Evaluate | ContinuePrompts | Save | LeaveDevice
    | TakeDevice
)  # fmt: skip


class Stepped(Struct, frozen=True, kw_only=True):
    """Inner steps were made."""

    steps: int = 1
    tokens: int
    loss: float | None
    """Mean over them; None if nobody computes one."""
    learning_rate: float = 0.0
    waited_s: float = 0.0
    """How long they waited for layers of the newest update."""
    rest_s: float = 0.0
    """The rest that the owner's limits ask for after it."""


class Moved(Struct, frozen=True):
    """The trainer stands at another anchor."""

    given_up: float = 0.0
    """Norm of work that was too old, or was left behind; 0 if none."""
    state: bytes | None = None
    """H(θ, m); None while layers are on their way."""


class HeldOutLoss(Struct, frozen=True):
    """Held-out loss in nats per token."""

    loss: float
    tokens: int
    by_source: dict[str, float] = {}
    """For each source of a mix, by its name."""
    precision: str = "float32"


class Continuations(Struct, frozen=True):
    """Continuations of the run's prompts, in their order; empty for a peer that cannot make any."""

    texts: tuple[str, ...]


class NoRoom(Struct, frozen=True):
    """The device has no memory for it (`why` in words), or others use the memory (no words)."""

    why: str = ""


class NoData(Struct, frozen=True):
    """The training data cannot be reached, `why` in words; no data is lost."""

    why: str


Result = Stepped | Moved | HeldOutLoss | Continuations | NoRoom | NoData | None


# ---- what it is told ----


class LifeInput(Struct, frozen=True):
    """Base of all inputs. `now` is in seconds of a monotonic clock."""

    now: float


Post = Callable[[Callable[[float], LifeInput]], None]
"""Hand an input on: whoever drives adds the time."""


class Woken(LifeInput, frozen=True):
    """`wake_at` has come."""


class Greeted(LifeInput, frozen=True):
    """A link has begun, and asks where the trainer stands."""


class LinkWaits(LifeInput, frozen=True):
    """The link waits; the reason in words."""

    why: str


class Began(LifeInput, frozen=True):
    """The chain knows this anchor: the trainer's own, or the first one."""

    anchor: bytes
    members: tuple[str, ...]


class RoundDecided(LifeInput, frozen=True):
    """A round was decided and leads to `anchor`: the bytes it cost, and when the link heard of it."""

    update: Update
    anchor: bytes
    bytes_sent: int
    bytes_received: int
    agreed_at: float


class Replayed(LifeInput, frozen=True):
    """A round of the chain on this disk, which ends at `last_round`."""

    update: Update
    anchor: bytes
    last_round: int


class SnapshotTaken(LifeInput, frozen=True):
    """A snapshot is on disk, from which the run goes on."""

    round: int
    anchor: bytes
    members: tuple[str, ...]


class Positioned(LifeInput, frozen=True):
    """The chain on this disk ends at `anchor`."""

    anchor: bytes


Move = RoundDecided | Replayed | SnapshotTaken | Positioned


class SyncChanged(LifeInput, frozen=True):
    """Whether this peer stands where the electorate stands, with its digest."""

    in_step: bool


class SubmitAsked(LifeInput, frozen=True):
    """The others are done and ask for this peer's contribution."""


class SpeedsHeard(LifeInput, frozen=True):
    """The tokens per second that each other peer of the electorate reports."""

    tokens_per_s: Mapping[str, float]


class LinkEnded(LifeInput, frozen=True):
    """The link has ended, with an error of `dht.errors` or with any other exception."""

    error: Exception


class ClockJumped(LifeInput, frozen=True):
    """Somebody has set this machine's clock."""


class OwnerChanged(LifeInput, frozen=True):
    """What the owner and the limits ask for now."""

    holds: tuple[Hold, ...] = ()
    """Reasons not to train."""
    finishing: bool = False
    """Whether it pauses once this round's contribution is made."""
    min_step_s: float = 0.0


class LeaveAsked(LifeInput, frozen=True):
    """This peer is to leave the run."""


class Done(LifeInput, frozen=True):
    """The work is done: exactly one for each."""

    result: Result
    trainer: TrainerStatus


class Written(LifeInput, frozen=True):
    """The contribution to this anchor is on disk; or there was no room, in words."""

    anchor: bytes
    no_room: str = ""


class LayersReady(LifeInput, frozen=True):
    """The update is applied to the last layer; `state` is H(θ, m)."""

    state: bytes


class Saved(LifeInput, frozen=True):
    """A checkpoint is on disk, after so many seconds; or there was no room, in words."""

    round: int
    seconds: float
    path: str = ""
    size_bytes: int = 0
    no_room: str = ""


class TrainerFailed(LifeInput, frozen=True):
    """Work beside the trainer's present piece, or (`in_work`) that piece itself, has failed, and the trainer cannot
    go on."""

    error: Exception
    in_work: bool = False


# ---- what it asks for ----


class Do(Struct, frozen=True):
    """Have the trainer do this, and answer with `Done`. The last effect of its list, and one at a time."""

    work: Work


class Interrupt(Struct, frozen=True):
    """End the trainer's work: after the present step, or (`at_once`) after its micro-batch."""

    at_once: bool


class Say(Struct, frozen=True):
    """Send this to the link. A link that has ended receives nothing."""

    message: ToLink


class Greet(Struct, frozen=True):
    """Tell the link the model's layers, and that the trainer stands at `anchor`."""

    anchor: bytes


class Emit(Struct, frozen=True):
    """Tell people."""

    event: Event


class EmitRound(Struct, frozen=True, kw_only=True):
    """Tell people of a decided round, once."""

    update: Update
    anchor: bytes
    state: bytes
    bytes_sent: int
    bytes_received: int
    round_s: float
    exposed_s: float
    in_step: bool
    """Whether it is news: people hear no penalties of others from a round that was decided long ago."""


class WriteSnapshot(Struct, frozen=True):
    """Write a snapshot for newcomers, if one is due. The anchor does not change before `Apply`."""

    anchor: bytes
    state: bytes


class ForgetForecast(Struct, frozen=True):
    """The round in training is unusual: make no forecast from it."""


class Reconnect(Struct, frozen=True):
    """Start a new link in place of one that has ended."""


class GrantFinish(Struct, frozen=True):
    """The contribution is made: a peer that was asked to finish it pauses now. `OwnerChanged` follows."""


class Fail(Struct, frozen=True):
    """It cannot go on."""

    error: Exception


LifeEffect = (
    Do | Interrupt | Say | Greet | Emit | EmitRound | WriteSnapshot | ForgetForecast | Reconnect | GrantFinish
    | Fail
)  # fmt: skip
