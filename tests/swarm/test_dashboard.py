"""Dashboards and commands beside real peers: what they ask for happens, and nothing else does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from statistics import median

import pytest

from peer.node.control.client import ControlClient
from peer.schema.events import EventLine, InnerProgressed, PeerStateChanged, PhaseEntered, RoundAborted, RoundCommitted
from peer.testing.child_process import BUSY, HANG_S, assert_no_orphans
from peer.testing.process_swarm import LOOPBACK, RealSwarm
from tests.swarm.conftest import LIGHT, set_words
from tests.swarm.test_join import SLOWLY
from tests.tui.terminals import ESCAPE, Terminal
from tui.folders import is_at_work

pytestmark = pytest.mark.swarm
PAUSED_S = 5.0 * BUSY
GATHER_S = 2.5
NOISE_S = 0.5 * BUSY
"""By so much one round may differ from another for no reason at all, at least; less than a wait for somebody."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealSwarm]:
    """Two peers; training takes longer than the coordinator waits for peers that are not ready.

    Every test leaves them as it found them.
    """
    folder, settings = tmp_path_factory.mktemp("run"), ("min_step_s=0.36",)
    with closing(RealSwarm(folder, 2, sets=(*LIGHT, f"round.gather_s={GATHER_S}"), settings=settings)) as run:
        run.until_round(3)
        yield run


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    """Start `homefires` commands, each in a terminal of its own."""
    opened: list[Terminal] = []

    def start(*words: str, **changes: str) -> Terminal:
        environment = {name: value for name, value in os.environ.items() if name not in ("CI", "NO_COLOR")}
        environment |= {"TERM": "xterm-256color", "OMP_NUM_THREADS": "1", "XDG_DATA_HOME": str(tmp_path / "data")}
        opened.append(Terminal([sys.executable, "-m", "tui", *words], environment | changes))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


def is_state(state: str, since_t: float) -> Callable[[EventLine], bool]:
    return lambda line: isinstance(line.event, PeerStateChanged) and line.event.state == state and line.t >= since_t


def commits(run: RealSwarm, peer: int) -> dict[int, RoundCommitted]:
    return {line.event.round: line.event for line in run.lines(peer) if isinstance(line.event, RoundCommitted)}


def newest(run: RealSwarm) -> int:
    return max(commit.round for commit in run.committed(1))


def test_a_paused_peer_gives_what_it_made_and_holds_nobody_up(run: RealSwarm) -> None:
    """In step and voting all the while; the rounds of the others last as long as before; it goes on at once."""
    control, me = ControlClient(run.directory_of(0)), run.id_of(0)
    run.wait_for(0, lambda line: isinstance(line.event, InnerProgressed) and line.event.round == newest(run))
    asked_t, at = time.time(), newest(run)
    assert control.request("pause").ok
    paused = run.wait_for(0, is_state("PAUSED", asked_t))
    assert paused.t - asked_t < PAUSED_S
    run.until_round(at + 4)
    status = control.request("status").fields
    assert (status["state"], status["paused"]) == ("PAUSED", True)
    given, full = commits(run, 1)[at + 1], commits(run, 1)[at].tokens
    assert given.tokens < full
    assert given.weights[me] > 0
    for round in range(at + 2, at + 5):
        told = commits(run, 1)[round]
        assert me in told.group, "it votes"
        assert told.weights[me] == 0
        assert [penalty["code"] for penalty in told.penalties if penalty["about"] != me] == []
        assert told.tokens == full // 2, "nobody was hurried"
        assert commits(run, 0)[round].exposed_s < NOISE_S
    before_s, during_s = (
        [commits(run, 1)[round].round_s for round in rounds] for rounds in (range(2, at + 1), range(at + 2, at + 5))
    )
    assert median(during_s) < max(before_s) + NOISE_S
    resumed_t = time.time()
    assert control.request("resume").ok
    resumed = run.wait_for(0, lambda line: isinstance(line.event, InnerProgressed) and line.t > resumed_t)
    assert resumed.t - resumed_t < PAUSED_S
    run.until_round(newest(run) + 2)
    assert commits(run, 1)[newest(run)].weights[me] > 0
    run.assert_agreement()


def test_a_finished_round_is_whole_and_then_it_pauses(run: RealSwarm) -> None:
    """All steps of the round that goes on when it is asked for."""
    run.wait_for(0, lambda line: isinstance(line.event, InnerProgressed) and line.event.round == newest(run))
    asked_t, at = time.time(), newest(run)
    assert ControlClient(run.directory_of(0)).request("finish").fields["finishing"]
    run.wait_for(0, is_state("PAUSED", asked_t))
    run.until_round(at + 2)
    assert commits(run, 1)[at + 1].tokens == commits(run, 1)[at].tokens
    assert commits(run, 1)[at + 2].tokens == commits(run, 1)[at].tokens // 2
    assert ControlClient(run.directory_of(0)).request("resume").ok
    run.until_round(newest(run) + 2)


def test_a_killed_dashboard_disturbs_no_round(run: RealSwarm, terminal: Callable[..., Terminal]) -> None:
    """Same bits for all, no try that failed, nobody late; exposed time within that of the rounds without one."""
    quiet = range(newest(run) + 1, newest(run) + 4)
    run.until_round(quiet[-1])
    where = ("--dir", str(run.directory_of(0)))
    killed = terminal("attach", *where)
    killed.wait_for("TRAINING")
    at = newest(run)
    run.until_round(at)
    run.wait_for(0, lambda line: isinstance(line.event, PhaseEntered) and line.event.round > at)
    killed.kill(signal.SIGKILL)
    assert killed.finish() == -signal.SIGKILL
    last = newest(run) + 2
    run.until_round(last)
    run.assert_agreement()
    told = commits(run, 0)
    before, after = ([told[round].exposed_s for round in rounds] for rounds in (quiet, range(at + 1, last + 1)))
    assert max(after) <= max(before) + max(NOISE_S, max(before) - min(before))
    assert not any(told[round].penalties for round in range(at + 1, last + 1))
    aborted = [line for line in run.lines(0) if isinstance(line.event, RoundAborted) and line.event.round >= at]
    assert aborted == []

    screen = terminal("attach", *where)
    screen.wait_for("TRAINING")
    screen.press("q")
    assert screen.finish() == 0
    assert f"come back with: homefires attach --dir {run.directory_of(0)}" in screen.text.replace("\r\n", "")


def test_a_peer_that_joined_on_a_terminal_stays_when_the_dashboard_goes(
    run: RealSwarm, terminal: Callable[..., Terminal], tmp_path: Path
) -> None:
    """Its owner is asked, once. It tells how to come back and how to stop it, and leaves when it is told to."""
    directory = tmp_path / "guest"
    words = ("join", run.invite, "--dir", str(directory), "--name", "guest", "--listen", LOOPBACK, *SLOWLY)
    joining = terminal(*words)
    joining.wait_for("Join this run? [y/N]")
    assert "your IP address" in joining.text
    joining.press("y\n")
    joining.wait_for("q detach")
    joining.press("q")
    assert joining.finish() == 0
    assert "homefires leave" in joining.text
    assert is_at_work(directory)
    busy = terminal(*words)
    assert busy.finish() == 6
    assert "already; look at it with: homefires attach" in busy.text

    again = terminal("attach", "--dir", str(directory))
    again.wait_for("q detach")
    assert ControlClient(directory).request("leave").ok
    again.wait_for("asked to leave")
    again.press("q")
    assert again.finish() == 0
    assert "the peer has stopped: asked to leave" in again.text
    assert_no_orphans(directory)
    run.assert_agreement()


def test_a_demo_into_a_pipe_has_no_escape_byte(tmp_path: Path) -> None:
    """Also with TERM=dumb, and with nothing at all for stdin."""
    command = f"{sys.executable} -m tui demo --rounds 2 --spec micro --peers 1 {' '.join(set_words(LIGHT))} <&- | cat"
    environment = os.environ | {"TERM": "dumb", "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, shell=True, env=environment, capture_output=True, timeout=HANG_S, check=False)
    assert ESCAPE not in done.stdout + done.stderr
    assert b"2 of 2 rounds committed by all 1 peers" in done.stdout, done.stderr
    assert done.stderr == b""
