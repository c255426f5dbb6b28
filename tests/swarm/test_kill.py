"""A peer dies, or is asked to leave: the others go on."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from peer.schema.events import EventLine, RoundCommitted
from peer.testing.child_process import BUSY, HANG_S, assert_no_orphans
from tests.swarm.conftest import LIGHT, Homefires, pid_of, set_words

pytestmark = pytest.mark.swarm
Start = Callable[..., Homefires]

QUICK = (
    *LIGHT, "round.gather_s=4", "round.exchange_s=4", "round.ack_s=2", "round.stagger_s=1", "round.steps=40",
)  # fmt: skip


def quick_demo(homefires: Start, directory: Path, peers: int, rounds: int) -> Homefires:
    """A demo of `micro` with short deadlines that keeps its directory."""
    words = ["demo", "--spec", "micro", "--peers", str(peers), "--rounds", str(rounds), "--dir", str(directory)]
    return homefires(*words, "--ui", "plain", *set_words(QUICK))


def test_the_screen_says_in_words_that_a_peer_was_killed(homefires: Start, tmp_path: Path) -> None:
    """The others finish. The plain log names the peer and the signal, and holds neither tracebacks nor escape bytes;
    the exit code says that somebody was lost. No process of the victim is left after some seconds."""
    demo = quick_demo(homefires, tmp_path / "d", 3, 4)
    demo.wait_for_text("round 2/4")
    os.kill(pid_of(tmp_path / "d" / "peer-3"), signal.SIGKILL)
    assert_no_orphans(tmp_path / "d" / "peer-3")
    assert demo.finish() == 7
    screen = "\n".join(demo.out) + demo.err
    assert "peer-3" in screen
    assert "SIGKILL" in screen
    assert "round 4/4" in screen
    assert "Traceback" not in screen
    assert "\x1b" not in screen
    for name in ("peer-1", "peer-2"):
        assert "Traceback" not in (tmp_path / "d" / name / "peer.log").read_text()
    assert_no_orphans(tmp_path)


def test_interrupting_the_demo_leaves_nothing(homefires: Start, tmp_path: Path) -> None:
    """Nobody else could connect to it: all ports that its processes listen on are on loopback. One SIGINT: everybody
    leaves politely within seconds, exit code 130, no process, no temporary folder."""
    demo = homefires("demo", "--spec", "micro", "--peers", "2", "--rounds", "500", "--ui", "json", *set_words(LIGHT))
    demo.wait_for(lambda line: _committed(line, 1))
    sockets = [found for process in demo.processes() for found in process.net_connections("inet")]
    assert {found.laddr.ip for found in sockets if found.status == psutil.CONN_LISTEN} == {"127.0.0.1"}
    asked_at = time.monotonic()
    demo.signal(signal.SIGINT)
    assert demo.finish() == 130
    assert time.monotonic() - asked_at < 10 * BUSY
    assert_no_orphans(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["stderr.txt"]


def test_a_second_interrupt_ends_everything_at_once(homefires: Start, tmp_path: Path) -> None:
    """SIGINT, and again once the first was heard: exit code 130 and no process within seconds."""
    demo = homefires("demo", "--spec", "micro", "--peers", "1", "--rounds", "500", "--ui", "plain", *set_words(LIGHT))
    demo.wait_for_text("round 1/500")
    demo.signal(signal.SIGINT)
    demo.wait_for_text("once more to stop at once")
    asked_at = time.monotonic()
    demo.signal(signal.SIGINT)
    assert demo.finish() == 130
    assert time.monotonic() - asked_at < 4 * BUSY
    assert_no_orphans(tmp_path)


@pytest.mark.cold
def test_kill_9_of_the_demo_itself_leaves_no_process(homefires: Start, tmp_path: Path) -> None:
    """Children die with their parent, links and daemons too."""
    demo = homefires("demo", "--spec", "micro", "--peers", "1", "--rounds", "500", "--ui", "json")
    demo.wait_for(lambda line: _committed(line, 1))
    demo.signal(signal.SIGKILL)
    demo.process.wait(HANG_S)
    assert_no_orphans(tmp_path)


def _committed(line: EventLine, round: int) -> bool:
    return isinstance(line.event, RoundCommitted) and line.event.round == round
