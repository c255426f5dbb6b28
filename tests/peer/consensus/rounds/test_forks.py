"""Two sides that went on apart end on one branch, and nobody loses work."""

from __future__ import annotations

from dataclasses import replace

import pytest

from peer.consensus.protocol import validation
from peer.consensus.protocol.block import Block
from peer.consensus.protocol.head import next_anchor
from peer.consensus.protocol.messages import Blocks, GetBlocks, Heartbeat
from peer.consensus.rounds import block_sync, forks
from peer.consensus.rounds.interface import Input, NeedSnapshot, Received, Rollback, Send, Tick
from peer.consensus.rounds.machine import step
from peer.consensus.rounds.transition import Transition
from peer.node.lifecycle.inputs_effects import Result, Rewind, Work
from peer.schema.events import AlertRaised
from peer.testing.memory_peer import LogicalPeer
from peer.testing.memory_swarm import World
from tests.model_swarm import FaultyWorld
from tests.plans import run_one

TAKEOVER_S = 12.0
APART_S = 35.0


def apart(peers: int, side: int, seed: int, apart_s: float = APART_S) -> FaultyWorld:
    """A swarm that was cut in two for a while, at the moment when it is whole again."""
    world = FaultyWorld(seed, peers, takeover_s=TAKEOVER_S)
    world.scheduler.run_until(20.0)
    world.network.partition([peer.name for peer in world.peers[:side]])
    world.scheduler.run_until(20.0 + apart_s)
    world.check()
    return world


def heal(world: FaultyWorld, calm_s: float = 60.0) -> None:
    world.network.partition()
    world.scheduler.run_until(world.now + calm_s)


def heads(world: World) -> set[bytes]:
    """The anchors where the peers stood two rounds before the newest head: by then all have followed."""
    last = min(peer.disk.head.round for peer in world.peers)
    return {peer.disk.heads[last - 1].anchor for peer in world.peers}


@pytest.mark.slow
@pytest.mark.parametrize(("peers", "side", "seed"), [(2, 1, 0), (3, 1, 1), (4, 2, 0), (5, 2, 1), (6, 3, 0), (7, 3, 1)])
def test_both_sides_end_on_one_branch(peers: int, side: int, seed: int) -> None:
    """They had different anchors; after contact they have one chain, the same bits, and all books residual."""
    world = apart(peers, side, seed)
    branches = {peer.disk.head.anchor for peer in world.peers}
    assert len(branches) > 1
    heal(world)
    assert len(heads(world)) == 1
    world.check()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_the_side_that_did_more_is_kept(seed: int) -> None:
    """Three of five went on at once, two after a wait: it is those two who undo, and they say so."""
    world = apart(5, 2, seed)
    kept = world.peers[4].disk.head.anchor
    heal(world)
    assert kept in {head.anchor for head in world.peers[0].disk.heads}
    for peer in world.peers:
        said = [event for event in peer.reports if isinstance(event, AlertRaised) and event.code == "FORK"]
        assert len(said) == (1 if peer in world.peers[:2] else 0)


@pytest.mark.slow
def test_what_the_losing_branch_held_of_a_peers_work_is_offered_again() -> None:
    """After the fork switch the residual holds what the undone updates had counted, and a later update counts it."""
    world = apart(5, 2, 1)
    loser = world.peers[0]
    counted = list(loser.ledger.counted)
    returned: list[list[int]] = []
    do = loser.do

    def note(work: Work) -> Result:
        result = do(work)
        if isinstance(work, Rewind):
            returned.append(list(loser.ledger.counted))
        return result

    loser.do = note  # type: ignore[method-assign]
    heal(world)
    assert len(returned) == 1
    assert returned[0] != counted
    assert loser.ledger.counted != returned[0], "what came back was never counted again"
    world.check()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_crash_in_the_middle_of_a_fork_switch_is_recovered(seed: int) -> None:
    """Killed at any effect around the switch, the peer ends on the winning branch with its books in order."""
    world = apart(5, 2, seed)
    loser = world.peers[seed % 2]
    perform = loser.driver._perform

    def burning(effect: object) -> None:
        if isinstance(effect, Rollback):
            loser.fuse = 1 + seed
        perform(effect)  # type: ignore[arg-type]

    loser.driver._perform = burning  # type: ignore[method-assign]
    world.network.partition()
    world.scheduler.run_until(world.now + 15.0)
    if not loser.alive:
        loser.boot()
    loser.fuse = None
    world.scheduler.run_until(world.now + 60.0)
    assert len(heads(world)) == 1
    world.check()


def test_a_short_cut_in_the_middle_of_a_round_forks_nothing() -> None:
    """Less than `takeover_s` apart: the minority waits, and follows."""
    world = apart(5, 2, 3, apart_s=0.8 * TAKEOVER_S)
    heal(world)
    assert all(block.firm for peer in world.peers for block in peer.disk.blocks)
    assert not any(isinstance(event, AlertRaised) and event.code == "FORK" for p in world.peers for event in p.reports)


# ---- who cannot fork a run ----


def forked(world: FaultyWorld) -> tuple[LogicalPeer, Block]:
    """A peer of the majority, and the first block with which the others left its chain."""
    ours = {head.anchor for head in world.peers[4].disk.heads}
    blocks = zip(world.peers[0].disk.heads, world.peers[0].disk.blocks, strict=True)
    return world.peers[4], next(block for head, block in blocks if head.anchor not in ours)


def test_nobody_takes_over_before_the_time() -> None:
    """A weak update is dated `takeover_s` after its parent at least, so a branch of one's own takes real time."""
    peer, weak = forked(apart(5, 2, 1))
    step_before = next(item for item in peer.driver.state.trail if item.before.anchor == weak.update.parent)
    patient = replace(peer.driver.state.rules, takeover_s=1000.0)
    assert not validation.check_block(peer.driver.state.rules, step_before.before, weak)
    assert validation.check_block(patient, step_before.before, weak)


def test_identities_of_ones_own_make_no_branch_heavy() -> None:
    """Only those count who were known where the branches part."""
    peer, weak = forked(apart(5, 2, 1))
    assert forks._work([weak], {header.peer for header in weak.update.members}) == len(weak.update.members)
    assert forks._work([weak], {peer.name}) == 0


def gives_up(*names: str, said: bool = True, until_s: float = 50.0) -> bool:
    """Whether p0 leaves its chain while these say HEAD with a huge weight, and each GET is answered with no blocks; or,
    unless they have `said` so, not at all."""
    world = apart(3, 1, 1, apart_s=0.0)
    current = world.peers[0].driver.state
    for tick in range(int(2 * until_s)):
        now = world.now + tick / 2
        events: list[Input] = [
            Received(now, name, Heartbeat(b"?" * 32, 999, 10**9, b"", True, 1, 1, False)) for name in names
        ]
        for event in [*events, Tick(now)]:
            current, effects = step(current, event)
            asked = {
                one
                for effect in effects
                if isinstance(effect, Send) and isinstance(effect.message, GetBlocks)
                for one in effect.to
            }
            for name in asked.intersection(names) if said else ():
                current, more = step(current, Received(now, name, Blocks(())))
                effects = (*effects, *more)
            if any(isinstance(effect, NeedSnapshot) for effect in effects):
                return True
    return False


def test_strangers_who_claim_to_be_further_move_nobody() -> None:
    """Voters of the chain who say for long enough that nothing of theirs follows it are another matter."""
    assert not gives_up("x", "y", "z")
    assert not gives_up("p1")
    assert not gives_up("p1", "p2", until_s=block_sync.LOST_S)
    assert gives_up("p1", "p2")
    assert gives_up("p1", "x"), "who joined the others when they had parted is nobody's voter here"


def test_silence_gives_nothing_up() -> None:
    """Who is heard and never answers may have lost the question, or its answer."""
    assert not gives_up("p1", "p2", said=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plan", "number"),
    [
        (
            "targeted",
            1033,
        ),  # two went on alone; hardly a question or an answer gets through, but that the other is further
        (
            "forks",
            215,
        ),  # one went on alone for eleven rounds, faster than the others, who did more: it is to follow them
        (
            "forks",
            3677,
        ),  # one went on alone for fifteen rounds, of six others who made six: it gives up, and they go on
    ],
)
def test_what_can_be_undone_is_undone_and_nothing_else_is_given_up(plan: str, number: int) -> None:
    """`FaultyWorld` says which chain may be given up, and that all end on one."""
    result = run_one(plan, number)
    assert not result.failure
    assert result.counts["forked"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_two_pairs_that_know_one_of_each_other_do_not_stay_apart(seed: int) -> None:
    """Both founders went on alone and each met another, longer ago than can be undone: somebody is to give up."""
    world = FaultyWorld(seed, 2, takeover_s=TAKEOVER_S)
    world.network.partition(["p0", "p2"])
    world.scheduler.run_until(30.0)
    world.join()
    world.join()
    world.scheduler.run_until(150.0)
    for peer, known in zip(world.peers, ("p1", "p0", "p1", "p0"), strict=True):
        assert set(peer.driver.state.voters) - set(peer.disk.head.electorate) == {known}
        assert len(peer.disk.head.electorate) == 2
        assert peer.disk.head.round > 2 * peer.disk.keep_rounds
    heal(world)
    assert world.counts["resynced"] == 2
    assert world.forked == 1
    assert not world.apart(), world.apart()
    world.check()


# ---- blocks that wait for their bytes ----


def at_the_parting() -> tuple[Transition, tuple[Block, ...], tuple[Block, ...]]:
    """A peer where two branches part, which holds no bytes of either; the lighter one's blocks, and the other's."""
    world = apart(5, 2, 1)
    lighter, heavier = world.peers[0], world.peers[4]
    heads, others = lighter.disk.heads, {head.anchor for head in heavier.disk.heads}
    common = sum(head.anchor in others for head in heads)
    turn = Transition(lighter.driver.state, world.now)
    forks.rollback_to(turn, heads[common - 1])
    turn.set(held={})
    return turn, tuple(lighter.disk.blocks[common:]), tuple(heavier.disk.blocks[common:])


def test_what_waits_for_its_bytes_makes_room_for_a_branch_that_did_more() -> None:
    """Those who made it may have left it, and then nobody holds the bytes any more."""
    turn, lighter, heavier = at_the_parting()
    block_sync.on_chain(turn, "p1", lighter)
    assert turn.state.blocks == lighter
    block_sync.on_chain(turn, "p3", heavier)
    assert turn.state.blocks == heavier
    assert turn.state.tip.anchor == next_anchor(heavier[-1].update.parent, heavier[-1].update.digest)
    block_sync.on_chain(turn, "p1", lighter)
    assert turn.state.blocks == heavier


def test_what_waits_before_the_parting_goes_on_waiting() -> None:
    """Only what differs is replaced."""
    turn, lighter, heavier = at_the_parting()
    trunk = turn.state.trail[-1]
    forks.rollback_to(turn, trunk.before)
    turn.set(held={})
    block_sync.on_chain(turn, "p1", (trunk.block, *lighter))
    block_sync.on_chain(turn, "p3", heavier)
    assert turn.state.blocks == (trunk.block, *heavier)


def test_a_chain_is_given_up_even_while_blocks_wait_for_bytes_that_never_come() -> None:
    """Voters who did more than those blocks have no way from any of them."""
    turn, lighter, _ = at_the_parting()
    block_sync.on_chain(turn, "p1", lighter)
    began_at, given_up = turn.now, False
    while not given_up and turn.now < began_at + 3 * block_sync.LOST_S:
        turn = Transition(turn.state, turn.now + 1.0)
        for name in ("p2", "p3"):
            block_sync.on_head(turn, name, Heartbeat(b"?" * 32, 999, 10**9, b"", True, 1, 1, False))
            block_sync.on_chain(turn, name, ())
        block_sync.poll(turn)
        given_up = any(isinstance(effect, NeedSnapshot) for effect in turn.effects)
    assert given_up
    assert turn.now > began_at + block_sync.LOST_S


def test_a_clock_that_stood_still_is_set_again() -> None:
    """A laptop that slept: what the others date now is not ahead of its clock once the driver has ticked."""
    world = apart(5, 2, 1)
    peer, weak = forked(world)
    rules = replace(peer.driver.state.rules, min_round_s=1, wall_offset_s=-600.0)
    state = replace(peer.driver.state, rules=rules)
    assert not validation.timely(Transition(state, world.now).wall_s, weak.update.time)
    state, _ = step(state, Tick(world.now, 0.0))
    assert validation.timely(Transition(state, world.now).wall_s, weak.update.time)
