"""`homefires bootstrap` and `homefires join` as organisers and volunteers use them."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dht.errors import BadInput, DirectoryBusy, PortInUse, Unreachable
from dht.identity import Identity
from dht.invite import issue
from peer.events import InviteIssued, Line, PeerStarted, PeerStopped, RoundCommitted
from tests.swarm.conftest import Homefires, assert_no_orphans, pid_of

pytestmark = pytest.mark.swarm
Start = Callable[..., Homefires]

LOOPBACK = ("--listen", "/ip4/127.0.0.1/tcp/0")
ENDLESS = (
    "--set", "run.rounds=0", "--set", "inner.schedule_rounds=50", "--set", "round.gather_s=4",
    "--set", "round.exchange_s=4", "--set", "round.ack_s=2", "--set", "round.patience_s=8",
)  # fmt: skip


class Run:
    """A bootstrap node, its invite, and peers that join by it."""

    def __init__(self, homefires: Start, directory: Path, founders: int, *sets: str) -> None:
        self._homefires, self.directory = homefires, directory
        words = ["bootstrap", "micro", "--dir", str(directory / "b"), *LOOPBACK, "--ui", "json", *sets]
        self.bootstrap = homefires(*words, "--set", f"run.founders={founders}", directory=directory / "b-out")
        line = self.bootstrap.wait_for(lambda line: isinstance(line.event, InviteIssued), 60)
        assert isinstance(line.event, InviteIssued)
        self.invite = line.event.invite

    def join(self, name: str) -> Homefires:
        """Start a peer in the directory of this name, or start it again."""
        words = ["join", self.invite, "--dir", str(self.directory / name), "--name", name, *LOOPBACK, "--ui", "json"]
        return self._homefires(*words, directory=self.directory / f"{name}-out")


def committed(round: int) -> Callable[[Line], bool]:
    """An event that says this round, or a later one, is committed."""
    return lambda line: isinstance(line.event, RoundCommitted) and line.event.round >= round


def took_part(peer: str) -> Callable[[Line], bool]:
    """A committed round with `peer` in its group."""
    return lambda line: isinstance(line.event, RoundCommitted) and peer in line.event.group


def last_commit(peer: Homefires) -> RoundCommitted:
    event = peer.events(RoundCommitted)[-1].event
    assert isinstance(event, RoundCommitted)
    return event


def stop_all(*commands: Homefires) -> None:
    """Ask politely and see that everything ends."""
    for command in commands:
        command.signal(signal.SIGTERM)
    for command in commands:
        command.finish(20)


@pytest.mark.timeout(240)
def test_a_late_joiner_replays_the_chain_and_takes_part(homefires: Start, tmp_path: Path) -> None:
    """It fetches the updates it missed from the others, computes the same anchor, and is in a later group."""
    run = Run(homefires, tmp_path, 2, *ENDLESS)
    first, second = run.join("a"), run.join("c")
    first.wait_for(committed(3), 90)
    late = run.join("late")
    line = late.wait_for(lambda line: isinstance(line.event, PeerStarted), 60)
    late.wait_for(took_part(line.peer), 60)
    mine = last_commit(late)
    same = first.wait_for(committed(mine.round), 60)
    assert isinstance(same.event, RoundCommitted)
    assert (same.event.round, same.event.digest, same.event.state) == (mine.round, mine.digest, mine.state)
    assert [line.event.round for line in late.events(RoundCommitted)][:3] == [1, 2, 3]  # type: ignore[attr-defined]
    stop_all(first, second, late, run.bootstrap)
    assert_no_orphans(tmp_path)


@pytest.mark.timeout(240)
def test_a_killed_peer_returns_from_its_disk(homefires: Start, tmp_path: Path) -> None:
    """After kill -9 the same directory resumes: same identity, catches up, is in a later group; equal bits."""
    run = Run(homefires, tmp_path, 3, *ENDLESS)
    peers = [run.join(name) for name in ("a", "c", "d")]
    started = peers[2].wait_for(lambda line: isinstance(line.event, PeerStarted), 60)
    peers[2].wait_for(committed(2), 90)
    os.kill(pid_of(tmp_path / "d"), signal.SIGKILL)
    peers[2].finish(20)
    before = last_commit(peers[2]).round
    peers[0].wait_for(committed(before + 2), 60)
    back = run.join("d")
    again = back.wait_for(lambda line: isinstance(line.event, PeerStarted), 60)
    assert again.peer == started.peer
    assert again.seq > peers[2].lines[-1].seq
    back.wait_for(took_part(again.peer), 60)
    mine = last_commit(back)
    assert mine.round > before
    same = peers[0].wait_for(committed(mine.round), 60)
    assert isinstance(same.event, RoundCommitted)
    assert (same.event.round, same.event.digest, same.event.state) == (mine.round, mine.digest, mine.state)
    stop_all(back, *peers[:2], run.bootstrap)
    assert_no_orphans(tmp_path)


@pytest.mark.timeout(180)
def test_the_run_needs_no_bootstrap_node_once_it_has_begun(homefires: Start, tmp_path: Path) -> None:
    """Its bootstrap node is killed: rounds go on, and a polite SIGTERM ends a peer within seconds with exit 0."""
    run = Run(homefires, tmp_path, 2, *ENDLESS)
    first, second = run.join("a"), run.join("c")
    first.wait_for(committed(1), 90)
    run.bootstrap.signal(signal.SIGKILL)
    first.wait_for(committed(4), 60)
    asked_at = time.monotonic()
    second.signal(signal.SIGTERM)
    assert second.finish(10) in (0, 130)
    assert time.monotonic() - asked_at < 8
    assert isinstance(second.lines[-1].event, PeerStopped)
    stop_all(first)
    assert_no_orphans(tmp_path)


# ---- mistakes ----


def one_line(command: Homefires, exit_code: int) -> str:
    """The single line a person reads."""
    assert command.finish(90) == exit_code, command.err
    lines = command.err.strip().splitlines()
    assert len(lines) == 1, lines
    return lines[0]


def test_a_damaged_invite(homefires: Start, tmp_path: Path) -> None:
    """Refused before anything starts."""
    line = one_line(homefires("join", "hf1:nonsense", "--dir", str(tmp_path / "d")), BadInput.exit_code)
    assert "invite" in line


def test_a_bootstrap_node_that_does_not_answer(homefires: Start, tmp_path: Path) -> None:
    """Names the address that was tried."""
    organiser = Identity.generate()
    address = f"/ip4/127.0.0.1/tcp/{free_port()}/p2p/{organiser.peer_id}"
    invite = issue(organiser, run="nobody", spec_hash=b"h" * 32, addrs=(address,))
    line = one_line(homefires("join", invite, "--dir", str(tmp_path / "d"), *LOOPBACK), Unreachable.exit_code)
    assert "/ip4/127.0.0.1/tcp/" in line


def test_a_port_in_use(homefires: Start, tmp_path: Path) -> None:
    """Names the address that is taken."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"/ip4/127.0.0.1/tcp/{taken.getsockname()[1]}"
        command = homefires("bootstrap", "micro", "--dir", str(tmp_path / "b"), "--listen", address)
        line = one_line(command, PortInUse.exit_code)
    assert address in line


def test_a_misspelt_key(homefires: Start, tmp_path: Path) -> None:
    """Names the key and the closest valid one."""
    path = tmp_path / "my.toml"
    path.write_text('[run]\nname = "x"\nrouns = 3\n[model]\narchitecture = "llama"\ncontext = 64\n')
    line = one_line(homefires("bootstrap", str(path), "--dir", str(tmp_path / "b")), BadInput.exit_code)
    assert "run.rouns" in line
    assert "'rounds'" in line


def test_a_directory_in_use(homefires: Start, tmp_path: Path) -> None:
    """The second peer in a directory is told who holds it."""
    run = Run(homefires, tmp_path, 5)
    first = run.join("a")
    first.wait_for(lambda line: isinstance(line.event, PeerStarted), 60)
    second = homefires("join", run.invite, "--dir", str(tmp_path / "a"), *LOOPBACK, directory=tmp_path / "second")
    line = one_line(second, DirectoryBusy.exit_code)
    assert str(pid_of(tmp_path / "a")) in line
    stop_all(first, run.bootstrap)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
