"""The state of a peer's life: its connection, what it has offered, what its trainer does, and why."""

from __future__ import annotations

from enum import Enum
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from peer.node.lifecycle.inputs_effects import Move, OwnerChanged, RoundDecided, Step, TrainerStatus, Work
from peer.node.lifecycle.pace import Pace
from peer.schema.spec import RunSpec

AWAY_MOST_S = 300.0
"""Data that are away are tried again after RETRY_S, and after twice as long each time, but for this."""
RETRY_S = 5.0
"""A full disk or device is tried again after this."""
CLOCK_RETRY_S = 60.0
"""A wrong clock that was put right slowly does not jump: it is tried again after this, too."""
SPEC_TIMEOUT_S = 90.0
"""A link that has not found the run's spec by then never will."""
LINKS_LOST, LINK_LOST_WINDOW_S = 3, 600.0
"""So many links may end without a word in this time."""
SAVE_SHARE = 0.02
"""Checkpoints take at most this share of the time, however slow the disk is."""
SAVE_EVERY_S = 600.0
"""Within a round; at its end one is written whenever `SAVE_SHARE` allows."""

# ---- what it is connected to ----


class Joining(Struct, frozen=True):
    """A link was started and has not yet said where the chain stands."""

    stage: Literal["spec", "hello", "begin"]
    """What comes next: the link's first message, ours, its answer."""
    again: bool = False
    """Whether the link replaces one that ended."""
    spec_by: float | None = None
    why: str = ""
    """What the link waits for."""
    clock_why: str = ""
    """Why this peer waits, if the link before ended because of a wrong clock."""


class Following(Struct, frozen=True):
    """The link follows the chain; `in_step`: this peer stands where the electorate stands, with its digest."""

    in_step: bool = False


class Offline(Struct, frozen=True):
    """No link until the cause is gone."""

    cause: Literal["CLOCK", "DISK", "QUOTA", "LOST"]
    why: str = ""
    retry_at: float = float("inf")
    link_ended: bool = True
    """A link that was asked to leave says goodbye first."""


Connection = Joining | Following | Offline

# ---- what it has offered ----


class Open(Struct, frozen=True):
    """Nothing is offered for this anchor; `asked`: the others ask for what there is."""

    asked: bool = False


class Writing(Struct, frozen=True):
    """The contribution is written beside training."""

    quiet: bool = False
    """Before a pause, which says so itself."""
    failed: bool = False
    """There was no room: the contribution is to be taken back."""


class Offered(Struct, frozen=True):
    """It is on disk, and the link knows."""


Submission = Open | Writing | Offered


class AnchorState(Struct, frozen=True):
    """The state that ends with this anchor."""

    anchor: bytes
    """The chain's name of the trainer's anchor; empty before the first round."""
    members: tuple[str, ...]
    """The members of the update that led here, without those that have left."""
    agreed_at: float
    """When the link heard that it was agreed, before it could be computed."""
    begun: bool = False
    """Whether the data is shared out and people know that the round began."""
    submission: Submission = Open()
    held_since: float | None = None
    """Since when this peer waits for the next anchor."""
    released: Literal["", "resumed", "overdue"] = ""
    """Why it makes steps although it has offered its part."""
    pause_told: bool = False
    """Whether the link knows that no step follows."""
    applying: RoundDecided | None = None
    """The round that led here, while its layers are still applied beside the next steps."""


# ---- what it counts ----


class TimeSpent(Struct, frozen=True):
    """Seconds of this life: each counts as exactly one of these."""

    training_s: float = 0.0
    rested_s: float = 0.0
    """The owner asked for the rest; whatever is done meanwhile holds nothing up."""
    paused_s: float = 0.0
    exposed_s: float = 0.0
    """No step could be made, for any reason except the owner's."""


class Progress(Struct, frozen=True):
    """The work since people last heard of it."""

    since: float
    exposed_s: float
    """The total at its beginning."""
    steps: int = 0
    tokens: int = 0
    losses: float = 0.0
    """Their sum."""
    measured: int = 0
    """How many of the steps have a loss."""
    learning_rate: float = 0.0


class Saves(Struct, frozen=True):
    """Checkpoints: when the newest was written and how long that took, whether one is being written, or found no
    room."""

    at: float
    cost_s: float = 0.0
    running: bool = False
    failed: bool = False


class Halted(Struct, frozen=True):
    """No room on the disk or the device, or no data."""

    why: str
    retry_at: float
    away: bool = False
    """The data are missing: nobody knows for how long, so this peer contributes what it has and holds nobody up."""


class Mode(Enum):
    """The state that people read, derived from everything else."""

    JOINING = "JOINING"
    SYNCING = "SYNCING"
    TRAINING = "TRAINING"
    AVERAGING = "AVERAGING"
    PAUSED = "PAUSED"
    STUCK = "PAUSED, no room"
    OFFLINE = "PAUSED, no link"
    LEFT = "GONE"


class Life(Struct, frozen=True, kw_only=True):
    """The whole state. `at` is when it was last looked at, by a monotonic clock."""

    run: RunSpec
    me: str
    at: float
    trainer: TrainerStatus
    round: AnchorState
    pace: Pace
    progress: Progress
    saves: Saves
    owner: OwnerChanged
    serves: bool = False
    """Whether it works for the lead of a cluster, which says when a part is made."""
    connection: Connection = Joining("hello")
    met: bool = False
    """Whether any link has said where the chain stands."""
    had_others: bool = False
    """Somebody else was a member of a round that it has seen."""
    moves: tuple[Move, ...] = ()
    """Decided and not yet applied, in order."""
    asked_there: bool = False
    """Whether the others ask for a contribution at the anchor to which the last move leads."""
    chores: tuple[Work, ...] = ()
    """What comes before the next step."""
    work: Work | None = None
    """What the trainer does now."""
    moving: Move | None = None
    """The move that the trainer makes now."""
    work_began_at: float = 0.0
    stuck: Halted | None = None
    missed: int = 0
    """Consecutive attempts at a step without data."""
    granted: bool = False
    """Whether the wish to finish the round became a pause, as the owner's next input will say."""
    links_lost: tuple[float, ...] = ()
    stepped_at: float = 0.0
    """When the newest inner step ended."""
    rests_until: float = 0.0
    """No inner step begins before that."""
    times: TimeSpent = TimeSpent()
    told_at: float = 0.0
    """When people heard of the newest round, or this life began."""
    told_exposed_s: float = 0.0
    replay_told_at: float | None = None
    leaving: bool = False
    saved_last: bool = False
    said: tuple[str, str, float | None] = ("", "", None)
    """State, reason and end, as people heard them."""

    # ---- the round in training ----

    @property
    def streams(self) -> bool:
        """Whether steps that follow a contribution belong to the next round."""
        return self.run.round.overlap == "streaming"

    @property
    def round_in_training(self) -> int:
        """The number of the anchor to which the present steps will be offered."""
        return self.trainer.round + (self.streams and self.trainer.offered)

    @property
    def finished(self) -> bool:
        return 0 < self.run.run.rounds <= self.trainer.round

    @property
    def in_step(self) -> bool:
        return isinstance(self.connection, Following) and self.connection.in_step

    @property
    def holds_device(self) -> bool:
        """Whether it keeps device memory from others."""
        return self.trainer.on_device and self.trainer.can_leave

    @property
    def sits_out(self) -> bool:
        """Whether no step follows for a time that does not depend on the round."""
        return bool(self.owner.holds) or (self.stuck is not None and self.stuck.away)

    @property
    def over_quota(self) -> bool:
        return any(hold.code == "QUOTA" for hold in self.owner.holds)

    def elapsed_s(self) -> float:
        """Seconds of the round in training: since the agreement on the anchor to which it will be offered, 0 before
        that. The rest since the newest step is left out: it is a part of the next step, which is predicted in its
        whole length."""
        if self.round_in_training != self.trainer.round:
            return 0.0
        rested_s = max(0.0, min(self.at, self.rests_until) - self.stepped_at)
        return max(0.0, self.at - rested_s - self.round.agreed_at)

    def share(self) -> float:
        """The share of its part of the round that this peer has made: of its steps, or of its time."""
        return self.pace.share(self.round_in_training, self.trainer.step, self.elapsed_s())

    def part_is_made(self) -> bool:
        """Whether this peer's part is to be offered now: it is made, or the others ask for what there is."""
        submission = self.round.submission
        if self.finished or not isinstance(submission, Open):
            return False
        if self.serves:
            return submission.asked
        return self.trainer.fresh and (submission.asked or self.share() >= 1)

    def held(self) -> bool:
        """Whether this peer has offered its part and must wait before it makes another step."""
        if isinstance(self.round.submission, Open) or self.round.released:
            return False
        return not self.streams or self.trainer.step >= self.run.round.delay

    @property
    def overdue_at(self) -> float:
        """A round that takes longer than all deadlines together holds nobody."""
        if self.round.held_since is None or self.round.released:
            return float("inf")
        table = self.run.round
        return self.round.held_since + table.gather_s + 2 * (table.silence_s + table.exchange_s)

    def save_is_due(self, *, round_ends: bool) -> bool:
        """Whether it is time for a checkpoint, and none is being written. Before the first round there is nothing."""
        if self.saves.running or not self.round.anchor:
            return False
        every_s = max(self.saves.cost_s / SAVE_SHARE, 0.0 if round_ends else SAVE_EVERY_S)
        return self.at - self.saves.at >= every_s

    # ---- what it is doing ----

    @property
    def mode(self) -> Mode:
        if self.saved_last:
            return Mode.LEFT
        match self.connection:
            case Offline():
                return Mode.OFFLINE
            case Joining():
                return Mode.JOINING
            case Following(in_step=False):
                return Mode.SYNCING
        if self.owner.holds:
            return Mode.PAUSED
        if self.stuck is not None:
            return Mode.STUCK
        return Mode.AVERAGING if self.held() else Mode.TRAINING

    @property
    def wake_at(self) -> float:
        """When a `Woken` would change something if nothing else comes: nothing polls."""
        if self.leaving:
            return float("inf")
        times = [self.overdue_at]
        if self.rests_until > self.at:
            times.append(self.rests_until)
        if self.stuck is not None:
            times.append(self.stuck.retry_at)
        if isinstance(self.connection, Offline) and not self.over_quota and self.work is None:
            times.append(self.connection.retry_at)
        if isinstance(self.connection, Joining) and self.connection.spec_by is not None:
            times.append(self.connection.spec_by)
        return min(times)

    def aged(self, now: float) -> Life:
        """The same at `now`: the time since counts as training, rest, pause or exposed."""
        elapsed_s = max(0.0, now - self.at)
        if not elapsed_s:
            return self
        times = self.times
        if isinstance(self.work, Step):
            times = replace(times, training_s=times.training_s + elapsed_s)
        elif self.owner.holds:
            times = replace(times, paused_s=times.paused_s + elapsed_s)
        else:
            rested_s = min(elapsed_s, max(0.0, self.rests_until - self.at))
            times = replace(
                times, rested_s=times.rested_s + rested_s, exposed_s=times.exposed_s + elapsed_s - rested_s
            )  # fmt: skip
        return replace(self, at=now, times=times)
