"""Two friends train; one pulls the plug, and the other is no quorum alone."""

from __future__ import annotations

import pytest

from peer.schema.events import AlertRaised, EventLine, RoundStalled
from peer.testing.process_swarm import RealSwarm
from peer.testing.pytest_plugin import StartSwarm
from tests.swarm.conftest import LIGHT, RESTING

pytestmark = pytest.mark.swarm

SETS = (
    *LIGHT, "round.gather_s=3.0", "round.exchange_s=4.0", "round.ack_s=1.0", "round.stagger_s=1.0",
    "round.restart_s=6.0",
)  # fmt: skip
HURRY = {"peer.consensus.organiser.restart_desk.WAIT_S": 4.0, "peer.consensus.rounds.timeouts.SILENT_S": 12.0}
STAYS, LEAVES = 0, 1


def is_alert(line: EventLine, code: str) -> bool:
    return isinstance(line.event, AlertRaised) and line.event.code == code


def newest(run: RealSwarm, peer: int) -> int:
    return run.committed(peer)[-1].round


def test_one_pulls_the_plug_and_the_other_goes_on_with_the_organisers_node(swarm: StartSwarm) -> None:
    """After `restart_s`, with the node's word; who returns is a guest, then a voter again, on the same chain."""
    run = swarm(peers=2, real=True, sets=SETS, settings=RESTING, hurry=HURRY)
    run.until_round(2)
    run.kill(LEAVES)
    stood_at = newest(run, STAYS)
    asked = run.wait_for(STAYS, lambda line: is_alert(line, "STUCK"))
    told = run.wait_for(STAYS, lambda line: is_alert(line, "RESTART"))
    assert asked.t < told.t
    assert isinstance(asked.event, AlertRaised)
    assert run.id_of(LEAVES)[-6:] in asked.event.text
    run.until_round(stood_at + 3, by=(STAYS,))
    assert run.group(newest(run, STAYS)) == {STAYS}
    run.restart(LEAVES)
    run.until(lambda: LEAVES in run.committed(STAYS)[-1].group, "who returned is no member")
    run.until(lambda: run.electorate(newest(run, STAYS)) == {STAYS, LEAVES}, "who returned is no voter")
    run.until_round(newest(run, STAYS) + 2)
    run.assert_agreement()


def test_without_the_node_each_waits_for_the_other_and_nothing_is_lost(swarm: StartSwarm) -> None:
    """The screen says for whom. The node is no part of a quorum that is there: once the friend is back both go on."""
    run = swarm(peers=2, real=True, sets=SETS, settings=RESTING, hurry=HURRY)
    run.until_round(2)
    run.kill_node()
    run.until_round(newest(run, STAYS) + 1)
    run.kill(LEAVES)
    stood_at = newest(run, STAYS)
    stalled = run.wait_for(STAYS, lambda line: isinstance(line.event, RoundStalled) and "not heard" in line.event.why)
    assert isinstance(stalled.event, RoundStalled)
    assert run.id_of(LEAVES)[-6:] in stalled.event.why
    run.restart(LEAVES)
    run.until_round(stood_at + 2)
    assert run.group(stood_at + 2) == {STAYS, LEAVES}
    run.assert_agreement()
    codes = [line.event.code for line in run.lines(STAYS) if isinstance(line.event, AlertRaised)]
    assert "RESTART" not in codes
    assert "STUCK" not in codes, "who seals without a node could never go on"
