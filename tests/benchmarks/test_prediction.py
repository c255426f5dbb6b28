"""The prediction benchmark: its grid, its bars on figures that are given, and two small runs of real processes."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from peer.planning.plan.model_shape import shape_of
from peer.testing.swarm_contract import changed_spec
from tests.benchmarks import prediction, prediction_report
from tests.benchmarks.prediction import SPEC, Configuration, Plan, sample_of
from tests.benchmarks.prediction_report import Predicted


def test_the_grid_is_what_the_issue_asks_for() -> None:
    """24 configurations at least, in which everything varies; about half of them are held out."""
    configurations = Plan.read().configurations
    assert len(configurations) >= 24
    assert len({each.name for each in configurations}) == len(configurations)
    assert {each.peers for each in configurations} == {1, 2, 3, 4}
    for name in ("sequences", "context", "blocks", "steps", "codec", "overlap", "upload_mbps"):
        assert len({getattr(each, name) for each in configurations}) >= 3, name
    held_out = sum(each.is_held_out for each in configurations)
    assert 8 <= held_out <= len(configurations) - 12


def test_every_configuration_is_a_spec_of_a_model_that_is_small() -> None:
    for each in Plan.read().configurations:
        spec = changed_spec(str(SPEC), each.sets(str(SPEC)))
        assert shape_of(spec).parameters < 3e6
        assert (spec.round.steps, spec.codec.wire, spec.round.overlap) == (each.steps, each.codec, each.overlap)
        assert spec.model.config["num_hidden_layers"] == each.blocks


def predicted(name: str = "a", *, measured_s: float = 10.0, off: float = 0.0, tokens: float = 1.0) -> Predicted:
    """A held-out configuration that makes `tokens` per second and is predicted to take so much longer."""
    return Predicted(
        name=name, group="2 peers, 0 Mbit/s", held_out=True, measured_s=measured_s, repeats_s=[measured_s] * 3,
        predicted_s=measured_s * (1 + off), low_s=9.0, high_s=11.0, measured_tokens_per_s=tokens,
        predicted_tokens_per_s=tokens / (1 + off), measured_step_s=0.1, predicted_step_s=0.1, measured_up_bytes=1e6,
        predicted_up_bytes=1e6,
    )  # fmt: skip


def missed(rows: list[Predicted]) -> list[str]:
    fitted = dataclasses.replace(predicted("fitted"), held_out=False)
    return [bar.name.split(",")[0] for bar in prediction_report.judge([*rows, fitted]) if not bar.met]


def test_each_bar_can_be_missed() -> None:
    good = [predicted(str(at), off=0.01) for at in range(10)]
    assert missed(good) == []
    assert missed([*good, predicted("bad", off=0.16)]) == ["worst at least 85%"]
    assert missed([predicted(str(at), off=0.05) for at in range(10)]) == [
        "mean accuracy on held-out configurations at least 96%"
    ]
    wrong = dataclasses.replace(predicted("chosen", tokens=0.96), predicted_tokens_per_s=2.0)
    assert missed([*good, wrong]) == ["best-ranked configuration within 3% of the measured best"]


@pytest.mark.nightly
@pytest.mark.outside
def test_two_small_runs(spec_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Real processes, the smallest model: one configuration is fitted, the other one predicted."""
    small = {"sequences": 2, "context": 16, "blocks": 1, "codec": "int4", "overlap": "none", "upload_mbps": 0.0}
    rows = [Configuration(peers=1, steps=steps, **small) for steps in range(20, 60)]  # type: ignore[arg-type]
    chosen = [next(each for each in rows if each.is_held_out == held) for held in (False, True)]
    plan = Plan(repeats=1, warm_rounds=1, rounds=2, delay_s=0.0, configurations=tuple(chosen))
    (tmp_path / "rows").mkdir()
    for each in chosen:
        prediction.measure(tmp_path / "rows" / f"{each.name}.0.json", str(spec_path), plan, each)
    assert prediction.report(tmp_path, str(spec_path), plan, quick=True) == 0
    told = capsys.readouterr().out
    assert "| held out |" in told
    assert "mean accuracy on held-out configurations" in told
    assert (tmp_path / "coefficients.toml").exists()
    (timed,) = prediction.read_rows(tmp_path, plan)[chosen[0]]
    sample = sample_of(str(spec_path), plan, chosen[0], [timed])
    assert 0 < sample.timed.step_s * chosen[0].steps < 1.2 * sample.timed.round_s
