"""`homefires bootstrap` and `homefires join` as organisers and volunteers use them."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from bootstrap.organiser import promote_peer
from dht.errors import BadInput, DirectoryBusy, PortInUse, Unreachable
from dht.identity import Identity
from dht.invite import issue
from peer.schema.events import (
    EventLine,
    InnerProgressed,
    InviteIssued,
    PeerStateChanged,
    PeerStopped,
    PenaltyImposed,
    ReportReceived,
    RoundCommitted,
    RoundStarted,
)
from peer.schema.spec_fields import RoundTable
from peer.testing.child_process import BUSY, assert_no_orphans
from peer.testing.process_swarm import RealSwarm
from peer.testing.pytest_plugin import StartSwarm
from tests.swarm.conftest import LIGHT, RESTING, Homefires, set_words
from tests.talks import mixed_sets
from tui.commands.consent import introduce

pytestmark = pytest.mark.swarm
Start = Callable[..., Homefires]

FIRST_STEP_S = 20.0
LOOPBACK = ("--listen", "/ip4/127.0.0.1/tcp/0")
QUICK = (
    *LIGHT, "round.max_train_s=20", "round.gather_s=4", "round.exchange_s=4", "round.ack_s=2",
)  # fmt: skip
SLOWLY = set_words((*RESTING, "compile=no"))
"""Nor is an endless run worth compiling here."""
ENDLESS = set_words(("run.rounds=0", "inner.schedule_rounds=50", *QUICK))


class Run:
    """A bootstrap node, its invite, and peers that join by it."""

    def __init__(self, homefires: Start, directory: Path, founders: int, *sets: str, spec: str = "micro") -> None:
        self._homefires, self.directory = homefires, directory
        words = ["bootstrap", spec, "--dir", str(directory / "b"), *LOOPBACK, "--ui", "json", *sets]
        self.bootstrap = homefires(*words, "--set", f"run.founders={founders}", directory=directory / "b-out")
        line = self.bootstrap.wait_for(lambda line: isinstance(line.event, InviteIssued))
        assert isinstance(line.event, InviteIssued)
        self.invite = line.event.invite

    def join(self, name: str, *where: str) -> Homefires:
        """Start a peer in the directory of this name, or start it again; it listens on loopback unless told."""
        listen = where or LOOPBACK
        words = ["join", self.invite, "--dir", str(self.directory / name), "--name", name, *listen, "--ui", "json"]
        return self._homefires(*words, "--yes", *SLOWLY, directory=self.directory / f"{name}-out")


def committed(round: int) -> Callable[[EventLine], bool]:
    """An event that says this round, or a later one, is committed."""
    return lambda line: isinstance(line.event, RoundCommitted) and line.event.round >= round


def stop_all(*commands: Homefires) -> None:
    """Ask politely and see that everything ends."""
    for command in commands:
        command.signal(signal.SIGTERM)
    for command in commands:
        command.finish()


def test_a_late_joiner_takes_part_and_a_peer_leaves_and_nobody_needs_the_node(
    swarm: StartSwarm, tmp_path: Path
) -> None:
    """The joiner replays the chain from its beginning and is in the group of the second round after its arrival at
    the latest. Once it has earned its vote, and the organiser has promoted it, a founder leaves politely while a round
    is being made: the others commit it in time. All read a mix of text and conversations, and nobody
    is found to lie.

    Then the bootstrap node is killed. A newcomer has no more than the old invite, which nobody answers, and what a peer
    remembers: spec, genesis, chain and the way to the others come from there.
    """
    sets = (*QUICK, *mixed_sets(tmp_path / "data"))
    run = swarm(peers=2, real=True, sets=sets, settings=RESTING)
    run.until_round(3)
    late = run.join()
    being_made = min(round_of_arrival(run, founder, run.id_of(late)) for founder in (0, 1))
    run.until_round(being_made + 2)
    assert any(late in run.group(round) for round in range(being_made, being_made + 3))
    assert [commit.round for commit in run.committed(late)] == list(range(1, run.committed(late)[-1].round + 1))
    run.assert_agreement()

    promote_peer(run.directory / "bootstrap", run.id_of(late))
    run.until(lambda: late in run.electorate(run.committed(0)[-1].round), "the joiner has no vote")
    newest = run.committed(1)[-1].round
    line = run.wait_for(1, lambda line: starts_after(line, newest))
    assert isinstance(line.event, RoundStarted)
    asked_at_s = time.time() - run.began_at
    assert run.stop(1) == 0
    assert isinstance(run.lines(1)[-1].event, PeerStopped)
    made = line.event.round + 1
    run.until_round(made)
    ends_s = [commit.at_s for peer in (0, late) for commit in run.committed(peer) if commit.round == made]
    assert max(ends_s) - asked_at_s < round_limit_s(run.spec.round)
    run.assert_agreement()
    penalties = [line.event.code for line in run.lines(0) if isinstance(line.event, PenaltyImposed)]
    assert "MISDECLARED" not in penalties

    remembered = run.directory_of(0) / "peers.json"
    assert run.id_of(late) in remembered.read_text()
    run._bootstrap.signal_group(signal.SIGKILL)
    folder = run.directory / f"peer-{run.size}"
    folder.mkdir(mode=0o700)
    (folder / "peers.json").write_bytes(remembered.read_bytes())
    last = run.join()
    run.until(lambda: last in run.committed(0)[-1].group, "the newcomer is in no group")
    run.until_round(run.committed(0)[-1].round + 1)
    run.assert_agreement()


@pytest.mark.cold
@pytest.mark.nightly
def test_from_join_to_the_first_inner_step(homefires: Start, tmp_path: Path) -> None:
    """The demo's model, with two commands: who founds the run, and who comes when it has begun. Each says at once what
    it waits for."""
    run = Run(homefires, tmp_path, 1, spec="tiny")
    peers = []
    for name in ("founder", "newcomer"):
        asked_at = time.monotonic()
        peers.append(run.join(name))
        peers[-1].wait_for(lambda line: isinstance(line.event, InnerProgressed))
        seconds = time.monotonic() - asked_at
        print(f"{name}: {seconds:.1f} s from `join` to the first inner step")
        assert seconds < FIRST_STEP_S * BUSY
        said = [line.event for line in peers[-1].lines if isinstance(line.event, PeerStateChanged)]
        assert said[0].state == "JOINING"
        assert all(event.why for event in said if event.state in ("JOINING", "SYNCING"))
    stop_all(*peers, run.bootstrap)


def round_of_arrival(run: RealSwarm, founder: int, peer: str) -> int:
    """Which anchor this founder was making when it first heard what `peer` says of itself."""
    heard = run.wait_for(founder, lambda line: is_report(line, peer))
    before = [line.event for line in run.lines(founder) if line.seq < heard.seq]
    return max(event.round for event in before if isinstance(event, RoundCommitted)) + 1


def is_report(line: EventLine, peer: str) -> bool:
    return isinstance(line.event, ReportReceived) and line.event.about == peer


def starts_after(line: EventLine, round: int) -> bool:
    return isinstance(line.event, RoundStarted) and line.event.round > round


def round_limit_s(table: RoundTable) -> float:
    """All inner steps, a promise that does not come, parts and norms, means."""
    return table.max_train_s + table.ack_s + 2 * (table.exchange_s + table.ack_s)


def test_the_run_needs_no_bootstrap_node_once_it_has_begun(homefires: Start, tmp_path: Path) -> None:
    """Its bootstrap node is killed: rounds go on. A second peer in the directory of the first one is told who holds it.

    Somebody who knows one address of a peer is told what the run is before he says yes, and then trains with the
    others. A polite SIGTERM ends a peer within seconds with exit 0.
    """
    run = Run(homefires, tmp_path, 2, *ENDLESS)
    first, second = run.join("a"), run.join("c")
    first.wait_for(committed(1))
    run.bootstrap.signal(signal.SIGKILL)
    assert run.bootstrap.finish() != 0
    third = homefires(
        "join", run.invite, "--dir", str(tmp_path / "a"), *LOOPBACK, "--yes", directory=tmp_path / "third"
    )
    assert f"homefires attach --dir {tmp_path / 'a'}" in one_line(third, DirectoryBusy.exit_code)

    address = address_of(first, tmp_path / "a")
    assert introduce(run.invite, [address])["run"] == "micro"
    newcomer = run.join("n", *LOOPBACK, "--peer", address)
    newcomer.wait_for(lambda line: isinstance(line.event, InnerProgressed))
    line = newcomer.wait_for(lambda line: isinstance(line.event, RoundCommitted) and len(line.event.group) == 3)
    assert address in (tmp_path / "n" / "peers.json").read_text()
    first.wait_for(lambda other: isinstance(other.event, RoundCommitted) and other.event.group == line.event.group)

    asked_at = time.monotonic()
    second.signal(signal.SIGTERM)
    assert second.finish() in (0, 130)
    assert time.monotonic() - asked_at < 8 * BUSY
    assert isinstance(second.lines[-1].event, PeerStopped)
    stop_all(newcomer, first)
    assert_no_orphans(tmp_path)


def address_of(peer: Homefires, directory: Path) -> str:
    """Where this peer of loopback can be dialled."""
    (port,) = [
        connection.laddr.port
        for process in peer.processes(directory)
        if process.name() == "p2pd"
        for connection in process.net_connections("tcp4")
        if connection.status == psutil.CONN_LISTEN
    ]
    return f"/ip4/127.0.0.1/tcp/{port}/p2p/{Identity.load_or_create(directory / 'identity.key').peer_id}"


# ---- mistakes ----


def one_line(command: Homefires, exit_code: int) -> str:
    """The single line a person reads."""
    assert command.finish() == exit_code, command.err
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
    line = one_line(homefires("join", invite, "--yes", "--dir", str(tmp_path / "d"), *LOOPBACK), Unreachable.exit_code)
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


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
