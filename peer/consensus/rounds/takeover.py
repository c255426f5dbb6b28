"""When the majority of the electorate is lost, the peers in sight take over.

They agree among themselves as a new electorate, by the same rules in an instance of its own. What
they decide is weak: another side may decide something else, and `forks.py` heals that later.
"""

from __future__ import annotations

from peer.consensus.protocol.block import MAX_MEMBERS, MAX_SKIPPED, Block
from peer.consensus.protocol.electorate import coordinator, instance_of, order, quorum
from peer.consensus.protocol.head import ChainHead
from peer.consensus.protocol.membership import trusted
from peer.consensus.protocol.messages import Prepare
from peer.consensus.rounds import timeouts
from peer.consensus.rounds.state import BallotPhase
from peer.consensus.rounds.timeouts import HEARD_S
from peer.consensus.rounds.transition import Transition

LATE_SHARE = 0.7
"""Who has waited for this share of the time may take part: clocks and submissions differ."""
OUTSIDER = 1.5
"""A peer outside the electorate waits this many times as long."""
LOST_ANYWAY = 3.0
"""After so many times the wait it does not matter any more who is heard: this electorate gets nowhere."""


def is_due(turn: Transition) -> bool:
    """Whether it is my turn to call the peers in sight together."""
    state = turn.state
    if not _gave_up(turn, 1.0) or (state.lead is not None and state.lead.stage is not BallotPhase.PREPARING):
        return False
    chosen = _in_sight(turn)
    if turn.me not in chosen or chosen == state.electorate or (not state.weak and chosen == state.head.electorate):
        return False
    rank = order(state.head.anchor, chosen).index(turn.me)
    since = state.last_progress_at + timeouts.patience_s(state) if state.weak else state.submitted_at + _wait_s(turn)
    return turn.now >= since + rank * 2 * turn.rules.ack_s


def begin(turn: Transition) -> int:
    """Change over to the electorate in sight; returns the ballot that is mine there."""
    chosen = _in_sight(turn)
    turn.enter(chosen)
    ranked, promised = order(turn.state.head.anchor, chosen), turn.state.acceptor.promised
    ballot = promised + 1 + (ranked.index(turn.me) - promised - 1) % len(ranked)
    count, head = len(chosen), turn.state.head
    if not turn.state.weak:
        return ballot  # those who had gone are back
    who = f"{count} peers go on without the {len(head.electorate)} voters"
    if count == 1:
        who = "this peer goes on alone, and nobody else counts its work until somebody joins"
    turn.alert("warning", "TAKEOVER", f"no majority of round {head.round} is in sight: {who}")
    return ballot


def enters(turn: Transition, sender: str, message: Prepare) -> bool:
    """Whether I follow a PREPARE of another instance, and if so, change over to it."""
    state, place = turn.state, message.place
    if place.instance == state.head.instance:
        if not (state.weak and _majority_is_heard(turn)):
            return False
        turn.enter(())
        return True
    electorate = message.electorate
    if (
        turn.me not in electorate
        or not trusted(state.head).issuperset(electorate)
        or instance_of(place.anchor, electorate) != place.instance
    ):
        return False
    if sum(_is_heard(turn, peer) for peer in electorate) < quorum(electorate):
        return False  # names cost nothing
    if sender != coordinator(place.anchor, electorate, place.ballot) or place.ballot > MAX_SKIPPED:
        return False
    if not _gave_up(turn, LATE_SHARE) or (state.weak and not _outranks(turn, electorate, place.instance)):
        return False
    turn.enter(electorate)
    return True


def _outranks(turn: Transition, electorate: tuple[str, ...], instance: bytes) -> bool:
    """Of two takeovers the larger one goes on, unless nothing moves in it."""
    state = turn.state
    larger = (len(electorate), instance) > (len(state.electorate), state.instance)
    return larger or turn.now >= state.last_progress_at + timeouts.patience_s(state)


def is_premature(turn: Transition, before: ChainHead, block: Block) -> bool:
    """Whether a block that takes over from my head comes while a majority of its voters is here with me, at work.

    Rounds may be longer than `takeover_s`: whoever has a vote could decide alone, and all would follow.
    """
    state = turn.state
    if block.firm or before.anchor != state.head.anchor or turn.stuck_s() >= LOST_ANYWAY * _wait_s(turn):
        return False
    here = sum(
        not _is_left_behind(turn)
        if peer == turn.me
        else _is_heard(turn, peer) and state.heard[peer][0].anchor == before.anchor
        for peer in before.electorate
    )
    return here >= quorum(before.electorate)


def _is_left_behind(turn: Transition) -> bool:
    """Whether a home of mine has gone on without me: then I am not at work, and wait for nothing here."""
    state = turn.state
    said = (state.heard[peer][0] for *_, peer in state.delegates if peer in state.heard)
    return any(head.round > state.head.round and head.anchor not in state.ancestors for head in said)


def _gave_up(turn: Transition, share: float) -> bool:
    """Whether I have waited for this share of the time for a majority that is not there."""
    if turn.rules.takeover_s == 0:
        return False
    stuck_s, wait_s = turn.stuck_s(), share * _wait_s(turn)
    return stuck_s >= LOST_ANYWAY * wait_s or (stuck_s >= wait_s and not _majority_is_heard(turn))


def _wait_s(turn: Transition) -> float:
    """How long I wait for a majority."""
    return turn.rules.takeover_s * (1.0 if turn.me in turn.state.head.electorate else OUTSIDER)


def _majority_is_heard(turn: Transition) -> bool:
    electorate = turn.state.head.electorate
    return sum(_is_heard(turn, peer) for peer in electorate) >= quorum(electorate)


def _is_heard(turn: Transition, peer: str) -> bool:
    if peer == turn.me:
        return True
    _, at = turn.state.heard.get(peer, (None, float("-inf")))
    return turn.now - at < min(HEARD_S, LATE_SHARE * turn.rules.takeover_s) and not has_left(turn, peer)


def has_left(turn: Transition, peer: str) -> bool:
    """It said so in its last HEAD, proposed two updates, or is kept out: nobody waits for it, or counts on it."""
    return peer in turn.state.quarantined or says_nothing(turn, peer)


def says_nothing(turn: Transition, peer: str) -> bool:
    """The same of those who are not even asked for their vote."""
    state = turn.state
    return peer in state.banned or (peer in state.heard and state.heard[peer][0].leaving)


def _in_sight(turn: Transition) -> tuple[str, ...]:
    """Me, and whoever waits at my anchor as I do; of us those who have earned a vote."""
    state, wait_s, believed = turn.state, LATE_SHARE * _wait_s(turn), trusted(turn.state.head)
    others = sorted(
        peer
        for peer, (said, at) in state.heard.items()
        if said.anchor == state.head.anchor
        and said.ready
        and said.stuck_s + turn.now - at >= wait_s
        and _is_heard(turn, peer)
        and peer in believed
    )
    me = (turn.me,) if turn.me in believed else ()
    return tuple(sorted((*me, *others[: MAX_MEMBERS - 1])))
