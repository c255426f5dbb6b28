from __future__ import annotations

from peer.events import EventLine, PeerStarted, RoundCommitted
from tui.commands.demo import find_fault
from tui.swarm.reducer import apply, apply_all
from tui.swarm.round_ledger import MAX_COMMITS
from tui.swarm.snapshot import SwarmState


def swarm_of(**digests: dict[int, tuple[str, str]]) -> SwarmState:
    """A swarm in which peer NAME committed ROUND with (digest, state)."""
    swarm = SwarmState()
    for name, rounds in digests.items():
        events = [PeerStarted(name=name, version="0"), *(commit(round, *pair) for round, pair in rounds.items())]
        for event in events:
            swarm = apply(swarm, EventLine(seq=0, t=0.0, run="r", peer=f"id-{name}", event=event))
    return swarm


def commit(round: int, digest: str, state: str) -> RoundCommitted:
    return RoundCommitted(
        round=round,
        digest=digest,
        state=state,
        group=[],
        weights={},
        penalties=[],
        tokens=1,
        bytes_sent=0,
        bytes_received=0,
        round_s=1.0,
        exposed_s=1.0,
    )


BOTH = {1: ("d1", "s1"), 2: ("d2", "s2")}


def test_equal_digests_in_every_round_are_no_fault() -> None:
    assert find_fault(swarm_of(a=BOTH, b=BOTH), ["a", "b"], rounds=2, ends={}) is None


def test_another_digest_is_named_with_its_round_and_peer() -> None:
    swarm = swarm_of(a=BOTH, b=BOTH | {2: ("dX", "s2")})
    assert find_fault(swarm, ["a", "b"], rounds=2, ends={}) == "round 2: b has digest dX, others have d2"


def test_another_state_under_an_equal_digest_is_a_fault() -> None:
    swarm = swarm_of(a=BOTH, b=BOTH | {1: ("d1", "sX")})
    assert find_fault(swarm, ["a", "b"], rounds=2, ends={}) == "round 1: b has state sX, others have s1"


def test_a_round_that_one_peer_lacks_is_a_fault_with_the_reason() -> None:
    swarm = swarm_of(a=BOTH, b={1: ("d1", "s1")})
    fault = find_fault(swarm, ["a", "b"], rounds=2, ends={"b": "killed by SIGKILL"})
    assert fault == "b did not commit round 2 of 2, its last is 1: killed by SIGKILL"


def test_a_gap_is_a_fault_even_if_the_last_round_is_there() -> None:
    swarm = swarm_of(a={2: ("d2", "s2")}, b=BOTH)
    assert find_fault(swarm, ["a", "b"], rounds=2, ends={}) == "a did not commit round 1 of 2, its last is 2"


def test_a_peer_that_never_spoke_is_a_fault() -> None:
    assert find_fault(swarm_of(a=BOTH), ["a", "b"], rounds=2, ends={}) == "b never reported anything"


def test_a_difference_is_told_before_a_missing_round() -> None:
    swarm = swarm_of(a=BOTH, b={1: ("dX", "s1")})
    fault = find_fault(swarm, ["a", "b"], rounds=2, ends={})
    assert fault is not None
    assert fault.startswith("round 1: b has digest dX")


def test_a_demo_longer_than_what_is_remembered() -> None:
    """Only the newest commits of a peer are kept; the oldest rounds are not called missing."""
    rounds = MAX_COMMITS + 3
    committed = {round: (f"d{round}", f"s{round}") for round in range(1, rounds + 1)}
    lines = [
        EventLine(seq=0, t=0.0, run="r", peer="id-a", event=event)
        for event in (PeerStarted(name="a", version="0"), *(commit(r, *pair) for r, pair in committed.items()))
    ]
    swarm = apply_all(SwarmState(), lines)
    assert find_fault(swarm, ["a"], rounds=rounds, ends={}) is None
    assert find_fault(swarm, ["a"], rounds=rounds + 1, ends={}) == (
        f"a did not commit round {rounds + 1} of {rounds + 1}, its last is {rounds}"
    )
