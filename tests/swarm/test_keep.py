"""An organiser who trains nothing has checkpoints of the run, and makes a model of one of them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dht.errors import NotAdmitted
from peer.schema.events import CheckpointWritten, EventLine, InviteIssued
from peer.testing.child_process import HANG_S, assert_no_orphans
from tests.swarm.conftest import Homefires, set_words
from tests.swarm.test_join import ENDLESS, LOOPBACK, SLOWLY, committed

pytestmark = pytest.mark.swarm

SETS = (*ENDLESS, *set_words(("round.keep_rounds=2", "round.snapshot_rounds=2", "run.founders=1")))
AT_REST = set_words(("min_step_s=0.5",))
"""Two rounds last somewhat less than the time after which whoever keeps checkpoints looks for the next one."""


def homefires_says(*words: str) -> str:
    command = [sys.executable, "-m", "tui", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=True).stdout


def test_an_organiser_keeps_checkpoints_and_exports_one(homefires: Callable[..., Homefires], tmp_path: Path) -> None:
    """The watcher beside the node checks certificates; it ends with the node. The run asks for an admission: the
    organiser's key lets it in, and whoever names its folder to `homefires watch`, without a place among the members.
    """
    kept = tmp_path / "kept"
    words = ["--dir", str(tmp_path / "b"), *LOOPBACK, "--ui", "json", "--keep", str(kept), "--keep-last", "2"]
    words.append("--admission")
    node = homefires("bootstrap", "micro", *words, *SETS, directory=tmp_path / "b-out")
    issued = node.wait_for(lambda line: isinstance(line.event, InviteIssued))
    assert isinstance(issued.event, InviteIssued)
    words = ["--dir", str(tmp_path / "p"), "--name", "p", *LOOPBACK, "--ui", "json", "--yes", *SLOWLY, *AT_REST]
    peer = homefires("join", issued.event.invite, *words, directory=tmp_path / "p-out")

    watcher = homefires("watch", str(tmp_path / "b"), "--ui", "json", directory=tmp_path / "w")
    watcher.wait_for(committed(1))
    stranger = homefires("watch", issued.event.invite, "--ui", "json", directory=tmp_path / "s")
    assert stranger.finish() == NotAdmitted.exit_code

    def is_kept(line: EventLine) -> bool:
        return isinstance(line.event, CheckpointWritten) and line.event.path.startswith(str(kept))

    for _ in range(3):
        written = node.wait_for(is_kept)
    assert isinstance(written.event, CheckpointWritten)
    assert len(list(kept.glob("round-*"))) == 2
    folder, round = written.event.path, written.event.round
    (member,) = homefires_says("members", "--dir", str(tmp_path / "b")).splitlines()
    assert "  p  until " in member
    for command in (watcher, node, peer):
        command.signal(signal.SIGTERM)
        command.finish()
    assert_no_orphans(tmp_path)

    said = homefires_says("export", folder, "--to", str(tmp_path / "model"))
    assert said.startswith(f"round {round} of micro (")
    assert (tmp_path / "model" / "model.safetensors").exists()
    credit = json.loads(homefires_says("credit", folder, "--json"))
    assert (credit["last_round"], credit["peers"][0]["accepted"]) == (round, round - credit["first_round"] + 1)
