"""Two of three founders are gone for good: a person lets the last one go on."""

from __future__ import annotations

import pytest

from bootstrap.restarts import let_go_on, read_waiting
from peer.schema.events import AlertRaised
from peer.testing.pytest_plugin import StartSwarm
from tests.swarm.conftest import LIGHT, RESTING
from tests.swarm.test_two_friends import is_alert, newest

pytestmark = [pytest.mark.swarm, pytest.mark.nightly]

SETS = (
    *LIGHT, "round.gather_s=3.0", "round.exchange_s=4.0", "round.ack_s=1.0", "round.stagger_s=1.0",
    "round.restart_s=3.0",
)  # fmt: skip
HURRY = {"peer.consensus.organiser.restart_desk.WAIT_S": 1.0, "peer.consensus.rounds.timeouts.SILENT_S": 8.0}
LEFT, GONE = 0, (1, 2)


def test_one_of_three_goes_on_once_the_organiser_says_so_and_another_comes_back_to_its_chain(swarm: StartSwarm) -> None:
    """One is less than half of the three whom the organiser knows, so by itself it waits, with its node."""
    run = swarm(peers=3, real=True, sets=SETS, settings=RESTING, hurry=HURRY)
    run.until_round(2)
    for peer in GONE:
        run.kill(peer)
    stood_at = newest(run, LEFT)
    run.wait_for(LEFT, lambda line: is_alert(line, "STUCK"))
    folder = run.directory / "bootstrap"
    run.until(lambda: read_waiting(folder).abouts, "nobody waits at the node")
    (line,) = read_waiting(folder).lines
    assert all(run.id_of(peer) in line for peer in range(3))
    assert newest(run, LEFT) <= stood_at + 1

    assert "they go on" in let_go_on(folder, read_waiting(folder))
    told = run.wait_for(LEFT, lambda line: is_alert(line, "RESTART"))
    assert isinstance(told.event, AlertRaised)
    assert told.event.text.endswith(f"goes on with {run.id_of(LEFT)}")
    run.until_round(stood_at + 3, by=(LEFT,))
    run.restart(1)
    run.until(lambda: run.electorate(newest(run, LEFT)) >= {0, 1}, "who came back is no voter")
    run.until_round(newest(run, LEFT) + 1)
    run.assert_agreement()
