"""When a peer is in step: its head is the electorate's head, and its state has the same digest.

Until then it is no member of a round, so that nothing counts that it computed wrongly or for another anchor. It reports
how far it has come.
"""

from __future__ import annotations

from dataclasses import replace

from peer.consensus.protocol.head import ChainHead
from peer.consensus.protocol.rules import Rules
from peer.consensus.rounds import block_sync
from peer.consensus.rounds.interface import Tell
from peer.consensus.rounds.state import SyncProgress
from peer.consensus.rounds.transition import Transition
from peer.schema.events import PeerStateChanged, TransferProgressed

SAY_EVERY_S = 1.0
BEHIND = 4
"""A peer that misses fewer rounds than this trains on while it catches up; one that misses more starts anew."""


def starts_in_step(rules: Rules, head: ChainHead) -> bool:
    """A founder at the very start has nothing to compare with, and neither has a peer that is its own electorate."""
    return head.electorate == (rules.me,) or (head.round == 0 and rules.me in head.electorate)


def _begin(turn: Transition) -> SyncProgress:
    found = turn.state.catch_up
    if found is None:
        found = SyncProgress(began_at=turn.now, first_round=turn.state.head.round)
        turn.set(catch_up=found)
    return found


def count(turn: Transition, received_bytes: int) -> None:
    """A part has arrived."""
    found = turn.state.catch_up
    if found is not None:
        turn.set(catch_up=replace(found, received_bytes=found.received_bytes + received_bytes))


def poll(turn: Transition) -> None:
    """Compare my digest with those of the voters at my anchor; ask voters that have not reported theirs."""
    if turn.state.in_step and len(turn.state.blocks) >= BEHIND:
        turn.set(in_step=False)
    if turn.rules.holds is not None:
        _follow(turn)
        return
    state, me = turn.state, turn.me
    heard, anchor = state.heard, state.head.anchor
    said = {
        peer: heard[peer][0].state
        for peer in state.head.electorate
        if peer != me and peer in heard and heard[peer][0].anchor == anchor
    }
    same = [peer for peer, digest in said.items() if digest and digest == state.state_digest]
    others = [peer for peer, digest in said.items() if digest and digest != state.state_digest]
    if state.in_step and not (state.state_digest and len(others) > len(same) + 1):
        return
    turn.set(in_step=False)  # outvoted: from now on nothing of this machine counts
    _begin(turn)
    if state.blocks or not state.state_digest:
        _say(turn, _how_far(turn))
    elif (same and len(same) >= len(others)) or starts_in_step(turn.rules, state.head):
        _enter(turn)
    elif others:
        _refuse(turn, others, said[others[0]])
    elif _is_left_alone(turn):
        _enter(turn)
    else:
        _ask_voters(turn)
        _say(turn, _how_far(turn))


def _follow(turn: Transition) -> None:
    """A home that keeps some layers has no digest of the state to compare: it is in step where a voter says that it
    stands."""
    state, anchor = turn.state, turn.state.head.anchor
    if state.in_step:
        return
    _begin(turn)
    there = [peer for peer in state.head.electorate if peer in state.heard and state.heard[peer][0].anchor == anchor]
    if state.blocks or state.applied_round != state.head.round:
        _say(turn, _how_far(turn))
    elif there:
        _enter(turn)
    else:
        _ask_voters(turn)
        _say(turn, _how_far(turn))


def _is_left_alone(turn: Transition) -> bool:
    """A voter that gets no answer has nobody to compare with; it trains, and the organiser may let it go on."""
    state, wait_s = turn.state, turn.rules.restart_s
    if wait_s == 0 or turn.me not in state.head.electorate or turn.now - _begin(turn).began_at < wait_s:
        return False
    others = (state.heard[peer][1] for peer in state.head.electorate if peer in state.heard)
    return all(turn.now - at >= wait_s for at in others)


def _ask_voters(turn: Transition) -> None:
    """A peer that has nothing after my anchor answers with its Heartbeat, and so with its digest."""
    if not block_sync.awaits_answer(turn):
        for peer in turn.state.head.electorate:
            if peer != turn.me:
                block_sync.ask(turn, peer)


def _enter(turn: Transition) -> None:
    state, found = turn.state, _begin(turn)
    got_bytes, seconds = found.received_bytes, turn.now - found.began_at
    turn.set(in_step=True, catch_up=None)
    why = f"in step at round {state.head.round} after {seconds:.0f} s"
    if got_bytes:
        _report_bytes(turn, got_bytes, got_bytes)
        why += f", {got_bytes / 1e6:.1f} MB"
    turn.emit(Tell(PeerStateChanged(state="READY", why=why)))


def _refuse(turn: Transition, others: list[str], theirs: bytes) -> None:
    """Most voters have computed another state from the same updates: contributions of this machine would be garbage."""
    state, found = turn.state, _begin(turn)
    bits = f"{state.state_digest.hex()[:12]}; {_called(turn, others[0])} has {theirs.hex()[:12]}"
    why = f"this machine has other bits than the others at round {state.head.round}: {bits}"
    if found.alerted != state.head.anchor:
        turn.set(catch_up=replace(found, alerted=state.head.anchor))
        turn.alert("error", "STATE", f"{why}; it does not take part: one of them miscomputes")
    _say(turn, why)


# ---- progress ----


def _how_far(turn: Transition) -> str:
    state = turn.state
    goal = _goal(turn)
    if goal <= state.applied_round:
        return f"round {state.applied_round}: looking for the others"
    source = f" from {_called(turn, state.block_source)}" if state.block_source else ""
    return f"round {state.applied_round} of {goal}{source}"


def _goal(turn: Transition) -> int:
    """The round that two other peers report, so that one liar cannot make it absurd."""
    said = sorted((head.round for head, _ in turn.state.heard.values()), reverse=True)
    return max(turn.state.tip.round, said[min(1, len(said) - 1)] if said else 0)


def _called(turn: Transition, peer: str) -> str:
    head, _ = turn.state.heard.get(peer, (None, 0.0))
    return (head.name if head else "") or peer[-8:]


def _say(turn: Transition, why: str) -> None:
    """At most once in SAY_EVERY_S."""
    found = _begin(turn)
    if why == found.said or turn.now - found.said_at < SAY_EVERY_S:
        return
    turn.set(catch_up=replace(found, said=why, said_at=turn.now))
    if found.received_bytes:
        expected = (_goal(turn) - found.first_round) * sum(turn.rules.bytes_of_means) // turn.rules.fragments
        _report_bytes(turn, found.received_bytes, max(found.received_bytes, expected))
    turn.emit(Tell(PeerStateChanged(state="SYNCING", why=why)))


def _report_bytes(turn: Transition, done: int, total: int) -> None:
    source = _called(turn, turn.state.block_source)
    turn.emit(Tell(TransferProgressed(what="updates", source=source, bytes_done=done, bytes_total=total)))
