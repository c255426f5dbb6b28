"""A fourth process that is the product with one thing changed: it lies. Honest peers refuse it, name it, and go on."""

from __future__ import annotations

import time
from collections.abc import Collection
from itertools import pairwise

import pytest

from peer.consensus.protocol.block import Block, Update
from peer.consensus.protocol.membership import VOTES_AFTER
from peer.consensus.protocol.refusals import RANGES, STEPS, TIME, TOKENS
from peer.node.store.run_directory import block_path
from peer.schema.events import MessageRefused
from peer.testing.child_process import BUSY
from peer.testing.faulty_peer import UNTRAINED
from peer.testing.lying_link import ALL_RANGES, HUGE, LIE, NEGATIVE, TOKENS_TWICE, YEARS_AHEAD
from peer.testing.process_swarm import RealSwarm
from peer.testing.pytest_plugin import StartSwarm
from tests.swarm.conftest import LIGHT, RESTING

pytestmark = [pytest.mark.swarm, pytest.mark.nightly]

SETS = (
    *LIGHT, "round.steps=5", "round.gather_s=4.0", "round.exchange_s=3.0", "round.ack_s=1.0", "round.stagger_s=0.5",
    "round.restart_s=20.0", "data.eval_every=1000",
)  # fmt: skip
HONEST = (0, 1, 2)
RULES = {TOKENS_TWICE: TOKENS, ALL_RANGES: RANGES, HUGE: STEPS, NEGATIVE: TOKENS}
SLOWER = 1.5
"""Times the usual length of a round, on an idle machine."""
QUIET = 3
"""Rounds before anybody lies."""
NAMES = 5


def test_a_founder_that_lies_is_refused_and_named(swarm: StartSwarm) -> None:
    """About the date, as coordinator; then about what it gives, one thing after the other. Once it is honest again it
    is a member again."""
    run = swarm(peers=4, real=True, sets=SETS, settings=RESTING)
    liar = 3
    run.until_round(QUIET)
    usual_s = slowest_s(run, 1)  # what the first round takes longer is the start

    say(run, liar, YEARS_AHEAD)
    run.until(lambda: who_refused(run, liar, TIME) == set(HONEST), "not all have refused the date")
    round = refusals(run, liar, TIME)[0].round
    run.until_round(round + 1, by=HONEST)
    assert update_of(run, round + 1).coordinator != run.id_of(liar)
    assert update_of(run, round + 1).time <= time.time()

    for lie, rule in RULES.items():
        say(run, liar, lie)
        assert_refused(run, liar, rule, newest(run))

    say(run, liar, "")
    told = newest(run)
    run.until(lambda: any(liar in run.group(commit.round) for commit in run.committed(0)[told:]), "it is not back")
    run.assert_agreement()
    assert slowest_s(run, QUIET) <= SLOWER * BUSY * usual_s + lost_ballot_s(run)


def test_five_names_that_never_trained_get_no_vote(swarm: StartSwarm) -> None:
    """They are more than the three voters that they join. Some lie in the header of their first contribution, too."""
    run = swarm(peers=3, real=True, sets=SETS, settings=RESTING)
    run.until_round(QUIET)
    usual_s = slowest_s(run, 1)  # what the first round takes longer is the start
    names = [run.join() for _ in range(NAMES)]
    for name, lie in zip(names, (*RULES, ""), strict=True):
        (run.directory_of(name) / UNTRAINED).touch()
        say(run, name, lie)
    for name, rule in zip(names, RULES.values(), strict=False):
        assert_refused(run, name, rule, 0)
        say(run, name, "")

    def took_part(name: int) -> int:
        return sum(name in commit.group for commit in run.committed(0))

    run.until(lambda: all(took_part(name) > VOTES_AFTER for name in names), "some were members too seldom for a vote")
    run.until_round(newest(run) + 1, by=HONEST)
    run.assert_agreement()
    for round in range(1, newest(run) + 1):
        assert run.electorate(round) <= set(HONEST)
    assert slowest_s(run, QUIET) <= SLOWER * BUSY * usual_s + lost_ballot_s(run)


def say(run: RealSwarm, peer: int, lie: str) -> None:
    """From now on, in every round; the truth if it is empty."""
    path = run.directory_of(peer) / LIE
    path.with_suffix(".new").write_text(lie)
    path.with_suffix(".new").replace(path)


def refusals(run: RealSwarm, liar: int, rule: str, by: Collection[int] = HONEST) -> list[MessageRefused]:
    """What these have told of this liar and rule."""
    events = (line.event for peer in by for line in run.lines(peer))
    return [
        event
        for event in events
        if isinstance(event, MessageRefused) and (event.about, event.rule) == (run.id_of(liar), rule)
    ]


def who_refused(run: RealSwarm, liar: int, rule: str) -> set[int]:
    return {peer for peer in HONEST if refusals(run, liar, rule, (peer,))}


def assert_refused(run: RealSwarm, liar: int, rule: str, since: int) -> None:
    """The header of this peer is, by whoever judges it, for this rule: it is no member of what follows."""

    def told() -> list[MessageRefused]:
        return [event for event in refusals(run, liar, rule) if event.round >= since]

    run.until(told, f"nobody has refused peer {liar} for {rule}")
    round = told()[0].round
    run.until_round(round + 1, by=HONEST)
    assert liar not in run.group(round + 1)


def newest(run: RealSwarm) -> int:
    return run.committed(0)[-1].round


def update_of(run: RealSwarm, round: int) -> Update:
    """That led to anchor `round`."""
    return Block.from_bytes(block_path(run.directory_of(0), round).read_bytes()).update


def slowest_s(run: RealSwarm, since: int) -> float:
    """Of the rounds that follow anchor `since`, by the first peer's clock."""
    commits = [commit.at_s for commit in run.committed(0) if commit.round >= since]
    return max(after - before for before, after in pairwise(commits))


def lost_ballot_s(run: RealSwarm) -> float:
    """What a coordinator whom nobody follows costs at most, as one that has vanished does: the others' patience."""
    waits = run.spec.round
    return max(waits.exchange_s, waits.ack_s) + 2 * waits.ack_s
