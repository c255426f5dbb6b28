"""A peer that crashes is started again, later and later; one that ended for good is not."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from dht.errors import BadInput, HomefiresError, RunMismatch
from tui.output.output import PlainOutput
from tui.processes.children import Output
from tui.processes.supervisor import Backoff, main, supervise
from tui.processes.systemd import FINAL

CRASHES = """
import os, pathlib, signal, sys
runs = pathlib.Path(sys.argv[1])
number = len(runs.read_text()) if runs.exists() else 0
runs.write_text("x" * (number + 1))
code = sys.argv[2:][min(number, len(sys.argv) - 3)]
os.kill(os.getpid(), signal.SIGKILL) if code == "kill" else sys.exit(int(code))
"""


def crashing(runs: Path, *codes: str) -> list[str]:
    """The command line of a process that ends so when it is started for the first time, the second time, …"""
    return [sys.executable, "-c", CRASHES, str(runs), *codes]


def quickly() -> Backoff:
    return Backoff(first_s=0.001, longest_s=0.002)


# ---- when ----


def test_delays_double_up_to_the_longest() -> None:
    backoff = Backoff(first_s=10.0, longest_s=600.0)
    delays = [backoff.delay_s(1, 5.0, 1000.0 * number) for number in range(8)]
    assert delays == [10, 20, 40, 80, 160, 320, 600, 600]


def test_who_ran_well_before_begins_with_the_first_delay() -> None:
    backoff = Backoff(first_s=10.0, longest_s=600.0)
    assert [backoff.delay_s(1, ran_s, 0.0) for ran_s in (1.0, 1.0, 3600.0, 1.0)] == [10, 20, 10, 20]


def test_no_more_than_so_many_times_an_hour() -> None:
    backoff = Backoff(most=3)
    assert [backoff.delay_s(1, 9999.0, 60.0 * number) is None for number in range(5)] == [False] * 3 + [True] * 2
    assert backoff.delay_s(1, 9999.0, 3700.0) is not None, "an hour later"


@pytest.mark.parametrize("code", [0, 130, *FINAL])
def test_what_ended_for_good_is_not_started_again(code: int) -> None:
    assert Backoff().delay_s(code, 1.0, 0.0) is None


@pytest.mark.parametrize("code", [1, 3, 8, -signal.SIGKILL, -signal.SIGSEGV])
def test_a_crash_no_answer_and_a_full_disk_are(code: int) -> None:
    assert Backoff().delay_s(code, 1.0, 0.0) is not None


# ---- what ----


@pytest.mark.outside
def test_it_goes_on_until_the_peer_ends_by_itself(tmp_path: Path) -> None:
    runs, stream = tmp_path / "runs", io.StringIO()
    argv = crashing(runs, "1", "kill", "3", "0")
    assert supervise("peer", argv, tmp_path / "log", PlainOutput(stream), backoff=quickly()) == 0
    assert runs.read_text() == "xxxx"
    assert "peer: killed by SIGKILL; it is started again in 0 s" in stream.getvalue()


@pytest.mark.outside
@pytest.mark.parametrize(("code", "kind"), [("2", HomefiresError), ("5", HomefiresError)])
def test_a_persons_mistake_ends_it(tmp_path: Path, code: str, kind: type[HomefiresError]) -> None:
    with pytest.raises(kind, match="ended unexpectedly with exit code"):
        supervise("peer", crashing(tmp_path / "runs", code), tmp_path / "log", Output(), backoff=quickly())
    assert (tmp_path / "runs").read_text() == "x"
    assert {BadInput.exit_code, RunMismatch.exit_code} <= set(FINAL)


@pytest.mark.outside
def test_who_crashes_again_and_again_is_given_up(tmp_path: Path) -> None:
    backoff = Backoff(first_s=0.001, longest_s=0.001, most=2)
    with pytest.raises(HomefiresError, match="exit code 1"):
        supervise("peer", crashing(tmp_path / "runs", "1"), tmp_path / "log", Output(), backoff=backoff)
    assert (tmp_path / "runs").read_text() == "xxx"


@pytest.mark.outside
def test_a_signal_while_it_waits_ends_it_at_once(tmp_path: Path) -> None:
    """The delay would last for an hour."""
    screen = io.StringIO()
    stop = threading.Thread(target=_interrupt_after, args=(screen, "it is started again in 3600 s"))
    stop.start()
    argv = crashing(tmp_path / "runs", "1")
    backoff = Backoff(first_s=3600.0, longest_s=3600.0)
    assert supervise("peer", argv, tmp_path / "log", PlainOutput(screen), backoff=backoff) == 130
    stop.join(10)
    assert (tmp_path / "runs").read_text() == "x"


def _interrupt_after(screen: io.StringIO, said: str) -> None:
    while said not in screen.getvalue():
        threading.Event().wait(0.01)
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.outside
def test_the_process_that_keeps_a_peer_says_why_it_ends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = str(tmp_path / "log")
    assert main([log, "--", *crashing(tmp_path / "runs", "0")]) == 0
    assert main([log, "--", *crashing(tmp_path / "others", "6")]) == 1
    assert capsys.readouterr().err == f"homefires: peer: ended unexpectedly with exit code 6; its log is {log}\n"
