"""The outer round as a pure state machine: `step(state, event) -> (state, effects)`.

Read this file first. It says who handles what; the roles are in the files beside it:

    coordinate.py   the coordinator of a ballot: ask, choose, start
    gather.py       the same between START and PROPOSE: norms, means, repair
    audits.py       the same where a part is audited: who is right is computed
    propose.py      how its ballot ends
    judging.py      what pledges and measurements come to: weights, and findings
    exchange.py     a member: send parts, reduce parts, send means
    again.py        the same for parts that are reduced a second time: repairs and audits
    decide.py       a voter: promise, fetch, vote, decide, move to the next anchor
    validity.py     whether a block may follow: what a voter, an auditor and a watcher ask alike
    catchup.py      a peer that is behind, or ahead: GET, CHAIN, FETCH
    disputes.py     norms that are not those of the bytes
    reports.py      what I have caught others at
    proofs.py       what convicts a coordinator that proposes two updates
    takeover.py     peers that have lost the majority go on without it
    forks.py        and change over when others did more
    joining.py      a peer that is not in step yet: compare bits, tell how far it is

Nothing here knows tensors, sockets, files or a clock. The driver performs the effects in the order
given; `Persist` must be on disk before what follows it. A test may drop the rest of the effects at
any point and restart from disk: that is a crash.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from peer.rounds import (
    again,
    audits,
    catchup,
    coordinate,
    deadlines,
    decide,
    disputes,
    exchange,
    forks,
    gather,
    joining,
    proofs,
    reports,
)  # fmt: skip
from peer.rounds.accusations import Conflict, Objection, Proof
from peer.rounds.catchup import seen_again
from peer.rounds.effects import (
    Applied,
    Effect,
    Event,
    Frozen,
    Held,
    Leaving,
    Measured,
    Paused,
    Progressed,
    Quarantined,
    Received,
    Reduced,
    Resumed,
    SendObjects,
    Tick,
)
from peer.rounds.messages import (
    BytesSent,
    ChainSent,
    Fetch,
    Get,
    HeadSent,
    MeanSent,
    Message,
    Nack,
    Norms,
    PartSent,
    Prepare,
    Promise,
    Propose,
    Redo,
    Show,
    Start,
    Table,
    Voted,
    Want,
)  # fmt: skip
from peer.rounds.state import Acceptor, Head, Rules, State, Step
from peer.rounds.turn import Turn
from peer.rounds.update import Pledge, Update

TICK_S = 0.5
"""How often the driver sends a `Tick`."""


def begin(
    rules: Rules,
    head: Head,
    now: float,
    *,
    ancestors: Mapping[bytes, int] | None = None,
    acceptors: Mapping[bytes, Acceptor] | None = None,
    trail: tuple[Step, ...] = (),
    voters: frozenset[str] = frozenset(),
    accepted: Update | None = None,
    pledge: Pledge | None = None,
    held: Mapping[bytes, int] | None = None,
) -> State:
    """The state of a peer that starts, or starts again from what it finds on its disk.

    `voters` is everybody whom its chain ever elected, `acceptors` are its votes by instance, `accepted` is the update
    that the one of `head` names, `trail` its newest blocks, `held` the digests whose bytes are on disk, with sizes.
    """
    others = dict(acceptors or {})
    acceptor = others.pop(head.instance, None) or Acceptor(head.anchor, head.instance)
    if pledge is not None and pledge.anchor != head.anchor:
        pledge = None
    proposals = {accepted.digest: seen_again(accepted)} if accepted else {}
    return State(
        rules=rules, head=head, ancestors=ancestors or {head.anchor: head.round}, acceptor=acceptor,
        acceptors=others, voters=voters.union(head.electorate), trail=trail[-rules.keep_rounds :], pledge=pledge,
        deadlines=deadlines.learn([step.block.update for step in trail[-rules.keep_rounds :]], rules),
        held=held or {}, frozen_at=now, moved_at=now, proposals=proposals, applied_round=head.round,
        in_step=joining.starts_in_step(rules, head),
    )  # fmt: skip


def step(state: State, event: Event) -> tuple[State, tuple[Effect, ...]]:
    """What this event changes, and what the driver must do about it, in order."""
    turn = Turn(state, event.now)
    _take(turn, event)
    while turn.to_self:
        _receive(turn, turn.me, turn.to_self.popleft())
    return turn.state, tuple(turn.effects)


def _take(turn: Turn, event: Event) -> None:
    match event:
        case Tick(_, wall_offset_s):
            if wall_offset_s is not None:
                turn.set(rules=replace(turn.rules, wall_offset_s=wall_offset_s))
            _tick(turn)
        case Received(_, sender, message):
            _receive(turn, sender, message)
        case Held(_, digest, size):
            _held(turn, digest, size)
        case Reduced():
            exchange.on_reduced(turn, event)
            coordinate.look(turn)
        case Measured(evidence=True):
            disputes.on_measured(turn, event)
        case Measured():
            exchange.on_measured(turn, event)
        case Progressed(_, share):
            turn.set(progress=share)
        case Frozen(_, pledge):
            decide.on_frozen(turn, pledge)
            coordinate.look(turn)
        case Paused(_, pledge):
            decide.on_paused(turn, pledge)
            coordinate.look(turn)
        case Resumed():
            decide.on_resumed(turn)
        case Applied(_, anchor, digest):
            _applied(turn, anchor, digest)
        case Quarantined(_, peers):
            turn.set(quarantined=peers - {turn.me})
        case Leaving():
            turn.set(leaving=True)
            turn.say_head()
        case _:
            raise AssertionError(f"no such event: {event}")


def _applied(turn: Turn, anchor: bytes, digest: bytes) -> None:
    """The others compare their bits with mine as soon as I have them."""
    if anchor not in turn.state.ancestors:
        return  # undone meanwhile
    turn.set(applied_round=turn.state.ancestors[anchor])
    if anchor == turn.state.head.anchor:
        turn.set(state_digest=digest)
        joining.look(turn)
        if not turn.state.blocks:
            turn.say_head()


def _tick(turn: Turn) -> None:
    coordinate.look(turn)
    exchange.look(turn)
    again.look(turn)
    catchup.look(turn)
    joining.look(turn)


def _held(turn: Turn, digest: bytes, size: int) -> None:
    turn.set(held={**turn.state.held, digest: size})
    turn.arrived(digest)
    joining.count(turn, size)
    decide.look(turn)
    coordinate.look(turn)
    forks.change_over_if_held(turn)
    catchup.apply_blocks(turn)


def _receive(turn: Turn, sender: str, message: Message) -> None:
    """Messages that name an anchor other than my head go to catch-up; so do those about the chain."""
    match message:
        case HeadSent():
            catchup.on_head(turn, sender, message)
            joining.look(turn)
            coordinate.look(turn)
        case Get(anchors):
            catchup.on_get(turn, sender, anchors)
        case ChainSent(blocks):
            catchup.on_chain(turn, sender, blocks)
            joining.look(turn)
        case Fetch(digests):
            turn.do(SendObjects(sender, digests))
        case BytesSent():
            catchup.on_bytes(turn, message)
        case Conflict():
            reports.on_conflict(turn, sender, message)
        case Objection():
            disputes.on_objection(turn, sender, message)
        case PartSent(attempt=disputes.DISPUTE):
            disputes.on_part(turn, sender, message)
        case _ if catchup.belongs(turn, sender, message.place):  # type: ignore[attr-defined]
            _receive_in_round(turn, sender, message)
        case _:
            pass


def _receive_in_round(turn: Turn, sender: str, message: Message) -> None:
    if isinstance(message, Prepare):
        decide.on_prepare(turn, sender, message)
    elif message.place.instance == turn.state.instance:  # type: ignore[attr-defined]
        _receive_in_instance(turn, sender, message)


def _receive_in_instance(turn: Turn, sender: str, message: Message) -> None:
    match message:
        case Promise():
            coordinate.on_promise(turn, sender, message)
        case Nack():
            coordinate.on_nack(turn, sender, message)
        case Start():
            exchange.on_start(turn, sender, message)
        case PartSent():
            exchange.on_part(turn, sender, message)
        case Norms():
            gather.on_norms(turn, sender, message)
        case Table():
            exchange.on_table(turn, sender, message)
        case MeanSent() if message.attempt and not message.payload:
            audits.on_verdict(turn, sender, message)
            coordinate.look(turn)
        case MeanSent():
            exchange.on_mean(turn, sender, message)
            coordinate.look(turn)
        case Want():
            exchange.on_want(turn, sender, message)
        case Redo():
            if again.on_redo(turn, sender, message):
                exchange.replay_early(turn)
        case Show():
            again.on_show(turn, sender, message)
        case Propose():
            decide.on_propose(turn, sender, message)
        case Voted():
            decide.on_vote(turn, message)
        case Proof():
            proofs.on_proof(turn, message)
        case _:
            raise AssertionError(f"no such message: {message}")
