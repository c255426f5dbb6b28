"""The methods benchmark: all train on about as many tokens, and none is another by a second name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from peer.training.train.optimizers import steps_before
from tests.benchmarks import methods
from tests.benchmarks.__main__ import main
from tests.benchmarks.methods import Method, Plan, spec_of

PLAN = """
spec = "SPEC"
peers = 2
rounds = 4
seeds = [1, 2]
eval_sequences = 4
points = 2

[[group]]
title = "some"
[group.method.ddp]
kind = "ddp"
[group.method.edit]
[group.method.a-edit]
slower = [1, 2]
[group.method.streaming]
ahead = 0.5
set = { "round.overlap" = "streaming" }

[[group]]
title = "others"
[group.method."edit unlike"]
unlike = true
"""


@pytest.fixture
def plan_path(spec_path: Path, tmp_path: Path) -> Path:
    path = tmp_path / "plan.toml"
    path.write_text(PLAN.replace("SPEC", str(spec_path)))
    return path


@pytest.mark.nightly
@pytest.mark.outside
@pytest.mark.usefixtures("in_this_process")
def test_a_plan_gives_a_row_of_every_method_and_seed_once(
    plan_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(methods.jobs, "code_digest", lambda patterns: "cc")  # files may be edited between the calls
    words = ["methods", "--plan", str(plan_path), "--out", str(tmp_path / "out")]
    assert main(words) == 0
    rows = json.loads((tmp_path / "out" / "methods.json").read_text())["rows"]
    names = ["ddp", "edit", "a-edit", "streaming", "edit unlike"]
    assert [(row["variant"], row["seed"]) for row in rows] == [(name, seed) for seed in (1, 2) for name in names]
    assert len({row["state"] for row in rows}) == len(rows), "no method is another by a second name"
    text = (tmp_path / "out" / "methods.md").read_text()
    assert text in capsys.readouterr().out
    places = [text.index(part) for part in ("**some**", "| streaming |", "**others**", "| edit unlike |")]
    assert places == sorted(places)
    assert (tmp_path / "out" / "methods.png").exists()
    assert main(words) == 0
    assert "10 runs, 10 of them already there" in capsys.readouterr().out


@pytest.mark.outside
@pytest.mark.usefixtures("in_this_process")
def test_another_share_ahead_is_another_row(
    plan_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its spec is the same."""
    words = ["methods", "--plan", str(plan_path), "--out", str(tmp_path / "out"), "--only", "streaming", "--seeds", "1"]
    assert main(words) == 0
    plan_path.write_text(plan_path.read_text().replace("ahead = 0.5", "ahead = 0.9"))
    assert main(words) == 0
    assert "1 runs, 0 of them already there" in capsys.readouterr().out.rpartition("| streaming |")[0]


def test_a_method_that_the_plan_has_not_is_named(plan_path: Path, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"--only odd: the plan has ddp, edit"):
        main(["methods", "--plan", str(plan_path), "--out", str(tmp_path), "--only", "edit", "odd"])


# ---- the plan that is shipped


PLANNED = Plan.read()


def steps_of_all(method: Method) -> float:
    """Inner steps of all peers together in the whole run."""
    spec = spec_of(method, PLANNED, 1)
    peers = spec.run.founders
    speeds = [1 / method.slower[index % len(method.slower)] for index in range(peers)]
    return steps_before(spec, spec.run.rounds) * sum(speeds)


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANNED.methods)
def test_every_method_trains_on_about_as_many_tokens_and_is_evaluated_as_often(name: str) -> None:
    method = PLANNED.methods[name]
    assert steps_of_all(method) == pytest.approx(steps_of_all(Method()), rel=0.03)
    spec = spec_of(method, PLANNED, 1)
    assert spec.run.rounds // spec.data.eval_every in range(PLANNED.points, 2 * PLANNED.points + 1)


def test_a_name_stands_for_one_method() -> None:
    assert len(PLANNED.methods) == sum(len(group) for group in PLANNED.groups.values())
    specs = {(spec_of(method, PLANNED, 1).digest(), repr(method)) for method in PLANNED.methods.values()}
    assert len(specs) == len(PLANNED.methods)
