"""Members that are several homes, in the logical swarm: faults strike each home, and the round keeps its promises.

More schedules: `python -m tests.benchmarks chaos --clusters --schedules 2000`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from peer.consensus.delegates.worker_messages import is_order
from peer.consensus.protocol.block import ContributionHeader
from peer.consensus.protocol.messages import MeanData, ObjectData, PartData, decode
from peer.consensus.rounds.interface import DelegateHolds
from peer.schema.events import AlertRaised, RoundStalled
from peer.testing.memory_cluster import LogicalLead, spans
from peer.testing.memory_swarm import World
from tests.model_swarm import RESTART_S, run_schedule
from tests.night import at_night
from tests.plans import run_one, summary
from tui.text.event_text import stall_brief

FIRST = 3_000_000
SCHEDULES = 12
"""Of the three kinds in turn."""


@pytest.mark.nightly
@pytest.mark.slow
def test_clusters_keep_the_promises_of_the_round(capsys: pytest.CaptureFixture[str]) -> None:
    """Crashes of workers, leads and both, stalls, partitions, cuts, loss: none split, stuck or wrong in the books."""
    results = [run_one("clusters", FIRST + number) for number in range(SCHEDULES)]
    with capsys.disabled():
        print(f"\n{summary(results)}")
    assert [str(result) for result in results if result.failure] == []
    assert sum(result.counts["commits"] for result in results) > 20 * SCHEDULES


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "kind", "restart_s"),
    [
        (130, "splits", RESTART_S),  # workers went on with others while their lead was alone
        # Means of several layers have the same bytes.
        pytest.param(114, "random", RESTART_S, marks=pytest.mark.nightly),
        # A lead alone that had accepted, and came back, asked nobody for the bytes.
        pytest.param(300_667, "targeted", RESTART_S, marks=pytest.mark.nightly),
    ],
)
def test_schedules_that_found_something(number: int, kind: str, restart_s: float) -> None:
    run_schedule(number, kind, restart_s=restart_s, clusters=True)


@pytest.mark.slow
def test_fragments_and_written_promises() -> None:
    """A round that averages some layers alone; and what is said is on disk before."""
    run_schedule(FIRST, "random", clusters=True, fragments=2, watched=True)
    run_schedule(FIRST + 1, "splits", restart_s=RESTART_S, clusters=True, fragments=2, watched=True)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_cluster_is_a_member_like_any_other(workers: int) -> None:
    """Every round has all of what every home learned, and all stand at one anchor."""
    world = World(workers, 3, clusters={0: workers, 1: 1}, parts=4)
    world.scheduler.run_until(60.0)
    world.check()
    assert not world.apart()
    updates = [block.update for block in world.peers[2].disk.blocks]
    assert len(updates) > 6
    assert {update.contributors for update in updates[1:]} == {(0b111,) * 4}
    assert all(not update.penalties for update in updates[1:])
    lead = world.peers[0]
    assert isinstance(lead, LogicalLead)
    assert {update.members[0].delegates for update in updates[1:]} == {lead.delegates}
    objects = [set(home.disk.objects) for home in world.homes_of("p0")]
    assert all(not mine <= theirs for mine in objects for theirs in objects if mine is not theirs)


def outer_bytes(world: World, seconds: float) -> tuple[Counter[str], Counter[str]]:
    """Payloads of parts and means that each peer sends and receives, in so many seconds."""
    sent, received = Counter[str](), Counter[str]()

    def count(sender: str, receiver: str, frame: bytes) -> bool:
        message = None if is_order(frame) else decode(frame)
        if isinstance(message, PartData | MeanData | ObjectData):
            sent[sender] += len(message.payload)
            received[receiver] += len(message.payload)
        return False

    world.network.drops = count
    world.scheduler.run_until(world.now + seconds)
    return sent, received


@pytest.mark.parametrize("members", [3, 4, *at_night(8)])
def test_a_home_of_four_has_a_fraction_of_the_traffic(members: int) -> None:
    """A worker with one of four stages; what its lead reduces stays with the lead."""
    world = World(5, members, clusters={0: 3}, parts=4)
    sent, received = outer_bytes(world, 60.0)
    whole = [f"p{index}" for index in range(1, members)]
    usual_sent = sum(sent[name] for name in whole) / len(whole)
    usual_received = sum(received[name] for name in whole) / len(whole)
    for _, _, worker in world.peers[0].delegates:  # type: ignore[attr-defined]
        assert 0 < sent[worker] <= 0.31 * usual_sent
        assert 0 < received[worker] <= 0.31 * usual_received


def test_words_about_bytes_that_are_not_there_are_found_when_they_are_fetched() -> None:
    """Nobody crashes: the others give what the worker has not, and the liar costs its own cluster at most."""
    world = World(2, 4, clusters={0: 1})
    world.scheduler.run_until(20.0)
    lead, worker = world.peers[0], world.homes_of("p0")[1]

    def lie(sender: str, receiver: str, frame: bytes) -> bool:
        message = None if is_order(frame) else decode(frame)
        if isinstance(message, MeanData) and receiver == worker.name:  # which it throws away
            bare = replace(message, payload=b"")
            word = DelegateHolds(world.now, worker.name, message.digest, len(message.payload), bare)
            lead.later(0.0, lead.deliver, word)
            return True
        return False

    world.network.drops = lie
    world.scheduler.run_until(60.0)
    world.network.drops = None
    before = world.peers[1].disk.head.round
    assert before > 5
    world.scheduler.run_until(100.0)
    world.check()
    assert not world.apart()
    assert world.peers[1].disk.head.round > before + 2


def test_naming_anothers_worker_keeps_nobody_out() -> None:
    """Only who names it has less of it: nobody measures its layers for it, so that it has nothing to give."""
    world = World(4, 3, clusters={0: 1, 1: 1})
    victim, thief = world.peers[0], world.peers[1]
    assert isinstance(victim, LogicalLead)
    assert isinstance(thief, LogicalLead)
    ((_, _, worker),) = victim.delegates
    save = thief.disk.save_contribution

    def save_naming_it(header: ContributionHeader, payloads: list[bytes]) -> None:
        named = replace(header, delegates=((0, 0, worker), *header.delegates))
        save(named.signed(thief.driver.state.rules.keys), payloads)

    thief.disk.save_contribution = save_naming_it  # type: ignore[method-assign]
    world.scheduler.run_until(90.0)
    world.check()
    assert not world.apart()
    updates = [block.update for block in world.peers[2].disk.blocks[1:]]
    assert len(updates) > 5
    for update in updates:
        honest = sum(1 << index for index, member in enumerate(update.members) if member.peer != thief.name)
        assert update.contributors == (honest,) * 3


def test_layers_are_cut_without_a_rest() -> None:
    assert spans(4, 3) == [range(0, 1), range(1, 2), range(2, 4)]
    assert [layer for span in spans(4, 4) for layer in span] == [0, 1, 2, 3]


@pytest.mark.parametrize("seed", [0, *at_night(1, 2)])
def test_the_other_of_two_goes_on_where_a_cluster_has_lost_a_home(seed: int) -> None:
    """Its lead is heard, and answers every ballot, but does not know its bits and so votes for nothing. The screen says
    so. After `restart_s` without its vote, and as long again, the organiser lets the other go on; the cluster comes
    back when it is whole again."""
    world = World(seed, 2, clusters={0: 1}, parts=4, restart_s=60.0)
    world.scheduler.run_until(30.0)
    lead, whole, worker = world.peers[0], world.peers[1], world.homes_of("p0")[1]
    worker.crash()
    world.scheduler.run_until(150.0)
    stalled = [event for event in whole.reports if isinstance(event, RoundStalled)]
    assert "2 of 2 voters are heard; not voting: p0" in stalled[-1].why
    assert stall_brief(stalled[-1], "").startswith("p0 not voting: round ")
    world.scheduler.run_until(280.0)
    said = [event.text for event in whole.reports if isinstance(event, AlertRaised) and event.code == "STUCK"]
    assert len(said) == 1
    assert "waits for p0; the organiser's node is asked" in said[0]
    assert whole.driver.state.electorate == ("p1",)
    assert whole.disk.head.round > lead.disk.head.round + 5
    worker.boot()
    world.scheduler.run_until(480.0)
    world.check()
    assert not world.apart()
    assert set(whole.driver.state.electorate) == {"p0", "p1"}
