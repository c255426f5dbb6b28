"""Rounds beside gossip and delayed Nesterov: the formulas by hand, and that what each way costs is seen."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from peer.planning.simulate.grid import wire_bytes
from peer.planning.simulate.scenario import Scenario
from tests.benchmarks.compared import Comparison, compare
from tests.peer.planning.simulate.scenarios import asked


def compared(**options: object) -> tuple[Comparison, Scenario]:
    """Of so many peers, with their setting."""
    wanted = asked(**options)  # type: ignore[arg-type]
    return compare(wanted), wanted.setting()


def test_formulas_of_peers_alike() -> None:
    """No spread, one line for all: what each step takes can be said."""
    found, of = compared(peers=4, spread=0.0, upload_mbps=1.0, download_mbps=50.0)
    model_s, step_s, delay_s = 8 * wire_bytes(of) / 1e6, 0.5, 0.05
    exchange_s = 2 * (0.75 * model_s + delay_s)
    _, rounds, all_reduce, gossip = found.speeds
    assert rounds.step_s == pytest.approx(step_s + exchange_s / 20)
    assert all_reduce.step_s == pytest.approx(step_s + exchange_s)
    assert gossip.step_s == pytest.approx(max(step_s, delay_s + model_s))
    assert [each.sent_bytes / wire_bytes(of) for each in found.speeds[1:]] == pytest.approx([1.5 / 20, 1.5, 1.0])
    assert gossip.tokens_per_s == pytest.approx(4 * of.step_tokens / gossip.step_s)


def test_simulated_rounds_are_near_their_formula_and_no_faster() -> None:
    """Agreeing, and parts that wait for each other, take the rest."""
    found, _ = compared(peers=4, spread=0.0, rounds=6)
    simulated, formula = found.speeds[:2]
    assert 1.0 <= simulated.step_s / formula.step_s < 1.2
    assert simulated.sent_bytes == pytest.approx(formula.sent_bytes, rel=0.3)


@pytest.mark.slow
def test_a_thin_line_is_what_rounds_are_for() -> None:
    """Every step over it is dear, with gossip and with an all-reduce; and gossip shares less than an all-reduce."""
    found, _ = compared(peers=8, upload_mbps=0.5, spread=0.2)
    simulated, rounds, all_reduce, gossip = (each.tokens_per_s for each in found.speeds)
    assert simulated > gossip > all_reduce
    assert rounds > 1.5 * gossip


@pytest.mark.slow
def test_gossip_leaves_peers_apart_unless_they_are_a_power_of_two() -> None:
    """After a period of three steps."""
    eight, six = (compared(peers=peers, rounds=2)[0] for peers in (8, 6))
    assert eight.period == six.period == 3
    assert eight.left < 1e-12
    assert 0.1 < six.left < 1


def test_where_one_is_slow_nobody_waits_with_delayed_nesterov() -> None:
    """And alike peers gain nothing; the paper's four workers do in either case."""
    alike, of = compared(peers=4, rounds=2)
    rounds, delayed, *_ = alike.reached
    assert rounds.peers_s is not None
    assert delayed.peers_s is not None
    assert delayed.peers_s == pytest.approx(rounds.peers_s, rel=0.3)
    assert rounds.paper_s is not None
    assert delayed.paper_s is not None
    assert delayed.paper_s < 0.7 * rounds.paper_s
    assert np.isclose(rounds.peers_s % (20 * of.machines[0].step_s), 0)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_comparison() -> None:
    """And another seed another."""
    first, again, other = (compared(spread=0.1, rounds=2, seed=seed)[0] for seed in (1, 1, 2))
    assert dataclasses.asdict(first) == dataclasses.asdict(again)
    assert first.speeds[3].step_s != other.speeds[3].step_s
