"""What the churn benchmark strikes with, and what each system made of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

KINDS = ("join", "leave", "crash", "stall")


@dataclass(frozen=True, kw_only=True)
class Act:
    """Something that is done to one peer at a moment."""

    at_s: float
    """Since training began."""
    peer: int
    what: str
    """join, leave, kill, back, halt or go on."""


def acts_of(events: Sequence[Mapping[str, Any]]) -> list[Act]:
    """The schedule in order. Raises ValueError for an event that says not exactly one thing."""
    acts = []
    for event in events:
        kinds = [kind for kind in KINDS if kind in event]
        if len(kinds) != 1:
            raise ValueError(f"an event must say one of {', '.join(KINDS)}: {dict(event)}")
        (kind,), at_s = kinds, float(event["at_s"])
        peer = event[kind]
        match kind:
            case "crash":
                acts.append(Act(at_s=at_s, peer=peer, what="kill"))
                if "back_after_s" in event:
                    acts.append(Act(at_s=at_s + event["back_after_s"], peer=peer, what="back"))
            case "stall":
                acts.append(Act(at_s=at_s, peer=peer, what="halt"))
                acts.append(Act(at_s=at_s + event["for_s"], peer=peer, what="go on"))
            case _:
                acts.append(Act(at_s=at_s, peer=peer, what=kind))
    return sorted(acts, key=lambda act: act.at_s)


def peer_seconds(acts: Sequence[Act], founders: int, seconds: float) -> float:
    """How long peers were there and not stopped, all together, in the first `seconds`."""
    since: dict[int, float] = dict.fromkeys(range(founders), 0.0)
    total = 0.0
    for act in acts:
        if act.at_s >= seconds:
            break
        if act.what in ("join", "back", "go on"):
            since[act.peer] = act.at_s
        elif act.peer in since:
            total += act.at_s - since.pop(act.peer)
    return total + sum(seconds - begin for begin in since.values())


@dataclass(frozen=True, kw_only=True)
class Kept:
    """One system under one schedule."""

    system: str
    churn: bool
    shaper: str
    seconds: float
    peer_seconds: float
    step_tokens_per_s: float
    """What one peer makes in a second while it is there."""
    commits_s: list[float]
    """When each round was over, since training began."""
    tokens: int
    """Of contributions that rounds counted until the end."""
    made: int
    """Of all inner steps until the end."""
    loss: float
    """Held-out, of what was last agreed."""
    losses: list[float]
    """Of every peer's own idea of that, where they differ."""
    load: float
    acts: list[Act] = field(default_factory=list)
    """As they were done, with the times at which they were."""
    notes: list[str] = field(default_factory=list)
    """What went wrong."""

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds

    @property
    def of_present(self) -> float:
        """Counted tokens over those that the peers could make while they were there."""
        return self.tokens / (self.peer_seconds * self.step_tokens_per_s)

    @property
    def longest_s(self) -> float:
        """The longest time without a round that ends."""
        return max(later - earlier for earlier, later in pairwise([0.0, *self.commits_s, self.seconds]))
