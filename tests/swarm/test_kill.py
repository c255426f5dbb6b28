"""A peer dies, or is asked to leave: the others go on."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from peer.events import Line, PeerStarted, RoundCommitted, RoundStarted
from peer.testing.children import assert_no_orphans
from tests.swarm.conftest import Homefires, pid_of

pytestmark = pytest.mark.swarm
Start = Callable[..., Homefires]

GATHER_S, EXCHANGE_S, ACK_S, PATIENCE_S, STAGGER_S = 4.0, 4.0, 2.0, 8.0, 1.0
TRAIN_S = 20.0
"""Allowed for the inner steps of one round, with four peers on two busy cores."""
DEADLINE_S = TRAIN_S + max(GATHER_S, PATIENCE_S + STAGGER_S) + EXCHANGE_S + ACK_S
QUICK = (
    f"round.gather_s={GATHER_S}", f"round.exchange_s={EXCHANGE_S}", f"round.ack_s={ACK_S}",
    f"round.patience_s={PATIENCE_S}", f"round.stagger_s={STAGGER_S}", "round.steps=60",
)  # fmt: skip


def quick_demo(homefires: Start, directory: Path, peers: int, rounds: int, ui: str) -> Homefires:
    """A demo of `micro` with short deadlines that keeps its directory."""
    sets = [word for item in QUICK for word in ("--set", item)]
    words = ["demo", "--spec", "micro", "--peers", str(peers), "--rounds", str(rounds), "--dir", str(directory)]
    return homefires(*words, "--ui", ui, *sets)


def test_kill_9_of_one_of_four_peers_during_inner_steps(homefires: Start, tmp_path: Path) -> None:
    """The others commit the next round within the deadline and go on with equal digests; no process of the
    victim is left after five seconds; nobody shows a traceback."""
    demo = quick_demo(homefires, tmp_path / "d", 4, 8, "json")
    victim_id = demo.wait_for(lambda line: _is_start(line, "peer-2"), 90).peer
    demo.wait_for(lambda line: line.peer == victim_id and _training_towards(line, 4), 90)
    os.kill(pid_of(tmp_path / "d" / "peer-2"), signal.SIGKILL)
    killed_at = time.monotonic()
    demo.wait_for(lambda line: _committed(line, 4), DEADLINE_S)
    assert time.monotonic() - killed_at < DEADLINE_S
    assert_no_orphans(tmp_path / "d" / "peer-2")
    assert demo.finish(150) == 7, demo.err
    assert "peer-2" in demo.err
    assert "Traceback" not in demo.err
    digests: dict[int, set[str]] = {}
    for line in demo.events(RoundCommitted):
        assert isinstance(line.event, RoundCommitted)
        digests.setdefault(line.event.round, set()).add(line.event.digest + line.event.state)
    assert max(digests) == 8
    assert all(len(seen) == 1 for seen in digests.values())
    survivors = {line.peer for line in demo.events(RoundCommitted) if _committed(line, 8)}
    assert len(survivors) == 3
    assert victim_id not in survivors
    for name in ("peer-1", "peer-3", "peer-4"):
        assert "Traceback" not in (tmp_path / "d" / name / "peer.log").read_text()
    assert_no_orphans(tmp_path)


def test_the_screen_says_in_words_that_a_peer_was_killed(homefires: Start, tmp_path: Path) -> None:
    """The plain log names the peer and the signal, and holds neither tracebacks nor escape bytes."""
    demo = quick_demo(homefires, tmp_path / "d", 3, 5, "plain")
    demo.wait_for_text("round 2/5", 90)
    os.kill(pid_of(tmp_path / "d" / "peer-3"), signal.SIGKILL)
    assert demo.finish(150) == 7
    screen = "\n".join(demo.out) + demo.err
    assert "peer-3" in screen
    assert "SIGKILL" in screen
    assert "round 5/5" in screen
    assert "Traceback" not in screen
    assert "\x1b" not in screen


def test_interrupting_the_demo_leaves_nothing(homefires: Start, tmp_path: Path) -> None:
    """One SIGINT: everybody leaves politely within seconds, exit code 130, no process, no temporary folder."""
    demo = homefires("demo", "--spec", "micro", "--peers", "2", "--rounds", "500", "--ui", "json")
    demo.wait_for(lambda line: _committed(line, 2), 90)
    asked_at = time.monotonic()
    demo.signal(signal.SIGINT)
    assert demo.finish(20) == 130
    assert time.monotonic() - asked_at < 10
    assert_no_orphans(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["stderr.txt"]


def test_a_second_interrupt_ends_everything_at_once(homefires: Start, tmp_path: Path) -> None:
    """SIGINT, and again once the first was heard: exit code 130 and no process within seconds."""
    demo = homefires("demo", "--spec", "micro", "--peers", "2", "--rounds", "500", "--ui", "plain")
    demo.wait_for_text("round 1/500", 90)
    demo.signal(signal.SIGINT)
    demo.wait_for_text("once more to stop at once", 5)
    asked_at = time.monotonic()
    demo.signal(signal.SIGINT)
    assert demo.finish(10) == 130
    assert time.monotonic() - asked_at < 4
    assert_no_orphans(tmp_path)


def test_kill_9_of_the_demo_itself_leaves_no_process(homefires: Start, tmp_path: Path) -> None:
    """Children die with their parent, links and daemons too."""
    demo = homefires("demo", "--spec", "micro", "--peers", "2", "--rounds", "500", "--ui", "json")
    demo.wait_for(lambda line: _committed(line, 1), 90)
    demo.signal(signal.SIGKILL)
    demo.process.wait(5)
    assert_no_orphans(tmp_path)


def _is_start(line: Line, name: str) -> bool:
    return isinstance(line.event, PeerStarted) and line.event.name == name


def _training_towards(line: Line, round: int) -> bool:
    return isinstance(line.event, RoundStarted) and line.event.round + 1 == round


def _committed(line: Line, round: int) -> bool:
    return isinstance(line.event, RoundCommitted) and line.event.round == round
