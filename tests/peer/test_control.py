"""The control socket of a peer, with real connections."""

from __future__ import annotations

import json
import os
import socket
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dht.errors import BadInput
from peer import control
from peer.control import MAX_CLIENTS, MAX_LINE_BYTES, Commands, ControlServer
from peer.events import AlertRaised, InnerProgressed, PeerStarted, RoundCommitted, RoundStarted
from peer.recording import EventWriter
from peer.telling import Session
from peer.testing.children import BUSY, HANG_S
from peer.wishes import Wish
from tui.control import PeerControl


class Owner:
    """A peer's session with a control socket, and the events it writes."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        (directory / "run").mkdir(mode=0o700, exist_ok=True)
        self.writer = EventWriter("run", "id-of-alice", directory)
        self.session = Session(lambda event: self.commands.note(self.writer.emit(event), event))
        self.left = 0
        self.commands = Commands(self.session, "run", "id-of-alice", "alice", self._leave)
        self.server = ControlServer(directory, self.commands)

    def _leave(self) -> None:
        self.left += 1
        self.session.stopping = True

    def connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(HANG_S)
        connection.connect(str(self.directory / "run" / "control"))
        return connection

    def ask(self, *lines: bytes) -> list[dict[str, Any]]:
        """What these lines are answered with, on one connection."""
        with closing(self.connect()) as connection:
            connection.sendall(b"".join(line + b"\n" for line in lines))
            reader = connection.makefile("rb")
            return [json.loads(reader.readline()) for _ in lines]


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Owner]:
    owner = Owner(tmp_path)
    with owner.server:
        yield owner
    owner.writer.close()


def request(cmd: str, **fields: Any) -> bytes:
    return json.dumps({"v": 1, "id": 7, "cmd": cmd} | fields).encode()


def test_only_the_owner_may_connect_and_nothing_is_left(tmp_path: Path) -> None:
    """0600, in place of what a killed peer left, and gone at the end."""
    owner = Owner(tmp_path)
    path = tmp_path / "run" / "control"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with owner.server:
        pass
    assert not path.exists()
    owner.writer.close()


def test_a_stale_socket_is_replaced(tmp_path: Path) -> None:
    """What a peer left there that was killed."""
    path = tmp_path / "run" / "control"
    path.parent.mkdir(mode=0o700)
    with closing(socket.socket(socket.AF_UNIX)) as stale:
        stale.bind(str(path))
    assert PeerControl(tmp_path).request("status").error == f"no peer runs in {tmp_path}"
    owner = Owner(tmp_path)
    with owner.server:
        assert PeerControl(tmp_path).request("status").ok
    owner.writer.close()


def test_a_path_that_no_socket_can_have_is_refused_in_words(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 110)
    (deep / "run").mkdir(parents=True)
    commands = Commands(Session(lambda event: None), "", "", "", lambda: None)
    with pytest.raises(BadInput, match="at most 107"):
        ControlServer(deep, commands)


def test_status_tells_what_the_peer_reports(owner: Owner) -> None:
    """The newest of every field; the number is that of the newest event."""
    owner.session.say("TRAINING", "towards round 4")
    for event in (
        PeerStarted(name="alice", version="0"),
        RoundCommitted(
            round=3, digest="d", state="s", group=[], weights={}, penalties=[], tokens=1, bytes_sent=0,
            bytes_received=0, round_s=1.0, exposed_s=0.0,
        ),
        RoundStarted(round=3, steps=40),
        InnerProgressed(round=3, step=12, steps=40, loss=1.0, tokens=1, tokens_per_s=1.0, learning_rate=0.1),
    ):  # fmt: skip
        owner.session.emit(event)
    (answer,) = owner.ask(request("status"))
    assert answer == {
        "id": 7, "ok": True, "state": "TRAINING", "why": "towards round 4", "round": 3, "step": 12, "steps": 40,
        "paused": False, "finishing": False, "leaving": False, "name": "alice", "peer": "id-of-alice", "run": "run",
        "pid": os.getpid(), "seq": 4,
    }  # fmt: skip


def test_commands_are_wishes_and_leaving_is_asked_for_once(owner: Owner) -> None:
    """Whatever the peer does just then; a second signal would end it at once."""
    for cmd, wish in [("pause", Wish.PAUSE), ("resume", Wish.TRAIN), ("finish", Wish.FINISH)]:
        (answer,) = owner.ask(request(cmd))
        assert answer["ok"]
        assert owner.session.wishes.now is wish
        assert (answer["paused"], answer["finishing"]) == (wish is Wish.PAUSE, wish is Wish.FINISH)
    assert all(answer["ok"] for answer in owner.ask(request("leave"), request("leave")))
    assert owner.left == 1


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (b"rubbish", "one JSON object per line"),
        (b"", "one JSON object per line"),
        (b"\xff\xfe", "one JSON object per line"),
        (b"[1, 2]", "one JSON object per line"),
        (b"[" * 50_000, "one JSON object per line"),
        (b'{"id": 7, "cmd": "status"}', "v is 'None'"),
        (b'{"v": 2, "cmd": "status"}', "speaks version 1"),
        (b'{"v": 1, "cmd": "explode"}', "no such command: 'explode'"),
        (b'{"v": 1}', "no such command: 'None'"),
        (b'{"v": 1, "cmd": {"a": []}}', "no such command"),
        (b'{"v": 1, "id": [], "cmd": "status"}', "id is a number or a short text"),
        (b'{"v": 1, "cmd": "events", "from": "0"}', "from is '0'"),
        (b'{"v": 1, "cmd": "events", "from": -1}', "from is '-1'"),
        (b'{"v": 1, "cmd": "events", "from": true}', "from is 'True'"),
    ],
)
def test_what_is_no_request_is_answered_with_one_line(owner: Owner, line: bytes, error: str) -> None:
    """The connection stays, and what follows is answered."""
    bad, good = owner.ask(line, request("status"))
    assert (bad["ok"], good["ok"]) == (False, True)
    assert error in bad["error"]
    assert "\n" not in bad["error"]
    assert len(bad["error"]) < 200


def test_a_line_without_end_is_not_kept(owner: Owner) -> None:
    """It is refused, its sender dropped; others are answered."""
    with closing(owner.connect()) as connection:
        connection.sendall(b"x" * (2 * MAX_LINE_BYTES))
        reader = connection.makefile("rb")
        assert "at most 65,536 bytes" in json.loads(reader.readline())["error"]
        _until(lambda: not owner.server._clients)
    assert owner.ask(request("status"))[0]["ok"]


def test_more_connections_than_it_takes_are_told_so(owner: Owner) -> None:
    """The others work all the while, and a place that is left is free."""
    held = [owner.connect() for _ in range(MAX_CLIENTS)]
    _until(lambda: len(owner.server._clients) == MAX_CLIENTS)
    with closing(owner.connect()) as one_more:
        assert "16 connections already" in json.loads(one_more.makefile("rb").readline())["error"]
    held[0].sendall(request("status") + b"\n")
    assert json.loads(held[0].makefile("rb").readline())["ok"]
    held[1].close()
    _until(lambda: len(owner.server._clients) < MAX_CLIENTS)
    assert owner.ask(request("status"))[0]["ok"]
    for connection in held:
        connection.close()


def _until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + HANG_S
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_events_are_replayed_from_a_number_on_and_followed(owner: Owner) -> None:
    """Each as its own line, each once, also over a change of files; commands are answered in between."""
    for number in range(5):
        owner.session.say("TRAINING", str(number))
    with closing(owner.connect()) as connection:
        reader = connection.makefile("rb")
        connection.sendall(request("events", **{"from": 2}))
        connection.sendall(b"\n")
        assert json.loads(reader.readline()) == {"id": 7, "ok": True}
        assert [json.loads(reader.readline())["seq"] for _ in range(3)] == [2, 3, 4]
        owner.session.say("TRAINING", "5")
        assert json.loads(reader.readline())["why"] == "5"
        connection.sendall(request("status") + b"\n")
        assert json.loads(reader.readline())["seq"] == 5
        (handler,) = owner.writer._file.handlers
        handler.doRollover()  # type: ignore[attr-defined]
        for number in range(6, 9):
            owner.session.say("TRAINING", str(number))
        assert [json.loads(reader.readline())["seq"] for _ in range(3)] == [6, 7, 8]
        connection.sendall(request("events") + b"\n")
        assert "follows the events already" in json.loads(reader.readline())["error"]


def test_events_of_older_files_come_first(owner: Owner) -> None:
    """From the beginning, though there are three files by now."""
    (handler,) = owner.writer._file.handlers
    for number in range(9):
        owner.session.say("TRAINING", str(number))
        if number in (2, 5):
            handler.doRollover()  # type: ignore[attr-defined]
    with closing(owner.connect()) as connection:
        connection.sendall(request("events") + b"\n")
        reader = connection.makefile("rb")
        reader.readline()
        assert [json.loads(reader.readline())["seq"] for _ in range(9)] == list(range(9))


def test_a_reader_that_does_not_read_is_dropped_and_holds_nobody_up(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trainer writes on as if nobody was there, the backlog has a bound, and the others are answered."""
    monkeypatch.setattr(control, "SLOW_S", HANG_S)
    long = AlertRaised(level="info", code="X", text="x" * 10_000)
    with closing(owner.connect()) as connection:
        connection.sendall(request("events") + b"\n")
        connection.makefile("rb").readline()
        began_at = time.monotonic()
        for _ in range(300):
            owner.session.emit(long)
        assert time.monotonic() - began_at < 2.0 * BUSY
        _until(lambda: bool(owner.server._clients and owner.server._clients[0].waiting))
        most = max(len(client.waiting) for client in owner.server._clients)
        assert most <= control.BACKLOG_BYTES + (300 << 10)
        assert PeerControl(owner.directory).request("status").ok
        monkeypatch.setattr(control, "SLOW_S", 0.3)
        _until(lambda: not owner.server._clients)


def test_the_client_says_what_is_wrong(owner: Owner, tmp_path: Path) -> None:
    """A reply that is not ok, never an exception: the dashboard shows it."""
    client = PeerControl(tmp_path)
    assert client.request("pause").fields["paused"]
    assert "no such command" in client.request("explode").error
    assert client.request("status", id=3).ok
    nowhere = PeerControl(tmp_path / "nowhere").request("status")
    assert (nowhere.ok, nowhere.error) == (False, f"no peer runs in {tmp_path / 'nowhere'}")
