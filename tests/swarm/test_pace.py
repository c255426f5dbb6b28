"""One of three real peers is four times slower: by the pace of speeds it is ready with the others, and counts."""

from __future__ import annotations

from collections import defaultdict
from statistics import median

import pytest

from peer.consensus.protocol.block import WEIGHT_ONE
from peer.schema.events import InnerProgressed, PhaseEntered, RoundCommitted
from peer.testing.process_swarm import RealSwarm
from peer.testing.pytest_plugin import StartSwarm
from tests.swarm.conftest import LIGHT

pytestmark = [pytest.mark.swarm, pytest.mark.nightly]

STEPS, STEP_S, SLOW, TIMES = 30, 0.2, 2, 4
SETS = (
    *LIGHT,
    'round.pace="speed"', f"round.steps={STEPS}", "round.sync_rounds=0", "round.ramp_rounds=0",
    'aggregation.rule="mean"', "data.eval_every=1000",
)  # fmt: skip
ROUNDS = range(3, 7)
"""The anchors whose rounds are looked at: before them no speed is known yet."""
APART_S = STEPS * (TIMES - 1) * STEP_S / 4
"""A quarter of what all steps of the slow one would take longer."""


def made(run: RealSwarm) -> dict[int, dict[str, int]]:
    """By anchor and peer id how many steps were made towards the next one."""
    steps: dict[int, dict[str, int]] = defaultdict(dict)
    for peer in range(run.size):
        for line in run.lines(peer):
            if isinstance(line.event, InnerProgressed):
                steps[line.event.round][run.id_of(peer)] = line.event.step
    return steps


def apart_s(run: RealSwarm) -> list[float]:
    """Seconds from the first freeze to the last, by rounds."""
    submitted_at: dict[int, list[float]] = defaultdict(list)
    for peer in range(run.size):
        for line in run.lines(peer):
            if isinstance(line.event, PhaseEntered) and line.event.phase == "submit":
                submitted_at[line.event.round].append(line.t)
    return [max(submitted_at[round]) - min(submitted_at[round]) for round in ROUNDS]


def test_a_slow_peer_is_ready_with_the_others_and_weighs_what_it_made(swarm: StartSwarm) -> None:
    """It makes fewer steps, is in every group, and weighs its share of all steps."""
    own = {SLOW: (f"min_step_s={TIMES * STEP_S}",)}
    run = swarm(peers=3, real=True, sets=SETS, settings=(f"min_step_s={STEP_S}",), own=own)
    run.until_round(ROUNDS[-1] + 1)
    run.assert_agreement()
    print(f"froze apart by {', '.join(f'{seconds:.2f}' for seconds in apart_s(run))} s")
    assert median(apart_s(run)) < APART_S
    slow, steps = run.id_of(SLOW), made(run)
    commits = {line.event.round: line.event for line in run.lines(0) if isinstance(line.event, RoundCommitted)}
    for round in ROUNDS:
        weights, mine = commits[round + 1].weights, steps[round][slow]
        print(f"round {round}: {sorted(steps[round].values())} steps")
        assert mine < min(others for peer, others in steps[round].items() if peer != slow) / 2
        assert weights[slow] / WEIGHT_ONE == pytest.approx(mine / sum(steps[round].values()), abs=0.01)
