"""How faults reach a real peer: the test writes orders, and the peer's processes report which faults have struck.

SWARM/struck               FIFO: one line per strike, from any process of any peer to the swarm
SWARM/peer-N/test/orders   which faults strike this peer, and the peer ids by index; replaced as a whole
SWARM/peer-N/test/throw    FIFO: faults that the link must switch on now
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from peer.testing import faults
from peer.testing.faults import Crash, Fault, Stall

BOOKS = "books"
"""A peer in whose directory there is a file of this name keeps account of its work (`peer.testing.ledger_check`)."""
LINE_BYTES = 4096
"""A write of no more than this to a FIFO is never mixed with another (PIPE_BUF)."""


@dataclass(frozen=True, kw_only=True)
class Strike:
    """One line on `struck`: who struck which of the numbered faults, from which process."""

    number: int
    peer: int
    pid: int
    by_link: bool
    """The link throws the switches of its own peer itself."""


@dataclass(frozen=True, kw_only=True)
class Orders:
    """What one peer must know: its index, everybody's peer id by index, and the faults by number."""

    peer: int
    ids: tuple[str, ...]
    faults: Mapping[int, Fault]

    def write(self, directory: Path) -> None:
        """Replace the orders of the peer in `directory`."""
        folder = _folder(directory)
        (folder / "orders.new").write_text(
            json.dumps([self.peer, self.ids, [[number, _plain(fault)] for number, fault in self.faults.items()]])
        )
        (folder / "orders.new").replace(folder / "orders")

    @classmethod
    def read(cls, directory: Path) -> Orders:
        peer, ids, rows = json.loads((_folder(directory) / "orders").read_text())
        return cls(peer=peer, ids=tuple(ids), faults={number: _fault(row) for number, row in rows})

    def beyond(self, peers: Iterable[int]) -> list[str]:
        """The peer ids of all others than `peers`."""
        return [peer_id for index, peer_id in enumerate(self.ids) if index not in tuple(peers)]


class Striker:
    """In a process of a peer: strikes when a phase is entered for which there are orders, each once."""

    def __init__(self, directory: Path, *, by_link: bool) -> None:
        self._directory, self._by_link = directory, by_link
        self._struck: set[int] = set()

    def enter(self, phase: str, round: int) -> list[Fault]:
        """Strike. Returns the faults of the network; does not return from a crash."""
        orders = Orders.read(self._directory)
        due = [
            (number, fault)
            for number, fault in orders.faults.items()
            if number not in self._struck and (fault.phase, fault.round) == (phase, round)
        ]
        due.sort(key=lambda item: isinstance(item[1], Crash))
        for number, fault in due:
            self._struck.add(number)
            self._tell(Strike(number=number, peer=orders.peer, pid=os.getpid(), by_link=self._by_link))
            # Trainer, link and daemon are one process group.
            if isinstance(fault, Crash):
                os.killpg(os.getpgrp(), signal.SIGKILL)
            if isinstance(fault, Stall):
                os.killpg(os.getpgrp(), signal.SIGSTOP)
        return [fault for _, fault in due if not isinstance(fault, Crash | Stall)]

    def _tell(self, strike: Strike) -> None:
        _put_line(self._directory.parent / "struck", json.dumps(asdict(strike)))


# ---- struck: from the peers to the swarm ----


def open_struck(swarm_directory: Path) -> TextIO:
    """Make the FIFO and open it; reading it blocks until somebody strikes."""
    path = swarm_directory / "struck"
    os.mkfifo(path, 0o600)
    # For writing too: no end of file while no peer writes.
    return open(os.open(path, os.O_RDWR | os.O_CLOEXEC))


def end_struck(swarm_directory: Path) -> None:
    """Send whoever reads `struck` an empty line, for the end."""
    _put_line(swarm_directory / "struck", "")


def parse_strike(line: str) -> Strike:
    return Strike(**json.loads(line))


# ---- throw: from the swarm to a link ----


def make_fifos(directory: Path) -> None:
    """Prepare the directory of a peer for orders."""
    folder = _folder(directory)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.mkfifo(folder / "throw", 0o600)


def throw(directory: Path, fault: Fault) -> None:
    """Have the link of the peer in `directory` throw this fault's switch. A link that is not there misses it."""
    _put_line(_folder(directory) / "throw", json.dumps(_plain(fault)))


def open_thrown(directory: Path) -> int:
    """The link's end of `throw`: a descriptor that can be awaited."""
    return os.open(_folder(directory) / "throw", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)


def read_thrown(descriptor: int) -> list[Fault]:
    """The faults that wait there. Lines are written whole, so they are read whole."""
    return [_fault(json.loads(line)) for line in os.read(descriptor, 16 * LINE_BYTES).splitlines()]


def _folder(directory: Path) -> Path:
    return directory / "test"


def _plain(fault: Fault) -> dict[str, Any]:
    return {"kind": type(fault).__name__} | asdict(fault)


def _fault(row: dict[str, Any]) -> Fault:
    fields = {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}
    fault: Fault = getattr(faults, str(fields.pop("kind")))(**fields)
    return fault


def _put_line(path: Path, text: str) -> None:
    line = text.encode() + b"\n"
    assert len(line) <= LINE_BYTES, text
    descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        os.write(descriptor, line)
    finally:
        os.close(descriptor)
