"""Home lines for programs that know nothing of them: where each of several peers runs, and what it sent."""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import time
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from peer.testing.child_process import ENVIRONMENT, Child, Printed
from tests.benchmarks.jobs import ROOT
from tests.benchmarks.rivals.switch import DEVICE

START_S, STOP_S = 30.0, 10.0
CHILD_ENVIRONMENT = ENVIRONMENT | {"PYTHONPATH": str(ROOT)}
MEGA = 1e6


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a peer runs."""

    address: str
    """IPv4, of this peer alone if it has a line of its own."""
    device: str
    """The network device that has this address."""
    prefix: tuple[str, ...] = ()
    """Words before a command that is to run there."""


class Lines(Protocol):
    """Some lines, each to a place of its own."""

    shaper: str
    """How they are shaped, for people."""
    places: Sequence[Place]
    floor_bps: float
    """An exchange takes at least as long as its bytes would at this rate, since nothing else holds it back; 0: no
    matter."""

    def sent_bytes(self, number: int, since: float, until: float) -> int | None:
        """What left one place between two Unix times; None if nobody counts."""
        ...

    def close(self) -> None:
        """Take them down."""
        ...


class NotPermitted(Exception):
    """This machine does not let us make network namespaces."""


class Namespaces:
    """Lines between network namespaces; see `switch.py`."""

    floor_bps = 0.0

    def __init__(self, directory: Path, mbps: Sequence[tuple[float, float]], delay_s: float) -> None:
        """(up, down) in megabits per second of each line, 0 for no cap. Raises NotPermitted."""
        directory.mkdir(parents=True, exist_ok=True)
        table = directory / "lines.json"
        bps = [[up * MEGA, down * MEGA] for up, down in mbps]
        table.write_text(json.dumps({"lines": bps, "delay_s": delay_s}))
        self._inbox: queue.SimpleQueue[Printed] = queue.SimpleQueue()
        self._times: list[float] = []
        self._sent: list[list[int]] = []
        argv = [sys.executable, "-m", "tests.benchmarks.rivals.switch", str(table)]
        self._child = Child(argv, directory / "switch.log", CHILD_ENVIRONMENT, self._inbox.put)
        try:
            told = self._first()
        except queue.Empty:
            self.close()
            raise NotPermitted(f"the switch has not begun within {START_S:.0f} s: {self._child.err}") from None
        if "places" not in told:
            self.close()
            raise NotPermitted(told.get("refused", self._child.err))
        self.places = [
            Place(address=address, device=DEVICE, prefix=("nsenter", f"--net={namespace}"))
            for namespace, address in told["places"]
        ]
        self.shaper = (
            "network namespaces; packets pass a user-space switch with our own token bucket and the delay "
            f"(TCP: {_congestion_control()})"
        )

    def sent_bytes(self, number: int, since: float, until: float) -> int:
        """In IP packets, headers and acknowledgements included; from the report before to the report after."""
        self._listen(until)
        before, after = bisect_right(self._times, since) - 1, bisect_left(self._times, until)
        begun = self._sent[before][number] if before >= 0 else 0
        return self._sent[min(after, len(self._sent) - 1)][number] - begun

    def close(self) -> None:
        """The namespaces go with whoever is in them."""
        self._child.signal(signal.SIGTERM)
        self._child.end(STOP_S)

    def _first(self) -> dict[str, list[list[str]]]:
        printed = self._inbox.get(timeout=START_S)
        return json.loads(printed.text) if printed.text else {}

    def _listen(self, until: float) -> None:
        """Take in what was reported up to a Unix time, or to the end of the switch."""
        while not self._times or self._times[-1] < until:
            try:
                text = self._inbox.get(timeout=STOP_S).text
            except queue.Empty:
                raise TimeoutError(f"the switch does not report: {self._child.err}") from None
            if text is None:
                return
            row = json.loads(text)
            self._times.append(row["t"])
            self._sent.append(row["sent"])


class Paced:
    """No lines at all: whoever exchanges something rests until its bytes would have passed the uplink.

    It flatters: nothing but the bytes themselves is counted, they never wait for each other, and there is no delay.
    """

    shaper = "none permitted: each exchange takes at least as long as its bytes would on the uplink, in one piece"

    def __init__(self, places: int, upload_mbps: float) -> None:
        self.floor_bps = upload_mbps * MEGA
        self.places = [Place(address="127.0.0.1", device="lo")] * places

    def sent_bytes(self, number: int, since: float, until: float) -> None:
        """Nobody counts."""

    def close(self) -> None:
        """Nothing is there."""


def open_lines(directory: Path, mbps: Sequence[tuple[float, float]], delay_s: float) -> Lines:
    """Shaped by namespaces where that is permitted."""
    if os.name == "posix" and sys.platform == "linux" and os.geteuid() == 0:
        try:
            return Namespaces(directory, mbps, delay_s)
        except NotPermitted as error:
            print(f"{time.strftime('%H:%M:%S')}  no network namespaces: {error}", flush=True)
    return Paced(len(mbps), mbps[0][0])


def _congestion_control() -> str:
    path = Path("/proc/sys/net/ipv4/tcp_congestion_control")
    return path.read_text().strip() if path.exists() else "unknown"
