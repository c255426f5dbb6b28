"""Rounds that average one fragment of the model each: the others' layers, records and books stay as they are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from peer.consensus.aggregation.evidence import AggregationRules
from peer.consensus.protocol.block import VOID
from peer.consensus.protocol.head import ChainEntry
from peer.consensus.protocol.norms import declared
from peer.consensus.rounds.machine import begin
from peer.consensus.rounds.reassignment import direction
from peer.consensus.rounds.transition import Transition
from peer.testing.memory_peer import PARTS, Ledger, averaged, decoded
from peer.testing.memory_swarm import LogicalSwarm, World
from tests import chaos
from tests.model_swarm import RESTART_S, run_schedule
from tests.peer.consensus.rounds.build import HEAD, NAMES, NORMS, block, fault_of, header, rules, state_of, update

EDIT = AggregationRules(rule="edit", warmup_rounds=2)
ROUNDS = 9


def grown(fragments: int, aggregation: AggregationRules = EDIT) -> World:
    """Three peers after some rounds without faults."""
    world = World(1, 3, aggregation=aggregation, fragments=fragments)
    while min(peer.disk.head.round for peer in world.peers) < ROUNDS:
        world.scheduler.run_until(world.now + 1.0)
        assert world.now < 40.0 * ROUNDS
    world.check()
    return world


def steps_of(world: World) -> list[ChainEntry]:
    """The chain of the first peer, each block with the head before it."""
    disk = world.peers[0].disk
    heads = (disk.genesis, *disk.heads)
    return [ChainEntry(before, block) for before, block in zip(heads, disk.blocks, strict=False)]


@pytest.mark.parametrize("fragments", [2, 3])
def test_a_round_averages_its_fragment_alone(fragments: int) -> None:
    """Its update holds no other part, and what is not in it moves nobody."""
    world = grown(fragments)
    theta = [0] * PARTS
    for step in steps_of(world):
        update = step.block.update
        parts = averaged(update.round - 1, fragments)
        assert len(update.parts) == len(parts) < PARTS
        for part, name in zip(parts, update.parts, strict=True):
            theta[part] += 0 if name == VOID else decoded(world.peers[0].disk.objects[name])
        assert world.peers[0].disk.objects.keys() >= {name for name in update.parts if name != VOID}
    assert theta == world.peers[0].ledger.theta
    assert all(theta)


@pytest.mark.parametrize("fragments", [2, 3])
def test_what_is_known_of_other_layers_stays(fragments: int) -> None:
    """A round measures the layers of its fragment; the records of the others are those of the round before."""
    moved = set()
    for step in steps_of(grown(fragments)):
        update, before = step.block.update, {record.peer: record.stats for record in step.before.records}
        parts = averaged(update.round - 1, fragments)
        assert {len(header.norms) for header in update.members if header.root} == {12 * len(parts)}
        assert {layer for _, _, _, _, layer, _ in update.penalties} <= {-1, *parts}
        for record in update.records:
            known = before.get(record.peer)
            for layer, stat in enumerate(record.stats):
                changed = stat.count + stat.rejected > 0 if known is None else stat != known[layer]
                assert not changed or layer in parts, (update.round, layer)
                moved |= {layer} if changed else set()
    assert moved == set(range(PARTS))


@pytest.mark.parametrize("fragments", [1, 2, 3])
def test_contributions_are_compared_with_the_last_mean_of_the_same_fragment(fragments: int) -> None:
    """That of as many rounds ago as there are fragments; in the first round of each with nothing."""
    world = grown(fragments)
    steps = steps_of(world)
    for number, step in enumerate(steps):
        update = step.block.update
        parts = averaged(update.round - 1, fragments)
        fragment = world.peers[0].driver.state.rules.fragment(update.round - 1)
        for at in range(len(parts)):
            said = {declared(fragment, header)[at][2] for header in update.members if header.root}
            if number < fragments:
                assert said == {0.0}
                continue
            name = steps[number - fragments].block.update.parts[at]
            last = decoded(world.peers[0].disk.objects[name]) // 16 if name != VOID else 0
            assert [*said] == pytest.approx([float(last) ** 2])


def test_who_came_later_has_no_last_mean_of_most_fragments() -> None:
    """With the newest block alone only one fragment of two could be compared with it, and that one has had its turn."""
    two = replace(rules("p0"), fragments=2)
    step = ChainEntry(HEAD, block())
    turn = Transition(begin(two, replace(HEAD, round=1), 0.0, trail=(step,)), 0.0)
    assert direction(turn, 0) == VOID
    turn = Transition(begin(two, replace(HEAD, round=2), 0.0, trail=(step, step)), 0.0)
    assert direction(turn, 0) == step.block.update.parts[0]


def test_an_update_of_other_parts_is_refused() -> None:
    """All parts of the model where one fragment is due, or those of another fragment."""
    two = replace(state_of("p0"), rules=replace(rules("p0"), fragments=2))
    assert "36 bytes of norms, not 24" in fault_of(two, update())
    fitting = tuple(header(name, norms=NORMS[:24]) for name in NAMES)
    assert fault_of(two, replace(update(), members=fitting)) == "its parts are not those of the model"
    second = replace(two, head=replace(HEAD, round=1))
    assert len(two.rules.fragment(0).parts) != len(second.rules.fragment(1).parts)
    one = replace(update(), members=fitting, parts=update().parts[:1], contributors=(0b111,))
    assert fault_of(two, one) == "its parts are not those of the model"


# ---- faults ----


@pytest.mark.slow
@pytest.mark.parametrize("fragments", [2, 3])
def test_faults_in_every_phase(fragments: int) -> None:
    """A part of the chaos matrix."""
    for number in range(fragments, chaos.CASES, 41):
        chaos.run(chaos.case(number), fragments)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fragments", "kind"),
    [
        (2, "targeted"), (3, "random"), (3, "splits"),
        *(pytest.param(*case, marks=pytest.mark.nightly) for case in ((2, "random"), (2, "splits"), (3, "targeted"))),
    ],
)  # fmt: skip
def test_schedules_of_faults(fragments: int, kind: str) -> None:
    """Crashes at any effect, an adversary that aims at agreement, splits; judged, so that layers are rolled back."""
    aggregation = AggregationRules(rule="centered-clip", warmup_rounds=2, deviation_floor=0.1)
    seed = 7_000 + fragments
    assert run_schedule(seed, kind, restart_s=RESTART_S, aggregation=aggregation, fragments=fragments).commits


def test_books_that_forget_whose_turn_it_is_do_not_balance(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks can fail: a peer that settles another fragment than the one that was averaged is found out."""
    swarm = LogicalSwarm(peers=3, seed=1, fragments=3)
    swarm.until_round(4, within_s=100)
    swarm.assert_agreement()
    monkeypatch.setattr(Ledger, "averaged", lambda ledger: averaged(ledger.round + 1, 3))
    swarm.run_for(20.0)
    with pytest.raises(AssertionError, match="part"):
        swarm.world.check()
