"""What the owner of a peer wishes: that it trains, pauses, or pauses once its round is given.

The thread of the control socket says it, the trainer looks at it between micro-batches; neither waits for the
other. A wish is remembered whatever the peer does just then, and lasts as long as the process.
"""

from __future__ import annotations

import threading
from enum import Enum


class Wish(Enum):
    """As in the names of the commands."""

    TRAIN = "resume"
    FINISH = "finish"
    """Train until this round's contribution is made, then pause."""
    PAUSE = "pause"


class Wishes:
    """The newest wish."""

    def __init__(self) -> None:
        self._wish = Wish.TRAIN
        self._changing = threading.Lock()

    @property
    def now(self) -> Wish:
        """What is wished."""
        return self._wish

    @property
    def pausing(self) -> bool:
        """Whether no further micro-batch is wished."""
        return self._wish is Wish.PAUSE

    def wish(self, wish: Wish) -> None:
        """Replace the wish before."""
        with self._changing:
            self._wish = wish

    def round_is_given(self) -> None:
        """This round's contribution is made: who wished to finish it pauses now."""
        with self._changing:  # a `resume` that comes meanwhile stands
            if self._wish is Wish.FINISH:
                self._wish = Wish.PAUSE
