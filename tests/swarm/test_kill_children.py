"""`kill -9` of whoever has started a dry run, an introduction or an examination: nothing of it goes on."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from dht.identity import Identity
from dht.invite import issue
from peer.schema.spec import dump, load
from peer.testing.child_process import HANG_S, ORPHAN_S
from tests.waits import look_until

pytestmark = pytest.mark.swarm

INTRODUCE = "import sys; from tui.commands.consent import introduce; introduce(sys.argv[1])"
EXAMINE = "import sys; from tui.cli import main; main(['doctor', sys.argv[1]])"
TRY_OUT = (
    "import sys; from peer.parallel.autotune.cache import run_python;"
    " run_python(['-m', 'peer.parallel.autotune', sys.argv[2]])"
)

TORCH = "libtorch"


@pytest.fixture
def invite() -> Iterator[str]:
    """Of a node that takes connections and says nothing."""
    identity = Identity.from_seed(b"i" * 32)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        addrs = (f"/ip4/127.0.0.1/tcp/{silent.getsockname()[1]}/p2p/{identity.peer_id}",)
        yield issue(identity, run="mine", spec_hash=b"\xab" * 32, addrs=addrs)


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "spec.toml"
    path.write_text(dump(load("gpt2-small")))  # a step of it takes a processor long
    return path


@pytest.mark.parametrize(
    ("program", "works"),
    [
        (INTRODUCE, "peer introduce"), (INTRODUCE, "p2pd"), (EXAMINE, "peer doctor"), (EXAMINE, "p2pd"),
        (EXAMINE, "peer.tools.doctor.kernel_probe"), (TRY_OUT, "peer.parallel.autotune"), (TRY_OUT, TORCH),
    ],
    ids=lambda value: {INTRODUCE: "introduce", EXAMINE: "doctor", TRY_OUT: "dry"}.get(value, value),
)  # fmt: skip
def test_nothing_outlives_who_started_it(
    program: str, works: str, invite: str, spec: Path, record_property: Callable[[str, object], None]
) -> None:
    """Killed as soon as a child is there, before that could ask the system for anything, and when it is at work."""
    argv = [sys.executable, "-c", program, invite, str(spec)]
    with subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env=os.environ | {"TMPDIR": str(spec.parent)},
    ) as parent:  # fmt: skip
        below = wait_for(parent, works)
        parent.kill()
        assert parent.wait(HANG_S) == -signal.SIGKILL
    killed_at = time.monotonic()
    _, alive = psutil.wait_procs(below, timeout=ORPHAN_S)
    record_property("orphans_s", time.monotonic() - killed_at)
    left = [one.cmdline() for one in alive if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
    for one in alive:
        one.kill()
    assert not left


def wait_for(parent: subprocess.Popen[bytes], works: str) -> list[psutil.Process]:
    """All that the process has started, once one of them has this on its command line or has loaded it."""
    below: list[psutil.Process] = []

    def is_there() -> bool:
        assert parent.poll() is None, "it ended before its child was there"
        below[:] = psutil.Process(parent.pid).children(recursive=True)
        return any(has(one, works) for one in below)

    look_until(is_there, f"no {works}")
    return below


def has(process: psutil.Process, works: str) -> bool:
    try:
        loaded = [row.path for row in process.memory_maps()] if works == TORCH else []
        return any(works in text for text in (" ".join(process.cmdline()), *loaded))
    except psutil.Error:  # it has ended meanwhile
        return False
