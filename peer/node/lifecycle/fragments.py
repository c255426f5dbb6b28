"""The fragments of a model at one peer: which one is next, and what was made for each since it was last offered.

Round r averages fragment r mod P, while training goes on in every round. What a peer offers for a fragment was made in
all rounds since that fragment's last turn, so tokens, steps and age are counted per fragment. Age is counted in the
fragment's own turns: a fragment that waits for its turn is not late.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from peer.consensus.protocol.block import Ranges
from peer.consensus.protocol.layout import Part, divide, turns
from peer.node.store.contributions import WorkStats


@dataclass
class Staleness:
    """Remembers the rounds of the oldest inner steps. The rounding error of counted work has no age: it is small and
    always there, so that otherwise every contribution would be stale."""

    oldest: int | None = None
    """Round of the oldest step that is not counted."""
    unoffered: int | None = None
    """Round of the oldest step that is not in the contribution on offer either."""

    def progressed(self, round: int) -> None:
        self.oldest = round if self.oldest is None else self.oldest
        self.unoffered = round if self.unoffered is None else self.unoffered

    def froze(self) -> None:
        """All work so far is offered."""
        self.unoffered = None

    def counted(self) -> None:
        """An update counted what was offered, in every part."""
        self.oldest = self.unoffered

    def went_back(self, round: int) -> None:
        """This peer stands at the earlier anchor `round` again: what it made since is made there."""
        self.oldest = None if self.oldest is None else min(round, self.oldest)
        self.unoffered = None if self.unoffered is None else min(round, self.unoffered)

    def staleness(self, round: int) -> int:
        """Rounds from the oldest work to anchor `round`."""
        return 0 if self.oldest is None else round - self.oldest


@dataclass
class FragmentWork:
    """What one peer has made for one fragment since its last offer."""

    tokens: int = 0
    steps: int = 0
    owed_steps: int = 0
    """Inner steps behind what is on offer, or was offered and did not count. They are offered again."""
    age: Staleness = field(default_factory=Staleness)
    """In turns of the fragment."""

    def copy(self) -> FragmentWork:
        return replace(self, age=replace(self.age))

    def counted(self) -> None:
        """An update counted what was offered, in every part."""
        self.age.counted()
        self.owed_steps = 0


class FragmentSchedule:
    """The fragments of a model cut into `parts`. Raises ValueError for more fragments than layers."""

    def __init__(self, parts: Sequence[Part], fragments: int) -> None:
        self._divided = divide(parts, fragments)
        self._works = [FragmentWork() for _ in self._divided]

    def parts(self, *rounds: int) -> tuple[Part, ...]:
        """The parts that the rounds from these anchors average, each once."""
        fragments = sorted({round % len(self._divided) for round in rounds})
        return tuple(part for fragment in fragments for part in self._divided[fragment].parts)

    @property
    def everything(self) -> range:
        """Rounds that together average the whole model."""
        return range(len(self._divided))

    def work(self, round: int) -> FragmentWork:
        return self._works[round % len(self._divided)]

    def turn(self, round: int, at: int | None = None) -> int:
        """How many turns the fragment of a round has had before it, or before round `at`."""
        return turns(round % len(self._divided), len(self._divided), round if at is None else at)

    # ---- what changes it ----

    def progressed(self, round: int, tokens: int, steps: int = 1) -> None:
        """Inner steps were made, from anchor `round` or from its successor: every fragment moved."""
        for fragment, work in enumerate(self._works):
            work.tokens += tokens
            work.steps += steps
            work.age.progressed(self.turn(fragment, round))

    def offer(self, round: int, ranges: Ranges) -> WorkStats:
        """The statistics of the contribution for anchor `round`; later work belongs to the next turn."""
        work = self.work(round)
        steps = work.owed_steps + work.steps
        effort = WorkStats(work.tokens, steps, ranges, work.age.staleness(self.turn(round)))
        work.age.froze()
        work.tokens, work.steps, work.owed_steps = 0, 0, steps
        return effort

    def take_back(self, round: int, before: FragmentWork) -> None:
        """Undo the offer: the work is as it was before, and what was made since."""
        work = self.work(round)
        work.tokens += before.tokens
        work.steps += before.steps
        work.owed_steps, work.age = before.owed_steps, before.age

    def went_back(self, round: int) -> None:
        for fragment, work in enumerate(self._works):
            work.age.went_back(self.turn(fragment, round))

    def restored(self, round: int, steps: int, staleness: int) -> None:
        """The residual of a round's fragment is what was offered for anchor `round`."""
        age = Staleness(self.turn(round) - staleness)
        self._works[round % len(self._works)] = FragmentWork(owed_steps=steps, age=age)

    def too_old(self, round: int, most: int) -> list[int]:
        """Fragments with owed work that is more than `most` turns old at anchor `round`."""
        return [
            fragment
            for fragment, work in enumerate(self._works)
            if work.age.staleness(self.turn(fragment, round)) > most
        ]

    def drop_offered(self, fragment: int, round: int) -> bool:
        """Forget what was offered, if all later work was made for anchor `round` alone; returns whether it was."""
        age = self._works[fragment].age
        if age.unoffered != self.turn(fragment, round):
            return False
        self._works[fragment].counted()
        return True

    def drop(self, fragment: int) -> None:
        self._works[fragment] = FragmentWork()

    # ---- in a checkpoint ----

    def state(self) -> list[tuple[Any, ...]]:
        return [(work.tokens, work.steps, work.age.oldest, work.age.unoffered, work.owed_steps) for work in self._works]

    def restore(self, state: Iterable[Sequence[Any]]) -> None:
        """The inverse of `state`, also after a conversion to JSON and back. Older checkpoints tell no owed steps."""
        self._works = [
            FragmentWork(tokens, steps, sum(owed), Staleness(oldest, unoffered))
            for tokens, steps, oldest, unoffered, *owed in state
        ]
