"""What one command says of a run, every command says: one run is walked through all of them, and figures are compared.

Of memory, disk and traffic each command has its own sentence; what they say is read as people read it.
"""

from __future__ import annotations

import re
import tomllib
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest

from dht.identity import Identity
from peer.planning.plan.run_needs import needs_of
from peer.schema.byte_text import format_bytes
from peer.schema.settings import PeerSettings
from peer.schema.spec import RunSpec, dump, load, parse
from peer.tools.doctor.host import check_disk, check_memory
from peer.tools.watch.run_facts import facts
from peer.training.model.footprint import describe
from tui.cli import main
from tui.commands.consent import describe as consent_screen
from tui.commands.new import _cost_of, about

BYTES = r"([\d.,]+ (?:B|kB|MB|GB|TB))"
Said = dict[str, dict[str, str]]
"""By figure: what each command says of it."""


def note(said: Said, command: str, text: str, **patterns: str) -> None:
    for figure, pattern in patterns.items():
        found = re.search(pattern, " ".join(text.split()))
        assert found is not None, f"{command} says nothing of {figure}: {text}"
        said[figure][command] = found[1]


def planned(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[RunSpec, str]:
    """The run that `plan` writes for three homes, and its page."""
    path, written = folder / "asked.toml", folder / "run.toml"
    spec = load("tiny")
    path.write_text(dump(replace(spec, run=replace(spec.run, founders=3))))
    assert main(["plan", str(path), "--peers", "3", "--upload", "20", "--write", str(written)]) == 0
    return parse(written.read_text()), capsys.readouterr().out


def test_all_commands_say_the_same_of_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said: Said = defaultdict(dict)
    spec, page = planned(tmp_path, capsys)
    note(said, "plan", page, device=rf"{BYTES} to train", main=rf"and {BYTES} of main memory", sent=rf"sends {BYTES}")
    note(said, "plan", page, peers=r"each of (\d+) peers sends")
    on_device = {"device": rf"{BYTES} on the device that trains", "main": rf"trains, {BYTES} beside"}
    among = {"peers": r"(\d+) peers", "sent": rf"sends {BYTES}"}
    note(said, "new", "\n".join(about(spec, _cost_of(spec))), **on_device, **among)
    note(said, "bootstrap", describe(spec), **on_device, **among)
    told = facts("run", Identity.from_seed(b"o" * 32).peer_id, spec, None)
    screen = "\n".join(consent_screen(told, tmp_path))
    note(said, "join", screen, **on_device, peers=r"for (\d+) peers", sent=rf"{BYTES} out and", disk=rf"to {BYTES} in ")
    needs = needs_of(spec, PeerSettings().chain_bytes)
    memory = check_memory(needs, 1 << 40, on_cpu=True)
    note(said, "doctor", memory.found, **on_device)
    note(said, "doctor", check_disk(needs, tmp_path, 1 << 40).found, disk=rf"takes up to {BYTES}")
    assert {figure: set(places.values()) for figure, places in said.items()} == {
        "device": {format_bytes(needs.device)}, "main": {format_bytes(needs.main)}, "peers": {"3"},
        "sent": {format_bytes(needs.round_bytes)}, "disk": {format_bytes(needs.disk)},
    }  # fmt: skip
    assert min(map(len, said.values())) >= 2, "nothing is compared with itself alone"


def test_a_run_from_new_is_not_called_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.toml"
    answers = {"--model": "tiny", "--data": "stdlib", "--who": "everybody", "--time": "100"}
    assert main(["new", *(word for pair in answers.items() for word in pair), str(path)]) == 0
    assert tomllib.loads(path.read_text())["run"]["rounds"] == 100
    assert main(["plan", str(path), "--peers", "2", "--upload", "20"]) == 0
    page = capsys.readouterr().out
    assert "the spec as it stands makes less of the time" in page
    assert "= lost" not in page
    assert main(["plan", str(path), "--peers", "2", "--upload", "20", "--step-s", "2.5"]) == 0
    page = " ".join(capsys.readouterr().out.split())
    assert "the spec as it stands: H 45 instead of 48, none instead of layerwise: as good within 0.05%" in page
