"""The logical swarm under every fault in every phase: the others go on, the victim comes back, all agree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from dht.errors import BadInput
from peer.consensus.protocol.messages import VoteCast, decode
from peer.testing.faults import PHASES, Corrupt, Crash, Fault, Partition, Slow, Stall
from peer.testing.memory_peer import TRAIN_S
from peer.testing.memory_swarm import LogicalSwarm

VICTIM, ROUND = 1, 1
FAULTS: dict[str, Callable[[str], Fault]] = {
    "crash": lambda phase: Crash(peer=VICTIM, phase=phase, round=ROUND, back_after_s=5.0),
    "restart": lambda phase: Crash(peer=VICTIM, phase=phase, round=ROUND, back_after_s=0.0),
    "stall": lambda phase: Stall(peer=VICTIM, phase=phase, round=ROUND, seconds=7.0),
    "slow": lambda phase: Slow(peer=VICTIM, phase=phase, round=ROUND, seconds=7.0, bytes_per_s=500.0),
    "silent": lambda phase: Slow(peer=VICTIM, phase=phase, round=ROUND, seconds=7.0, bytes_per_s=0.0),
    "corrupt": lambda phase: Corrupt(peer=VICTIM, phase=phase, round=ROUND, frames=20),
    "partition": lambda phase: Partition(peers=(VICTIM,), phase=phase, round=ROUND, seconds=10.0),
}
CASES = [
    (kind, phase, (3, 5)[(number + place) % 2])
    for number, kind in enumerate(FAULTS)
    for place, phase in enumerate(PHASES)
]
"""Each fault in each phase, of three peers and of five in turn."""
BACK_S = 25.0
"""From a fault until its victim takes part again: the fault itself (at most 10 s) and two rounds."""


def struck(peers: int, seed: int, fault: Fault) -> LogicalSwarm:
    """A swarm at the moment when the fault strikes."""
    run = LogicalSwarm(peers=peers, seed=seed)
    run.inject(fault)
    while not run.struck:
        assert run.now_s < 60, "it never struck"
        run.run_for(0.1)
    return run


def deadline_s(run: LogicalSwarm) -> float:
    """What one peer can cost the others at most: the longest training, the wait for it to be ready, and either the
    deadlines of a member that gives nothing, or the patience with a coordinator that says nothing."""
    rules = run.world.rules("p0")
    member_s = 2 * (rules.exchange_s + rules.ack_s)
    coordinator_s = rules.exchange_s + 2 * rules.ack_s + rules.stagger_s + rules.ack_s
    return TRAIN_S[1] + rules.gather_s + max(member_s, coordinator_s)


def run_until(run: LogicalSwarm, happened: Callable[[], bool], within_s: float, what: str) -> None:
    deadline = run.now_s + within_s
    while not happened():
        assert run.now_s < deadline, f"{what} takes more than {within_s:.0f} s"
        run.run_for(0.1)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "phase", "peers"), CASES)
def test_one_peer_costs_the_others_their_deadlines_at_most_and_takes_part_again(
    kind: str, phase: str, peers: int
) -> None:
    """Whatever happens to it, and when; every update, every bit and every book agrees at the end."""
    others = [peer for peer in range(peers) if peer != VICTIM]
    run = struck(peers, peers, FAULTS[kind](phase))
    at_s = run.now_s
    run_until(run, lambda: all(len(run.committed(peer)) > ROUND for peer in others), deadline_s(run), "the round")

    def victim_is_in() -> bool:
        newest = run.committed(others[0])[-1]
        return newest.round > ROUND + 1 and VICTIM in newest.group

    run_until(run, victim_is_in, BACK_S - (run.now_s - at_s), "coming back")
    run.until_round(6, within_s=60)
    run.assert_agreement()


@pytest.mark.slow
@pytest.mark.parametrize("phase", PHASES)
def test_two_peers_wait_for_each_other(phase: str) -> None:
    """Both are a majority: while one is gone nothing commits, or both have the bytes already; then they go on."""
    for kind in ("crash", "stall", "partition"):
        run = struck(2, 1, FAULTS[kind](phase))
        run.run_for(4.9)
        assert len(run.committed(1 - VICTIM)) <= ROUND + 1
        run.until_round(5, within_s=60)
        run.assert_agreement()


def test_a_swarm_goes_on_without_a_peer_that_never_returns() -> None:
    """It is not waited for by `until_round` either."""
    run = LogicalSwarm(peers=4, seed=2)
    run.inject(Crash(peer=0, phase="reduce", round=1))
    run.until_round(5, within_s=90)
    assert len(run.committed(0)) == 1
    assert run.group(5) == {1, 2, 3}
    run.assert_agreement()


@pytest.mark.parametrize(("parted", "least"), [((0,), 3), ((0, 1), 1)])
def test_a_divided_swarm_commits_on_the_side_of_the_quorum_alone(parted: tuple[int, ...], least: int) -> None:
    """Three of five are none, and wait. The swarm is one again afterwards."""
    run = LogicalSwarm(peers=5, seed=3)
    run.inject(Partition(peers=parted, phase="train", round=1, seconds=40.0))
    run.run_for(40.0)
    assert {len(run.committed(peer)) for peer in parted} == {1}
    others = [len(run.committed(peer)) for peer in range(5) if peer not in parted]
    assert min(others) >= least
    assert len(parted) == 1 or max(others) == 1
    run.until_round(8, within_s=90)
    assert run.group(8) == {0, 1, 2, 3, 4}
    run.assert_agreement()


def test_corrupt_frames_arrive_and_are_refused() -> None:
    """As many as asked for, and somebody notices some of them at once."""
    run = LogicalSwarm(peers=4, seed=1)
    run.inject(Corrupt(peer=2, phase="exchange", round=1, frames=12))
    run.until_round(5, within_s=90)
    assert run.world.peers[2].streams.frames_corrupted == 12
    assert sum(peer.driver.bad_frames for peer in run.world.peers) > 0
    run.assert_agreement()


def test_the_only_peer_that_is_ahead_is_asked_also_when_it_gave_a_bad_block() -> None:
    """A corrupt chain must not stop two peers for as long as the doubt lasts."""
    run = LogicalSwarm(peers=2, seed=1)
    run.until_round(2, within_s=60)
    lagging = run.world.peers[0]
    run.world.network.drops = lambda sender, to, frame: to == "p0" and is_last_vote(frame)
    state = lagging.driver.state
    lagging.driver.state = replace(state, refused_sources={"p1": float("inf")})
    run.until_round(4, within_s=60)
    run.assert_agreement()


def is_last_vote(frame: bytes) -> bool:
    """Without it a peer does not know that the round is decided."""
    return frame[1] == VoteCast.code and decode(frame).vote.phase == 2  # type: ignore[attr-defined]


def history(seed: int) -> list[object]:
    run = LogicalSwarm(peers=4, seed=seed)
    run.inject(
        Crash(peer=2, phase="commit", round=1, back_after_s=3), Corrupt(peer=1, phase="exchange", round=2, frames=5)
    )
    run.until_round(3, within_s=60)
    run.join()
    run.until_round(6, within_s=60)
    return [run.committed(peer) for peer in range(run.size)]


@pytest.mark.slow
def test_the_same_seed_gives_the_same_history() -> None:
    """Times and digests included; another seed gives another one."""
    assert history(1) == history(1)
    assert history(1) != history(2)


def test_faults_may_be_injected_while_it_runs() -> None:
    """And each strikes once, in the first ballot that gets there."""
    run = LogicalSwarm(peers=3, seed=1)
    run.until_round(2, within_s=60)
    late = Crash(peer=0, phase="prepare", round=3, back_after_s=1)
    run.inject(late)
    assert (run.struck, run.waiting) == ((), (late,))
    run.until_round(6, within_s=90)
    assert (run.struck, run.waiting) == ((late,), ())


def test_a_fault_of_a_round_that_is_over_is_refused_at_once() -> None:
    """It would never strike; a round that has begun may still get to its phase."""
    run = LogicalSwarm(peers=3, seed=1)
    run.until_round(3, within_s=60)
    begun = len(run.committed(0))
    with pytest.raises(BadInput, match=f"round 1 is over; the newest that has begun there is {begun}"):
        run.inject(Crash(peer=0, phase="prepare", round=1))
    assert run.waiting == ()
    run.inject(Crash(peer=0, phase="apply", round=begun, back_after_s=1))


def test_a_newcomer_is_waited_for_until_a_round_counts_it() -> None:
    run = LogicalSwarm(peers=3, seed=1)
    run.until_round(2, within_s=60)
    peer = run.join()
    run.until_member(peer, within_s=120)
    assert peer in run.group(max(commit.round for commit in run.committed(0)))
    run.inject(Crash(peer=peer, phase="train", round=len(run.committed(0)) + 1))
    run.until_round(len(run.committed(0)) + 4, within_s=200)
    with pytest.raises(AssertionError, match=f"peer {peer} is no member of a round after 20 s"):
        run.until_member(peer, within_s=20)


def test_a_crash_strikes_after_what_strikes_together_with_it() -> None:
    """Otherwise the dead would miss their other faults."""
    run = LogicalSwarm(peers=3, seed=1)
    crash = Crash(peer=0, phase="exchange", round=1, back_after_s=1)
    corrupt = Corrupt(peer=0, phase="exchange", round=1, frames=4)
    run.inject(crash, corrupt)
    run.until_round(3, within_s=60)
    assert run.struck == (corrupt, crash)
    run.run_for(30)
    assert run.world.peers[0].streams.frames_corrupted == 4


def test_a_round_that_does_not_come_says_who_is_where() -> None:
    """Two of three are dead, so nobody commits any more."""
    run = LogicalSwarm(peers=3, seed=1)
    run.inject(Crash(peer=0, phase="exchange", round=1), Crash(peer=1, phase="exchange", round=1))
    with pytest.raises(AssertionError, match=r"not everybody is at round 3 after 50 s: peer 0 died at 1, .* 2 is at 1"):
        run.until_round(3, within_s=50)


def test_disagreement_is_named() -> None:
    """Which peers have which digest and state of which round."""
    run = LogicalSwarm(peers=3, seed=1)
    with pytest.raises(AssertionError, match="no peer has committed anything"):
        run.assert_agreement()
    run.until_round(2, within_s=60)
    run.world.history[2][1] = replace(run.world.history[2][1], state="ff" * 32)
    with pytest.raises(AssertionError, match=r"round 2 differs: peers \[0, 1\] .*; peers \[2\] .* state ffff"):
        run.assert_agreement()


def test_a_round_that_nobody_made_has_no_group() -> None:
    """An empty set would hide the mistake."""
    run = LogicalSwarm(peers=2, seed=1)
    run.until_round(1, within_s=30)
    assert run.group(1) == {0, 1}
    with pytest.raises(AssertionError, match="no peer has committed round 9"):
        run.group(9)


@pytest.mark.parametrize("peer", [-1, 2])
def test_a_peer_that_does_not_exist_has_committed_nothing_to_ask_for(peer: int) -> None:
    """One clear line, not an index error or the history of the last peer."""
    with pytest.raises(BadInput, match=f"there is no peer {peer}; they are 0 to 1"):
        LogicalSwarm(peers=2, seed=1).committed(peer)
