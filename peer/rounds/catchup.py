"""A peer that is behind or ahead. One rule serves late arrival, catch-up and joining:
a frame with an anchor that is not my head is answered by CHAIN if that anchor is behind me, else by GET.
"""

from __future__ import annotations

from dataclasses import replace

from peer.events import ReportReceived
from peer.rounds import decide
from peer.rounds.messages import BytesSent, Get, HeadSent, Place
from peer.rounds.names import digest_of
from peer.rounds.state import Proposal, Report, Send, SendChain, Store
from peer.rounds.turn import Turn
from peer.rounds.update import Block, Update

READY_EVERY_S = 3.0
HEAD_EVERY_S = 15.0
ASK_EVERY_S = 2.0


def look(turn: Turn) -> None:
    """Repeat HEAD and unanswered fetches."""
    every_s = READY_EVERY_S if turn.state.pledge is not None else HEAD_EVERY_S
    if turn.now >= turn.state.said_at + every_s:
        say_head(turn)
    if turn.now >= turn.state.wanted.next_at:
        turn.fetch_next()


# ---- HEAD ----


def say_head(turn: Turn) -> None:
    """Tell everyone I know of where I am and whether I am ready."""
    state, pledge = turn.state, turn.state.pledge
    head = HeadSent(
        anchor=state.head.anchor, round=state.head.round, weight=state.head.weight, state=state.state_digest,
        ready=pledge is not None, tokens=pledge.tokens if pledge else 0, steps=pledge.steps if pledge else 0,
        leaving=state.leaving,
    )  # fmt: skip
    to = dict.fromkeys((*state.head.electorate, *state.heard))
    to.pop(turn.me, None)
    turn.set(said_at=turn.now)
    turn.do(Send(tuple(to), head))


def on_head(turn: Turn, sender: str, head: HeadSent) -> None:
    state = turn.state
    before = state.heard.get(sender)
    turn.set(heard={**state.heard, sender: (head, turn.now)})
    if before is None or before[0] != head:
        turn.do(
            Report(
                ReportReceived(
                    about=sender, round=head.round, ready=head.ready, tokens=head.tokens, steps=head.steps,
                    leaving=head.leaving,
                )
            )
        )  # fmt: skip
    if head.anchor != state.head.anchor:
        _elsewhere(turn, sender, head.anchor)
    elif head.state and state.state_digest and head.state != state.state_digest:
        turn.alert(
            "error",
            "STATE",
            f"{sender} has other bits than this peer at round {head.round}: one of the two miscomputes",
        )


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
    elif turn.now >= turn.state.asked_at.get(sender, float("-inf")) + ASK_EVERY_S:
        turn.set(asked_at={**turn.state.asked_at, sender: turn.now})
        turn.send((sender,), Get(turn.state.head.anchor))


def on_get(turn: Turn, sender: str, anchor: bytes) -> None:
    known_and_behind = anchor in turn.state.ancestors and anchor != turn.state.head.anchor
    if known_and_behind and turn.now >= turn.state.told_at.get(sender, float("-inf")) + ASK_EVERY_S:
        turn.set(told_at={**turn.state.told_at, sender: turn.now})
        turn.do(SendChain(sender, anchor))


def on_chain(turn: Turn, sender: str, blocks: tuple[Block, ...]) -> None:
    """Blocks that extend my chain; they are checked one by one as they come to follow my head."""
    first = next((i for i, block in enumerate(blocks) if block.update.parent == turn.state.head.anchor), None)
    if first is None:
        return
    if len(blocks) - first <= len(turn.state.blocks) and turn.state.blocks[0] == blocks[first]:
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
        if not (decide.certified(turn.state, block) and decide.valid(turn.state, block.update)):
            turn.alert("warning", "CHAIN", f"{turn.state.block_source} sent a block without a valid certificate")
            turn.set(blocks=())
            return
        missing = decide.missing_parts(turn.state, block.update)
        if missing:
            voters = (vote.voter for vote in block.votes)
            turn.fetch(missing, (turn.state.block_source, *voters))
            return
        turn.set(blocks=rest)
        decide.advance(turn, block)


# ---- BYTES ----


def on_bytes(turn: Turn, message: BytesSent) -> None:
    """Bytes count only under the digest I asked for."""
    digest = digest_of(message.payload)
    if digest not in turn.state.wanted.digests:
        return
    if not _is_update(turn, digest):
        turn.do(Store(digest, message.payload))
        return
    update = Update.from_bytes(message.payload)
    wanted = turn.state.wanted
    turn.set(wanted=replace(wanted, digests=wanted.digests - {digest}))
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
