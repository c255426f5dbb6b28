"""The coordinator from Start to Propose: it collects means, has them checked and repaired, and voids parts that nobody
has.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from peer.consensus.protocol import norms, penalties, validation
from peer.consensus.protocol.block import VOID, ContributionHeader, Update, Vote, givers, token_share
from peer.consensus.protocol.encoding import pack
from peer.consensus.protocol.membership import next_electorate, trusted
from peer.consensus.protocol.messages import GetMeans, Nack, Propose, Reassign
from peer.consensus.rounds import reassignment, soundness, timeouts
from peer.consensus.rounds.interface import Tell
from peer.consensus.rounds.state import BallotPhase, CoordinatorState, MemberState
from peer.consensus.rounds.transition import Transition
from peer.schema.events import RoundAborted

REPEAT_S = 1.0
VOTES_S = 8.0
"""A coordinator without a decision after this time steps back."""


def expected_parts(turn: Transition, exchange: MemberState) -> frozenset[int]:
    """The parts whose mean may come: all but those of layers that are rolled back."""
    everybody = givers(exchange.members)
    parts = range(len(exchange.reducers))
    return frozenset(part for part in parts if any(reassignment.weights(turn, exchange, part, everybody)))


def is_trained_on(turn: Transition, headers: Iterable[ContributionHeader]) -> bool:
    """Whether any member gives work that it trained."""
    rules = turn.rules
    return any(token_share(header, rules.tokens_cap, rules.max_staleness) for header in headers)


def poll_means(turn: Transition, lead: CoordinatorState) -> None:
    """Propose as soon as every mean that may come is here and equals the sum of its rows."""
    exchange = turn.state.exchange
    if exchange is None or exchange.place.ballot != lead.ballot:
        return
    if lead.expected is None:
        lead = replace(lead, expected=expected_parts(turn, exchange))
        turn.set(lead=lead)
    expected = lead.expected or frozenset()
    _have_checked(turn, exchange)
    exchange = turn.state.exchange or exchange
    held, means = turn.state.held, exchange.means
    missing = {part for part in expected if part not in means or means[part].digest not in held}
    if missing and not _given_up(turn, lead, exchange, missing):
        return
    index = exchange.index_of(turn.me)
    if index is not None and any(exchange.holder_of(turn.rules, index, part) != turn.me for part in missing):
        abort(turn, "a home of this peer does not hold every mean")  # others may: nothing is void for its sake
        return
    if expected and len(missing) == len(expected):
        abort(turn, "no mean of any part arrived")
    elif turn.state.state_digest and (
        all(soundness.named(exchange, means[part]) in turn.state.faults for part in expected - missing)
        or not turn.rules.row_bytes
    ):
        update = make_update(turn, lead, exchange)
        if any(update.contributors):
            propose(turn, turn.state.lead or lead, update)
        else:
            abort(turn, "nothing that counts arrived")


def _have_checked(turn: Transition, exchange: MemberState) -> None:
    """Every mean is compared with its rows before it is proposed. A wrong one counts as missing, and so does one that
    too few are behind: another reducer may have more."""
    table, right = norms.table_of(exchange.judgement), {}
    for part, mean in exchange.means.items():
        if not validation.is_of_enough(turn.state.electorate, exchange.members, mean.contributors):
            continue
        key = soundness.named(exchange, mean)
        is_here = turn.rules.row_bytes and mean.digest in turn.state.held
        is_checked = is_here and soundness.have_checked(turn, exchange.members, table, key)
        if not is_checked or not turn.state.faults[key]:
            right[part] = mean
    if len(right) < len(exchange.means):
        turn.set(exchange=replace(exchange, means=right))


# ---- repair ----


def _given_up(turn: Transition, lead: CoordinatorState, exchange: MemberState, missing: set[int]) -> bool:
    """Parts without a mean: first ask for it, then have it reduced again, then declare the part void."""
    reducers = {exchange.reducers[part] for part in missing}
    in_vain = not lead.wanted and all(timeouts.is_gone(turn.state, peer, turn.now) for peer in reducers)
    were_silent = all(timeouts.is_hurried(turn.state, peer) for peer in reducers)
    until = _hurried_until(turn, lead, exchange, reducers) if were_silent and not lead.wanted else lead.until
    if turn.now < until and not in_vain:
        return False
    if not lead.wanted:
        wait_s = timeouts.at(turn.state, lead.ballot).ack_s / (4 if were_silent else 1)
        turn.set(lead=replace(lead, wanted=True, until=turn.now + wait_s))
        in_full = () if were_silent or in_vain else reducers  # also where others were given them in time
        turn.set(silent=timeouts.silent_after(turn.state, reducers, (), in_full))
        turn.send((header.peer for header in exchange.members), GetMeans(exchange.place, tuple(sorted(missing))))
        return False
    left = missing - lead.repaired
    if left:
        _repair(turn, exchange, left, reducers)
    return not left


def _hurried_until(turn: Transition, lead: CoordinatorState, exchange: MemberState, reducers: set[str]) -> float:
    """Until when the means of these reducers are awaited, all of which were silent lately."""
    came_at = [at for peer, at in exchange.mean_at.items() if peer not in reducers]
    wait_s = timeouts.reduced_s(timeouts.at(turn.state, lead.ballot))
    return min(lead.until, timeouts.others_until(exchange.began_at, came_at, wait_s))


def _repair(turn: Transition, exchange: MemberState, orphans: set[int], replaced: set[str]) -> None:
    """Have parts reduced again, each by the next member in order that is not its reducer and has shown life."""
    lead = turn.state.lead
    assert lead is not None
    until = turn.now + timeouts.at(turn.state, lead.ballot).exchange_s
    turn.set(lead=replace(lead, repaired=lead.repaired | orphans, until=until))
    means = exchange.means.values()
    convicted, believed = {peer for peer, *_ in turn.state.head.convicted}, trusted(turn.state.head)
    lively = {turn.me, *(mean.reducer for mean in means)}
    orders = []
    for part in sorted(orphans):
        others = (header.peer for header in exchange.members if header.peer != exchange.reducers[part])
        next_ones = reassignment.reassignment_order(exchange.place, part, others)
        next_ones.sort(key=lambda peer: (peer not in believed, peer in convicted, peer in replaced, peer not in lively))
        orders += [(part, peer) for peer in next_ones[:1]]
    if orders:
        turn.send((header.peer for header in exchange.members), Reassign(exchange.place, tuple(orders)))
        late = ", ".join(sorted(replaced))
        turn.alert("warning", "REPAIR", f"{len(orders)} of {len(exchange.reducers)} parts are reduced again for {late}")


def abort(turn: Transition, why: str) -> None:
    """Step back. The ballot is spent; what was accepted in it stays accepted."""
    lead = turn.state.lead
    assert lead is not None
    turn.set(lead=None)
    turn.ballot_over()
    promised = max(turn.state.acceptor.promised, lead.ballot + 1)
    turn.send(lead.asked, Nack(turn.place(lead.ballot), promised))  # nobody need wait for it
    turn.moved()
    turn.emit(Tell(RoundAborted(round=turn.state.head.round, ballot=lead.ballot, why=why)))
    turn.ballot_fails(why)


def make_update(turn: Transition, lead: CoordinatorState, exchange: MemberState) -> Update:
    """The update from the means whose bytes I hold; other parts are void."""
    head = turn.state.head
    means = {
        part: mean
        for part, mean in exchange.means.items()
        if mean.digest in turn.state.held and any(reassignment.weights(turn, exchange, part, mean.contributors))
    }  # a reducer may send a mean of what counts nothing
    parts = range(len(exchange.reducers))
    waited, took = timeouts.measure(turn.state, lead, exchange)
    judgement = exchange.judgement
    weights, scales, pulls = norms.table_of(judgement)
    update = Update(
        parent=head.anchor, round=head.round + 1,
        time=max(int(turn.now + turn.rules.wall_offset_s), head.time + turn.rules.min_round_s),
        members=exchange.members, elect=(),
        parts=tuple(means[part].digest if part in means else VOID for part in parts),
        contributors=tuple(
            means[part].contributors if part in means else _refused(turn, exchange, part) for part in parts
        ),
        weights=weights, penalties=(), weight=head.weight + len(exchange.members), ballot=exchange.place.ballot,
        coordinator=turn.me, waited=waited, took=took, scales=scales, pulls=pulls, records=judgement.records,
        roster=turn.roster, state=turn.state.state_digest,
    )  # fmt: skip
    tenures = validation.tenures_due(turn.rules, head, update)
    update = replace(update, tenures=tenures, elect=next_electorate(head, exchange.members, tenures, update.roster))
    return replace(update, penalties=penalties.due(turn.rules, head, update, judgement.findings))


def _refused(turn: Transition, exchange: MemberState, part: int) -> int:
    """Contributors of a part that is rolled back: all of them were judged, and none counts."""
    row = exchange.judgement.weights[turn.fragment.rows[part]]
    return 0 if any(row) else givers(exchange.members)


def propose(turn: Transition, lead: CoordinatorState, update: Update, certificate: tuple[Vote, ...] = ()) -> None:
    place = turn.place(lead.ballot)
    digest = update.digest
    signature = turn.rules.keys.sign("propose", pack((place.packed(), digest)))
    until = turn.now + VOTES_S + timeouts.at(turn.state, lead.ballot).ack_s
    lead = replace(lead, stage=BallotPhase.PROPOSING, update=digest, until=until, repeat_at=turn.now + REPEAT_S)
    turn.set(lead=lead)
    members = (header.peer for header in update.members)
    turn.send((*turn.state.electorate, *members), Propose(place, update, signature, certificate))
