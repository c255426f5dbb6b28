"""`python -m peer.testing.join INVITE --dir DIR …`: `python -m peer join` with a network that can be broken.

Faults that strike in the trainer's own phases strike when their event has been printed.
"""

from __future__ import annotations

import argparse
import io
import sys
from pathlib import Path
from typing import TextIO

from peer.__main__ import main
from peer.averaging.child import LinkChild
from peer.events import PhaseEntered, RoundStarted, parse_line
from peer.testing.strikes import Striker

TRAINER_PHASES = ("freeze", "apply")
"""Those that the trainer reports; "train" begins with `RoundStarted`. The rest is the link's."""


class WatchedOutput(io.TextIOBase):
    """stdout that is read on its way out: a whole line is printed first, then what is due strikes."""

    def __init__(self, inner: TextIO, directory: Path) -> None:
        self._inner, self._directory = inner, directory
        self._striker = Striker(directory, by_link=False)
        self._text = ""

    def write(self, text: str) -> int:
        """Keep the text until `flush`."""
        self._text += text
        return len(text)

    def flush(self) -> None:
        """Print what was kept."""
        text, self._text = self._text, ""
        self._inner.write(text)
        self._inner.flush()
        for line in text.splitlines():
            self._look_at(line)

    def _look_at(self, text: str) -> None:
        line = parse_line(text)
        match line.event if line else None:
            case RoundStarted(round=round):
                self._strike("train", round)
            case PhaseEntered(round=round, phase=phase) if phase in TRAINER_PHASES:
                self._strike(phase, round)

    def _strike(self, phase: str, round: int) -> None:
        # What breaks the network is passed on to the link by the swarm, which hears of the strike.
        self._striker.enter(phase, round)


def run() -> int:
    """Take part; the exit code of `python -m peer join`."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--dir", type=Path, required=True)
    directory = parser.parse_known_args()[0].dir
    sys.stdout = WatchedOutput(sys.stdout, directory)
    LinkChild.module = "peer.testing.faulty_link"
    return main(["join", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(run())
