"""The control socket of a peer, with real connections."""

from __future__ import annotations

import errno
import json
import os
import select
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dht.errors import BadInput, DiskFull
from peer.node.control import saved_settings, server
from peer.node.control.client import ControlClient
from peer.node.control.saved_settings import read_table, read_wish, write_wish
from peer.node.control.server import MAX_CLIENTS, MAX_LINE_BYTES, Commands, ControlServer
from peer.node.limits.desired_state import DesiredState, Intent
from peer.node.limits.policy import Decision, Hold
from peer.node.telemetry.event_log import EventLog
from peer.node.telemetry.event_tail import EventTail
from peer.node.telemetry.reporter import Reporter
from peer.schema.events import (
    AlertRaised,
    InnerProgressed,
    PeerStarted,
    RoundCommitted,
    RoundStarted,
    SettingsChanged,
    read_events,
)
from peer.schema.live_settings import LiveSettings
from peer.schema.settings import PeerSettings, settings_from
from peer.testing.child_process import BUSY, HANG_S


class Owner:
    """A peer's session with a control socket, and the events it writes."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        (directory / "run").mkdir(mode=0o700, exist_ok=True)
        self.writer = EventLog("run", "id-of-alice", directory)
        self.session = Reporter(
            lambda event: self.commands.note(self.writer.emit(event), event),
            chosen=LiveSettings(keep=partial(saved_settings.write, directory)),
            wishes=DesiredState(keep=partial(write_wish, directory)),
        )  # fmt: skip
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


@pytest.mark.outside
def test_only_the_owner_may_connect_and_nothing_is_left(tmp_path: Path) -> None:
    """0600, in place of what a killed peer left, and gone at the end."""
    owner = Owner(tmp_path)
    path = tmp_path / "run" / "control"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with owner.server:
        pass
    assert not path.exists()
    owner.writer.close()


@pytest.mark.outside
def test_a_stale_socket_is_replaced(tmp_path: Path) -> None:
    """What a peer left there that was killed."""
    path = tmp_path / "run" / "control"
    path.parent.mkdir(mode=0o700)
    with closing(socket.socket(socket.AF_UNIX)) as stale:
        stale.bind(str(path))
    assert ControlClient(tmp_path).request("status").error == f"no peer runs in {tmp_path}"
    owner = Owner(tmp_path)
    with owner.server:
        assert ControlClient(tmp_path).request("status").ok
    owner.writer.close()


def test_a_path_that_no_socket_can_have_is_refused_in_words(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 110)
    (deep / "run").mkdir(parents=True)
    commands = Commands(Reporter(lambda event: None), "", "", "", lambda: None)
    with pytest.raises(BadInput, match="at most 107"):
        ControlServer(deep, commands)


@pytest.mark.outside
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
        "pid": os.getpid(), "seq": 4, "until": None, "holds": [], "duty": 1.0,
        "settings": json.loads(json.dumps(asdict(PeerSettings()))),
    }  # fmt: skip


@pytest.mark.outside
def test_commands_are_wishes_and_leaving_is_asked_for_once(owner: Owner) -> None:
    """Whatever the peer does just then; a second signal would end it at once."""
    for cmd, wish in [("pause", Intent.PAUSE), ("resume", Intent.TRAIN), ("finish", Intent.FINISH)]:
        (answer,) = owner.ask(request(cmd))
        assert answer["ok"]
        assert owner.session.wishes.now is wish
        assert (answer["paused"], answer["finishing"]) == (wish is Intent.PAUSE, wish is Intent.FINISH)
    assert all(answer["ok"] for answer in owner.ask(request("leave"), request("leave")))
    assert owner.left == 1


@pytest.mark.outside
def test_a_snooze_ends_by_itself_and_with_resume(owner: Owner) -> None:
    """Until then it is a pause that says when it goes on."""
    before = time.time()
    (answer,) = owner.ask(request("snooze", minutes=60))
    assert answer["paused"]
    assert before + 3600 <= answer["until"] <= time.time() + 3600
    (hold,) = answer["holds"]
    assert (hold["code"], hold["until"]) == ("SNOOZED", answer["until"])
    (answer,) = owner.ask(request("resume"))
    assert (answer["paused"], answer["until"], answer["holds"]) == (False, None, [])
    (answer,) = owner.ask(request("snooze", minutes=1e-6))
    deadline = time.monotonic() + HANG_S
    while owner.session.wishes.pausing:
        assert time.monotonic() < deadline


@pytest.mark.outside
def test_what_is_wished_is_kept_for_the_next_life(owner: Owner) -> None:
    """The same wish, and the same end; private, since it is the owner's."""
    for cmd, fields in [("pause", {}), ("finish", {}), ("snooze", {"minutes": 60}), ("resume", {})]:
        (answer,) = owner.ask(request(cmd, **fields))
        again = DesiredState(wished=read_wish(owner.directory))
        assert (again.now, again.until) == (owner.session.wishes.now, answer["until"])
        assert again.holds == owner.session.wishes.holds
    assert stat.S_IMODE((owner.directory / "desired.json").stat().st_mode) == 0o600


@pytest.mark.outside
def test_a_wish_without_room_is_obeyed_and_said_to_last_one_life(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise DiskFull("the disk that holds DIR is full")

    monkeypatch.setattr("peer.node.control.saved_settings.write_atomic", fail)
    (answer,) = owner.ask(request("pause"))
    assert answer["paused"]
    assert answer["note"] == "the disk that holds DIR is full; it holds, but will be forgotten when the peer ends"


@pytest.mark.outside
def test_settings_are_changed_all_or_none(owner: Owner) -> None:
    """What is refused changes nothing, also of the others; what is taken is told, and kept for the next start."""
    good, bad = owner.ask(
        request("set", values={"idle_min": 10, "pause_for": ["steam", "blender"]}),
        request("set", values={"idle_min": 20, "nice": 20}),
    )
    assert (good["ok"], good["note"], good["settings"]["pause_for"]) == (True, "", ["steam", "blender"])
    assert bad["error"] == "settings: nice is 20; it must be between 0 and 19"
    assert owner.session.chosen.settings.idle_min == 10
    (change,) = [line.event for line in read_events(owner.directory) if isinstance(line.event, SettingsChanged)]
    assert change.settings == good["settings"]
    assert settings_from([], read_table(owner.directory)) == owner.session.chosen.settings


@pytest.mark.outside
def test_what_cannot_change_now_is_kept_and_said(owner: Owner) -> None:
    (answer,) = owner.ask(request("set", values={"devices": "cpu", "name": "bob", "min_step_s": 0.5}))
    assert answer["note"] == "name and devices take effect when the peer starts again"
    assert owner.session.wishes.min_step_s == 0.5
    assert settings_from([], read_table(owner.directory)).devices == ("cpu",)


@pytest.mark.outside
def test_settings_that_find_no_room_are_refused(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise DiskFull("the disk that holds DIR is full")

    monkeypatch.setattr("peer.node.control.saved_settings.write_atomic", fail)
    (answer,) = owner.ask(request("set", values={"idle_min": 10}))
    assert (answer["ok"], answer["error"]) == (False, "the disk that holds DIR is full")
    assert owner.session.chosen.settings.idle_min == 0


@pytest.mark.outside
def test_a_command_that_fails_leaves_the_others_answered(
    owner: Owner, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Such as a disk that can only be read: else nobody could pause this peer any more."""

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("peer.node.control.saved_settings.write_atomic", fail)
    bad, good = owner.ask(request("set", values={"idle_min": 10}), request("status"))
    assert (bad["ok"], good["ok"]) == (False, True)
    assert "Read-only file system" in bad["error"]
    assert "a command failed" in caplog.text


@pytest.mark.outside
def test_events_that_cannot_be_read_end_that_connection_alone(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(follower: EventTail) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(EventTail, "read", fail)
    with closing(owner.connect()) as connection:
        connection.sendall(request("events") + b"\n")
        reader = connection.makefile("rb")
        assert json.loads(reader.readline())["ok"]
        assert "cannot be read: Input/output error" in json.loads(reader.readline())["error"]
        assert reader.readline() == b""
    assert owner.ask(request("status"))[0]["ok"]


@pytest.mark.outside
def test_what_slows_it_down_is_told_beside_what_holds_it(owner: Owner) -> None:
    """Both are reasons that its owner asks for."""
    slowing = Hold("TEMPERATURE", "it rests between micro-batches")
    owner.session.wishes.judge(Decision(slowing=(slowing,), duty=0.625))
    (answer,) = owner.ask(request("status"))
    assert (answer["paused"], answer["duty"], answer["until"]) == (False, 0.625, None)
    assert [hold["code"] for hold in answer["holds"]] == ["TEMPERATURE"]
    owner.session.wishes.judge(Decision(holds=(Hold("TEMPERATURE", "too hot"),), slowing=(slowing,), duty=0.05))
    (answer,) = owner.ask(request("status"))
    assert [hold["why"] for hold in answer["holds"]] == ["too hot"]


@pytest.mark.outside
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
        (b'{"v": 1, "cmd": "snooze"}', "minutes is 'None'"),
        (b'{"v": 1, "cmd": "snooze", "minutes": 0}', "more than 0 and at most 10080"),
        (b'{"v": 1, "cmd": "snooze", "minutes": 1e9}', "more than 0 and at most 10080"),
        (b'{"v": 1, "cmd": "snooze", "minutes": true}', "minutes is 'True'"),
        (b'{"v": 1, "cmd": "snooze", "minutes": NaN}', "minutes is 'nan'"),
        (b'{"v": 1, "cmd": "set"}', "an object of settings by name"),
        (b'{"v": 1, "cmd": "set", "values": {}}', "an object of settings by name"),
        (b'{"v": 1, "cmd": "set", "values": {"idle_mins": 5}}', "did you mean 'idle_min'"),
        (b'{"v": 1, "cmd": "set", "values": {"upload_mbps": 0.1}}', "upload_mbps is 0.1; it must be 0 (no cap) or"),
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


@pytest.mark.outside
def test_a_line_without_end_is_not_kept(owner: Owner) -> None:
    """It is refused, its sender dropped; others are answered."""
    with closing(owner.connect()) as connection:
        connection.sendall(b"x" * (2 * MAX_LINE_BYTES))
        reader = connection.makefile("rb")
        assert "at most 65,536 bytes" in json.loads(reader.readline())["error"]
        assert reader.read() == b""
    assert owner.ask(request("status"))[0]["ok"]


@pytest.mark.outside
def test_more_connections_than_it_takes_are_told_so(owner: Owner) -> None:
    """The others work all the while, and a place that is left is free."""
    held = [owner.connect() for _ in range(MAX_CLIENTS)]
    for connection in held:  # who is answered is a client
        connection.sendall(request("status") + b"\n")
        assert json.loads(connection.makefile("rb").readline())["ok"]
    with closing(owner.connect()) as one_more:
        assert "16 connections already" in json.loads(one_more.makefile("rb").readline())["error"]
    held[0].sendall(request("status") + b"\n")
    assert json.loads(held[0].makefile("rb").readline())["ok"]
    held[1].close()
    deadline = time.monotonic() + HANG_S
    while not _has_room(owner):
        assert time.monotonic() < deadline
    for connection in held:
        connection.close()


def _has_room(owner: Owner) -> bool:
    """Whether one more is answered, and not turned away."""
    with closing(owner.connect()) as one_more:
        one_more.sendall(request("status") + b"\n")
        return "ok" in json.loads(one_more.makefile("rb").readline())


@pytest.mark.outside
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


@pytest.mark.outside
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


@pytest.mark.outside
def test_a_reader_that_does_not_read_is_dropped_and_holds_nobody_up(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trainer writes on as if nobody was there, the backlog has a bound, and the others are answered."""
    monkeypatch.setattr(server, "SLOW_S", HANG_S)
    long = AlertRaised(level="info", code="X", text="x" * 10_000)
    with closing(owner.connect()) as connection:
        connection.sendall(request("events") + b"\n")
        connection.makefile("rb").readline()
        began_at = time.monotonic()
        for _ in range(300):
            owner.session.emit(long)
        assert time.monotonic() - began_at < 2.0 * BUSY
        while not owner.server._clients[0].waiting:  # the server answers, and has had time to send
            assert ControlClient(owner.directory).request("status").ok
            assert time.monotonic() - began_at < HANG_S
        most = max(len(client.waiting) for client in owner.server._clients)
        assert most <= server.BACKLOG_BYTES + (300 << 10)
        assert ControlClient(owner.directory).request("status").ok
        monkeypatch.setattr(server, "SLOW_S", 0.3)
        hung_up = select.poll()
        hung_up.register(connection, 0)
        assert hung_up.poll(HANG_S * 1000), "who takes nothing is dropped"


@pytest.mark.outside
def test_the_client_says_what_is_wrong(owner: Owner, tmp_path: Path) -> None:
    """A reply that is not ok, never an exception: the dashboard shows it."""
    client = ControlClient(tmp_path)
    assert client.request("pause").fields["paused"]
    assert "no such command" in client.request("explode").error
    assert client.request("status", id=3).ok
    nowhere = ControlClient(tmp_path / "nowhere").request("status")
    assert (nowhere.ok, nowhere.error) == (False, f"no peer runs in {tmp_path / 'nowhere'}")
