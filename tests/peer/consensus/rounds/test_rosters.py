"""The organiser's list among voters: heard by one, passed on, carried by the chain, obeyed by who votes next."""

from __future__ import annotations

from dataclasses import replace

from peer.consensus.protocol.block import NO_ROSTER, Roster
from peer.consensus.rounds.interface import Leaving, RosterHeard
from peer.testing.memory_peer import LogicalPeer, ModelKeys
from peer.testing.memory_swarm import ORGANISER, World

FOUNDERS = ("p0", "p1", "p2")
TWO_ROUNDS_S = 30.0


def signed(number: int, known: tuple[str, ...], out: tuple[str, ...] = ()) -> Roster:
    return Roster(number, known, out).signed(ModelKeys(ORGANISER))


def hear(world: World, peer: LogicalPeer, roster: Roster) -> None:
    peer.driver.deliver(RosterHeard(world.now, roster))


def test_what_one_voter_hears_is_in_the_chain_of_all_soon() -> None:
    world = World(1, 3)
    world.scheduler.run_until(10.0)
    roster = signed(5, FOUNDERS)
    hear(world, world.peers[1], roster)
    world.scheduler.run_until(10.0 + TWO_ROUNDS_S)
    assert [peer.driver.state.head.roster for peer in world.peers] == [roster] * 3
    world.check()


def test_what_the_organiser_has_not_signed_or_is_older_counts_for_nobody() -> None:
    world = World(1, 3)
    peer = world.peers[0]
    hear(world, peer, replace(signed(5, FOUNDERS), known=("p0",)))
    assert peer.driver.state.roster == NO_ROSTER
    newer = signed(6, FOUNDERS)
    hear(world, peer, newer)
    hear(world, peer, signed(5, ("p0",)))
    assert peer.driver.state.roster == newer


def test_who_is_kept_out_votes_no_more() -> None:
    world = World(2, 4)
    world.scheduler.run_until(10.0)
    hear(world, world.peers[0], signed(1, ("p0", "p1", "p2"), ("p3",)))
    world.scheduler.run_until(10.0 + TWO_ROUNDS_S)
    assert all(peer.driver.state.head.electorate == ("p0", "p1", "p2") for peer in world.peers[:3])


def test_founders_are_known_from_the_genesis_on_though_a_peer_has_heard_of_no_list() -> None:
    """A list of number 0 is signed by nobody; it stands in the head where every chain begins."""
    world = of_known_founders(3)
    stranger = world.join()
    world.scheduler.run_until(200.0)
    heads = [peer.driver.state.head for peer in world.peers]
    assert all(head.roster == Roster(0, FOUNDERS) for head in heads)
    assert all(head.electorate == (*FOUNDERS, stranger.name) for head in heads)


def test_founders_leave_one_by_one_and_who_is_left_of_the_known_goes_on() -> None:
    """A stranger stays to the end and has no vote once a single founder is left; promoted, it goes on without that. Of
    two the one that is left may need the organiser's word, where no round was made while the other said goodbye."""
    world = of_known_founders(4)
    stranger = world.join()
    world.scheduler.run_until(200.0)
    for number, leaver in enumerate(world.peers[:2]):
        say_goodbye(world, leaver)
        world.scheduler.run_until(260.0 + 60.0 * number)
    last = world.peers[2]
    head = last.driver.state.head
    assert head.electorate == ("p2",)
    assert stranger.name in head.members
    world.desk.roster = signed(1, (*FOUNDERS, stranger.name))
    hear(world, last, world.desk.roster)
    world.scheduler.run_until(360.0)
    assert last.driver.state.head.electorate == ("p2", stranger.name)
    say_goodbye(world, last)
    world.scheduler.run_until(600.0)
    head = stranger.driver.state.head
    assert (head.electorate, head.round > last.driver.state.head.round) == ((stranger.name,), True)
    world.check()


def of_known_founders(seed: int) -> World:
    """Whose genesis is the first list, as in every real run."""
    world = World(seed, 3, restart_s=10.0)
    world.desk.roster = Roster(0, FOUNDERS)
    world.genesis = replace(world.genesis, roster=Roster(0, FOUNDERS))
    for founder in world.peers:
        state = founder.driver.state
        founder.driver.state = replace(state, head=replace(state.head, roster=world.genesis.roster))
    return world


def say_goodbye(world: World, peer: LogicalPeer) -> None:
    peer.driver.deliver(Leaving(world.now))
    peer.later(20.0, peer.crash)
