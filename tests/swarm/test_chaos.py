"""Chaos with real processes: one swarm of four, and in every phase of a round a stand-still and a `kill -9`."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass

import pytest

from peer.schema.events import PeerStarted, RoundCommitted
from peer.schema.spec_fields import RoundTable
from peer.testing.child_process import assert_no_orphans
from peer.testing.faults import PHASES, Crash, Stall
from peer.testing.process_swarm import RealSwarm
from peer.testing.pytest_plugin import StartSwarm
from tests.swarm.conftest import LIGHT, RESTING

pytestmark = [pytest.mark.swarm, pytest.mark.nightly]

PEERS = 4
STALL_S = 12.0
"""Longer than the others wait for anybody, by the deadlines below."""
SETS = (
    *LIGHT,
    "round.max_train_s=8.0", "round.gather_s=3.0", "round.exchange_s=3.0", "round.ack_s=1.5",
    "round.stagger_s=1.0", "data.eval_every=1000",
)  # fmt: skip
VOTES_S = 8.0
"""What was proposed is decided within this time, or the ballot ends."""
Victim = Stall | Crash


@dataclass(frozen=True, kw_only=True)
class Strike:
    """A fault that has struck."""

    fault: Victim
    seen: int
    """How many lines the victim had printed."""
    at_s: float
    led: bool
    """Whether the victim was to lead the round."""

    @property
    def victim(self) -> int:
        return self.fault.peer


def test_a_stall_and_a_kill_in_every_phase(swarm: StartSwarm) -> None:
    """Sixteen strikes one after the other, at peers in turn and at those who lead a round. Each time the others commit
    that very round by the deadlines of the spec, with the same bits. Each victim comes back and its work counts again:
    after a stall without a new start, after a kill from its disk. In the end no process is left."""
    run = swarm(peers=PEERS, real=True, sets=SETS, settings=RESTING)
    run.until_round(2)
    strikes: list[Strike] = []
    for number, phase in enumerate(PHASES):
        for kind in (Stall, Crash):
            leader = phase != "train" and (kind is Crash) == bool(number % 2)
            round, present = spare_one(run, strikes, leader)
            fault = aim(run, kind, phase, round, choose(run, strikes, round, present, leader))
            strikes.append(strike(run, fault))
            assert_survivors_commit(run, strikes[-1], present - {fault.peer})
    run.until(lambda: all(has_returned(run, one) for one in strikes), "not all victims are back")
    run.assert_agreement()
    assert {one.victim for one in strikes} == set(range(PEERS))
    assert sum(one.led for one in strikes) == len(PHASES) - 1
    kills = Counter(one.victim for one in strikes if isinstance(one.fault, Crash))
    assert [starts(run, peer) for peer in range(PEERS)] == [1 + kills[peer] for peer in range(PEERS)]
    run.close()
    assert_no_orphans(run.directory)
    assert all("Traceback" not in run.log(peer) for peer in range(PEERS))


# ---- before a strike ----


def spare_one(run: RealSwarm, strikes: list[Strike], leader: bool) -> tuple[int, set[int]]:
    """Wait for a round, just begun, whose electorate keeps its majority without those who are away and one more.

    Returns the anchor it starts from, and who is there. With `leader`, its coordinator is there.
    """
    while True:
        round = newest_round(run) + 1
        run.until_first(round)
        electorate = run.electorate(round)
        present = electorate - {one.victim for one in strikes if not has_returned(run, one)}
        if 2 * (len(present) - 1) > len(electorate) and (not leader or run.coordinator(round) in present):
            return round, present


def choose(run: RealSwarm, strikes: list[Strike], round: int, present: set[int], leader: bool) -> int:
    """The coordinator, or whoever else was struck least often so far."""
    coordinator = run.coordinator(round)
    if leader:
        return coordinator
    times = Counter(one.victim for one in strikes)
    return min(sorted(present - {coordinator}), key=lambda peer: times[peer])


def aim(run: RealSwarm, kind: type[Victim], phase: str, round: int, victim: int) -> Victim:
    """A fault that can still strike: the inner steps after anchor `round` may have begun."""
    if phase == "train":
        round += 1
    if kind is Crash:
        return Crash(peer=victim, phase=phase, round=round, back_after_s=0.0)
    return Stall(peer=victim, phase=phase, round=round, seconds=STALL_S)


# ---- a strike ----


def strike(run: RealSwarm, fault: Victim) -> Strike:
    run.inject(fault)
    run.until_struck(fault)
    return Strike(
        fault=fault, seen=len(run.lines(fault.peer)), at_s=time.time() - run.began_at,
        led=fault.phase != "train" and run.coordinator(fault.round) == fault.peer,
    )  # fmt: skip


def assert_survivors_commit(run: RealSwarm, one: Strike, survivors: set[int]) -> None:
    """All others commit the round by its deadlines, with equal bits."""
    made, limit_s = one.fault.round + 1, longest_s(run.spec.round)
    if one.fault.phase in ("train", "submit"):
        limit_s += run.spec.round.max_train_s
    run.until_round(made, by=survivors)
    ends_s = [commit.at_s for peer in survivors for commit in run.committed(peer) if commit.round == made]
    assert len(ends_s) == len(survivors)
    took_s = max(ends_s) - one.at_s
    print(f"{one.at_s:5.0f} s  {one.fault}, led: {one.led}; the others took {took_s:.1f} of {limit_s:.0f} s")
    assert took_s < limit_s
    run.assert_agreement()


def longest_s(table: RoundTable) -> float:
    """A round of trained peers that loses one of them, at most: the rest is waited for, and if the lost one leads it,
    its silence is noticed; then promises, parts and norms, means, a second attempt at what is missing, and votes."""
    noticed_s = max(table.gather_s, table.silence_s + PEERS * table.stagger_s)
    exchanged_s = 3 * (table.exchange_s + table.ack_s)
    return noticed_s + table.ack_s + exchanged_s + VOTES_S


# ---- after a strike ----


def has_returned(run: RealSwarm, one: Strike) -> bool:
    """Whether the victim's work has counted in a round that nobody had made when the victim was there again."""
    there_s = there_again_s(run, one)
    if there_s is None:
        return False
    made = max(commit.round for peer in range(PEERS) for commit in run.committed(peer) if commit.at_s <= there_s)
    me = run.id_of(one.victim)
    later = (line.event for line in run.lines(one.victim)[one.seen :])
    return any(isinstance(event, RoundCommitted) and event.round > made and event.weights.get(me) for event in later)


def there_again_s(run: RealSwarm, one: Strike) -> float | None:
    """When the victim first said something after its stall, or after its death; None as long as it has not."""
    for line in run.lines(one.victim)[one.seen :]:
        at_s = line.t - run.began_at
        if isinstance(line.event, PeerStarted) or (isinstance(one.fault, Stall) and at_s > one.at_s + STALL_S / 2):
            return at_s
    return None


def starts(run: RealSwarm, peer: int) -> int:
    return sum(isinstance(line.event, PeerStarted) for line in run.lines(peer))


def newest_round(run: RealSwarm) -> int:
    return max(run.committed(peer)[-1].round for peer in range(PEERS))
