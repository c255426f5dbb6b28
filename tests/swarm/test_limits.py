"""Limits of real peers that are set while they run: what they hold is held, and what was trained counts."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from peer.node.control.client import ControlClient
from peer.node.control.saved_settings import read_table
from peer.node.limits.desired_state import PAUSED_WHY
from peer.schema.events import (
    AlertRaised,
    EventLine,
    InnerProgressed,
    PeerStateChanged,
    RoundCommitted,
    SettingsChanged,
)
from peer.testing.child_process import BUSY, HANG_S
from peer.testing.process_swarm import LINK_MODULE, RealSwarm
from tests.swarm.conftest import LIGHT
from tui.commands.control import command
from tui.commands.settings import change

pytestmark = pytest.mark.swarm
OBEYED_S = 2.0 * BUSY
LINGER_S = 2.0
HURRY = {"peer.node.limits.policy.LINGER_S": LINGER_S}
SNOOZED_S = 3.0


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealSwarm]:
    """Two peers whose rounds take some seconds. Every test leaves them as it found them."""
    folder = tmp_path_factory.mktemp("run")
    with closing(RealSwarm(folder, 2, sets=LIGHT, settings=("min_step_s=0.36", "on_battery=yes"), hurry=HURRY)) as run:
        run.until_round(3)
        yield run


@pytest.fixture
def game(tmp_path: Path) -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    """Starts a program of a name that nothing else here has."""
    program = tmp_path / "a-game-of-mine"
    shutil.copy(shutil.which("sleep") or "", program)
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen([program, "600"]))
        return started[-1]

    yield start
    for one in started:
        one.kill()
        one.wait()


def paused(since_t: float) -> Callable[[EventLine], bool]:
    return lambda line: isinstance(line.event, PeerStateChanged) and line.event.state == "PAUSED" and line.t >= since_t


def trains(since_t: float) -> Callable[[EventLine], bool]:
    return lambda line: isinstance(line.event, InnerProgressed) and line.t > since_t


def asked(run: RealSwarm, cmd: str, **fields: Any) -> dict[str, Any]:
    reply = ControlClient(run.directory_of(0)).request(cmd, **fields)
    assert reply.ok, reply.error
    return dict(reply.fields)


def weight_in(run: RealSwarm, round: int) -> int:
    """What peer 0 counted in it, as the other one tells."""
    run.until_round(round)
    told = {line.event.round: line.event for line in run.lines(1) if isinstance(line.event, RoundCommitted)}
    return told[round].weights.get(run.id_of(0), 0)


def counts_after(run: RealSwarm, round: int) -> bool:
    """Whether peer 0 counted in a later round, as the other one tells."""
    told = [line.event for line in run.lines(1) if isinstance(line.event, RoundCommitted)]
    return any(event.weights.get(run.id_of(0), 0) > 0 for event in told if event.round > round)


def in_a_round(run: RealSwarm) -> int:
    """A moment at which peer 0 has made some steps of it; the round's number."""
    at = run.committed(0)[-1].round

    def has_begun(line: EventLine) -> bool:
        return isinstance(line.event, InnerProgressed) and line.event.round > at

    event = run.wait_for(0, has_begun).event
    assert isinstance(event, InnerProgressed)
    return event.round


def test_it_pauses_while_a_program_runs_and_its_round_counts(
    run: RealSwarm, game: Callable[[], subprocess.Popen[bytes]]
) -> None:
    """It says which; a status answers why; and it goes on by itself when the program has ended."""
    note = asked(run, "set", values={"pause_for": ["a-game-of-mine"]})["note"]
    assert note == ""
    assert read_table(run.directory_of(0))["pause_for"] == ["a-game-of-mine"]
    round, started_t = in_a_round(run), time.time()
    playing = game()
    said = run.wait_for(0, paused(started_t))
    assert said.t - started_t < OBEYED_S
    assert isinstance(said.event, PeerStateChanged)
    assert said.event.why == "a-game-of-mine runs"
    status = asked(run, "status")
    assert [hold["code"] for hold in status["holds"]] == ["PROGRAM"]
    assert weight_in(run, round + 1) > 0, "what it had made is given"
    assert weight_in(run, round + 2) == 0
    playing.kill()
    playing.wait()
    ended_t = time.time()
    assert run.wait_for(0, trains(ended_t)).t - ended_t < LINGER_S + OBEYED_S
    asked(run, "set", values={"pause_for": []})
    assert weight_in(run, run.committed(1)[-1].round + 2) > 0
    run.assert_agreement()


def test_a_snooze_says_when_it_ends_and_ends_then(run: RealSwarm) -> None:
    in_a_round(run)
    asked_t = time.time()
    answer = asked(run, "snooze", minutes=SNOOZED_S / 60)
    assert answer["until"] == pytest.approx(asked_t + SNOOZED_S, abs=OBEYED_S)
    said = run.wait_for(0, paused(asked_t)).event
    assert isinstance(said, PeerStateChanged)
    assert said.until == pytest.approx(answer["until"])
    woken = run.wait_for(0, trains(answer["until"]))
    assert woken.t - answer["until"] < OBEYED_S
    run.assert_agreement()


def test_a_pause_survives_a_crash_and_a_snooze_keeps_its_end(run: RealSwarm) -> None:
    """Whoever paused a peer, at work or down, does not find it training after its service has started it again; it says
    so."""
    in_a_round(run)
    paused_t = time.time()
    asked(run, "pause")
    run.wait_for(0, paused(paused_t))
    run.kill(0)
    started_t = time.time()
    run.restart(0)
    said = run.wait_for(0, paused(started_t)).event
    assert isinstance(said, PeerStateChanged)
    assert said.why == PAUSED_WHY
    assert weight_in(run, run.committed(1)[-1].round + 2) == 0, "it is in step, and gives nothing"
    until = asked(run, "snooze", minutes=1)["until"]
    run.stop(0)
    run.restart(0)
    run.wait_for(0, paused(time.time()))
    assert asked(run, "status")["until"] == until

    run.stop(0)
    assert command(run.directory_of(0), "pause").startswith("no peer runs in ")
    change(run.directory_of(0), ["monthly_gb=900"])
    started_t = time.time()
    run.restart(0)
    said = run.wait_for(0, paused(started_t)).event
    assert isinstance(said, PeerStateChanged)
    assert said.why == PAUSED_WHY, "what was said while it was down"
    assert asked(run, "status")["settings"]["monthly_gb"] == 900
    asked(run, "set", values={"monthly_gb": 0})
    assert not [line for line in run.lines(0) if trains(paused_t + OBEYED_S)(line)]
    resumed_t = time.time()
    asked(run, "resume")
    run.wait_for(0, trains(resumed_t))
    assert weight_in(run, run.committed(1)[-1].round + 2) > 0
    run.assert_agreement()


def test_a_folder_beyond_its_quota_pauses_training_and_loses_nothing(run: RealSwarm) -> None:
    """Until its owner makes room in it, or allows more."""
    round, asked_t = in_a_round(run), time.time()
    ballast = run.directory_of(0) / "ballast"
    asked(run, "set", values={"disk_gb": 0.1})
    assert asked(run, "status")["holds"] == []
    ballast.write_bytes(bytes(110_000_000))
    said = run.wait_for(0, paused(asked_t)).event
    assert isinstance(said, PeerStateChanged)
    assert "disk_gb is 0.1" in said.why
    assert weight_in(run, round + 1) > 0
    ballast.unlink()
    run.wait_for(0, trains(time.time()))
    asked(run, "set", values={"disk_gb": 0})
    assert weight_in(run, run.committed(1)[-1].round + 2) > 0
    run.assert_agreement()


def test_without_traffic_left_its_link_leaves_and_comes_back_with_a_quota(run: RealSwarm) -> None:
    """What it has made is given first; then nothing more passes, and the other one goes on alone."""
    round, asked_t = in_a_round(run), time.time()
    month = time.strftime("%Y-%m")
    run.stop(0)
    (run.directory_of(0) / "traffic.json").write_text(json.dumps({"month": month, "bytes": 200_000_000}))
    run.restart(0)
    run.wait_for(0, trains(asked_t))
    asked(run, "set", values={"monthly_gb": 0.1})
    run.wait_for(0, paused(asked_t))
    _, alive = psutil.wait_procs(links_of(run), timeout=HANG_S)
    assert not alive
    status = asked(run, "status")
    assert [hold["code"] for hold in status["holds"]] == ["QUOTA"]
    assert status["until"] > time.time()
    raised_t = time.time()
    asked(run, "set", values={"monthly_gb": 100})
    run.wait_for(0, trains(raised_t))
    assert links_of(run)
    assert [
        line.event for line in run.lines(0) if isinstance(line.event, AlertRaised) and line.event.code == "LINK"
    ] == []
    asked(run, "set", values={"monthly_gb": 0})
    last = max(round, run.committed(1)[-1].round)
    run.until(lambda: counts_after(run, last), "what it makes after its return counts in no round")
    run.assert_agreement()


def links_of(run: RealSwarm) -> list[psutil.Process]:
    """The link processes of peer 0."""
    pid = asked(run, "status")["pid"]
    found = []
    for child in psutil.Process(pid).children():
        with suppress(psutil.NoSuchProcess):  # it may end just now
            if child.status() != psutil.STATUS_ZOMBIE and LINK_MODULE in child.cmdline():
                found.append(child)
    return found


def test_what_was_set_is_there_after_a_restart(run: RealSwarm) -> None:
    """And a limit that nothing here can hold was told once, not obeyed in silence."""
    asked(run, "set", values={"idle_min": 0, "upload_mbps": 900.0, "newcomers_mbps": 50})
    run.wait_for(
        0, lambda line: isinstance(line.event, SettingsChanged) and line.event.settings["upload_mbps"] == 900.0
    )
    run.stop(0)
    run.restart(0)
    run.wait_for(0, trains(time.time()))
    assert asked(run, "status")["settings"]["upload_mbps"] == 900.0
    assert [
        line.event for line in run.lines(0) if isinstance(line.event, AlertRaised) and "LIMIT" in line.event.code
    ] == []
    run.until_round(run.committed(1)[-1].round + 1)
    run.assert_agreement()
