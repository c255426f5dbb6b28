"""Catching up. One rule serves late arrivals, returning peers and newcomers: a frame whose anchor is not my head is
answered with Blocks if that anchor is behind me, and with GetBlocks otherwise.

Blocks are checked as they arrive, each against the electorate of the one before, and queue until their parts are here.
While some are applied, the next blocks and the parts of queued blocks are already requested, so that no wait for the
network falls between two rounds.
"""

from __future__ import annotations

from collections.abc import Mapping

from peer.consensus.protocol import norms, validation
from peer.consensus.protocol.block import Block, Update
from peer.consensus.protocol.encoding import digest_of
from peer.consensus.protocol.frame_reader import parts_too_early
from peer.consensus.protocol.head import ChainHead
from peer.consensus.protocol.messages import (
    FETCH_BYTES,
    FETCH_MOST,
    GET_MOST,
    BallotId,
    GetBlocks,
    Heartbeat,
    ObjectData,
)
from peer.consensus.protocol.refusals import BLOCK, TIME
from peer.consensus.rounds import acceptor, restart, timeouts
from peer.consensus.rounds.interface import NeedSnapshot, SendBlocks, StoreObject, Tell
from peer.consensus.rounds.state import Proposal
from peer.consensus.rounds.timeouts import HEARD_S
from peer.consensus.rounds.transition import Transition
from peer.schema.events import ReportReceived

READY_EVERY_S = 3.0
HEAD_EVERY_S = 15.0
ASK_EVERY_S = 2.0
"""The same question is put to the same peer, and answered, no more often than this."""
ASK_ANOTHER_S = 1.0
"""After this long without an answer the next peer is asked what follows."""
ASK_MOST = 3
"""Peers that are asked the same at a time."""
QUEUE_MOST = 64
"""Blocks that wait for their parts."""
QUEUE_LOW = 16
"""With fewer the next ones are asked for."""
SOURCES = 2
"""Peers that are asked for parts at a time."""
REFUSE_S = 60.0
"""From a peer that gave a block without a valid certificate nothing is taken for this long if others have it."""
NEWS_EVERY_S = 0.2
"""A peer that says something else more often than this is not listened to."""
STRANGERS_EVERY_S = 1.0
"""What those say whom the chain does not name is told so often, of all together: else they fill a run's history."""
LOST_S = 20.0
LOST_TO = 2
"""My chain is given up when so many peers, half of them its voters, have said for LOST_S that they cannot show what
follows it."""
ALERT_EVERY_S = 10.0
MAX_HEARD = 256


def poll(turn: Transition) -> None:
    """Repeat the Heartbeat, unanswered fetches and unanswered questions."""
    every_s = READY_EVERY_S if turn.state.header is not None else HEAD_EVERY_S
    if turn.now >= turn.state.said_at + every_s:
        turn.say_head()
    turn.ask_others()
    _ask_next(turn)
    _resync_if_lost(turn)


# ---- Heartbeat ----


def on_head(turn: Transition, sender: str, head: Heartbeat) -> None:
    state = turn.state
    before, before_at = state.heard.get(sender, (None, float("-inf")))
    turn.set(heard=_bounded(turn, {**state.heard, sender: (head, turn.now)}))
    is_named = sender in state.named
    news = head != before and turn.now - before_at >= NEWS_EVERY_S
    if news and not is_named:
        news = turn.now - state.strangers_told_at >= STRANGERS_EVERY_S
        turn.set(strangers_told_at=turn.now if news else state.strangers_told_at)
    if news:
        turn.emit(
            Tell(
                ReportReceived(
                    about=sender, round=head.round, ready=head.ready, tokens=head.tokens, steps=head.steps,
                    leaving=head.leaving, name=head.name,
                )
            )
        )  # fmt: skip
    if head.ready and head.steps and head.anchor == state.head.anchor and sender in state.electorate:
        turn.set(ready_at={sender: turn.now, **state.ready_at})
    if head.train_s and head.anchor == state.head.anchor and sender in state.electorate:
        turn.set(expected_by={sender: turn.now + timeouts.SLACK * head.train_s, **state.expected_by})
    _note_way_back(turn, sender, head)
    if head.anchor != state.head.anchor:
        _elsewhere(turn, sender, head.anchor)
    elif news and is_named and state.in_step and head.state and state.state_digest and head.state != state.state_digest:
        turn.alert(
            "error",
            "STATE",
            f"{sender} has other bits ({head.state.hex()[:12]}) than this peer ({state.state_digest.hex()[:12]}) "
            f"at round {head.round}: one of the two miscomputes",
        )


def _note_way_back(turn: Transition, sender: str, head: Heartbeat) -> None:
    """A peer that stands at an anchor of mine has not lost my chain."""
    state = turn.state
    if sender in state.strangers and head.anchor in state.ancestors:
        turn.set(strangers={peer: said for peer, said in state.strangers.items() if peer != sender})


def _note_no_way(turn: Transition, sender: str) -> None:
    """The peer that I asked knows none of my anchors, has no block any more that follows them, or left my chain too
    early."""
    strangers = turn.state.strangers
    if sender not in turn.state.asked or (sender not in strangers and len(strangers) >= MAX_HEARD):
        return
    since, last = strangers.get(sender, (turn.now, turn.now))
    turn.set(strangers={**strangers, sender: (since if turn.now - last < 2 * LOST_S else turn.now, turn.now)})


def _resync_if_lost(turn: Transition) -> None:
    """Give the chain up, but not the work, if peers that are further say for a while that they have no way from my
    chain. Silence says nothing: answers get lost as long as lines are bad."""
    state, now = turn.state, turn.now
    weight = state.tip.weight
    apart = [
        peer
        for peer, (since, last) in state.strangers.items()
        if last - since >= LOST_S > now - last and peer in state.heard and state.heard[peer][0].weight > weight
    ]
    # Identities cost nothing, and anybody may claim to be further: each that my chain once elected vouches for one that
    # it did not, who may have joined the others when we had parted.
    known = sum(peer in state.voters for peer in apart)
    if not known or min(len(apart), 2 * known) < min(LOST_TO, len(state.voters) - 1):
        return
    turn.set(strangers={})
    rounds = max(state.heard[peer][0].round for peer in apart)
    turn.emit(
        NeedSnapshot(f"the others are at round {rounds} and no longer have what follows round {state.head.round} here")
    )


def _bounded(turn: Transition, heard: dict[str, tuple[Heartbeat, float]]) -> dict[str, tuple[Heartbeat, float]]:
    """At most MAX_HEARD peers: ids cost nothing, so the peer that was heard longest ago makes room, first among those
    that the chain does not name, then among those that have no vote."""
    if len(heard) > MAX_HEARD:
        strangers = set(heard).difference(turn.state.named) or set(heard).difference(turn.state.head.electorate)
        del heard[min(strangers, key=lambda peer: (heard[peer][1], peer))]
    return heard


# ---- behind or ahead ----


def belongs(turn: Transition, sender: str, place: BallotId) -> bool:
    """Whether a message is about my head; if not, one of us must catch up."""
    if place.anchor != turn.state.head.anchor:
        _elsewhere(turn, sender, place.anchor)
        return False
    return True


def _elsewhere(turn: Transition, sender: str, anchor: bytes) -> None:
    state = turn.state
    if sender == turn.me:
        return
    if anchor in state.ancestors:
        _tell(turn, sender, anchor, got_on=False)
    elif not state.blocks and not awaits_answer(turn) and not _is_lighter(turn, sender):
        ask(turn, sender)


def _is_lighter(turn: Transition, peer: str) -> bool:
    """Whether a peer stands on a branch that loses against mine: then it will ask me."""
    said, _ = turn.state.heard.get(peer, (None, 0.0))
    return said is not None and said.weight < turn.state.head.weight and said.round <= turn.state.head.round


def ask(turn: Transition, peer: str) -> None:
    """Ask what follows the last block that I know of; a peer that has nothing more answers with its Heartbeat."""
    state, anchor = turn.state, turn.state.tip.anchor
    lately, before = _lately(turn, state.asked), _since(turn, state.asked, LOST_S)
    same = [other for other, (asked, _) in lately.items() if asked == anchor]
    if peer in same or len(same) >= ASK_MOST or len(before) >= MAX_HEARD or _refused(turn, peer):
        return
    turn.set(asked={**before, peer: (anchor, turn.now)})
    earlier = (step.before.anchor for step in reversed(state.trail))
    turn.send((peer,), GetBlocks(tuple(dict.fromkeys((anchor, state.head.anchor, *earlier)))[:GET_MOST]))


def _ask_next(turn: Transition) -> None:
    """Ask the next peer if somebody is ahead of all that I know of and nobody has answered. The one asked longest ago
    is next, so that of several branches each has its turn."""
    state, tip = turn.state, turn.state.tip
    refused_sources = {peer: until for peer, until in state.refused_sources.items() if turn.now < until}
    if len(refused_sources) < len(state.refused_sources):
        turn.set(refused_sources=refused_sources)
    if len(state.blocks) >= QUEUE_LOW or awaits_answer(turn):
        return
    asked = {peer for peer, (anchor, _) in _lately(turn, state.asked).items() if anchor == tip.anchor}
    sources = [peer for peer in _ahead_of(turn, tip) if peer not in asked and not _refused(turn, peer)]
    if sources:
        ask(turn, min(sources, key=lambda peer: state.asked.get(peer, (b"", float("-inf")))[1]))


def awaits_answer(turn: Transition) -> bool:
    """Whether a peer was asked what follows so lately that its answer may be under way."""
    tip = turn.state.tip.anchor
    return any(anchor == tip and turn.now - at < ASK_ANOTHER_S for anchor, at in turn.state.asked.values())


def _ahead_of(turn: Transition, head: ChainHead) -> list[str]:
    """Peers heard lately that report a later round, or more work, than `head`: the last source first, then voters."""
    state = turn.state
    further = [
        peer
        for peer, (said, at) in state.heard.items()
        if (said.round > head.round or said.weight > head.weight) and turn.now - at < HEARD_S
    ]
    return sorted(further, key=lambda peer: (peer != state.block_source, peer not in head.electorate, peer))


def on_get(turn: Transition, sender: str, anchors: tuple[bytes, ...]) -> None:
    """Answer with the blocks after the newest anchor that we share; with a Heartbeat if there are none, and without any
    block if we share no anchor."""
    ancestors = turn.state.ancestors
    shared = next((anchor for anchor in anchors if anchor in ancestors), b"")
    last, _ = turn.state.told.get(sender, (b"", 0.0))
    _tell(turn, sender, shared, got_on=ancestors.get(shared, -1) > ancestors.get(last, -1))


def _tell(turn: Transition, sender: str, anchor: bytes, *, got_on: bool) -> None:
    """Answer at once a peer that has advanced since the last answer, others once in ASK_EVERY_S; of peers that the
    chain does not name, at most MAX_HEARD."""
    lately = _lately(turn, turn.state.told)
    if (sender in lately and not got_on) or len({*lately, sender}.difference(turn.state.named)) > MAX_HEARD:
        return
    turn.set(told={**lately, sender: (anchor, turn.now)})
    if anchor == turn.state.head.anchor:
        turn.send((sender,), turn.my_head())
    else:
        turn.emit(SendBlocks(sender, anchor, turn.my_head()))


def _lately(turn: Transition, done: Mapping[str, tuple[bytes, float]]) -> dict[str, tuple[bytes, float]]:
    return _since(turn, done, ASK_EVERY_S)


def _since(turn: Transition, done: Mapping[str, tuple[bytes, float]], seconds: float) -> dict[str, tuple[bytes, float]]:
    return {peer: (anchor, at) for peer, (anchor, at) in done.items() if turn.now - at < seconds}


# ---- Blocks ----


def on_chain(turn: Transition, sender: str, blocks: tuple[Block, ...]) -> None:
    """Queue the blocks that follow the last one I know of, as far as a quorum stands behind each. No block in the
    answer means that the peer has no way from here."""
    state, tip = turn.state, turn.state.tip
    if _refused(turn, sender):
        return
    links = tuple((block.update.parent, block.update.digest) for block in blocks)
    if not blocks or parts_too_early(turn.state, links):
        _note_no_way(turn, sender)
        return
    turn.set(strangers={peer: said for peer, said in state.strangers.items() if peer != sender})
    first = next((i for i, block in enumerate(blocks) if block.update.parent == tip.anchor), None)
    if first is None:
        for block in blocks[:1]:
            restart.on_other_branch(turn, block)
        return
    queue = list(state.blocks)
    for block in blocks[first : first + QUEUE_MOST - len(queue)]:
        fault = validation.check_block(turn.rules, tip, block)
        after = tip.after(block.update)
        round, anchor = turn.rules.checkpoint
        if not fault and after.round == round and after.anchor != anchor:
            fault = "the organiser's checkpoint names another one"
        if fault:
            turn.refuse(sender, BLOCK, fault)
            _refuse_source(turn, sender, f"block {tip.round + 1} of {sender} has no valid certificate")
            break
        if not validation.timely(turn.wall_s, block.update.time):
            turn.refuse(block.update.coordinator, TIME, turn.how_far_ahead(block.update.time))
            break
        queue.append(block)
        tip = after
    if len(queue) == len(state.blocks):
        return
    turn.set(blocks=tuple(queue), last=tip, block_source=sender, strangers={})
    apply_blocks(turn)


def on_unsigned(turn: Transition, sender: str) -> None:
    """The peer gives blocks that no voter stands behind."""
    if not _refused(turn, sender):
        turn.refuse(sender, BLOCK, "no quorum stands behind a block that it gives")
        round = turn.state.tip.round + 1
        _refuse_source(turn, sender, f"block {round} of {sender} has no valid certificate")


def apply_blocks(turn: Transition) -> None:
    """Apply what follows my head while its bytes are here; fetch ahead what is missing."""
    if not turn.state.blocks:
        return
    while turn.state.blocks:
        block, rest = turn.state.blocks[0], turn.state.blocks[1:]
        if block.update.parent != turn.state.head.anchor:
            applied = block.update.round <= turn.state.head.round
            turn.set(blocks=rest if applied else ())
            continue
        if turn.missing(block.update):
            break
        if not validation.fits(turn.rules, turn.state.held, block.update):
            _refuse_source(turn, turn.state.block_source, f"parts of block {block.update.round} have a wrong size")
            turn.set(blocks=())
            return
        turn.set(blocks=rest)
        acceptor.advance(turn, block)
    _fetch_ahead(turn)
    if len(turn.state.blocks) < QUEUE_LOW:
        ask(turn, turn.state.block_source)


def _fetch_ahead(turn: Transition) -> None:
    """Fetch parts of the blocks in the queue, those needed first at first, FETCH_BYTES at most unless one block has
    more."""
    state, source = turn.state, turn.state.block_source
    missing: dict[bytes, None] = {}
    size_bytes = 0
    for block in state.blocks:
        absent = set(turn.missing(block.update))
        for part, part_bytes in zip(block.update.parts, validation.part_bytes(turn.rules, block.update), strict=True):
            if part in absent and part not in missing:
                missing[part] = None
                size_bytes += part_bytes
        if size_bytes >= FETCH_BYTES or len(missing) >= FETCH_MOST:
            break
    if missing:
        voters = (vote.voter for vote in state.blocks[0].votes)
        sources = (source, *_ahead_of(turn, state.head), *voters)
        trusted = tuple(peer for peer in sources if peer not in state.refused_sources)
        turn.fetch(missing, trusted or sources, SOURCES)


def _refused(turn: Transition, peer: str) -> bool:
    """Whether nothing is accepted from this peer: it gave a bad block lately, and a peer that did not is ahead, too."""
    refused_sources = turn.state.refused_sources
    return peer in refused_sources and any(other not in refused_sources for other in _ahead_of(turn, turn.state.tip))


def _refuse_source(turn: Transition, source: str, why: str) -> None:
    """Accept nothing from `source` for a while if there are others, say so, and ask one of them at once."""
    state = turn.state
    if len(state.refused_sources) < MAX_HEARD:
        turn.set(refused_sources={**state.refused_sources, source: turn.now + REFUSE_S})
    if turn.now - state.alerted_at >= ALERT_EVERY_S:
        turn.set(alerted_at=turn.now)
        turn.alert("warning", "CHAIN", f"{why}: refused, and others are asked for {REFUSE_S:.0f} s")
    other = next((peer for peer in _ahead_of(turn, state.head) if peer not in turn.state.refused_sources), None)
    if other is not None:
        ask(turn, other)


# ---- ObjectData ----


def on_bytes(turn: Transition, message: ObjectData) -> None:
    """Bytes count only under the digest I asked for."""
    digest = digest_of(message.payload)
    if not turn.state.wanted.is_expected(digest):
        return
    if not _is_update(turn, digest):
        if turn.rules.is_size_of_mean(len(message.payload)):  # whether it is one is looked at where it is named
            turn.emit(StoreObject(digest, message.payload))
        return
    turn.arrived(digest)
    try:
        update = Update.from_bytes(message.payload)
    except ValueError:
        return  # whoever named this digest lied
    acceptor.on_update(turn, update)
    if digest in turn.state.proposals:
        return
    if not validation.check_update(turn.rules, turn.state.head, update):
        turn.set(proposals={**turn.state.proposals, digest: seen_again(update)})
        acceptor.poll(turn)


def _is_update(turn: Transition, digest: bytes) -> bool:
    state = turn.state
    adopting = state.lead is not None and state.lead.update == digest
    deciding = state.decided is not None and state.decided[1] == digest
    checked = any(digest == update for _, update in state.checks)
    restarts = state.acceptor.restarts
    restarted = bool(restarts) and restarts[-1].value is not None and restarts[-1].value[1] == digest
    return (adopting or deciding or checked or restarted) and digest not in state.proposals


def seen_again(update: Update) -> Proposal:
    """An update known only by its digest is no proposal to vote on; ballot -1 keeps it from being one."""
    return Proposal(-1, update, b"", basis=norms.inputs_digest_of(update.members))
