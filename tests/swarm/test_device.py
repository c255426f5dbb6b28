"""A peer whose card others fill when it starts, and whose card fails while it trains."""

from __future__ import annotations

import time

import pytest

from dht.atomic_files import write_atomic
from dht.errors import DeviceLost
from peer.schema.events import EventLine, PeerStateChanged, PeerStopped
from peer.testing.faulty_peer import DEVICE, FULL, GONE
from peer.testing.pytest_plugin import StartSwarm
from tests.swarm.conftest import LIGHT, RESTING

pytestmark = pytest.mark.swarm

QUICK = (*LIGHT, "round.max_train_s=20", "round.gather_s=4", "round.exchange_s=4", "round.ack_s=2")
OBEYED_S = 2.0
HURRY = {"peer.startup.RETRY_S": 0.5}


def waits_for_room(line: EventLine) -> bool:
    event = line.event
    return isinstance(event, PeerStateChanged) and event.state == "PAUSED" and "no room for the model" in event.why


def test_it_waits_for_room_and_ends_with_one_line_when_the_card_is_gone(swarm: StartSwarm) -> None:
    """While it waits it leaves at a word. Afterwards all have the same bits, in the same folder."""
    run = swarm(peers=3, real=True, sets=QUICK, settings=RESTING, hurry=HURRY)
    run.until_round(1)
    device = run.directory_of(2) / DEVICE
    run.stop(2)
    write_atomic(device, FULL.encode())
    run.restart(2)
    run.wait_for(2, waits_for_room)
    asked_at = time.monotonic()
    assert run.stop(2) == 0
    assert time.monotonic() - asked_at < OBEYED_S

    run.restart(2)
    run.until(lambda: sum(map(waits_for_room, run.lines(2))) == 2, "it does not wait for room again")
    device.unlink()
    last = run.committed(0)[-1].round
    run.until(lambda: 2 in run.committed(0)[-1].group and run.committed(2)[-1].round > last, "it is in no group again")

    write_atomic(device, GONE.encode())
    assert run.ends(2) == DeviceLost.exit_code
    stopped = run.lines(2)[-1].event
    assert isinstance(stopped, PeerStopped)
    assert stopped.why.startswith("cpu has failed (CUDA error: uncorrectable ECC error encountered); restart the")
    assert "Traceback" not in run.log(2)
    device.unlink()
    run.restart(2)
    last = run.committed(0)[-1].round
    run.until(lambda: 2 in run.committed(0)[-1].group and run.committed(2)[-1].round > last, "it is in no group again")
    run.assert_agreement()
