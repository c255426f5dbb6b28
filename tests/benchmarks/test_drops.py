"""The drop benchmark: half of the contributions are lost, the same ones in every variant, and what becomes of them."""

from __future__ import annotations

import json
import math
from collections.abc import Collection
from pathlib import Path

import pytest
import torch

from peer.consensus.protocol.head import genesis_anchor
from peer.schema.spec import RunSpec
from peer.training.train.trainer import LocalTrainer
from tests.benchmarks import drops, drops_report, jobs
from tests.benchmarks.__main__ import main
from tests.benchmarks.rows import Row
from tests.benchmarks.variants import names_of
from tests.decided import DecidedRound, contribution
from tests.stepping import step, steps_in_round, submit
from tests.vectors import starts, whole

PEERS = 3


def after_one_round(
    variant: str, base: RunSpec, folder: Path, left_out: Collection[int]
) -> tuple[list[LocalTrainer], bytes]:
    """Trainers that made one round without the contributions of some, and the first anchor."""
    spec = drops.spec_of(variant, base, 1, PEERS)
    names = names_of(spec)
    trainers = [
        LocalTrainer(spec, name, folder / f"{variant}-{name}", torch.device("cpu"), data_path=spec.data.path)
        for name in names
    ]
    anchor = genesis_anchor(spec.digest(), names, trainers[0].anchor.state_digest())
    for trainer in trainers:
        trainer.begin_round(names)
        for _ in range(steps_in_round(trainer)):
            step(trainer)
        submit(trainer, anchor)
    DecidedRound(trainers, anchor, [names[index] for index in left_out]).apply_to(*trainers)
    return trainers, anchor


def next_staleness(trainer: LocalTrainer) -> int:
    """What the trainer's next header says of its age."""
    step(trainer)
    submit(trainer, bytes(32))
    return contribution(trainer, bytes(32)).header(trainer.me).staleness


# ---- who is dropped


def test_half_of_the_contributions_are_dropped_each_on_its_own() -> None:
    """Of 4 peers' in 1,000 rounds: half, and in a sixteenth of the rounds all of them."""
    names = ("a", "b", "c", "d")
    rounds = [drops.dropped(1, names, round) for round in range(1000)]
    assert sum(map(len, rounds)) == pytest.approx(2000, abs=100)
    assert sum(len(gone) == 4 for gone in rounds) == pytest.approx(62, abs=25)
    assert {name for gone in rounds for name in gone} == set(names)


def test_both_drop_variants_of_a_seed_lose_the_same_and_start_alike(base: RunSpec) -> None:
    specs = [drops.spec_of(variant, base, 7, PEERS) for variant in (*drops.JUDGED, *drops.BESIDE)]
    assert len({names_of(spec) for spec in specs}) == 1
    assert len({drops.dropped(spec.run.seed, names_of(spec), 3) for spec in specs}) == 1
    assert drops.dropped(7, names_of(specs[0]), 3) != drops.dropped(8, names_of(specs[0]), 3)


# ---- what becomes of it


@pytest.mark.slow
def test_with_carry_a_missed_contribution_is_offered_again_with_its_age(base: RunSpec, tmp_path: Path) -> None:
    (missed, counted, _), _ = after_one_round("carry", base, tmp_path, left_out=[0])
    assert whole(missed._backend.vectors.residual).norm() > 2 * whole(counted._backend.vectors.residual).norm()
    assert not torch.equal(starts(missed), whole(missed.anchor.theta))
    assert [next_staleness(missed), next_staleness(counted)] == [1, 0]


@pytest.mark.slow
def test_without_carry_the_balance_is_empty_after_a_miss(base: RunSpec, tmp_path: Path) -> None:
    """It starts again from the new anchor, as fresh as one whose work was counted."""
    (missed, _, _), _ = after_one_round("no-carry", base, tmp_path, left_out=[0])
    assert not whole(missed._backend.vectors.residual).any()
    assert torch.equal(starts(missed), whole(missed.anchor.theta))
    assert next_staleness(missed) == 0


def test_a_round_without_anybody_is_void_and_commits(base: RunSpec, tmp_path: Path) -> None:
    """Nothing is averaged and nothing moves: momentum has nothing yet to go on with."""
    trainers, _ = after_one_round("carry", base, tmp_path, left_out=range(PEERS))
    untouched = LocalTrainer(
        trainers[0].spec, "untouched", tmp_path / "untouched", torch.device("cpu"), data_path=trainers[0].spec.data.path
    )
    for trainer in trainers:
        assert trainer.anchor.round == 1
        assert torch.equal(whole(trainer.anchor.theta), whole(untouched.anchor.theta))
        assert whole(trainer._backend.vectors.residual).any()


# ---- the whole command


@pytest.mark.outside
@pytest.mark.usefixtures("in_this_process")
def test_every_variant_gives_a_row_once(
    spec_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows, table and JSON, and the exit code is the bar's; a second call makes no row again."""
    monkeypatch.setattr(jobs, "code_digest", lambda patterns: "cc")  # somebody may edit a file between the two calls
    words = ["drops", "--spec", str(spec_path), "--peers", "3", "--seeds", "5", "--out", str(tmp_path)]
    first = main(words)
    result = json.loads((tmp_path / "drops.json").read_text())
    assert [row["variant"] for row in result["rows"]] == [*drops.JUDGED, *drops.BESIDE]
    assert first == (0 if result["bars"][0]["met"] else 1)
    assert (tmp_path / "drops.md").read_text() in capsys.readouterr().out
    assert main(words) == first
    assert "3 runs, 3 of them already there" in capsys.readouterr().out


# ---- what is said about it


def rows_of(**losses: tuple[float, ...]) -> list[Row]:
    return [
        {"variant": variant.replace("_", "-"), "seed": seed, "loss": loss}
        for variant, values in losses.items()
        for seed, loss in enumerate(values, 1)
    ]


def test_the_bar_is_on_the_mean_of_paired_perplexities() -> None:
    """A seed beyond 2.1 % does not fail it, and what is lost without carry is only said beside it."""
    (bar,) = drops_report.judge(rows_of(no_drops=(1.0, 2.0), carry=(1.03, 2.01), no_carry=(2.0, 3.0)))
    assert bar.met
    assert "+2.03 % (seed 1 +3.05 %, seed 2 +1.01 %)" in bar.figures
    assert f"without carry {100 * (math.e - 1):+.2f} %" in bar.figures
    (bar,) = drops_report.judge(rows_of(no_drops=(1.0, 2.0), carry=(1.03, 2.02)))
    assert not bar.met


def test_the_table_shows_perplexities() -> None:
    text = drops_report.table(rows_of(no_drops=(1.0, 2.0), carry=(1.0, 2.0)))
    assert "| 50 % drops with carry | 5.0537 ± 3.3027 | 2.7183 | 7.3891 | +0.00 ± 0.00 % | 1.5000 ± 0.7071 |" in text
