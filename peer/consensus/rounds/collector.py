"""The coordinator between START and PROPOSE: collect norms, publish them, collect means, void what nobody can give."""

from __future__ import annotations

from dataclasses import replace
from math import inf

from peer.consensus.protocol import norms, penalties, validation
from peer.consensus.protocol.block import VOID, Update, Vote, givers, token_share
from peer.consensus.protocol.encoding import pack
from peer.consensus.protocol.membership import next_electorate, trusted
from peer.consensus.protocol.messages import GetMeans, MeanData, Norms, NormTable, Propose, Reassign
from peer.consensus.protocol.refusals import NORMS
from peer.consensus.rounds import reassignment, soundness, timeouts
from peer.consensus.rounds.interface import Tell
from peer.consensus.rounds.state import BallotPhase, CoordinatorState, MemberState
from peer.consensus.rounds.transition import Transition
from peer.schema.events import RoundAborted

REPEAT_S = 1.0
VOTES_S = 8.0
"""A coordinator without a decision after this time steps back."""


def on_norms(turn: Transition, sender: str, message: Norms) -> None:
    lead, exchange, found = turn.state.lead, turn.state.exchange, message.measurements
    if lead is None or exchange is None or lead.stage is not BallotPhase.GATHERING or message.place != exchange.place:
        return
    head, ballot = turn.state.head, exchange.place.ballot
    if found.reducer != sender:
        return
    fault = norms.fault_of_measurements(turn.rules, head, exchange.members, ballot, (found,))
    if fault:
        turn.refuse(sender, NORMS, fault)
        return
    turn.set(lead=replace(lead, norms={**lead.norms, sender: found}))
    poll_norms(turn, lead)


def poll_norms(turn: Transition, lead: CoordinatorState) -> None:
    lead, exchange = turn.state.lead or lead, turn.state.exchange
    if exchange is None or exchange.place.ballot != lead.ballot:
        return
    silent = set(exchange.reducers) - set(lead.norms)
    if turn.now < lead.until and not all(timeouts.is_gone(turn.state, peer, turn.now) for peer in silent):
        return
    if not _may_commit(turn, exchange, silent):
        abort(turn, f"{len(silent)} of {len(exchange.members)} members fell silent")
        return
    measured = tuple(found for _, found in sorted(lead.norms.items()))
    judgement = norms.judgement_of(turn.rules, turn.state.head, exchange.members, measured)
    exchange = replace(exchange, measured=measured, judgement=judgement, listed=norms.listed(measured))
    expected, orphans = _expected(turn, exchange)
    until = turn.now + timeouts.at(turn.state, lead.ballot).means_s
    turn.set(exchange=exchange, lead=replace(lead, stage=BallotPhase.REDUCING, expected=expected, until=until))
    turn.send((header.peer for header in exchange.members), NormTable(exchange.place, measured))
    if orphans:
        _repair(turn, exchange, orphans, silent)


def _expected(turn: Transition, exchange: MemberState) -> tuple[frozenset[int], set[int]]:
    """The parts of which a mean may come, all but those that are rolled back; and those that must be reduced again.

    A part whose reducer has only what counts nothing is reduced by another, who may have more.
    """
    expected, orphans = set(), set()
    everybody = givers(exchange.members)
    for part in range(len(exchange.reducers)):
        if not any(reassignment.weights(turn, exchange, part, everybody)):
            continue
        if turn.rules.row_bytes and not exchange.listed.get(part):
            continue  # nothing of it was measured: what was given to it is carried
        expected.add(part)
        if not any(reassignment.weights(turn, exchange, part, exchange.listed.get(part, 0))):
            orphans.add(part)
    return frozenset(expected), orphans


def _may_commit(turn: Transition, exchange: MemberState, silent: set[str]) -> bool:
    """A quorum may still be there, and somebody gave something that he trained on."""
    voters, rules = turn.state.electorate, turn.rules
    there = sum(header.peer in voters and header.peer not in silent for header in exchange.members)
    trained = any(token_share(header, rules.tokens_cap, rules.max_staleness) for header in exchange.members)
    return turn.are_enough(there) and trained


def poll_means(turn: Transition, lead: CoordinatorState) -> None:
    """Propose as soon as every mean is here that may come, and no audit can change one any more."""
    exchange = turn.state.exchange
    if exchange is None or exchange.place.ballot != lead.ballot:
        return
    _have_checked(turn, exchange)
    exchange = turn.state.exchange or exchange
    held, means = turn.state.held, exchange.means
    missing = {part for part in lead.expected if part not in means or means[part].digest not in held}
    if missing and not _given_up(turn, lead, exchange, missing):
        return
    index = exchange.index_of(turn.me)
    if index is not None and any(exchange.holder_of(turn.rules, index, part) != turn.me for part in missing):
        abort(turn, "a home of this peer does not hold every mean")  # others may: nothing is void for its sake
        return
    if lead.expected and len(missing) == len(lead.expected):
        abort(turn, "no mean of any part arrived")
    elif (
        all(_key(part, means[part]) in turn.state.faults for part in lead.expected - missing)
        or not turn.rules.row_bytes
    ):
        update = make_update(turn, lead, exchange)
        if any(update.contributors):
            propose(turn, turn.state.lead or lead, update)
        else:
            abort(turn, "nothing that counts arrived")


def _key(part: int, mean: MeanData) -> tuple[bytes, int, int]:
    return mean.digest, part, mean.contributors


def _have_checked(turn: Transition, exchange: MemberState) -> None:
    """Every mean is compared with its rows before it is proposed; a wrong one is as good as none."""
    if not turn.rules.row_bytes or exchange.judgement is None:
        return
    weights, _, _ = norms.table_of(exchange.judgement)
    for part, mean in exchange.means.items():
        key = _key(part, mean)
        if mean.digest not in turn.state.held or key in turn.state.faults or key in exchange.checking:
            continue
        exchange = replace(exchange, checking=exchange.checking | {key})
        turn.set(exchange=exchange)
        turn.emit(soundness.check_of(turn, exchange.members, weights, exchange.measured, *key))
    wrong = {part for part, mean in exchange.means.items() if turn.state.faults.get(_key(part, mean))}
    if wrong:
        means = {part: mean for part, mean in exchange.means.items() if part not in wrong}
        turn.set(exchange=replace(exchange, means=means))


# ---- repair ----


def _given_up(turn: Transition, lead: CoordinatorState, exchange: MemberState, missing: set[int]) -> bool:
    """Ask who has what is missing; then have it reduced again; then it is void."""
    reducers = {exchange.reducers[part] for part in missing}
    in_vain = not lead.wanted and all(timeouts.is_gone(turn.state, peer, turn.now) for peer in reducers)
    if turn.now < lead.until and not in_vain:
        return False
    if not lead.wanted:
        turn.set(lead=replace(lead, wanted=True, until=turn.now + timeouts.at(turn.state, lead.ballot).ack_s))
        turn.send((header.peer for header in exchange.members), GetMeans(exchange.place, tuple(sorted(missing))))
        return False
    left = missing - lead.repaired
    if left:
        _repair(turn, exchange, left, reducers)
    return not left


def _repair(turn: Transition, exchange: MemberState, orphans: set[int], suspects: set[str]) -> None:
    """Have parts reduced again, each by the next in order that is not its reducer and has shown life."""
    lead = turn.state.lead
    assert lead is not None
    until = turn.now + timeouts.at(turn.state, lead.ballot).exchange_s
    turn.set(lead=replace(lead, repaired=lead.repaired | orphans, until=until))
    means = exchange.means.values()
    liars, believed = {peer for peer, *_ in turn.state.head.caught}, trusted(turn.state.head)
    lively = {turn.me, *lead.norms, *(mean.reducer for mean in means)}
    orders = []
    for part in sorted(orphans):
        others = (header.peer for header in exchange.members if header.peer != exchange.reducers[part])
        next_ones = reassignment.reassignment_order(exchange.place, part, others)
        next_ones.sort(key=lambda peer: (peer not in believed, peer in liars, peer in suspects, peer not in lively))
        orders += [(part, peer) for peer in next_ones[:1]]
    if orders:
        turn.send((header.peer for header in exchange.members), Reassign(exchange.place, tuple(orders)))
        late = ", ".join(sorted(suspects))
        turn.alert("warning", "REPAIR", f"{len(orders)} of {len(exchange.reducers)} parts are reduced again for {late}")


def abort(turn: Transition, why: str) -> None:
    """Step back. The ballot is spent; whatever was accepted stays accepted."""
    lead = turn.state.lead
    assert lead is not None
    turn.set(lead=None, ballot_at=-inf)
    turn.moved()
    turn.emit(Tell(RoundAborted(round=turn.state.head.round, ballot=lead.ballot, why=why)))
    turn.ballot_fails(why)


def make_update(turn: Transition, lead: CoordinatorState, exchange: MemberState) -> Update:
    """The update from the means whose bytes I hold; the rest is void."""
    head = turn.state.head
    means = {
        part: mean
        for part, mean in exchange.means.items()
        if mean.digest in turn.state.held
        and not (turn.rules.row_bytes and mean.contributors & ~exchange.listed.get(part, 0))
        and any(reassignment.weights(turn, exchange, part, mean.contributors))
    }  # a reducer may send a mean of what counts nothing
    parts = range(len(exchange.reducers))
    waited, took = timeouts.measure(turn.state, lead, exchange)
    judgement = exchange.judgement
    assert judgement is not None, "a proposal follows TABLE"
    weights, scales, pulls = norms.table_of(judgement)
    update = Update(
        parent=head.anchor,
        round=head.round + 1,
        time=max(int(turn.now + turn.rules.wall_offset_s), head.time + turn.rules.min_round_s),
        members=exchange.members,
        elect=(),
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
        roster=turn.roster,
    )
    tenures = validation.tenures_due(turn.rules, head, update)
    update = replace(update, tenures=tenures, elect=next_electorate(head, exchange.members, tenures, update.roster))
    return replace(update, penalties=penalties.due(turn.rules, head, update, judgement.findings))


def _refused(turn: Transition, exchange: MemberState, part: int) -> int:
    """Contributors of a part that is rolled back: all of them were judged, and none counts."""
    assert exchange.judgement is not None
    row = exchange.judgement.weights[turn.fragment.rows[part]]
    return 0 if any(row) else exchange.listed.get(part, 0)


def propose(turn: Transition, lead: CoordinatorState, update: Update, certificate: tuple[Vote, ...] = ()) -> None:
    place = turn.place(lead.ballot)
    digest = update.digest
    signature = turn.rules.keys.sign("propose", pack((place.packed(), digest)))
    until = turn.now + VOTES_S + timeouts.at(turn.state, lead.ballot).ack_s
    turn.set(
        lead=replace(lead, stage=BallotPhase.PROPOSING, update=digest, until=until, repeat_at=turn.now + REPEAT_S),
    )
    members = (header.peer for header in update.members)
    turn.send((*turn.state.electorate, *members), Propose(place, update, signature, certificate))
