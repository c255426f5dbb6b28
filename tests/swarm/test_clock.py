"""A peer whose machine wakes up with a wrong clock."""

from __future__ import annotations

import time

import pytest

from dht.atomic_files import write_atomic
from peer.schema.events import AlertRaised, EventLine, PeerStateChanged
from peer.testing.faulty_link import CLOCK
from peer.testing.pytest_plugin import StartSwarm
from tests.swarm.conftest import LIGHT, RESTING

pytestmark = pytest.mark.swarm

QUICK = (*LIGHT, "round.max_train_s=20", "round.gather_s=4", "round.exchange_s=4", "round.ack_s=2")
NOTICED_S = 120.0


def is_told(line: EventLine) -> bool:
    return isinstance(line.event, AlertRaised) and line.event.code == "CLOCK"


def is_held(line: EventLine) -> bool:
    return isinstance(line.event, PeerStateChanged) and "clock is 90 s ahead" in line.event.why


def test_it_says_so_holds_back_and_comes_back_when_the_clock_is_right(swarm: StartSwarm) -> None:
    """The others go on meanwhile, and all have the same bits afterwards."""
    run = swarm(
        peers=3, real=True, sets=QUICK, settings=RESTING, hurry={"peer.node.lifecycle.link_changes.CLOCK_RETRY_S": 5.0}
    )
    run.until_round(2)
    clock = run.directory_of(2) / CLOCK
    went_wrong_at = time.time()
    write_atomic(clock, b"90")
    told = run.wait_for(2, is_told)
    assert told.t - went_wrong_at < NOTICED_S
    assert isinstance(told.event, AlertRaised)
    assert "timedatectl set-ntp true" in told.event.text
    held = run.wait_for(2, is_held)
    assert isinstance(held.event, PeerStateChanged)
    assert held.event.state == "PAUSED"
    clock.unlink()
    last = run.committed(0)[-1].round
    run.until_round(last + 2, by=(0, 1))
    run.until(lambda: 2 in run.committed(0)[-1].group and run.committed(2)[-1].round > last, "it is in no group again")
    assert [alert.event.code for alert in run.lines(2) if is_told(alert)] == ["CLOCK"]
    run.assert_agreement()
