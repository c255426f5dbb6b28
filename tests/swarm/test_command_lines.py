"""What everybody on a machine can read of a peer at work: the command lines of its processes."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from dht.invite import PREFIX, parse
from tests.swarm.conftest import Homefires
from tests.swarm.test_join import ENDLESS, LOOPBACK, SLOWLY, Run, committed
from tests.swarm.test_kill_each import tree_of

pytestmark = [pytest.mark.swarm, pytest.mark.nightly]


def command_lines(process: psutil.Process) -> list[str]:
    """Of it and all that it started."""
    return [" ".join(one.cmdline()) for one in tree_of(process.pid)]


@pytest.mark.cold
def test_no_invite_with_a_token_stands_in_ps(homefires: Callable[..., Homefires], tmp_path: Path) -> None:
    """A volunteer who was given it in a file joins, is kept running, and looks at his machine with the doctor."""
    run = Run(homefires, tmp_path, 1, *ENDLESS, "--admission")
    assert parse(run.invite, 0.0).token is not None
    file = tmp_path / "from-the-organiser"
    file.write_text(run.invite + "\n")
    words = [
        "join",
        str(file),
        "--dir",
        str(tmp_path / "p"),
        *LOOPBACK,
        "--ui",
        "json",
        "--yes",
        "--keep-running",
        *SLOWLY,
    ]
    peer = homefires(*words, directory=tmp_path / "p-out")
    peer.wait_for(committed(1))
    said = command_lines(psutil.Process(peer.process.pid))
    for part in ("-m tui join", "-m peer join", "-m peer.network.link.link", "p2pd"):
        assert any(part in line for line in said), f"no {part} among {said}"

    doctor = homefires("doctor", str(file), "--dir", str(tmp_path / "d"), directory=tmp_path / "d-out")
    doctor.wait_for_text("identity")
    looked = command_lines(psutil.Process(doctor.process.pid))
    assert any("-m peer doctor" in line for line in looked), looked

    assert not [line for line in (*said, *looked) if PREFIX in line]
    for command in (doctor, peer, run.bootstrap):
        command.signal(signal.SIGTERM)
        command.finish()
