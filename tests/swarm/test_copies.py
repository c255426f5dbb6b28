"""A folder that was copied to a second machine, and is at work on both."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dht.errors import KeyInUse
from peer.testing.process_swarm import LOOPBACK
from peer.testing.pytest_plugin import StartSwarm
from tests.swarm.conftest import LIGHT, RESTING

pytestmark = pytest.mark.swarm


def test_of_two_copies_the_later_one_ends_and_the_run_goes_on(swarm: StartSwarm, tmp_path: Path) -> None:
    """It says so in one line. The peer whose folder was copied is in the next rounds as before."""
    run = swarm(peers=3, real=True, sets=LIGHT, settings=RESTING)
    run.until_round(2)
    copy = tmp_path / "copy"
    shutil.copytree(run.directory_of(0), copy, ignore=shutil.ignore_patterns("run", "test", "*.new", "peer.log"))
    words = ["-m", "peer", "join", str(copy / "invite"), "--dir", str(copy), "--listen", LOOPBACK]
    later = subprocess.run(
        [sys.executable, *words, "--set", "settings.min_step_s=0.2"], capture_output=True, text=True, timeout=90,
        check=False,
    )  # fmt: skip
    assert later.returncode == KeyInUse.exit_code, later.stderr
    assert "homefires: a copy of this folder takes part elsewhere with the same key" in later.stderr
    assert "Traceback" not in later.stderr
    run.until_round(run.committed(0)[-1].round + 2)
    assert 0 in run.committed(1)[-1].group
    run.assert_agreement()
