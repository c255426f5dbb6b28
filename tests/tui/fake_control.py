"""A peer as its owner meets it: it takes the commands of the control socket, and has limits, as the real one does.

`FakePeer.answer` is one request and its answer; `serving` puts it behind a socket in a run directory.
"""

from __future__ import annotations

import fcntl
import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from peer.schema.events import Event, PeerStateChanged, SettingsChanged

WAIT_S = 10.0
PAUSED = "its owner paused it; resume with: homefires resume"
AT_START = ("name", "devices", "threads", "listen")
WHEN = "takes effect when the peer starts again"
SETTINGS: Mapping[str, Any] = {
    "name": "attic", "devices": ["auto"], "threads": 0, "min_step_s": 0.0, "listen": ["/ip4/0.0.0.0/tcp/0"],
    "chain_mb": 4096, "upload_mbps": 0.0, "download_mbps": 0.0, "newcomers_mbps": 100.0, "schedule": "",
    "idle_min": 0.0, "on_battery": False, "pause_for": [], "max_temperature_c": 0.0, "max_power_w": 0.0,
    "monthly_gb": 0.0, "disk_gb": 0.0, "memory_gb": 0.0, "nice": 10,
}  # fmt: skip
RANGES = {"max_power_w": (0, 2000), "max_temperature_c": (0, 110), "nice": (0, 19), "monthly_gb": (0, 1e6)}


class FakePeer:
    """`tell` hears its events; `now` is Unix time. `holds` are those of its limits, for a test to set, and `slowing`
    those under which it trains, but not all the time."""

    def __init__(self, *, now: float = 1_800_000_000.0, tell: Callable[[Event], None] = lambda event: None) -> None:
        self.now, self.tell = now, tell
        self.settings: dict[str, Any] = dict(SETTINGS)
        self.holds: list[dict[str, Any]] = []
        self.slowing: list[dict[str, Any]] = []
        self.duty = 1.0
        self.asked: list[tuple[str, dict[str, Any]]] = []
        """Every request but `status`."""
        self._own: dict[str, Any] | None = None
        """The hold of its owner."""

    def answer(self, cmd: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        """What is answered, without the id."""
        if cmd != "status":
            self.asked.append((cmd, dict(fields)))
        match cmd:
            case "status":
                return self._status()
            case "set":
                return self._set(fields["values"])
            case "snooze":
                until = self.now + 60 * fields["minutes"]
                return self._hold({"code": "SNOOZED", "why": "its owner snoozed it", "until": until})
            case "pause" | "finish":
                return self._hold({"code": "PAUSED", "why": PAUSED, "until": None})
            case "resume":
                self._own = None
                self.tell(PeerStateChanged(state="TRAINING", why="towards round 5"))
                return self._status()
            case "leave":
                return self._status()
        return {"ok": False, "error": f"no such command: {cmd!r}"}

    def _hold(self, hold: dict[str, Any]) -> dict[str, Any]:
        self._own = hold
        self.tell(PeerStateChanged(state="PAUSED", why=hold["why"], until=hold["until"]))
        return self._status()

    def _set(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Check all, then apply all."""
        for key, value in values.items():
            if error := _error_in(key, value):
                return {"ok": False, "error": error}
        late = [key for key in values if key in AT_START and self.settings[key] != values[key]]
        self.settings |= values
        self.tell(SettingsChanged(settings=dict(self.settings)))
        return self._status() | {"note": f"{' and '.join(late)} {WHEN}" if late else ""}

    def _status(self) -> dict[str, Any]:
        holds = [*([self._own] if self._own else []), *self.holds]
        ends = [hold["until"] for hold in holds]
        state = "PAUSED" if holds else "TRAINING"
        why = holds[0]["why"] if holds else "towards round 5"
        return {
            "ok": True, "name": "attic", "peer": "QmAlice", "round": 4, "state": state, "why": why,
            "paused": bool(holds), "holds": [*holds, *self.slowing],
            "until": max(ends) if ends and None not in ends else None, "duty": self.duty,
            "settings": dict(self.settings),
        }  # fmt: skip


def _error_in(key: str, value: object) -> str:
    """One line that names key, value and range; empty for a value that is taken."""
    if key not in SETTINGS:
        return f"there is no setting {key!r}"
    if isinstance(SETTINGS[key], bool):
        return "" if isinstance(value, bool) else f"{key} is {value!r}; it must be true or false"
    if isinstance(SETTINGS[key], int | float):
        low, high = RANGES.get(key, (0, 1e9))
        fine = isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high
        return "" if fine else f"{key} is {value!r}; it must be between {low:g} and {high:g}"
    return "" if isinstance(value, type(SETTINGS[key])) else f"{key} is {value!r}; it must be of another kind"


@contextmanager
def serving(directory: Path, peer: FakePeer) -> Iterator[FakePeer]:
    """The peer holds `directory` and answers at its control socket."""
    (directory / "run").mkdir(exist_ok=True)
    with (directory / "run" / "lock").open("w") as lock, socket.socket(socket.AF_UNIX) as listening:
        fcntl.flock(lock, fcntl.LOCK_EX)
        listening.bind(str(directory / "run" / "control"))
        listening.listen()
        thread = threading.Thread(target=_serve, args=(listening, peer))
        thread.start()
        try:
            yield peer
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join(WAIT_S)


def _serve(listening: socket.socket, peer: FakePeer) -> None:
    while True:
        try:
            connection, _ = listening.accept()
        except OSError:
            return
        with connection:
            request = json.loads(connection.makefile("rb").readline())
            fields = {key: value for key, value in request.items() if key not in ("v", "id", "cmd")}
            connection.sendall(
                json.dumps({"id": request["id"], **peer.answer(request["cmd"], fields)}).encode() + b"\n"
            )
