"""An open run with two founders: a stranger works with them and has no vote until the organiser knows it."""

from __future__ import annotations

import pytest

from bootstrap.organiser import promote_peer
from bootstrap.promotion import ROUNDS
from bootstrap.roster import load_promoted
from peer.consensus.protocol.block import Block
from peer.consensus.protocol.membership import VOTES_AFTER
from peer.node.store.run_directory import block_path
from peer.testing.process_swarm import RealSwarm
from peer.testing.pytest_plugin import StartSwarm
from tests.swarm.conftest import LIGHT, RESTING

pytestmark = [pytest.mark.swarm, pytest.mark.nightly]

SETS = (*LIGHT, "round.max_train_s=20", "round.gather_s=4", "round.exchange_s=4", "round.ack_s=2", "round.steps=5")


def roster_number(run: RealSwarm, peer: int) -> int:
    newest = run.committed(peer)[-1].round
    return Block.from_bytes(block_path(run.directory_of(peer), newest).read_bytes()).update.roster.number


def test_a_stranger_gives_and_votes_once_it_is_promoted_and_the_list_outlives_a_voter(swarm: StartSwarm) -> None:
    run = swarm(peers=2, real=True, sets=SETS, settings=RESTING)
    run.until_round(1)
    stranger = run.join()
    run.until(lambda: stranger in run.committed(0)[-1].group, "the stranger is no member")
    first = run.committed(0)[-1].round
    run.until_round(first + VOTES_AFTER + 2, by=(0, 1))
    assert all(run.electorate(round) == {0, 1} for round in range(1, first + VOTES_AFTER + 3))

    promote_peer(run.directory / "bootstrap", run.id_of(stranger))
    run.until(lambda: stranger in run.electorate(run.committed(0)[-1].round), "whom the organiser knows has no vote")
    number = roster_number(run, 0)
    assert number > 0
    run.kill(0)
    run.restart(0)
    run.until_round(run.committed(0)[-1].round + 1)
    assert roster_number(run, 0) == number
    assert run.electorate(run.committed(0)[-1].round) == {0, 1, stranger}
    run.assert_agreement()


def test_the_node_promotes_by_itself_whose_work_the_voters_have_counted(swarm: StartSwarm) -> None:
    """It follows their chain; the word of the stranger itself counts for nothing."""
    hurry = {"bootstrap.chain_follower.LOOK_S": 0.2}
    run = swarm(peers=2, real=True, sets=SETS, settings=RESTING, organiser=("--promote", "0.1m"), hurry=hurry)
    run.until_round(1)
    stranger = run.join()
    folder = run.directory / "bootstrap"
    run.until(lambda: run.id_of(stranger) in load_promoted(folder), "nobody is promoted")
    assert load_promoted(folder)[run.id_of(stranger)].endswith("from 127.0.0.0/24")
    counted = sum(stranger in commit.group for commit in run.committed(0))
    assert counted >= ROUNDS
    run.until(lambda: stranger in run.electorate(run.committed(0)[-1].round), "whom the organiser knows has no vote")
    run.assert_agreement()
