"""Tasks that take turns: who runs next is drawn from a seed, so that a schedule that fails can be looked at."""

from __future__ import annotations

import random
from collections.abc import Generator

MANY_TURNS = 10_000

Task = Generator[None, None, None]


class Schedule:
    """One order of turns. Of three turns one is a copy's, as long as there are any."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.tasks: list[Task] = []
        self.copies: list[Task] = []

    def run(self) -> None:
        """Until every task has ended."""
        for _ in range(MANY_TURNS):
            if not self.tasks:
                return
            running = self.random.choice([self.tasks, self.tasks, self.copies] if self.copies else [self.tasks])
            task = self.random.choice(running)
            try:
                next(task)
            except StopIteration:
                running.remove(task)
        raise AssertionError("the schedule does not end")
