"""A peer that is behind or ahead. One rule serves late arrival, catch-up and joining:
a frame with an anchor that is not my head is answered by CHAIN if that anchor is behind me, else by GET.
"""

from __future__ import annotations

from collections.abc import Mapping

from peer.events import ReportReceived
from peer.rounds import decide
from peer.rounds.messages import BytesSent, Get, HeadSent, Place
from peer.rounds.names import digest_of
from peer.rounds.state import Proposal, Report, SendChain, Store
from peer.rounds.turn import Turn
from peer.rounds.update import Block, Update

READY_EVERY_S = 3.0
HEAD_EVERY_S = 15.0
ASK_EVERY_S = 2.0
NEWS_EVERY_S = 0.2
"""A peer that says something else more often than this is not listened to."""
ALERT_EVERY_S = 10.0
MAX_HEARD = 256


def look(turn: Turn) -> None:
    """Repeat HEAD and unanswered fetches."""
    every_s = READY_EVERY_S if turn.state.pledge is not None else HEAD_EVERY_S
    if turn.now >= turn.state.said_at + every_s:
        turn.say_head()
    if turn.now >= turn.state.wanted.next_at:
        turn.ask_another()


# ---- HEAD ----


def on_head(turn: Turn, sender: str, head: HeadSent) -> None:
    state = turn.state
    before, before_at = state.heard.get(sender, (None, float("-inf")))
    turn.set(heard=_bounded(turn, {**state.heard, sender: (head, turn.now)}))
    news = head != before and turn.now - before_at >= NEWS_EVERY_S
    if news:
        turn.do(
            Report(
                ReportReceived(
                    about=sender, round=head.round, ready=head.ready, tokens=head.tokens, steps=head.steps,
                    leaving=head.leaving, name=head.name,
                )
            )
        )  # fmt: skip
    if head.anchor != state.head.anchor:
        _elsewhere(turn, sender, head.anchor)
    elif news and head.state and state.state_digest and head.state != state.state_digest:
        turn.alert(
            "error",
            "STATE",
            f"{sender} has other bits than this peer at round {head.round}: one of the two miscomputes",
        )


def _bounded(turn: Turn, heard: dict[str, tuple[HeadSent, float]]) -> dict[str, tuple[HeadSent, float]]:
    """At most MAX_HEARD peers: ids cost nothing, so the stranger heard longest ago makes room."""
    if len(heard) > MAX_HEARD:
        strangers = set(heard).difference(turn.state.head.electorate)
        del heard[min(strangers, key=lambda peer: (heard[peer][1], peer))]
    return heard


# ---- behind or ahead ----


def belongs(turn: Turn, sender: str, place: Place) -> bool:
    """Whether a message is about my head's instance; if not, one of us must catch up."""
    if place.anchor != turn.state.head.anchor:
        _elsewhere(turn, sender, place.anchor)
        return False
    return place.instance == turn.state.head.instance


def _elsewhere(turn: Turn, sender: str, anchor: bytes) -> None:
    if sender == turn.me:
        return
    if anchor in turn.state.ancestors:
        on_get(turn, sender, anchor)
    elif (asked_at := _may(turn, turn.state.asked_at, sender)) is not None:
        turn.set(asked_at=asked_at)
        turn.send((sender,), Get(turn.state.head.anchor))


def on_get(turn: Turn, sender: str, anchor: bytes) -> None:
    known_and_behind = anchor in turn.state.ancestors and anchor != turn.state.head.anchor
    if known_and_behind and (told_at := _may(turn, turn.state.told_at, sender)) is not None:
        turn.set(told_at=told_at)
        turn.do(SendChain(sender, anchor))


def _may(turn: Turn, done_at: Mapping[str, float], peer: str) -> dict[str, float] | None:
    """`done_at` with `peer` now, or None if it had its turn within ASK_EVERY_S, or too many others had."""
    lately = {other: at for other, at in done_at.items() if turn.now - at < ASK_EVERY_S}
    return None if peer in lately or len(lately) >= MAX_HEARD else {**lately, peer: turn.now}


def on_chain(turn: Turn, sender: str, blocks: tuple[Block, ...]) -> None:
    """Blocks that extend my chain; they are checked one by one as they come to follow my head."""
    first = next((i for i, block in enumerate(blocks) if block.update.parent == turn.state.head.anchor), None)
    if first is None:
        return
    if len(blocks) - first <= len(turn.state.blocks) and turn.state.blocks[0] == blocks[first]:
        return
    if not _sound(turn, blocks[first], sender):
        return
    turn.set(blocks=blocks[first:], block_source=sender)
    apply_blocks(turn)


def apply_blocks(turn: Turn) -> None:
    """Apply what follows my head while its bytes are here; fetch what is missing for the next."""
    while turn.state.blocks:
        block, rest = turn.state.blocks[0], turn.state.blocks[1:]
        if block.update.parent != turn.state.head.anchor:
            applied = block.update.round <= turn.state.head.round
            turn.set(blocks=rest if applied else ())
            continue
        if not _sound(turn, block, turn.state.block_source):
            turn.set(blocks=())
            return
        missing = decide.missing_parts(turn.state, block.update)
        if missing:
            voters = (vote.voter for vote in block.votes)
            turn.fetch(missing, (turn.state.block_source, *voters))
            return
        turn.set(blocks=rest)
        decide.advance(turn, block)


def _sound(turn: Turn, block: Block, source: str) -> bool:
    """Whether a quorum of my head's electorate stands behind this block, and it may follow."""
    state = turn.state
    if decide.certified(state, block) and decide.valid(state, block.update) and decide.fits(state, block.update):
        return True
    if turn.now - state.alerted_at >= ALERT_EVERY_S:
        turn.set(alerted_at=turn.now)
        turn.alert("warning", "CHAIN", f"{source} sent a block without a valid certificate")
    return False


# ---- BYTES ----


def on_bytes(turn: Turn, message: BytesSent) -> None:
    """Bytes count only under the digest I asked for."""
    digest = digest_of(message.payload)
    if digest not in turn.state.wanted.digests:
        return
    if not _is_update(turn, digest):
        if len(message.payload) in turn.rules.part_bytes:
            turn.do(Store(digest, message.payload))
        return
    turn.arrived(digest)
    try:
        update = Update.from_bytes(message.payload)
    except ValueError:
        return  # whoever named this digest lied
    if decide.valid(turn.state, update):
        turn.set(proposals={**turn.state.proposals, digest: seen_again(update)})
        decide.look(turn)


def _is_update(turn: Turn, digest: bytes) -> bool:
    state = turn.state
    adopting = state.lead is not None and state.lead.update == digest
    deciding = state.decided is not None and state.decided[1] == digest
    return (adopting or deciding) and digest not in state.proposals


def seen_again(update: Update) -> Proposal:
    """An update known by its digest alone is no proposal to vote on; ballot -1 keeps it from being one."""
    return Proposal(-1, update, b"")
