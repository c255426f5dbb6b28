"""The watching process: light to start, and nobody in its own lines. What it sees: tests/swarm/test_three_peers.py."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dht.errors import BadInput, BadInvite
from dht.identity import Identity
from dht.invite import issue
from peer.node.telemetry.event_log import EventPrinter
from peer.schema.events import AlertRaised, PeerStopped, parse_line
from peer.schema.spec import load
from peer.testing.child_process import HANG_S
from peer.tools.watch import watch_session


@pytest.mark.outside
def test_a_watcher_has_no_model_and_no_torch_of_ours() -> None:
    """hivemind brings torch along when the node starts; nothing of ours does."""
    code = "import json, sys; import peer.tools.watch.watch_session; print(json.dumps(sorted(sys.modules)))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=HANG_S)
    loaded = json.loads(ended.stdout)
    assert "peer.tools.watch.watcher" in loaded
    heavy = {"torch", "hivemind", "transformers", "datasets", "peer.training.model", "peer.training.train"}
    assert not heavy & {".".join(name.split(".")[:depth]) for name in loaded for depth in (1, 2)}


def test_its_lines_are_of_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    """It is no peer of the swarm."""
    emit = EventPrinter("run")
    emit(AlertRaised(level="info", code="X", text="first"))
    emit(AlertRaised(level="info", code="X", text="second"))
    lines = [parse_line(text) for text in capsys.readouterr().out.splitlines()]
    assert [(line.seq, line.run, line.peer) for line in lines if line] == [(0, "run", ""), (1, "run", "")]


def test_layers_that_no_model_has_are_refused() -> None:
    """They come from peers: a million million parts must not be cut."""
    spec = load("micro")
    for sizes in ((), (1 << 60,)):
        with pytest.raises(ValueError, match="part"):
            watch_session._rules(spec, b"r" * 32, "o", sizes)
    assert len(watch_session._rules(spec, b"r" * 32, "o", (spec.codec.part_elements + 1, 5)).parts) == 3


@pytest.mark.outside
def test_an_invite_that_is_none() -> None:
    """One line on stderr, one event, the code of a wrong invite."""
    argv = [sys.executable, "-m", "peer", "watch", "nonsense"]
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=HANG_S)
    assert ended.returncode == BadInvite.exit_code
    said = "homefires: 'nonsense' is no invite, which starts with hf1:, and no file that holds one"
    assert ended.stderr.splitlines() == [said]
    (line,) = map(parse_line, ended.stdout.splitlines())
    assert line is not None
    assert isinstance(line.event, PeerStopped)
    assert line.event.exit_code == BadInvite.exit_code


def test_a_key_of_another_organiser_is_a_mistake(tmp_path: Path) -> None:
    """Also where there is none: a watcher makes no organiser."""
    organiser, other = (Identity.from_seed(letter * 32) for letter in (b"o", b"x"))
    addrs = (f"/ip4/127.0.0.1/tcp/4001/p2p/{organiser.peer_id}",)
    text = issue(organiser, run="mine", spec_hash=b"r" * 32, addrs=addrs)
    for folder in (tmp_path / "none", tmp_path / "other"):
        folder.mkdir()
        if folder.name == "other":
            other.save(folder / "identity.key")
        with pytest.raises(BadInput, match="does not hold the key of"):
            watch_session.main(text, organiser=folder)
    assert list((tmp_path / "none").iterdir()) == []
