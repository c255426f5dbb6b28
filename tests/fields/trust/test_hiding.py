"""Two decisions of one round: a coordinator that shows each group another update, a voter that hides what it
accepted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from peer.consensus.protocol.block import Block, Roster
from peer.consensus.protocol.head import ChainHead
from peer.consensus.protocol.messages import Blocks, EquivocationProof, Propose, VoteCast
from peer.consensus.rounds import acceptor, restart
from peer.consensus.rounds.interface import RosterHeard
from peer.consensus.rounds.transition import Transition
from peer.schema.events import PenaltyImposed
from peer.testing.memory_peer import LogicalPeer, ModelKeys
from peer.testing.memory_swarm import ORGANISER, World
from tests.fields.trust.liars import LIAR, Stage, equivocates
from tests.fields.trust.talkers import floods
from tests.night import at_night

pytestmark = pytest.mark.slow

DECIDED = {kind.code for kind in (Propose, VoteCast, EquivocationProof, Blocks)}


@pytest.mark.parametrize("peers", [4, *at_night(7)])
def test_who_shows_two_groups_that_do_not_hear_each_other_two_updates_decides_one_at_most(
    peers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Among four it decides one with the larger group; the others follow, once they hear it. Nobody else is accused."""
    stage = Stage.of(peers)
    equivocates(monkeypatch, stage)
    stage.run(stage.from_s)

    def deaf(sender: str, receiver: str, frame: bytes) -> bool:
        apart = (sender in stage.second) != (receiver in stage.second)
        return apart and LIAR not in (sender, receiver) and frame[1] in DECIDED

    stage.world.network.drops = deaf
    stage.run(120.0)
    stage.world.network.drops = None
    assert stage.told["two proposals"] > 0
    assert stage.run(100.0) > 3
    assert not stage.world.apart()
    assert stage.accused() == {LIAR}


def test_who_shows_all_of_them_two_updates_is_left_out_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage.of(5)
    equivocates(monkeypatch, stage)
    stage.run(stage.from_s)
    assert stage.run(100.0) > 5
    assert stage.told["two proposals"] > 0
    assert stage.accused() == {LIAR}


class Hidden(World):
    """One anchor of it may be followed by two updates: a voter hid one."""

    anchor = b""

    def committing(self, peer: LogicalPeer, block: Block, head: ChainHead) -> None:
        if block.update.parent == self.anchor:
            self.updates[self.anchor].clear()
        super().committing(peer, block, head)


def test_a_known_voter_that_seals_and_hides_what_it_accepted_costs_one_round_and_is_convicted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of four two decide with the liar's votes, and the third hears nothing of it. Then the liar and the third lose
    the two, and seal: by half of the voters the organiser lets them go on. The round of the two does not count, they
    name the liar, and come back."""
    world = Hidden(5, 4, restart_s=12.0)
    world.liars = {LIAR}
    stage = Stage(world)
    stage.run(stage.from_s)
    third, two = world.peers[1], world.peers[2:]
    while len({peer.disk.head.anchor for peer in world.peers}) > 1:
        world.scheduler.run_until(world.now + 0.1)
    world.anchor = third.disk.head.anchor
    _hide(monkeypatch, world)

    world.network.drops = lambda sender, receiver, frame: "p1" in (sender, receiver)
    while any(peer.disk.head.anchor == world.anchor for peer in two):
        assert world.now < 100.0, "the two decided nothing"
        world.scheduler.run_until(world.now + 0.1)
    taken = two[0].disk.head.round
    assert world.peers[0].disk.head.anchor == third.disk.head.anchor == world.anchor
    world.network.drops = None
    world.network.partition([LIAR, "p1"])
    while third.disk.head.round < taken + 2:
        assert world.now < 300.0, "those who sealed did not go on"
        world.scheduler.run_until(world.now + 1.0)
    assert len(world.restarts) == 1
    assert [peer.disk.head.round for peer in two] == [taken, taken], "too few to go on"

    world.network.heal()
    assert stage.run(120.0) > 3
    assert not world.apart()
    for peer in two:
        convicted = [event.about for event in peer.reports if isinstance(event, PenaltyImposed)]
        assert convicted[:1] == [LIAR]
        assert set(convicted) == {LIAR}
    assert world.counts["resynced"] == 2


def test_a_liar_that_is_half_of_those_who_are_left_holds_them_up_until_the_organiser_keeps_it_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It seals each agreement of the two as it begins, and the two who were parted from them are no voters any more."""
    stage = Stage.of(4, restart_s=12.0)
    floods("stuck")(monkeypatch, stage)
    world = stage.world
    world.network.partition([LIAR, "p1"])
    while not world.restarts:
        assert world.now < 200.0, "nobody was let go on"
        stage.run(1.0)
    world.network.heal()
    stage.run(300.0)
    assert stage.run(200.0) <= 1, "nothing is decided against it either"
    assert len(world.restarts) < 10

    everybody = tuple(sorted(peer.name for peer in world.peers))
    world.desk.roster = Roster(1, everybody, (LIAR,)).signed(ModelKeys(ORGANISER))
    for peer in stage.honest:
        peer.driver.deliver(RosterHeard(world.now, world.desk.roster))
    assert stage.run(300.0) > 5
    assert not world.apart()
    assert stage.blocks[-1].update.elect == ("p1", "p2", "p3")


def _hide(monkeypatch: pytest.MonkeyPatch, world: Hidden) -> None:
    """The liar takes no step beyond the anchor, and forgets what it accepted there."""
    advance, poll = acceptor.advance, restart.poll

    def stay(turn: Transition, block: Block) -> None:
        if turn.me != LIAR or block.restarts or block.update.parent != world.anchor:
            advance(turn, block)

    def forget(turn: Transition) -> None:
        state = turn.state
        if turn.me == LIAR and state.head.anchor == world.anchor and not state.head.number and not _is_whole(world):
            mine = replace(state.acceptor, accepted=None, certificate=())
            turn.set(acceptor=mine, decided=None, proposals={}, blocks=())
        poll(turn)

    monkeypatch.setattr(acceptor, "advance", stay)
    monkeypatch.setattr(restart, "poll", forget)


def _is_whole(world: Hidden) -> bool:
    """Whether the two have not decided yet."""
    return all(peer.disk.head.anchor == world.anchor for peer in world.peers)
