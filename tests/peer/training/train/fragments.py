"""When which fragment of a model is taken and merged in streaming DiLoCo (arXiv:2501.18512).

A pure schedule, of steps alone, for a model of few numbers. A run has `peer/node/lifecycle/fragments.py`: there a
fragment's delay is how long its round takes.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Fragments:
    """The fragments take turns, one in each period of `steps` / `fragments` inner steps.

    So each is averaged once in `steps`, at its own offset, and all peers send the same one at a time. Its
    pseudo-gradient is taken `delay` steps before the end of its period, and what came of it is merged at the end.
    """

    fragments: int
    steps: int
    """Inner steps from one average of a fragment to its next (H)."""
    delay: int = 0

    def __post_init__(self) -> None:
        assert self.fragments >= 1
        assert self.steps % self.fragments == 0, (
            f"{self.steps} steps are no whole periods of {self.fragments} fragments"
        )
        assert 0 <= self.delay < self.period, f"a fragment's delay of {self.delay} is not within {self.period} steps"

    @property
    def period(self) -> int:
        """Inner steps from one merge, of whichever fragment, to the next."""
        return self.steps // self.fragments

    def taken_after(self, step: int) -> int | None:
        """The fragment whose pseudo-gradient is taken once inner step `step`, counted from 1, is made."""
        return self._ending_at(step + self.delay)

    def merged_after(self, step: int) -> int | None:
        """The fragment that is merged once inner step `step` is made, after any is taken."""
        return self._ending_at(step)

    def _ending_at(self, step: int) -> int | None:
        turn, left = divmod(step, self.period)
        return (turn - 1) % self.fragments if turn and not left else None
