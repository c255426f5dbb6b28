"""The attack benchmark: real trainers in one process, what one of them does to the others, and what is said of it."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from peer.consensus.protocol.block import ContributionHeader
from peer.schema.spec import RunSpec
from tests.adversaries import ATTACKS
from tests.benchmarks import attacks, attacks_report, jobs
from tests.benchmarks.__main__ import main
from tests.benchmarks.rows import Row
from tests.training_swarm import TrainingSwarm, names_of
from tests.vectors import whole

PEERS = 4


def swarm_of(base: RunSpec, folder: Path, attack: str, reducer: str = "edit", rounds: int = 2) -> TrainingSwarm:
    """A swarm after `rounds`, with the attacker in the last place."""
    spec = attacks.spec_of(attack, reducer, base, 1, PEERS)
    spec = dataclasses.replace(spec, run=dataclasses.replace(spec.run, rounds=rounds))
    roles = {} if attack == attacks_report.ALONE else {PEERS - 1: ATTACKS[attack]()}
    swarm = TrainingSwarm(spec, folder / f"{attack}-{reducer}", roles, names_of(1, PEERS))
    swarm.until_round(rounds)
    return swarm


def headers(swarm: TrainingSwarm, index: int) -> list[ContributionHeader]:
    """What a peer pledged to the rounds of the chain."""
    name = swarm.peers[index].name
    members = (member for update in swarm.honest[0].updates for member in update.members)
    return [member for member in members if member.peer == name]


# ---- the swarm


@pytest.mark.slow
def test_the_same_seed_gives_the_same_history(base: RunSpec, tmp_path: Path) -> None:
    """Digests of chain and bits, losses and virtual time; other names would read other text."""
    first, second = (swarm_of(base, tmp_path / name, "alone") for name in ("a", "b"))
    assert first.peers[0].history == second.peers[0].history
    assert (first.losses, first.now) == (second.losses, second.now)


@pytest.mark.slow
def test_honest_peers_learn_together_and_accuse_nobody(base: RunSpec, tmp_path: Path) -> None:
    swarm = swarm_of(base, tmp_path, "alone", rounds=3)
    assert swarm.differing() == []
    assert len(headers(swarm, 0)) == 3
    assert swarm.losses[3] < swarm.losses[0]
    assert not any(peer.penalties or peer.alerts or peer.driver.bad_frames for peer in swarm.peers)


@pytest.mark.slow
def test_the_three_alone_have_the_names_and_the_text_that_they_have_beside_an_attacker(
    base: RunSpec, tmp_path: Path
) -> None:
    alone, beside = (swarm_of(base, tmp_path, attack, rounds=1) for attack in ("alone", "zeros"))
    assert [peer.name for peer in alone.peers] == [peer.name for peer in beside.honest]
    assert [headers(alone, index)[0].ranges for index in range(3)] == [
        headers(beside, index)[0].ranges for index in range(3)
    ]


# ---- the attacks


CODES = {
    "x100": "CLIPPED", "nan": "NONFINITE", "inf": "NONFINITE", "zeros": "ANOMALY", "stale-replay": "STALE",
    "wrong-shapes": "LATE", "oversized": "LATE", "tokens-negative": "ABSENT", "tokens-huge": "ABSENT",
    "two-means": "MISDECLARED", "norms-low": "LATE", "norms-high": "CLIPPED",
}  # fmt: skip
"""What two rounds are enough to show; norms like any need a history, and a coordinator needs its turn."""


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("attack", ATTACKS)
def test_no_attack_ends_a_run_or_parts_the_honest_or_has_one_of_them_blamed(
    base: RunSpec, tmp_path: Path, attack: str
) -> None:
    """And where two rounds show it, every honest peer is told who it was, with a code and evidence."""
    swarm = swarm_of(base, tmp_path, attack)
    assert [len(peer.history) for peer in swarm.honest] == [2, 2, 2]
    assert swarm.differing() == []
    assert {event.about for peer in swarm.honest for event in peer.penalties} <= {swarm.peers[-1].name}
    for peer in swarm.honest:
        told = {event.code for event in peer.penalties if event.evidence}
        assert attack not in CODES or CODES[attack] in told


@pytest.mark.slow
def test_a_hundred_times_too_much_ruins_a_plain_mean(base: RunSpec, tmp_path: Path) -> None:
    """The attack is one: without a judge the model ends worse than it began."""
    alone, ruined = (swarm_of(base, tmp_path, attack, "mean") for attack in ("alone", "x100"))
    assert alone.losses[2] < alone.losses[0] < ruined.losses[2]


@pytest.mark.slow
def test_a_forger_keeps_nothing_of_what_it_offered(base: RunSpec, tmp_path: Path) -> None:
    """Its own residual stays in order, so that it attacks in the last round as in the first."""
    forger = swarm_of(base, tmp_path, "sign-flip").peers[-1].trainer
    assert not whole(forger._backend.vectors.residual).any()
    assert torch.equal(forger._backend.vectors.flat.new(), whole(forger.anchor.theta))


@pytest.mark.slow
def test_a_replayer_offers_the_same_bytes_as_fresh_ones(base: RunSpec, tmp_path: Path) -> None:
    swarm = swarm_of(base, tmp_path, "stale-replay", rounds=3)
    roots = [header.root for header in headers(swarm, PEERS - 1)]
    assert len(set(roots)) == 1
    assert {header.staleness for header in headers(swarm, PEERS - 1)} == {0}


def test_frames_beyond_their_cap_are_counted_and_dropped(base: RunSpec, tmp_path: Path) -> None:
    swarm = swarm_of(base, tmp_path, "oversized", rounds=1)
    assert all(peer.driver.bad_frames for peer in swarm.honest)


# ---- the whole command


@pytest.mark.outside
@pytest.mark.usefixtures("in_this_process")
def test_every_attack_gives_a_row_once_beside_the_three_alone(
    spec_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows, table and JSON, and the exit code is the bar's; a second call makes no row again."""
    monkeypatch.setattr(jobs, "code_digest", lambda patterns: "cc")  # somebody may edit a file between the two calls
    words = ["attacks", "--spec", str(spec_path), "--seeds", "5", "--attacks", "zeros"]
    words += ["--reducer", "edit", "--out", str(tmp_path)]
    first = main(words)
    result = json.loads((tmp_path / "attacks.json").read_text())
    assert [row["variant"] for row in result["rows"]] == ["alone edit", "zeros edit"]
    assert [row["peers"] for row in result["rows"]] == [3, 4]
    assert first == (0 if all(bar["met"] for bar in result["bars"]) else 1)
    assert (tmp_path / "attacks.md").read_text() in capsys.readouterr().out
    assert main(words) == first
    assert "2 runs, 2 of them already there" in capsys.readouterr().out


# ---- what is said about it


def row_of(variant: str, loss: float, seed: int = 1, **more: Any) -> Row:
    blamed = {"LATE": {"peers": 3, "until": [2], "factor": 0.0, "layer": "", "evidence": "0 of 9 parts came in time"}}
    row = {"honest": 3, "crash": "", "differing": [], "unseen": 0, "blamed": blamed, "wronged": {}}
    return row | {"variant": variant, "seed": seed, "loss": loss} | more


ALONE = [row_of("alone edit", 2.0, seed, blamed={}) for seed in (1, 2)]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"loss": 2.07}, "loss"),
        ({"loss": math.nan}, "loss"),
        ({"crash": "KeyError"}, "seed 2 ended early: KeyError"),
        ({"differing": [4]}, "digests differ (seed 2)"),
        ({"unseen": 1}, "no penalty on every honest peer (seed 2)"),
    ],
)
def test_each_seed_must_meet_each_bar(more: dict[str, Any], said: str) -> None:
    rows = [*ALONE, row_of("zeros edit", 1.0), row_of("zeros edit", 2.0, 2) | more]
    (bar,) = attacks_report.judge(rows)
    assert not bar.met
    assert bar.figures == said


def test_an_attack_that_meets_all_bars_says_what_it_cost() -> None:
    rows = [*ALONE, row_of("zeros edit", 2.02), row_of("zeros edit", 2.0, 2)]
    (bar,) = attacks_report.judge(rows)
    assert bar.met
    assert bar.figures == "+0.50 %"
    assert "| zeros | edit | +0.50 % | +1.00 % | +0.00 % | yes | LATE | none | met |" in attacks_report.table(rows)
    assert "- zeros edit: LATE (factor 0: 0 of 9 parts came in time)\n" in attacks_report.table(rows)


def test_a_code_that_one_honest_peer_did_not_see_is_not_in_the_table() -> None:
    seen = {"peers": 2, "until": [2], "factor": 0.0, "layer": "", "evidence": "norm 7"}
    both = row_of("zeros edit", 2.0)["blamed"] | {"ANOMALY": seen}
    assert attacks_report.codes_seen_by_all([row_of("zeros edit", 2.0, blamed=both)]) == ["LATE"]
