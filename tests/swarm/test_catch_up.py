"""A peer that misses rounds fetches their updates, not the state, and what it had learned still counts."""

from __future__ import annotations

import pytest

from peer.schema.events import EventLine, InnerProgressed, PeerStarted, PenaltyImposed, RoundCommitted
from peer.testing.process_swarm import RealSwarm
from peer.testing.pytest_plugin import StartSwarm
from tests.swarm.conftest import LIGHT, RESTING

pytestmark = [pytest.mark.swarm, pytest.mark.nightly]

SETS = (
    *LIGHT,
    "round.sync_rounds=1", "round.ramp_rounds=0", "round.gather_s=4.0", "round.exchange_s=4.0",
    "round.ack_s=2.0", "round.stagger_s=1.0", "data.eval_every=1000",
)  # fmt: skip
MISSED = 3
VICTIM = 2
OTHERS = (0, 1)
BYTES_PER_PARAMETER = 0.6
"""The bar for one round: int4 takes 0.53, the rest is for certificates, what peers say of themselves, and frames."""


def test_a_peer_that_missed_three_rounds_fetches_three_updates(swarm: StartSwarm) -> None:
    """It stands still while the others make three rounds: all that its link receives until it is in step is at most
    0.6 bytes per parameter and round, counted with those that are made while it catches up. What it had learned is
    taken, and discounted by age for all to see. Then it is killed, and the same holds until it is back."""
    run = swarm(peers=3, real=True, spec="tiny", sets=SETS, settings=RESTING)
    run.until_round(2)

    stopped_at = let_it_train(run)
    run.halt(VICTIM)
    run.until_round(stopped_at + MISSED, by=OTHERS)
    run.go_on(VICTIM)
    missed = rounds_without_the_victim(run, stopped_at)
    assert_cheap(run, missed)
    assert_taken_as_stale(run, missed[-1] + 1)

    stopped_at = let_it_train(run)
    run.kill(VICTIM)
    run.until_round(stopped_at + MISSED, by=OTHERS)
    run.restart(VICTIM)
    missed = rounds_without_the_victim(run, stopped_at)
    assert_cheap(run, missed)
    run.assert_agreement()


def let_it_train(run: RealSwarm) -> int:
    """Wait until the victim has learned something in a new round; the anchor from which it trains."""
    round = run.committed(VICTIM)[-1].round + 1
    run.wait_for(VICTIM, lambda line: trains_from(line, round))
    return round


def rounds_without_the_victim(run: RealSwarm, stopped_at: int) -> list[int]:
    """The rounds that it has missed, once it takes part again."""

    def takes_part(line: EventLine) -> bool:
        event = line.event
        return isinstance(event, RoundCommitted) and event.round > stopped_at and run.id_of(VICTIM) in event.group

    line = run.wait_for(VICTIM, takes_part)
    assert isinstance(line.event, RoundCommitted)
    return list(range(stopped_at + 1, line.event.round))


def assert_cheap(run: RealSwarm, missed: list[int]) -> None:
    """What the victim's link received from the commit before it was stopped to that of the last missed round."""
    assert len(missed) >= MISSED
    (parameters,) = {line.event.parameters for line in run.lines(VICTIM) if isinstance(line.event, PeerStarted)}
    received = [
        line.event.bytes_received
        for line in run.lines(VICTIM)
        if isinstance(line.event, RoundCommitted) and line.event.round in missed
    ]
    assert len(received) == len(missed), "each is applied, none is skipped by a snapshot"
    assert sum(received) <= len(missed) * BYTES_PER_PARAMETER * parameters, received


def assert_taken_as_stale(run: RealSwarm, round: int) -> None:
    """In the first update since this anchor in which the victim counts, everybody is told that it counts for less."""
    victim = run.id_of(VICTIM)
    for peer in OTHERS:
        commit = run.wait_for(peer, lambda line: counts(line, victim, round)).event
        assert isinstance(commit, RoundCommitted)
        said = run.wait_for(peer, lambda line: is_stale(line, victim)).event
        assert isinstance(said, PenaltyImposed)
        assert 0 < said.factor < 1
        assert said.until_round >= commit.round


def trains_from(line: EventLine, round: int) -> bool:
    return isinstance(line.event, InnerProgressed) and line.event.round == round


def counts(line: EventLine, about: str, since: int) -> bool:
    """Whether what this peer gave is in an update. It may vote in rounds before, for which it came too late."""
    return isinstance(line.event, RoundCommitted) and line.event.round >= since and line.event.weights.get(about, 0) > 0


def is_stale(line: EventLine, about: str) -> bool:
    return isinstance(line.event, PenaltyImposed) and (line.event.about, line.event.code) == (about, "STALE")
