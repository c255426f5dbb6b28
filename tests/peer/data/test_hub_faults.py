"""A source that fails, breaks off, stalls or lies: no token is lost, none comes twice."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.outside
@pytest.mark.slow
@pytest.mark.parametrize("fault", ["", "fails_every", "breaks_every", "damages_every", "stalls_every"])
def test_every_token_comes_once(fault: str, tmp_path: Path) -> None:
    """Each fifth read goes wrong; a peer that begins anew reads on from where it was."""
    command = [sys.executable, "-m", "tests.peer.data.hub_reader", fault, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
