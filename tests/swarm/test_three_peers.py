"""Three open peers, to which one thing after another happens; each time all end with the same bits.

Somebody watches them, a folder is copied, a clock is wrong, a card is full and fails, a disk turns bits over, a layer
is odd.
"""

from __future__ import annotations

import queue
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dht.atomic_files import write_atomic
from dht.errors import DeviceLost, KeyInUse, Unreachable
from dht.identity import Identity
from dht.invite import issue
from peer.consensus.protocol.block import Block
from peer.schema.events import (
    AlertRaised,
    DeviceMeasured,
    EventLine,
    NetworkMeasured,
    PeerStateChanged,
    PeerStopped,
    PenaltyImposed,
    ReportReceived,
    RoundCommitted,
    parse_line,
)
from peer.testing.child_process import BUSY, HANG_S, Child, Printed, assert_no_orphans
from peer.testing.faults import Odd
from peer.testing.faulty_link import CLOCK
from peer.testing.faulty_peer import DEVICE, FULL, GONE
from peer.testing.process_swarm import LOOPBACK, RealSwarm
from tests.swarm.conftest import LIGHT, RESTING

pytestmark = pytest.mark.swarm

QUICK = (
    *LIGHT, "round.max_train_s=20", "round.gather_s=4", "round.exchange_s=4", "round.ack_s=2",
    "aggregation.warmup_rounds=2",
)  # fmt: skip
HURRY = {"peer.node.lifecycle.link_changes.CLOCK_RETRY_S": 5.0, "peer.startup.RETRY_S": 0.5}
FIRST, ODD, VICTIM = range(3)
"""What is looked at in the first one's lines is to be as it was: it never ends. The last one ends often."""
SEEN_S = 6.0 * BUSY
"""A watcher has seen a round after this long."""
NOTICED_S = 30.0 * BUSY
OBEYED_S = 2.0 * BUSY


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealSwarm]:
    """Every test leaves all three in the group."""
    folder = tmp_path_factory.mktemp("run")
    with closing(RealSwarm(folder, 3, sets=QUICK, settings=RESTING, hurry=HURRY)) as run:
        run.until_round(2)
        yield run


def newest(run: RealSwarm, peer: int = FIRST) -> int:
    return run.committed(peer)[-1].round


def comes_back(run: RealSwarm) -> None:
    """The last one takes part in a round from now on."""
    last = newest(run)
    run.until(
        lambda: VICTIM in run.committed(FIRST)[-1].group and run.committed(VICTIM)[-1].round > last,
        "it is in no group again",
    )


# ---- somebody watches ----


class Watching:
    """One `python -m peer watch` and its lines."""

    def __init__(self, directory: Path, invite: str) -> None:
        self.directory, self.lines, self._queue = directory, list[EventLine](), queue.SimpleQueue[Printed]()
        argv = [sys.executable, "-m", "peer", "watch", invite]
        directory.mkdir()
        self.child = Child(argv, directory / "stderr.txt", {"TMPDIR": str(directory)}, self._queue.put)

    def wait_for(self, wanted: Callable[[Any], bool]) -> EventLine:
        """The first line with an event that is `wanted`, of those not read yet."""
        deadline = time.monotonic() + HANG_S
        while (text := self._queue.get(timeout=max(0.1, deadline - time.monotonic())).text) is not None:
            line = parse_line(text)
            assert line is not None, text
            self.lines.append(line)
            if wanted(line.event):
                return line
        pytest.fail(f"ended without it: {self.child.err[-800:]}")

    def events(self, kind: type) -> list[Any]:
        return [line.event for line in self.lines if isinstance(line.event, kind)]

    def id(self) -> str:
        """Of the key that it made for its connections."""
        (key,) = self.directory.glob("hf-*/identity.key")
        return Identity.load_or_create(key).peer_id


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[Callable[[str], Watching]]:
    """Start a watcher; whatever is left of it is killed afterwards."""
    started: list[Watching] = []

    def start(invite: str) -> Watching:
        started.append(Watching(tmp_path / f"watch-{len(started)}", invite))
        return started[-1]

    yield start
    for one in started:
        one.child.signal(signal.SIGKILL)
        one.child.end()


def committed(round: int) -> Callable[[object], bool]:
    """An event that says this round, or a later one, is committed."""
    return lambda event: isinstance(event, RoundCommitted) and event.round >= round


def test_a_watcher_sees_every_round_and_nobody_sees_it(run: RealSwarm, watch: Callable[[str], Watching]) -> None:
    """It comes late and sees the first round too, then each within seconds; a killed peer's penalty; everybody's name.

    No peer hears of it, and its end harms nobody. Meanwhile the peers tell what their network and machine are at.
    """
    watcher = watch(run.invite)
    watcher.wait_for(committed(newest(run)))
    run.kill(VICTIM)
    absent = watcher.wait_for(lambda event: isinstance(event, PenaltyImposed) and event.code == "ABSENT").event
    last = newest(run) + 1
    run.until_round(last)
    seen_t = watcher.wait_for(committed(last)).t
    assert isinstance(absent, PenaltyImposed)
    assert (absent.about, absent.factor) == (run.id_of(VICTIM), 0.0)

    commits = watcher.events(RoundCommitted)
    made = {commit.round: commit for commit in run.committed(FIRST)}
    assert [commit.round for commit in commits] == list(range(1, last + 1))
    assert [commit.digest for commit in commits] == [made[commit.round].digest for commit in commits]
    assert {commit.state for commit in commits} <= {"", *(commit.state for commit in made.values())}
    assert any(commit.state for commit in commits)
    weights = [line.event.weights for line in run.lines(0) if isinstance(line.event, RoundCommitted)]
    assert [commit.weights for commit in commits] == weights[: len(commits)]
    assert seen_t - run.began_at - made[last].at_s < SEEN_S
    reports = watcher.events(ReportReceived)
    assert {(report.about, report.name) for report in reports} == {(run.id_of(n), f"peer-{n}") for n in range(3)}
    assert any(report.loss and report.tokens_per_s for report in reports)
    assert any(report.evaluated is not None for report in reports)

    me = watcher.id()
    watcher.child.signal(signal.SIGTERM)
    watcher.wait_for(lambda event: isinstance(event, PeerStopped))
    watcher.child.end()
    assert watcher.child.process.returncode == 0
    assert_no_orphans(watcher.directory)
    run.until_round(last + 1)
    run.assert_agreement()
    for line in run.lines(0) + run.lines(1):
        assert me not in str(line.event) or isinstance(line.event, NetworkMeasured), line
    assert_measured(run, FIRST, other=ODD)
    run.restart(VICTIM)
    comes_back(run)


def assert_measured(run: RealSwarm, peer: int, other: int) -> None:
    """A peer tells its traffic and round trip with another, the room that the chain takes, and what training takes."""

    def tells_all(line: EventLine) -> bool:
        """What is told so early that no round was committed lacks something."""
        event = line.event
        return isinstance(event, NetworkMeasured) and event.disk_bytes > 0 and any(row["rtt_s"] for row in event.peers)

    network = run.wait_for(peer, tells_all).event
    assert isinstance(network, NetworkMeasured)
    device = [line.event for line in run.lines(peer) if isinstance(line.event, DeviceMeasured)][-1]
    assert (network.reach, network.disk_quota_bytes) == ("direct", 4 * 10**9)
    assert all(address.endswith(run.id_of(peer)) for address in network.addresses)
    (row,) = [row for row in network.peers if row["peer"] == run.id_of(other)]
    assert row["address"].startswith("/ip4/127.0.0.1/tcp/")
    assert 0 < row["rtt_s"] < 2.0 * BUSY
    assert min(row["bytes_sent"], row["bytes_received"]) > 10_000
    assert network.bytes_sent >= row["bytes_sent"]
    assert not row["relayed"]
    assert device.cpu_percent is not None
    assert device.memory_bytes is not None
    assert device.memory_bytes > 100 << 20, "the link and the daemon are counted too"


def test_a_node_that_does_not_answer(watch: Callable[[str], Watching]) -> None:
    """One line that names the address, and the exit code of what cannot be reached."""
    organiser = Identity.generate()
    address = f"/ip4/127.0.0.1/tcp/1/p2p/{organiser.peer_id}"
    watcher = watch(issue(organiser, run="nobody", spec_hash=b"h" * 32, addrs=(address,)))
    event = watcher.wait_for(lambda event: isinstance(event, PeerStopped)).event
    watcher.child.end()
    assert isinstance(event, PeerStopped)
    assert f"nobody answers at {address.partition('/p2p/')[0]};" in event.why
    assert event.exit_code == watcher.child.process.returncode == Unreachable.exit_code
    said = [text for text in watcher.child.err.splitlines() if text.startswith("homefires:")]
    assert said == [f"homefires: {event.why}"]


# ---- a folder is copied ----


def test_of_two_copies_the_later_one_ends_and_the_run_goes_on(run: RealSwarm, tmp_path: Path) -> None:
    """It says so in one line. The peer whose folder was copied is in the next rounds as before."""
    copy = tmp_path / "copy"
    shutil.copytree(run.directory_of(FIRST), copy, ignore=shutil.ignore_patterns("run", "test", "*.new", "peer.log"))
    words = ["-m", "peer", "join", str(copy / "invite"), "--dir", str(copy), "--listen", LOOPBACK]
    later = subprocess.run(
        [sys.executable, *words, "--set", "settings.min_step_s=0.2"], capture_output=True, text=True, timeout=HANG_S,
        check=False,
    )  # fmt: skip
    assert later.returncode == KeyInUse.exit_code, later.stderr
    assert "homefires: a copy of this folder takes part elsewhere with the same key" in later.stderr
    assert "Traceback" not in later.stderr
    run.until_round(newest(run) + 2)
    assert FIRST in run.committed(ODD)[-1].group
    run.assert_agreement()


# ---- a clock is wrong ----


def is_told(line: EventLine) -> bool:
    return isinstance(line.event, AlertRaised) and line.event.code == "CLOCK"


def is_held(line: EventLine) -> bool:
    return isinstance(line.event, PeerStateChanged) and "clock is 90 s ahead" in line.event.why


def test_whose_clock_is_wrong_says_so_holds_back_and_comes_back_when_it_is_right(run: RealSwarm) -> None:
    """The others go on meanwhile, and all have the same bits afterwards."""
    clock = run.directory_of(VICTIM) / CLOCK
    went_wrong_at = time.time()
    write_atomic(clock, b"90")
    told = run.wait_for(VICTIM, is_told)
    assert told.t - went_wrong_at < NOTICED_S
    assert isinstance(told.event, AlertRaised)
    assert "timedatectl set-ntp true" in told.event.text
    held = run.wait_for(VICTIM, is_held)
    assert isinstance(held.event, PeerStateChanged)
    assert held.event.state == "PAUSED"
    clock.unlink()
    run.until_round(newest(run) + 2, by=(FIRST, ODD))
    comes_back(run)
    assert [alert.event.code for alert in run.lines(VICTIM) if is_told(alert)] == ["CLOCK"]
    run.assert_agreement()


# ---- a card is full, and fails ----


def waits_for_room(line: EventLine) -> bool:
    event = line.event
    return isinstance(event, PeerStateChanged) and event.state == "PAUSED" and "no room for the model" in event.why


def test_it_waits_for_room_and_ends_with_one_line_when_the_card_is_gone(run: RealSwarm) -> None:
    """While it waits it leaves at a word. Afterwards all have the same bits, in the same folder."""
    device = run.directory_of(VICTIM) / DEVICE
    run.stop(VICTIM)
    write_atomic(device, FULL.encode())
    run.restart(VICTIM)
    run.wait_for(VICTIM, waits_for_room)
    asked_at = time.monotonic()
    assert run.stop(VICTIM) == 0
    assert time.monotonic() - asked_at < OBEYED_S

    run.restart(VICTIM)
    run.until(lambda: sum(map(waits_for_room, run.lines(VICTIM))) == 2, "it does not wait for room again")
    device.unlink()
    comes_back(run)

    write_atomic(device, GONE.encode())
    assert run.ends(VICTIM) == DeviceLost.exit_code
    stopped = run.lines(VICTIM)[-1].event
    assert isinstance(stopped, PeerStopped)
    assert stopped.why.startswith("cpu has failed (CUDA error: uncorrectable ECC error encountered); restart the")
    assert "Traceback" not in run.log(VICTIM)
    device.unlink()
    run.restart(VICTIM)
    comes_back(run)
    run.assert_agreement()


# ---- a disk turns bits over ----


def test_a_bit_that_the_disk_has_turned_over_is_asked_of_others(run: RealSwarm) -> None:
    """One bit of a stopped peer's chain is flipped: of HEAD, of a block, of a mean, one after the other. It says so
    each time, has what is missing from the others, and takes part again with the bits of all."""
    chain, last = run.directory_of(VICTIM) / "chain", newest(run, VICTIM)
    block = chain / f"{last:06d}.block"
    mean = Block.from_bytes(block.read_bytes()).update.parts[0].hex()
    for path in (run.directory_of(VICTIM) / "HEAD", block, chain / "objects" / mean):
        assert run.stop(VICTIM) == 0
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
        run.restart(VICTIM)
        said = run.wait_for(VICTIM, lambda line: isinstance(line.event, AlertRaised) and line.event.code == "DAMAGE")
        assert isinstance(said.event, AlertRaised)
        assert str(path) in said.event.text
        comes_back(run)
    run.assert_agreement()


# ---- a layer is odd ----

LAYER = "model.layers.1"


def test_an_odd_layer_is_named_by_everybody_and_the_run_goes_on(run: RealSwarm) -> None:
    """What a peer gives is judged by what was measured of it: of eight times as much in one layer that layer counts
    nothing; in the next round nobody is accused."""
    at = newest(run) + 2
    run.inject(Odd(peer=ODD, round=at, factor=8.0, layer=LAYER))
    run.until_round(at + 2)
    run.assert_agreement()
    told = {
        line.event.round: [row for row in line.event.penalties if row["code"] == "ANOMALY"]
        for peer in range(run.size)
        for line in run.lines(peer)
        if isinstance(line.event, RoundCommitted)
    }
    (penalty,) = told[at + 1]
    assert (penalty["about"], penalty["layer"]) == (run.id_of(ODD), LAYER)
    assert penalty["evidence"].endswith("in 1 of 4 layers")
    assert (penalty["factor"], penalty["until_round"]) == (0.75, at + 2)
    assert told[at + 2] == []
