"""A fourth process that bends means, or invents what it accepted: nothing false is ever in a chain."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from peer.consensus.protocol.refusals import MEANS, VOTES
from peer.schema.events import PenaltyImposed
from peer.testing.lying_link import ACCEPTED, FALSE_SUM, MISQUOTED, OTHER_MEANS, SPLIT, TOLD
from peer.testing.process_swarm import RealSwarm
from peer.testing.pytest_plugin import StartSwarm
from tests.swarm.conftest import RESTING
from tests.swarm.test_lies import HONEST, QUIET, SETS, newest, refusals, say, update_of

pytestmark = [pytest.mark.swarm, pytest.mark.nightly]

LIAR = 3
PATIENT = tuple(
    {"round.ack_s=1.0": "round.ack_s=6.0", "round.exchange_s=3.0": "round.exchange_s=6.0"}.get(item, item)
    for item in SETS
)
"""Who is slower than `ack_s` may be misquoted within its norm; a loaded machine compares slowly."""
AFTER = 3
"""Rounds that the others go on after the lie was seen."""


@pytest.mark.parametrize("lie", [FALSE_SUM, MISQUOTED, SPLIT])
def test_an_owner_of_false_means_is_convicted_by_all(swarm: StartSwarm, lie: str) -> None:
    """Whoever looks sees a mean that its rows do not come to; who is misquoted shows what it gave; and what is
    shown to some alone they pass on. That is the liar's own row in its own part, which may be decided before it is
    shown: nobody else is misquoted."""
    run = begun(swarm)
    say(run, LIAR, lie)
    run.until(lambda: convicted(run) == {*HONEST}, "not all have convicted it")
    if lie == SPLIT:
        go_on(run)
    else:
        assert_nothing_false(run)


def test_a_coordinator_with_other_means_is_not_followed(swarm: StartSwarm) -> None:
    run = begun(swarm)
    say(run, LIAR, OTHER_MEANS)
    run.until(lambda: refusals(run, LIAR, MEANS), "nobody has refused its means")
    assert_nothing_false(run)


def test_a_voter_that_invents_what_it_accepted_is_not_believed(swarm: StartSwarm) -> None:
    """Whoever leads refuses that; the others are enough."""
    run = begun(swarm)
    say(run, LIAR, ACCEPTED)
    run.until(lambda: refusals(run, LIAR, VOTES), "nobody has refused what it says")
    go_on(run)


def begun(swarm: Callable[..., RealSwarm]) -> RealSwarm:
    run = swarm(peers=4, real=True, sets=PATIENT, settings=RESTING)
    run.until_round(QUIET)
    return run


def go_on(run: RealSwarm) -> None:
    run.until_round(newest(run) + AFTER, by=HONEST)
    run.assert_agreement()
    assert accused(run) <= {run.id_of(LIAR)}


def assert_nothing_false(run: RealSwarm) -> None:
    go_on(run)
    told = {bytes.fromhex(line) for line in (run.directory_of(LIAR) / TOLD).read_text().split()}
    assert told
    for round in range(1, newest(run) + 1):
        assert not told & {*update_of(run, round).parts}, f"round {round} has a false mean"


def convicted(run: RealSwarm) -> set[int]:
    """Who of the honest says that the liar lied."""
    return {peer for peer in HONEST if run.id_of(LIAR) in accused(run, peer)}


def accused(run: RealSwarm, *by: int) -> set[str]:
    lines = (line for peer in by or HONEST for line in run.lines(peer))
    return {line.event.about for line in lines if isinstance(line.event, PenaltyImposed)}
