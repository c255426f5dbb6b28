"""Sleep, battery and heat, from made-up trees of /sys; what a run needs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dht.errors import BadInput
from peer.node.host.power import Power, cpu_temperature_c, read_power
from peer.node.store import start_blob
from peer.planning.plan.disk_use import disk_of
from peer.planning.plan.run_needs import PROCESS_BYTES, needs_of
from peer.schema.settings import PeerSettings
from peer.schema.spec import from_mapping, load
from peer.tools.doctor.check import Check, Status, failed, passed, warned
from peer.tools.doctor.data_check import check_data
from peer.tools.doctor.examine import Request, _data
from peer.tools.doctor.host import check_heat, check_power, check_start
from peer.training.data.inspection import inspect
from peer.training.model.footprint import size_of


def tree(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / "sys" / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return root


def test_a_laptop_on_battery_is_told_to_be_plugged_in(tmp_path: Path) -> None:
    battery = {"class__power_supply__BAT0__type": "Battery", "class__power_supply__BAT0__status": "Discharging"}
    power = read_power(
        tree(tmp_path, **battery, class__power_supply__AC__type="Mains", class__power_supply__AC__online="0")
    )
    assert power.on_battery
    assert check_power(power).status is Status.WARN
    assert "plug it in" in check_power(power).fix
    plugged = read_power(tree(tmp_path, class__power_supply__AC__online="1"))
    assert plugged.has_battery
    assert not plugged.on_battery


def test_the_battery_of_a_mouse_is_not_the_machines(tmp_path: Path) -> None:
    mouse = {"class__power_supply__hid__type": "Battery", "class__power_supply__hid__scope": "Device"}
    power = read_power(tree(tmp_path, **mouse, class__power_supply__hid__status="Discharging"))
    assert not power.has_battery
    assert not power.on_battery


def test_a_machine_that_cannot_sleep_does_not(tmp_path: Path) -> None:
    """The kernel of a server or a container names no state."""
    assert check_power(read_power(tmp_path)).status is Status.PASS


@pytest.mark.parametrize(("after_s", "status"), [(None, Status.UNKNOWN), (0.0, Status.PASS), (1200.0, Status.WARN)])
def test_what_the_desktop_says_of_sleep(after_s: float | None, status: Status) -> None:
    check = check_power(Power(sleeps_after_s=after_s))
    assert check.status is status
    assert ("gsettings set" in check.fix) == (status is Status.WARN)


def test_heat_is_a_baseline_and_a_warning(tmp_path: Path) -> None:
    zones = tree(tmp_path, class__thermal__thermal_zone0__temp="41000", class__thermal__thermal_zone1__temp="-273000")
    assert cpu_temperature_c(zones) == 41.0
    assert cpu_temperature_c(tmp_path / "none") is None
    check = check_heat({"temperature_c": 40.0, "power_w": 21.4}, 41.0)
    assert (check.status, check.figures) == (Status.PASS, {"temperature_c": 40.0, "power_w": 21.4, "cpu_c": 41.0})
    assert check_heat({"temperature_c": 91.0, "power_w": None}, None).status is Status.WARN
    assert check_heat({}, None).status is Status.UNKNOWN


@pytest.mark.parametrize("name", ["micro", "tiny", "gpt2-small"])
def test_what_a_run_needs_is_what_its_model_takes(name: str) -> None:
    spec, counted = load(name), size_of(load(name))
    needs = needs_of(spec, chain_bytes=10 << 20)
    assert needs.parameters == counted.parameters
    assert needs.device == pytest.approx(counted.training_bytes + counted.activation_bytes, rel=0.02)
    assert needs.main == pytest.approx(PROCESS_BYTES + counted.anchor_bytes + counted.encoded_bytes, rel=0.02)
    assert needs.least_device < needs.device
    disk = disk_of(counted.parameters, counted.training_bytes, spec, 10 << 20)
    assert (needs.least_disk, needs.disk) == (disk.least, disk.peak)


def test_a_check_without_a_fix_is_a_mistake_of_ours() -> None:
    with pytest.raises(AssertionError):
        warned("x", "found", "")
    with pytest.raises(AssertionError):
        Check(name="x", status=Status.FAIL, found="found", fix="fix")
    with pytest.raises(AssertionError):
        passed("x", "two\nlines")
    assert failed("x", "found", "fix", BadInput).exit_code == 2


def test_a_start_model_that_a_disk_has_damaged_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that joins would end with it; one that is not there yet is loaded."""
    monkeypatch.setenv(start_blob.CACHE, str(tmp_path))
    digest = start_blob.write([np.ones(3, np.float32)], {}).name
    assert check_start(digest).status is Status.PASS
    assert check_start("00" * 32).status is Status.PASS
    path = start_blob.folder_of(digest) / start_blob.VECTORS
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    check = check_start(digest)
    assert (check.status, check.exit_code) == (Status.FAIL, BadInput.exit_code)
    assert str(path.parent) in check.fix
    path.with_name(start_blob.MANIFEST).write_bytes(b"?")
    assert check_start(digest).status is Status.FAIL


def test_files_that_a_run_reads_are_looked_at(tmp_path: Path) -> None:
    """What an owner should know is a warning; what nobody can train on is what `join` would end with."""
    spec = load("tiny")
    spec = replace(spec, data=replace(spec.data, source="files", path="texts"), run=replace(spec.run, rounds=0))
    (tmp_path / "a.txt").write_text("".join(f"word {number} of it\n" for number in range(10_000)))
    (found,) = inspect(spec, str(tmp_path))
    check = check_data(found)
    assert (check.status, check.figures["tokens"]) == (Status.PASS, found.tokens)
    assert f"1 documents, {found.tokens:,} tokens" in check.found
    (tmp_path / "b.epub").write_text("a book")
    (found,) = inspect(spec, str(tmp_path))
    assert check_data(found).status is Status.WARN
    assert "left out: b.epub, 0.0 kB: .epub is not read; convert it: pandoc b.epub" in check_data(found).fix
    (tmp_path / "c.jsonl").write_text("{\n7\n")
    (found,) = inspect(spec, str(tmp_path))
    failed_one = check_data(found)
    assert (failed_one.status, failed_one.exit_code) == (Status.FAIL, BadInput.exit_code)
    assert "c.jsonl:1 is no JSON" in failed_one.found
    assert "c.jsonl:2 has no text" in failed_one.found


def test_a_folder_that_goes_away_meanwhile_is_a_fault(tmp_path: Path) -> None:
    data = {"source": "files", "path": "texts"}
    spec = from_mapping({"run": {"name": "t"}, "model": {"architecture": "llama", "context": 64}, "data": data})
    told: list[Check] = []
    _data(spec, Request(directory=tmp_path, settings=PeerSettings(data_path=str(tmp_path / "none"))), told.append)
    (check,) = told
    assert (check.name, check.status) == ("data", Status.FAIL)
    assert "none', which is not on this machine" in check.found
