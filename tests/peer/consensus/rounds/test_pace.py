"""Unequal peers at one pace: the slow one holds nobody up, and counts in every round with what it has made.

The product's own machine, driver and pace on a virtual clock, so that seconds are exact. And the least number of steps
that a round waits for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import msgspec
import pytest

from peer.consensus.protocol.block import Block
from peer.consensus.protocol.head import ChainHead
from peer.consensus.protocol.messages import Heartbeat
from peer.consensus.protocol.rules import Rules
from peer.consensus.rounds.interface import Received, Submitted, Tick
from peer.consensus.rounds.machine import step
from peer.consensus.rounds.state import State
from peer.consensus.rounds.timeouts import Deadlines, asks_at
from peer.node.lifecycle.inputs_effects import SpeedsHeard
from peer.node.lifecycle.pace import Pace
from peer.schema.ipc import AnyToLink, ReportProgress
from peer.schema.spec import RunSpec, from_mapping
from peer.testing.faults import Crash, Fault, Partition, Stall
from peer.testing.memory_peer import LogicalPeer
from peer.testing.memory_swarm import LogicalSwarm, World
from tests.peer.consensus.rounds.ballot import run
from tests.peer.consensus.rounds.build import HEAD, header, rules, state_of

STEPS = 20
FIRST, SECOND, THIRD = HEAD.order


def spec(**round: Any) -> RunSpec:
    return from_mapping(
        {
            "run": {"name": "paced"},
            "model": {"architecture": "llama", "context": 8},
            "round": {"steps": STEPS, "max_train_s": 3600.0, **round},
        }
    )


class PacedPeer(LogicalPeer):
    """Makes inner steps of `paced_s`, and says how fast it is."""

    world: PacedWorld

    def __init__(self, world: PacedWorld, name: str, paced_s: float) -> None:
        self.paced_s = paced_s
        super().__init__(world, name)

    def step_s(self) -> float:
        return self.paced_s

    def say(self, message: AnyToLink) -> None:
        if isinstance(message, ReportProgress):
            self.world.speeds[self.name] = message.tokens_per_s
        super().say(message)

    def committed(self, block: Block, head: ChainHead) -> None:
        others = {peer: speed for peer, speed in self.world.speeds.items() if peer != self.name}
        self.feed(SpeedsHeard(self.now, others))
        super().committed(block, head)


class PacedWorld(World):
    """Peers with these seconds per step."""

    def __init__(self, step_s: Sequence[float], seed: int, **round: Any) -> None:
        self.step_s, self.spec = step_s, spec(gather_s=60.0, ack_s=8.0, exchange_s=40.0, **round)
        self.speeds: dict[str, float] = {}
        """What the board says."""
        super().__init__(seed, len(step_s))

    def join(self) -> LogicalPeer:
        name = f"p{len(self.peers)}"
        self.index[name] = len(self.peers)
        self.history.append([])
        self.peers.append(PacedPeer(self, name, self.step_s[len(self.peers)]))
        return self.peers[-1]

    @property
    def run_spec(self) -> RunSpec:
        return self.spec

    def rules(self, name: str) -> Rules:
        """With caps that leave something to learn."""
        return replace(super().rules(name), gather_s=60.0, ack_s=8.0, exchange_s=40.0)

    def run(self, rounds: int) -> list[Block]:
        """The updates up to this round, as the first peer has them."""
        first = self.peers[0].disk
        while len(first.blocks) < rounds:
            assert self.now < 500.0 * rounds
            self.scheduler.run_until(self.now + 0.25)
        self.check()
        return first.blocks[:rounds]


WARM = 4
"""Rounds after which speeds and deadlines are known."""
ROUNDS = 14


@dataclasses.dataclass(frozen=True)
class Run:
    """What became of a run after the first rounds."""

    round_s: float
    """How long one of its rounds took, on average."""
    blocks: tuple[Block, ...]

    def penalties(self, peer: str) -> list[str]:
        return [code for block in self.blocks for about, code, *_ in block.update.penalties if about == peer]

    def share(self, peer: str, block: Block) -> float:
        """Of its tokens in what all of them came to."""
        tokens = {header.peer: header.tokens for header in block.update.members}
        return tokens[peer] / sum(tokens.values())


@cache
def outcome(slow: float, seed: int, pace: str, max_train_s: float = 3600.0) -> Run:
    """Four peers whose steps take 1 s, but for p3's."""
    world = PacedWorld((1.0, 1.0, 1.0, slow), seed, pace=pace, max_train_s=max_train_s)
    blocks = world.run(ROUNDS)
    at_s = world.committed_at["p0"]
    return Run((at_s[ROUNDS - 1] - at_s[WARM - 1]) / (ROUNDS - WARM), tuple(blocks[WARM:]))


PACES = {"speed": ("speed", 3600.0), "time": ("time", 20.5)}


@pytest.mark.slow
@pytest.mark.parametrize(("pace", "slow", "seed"), [("speed", 3.0, 0), ("time", 4.0, 1)])
def test_a_slow_peer_costs_the_others_nothing_and_counts_in_every_round(seed: int, slow: float, pace: str) -> None:
    """Rounds are no longer than without it, to 1 %; it is never late; it weighs what it made."""
    alike, unequal = outcome(1.0, seed, *PACES[pace]), outcome(slow, seed, *PACES[pace])
    print(f"{pace}, {slow:g} times slower: {unequal.round_s:.2f} s per round, {alike.round_s:.2f} s without")
    assert unequal.round_s <= 1.01 * alike.round_s
    assert all(unequal.penalties(peer) == [] for peer in ("p0", "p1", "p2", "p3"))
    for block in unequal.blocks:
        update = block.update
        made = {header.peer: header.steps for header in update.members}
        assert made["p3"] == int(STEPS / slow)
        assert made["p0"] == STEPS
        assert all(update.contributed("p3", part) for part in range(len(update.parts)))
        index = [header.peer for header in update.members].index("p3")
        for row in update.weights:
            assert row[index] / sum(row) == pytest.approx(unequal.share("p3", block), abs=1e-4)


@pytest.mark.slow
def test_where_all_make_the_same_steps_the_slow_one_is_late_or_holds_everybody_up() -> None:
    """What paces are for, and what the test before would see without them."""
    alike, unequal = outcome(1.0, 0, "steps"), outcome(4.0, 0, "steps")
    late = len(unequal.penalties("p3")) / len(unequal.blocks)
    print(f"all steps: {unequal.round_s:.2f} s per round, {alike.round_s:.2f} s without; late in {late:.0%}")
    assert unequal.round_s > 1.05 * alike.round_s or late > 0.5


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_by_the_time_all_are_ready_within_a_step(seed: int) -> None:
    """And the group waits for nobody, whatever the speeds, with steps that do not divide the time."""
    world = PacedWorld((0.58, 0.75, 1.51, 3.33), seed, pace="time", max_train_s=15.0)
    blocks = world.run(10)
    for block in blocks[WARM:]:
        ready_ms = [row[0] for row in block.update.took]
        assert max(ready_ms) < 3330 + 500
        assert [code for _, code, *_ in block.update.penalties] == []
    steps = {header.peer: header.steps for header in blocks[-1].update.members}
    assert steps == {"p0": 25, "p1": 19, "p2": 9, "p3": 4}


@pytest.mark.slow
def test_a_peer_that_gets_slower_in_the_middle_of_a_run_is_late_for_four_rounds_at_most() -> None:
    """Its owner begins to use the machine: the others hear it, and so does its own part, within the rounds from which
    speeds are learned. (With twelve seeds it was late in one to four.)"""
    world = PacedWorld((1.0, 1.0, 1.0, 1.0), 7, pace="speed")
    world.run(8)
    world.peers[3].paced_s = 4.0  # type: ignore[attr-defined]
    blocks = world.run(20)
    late = [block.update.round for block in blocks for about, *_ in block.update.penalties if about == "p3"]
    assert len(late) <= 4
    at_s = world.committed_at["p0"]
    assert (at_s[19] - at_s[13]) / 6 <= 1.01 * (at_s[7] - at_s[3]) / 4


def test_one_that_lies_about_its_speed_shrinks_nobodys_part() -> None:
    """A thousand times as fast, so it says: the others go on making their steps."""
    world = PacedWorld((1.0, 1.0, 1.0, 1.0), 8, pace="speed")
    liar = world.peers[3]
    boaster = type("Boaster", (Pace,), {"tokens_per_s": property(lambda self: 1e6)})(world.spec)
    liar.life = msgspec.structs.replace(liar.life, pace=boaster)
    for block in world.run(10)[WARM:]:
        assert {header.steps for header in block.update.members if header.peer != "p3"} == {STEPS}


# ---- the least number of steps ----


def says(peer: str, steps: int, *, ready: bool = True) -> Received:
    head = Heartbeat(HEAD.anchor, HEAD.round, HEAD.weight, b"", ready, 64 * steps, steps, False, peer, 0)
    return Received(10.0, peer, head)


def waiting(min_steps: int, *others: tuple[str, int], mine: int = 10) -> State:
    """The first coordinator, ready after 5 s in a round that waits 10 s for the late ones and 60 s at most."""
    table = replace(rules(FIRST), gather_s=60.0, ack_s=8.0, exchange_s=120.0, min_steps=min_steps)
    state = state_of(FIRST, rules=table, deadlines=Deadlines(10.0, 2.0, 3.0, 3.0))
    state, _ = run(state, Submitted(5.0, replace(header(FIRST), steps=mine)))
    for peer, steps in others:
        state, _ = step(state, says(peer, steps))
    return state


def test_a_round_waits_for_more_while_too_few_steps_are_made() -> None:
    """Two of three are ready, with 30 steps together."""
    assert asks_at(waiting(0, (SECOND, 20))) == asks_at(waiting(30, (SECOND, 20))) == 15.0
    assert asks_at(waiting(31, (SECOND, 20))) == 65.0


def test_too_few_steps_stop_nothing() -> None:
    """The longest wait that there is in any case ends this one, too."""
    state, _ = step(waiting(1000, (SECOND, 20)), Tick(64.9))
    assert state.lead is None
    state, _ = step(state, Tick(65.0))
    assert state.lead is not None


def test_where_all_are_ready_nobody_can_add_a_step() -> None:
    """So the round begins."""
    assert waiting(1000, (SECOND, 20), (THIRD, 20)).lead is not None


def test_what_one_peer_says_counts_no_more_than_a_round_may_hold() -> None:
    """And steps of one that still trains not at all."""
    state = waiting(0, (SECOND, 10**9))
    enough, too_few = (replace(state.rules, steps_cap=40, min_steps=needed) for needed in (50, 51))
    assert (asks_at(replace(state, rules=enough)), asks_at(replace(state, rules=too_few))) == (15.0, 65.0)
    state, _ = step(state, says(THIRD, 15, ready=False))
    assert asks_at(replace(state, rules=too_few)) == 65.0


@pytest.mark.parametrize(
    "fault",
    [
        Crash(peer=1, phase="exchange", round=1, back_after_s=5.0),
        Stall(peer=0, phase="prepare", round=1, seconds=7.0),
        Partition(peers=(1,), phase="train", round=1, seconds=10.0),
    ],
    ids=("crash", "stall", "partition"),
)
def test_a_run_in_which_the_steps_never_suffice_goes_on_under_faults(
    monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    """And its books residual."""
    usual = World.rules
    monkeypatch.setattr(World, "rules", lambda world, name: replace(usual(world, name), min_steps=10**9))
    run = LogicalSwarm(peers=4, seed=5)
    run.inject(fault)
    run.until_round(6, within_s=120)
    run.assert_agreement()
