"""The outer round as a pure state machine: `step(state, event) -> (state, effects)`.

Read this file first. It says who handles what; the roles are in the files beside it:

    coordinate.py   the coordinator of a ballot: ask, choose, start
    gather.py       the same between START and PROPOSE: norms, means, repair
    propose.py      how its ballot ends
    exchange.py     a member: send parts, reduce parts, send means
    decide.py       a voter: promise, fetch, vote, decide, move to the next anchor
    catchup.py      a peer that is behind, or ahead: GET, CHAIN, FETCH
    joining.py      a peer that is not in step yet: compare bits, tell how far it is

Nothing here knows tensors, sockets, files or a clock. The driver performs the effects in the order
given; `Persist` must be on disk before what follows it. A test may drop the rest of the effects at
any point and restart from disk: that is a crash.
"""

from __future__ import annotations

from collections.abc import Mapping

from peer.rounds import catchup, coordinate, decide, exchange, gather, joining
from peer.rounds.catchup import seen_again
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
    Start,
    Table,
    Voted,
    Want,
)  # fmt: skip
from peer.rounds.state import (
    Acceptor,
    Applied,
    Effect,
    Event,
    Frozen,
    Head,
    Held,
    Leaving,
    Progressed,
    Received,
    Reduced,
    Rules,
    SendObjects,
    State,
    Tick,
)  # fmt: skip
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
    acceptor: Acceptor | None = None,
    accepted: Update | None = None,
    pledge: Pledge | None = None,
    held: Mapping[bytes, int] | None = None,
) -> State:
    """The state of a peer that starts, or starts again from what it finds on its disk.

    `accepted` is the update that `acceptor` names, `held` the digests whose bytes are on disk, with their sizes.
    """
    if acceptor is None or acceptor.instance != head.instance:
        acceptor, accepted = Acceptor(head.anchor, head.instance), None
    if pledge is not None and pledge.anchor != head.anchor:
        pledge = None
    proposals = {accepted.digest: seen_again(accepted)} if accepted else {}
    return State(
        rules=rules, head=head, ancestors=ancestors or {head.anchor: head.round}, acceptor=acceptor, pledge=pledge,
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
        case Tick():
            _tick(turn)
        case Received(_, sender, message):
            _receive(turn, sender, message)
        case Held(_, digest, size):
            _held(turn, digest, size)
        case Reduced():
            exchange.on_reduced(turn, event)
            coordinate.look(turn)
        case Progressed(_, share):
            turn.set(progress=share)
        case Frozen(_, pledge):
            decide.on_frozen(turn, pledge)
            coordinate.look(turn)
        case Applied(_, anchor, digest):
            _applied(turn, anchor, digest)
        case Leaving():
            turn.set(leaving=True)
            turn.say_head()
        case _:
            raise AssertionError(f"no such event: {event}")


def _applied(turn: Turn, anchor: bytes, digest: bytes) -> None:
    """The others compare their bits with mine as soon as I have them."""
    turn.set(applied_round=turn.state.ancestors.get(anchor, 0))
    if anchor == turn.state.head.anchor:
        turn.set(state_digest=digest)
        joining.look(turn)
        if not turn.state.blocks:
            turn.say_head()


def _tick(turn: Turn) -> None:
    coordinate.look(turn)
    exchange.look(turn)
    catchup.look(turn)
    joining.look(turn)


def _held(turn: Turn, digest: bytes, size: int) -> None:
    turn.set(held={**turn.state.held, digest: size})
    turn.arrived(digest)
    joining.count(turn, size)
    decide.look(turn)
    coordinate.look(turn)
    catchup.apply_blocks(turn)


def _receive(turn: Turn, sender: str, message: Message) -> None:
    """Messages that name an anchor other than my head go to catch-up; so do those about the chain."""
    match message:
        case HeadSent():
            catchup.on_head(turn, sender, message)
            joining.look(turn)
            coordinate.look(turn)
        case Get(anchor):
            catchup.on_get(turn, sender, anchor)
        case ChainSent(blocks):
            catchup.on_chain(turn, sender, blocks)
            joining.look(turn)
        case Fetch(digests):
            turn.do(SendObjects(sender, digests))
        case BytesSent():
            catchup.on_bytes(turn, message)
        case _ if catchup.belongs(turn, sender, message.place):  # type: ignore[attr-defined]
            _receive_in_round(turn, sender, message)
        case _:
            pass


def _receive_in_round(turn: Turn, sender: str, message: Message) -> None:
    match message:
        case Prepare():
            decide.on_prepare(turn, sender, message)
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
        case MeanSent():
            exchange.on_mean(turn, sender, message)
            coordinate.look(turn)
        case Want():
            exchange.on_want(turn, sender, message)
        case Propose():
            decide.on_propose(turn, sender, message)
        case Voted():
            decide.on_vote(turn, message)
        case _:
            raise AssertionError(f"no such message: {message}")
