"""The words of a peer's life: what it is told, what it has its trainer do, and what else it asks for.

No clock, no torch and no files here: whoever drives the lifecycle has those (`peer.session`, the simulator, the tests).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from peer.events import Event
from peer.ipc import ToLink
from peer.limits.policy import Hold
from peer.protocol.block import Update

# ---- what a trainer is ----


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerStatus:
    """All that anybody may know of a trainer."""

    round: int
    """Of the anchor where it stands."""
    step: int = 0
    """Inner steps made towards the round in training."""
    fresh: bool = False
    """Whether work was done that the next contribution would offer first."""
    on_device: bool = True
    offered: bool = False
    """Whether this anchor's contribution is offered."""
    device_gb: float | None = None
    """Memory of the GPU that it trains on; None without one."""


class Trainer(Protocol):
    """What is driven: one piece of work at a time."""

    @property
    def status(self) -> TrainerStatus: ...

    def do(self, work: Work, post: Post, stop: Callable[[], bool]) -> None:
        """Do it, and post one `Done`; later perhaps `Written`, `LayersReady` and `Saved`, from any thread.

        Once `stop` says so, which it is asked between micro-batches, the work ends early: a step counts what was made.
        """


# ---- what it does: one at a time ----


@dataclass(frozen=True, slots=True)
class Step:
    """Inner steps, at most so many: a real trainer makes one, a simulated one many at once."""

    most: int
    position: float
    """Where between step 0 and step H of the round the learning rate of the first one is taken."""
    members: tuple[str, ...] | None
    """Who shares the data from now on; None: as before."""


@dataclass(frozen=True, slots=True)
class Submit:
    """Offer what was learned for this anchor. `Done` follows at once, `Written` when all is on disk."""

    anchor: bytes
    members: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class TakeBack:
    """The contribution could not be written: nothing is offered, nothing is lost."""


@dataclass(frozen=True, slots=True)
class Apply:
    """Move to the next anchor.

    `beside`: `Done` follows once every byte was checked, and the layers beside the next steps; then `LayersReady`.
    """

    update: Update
    beside: bool


@dataclass(frozen=True, slots=True)
class Replay:
    """Move to the next anchor, which was decided before this start."""

    update: Update


@dataclass(frozen=True, slots=True)
class Rewind:
    """Stand at an earlier anchor again: these updates, newest first, no longer count."""

    updates: tuple[Update, ...]
    anchor: bytes


@dataclass(frozen=True, slots=True)
class Adopt:
    """Stand where the snapshot of `anchor` was taken; `left` names the anchor where the trainer stood before."""

    round: int
    anchor: bytes
    left: bytes


@dataclass(frozen=True, slots=True)
class Resume:
    """Stand at `anchor`, where the trainer is: what it offered for that is offered again."""

    anchor: bytes


@dataclass(frozen=True, slots=True)
class Evaluate:
    """Measure the held-out loss of this round's anchor."""

    round: int


@dataclass(frozen=True, slots=True)
class Save:
    """Write a checkpoint: `due` beside the next steps, `now` before anything else happens, `last` before the end."""

    anchor: bytes
    when: Literal["due", "now", "last"]
    then: tuple[ToLink, ...] = ()
    """What the link hears once that is done."""


@dataclass(frozen=True, slots=True)
class LeaveDevice:
    """Give the device's memory to others."""


@dataclass(frozen=True, slots=True)
class TakeDevice:
    """Have the model on the device again."""


Work = Step | Submit | TakeBack | Apply | Replay | Rewind | Adopt | Resume | Evaluate | Save | LeaveDevice | TakeDevice


@dataclass(frozen=True, slots=True, kw_only=True)
class Stepped:
    """Inner steps were made."""

    steps: int = 1
    tokens: int
    loss: float | None
    """Mean over them; None if nobody computes one."""
    learning_rate: float = 0.0
    waited_s: float = 0.0
    """So long they stood still for layers of the newest update."""
    rest_s: float = 0.0
    """The rest that its owner's limits ask for after it."""


@dataclass(frozen=True, slots=True)
class Moved:
    """The trainer stands at another anchor."""

    given_up: float = 0.0
    """Norm of work that was too old, or did not come along; 0 if none."""
    state: bytes | None = None
    """H(θ, m); None while layers are on their way."""
    returned: int = 0
    """In how many of the updates that were undone its work was counted, and is owed again."""
    lost: int = 0
    """In how many that is not on its disk any more."""


@dataclass(frozen=True, slots=True)
class HeldOutLoss:
    """Held-out loss in nats per token."""

    loss: float
    tokens: int


@dataclass(frozen=True, slots=True)
class NoRoom:
    """The device has no room (`why` in words), or others use its memory (none)."""

    why: str = ""


Result = Stepped | Moved | HeldOutLoss | NoRoom | None


# ---- what it is told ----


@dataclass(frozen=True, slots=True)
class LifeInput:
    """Base of all inputs. `now` is in seconds of a clock that never goes back."""

    now: float


Post = Callable[[Callable[[float], LifeInput]], None]
"""Hand an input on: whoever drives adds the time."""


@dataclass(frozen=True, slots=True)
class Woken(LifeInput):
    """`wake_at` has come."""


@dataclass(frozen=True, slots=True)
class Greeted(LifeInput):
    """A link has begun, and wants to hear where the trainer stands."""


@dataclass(frozen=True, slots=True)
class LinkWaits(LifeInput):
    """For what, in words."""

    why: str


@dataclass(frozen=True, slots=True)
class Began(LifeInput):
    """The chain knows this anchor: the trainer's own, or the first one."""

    anchor: bytes
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RoundDecided(LifeInput):
    """A round was decided and leads to `anchor`: the bytes it cost, and when the link heard of it."""

    update: Update
    anchor: bytes
    bytes_sent: int
    bytes_received: int
    agreed_at: float


@dataclass(frozen=True, slots=True)
class Replayed(LifeInput):
    """A round of the chain on this disk, which ends at `last_round`."""

    update: Update
    anchor: bytes
    last_round: int


@dataclass(frozen=True, slots=True)
class Rewound(LifeInput):
    """The others' branch won: these updates, newest first, are off the chain; it stands at `anchor` again."""

    updates: tuple[Update, ...]
    anchor: bytes
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SnapshotTaken(LifeInput):
    """A snapshot is on disk, from which the run goes on."""

    round: int
    anchor: bytes
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Positioned(LifeInput):
    """The chain on this disk ends at `anchor`."""

    anchor: bytes


Move = RoundDecided | Replayed | Rewound | SnapshotTaken | Positioned


@dataclass(frozen=True, slots=True)
class SyncChanged(LifeInput):
    """Whether this peer stands where the electorate stands."""

    in_step: bool


@dataclass(frozen=True, slots=True)
class SubmitAsked(LifeInput):
    """The others are done."""


@dataclass(frozen=True, slots=True)
class SpeedsHeard(LifeInput):
    """What each other peer of the electorate says of its tokens per second."""

    tokens_per_s: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class LinkEnded(LifeInput):
    """With LinkLost, Unreachable, ClockOff or DiskFull: anything else ends the peer."""

    error: Exception


@dataclass(frozen=True, slots=True)
class ClockJumped(LifeInput):
    """Somebody has set this machine's clock."""


@dataclass(frozen=True, slots=True)
class OwnerChanged(LifeInput):
    """What the owner and the limits ask for now."""

    holds: tuple[Hold, ...] = ()
    """Reasons not to train."""
    finishing: bool = False
    """Whether it pauses once this round's contribution is made."""
    min_step_s: float = 0.0


@dataclass(frozen=True, slots=True)
class LeaveAsked(LifeInput):
    """This peer is to leave the run."""


@dataclass(frozen=True, slots=True)
class Done(LifeInput):
    """The work is done: exactly one for each."""

    result: Result
    trainer: TrainerStatus


@dataclass(frozen=True, slots=True)
class Written(LifeInput):
    """The contribution to this anchor is on disk; or there was no room, in words."""

    anchor: bytes
    no_room: str = ""


@dataclass(frozen=True, slots=True)
class LayersReady(LifeInput):
    """The update is applied to the last layer; `state` is H(θ, m)."""

    state: bytes


@dataclass(frozen=True, slots=True)
class Saved(LifeInput):
    """A checkpoint is on disk; or there was no room, in words. It took so long."""

    round: int
    seconds: float
    path: str = ""
    size_bytes: int = 0
    no_room: str = ""


# ---- what it asks for ----


@dataclass(frozen=True, slots=True)
class Do:
    """Have the trainer do this, and answer with `Done`. The last effect of its list, and one at a time."""

    work: Work


@dataclass(frozen=True, slots=True)
class Interrupt:
    """End what the trainer does: after the step that is made, or (`at_once`) after its micro-batch."""

    at_once: bool


@dataclass(frozen=True, slots=True)
class Say:
    """Say this to the link. One that has ended hears nothing."""

    message: ToLink


@dataclass(frozen=True, slots=True)
class Greet:
    """Tell the link what the model looks like, and that the trainer stands at `anchor`."""

    anchor: bytes


@dataclass(frozen=True, slots=True)
class Emit:
    """Tell people."""

    event: Event


@dataclass(frozen=True, slots=True, kw_only=True)
class EmitRound:
    """Tell people of a decided round, once."""

    update: Update
    anchor: bytes
    state: bytes
    bytes_sent: int
    bytes_received: int
    round_s: float
    exposed_s: float
    in_step: bool
    """Whether it is news: of one that was decided long ago people hear no penalties of others."""


@dataclass(frozen=True, slots=True)
class WriteSnapshot:
    """For newcomers, if it is time. The anchor does not change before `Apply`."""

    anchor: bytes
    state: bytes


@dataclass(frozen=True, slots=True)
class ForgetForecast:
    """The round in training is none of the usual ones."""


@dataclass(frozen=True, slots=True)
class Reconnect:
    """Start a new link in place of one that has ended."""


@dataclass(frozen=True, slots=True)
class GrantFinish:
    """The contribution is made: who wished to finish it pauses now. `OwnerChanged` follows."""


@dataclass(frozen=True, slots=True)
class Fail:
    """It cannot go on."""

    error: Exception


LifeEffect = (
    Do | Interrupt | Say | Greet | Emit | EmitRound | WriteSnapshot | ForgetForecast | Reconnect | GrantFinish
    | Fail
)  # fmt: skip
