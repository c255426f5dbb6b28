"""The control socket of a peer, `DIR/run/control`: its owner's commands while it runs.

JSON lines. A request is `{"v":1,"id":7,"cmd":"status"}`, its answer `{"id":7,"ok":true,…}` or
`{"id":7,"ok":false,"error":"…"}`, where the error is one line for people. Commands:

    status    state, why, round, step, steps, paused, finishing, name, peer, run, pid, seq; and the owner's limits:
              holds (rows of code, why, until) that stop or slow training, until (when a pause ends by itself, Unix time
              or null), duty (share of the time in which it computes), settings
    pause     compute no further micro-batch, and contribute what was learned
    snooze    the same for `minutes`, then train again
    resume    train again: ends `pause`, `finish` and `snooze`, also of an earlier start, but no limit
    finish    complete this round's contribution, then pause
    set       settings by name in `values`: all are taken or none is
    leave     leave the run in order, as SIGTERM does
    events    each event from number `from` on as a line of its own, then those that come

The answer to `set` has a `note`: what else is needed for it to take effect, or an empty string. A command that could
not be kept has a note, too. One thread does everything, and training never waits for it. Only the owner of the files
may connect.
"""

from __future__ import annotations

import json
import logging
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from dht.errors import BadInput, DiskFull
from peer.node.control.client import MAX_PATH_BYTES, VERSION
from peer.node.limits.desired_state import Intent
from peer.node.telemetry.event_tail import EventTail
from peer.node.telemetry.reporter import Reporter
from peer.schema.events import Event, InnerProgressed, PeerStarted, RoundCommitted, RoundStarted

MAX_LINE_BYTES = 64 << 10
MAX_CLIENTS = 16
BACKLOG_BYTES = 1 << 20
"""Nothing more is read for a client while so much waits for it."""
SLOW_S = 10.0
"""A client that has not taken any of what waits for it for so long is dropped."""
SILENT_S = 300.0
"""A client that asks for nothing makes room after this long."""
FOLLOW_S = 0.2
"""How often followers get what has come."""

SNOOZE_MOST_MIN = 7 * 24 * 60
COMMANDS = ("status", "pause", "resume", "finish", "snooze", "set", "leave", "events")

log = logging.getLogger(__name__)


class Commands:
    """What each command does, and what `status` answers. `leave` asks the peer to leave in order."""

    def __init__(self, session: Reporter, run: str, peer: str, name: str, leave: Callable[[], None]) -> None:
        self._session, self._leave = session, leave
        self._known = {
            "name": name, "peer": peer, "run": run, "pid": os.getpid(), "seq": -1, "round": 0, "step": 0, "steps": 0,
        }  # fmt: skip

    def note(self, seq: int, event: Event) -> None:
        """Event number `seq` was just written; called by the trainer."""
        known: dict[str, Any] = {"seq": seq}
        match event:
            case PeerStarted(name=name):
                known |= {"name": name}
            case RoundStarted(round=round, steps=steps):
                known |= {"round": round, "step": 0, "steps": steps}
            case InnerProgressed(round=round, step=step, steps=steps):
                known |= {"round": round, "step": step, "steps": steps}
            case RoundCommitted(round=round):
                known |= {"round": round, "step": 0, "steps": 0}
        self._known = self._known | known  # replaced as a whole: the other thread reads it

    def answer(self, cmd: object, fields: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        """The fields of the answer. Raises BadInput for an unknown command or a bad value; DiskFull for `set`."""
        fields, note = fields or {}, ""
        match cmd:
            case "status":
                pass
            case "pause" | "resume" | "finish":
                note = self._session.wishes.wish(Intent(cmd))
            case "snooze":
                note = self._session.wishes.snooze(snooze_s(fields.get("minutes")))
            case "set":
                note = self._session.change(settings_asked(fields.get("values")))
            case "leave":
                if not self._session.stopping:  # the second signal would end this peer at once
                    self._leave()
            case _:
                raise BadInput(f"no such command: {str(cmd)[:40]!r}; use {', '.join(COMMANDS)}")
        return {**self.status(), "note": note} if note or cmd == "set" else self.status()

    def status(self) -> Mapping[str, Any]:
        """What this peer does, and what its owner wants."""
        session, wishes = self._session, self._session.wishes
        holds = [asdict(hold) for hold in (*wishes.holds, *wishes.slowing)]
        return self._known | {
            "state": session.state, "why": session.why, "paused": wishes.pausing,
            "finishing": wishes.now is Intent.FINISH, "leaving": session.stopping, "until": wishes.until,
            "holds": holds, "duty": round(wishes.duty, 3), "settings": asdict(session.chosen.settings),
        }  # fmt: skip


@dataclass(eq=False)
class Client:
    """One connection: requests without an answer yet, data that waits for it, the events it follows."""

    socket: socket.socket
    asked: bytearray = field(default_factory=bytearray)
    waiting: bytearray = field(default_factory=bytearray)
    follower: EventTail | None = None
    last_words: bool = False
    """It is closed once it has taken what waits."""
    last_progress_at: float = field(default_factory=time.monotonic)

    def say(self, row: Mapping[str, Any]) -> None:
        """Queue one line."""
        self.waiting += json.dumps(row, allow_nan=False, separators=(",", ":")).encode() + b"\n"

    def is_stuck(self, now: float) -> bool:
        """Whether it does not read, or wants nothing."""
        limit_s = SLOW_S if self.waiting else SILENT_S
        return now - self.last_progress_at > limit_s and not (self.follower and not self.waiting)


class ControlServer:
    """Listens at `directory`/run/control; a context manager. Raises BadInput if it cannot, in words."""

    def __init__(self, directory: Path, commands: Commands) -> None:
        self._directory, self._commands = directory, commands
        self._path = directory / "run" / "control"
        self._listening = _listen(self._path)
        self._selector = selectors.DefaultSelector()
        self._clients: list[Client] = []
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, name="control", daemon=True)

    def __enter__(self) -> Self:
        self._selector.register(self._listening, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._wake.close()
        self._thread.join(SLOW_S)

    def _serve(self) -> None:
        try:
            while self._turn():
                continue
        finally:
            self._path.unlink(missing_ok=True)
            for client in list(self._clients):
                self._drop(client)
            self._selector.close()
            self._listening.close()
            self._woken.close()

    def _turn(self) -> bool:
        """Do whatever can be done now; returns whether the connection goes on."""
        following = any(client.follower for client in self._clients)
        for key, ready in self._selector.select(FOLLOW_S if following else SLOW_S):
            if key.fileobj is self._woken:
                return False
            if key.fileobj is self._listening:
                self._accept()
            elif ready & selectors.EVENT_READ:
                self._read(key.data)
            else:
                self._write(key.data)
        for client in list(self._clients):
            self._follow(client)
            if client.is_stuck(time.monotonic()):
                self._drop(client)
        return True

    def _accept(self) -> None:
        with suppress(OSError):  # it is gone already
            connection, _ = self._listening.accept()
            connection.setblocking(False)
            client = Client(connection)
            if len(self._clients) >= MAX_CLIENTS:
                client.say(_refusal(None, f"this peer has {MAX_CLIENTS} connections already; close one"))
                client.last_words = True
            self._clients.append(client)
            self._selector.register(connection, selectors.EVENT_READ, client)
            self._write(client)

    def _read(self, client: Client) -> None:
        try:
            piece = client.socket.recv(MAX_LINE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        if not piece:
            self._drop(client)
            return
        if client.last_words:
            return
        client.asked += piece
        *lines, rest = client.asked.split(b"\n")
        client.asked = rest
        client.last_progress_at = time.monotonic()
        for line in lines:
            self._answer(client, bytes(line))
        if len(rest) > MAX_LINE_BYTES or len(client.waiting) > BACKLOG_BYTES:
            client.say(_refusal(None, f"a request has at most {MAX_LINE_BYTES:,} bytes, and answers must be read"))
            client.last_words = True
        self._write(client)

    def _answer(self, client: Client, line: bytes) -> None:
        id = None
        try:
            request = _parse(line)
            id = request.get("id")
            if request.get("cmd") == "events":
                self._begin_following(client, request.get("from", 0))
                client.say({"id": id, "ok": True})
            else:
                client.say({"id": id, "ok": True, **self._commands.answer(request.get("cmd"), request)})
        except (BadInput, DiskFull) as error:
            client.say(_refusal(id, str(error)))
        except Exception as error:  # whatever it is: without this thread nobody could pause the peer any more
            log.exception("a command failed")
            client.say(_refusal(id, f"the command failed ({str(error) or type(error).__name__}); peer.log says more"))

    def _begin_following(self, client: Client, first: object) -> None:
        if not isinstance(first, int) or isinstance(first, bool) or first < 0:
            raise BadInput(f"from is {str(first)[:40]!r}; give the number of an event, from 0 on")
        if client.follower is not None:
            raise BadInput("this connection follows the events already")
        client.follower = EventTail(self._directory / "events.jsonl", first)

    def _follow(self, client: Client) -> None:
        """Give it new events, no more than it takes: it can read later what it has missed, from the files."""
        if client.follower is not None and len(client.waiting) < BACKLOG_BYTES:
            if not client.waiting:
                client.last_progress_at = time.monotonic()
            try:
                client.waiting += client.follower.read()
            except OSError as error:
                client.say(_refusal(None, f"the events cannot be read: {error.strerror}"))
                client.last_words = True
            self._write(client)

    def _write(self, client: Client) -> None:
        try:
            sent = client.socket.send(client.waiting) if client.waiting else 0
        except BlockingIOError:
            sent = 0
        except OSError:
            self._drop(client)
            return
        if sent:
            del client.waiting[:sent]
            client.last_progress_at = time.monotonic()
        if client.last_words and not client.waiting:
            self._drop(client)
            return
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if client.waiting else 0)
        self._selector.modify(client.socket, wanted, client)

    def _drop(self, client: Client) -> None:
        if client not in self._clients:
            return
        self._clients.remove(client)
        self._selector.unregister(client.socket)
        client.socket.close()
        if client.follower is not None:
            client.follower.close()


def _listen(path: Path) -> socket.socket:
    """A socket at `path` (0600), in place of what a killed peer left there. Raises BadInput."""
    length = len(os.fsencode(path))
    if length > MAX_PATH_BYTES:
        raise BadInput(
            f"{path} has {length} bytes, and a socket's path at most {MAX_PATH_BYTES}: no command reaches this peer; "
            "join with a shorter --dir"
        )
    listening = socket.socket(socket.AF_UNIX)
    try:
        path.unlink(missing_ok=True)
        listening.bind(str(path))
        path.chmod(0o600)  # the folder is private already
        listening.listen(MAX_CLIENTS)
    except OSError as error:
        listening.close()
        raise BadInput(f"{path}: {error.strerror}: no command reaches this peer") from error
    listening.setblocking(False)
    return listening


def _parse(line: bytes) -> dict[str, Any]:
    try:
        request = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadInput("a request is one JSON object per line") from error
    if not isinstance(request, dict):
        raise BadInput("a request is one JSON object per line")
    if request.get("v") != VERSION:
        raise BadInput(f"v is {str(request.get('v'))[:40]!r}; this peer speaks version {VERSION}")
    id = request.get("id")
    if not (id is None or isinstance(id, int) or (isinstance(id, str) and len(id) <= 64)):
        raise BadInput("id is a number or a short text")
    return request


def snooze_s(minutes: object) -> float:
    """Seconds of a snooze of so many minutes. Raises BadInput."""
    if isinstance(minutes, int | float) and minutes is not True and 0 < minutes <= SNOOZE_MOST_MIN:
        return 60.0 * minutes
    raise BadInput(f"minutes is {str(minutes)[:40]!r}; a snooze has more than 0 and at most {SNOOZE_MOST_MIN}")


def settings_asked(values: object) -> Mapping[str, Any]:
    """The requested settings by name; their values are not checked. Raises BadInput."""
    if not isinstance(values, dict) or not values:
        raise BadInput("values is an object of settings by name, with one at least")
    return values


def _refusal(id: object, error: str) -> dict[str, Any]:
    return {"id": id, "ok": False, "error": error}
