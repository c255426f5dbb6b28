"""How a ballot of mine ends: with a proposal, or without."""

from __future__ import annotations

from dataclasses import replace

from peer.events import RoundAborted
from peer.protocol import norms, penalties
from peer.protocol.block import MAX_MEMBERS, VOID, Update
from peer.protocol.encoding import pack
from peer.protocol.messages import Propose
from peer.rounds import part_exchange as rounds_parts
from peer.rounds import timeouts
from peer.rounds.interface import Tell
from peer.rounds.state import BallotPhase, CoordinatorState, MemberState
from peer.rounds.transition import Transition

REPEAT_S = 1.0
VOTES_S = 8.0
"""A coordinator without a decision after this time steps back."""


def abort(turn: Transition, why: str) -> None:
    """Step back. The ballot is spent; whatever was accepted stays accepted."""
    lead = turn.state.lead
    assert lead is not None
    turn.set(lead=None)
    turn.moved()
    turn.do(Tell(RoundAborted(round=turn.state.head.round, ballot=lead.ballot, why=why)))


def make_update(turn: Transition, lead: CoordinatorState, exchange: MemberState) -> Update:
    """The update from the means whose bytes I hold; the rest is void."""
    head = turn.state.head
    means = {
        part: mean
        for part, mean in exchange.means.items()
        if mean.digest in turn.state.held and any(rounds_parts.weights(turn, exchange, part, mean.contributors))
    }  # a reducer may send a mean of what counts nothing
    parts = range(len(exchange.reducers))
    stayed = {pledge.peer for pledge in exchange.members if not pledge.leaving}
    leaving = {peer for peer, (said, _) in turn.state.heard.items() if said.leaving}
    gone = leaving | turn.state.banned | turn.state.quarantined
    leavers = {pledge.peer for pledge in exchange.members if pledge.leaving}
    # Who takes over decides alone what follows: of the members before most have vanished.
    before = () if turn.state.weak else head.members
    earlier = sorted(set(before) - gone - leavers - stayed)[: MAX_MEMBERS - len(stayed)]
    waited, took = timeouts.measure(turn.state, lead, exchange)
    judgement = exchange.judgement
    assert judgement is not None, "a proposal follows TABLE"
    weights, scales, pulls = norms.table_of(judgement)
    update = Update(
        parent=head.anchor,
        round=head.round + 1,
        time=max(int(turn.now + turn.rules.wall_offset_s), head.time + turn.rules.min_round_s),
        members=exchange.members,
        elect=tuple(sorted(stayed | set(earlier) if stayed else leavers)),
        parts=tuple(means[part].digest if part in means else VOID for part in parts),
        contributors=tuple(
            means[part].contributors if part in means else _refused(turn, exchange, part) for part in parts
        ),
        weights=weights,
        penalties=(),
        weight=head.weight + len(exchange.members),
        ballot=exchange.place.ballot,
        coordinator=turn.me,
        waited=waited,
        took=took,
        scales=scales,
        pulls=pulls,
        measured=exchange.measured,
        records=judgement.records,
    )
    return replace(update, penalties=penalties.due(turn.rules, head, update, judgement.findings))


def _refused(turn: Transition, exchange: MemberState, part: int) -> int:
    """Contributors of a part that is rolled back: all of them were judged, and none counts."""
    assert exchange.judgement is not None
    row = exchange.judgement.weights[turn.fragment.rows[part]]
    return 0 if any(row) else exchange.listed.get(part, 0)


def propose(turn: Transition, lead: CoordinatorState, update: Update) -> None:
    place = turn.place(lead.ballot)
    digest = update.digest
    signature = turn.rules.keys.sign("propose", pack((place.packed(), digest)))
    until = turn.now + VOTES_S
    turn.set(
        lead=replace(lead, stage=BallotPhase.PROPOSING, update=digest, until=until, repeat_at=turn.now + REPEAT_S),
    )
    members = (pledge.peer for pledge in update.members)
    turn.send((*turn.state.electorate, *members), Propose(place, update, signature))
