"""The commands of a person to the peer of a directory. What a peer answers is in
tests/peer/node/control/test_server.py."""

from __future__ import annotations

import errno
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dht.errors import BadInput, Unreachable
from dht.process import lock_directory
from peer.node.control import client
from peer.node.control.client import ControlClient
from peer.node.limits.desired_state import PAUSED_WHY
from peer.schema.events import EventLine, PeerStarted, format_line
from tui.cli import main
from tui.commands.control import command
from tui.text.event_text import RESUME

WAIT_S = 10.0
OK = {"id": 1, "ok": True, "name": "alice", "round": 4, "state": "TRAINING"}
Answers = Callable[[bytes], None]


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[tuple[Answers, list[dict[str, Any]]]]:
    """answer(raw): what a socket in `tmp_path` says to every request; and the requests that came."""
    with lock_directory(tmp_path):
        yield from answering(tmp_path)


def answering(tmp_path: Path) -> Iterator[tuple[Answers, list[dict[str, Any]]]]:
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(tmp_path / "run" / "control"))
    listening.listen()
    answers: list[bytes] = []
    asked: list[dict[str, Any]] = []

    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection:
                asked.append(json.loads(connection.makefile("rb").readline()))
                connection.sendall(answers[-1])

    thread = threading.Thread(target=serve)
    thread.start()
    yield answers.append, asked
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()
    thread.join(WAIT_S)


@pytest.mark.outside
@pytest.mark.parametrize(
    ("cmd", "said"),
    [
        ("pause", "alice pauses: what it has made of round 5 is given"),
        ("resume", "alice trains again"),
        ("finish", "alice completes its part of round 5, then pauses"),
        ("leave", "alice leaves the run"),
    ],
)
def test_a_command_is_answered_with_one_line(
    peer: tuple[Answers, list[dict[str, Any]]], tmp_path: Path, cmd: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same on the command line, with exit code 0."""
    answer, asked = peer
    answer(json.dumps(OK).encode() + b"\n")
    assert command(tmp_path, cmd).startswith(said)
    assert asked == [{"v": 1, "id": 1, "cmd": cmd}]
    assert main([cmd, "--dir", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert told.startswith(said)
    assert told.count("\n") == 1


@pytest.mark.outside
def test_a_refusal_is_a_mistake(peer: tuple[Answers, list[dict[str, Any]]], tmp_path: Path) -> None:
    answer, _ = peer
    answer(b'{"id": 1, "ok": false, "error": "not now"}\n')
    with pytest.raises(BadInput, match="not now"):
        ControlClient(tmp_path).require("pause")
    assert ControlClient(tmp_path).request("pause").error == "not now"


@pytest.mark.outside
@pytest.mark.parametrize("raw", [b"rubbish\n", b"[]\n", b"\xff\n", b""])
def test_what_is_no_peer_is_told_so(peer: tuple[Answers, list[dict[str, Any]]], tmp_path: Path, raw: bytes) -> None:
    """One line, whatever listens there."""
    answer, _ = peer
    answer(raw)
    assert not (reply := ControlClient(tmp_path).request("status")).ok
    assert "\n" not in reply.error
    with pytest.raises(Unreachable):
        ControlClient(tmp_path).require("status")


@pytest.mark.outside
def test_a_peer_that_does_not_answer_is_not_waited_for_long(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with closing(socket.socket(socket.AF_UNIX)) as deaf:
        deaf.bind(str(tmp_path / "run" / "control"))
        deaf.listen()
        reply = ControlClient(tmp_path, timeout_s=0.1).request("status")
    assert reply.error == f"the peer in {tmp_path} did not answer in 0 s"


def test_a_system_that_gives_no_socket_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The dashboard asks in a thread of its own: nothing but an answer may come out of that."""

    def none(*about: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(client.socket, "socket", none)
    reply = ControlClient(tmp_path).request("status")
    assert (reply.ok, reply.error) == (False, f"the peer in {tmp_path} cannot be asked: Too many open files")


def test_no_peer_is_one_line_and_exit_code_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For every command, also where the path is longer than a socket's may be."""
    for directory in (tmp_path, tmp_path / ("d" * 120)):
        assert main(["pause", "--dir", str(directory)]) == 3
        told = capsys.readouterr()
        assert (told.out, told.err.count("\n")) == ("", 1)
        assert str(directory) in told.err


@pytest.mark.outside
def test_events_are_followed_to_the_peers_end(peer: tuple[Answers, list[dict[str, Any]]], tmp_path: Path) -> None:
    """What is no event is skipped, and the answer is none."""
    answer, asked = peer
    lines = [EventLine(seq=n, t=1.0, run="r", peer="p", event=PeerStarted(name="x", version="0")) for n in range(3)]
    texts = [format_line(line) for line in lines]
    answer("\n".join(['{"id":1,"ok":true}', *texts[:2], "rubbish", texts[2], ""]).encode())
    assert list(filter(None, ControlClient(tmp_path).events(7))) == lines
    assert asked[-1]["from"] == 7


@pytest.mark.outside
def test_a_peer_that_lets_nobody_follow_says_why(peer: tuple[Answers, list[dict[str, Any]]], tmp_path: Path) -> None:
    """It has too many listeners: that is no folder without events."""
    answer, _ = peer
    answer(b'{"id":1,"ok":false,"error":"this peer has 16 connections already; close one"}\n')
    with pytest.raises(BadInput, match="16 connections already"):
        list(ControlClient(tmp_path).events())


def test_the_pause_that_an_owner_asked_for_is_told_from_others_by_its_reason() -> None:
    """`p` of the dashboard resumes that one only."""
    assert RESUME in PAUSED_WHY


@pytest.mark.outside
def test_a_peer_that_hangs_is_told_so_however_often_it_is_asked(tmp_path: Path) -> None:
    """A dashboard asks every two seconds: once as many wait as the system lets wait, the answer is the same."""
    (tmp_path / "run").mkdir()
    with closing(socket.socket(socket.AF_UNIX)) as deaf:
        deaf.bind(str(tmp_path / "run" / "control"))
        deaf.listen(1)
        replies = [ControlClient(tmp_path, timeout_s=0.02).request("status") for _ in range(5)]
    assert {reply.error for reply in replies} == {f"the peer in {tmp_path} did not answer in 0 s"}
