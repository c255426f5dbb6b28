"""The spike benchmark: one peer learns from random labels for three rounds, and what is said of the peak."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from peer.schema.spec import RunSpec
from peer.training.train.trainer import LocalTrainer
from tests.benchmarks import jobs, spikes, spikes_report
from tests.benchmarks.__main__ import main
from tests.benchmarks.mislabelled import Mislabelled
from tests.benchmarks.variants import CPU, names_of
from tests.stepping import step, steps_in_round

# ---- the peer that is spoilt


def trained(trainer: LocalTrainer, rounds: int) -> list[float]:
    """Inner losses of `rounds` rounds from the same anchor."""
    losses = []
    for round in range(rounds):
        trainer.progress.round = round
        losses += [step(trainer).loss for _ in range(steps_in_round(trainer))]
        trainer.progress.step = 0
    return losses


def test_only_the_spoilt_rounds_have_random_labels(base: RunSpec, tmp_path: Path) -> None:
    """Bit for bit the same before; labels that nobody can know are learned no better than guessed."""
    honest = LocalTrainer(base, "p", tmp_path / "honest", CPU, data_path=base.data.path)
    spoilt = Mislabelled(base, "p", tmp_path / "spoilt", CPU, range(1, 2))
    ours, theirs = trained(honest, 3), trained(spoilt, 3)
    assert theirs[:3] == ours[:3]
    assert min(theirs[3:6]) > math.log(257) - 0.05 > max(ours[3:6])
    assert theirs[6:] != ours[6:]


def test_a_spoilt_peer_reads_what_it_would_have_read(base: RunSpec, tmp_path: Path) -> None:
    honest = LocalTrainer(base, "p", tmp_path / "honest", CPU, data_path=base.data.path)
    spoilt = Mislabelled(base, "p", tmp_path / "spoilt", CPU, range(2))
    for trainer in (honest, spoilt):
        trained(trainer, 2)
    assert spoilt._batches.ranges() == honest._batches.ranges()


def test_random_labels_are_the_same_in_every_run(base: RunSpec, tmp_path: Path) -> None:
    """Whatever else draws random numbers, and whichever reducer is tried."""
    first, again = [
        Mislabelled(spikes.spec_of(reducer, base, 1, 3), "p", tmp_path / reducer, CPU, range(2))
        for reducer in ("mean", "edit")
    ]
    torch.manual_seed(5)
    losses = trained(first, 2)
    torch.manual_seed(6)
    assert trained(again, 2) == losses


def test_the_last_peer_is_the_spoilt_one(base: RunSpec, tmp_path: Path) -> None:
    spec = spikes.spec_of("edit", base, 1, 3)
    kinds = [type(spikes.trainer(spec, name, tmp_path / name)) for name in names_of(spec)]
    assert kinds == [LocalTrainer, LocalTrainer, Mislabelled]


# ---- the whole command


@pytest.mark.nightly
@pytest.mark.outside
@pytest.mark.usefixtures("in_this_process")
def test_every_reducer_gives_a_row_once(
    spec_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every anchor is evaluated, the spoilt peer is the one that is named, and the exit code is the bar's."""
    monkeypatch.setattr(jobs, "code_digest", lambda patterns: "cc")  # somebody may edit a file between the two calls
    words = ["spikes", "--spec", str(spec_path), "--rounds", "15", "--peers", "3", "--seeds", "5"]
    words += ["--out", str(tmp_path)]
    first = main(words)
    result = json.loads((tmp_path / "spikes.json").read_text())
    assert [row["variant"] for row in result["rows"]] == ["edit", "mean"]
    assert all(len(row["points"]) == 16 for row in result["rows"])
    assert first == (0 if result["bars"][0]["met"] else 1)
    assert main(words) == first
    assert "2 runs, 2 of them already there" in capsys.readouterr().out


def test_spoilt_rounds_before_the_warm_up_are_refused(spec_path: Path, tmp_path: Path) -> None:
    """A judge that decides nothing yet cannot be tried."""
    with pytest.raises(SystemExit, match="warmup_rounds"):
        main(["spikes", "--spec", str(spec_path), "--set", "aggregation.warmup_rounds=12", "--out", str(tmp_path)])


# ---- what is said about it


def row(variant: str, seed: int, *losses: float) -> dict[str, Any]:
    points = [{"round": round, "tokens": round, "loss": loss} for round, loss in enumerate(losses)]
    findings = [[3, f"seed-{seed}-peer-4", "ANOMALY", 0, 0, "…"], [3, f"seed-{seed}-peer-1", "CLIPPED", 0, 9, "…"]]
    return {
        "variant": variant, "seed": seed, "loss": losses[-1], "points": points, "peers": 4,
        "findings": findings if variant == "edit" else [],
    }  # fmt: skip


def test_the_bar_is_on_every_seeds_peak_above_where_the_spoilt_rounds_began() -> None:
    """What was higher before that does not count."""
    rows = [row("mean", 1, 5.0, 2.0, 2.4, 2.1), row("edit", 1, 5.0, 2.1, 2.2, 1.9)]
    (bar,) = spikes_report.judge(rows, 1)
    assert bar.met
    assert "seed 1 0.1000 of 0.4000" in bar.figures
    rows += [row("mean", 2, 5.0, 2.0, 2.4, 2.1), row("edit", 2, 5.0, 2.1, 2.35, 1.9)]
    (bar,) = spikes_report.judge(rows, 1)
    assert not bar.met


def test_without_a_peak_of_plain_averaging_nothing_is_shown() -> None:
    """Two runs whose loss only falls are no evidence for the penalty."""
    (bar,) = spikes_report.judge([row("mean", 1, 5.0, 2.0, 1.9), row("edit", 1, 5.0, 2.0, 1.9)], 1)
    assert not bar.met


def test_the_table_tells_penalties_of_the_spoilt_peer_from_false_ones() -> None:
    text = spikes_report.table([row("mean", 1, 5.0, 2.0, 2.5), row("edit", 1, 5.0, 2.0, 1.9)], 1)
    assert "| edit | 0.0000 | 0.0000 | 1.9000 | 1 | 1 |" in text
    assert "| mean | 0.5000 | 0.5000 | 2.5000 | 0 | 0 |" in text
