"""Homes of all kinds in one run: a device, two ranks, a model that lies in main memory; and ranks that are killed."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import psutil
import pytest

from dht.atomic_files import write_atomic
from peer.schema.events import AlertRaised, EventLine, PeerStarted, PhaseEntered, RoundCommitted
from peer.testing.child_process import BUSY, processes_of
from peer.testing.faulty_peer import LOSES_IN, RANK
from peer.testing.ledger_check import audit_books
from peer.testing.process_swarm import RealSwarm
from peer.testing.pytest_plugin import StartSwarm
from peer.testing.short_waits import write_hurry
from tests.swarm.conftest import LIGHT, RESTING

pytestmark = [pytest.mark.swarm, pytest.mark.nightly]

RANK_MODULE = "peer.parallel.fsdp.rank"
ONE, TWO, FROM_MEMORY = range(3)
"""Peers, by their devices."""
OWN = {TWO: ("devices=cpu,cpu", "sharding=full"), FROM_MEMORY: ("devices=cpu", "offload=yes")}
SETS = (
    *LIGHT, "round.sync_rounds=1", "round.ramp_rounds=0", "round.gather_s=4", "round.exchange_s=4", "round.ack_s=2",
    "round.stagger_s=1", "round.keep_rounds=128", "round.snapshot_rounds=128", "round.max_staleness=128",
    "data.eval_every=1000",
)  # fmt: skip
FORGETS = {"peer.parallel.ranks.roster.AGAIN_S": 0.0}
"""A device that was lost any number of times is tried again."""
BACK_S = 60.0
"""From the loss of a rank until the peer takes part again."""
ROUNDING = 1e-6
"""Of the largest element that a peer produced: what single precision may lose of it in so many rounds."""


def test_ranks_that_are_killed_cost_their_peer_no_more_than_a_restart(swarm: StartSwarm) -> None:
    """In each phase of a round, while a checkpoint is written, and while they start: the others' rounds go on, and
    nothing that their peer has offered is lost. Then twice within ten minutes: it goes on with the one that is left."""
    run = swarm(peers=3, real=True, sets=SETS, settings=RESTING, own=OWN, hurry=FORGETS, books=True)
    run.until_round(2)
    assert [len(ranks(run, peer)) for peer in (ONE, TWO, FROM_MEMORY)] == [0, 2, 1]
    for when in LOSES_IN:
        loses(run, partial(write_atomic, run.directory_of(TWO) / RANK, when.encode()))
    loses(run, lambda: kill_in_exchange_and_start(run))
    run.until_round(10)
    run.assert_agreement()

    assert run.stop(TWO) == 0
    write_hurry(run.directory_of(TWO), {})
    run.restart(TWO)
    takes_part(run, time.monotonic())
    loses(run, lambda: ranks(run, TWO)[1].kill())
    loses(run, lambda: ranks(run, TWO)[1].kill())
    started = [line.event for line in run.lines(TWO) if isinstance(line.event, PeerStarted)]
    assert [(event.device, event.devices) for event in started[-2:]] == [("2 × cpu", ("cpu", "cpu")), ("cpu", ("cpu",))]
    assert ranks(run, TWO) == []
    run.until_round(run.committed(ONE)[-1].round + 1)
    run.assert_agreement()

    for peer in (ONE, TWO, FROM_MEMORY):
        assert run.stop(peer) == 0
        assert "Traceback" not in run.log(peer)
        books = audit_books(run.directory_of(peer), run.spec, run.id_of(peer))
        assert books.missing < ROUNDING * books.produced, f"peer {peer}: {books}"


def loses(run: RealSwarm, strike: Callable[[], object]) -> None:
    """The peer says so and takes part again in time, and meanwhile the others make rounds."""
    told, before = rank_alerts(run), run.committed(ONE)[-1].round
    strike()
    run.until(lambda: rank_alerts(run) > told, "it has not said that a rank was lost")
    takes_part(run, time.monotonic())
    assert run.committed(ONE)[-1].round > before


def takes_part(run: RealSwarm, since: float) -> None:
    """A round that is decided from now on counts it."""
    last, me = run.committed(ONE)[-1].round, run.id_of(TWO)

    def counts(line: EventLine) -> bool:
        return isinstance(line.event, RoundCommitted) and line.event.round > last + 1 and me in line.event.group

    run.until(lambda: any(map(counts, run.lines(TWO))), "it is in no group again")
    assert time.monotonic() - since < BACK_S * BUSY


def ranks(run: RealSwarm, peer: int) -> list[psutil.Process]:
    """The processes that compute on its devices, in order."""
    found = [each for each in processes_of(run.directory_of(peer)) if RANK_MODULE in each.info["cmdline"]]
    return sorted(found, key=psutil.Process.create_time)


def rank_alerts(run: RealSwarm) -> int:
    alerts = [line.event for line in run.lines(TWO) if isinstance(line.event, AlertRaised)]
    return sum(alert.code == "RANK" for alert in alerts)


def kill_in_exchange_and_start(run: RealSwarm) -> None:
    """A rank while its peer waits for the others' bytes, and one of those that take their place, before they have
    met."""
    last, told = run.committed(ONE)[-1].round, rank_alerts(run)

    def exchanges(line: EventLine) -> bool:
        event = line.event
        return isinstance(event, PhaseEntered) and event.phase == "exchange" and event.round >= last

    run.wait_for(TWO, exchanges)
    before = {rank.pid for rank in ranks(run, TWO)}
    ranks(run, TWO)[0].kill()
    run.until(lambda: rank_alerts(run) > told, "it has not said that a rank was lost")
    run.until(lambda: [rank for rank in ranks(run, TWO) if rank.pid not in before], "no rank takes its place")
    ranks(run, TWO)[0].kill()
    run.until(lambda: rank_alerts(run) > told + 1, "it has not said that another was lost")
