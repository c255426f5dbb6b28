"""The CUDA bars at work on a processor, with tiny models, which shows that they work; and what is said where they
cannot run."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.benchmarks import cuda
from tests.benchmarks.__main__ import main
from tests.benchmarks.cuda_bars import JOBS, MOST_S, CudaJob

EXACT = {"demo", "bits", "mixed bits", "two bits"}
"""Figures that a processor and a small model have, too."""
BRIEF = {"1b", "401m"}
"""Jobs that show by day that jobs work; the others take seconds each."""
NIGHTLY = pytest.mark.nightly


def bars_of(path: Path) -> dict[str, Any]:
    return {bar["name"]: bar for bar in json.loads(path.read_text())["bars"]}


@pytest.mark.outside
@pytest.mark.slow
@pytest.mark.parametrize(
    "job", [pytest.param(job, id=job.name, marks=() if job.name in BRIEF else NIGHTLY) for job in JOBS]
)
def test_every_job_measures_its_bars(job: CudaJob, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "cuda.json"
    main(["cuda", "--device", "cpu", "--smoke", "--only", job.name, "--json", str(path)])
    found = bars_of(path)
    assert list(found) == [bar.name for bar in job.bars]
    assert all(bar["verdict"] in (cuda.MET, cuda.MISSED) for bar in found.values()), capsys.readouterr().out
    assert all(found[name]["verdict"] == cuda.MET for name in EXACT & set(found))


@pytest.mark.outside
def test_without_a_device_no_bar_is_met(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["cuda", "--json", str(tmp_path / "cuda.json")]) == 1
    said = capsys.readouterr().out.splitlines()
    assert all(line.endswith("NOT RUN: no CUDA device") for line in said[:-1])
    assert len(said) == 1 + sum(len(job.bars) for job in JOBS)
    assert said[0].startswith("demo "), "first of all, as a person does it"
    assert {bar["verdict"] for bar in bars_of(tmp_path / "cuda.json").values()} == {cuda.NOT_RUN}


@pytest.mark.nightly
@pytest.mark.cold
@pytest.mark.outside
def test_a_job_that_fails_or_hangs_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No such device; then no time."""
    path = tmp_path / "cuda.json"
    assert main(["cuda", "--device", "nowhere", "--smoke", "--only", "bits", "--json", str(path)]) == 1
    assert "exit code 1: dht.errors.BadInput: settings.devices is 'nowhere'" in bars_of(path)["bits"]["why"]
    job = dataclasses.replace(next(job for job in JOBS if job.name == "bits"), budget_s=0.01)
    monkeypatch.setattr(cuda, "jobs_of", lambda names: (job,))
    assert main(["cuda", "--device", "cpu", "--smoke", "--json", str(path)]) == 1
    assert bars_of(path)["bits"]["why"] == "not within 0 s"


def test_a_bar_is_met_up_to_its_limit() -> None:
    job = next(job for job in JOBS if job.name == "134m")
    verdicts = [cuda._judged(job, job.bars[0], figure, "", 1.0).verdict for figure in (2.0, 2.1, None)]
    assert verdicts == [cuda.MET, cuda.MISSED, cuda.NOT_RUN]
    assert cuda._judged(job, job.bars[0], 1.0, "not within 30 s", 30.0).verdict == cuda.MET


def test_all_bars_fit_into_nine_minutes(capsys: pytest.CaptureFixture[str]) -> None:
    assert sum(job.budget_s for job in JOBS) <= MOST_S
    names = [bar.name for job in JOBS for bar in job.bars]
    assert len(set(names)) == len(names)
    assert main(["cuda", "--list"]) == 0
    assert main(["cuda", "--only", "no such bar"]) == 1
    assert "there is no bar and no job 'no such bar'" in capsys.readouterr().out
