"""Nothing collapses where the machine has other work."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from peer.node.host.threads import Threads, threads_for
from peer.testing.child_process import HANG_S


@pytest.mark.parametrize(
    ("device", "most", "expected"),
    [
        ("cpu", 1, Threads(torch=1, layers=1)),
        ("cpu", 16, Threads(torch=16, layers=4)),
        ("cuda", 16, Threads(torch=2, layers=1)),
        ("mps", 1, Threads(torch=1, layers=1)),
    ],
)
def test_a_device_leaves_the_cores_to_others(device: str, most: int, expected: Threads) -> None:
    assert threads_for(device, most) == expected


@pytest.mark.outside
def test_threads_of_a_peer_sleep_while_they_wait() -> None:
    """As torch's own runtime says when it is loaded."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "KMP_"))}
    found = subprocess.run(
        [sys.executable, "-m", "peer", "describe", "micro"], env=environment | {"OMP_DISPLAY_ENV": "VERBOSE"},
        capture_output=True, text=True, timeout=HANG_S, check=True,
    )  # fmt: skip
    assert "OMP_WAIT_POLICY = 'PASSIVE'" in found.stderr
