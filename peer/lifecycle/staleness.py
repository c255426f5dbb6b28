"""How old the work is that a peer has produced and no update has counted: the staleness of what it offers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Staleness:
    """Remembers the rounds of the oldest inner steps. What encoding left of counted work has no age.

    It is small, and always there: every contribution would be stale.
    """

    oldest: int | None = None
    """Round of the oldest step that is not counted."""
    unoffered: int | None = None
    """Round of the oldest step that is not in the contribution on offer either."""

    def progressed(self, round: int) -> None:
        """An inner step was made from anchor `round`."""
        self.oldest = round if self.oldest is None else self.oldest
        self.unoffered = round if self.unoffered is None else self.unoffered

    def froze(self) -> None:
        """All work so far is offered."""
        self.unoffered = None

    def counted(self) -> None:
        """An update took what was offered, in every part."""
        self.oldest = self.unoffered

    def returned(self, round: int) -> None:
        """Work since `round` is owed again, since an update that had counted it was undone."""
        self.oldest = round if self.oldest is None else min(round, self.oldest)
        self.unoffered = round if self.unoffered is None else min(round, self.unoffered)

    def went_back(self, round: int) -> None:
        """This peer stands at the earlier anchor `round` again: what it made since is made there."""
        self.oldest = None if self.oldest is None else min(round, self.oldest)
        self.unoffered = None if self.unoffered is None else min(round, self.unoffered)

    def staleness(self, round: int) -> int:
        """Rounds from the oldest work to anchor `round`."""
        return 0 if self.oldest is None else round - self.oldest
