"""A peer's folder says how fast its machine is."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from dht.errors import BadInput
from peer.planning.plan.calibration import read_run, step_for
from peer.planning.plan.model_shape import shape_of
from peer.schema.events import EventLine, NetworkMeasured, PeerStarted, format_line
from peer.schema.spec import RunSpec, dump
from tests.peer.planning.plan.plans import spec
from tests.peer.planning.plan.test_calibration import at, rounds


def write(folder: Path, run: RunSpec, lines: list[EventLine]) -> Path:
    (folder / "spec.toml").write_text(dump(run))
    (folder / "events.jsonl").write_text("".join(format_line(line) + "\n" for line in lines))
    return folder


def told(run: RunSpec) -> list[EventLine]:
    settings = {"upload_mbps": 12.0, "download_mbps": 0.0}
    row = {"peer": "q", "address": "a", "relayed": False, "bytes_sent": 1, "bytes_received": 1, "rtt_s": 0.08}
    started = at(0.0, PeerStarted(name="p", version="1", settings=settings))
    network = at(1.0, NetworkMeasured(addresses=[], reach="", bytes_sent=1, bytes_received=1, peers=[row]))
    return [started, network, *rounds(run)]


def test_steps_phases_lines_and_delays_of_a_run(tmp_path: Path) -> None:
    run = spec()
    sample = read_run(write(tmp_path, run, told(run)))
    assert sample.timed.step_s == pytest.approx(0.5)
    assert sample.timed.phases["reduce"] == pytest.approx(0.5)
    assert len(sample.swarm) == 1
    assert sample.swarm.machines[0].upload_mbps == 12
    assert sample.spec == run


def test_a_larger_model_takes_longer_in_proportion_to_its_operations(tmp_path: Path) -> None:
    run = spec()
    sample = read_run(write(tmp_path, run, told(run)))
    assert step_for(run, shape_of(run), sample) == pytest.approx(0.5)
    twice = dataclasses.replace(run, inner=dataclasses.replace(run.inner, accumulation=2))
    assert step_for(twice, shape_of(twice), sample) == pytest.approx(1.0)


def test_the_ramp_is_no_measure(tmp_path: Path) -> None:
    run = spec(round={"ramp_rounds": 3})
    with pytest.raises(BadInput, match="fewer than 3 rounds of 10 inner steps"):
        read_run(write(tmp_path, run, told(run)))


def test_a_folder_without_events(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="events"):
        read_run(tmp_path)
