"""The typed fields of a lifecycle's state, so that mypy finds a misspelt field or a wrong type."""

from __future__ import annotations

from typing import Literal, TypedDict

from peer.node.lifecycle.inputs_effects import Move, OwnerChanged, RoundDecided, TrainerStatus, Work
from peer.node.lifecycle.pace import Pace
from peer.node.lifecycle.state import AnchorState, Connection, Halted, Progress, Saves, Submission, TimeSpent
from peer.schema.spec import RunSpec


class LifeChanges(TypedDict, total=False):
    """Each field of `Life` by its name and type."""

    run: RunSpec
    me: str
    at: float
    trainer: TrainerStatus
    round: AnchorState
    pace: Pace
    progress: Progress
    saves: Saves
    owner: OwnerChanged
    serves: bool
    connection: Connection
    met: bool
    had_others: bool
    moves: tuple[Move, ...]
    asked_there: bool
    chores: tuple[Work, ...]
    work: Work | None
    moving: Move | None
    work_began_at: float
    stuck: Halted | None
    missed: int
    granted: bool
    links_lost: tuple[float, ...]
    stepped_at: float
    rests_until: float
    times: TimeSpent
    told_at: float
    told_exposed_s: float
    replay_told_at: float | None
    leaving: bool
    saved_last: bool
    said: tuple[str, str, float | None]


class AnchorChanges(TypedDict, total=False):
    """Each of `AnchorState`."""

    anchor: bytes
    members: tuple[str, ...]
    agreed_at: float
    begun: bool
    submission: Submission
    held_since: float | None
    released: Literal["", "resumed", "overdue"]
    pause_told: bool
    applying: RoundDecided | None
