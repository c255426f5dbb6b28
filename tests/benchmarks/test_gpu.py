"""The GPU benchmark at work on a processor, and what it says of figures that are given."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.benchmarks import gpu_report
from tests.benchmarks.__main__ import main
from tests.benchmarks.gpu import Plan
from tests.benchmarks.gpu_report import Cost, Speed

COST = Cost(
    model="m", parameters=10, step_s=0.1, round_steps=100, to_host_s=0.1, to_device_s=0.1, encode_s=0.2, submit_s=0.4,
    apply_s=0.6,
)  # fmt: skip


def speed(loop: str, tokens_per_s: float) -> Speed:
    return Speed(
        model="m", parameters=10, loop=loop, compiled=False, tokens_per_s=tokens_per_s, flops=1e9 * tokens_per_s,
        spread=0.01,
    )  # fmt: skip


def test_without_a_cuda_device_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["gpu"]) == 0
    assert capsys.readouterr().out == "gpu was not run: there is no CUDA device here\n"


@pytest.mark.outside
def test_both_loops_and_the_parts_of_a_round_are_measured(tmp_path: Path) -> None:
    """On a processor, which shows that it works; the compiler is left to where there is a device."""
    assert main(["gpu", "--quick", "--eager", "--device", "cpu", "--json", str(tmp_path / "gpu.json")]) == 0
    told = json.loads((tmp_path / "gpu.json").read_text())
    assert [(row["loop"], row["compiled"]) for row in told["speeds"]] == [("bare", False), ("ours", False)]
    assert all(row["tokens_per_s"] > 0 and row["flops"] > 0 for row in told["speeds"])
    (cost,) = told["costs"]
    assert all(cost[name] > 0 for name in ("to_host_s", "to_device_s", "encode_s", "submit_s", "apply_s", "step_s"))
    assert (tmp_path / "gpu.png").stat().st_size > 1000


@pytest.mark.cuda
def test_a_device_is_measured(tmp_path: Path) -> None:
    assert main(["gpu", "--quick", "--json", str(tmp_path / "gpu.json")]) == 0
    told = json.loads((tmp_path / "gpu.json").read_text())
    assert len(told["speeds"]) == 4


def test_the_models_are_as_large_as_they_are_called() -> None:
    from peer.plan.model_shape import shape_of

    plan = Plan.read(quick=False)
    for model in plan.models:
        number, unit = model["name"].split()
        size = float(number) * {"M": 1e6, "B": 1e9}[unit]
        assert shape_of(plan.spec_of(model)).parameters == pytest.approx(size, rel=0.05)


def test_the_tables_compare_with_the_bare_loop_of_the_same_kind() -> None:
    text = gpu_report.table([speed("bare", 200.0), speed("ours", 190.0)], [COST], reached=1e12)
    assert "| m | 10 | ours | 190 | 0.19 | 19.0% | 0.950 | 1.0% |" in text
    assert "| m | 0.100 | 0.100 | 0.200 | 0.400 | 0.600 | 0.100 | 9.09% |" in text
