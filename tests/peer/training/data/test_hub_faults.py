"""A source that fails, breaks off, stalls or lies: no token is lost, none comes twice."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

FAULTS = ("", "fails_every", "breaks_every", "damages_every", "stalls_every")


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """By fault what was wrong; one process, which has read without any before."""
    command = [
        sys.executable,
        "-m",
        "tests.peer.training.data.hub_reader",
        str(tmp_path_factory.mktemp("hub")),
        *FAULTS,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


@pytest.mark.nightly
@pytest.mark.outside
@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_every_token_comes_once(fault: str, said: dict[str, str]) -> None:
    """Each fifth read goes wrong; a peer that begins anew reads on from where it was."""
    assert said[fault] == ""
