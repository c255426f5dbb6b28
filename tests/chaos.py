"""The chaos matrix: every fault strikes a peer of the memory swarm in every phase of a round.

`run(case(17))` is schedule 17, the same each time. It has one fault; the network, the training times and
the victim come from its seed. Checked in each: the invariants of `peer.testing.memory_swarm.World` at every
commit and at the end, that the fault has struck, that those whom it leaves a majority commit every round by
its deadline, and that all who live end on one chain that moves on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from random import Random

from peer.consensus.protocol.rules import Rules
from peer.consensus.rounds.collector import VOTES_S
from peer.consensus.rounds.timeouts import SILENT_S
from peer.schema.events import AlertRaised
from peer.testing.faults import (
    PHASES,
    Corrupt,
    Crash,
    Cut,
    Duplicate,
    Fault,
    Loss,
    Partition,
    Reorder,
    Slow,
    Stall,
)  # fmt: skip
from peer.testing.memory_peer import APPLY_S, TRAIN_S
from peer.testing.memory_swarm import LogicalSwarm, World

KINDS = ("crash", "restart", "stall", "loss", "duplicate", "reorder", "slow", "corrupt", "partition", "cut")
PEERS = range(2, 8)
CASES = len(PHASES) * len(KINDS) * len(PEERS)
"""Cases of one seed."""
RESTART_S = 12.0
LONG_S = 20.0
LOOK_S = 0.5
STAGES = 6
"""Waits of a ballot; each may end a tick late."""
ROUNDS_AFTER = 2
"""Everybody must commit as many rounds after the fault is over."""
NEWCOMER_S = 10.0
"""Longest until a peer that was away has replayed what it missed and is in step."""


@dataclass(frozen=True, kw_only=True, order=True)
class Case:
    """One schedule of the matrix."""

    seed: int
    phase: str
    kind: str
    peers: int

    @property
    def restart_s(self) -> float:
        """Two peers are no quorum without each other; else every other seed goes without restarts."""
        return RESTART_S if self.peers == 2 or self.seed % 2 else 0.0


def case(number: int) -> Case:
    """The matrix in one line: all cases of seed 0, then those of seed 1, …"""
    seed, place = divmod(number, CASES)
    place, peers = divmod(place, len(PEERS))
    phase, kind = divmod(place, len(KINDS))
    return Case(seed=seed, phase=PHASES[phase], kind=KINDS[kind], peers=PEERS[peers])


def pairs() -> list[int]:
    """Schedules in which each fault strikes in each phase, and each number of peers meets each fault and each phase."""
    return [
        number
        for number in range(CASES)
        if (number // len(PEERS) // len(KINDS) + number // len(PEERS) + number) % len(PEERS) == 0
    ]


def run(case: Case, fragments: int = 1) -> Counter[str]:
    """Run a schedule; returns what happened in it. Raises AssertionError that says what did not hold."""
    dice = Random(f"{case}")
    swarm = LogicalSwarm(peers=case.peers, seed=dice.randrange(1 << 30), restart_s=case.restart_s, fragments=fragments)
    fault = _fault(case, dice)
    victim = fault.victims[0]
    swarm.inject(fault)
    bound_s = deadline_s(swarm.world.rules("p0"), case)
    _until(swarm, lambda: bool(swarm.struck), 3 * bound_s, "it never struck")
    swarm.run_for(_seconds(fault))
    newest = max(peer.disk.head.round for peer in swarm.world.peers)
    within_s = (ROUNDS_AFTER + 1) * bound_s + NEWCOMER_S
    _until(swarm, lambda: _all_at(swarm, newest + ROUNDS_AFTER), within_s, "not all go on together")
    assert swarm.struck == (fault,)
    swarm.world.check()
    _check_waits(swarm, victim, bound_s)
    return tally(swarm.world)


# ---- the fault ----


def _fault(case: Case, dice: Random) -> Fault:
    peer, phase, round = dice.randrange(case.peers), case.phase, dice.randrange(3)
    seconds = dice.choice((LONG_S / 2, LONG_S))
    match case.kind:
        case "crash":
            return Crash(peer=peer, phase=phase, round=round)
        case "restart":
            return Crash(peer=peer, phase=phase, round=round, back_after_s=dice.uniform(0.0, 15.0))
        case "stall":
            return Stall(peer=peer, phase=phase, round=round, seconds=LONG_S)
        case "loss":
            return Loss(peer=peer, phase=phase, round=round, seconds=seconds, rate=0.5)
        case "duplicate":
            return Duplicate(peer=peer, phase=phase, round=round, seconds=seconds, rate=0.5, late_s=dice.uniform(0, 15))
        case "reorder":
            return Reorder(peer=peer, phase=phase, round=round, seconds=seconds, late_s=dice.uniform(0.5, 3.0))
        case "slow":
            return Slow(peer=peer, phase=phase, round=round, seconds=seconds, bytes_per_s=dice.choice((0.0, 500.0)))
        case "corrupt":
            return Corrupt(peer=peer, phase=phase, round=round, frames=dice.choice((5, 50)))
        case "partition":
            return Partition(peers=(peer,), phase=phase, round=round, seconds=seconds)
        case "cut":
            other = (peer + dice.randrange(1, case.peers)) % case.peers
            return Cut(peer=peer, other=other, phase=phase, round=round, seconds=seconds)
    raise AssertionError(f"no such kind: {case.kind}")


def _seconds(fault: Fault) -> float:
    """How long it acts; one that strikes frames by number is over when all of them are sent."""
    match fault:
        case Crash(back_after_s=back_after_s):
            return back_after_s or 0.0
        case Corrupt():
            return 0.0
    return fault.seconds


# ---- what must hold ----


def deadline_s(rules: Rules, case: Case) -> float:
    """Within this time of the last round every peer that a quorum can hear commits the next one.

    Training; the wait for a victim that is not ready; a ballot that a victim leads into nothing at the last
    moment; the patience with it; the ballot of another, with every wait used up, that first looks for an update
    that may have been accepted. Two peers are no quorum without each other: until the organiser lets one go on, all of
    it is wasted, and the fault itself.
    """
    ack_s, exchange_s = rules.ack_s, rules.exchange_s
    means_s = 2 * exchange_s
    repair_s, votes_s = exchange_s + ack_s + exchange_s, 2 * ack_s
    ballot_s = (ack_s + exchange_s) + (means_s + ack_s) + repair_s + votes_s + STAGES * LOOK_S
    patience_s = means_s + 2 * ack_s + rules.stagger_s
    round_s = TRAIN_S[1] + APPLY_S + rules.gather_s + ballot_s + patience_s + ballot_s
    return round_s if case.peers > 2 else round_s + LONG_S + SILENT_S + rules.restart_s + VOTES_S


def _check_waits(swarm: LogicalSwarm, victim: int, bound_s: float) -> None:
    for peer in swarm.world.peers:
        if swarm.world.index[peer.name] == victim:
            continue
        moments = (0.0, *swarm.world.committed_at[peer.name], swarm.now_s)
        longest_s, at_s = max((late - early, early) for early, late in pairwise(moments))
        assert longest_s <= bound_s, f"{peer.name} waits {longest_s:.1f} s after {at_s:.1f} s, {bound_s:.1f} s at most"


def _all_at(swarm: LogicalSwarm, round: int) -> bool:
    """Whether all who live have got there, on one chain."""
    live = [peer for peer in swarm.world.peers if peer.alive]
    return min(peer.disk.head.round for peer in live) >= round and not swarm.world.apart()


def _until(swarm: LogicalSwarm, happened: Callable[[], bool], within_s: float, what: str) -> None:
    deadline = swarm.now_s + within_s
    while not happened():
        assert swarm.now_s < deadline, f"{what} within {within_s:.0f} s: {_where(swarm)}"
        swarm.run_for(LOOK_S)


def _where(swarm: LogicalSwarm) -> str:
    places = (
        f"{peer.name} {'at' if peer.alive else 'died at'} {peer.disk.head.round}, weight {peer.disk.head.weight}"
        for peer in swarm.world.peers
    )
    return f"{'; '.join(places)}; {swarm.world.apart()}"


def tally(world: World) -> Counter[str]:
    """What happened in a world, over all its peers."""
    reports = (event for peer in world.peers for event in peer.reports if isinstance(event, AlertRaised))
    codes = Counter(event.code for event in reports)
    return world.counts + Counter({"repairs": codes["REPAIR"]})
