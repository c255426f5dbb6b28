"""The outer round as a pure state machine: `step(state, event) -> (state, effects)`.

Read this file first. It says who handles what; the roles are in the files beside it:

    coordinator.py      the coordinator of a ballot: ask, choose, start
    collector.py        the coordinator from Start to Propose: means, their checks and repairs, the proposal
    member.py           a member: send parts, reduce parts, send means
    reassignment.py     parts that are reduced a second time
    soundness.py        whether a mean equals the sum of its rows, and what happens if it does not
    restart.py          a run that has lost its quorum
    acceptor.py         a voter: promise, fetch, vote, decide, move to the next anchor
    block_sync.py       a peer that is behind, or ahead
    readiness.py        a peer that is not in step yet: compare digests, tell how far it is

Whether a block may follow is decided by `peer/consensus/protocol/validation.py`, for voters, auditors and watchers
alike. Nothing here knows tensors, sockets, files or a clock. The driver performs the effects in the order given;
`PersistAcceptor` must be on disk before what follows it. A test may drop the rest of the effects at any point and
restart from disk: that is a crash.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from peer.consensus.protocol.block import ContributionHeader, Update
from peer.consensus.protocol.head import ChainEntry, ChainHead
from peer.consensus.protocol.messages import (
    Blocks,
    EquivocationProof,
    GetBlocks,
    GetMeans,
    GetObjects,
    Heartbeat,
    MeanData,
    Message,
    Nack,
    ObjectData,
    Objection,
    PartData,
    Prepare,
    Promise,
    Propose,
    Reassign,
    Restarted,
    RosterSaid,
    RowDispute,
    SealedBlocks,
    SealedPropose,
    SealedRestart,
    Start,
    StuckSaid,
    VoteCast,
)  # fmt: skip
from peer.consensus.protocol.refusals import BLOCK, MESSAGE, PLACE
from peer.consensus.protocol.rules import Rules
from peer.consensus.rounds import (
    acceptor,
    block_sync,
    coordinator,
    member,
    readiness,
    reassignment,
    restart,
    soundness,
    timeouts,
)
from peer.consensus.rounds.block_sync import seen_again
from peer.consensus.rounds.interface import (
    Applied,
    DelegateHolds,
    DelegatesChanged,
    Effect,
    Input,
    Leaving,
    MeanChecked,
    ObjectStored,
    OrganiserAnswered,
    OwnMeasured,
    PartMeasured,
    PartReduced,
    Paused,
    PeersUnreachable,
    Quarantined,
    Received,
    Resumed,
    RosterHeard,
    RowChecked,
    SendObjects,
    Submitted,
    Tick,
    TrainingProgress,
)
from peer.consensus.rounds.state import Acceptor, State
from peer.consensus.rounds.transition import Transition

log = logging.getLogger(__name__)

TICK_S = 0.5
"""How often the driver sends a `Tick`."""


def begin(
    rules: Rules,
    head: ChainHead,
    now: float,
    *,
    ancestors: Mapping[bytes, int] | None = None,
    acceptors: Mapping[bytes, Acceptor] | None = None,
    trail: tuple[ChainEntry, ...] = (),
    voters: frozenset[str] = frozenset(),
    accepted: Update | None = None,
    header: ContributionHeader | None = None,
    held: Mapping[bytes, int] | None = None,
) -> State:
    """The state of a peer that starts, or starts again from what is on its disk. `voters` are all peers that its chain
    ever elected, `acceptors` its votes by instance, `accepted` the update that the acceptor of `head` names, `trail`
    its newest blocks, `held` the digests whose bytes are on disk, with sizes."""
    head, promised = standing(head, acceptors or {})
    if header is not None and header.anchor != head.anchor:
        header = None
    proposals = {accepted.digest: seen_again(accepted)} if accepted else {}
    return State(
        rules=rules, head=head, ancestors=ancestors or {head.anchor: head.round}, acceptor=promised,
        voters=voters.union(head.electorate), trail=trail[-rules.keep_rounds :], offered=header,
        deadlines=timeouts.learn([step.block.update for step in trail[-rules.keep_rounds :]], rules),
        held=held or {}, submitted_at=now, last_progress_at=now, began_at=now, stood_at=now, checked_at=now,
        proposals=proposals, applied_round=head.round,
        in_step=readiness.starts_in_step(rules, head),
    )  # fmt: skip


def standing(head: ChainHead, acceptors: Mapping[bytes, Acceptor]) -> tuple[ChainHead, Acceptor]:
    """A peer's position by what is on its disk: perhaps the remaining voters went on from this anchor by a Restart."""
    here = (item for item in acceptors.values() if item.anchor == head.anchor)
    newest = max(here, key=lambda item: len(item.restarts), default=None)
    for item in newest.restarts if newest is not None else ():
        head = head if item.value is not None else head.restarted(item)
    return head, acceptors.get(head.instance) or Acceptor(head.anchor, head.instance)


def step(state: State, event: Input) -> tuple[State, tuple[Effect, ...]]:
    """The state after this event, and the effects that the driver must perform, in order."""
    turn = Transition(state, event.now)
    try:
        _take(turn, event)
        while turn.to_self:
            _receive(turn, turn.me, turn.to_self.popleft())
    except Exception as error:
        author = _author(event)
        if author in ("", turn.me):
            raise  # a fault of this machine
        log.exception("what %s sent", author)
        turn = Transition(state, event.now)  # as if it had never come
        turn.refuse(author, MESSAGE, f"{type(event).__name__}: {type(error).__name__}")
    return turn.state, tuple(turn.effects)


def _author(event: Input) -> str:
    """The author of the message behind an event."""
    match event:
        case Received(sender=peer) | PartMeasured(giver=peer) | DelegateHolds(worker=peer) | RowChecked(giver=peer):
            return peer
    return ""


def _take(turn: Transition, event: Input) -> None:
    match event:
        case Tick(_, wall_offset_s):
            if wall_offset_s is not None:
                turn.set(rules=replace(turn.rules, wall_offset_s=wall_offset_s))
            _tick(turn)
        case Received(_, sender, message):
            _receive(turn, sender, message)
        case ObjectStored(_, digest, size):
            turn.set(afar=turn.state.afar - {digest})
            _hold(turn, digest, size)
        case DelegateHolds():
            _delegate_holds(turn, event)
        case DelegatesChanged(_, delegates):
            turn.set(delegates=delegates)
        case PartReduced():
            member.on_reduced(turn, event)
            coordinator.poll(turn)
        case MeanChecked():
            soundness.on_checked(turn, event)
            acceptor.poll(turn)
            coordinator.poll(turn)
        case RowChecked():
            soundness.on_row_checked(turn, event)
            coordinator.poll(turn)
        case PartMeasured():
            member.on_measured(turn, event)
        case OwnMeasured():
            member.on_own_measured(turn, event)
            coordinator.poll(turn)
        case TrainingProgress(_, share):
            first = turn.state.first_progress or (turn.now, share)
            turn.set(progress=share, first_progress=first, train_s=timeouts.train_s(first, (turn.now, share)))
        case Submitted(_, header):
            member.on_submitted(turn, header)
            coordinator.poll(turn)
        case Paused(_, header):
            member.on_paused(turn, header)
            coordinator.poll(turn)
        case Resumed():
            member.on_resumed(turn)
        case Applied(_, anchor, digest):
            _applied(turn, anchor, digest)
        case RosterHeard(_, roster):
            acceptor.on_roster(turn, turn.me, RosterSaid(roster))
        case Quarantined(_, peers):
            turn.set(quarantined=peers - {turn.me})
        case PeersUnreachable(_, peers):
            _unreachable(turn, peers)
        case OrganiserAnswered(_, found):
            restart.on_answer(turn, found)
            acceptor.poll(turn)
        case Leaving():
            turn.set(leaving=True)
            turn.say_head()
        case _:
            raise AssertionError(f"no such event: {event}")


def _unreachable(turn: Transition, peers: frozenset[str]) -> None:
    """The others wait for my report before they stop waiting for a voter."""
    before = turn.state.unreachable
    turn.set(unreachable={peer: before.get(peer, turn.now) for peer in peers})
    if not (before.keys() ^ peers).isdisjoint(turn.state.head.electorate):
        turn.say_head()
        coordinator.poll(turn)


def _applied(turn: Transition, anchor: bytes, digest: bytes) -> None:
    """The others compare my digest with theirs as soon as I have one."""
    if anchor not in turn.state.ancestors:
        return  # of a chain that was given up for a snapshot
    turn.set(applied_round=turn.state.ancestors[anchor])
    if anchor == turn.state.head.anchor:
        turn.set(state_digest=digest)
        readiness.poll(turn)
        acceptor.poll(turn)
        coordinator.poll(turn)
        if not turn.state.blocks:
            turn.say_head()


def _tick(turn: Transition) -> None:
    member.measure_again(turn)
    coordinator.poll(turn)
    member.poll(turn)
    reassignment.poll(turn)
    block_sync.poll(turn)
    readiness.poll(turn)
    acceptor.prepare_if_checked(turn)
    acceptor.answer_postponed(turn)
    acceptor.fetch_unseen(turn)
    restart.poll(turn)
    if turn.state.acceptor.restarts:
        acceptor.poll(turn)


def _hold(turn: Transition, digest: bytes, size: int) -> None:
    turn.set(held={**turn.state.held, digest: size})
    turn.arrived(digest)
    soundness.check_shown(turn, {digest})
    readiness.count(turn, size)
    acceptor.poll(turn)
    coordinator.poll(turn)
    block_sync.apply_blocks(turn)


def _delegate_holds(turn: Transition, event: DelegateHolds) -> None:
    """Handled as if the mean, or the bytes, had come to me: for its own layers, and for what an update or a mean
    names."""
    if event.mean is not None:
        member.on_delegates_mean(turn, event.worker, event.digest, event.size, event.mean)
        coordinator.poll(turn)
    state = turn.state
    named = state.named_as(event.digest)
    mine = any(not state.delegate_for(layer) for layer, _ in named)  # then this home needs the bytes itself
    if mine or event.digest in state.held or any(size != event.size for _, size in named):
        return
    if any(member.keeps_for_me(turn, event.worker, layer) for layer, _ in named):
        turn.set(afar=state.afar | {event.digest})
        _hold(turn, event.digest, event.size)


def _receive(turn: Transition, sender: str, message: Message) -> None:
    """Messages that name an anchor other than my head go to catch-up, and so do messages about the chain."""
    match message:
        case Heartbeat():
            block_sync.on_head(turn, sender, message)
            readiness.poll(turn)
            coordinator.poll(turn)
            acceptor.answer_postponed(turn)
        case GetBlocks(anchors):
            block_sync.on_get(turn, sender, anchors)
        case Blocks(blocks):
            block_sync.on_chain(turn, sender, blocks)
            readiness.poll(turn)
        case SealedBlocks():
            block_sync.on_unsigned(turn, sender)
        case SealedRestart():
            turn.refuse(sender, BLOCK, "it is a restart that the organiser has not signed")
        case GetObjects(digests):
            turn.emit(SendObjects(sender, digests))
        case ObjectData():
            block_sync.on_bytes(turn, message)
        case RowDispute():
            soundness.on_row_dispute(turn, sender, message)
        case RosterSaid():
            acceptor.on_roster(turn, sender, message)
        case StuckSaid():
            restart.on_stuck(turn, sender, message)
        case Restarted():
            restart.on_restart(turn, sender, message)
            acceptor.poll(turn)
        case Objection():
            soundness.on_objection(turn, sender, message)
        case _ if block_sync.belongs(turn, sender, message.place):  # type: ignore[attr-defined]
            _receive_in_round(turn, sender, message)
        case _:
            pass


def _receive_in_round(turn: Transition, sender: str, message: Message) -> None:
    if isinstance(message, Prepare | Promise | Propose | VoteCast) and sender in turn.state.electorate:
        turn.set(spoke_at={**turn.state.spoke_at, sender: turn.now})
    if isinstance(message, Prepare):
        acceptor.on_prepare(turn, sender, message)
    elif message.place.instance == turn.state.instance:  # type: ignore[attr-defined]
        _receive_in_instance(turn, sender, message)


def _receive_in_instance(turn: Transition, sender: str, message: Message) -> None:
    match message:
        case Promise():
            coordinator.on_promise(turn, sender, message)
        case Nack():
            coordinator.on_nack(turn, sender, message)
            acceptor.answer_postponed(turn)
        case Start():
            member.on_start(turn, sender, message)
        case PartData():
            member.on_part(turn, sender, message)
        case MeanData():
            member.on_mean(turn, sender, message)
            coordinator.poll(turn)
        case GetMeans():
            member.on_want(turn, sender, message)
        case Reassign():
            if reassignment.on_redo(turn, sender, message):
                soundness.check_replaced(turn, message)
                member.replay_early(turn)
        case Propose():
            acceptor.on_propose(turn, sender, message)
        case SealedPropose():
            turn.refuse(sender, PLACE, "its coordinator did not sign it")
        case VoteCast():
            acceptor.on_vote(turn, sender, message)
        case EquivocationProof():
            soundness.on_proof(turn, message)
        case _:
            raise AssertionError(f"no such message: {message}")
