"""Checks every mean against the contributions behind it, and convicts liars: of false means, and of two proposals in
one ballot.

A mean travels with one row per contributor: a random sketch of the contributor's bytes, drawn from the mean's own
digest. A mean is linear in its contributions, so everybody compares it with the sum of its rows, and each contributor
compares its own row with its own bytes. A contributor whose row is wrong shows everybody what it gave.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from itertools import chain

from peer.consensus.protocol import merkle, norms, validation
from peer.consensus.protocol.block import MAX_EVIDENCE, VOID, WEIGHT_ONE, ContributionHeader, Update, Vote
from peer.consensus.protocol.electorate import quorum
from peer.consensus.protocol.encoding import digest_of, pack
from peer.consensus.protocol.head import MISDECLARED
from peer.consensus.protocol.messages import BallotId, EquivocationProof, MeanData, Objection, Reassign, RowDispute
from peer.consensus.protocol.refusals import MEMBERS
from peer.consensus.rounds import reassignment, timeouts
from peer.consensus.rounds.interface import ROW, CheckMean, CheckRow, MeanChecked, RowChecked, ShowRow, Tell
from peer.consensus.rounds.state import BallotPhase, Mean, MemberState, Misconduct, Proposal
from peer.consensus.rounds.transition import Transition
from peer.schema.events import PenaltyImposed

SHOWN_MOST = 32
"""What one peer shows for one anchor and is looked into: an honest one shows one in a ballot for each liar."""
OBJECTS_AGAIN_AFTER = 64
"""Rounds for which an objection is ignored of whoever made one without a proof."""
CHECK_AGAIN_S = 3.0
"""After so long another home is asked again for its answer."""
PROOF_VOTES_S = 8.0
"""A coordinator gives its proposal so long once nobody can object any more."""


def asked_for_mine(turn: Transition, proposal: Proposal) -> bool:
    """Whether some of what I pledged counts, or I was at least asked for it: a coordinator that starts nobody else, or
    with headers that nobody can take, would count alone whenever it leads. With other headers than those of the
    exchange all parts but its own would be void, since the others reduced theirs by those."""
    update, exchange = proposal.update, turn.state.exchange
    pledged = any(header.peer == turn.me and header.root for header in update.members)
    if proposal.certificate or not pledged or turn.me not in turn.state.electorate:
        return True
    if exchange is None or exchange.place != turn.place(proposal.ballot):
        return any(update.contributed(turn.me, part) for part in range(len(update.parts)))
    if exchange.basis != norms.inputs_digest_of(update.members):
        turn.refuse(turn.owner(proposal.ballot), MEMBERS, "its headers are not those with which it began the exchange")
        return False
    return True


def certified(turn: Transition, accepted: tuple[int, bytes], votes: tuple[Vote, ...]) -> bool:
    """Whether these are the votes of a quorum that has checked an update in a ballot."""
    ballot, digest = accepted
    fault = validation.fault_of_votes(turn.rules.keys, turn.state.head, votes, digest, 1)
    return not fault and votes[0].ballot == ballot


def means_of(update: Update, basis: bytes) -> Iterator[Mean]:
    """The means of an update that are not void; `basis` is the digest of its headers."""
    for part, (digest, bits) in enumerate(zip(update.parts, update.contributors, strict=True)):
        if digest != VOID:
            yield digest, part, bits, basis


def named(exchange: MemberState, mean: MeanData) -> Mean:
    """Under the headers of this exchange, whichever its reducer was told."""
    return mean.digest, mean.part, mean.contributors, exchange.basis


Table = tuple[tuple[tuple[int, ...], ...], tuple[int, ...], tuple[int, ...]]
"""Weights, scales and pulls, as an update has them."""


def check_of(turn: Transition, members: tuple[ContributionHeader, ...], table: Table, mean: Mean) -> CheckMean:
    """The comparison of one mean that the driver is asked for."""
    digest, part, bits, basis = mean
    (weights, scales, pulls), number, head = table, turn.fragment.rows[part], turn.state.head
    row, chosen = norms.row_for(weights, number), [index for index in range(len(members)) if bits >> index & 1]
    pull = pulls[number] if pulls else 0
    is_known = len(turn.state.trail) >= turn.rules.fragments or head.round < turn.rules.fragments
    return CheckMean(
        digest, part, bits, tuple(members[index].peer for index in chosen), tuple(row[index] for index in chosen),
        tuple(norms.declared_of_part(members[index], part) for index in chosen), head.anchor,
        reassignment.missing_weight(turn, members, row, bits), scales[number] if scales else WEIGHT_ONE,
        pull if is_known or not pull else -1, reassignment.direction(turn, part), basis,
    )  # fmt: skip


def have_checked(turn: Transition, members: tuple[ContributionHeader, ...], table: Table, key: Mean) -> bool:
    """Whether a mean has been compared with its rows; otherwise that is asked for, once, or again at another home."""
    state = turn.state
    if key in state.faults:
        return True
    asked_at = state.checking.get(key)
    if asked_at is None or (key[0] in state.afar and turn.now - asked_at >= CHECK_AGAIN_S):
        turn.set(checking={**state.checking, key: turn.now})
        turn.emit(check_of(turn, members, table, key))
    return False


def table_of(update: Update) -> Table:
    return update.weights, update.scales, update.pulls


def check_replaced(turn: Transition, order: Reassign) -> None:
    """A mean that is reduced again may be false and not missing: every peer that has it compares it, so that not only
    the coordinator knows who made it."""
    exchange = turn.state.exchange
    if not turn.rules.row_bytes or exchange is None:
        return
    table = norms.table_of(exchange.judgement)
    for part, _ in order.parts:
        mean = exchange.means.get(part)
        if mean is not None and not mean.attempt and mean.digest in turn.state.held:
            have_checked(turn, exchange.members, table, named(exchange, mean))


def check_late(turn: Transition, update: Update) -> None:
    """The others have decided before I could compare: I still check what a mean says about me."""
    if not turn.rules.row_bytes or turn.rules.holds is not None:
        return
    index = next((index for index, header in enumerate(update.members) if header.peer == turn.me and header.root), None)
    for key in means_of(update, norms.inputs_digest_of(update.members)):
        if index is not None and key[2] >> index & 1 and key not in turn.state.faults:
            have_checked(turn, update.members, table_of(update), key)


def on_checked(turn: Transition, event: MeanChecked) -> None:
    """If a row about me is wrong I show others what I gave; what is wrong in itself everybody sees as I do."""
    key = (event.digest, event.part, event.contributors, event.basis)
    turn.set(faults={**turn.state.faults, key: event.fault})
    found, mean = _origin(turn, key), (event.part, event.digest, event.contributors)
    if event.fault == ROW and found is not None:
        voters, place = turn.state.electorate, turn.place(max(0, turn.state.acceptor.promised))
        if found.anchor == place.anchor and turn.me in voters:
            turn.send((peer for peer in voters if peer != turn.me), Objection(place, *mean))
        author, once = _author(turn, key), (place.ballot, _liar_or_mean(turn, key))
        if once not in turn.state.forwarded:
            turn.set(forwarded=turn.state.forwarded | {once})
            # One honest voter of them is enough: it passes that on.
            others = [peer for peer in voters if peer not in (turn.me, author)]
            others.sort(key=lambda peer: timeouts.lost_at(turn.state, peer) <= turn.now)
            chosen = tuple(others[: len(voters) - quorum(voters) + 1])
            turn.emit(ShowRow(chosen, replace(place, anchor=found.anchor), *mean))
    if event.fault:
        _blame(turn, key, event.fault)


def on_row_dispute(turn: Transition, sender: str, message: RowDispute) -> None:
    """A peer shows the bytes that a member pledged, and a mean whose row about them is false."""
    state, giver = turn.state, message.giver or sender
    if sender in state.wrong or (giver, _shown_of(message)) in state.shown:
        return
    if sum(by == sender for by, _ in state.shown.values()) >= SHOWN_MOST:
        return
    if any(_pledged(turn, origin, giver, message) for origin in _origins(turn, *_shown_of(message))):
        turn.set(shown={**state.shown, (giver, _shown_of(message)): (sender, message)})
        _check_rows(turn, giver, message)


def _shown_of(message: RowDispute) -> tuple[bytes, int, int]:
    return message.digest, message.part, message.contributors


def _pledged(turn: Transition, origin: MeanOrigin, giver: str, message: RowDispute) -> bool:
    """Whether these are the bytes that a member pledged."""
    names, sizes = [header.peer for header in origin.members], turn.rules.bytes_in(origin.round)
    if giver not in names or message.part >= len(sizes) or len(message.payload) != sizes[message.part]:
        return False
    root, leaf = origin.members[names.index(giver)].root, digest_of(message.payload)
    return root != b"" and merkle.proves(root, leaf, message.part, message.path, len(sizes))


def show_again(turn: Transition, voter: str, proposal: Proposal) -> None:
    """To who has checked it and was away when this was shown. The others do not say so of a mean that is false."""
    for (giver, key), (_, message) in turn.state.shown.items():
        is_here = message.digest in proposal.update.parts and turn.state.faults.get((*key, proposal.basis))
        if is_here and voter in turn.state.electorate and voter not in (turn.me, giver):
            turn.send((voter,), replace(message, giver=giver))


def check_shown(turn: Transition, digests: Collection[bytes]) -> None:
    """Means have arrived, or were proposed, about which somebody has shown evidence."""
    for (giver, _), (_, message) in turn.state.shown.items():
        if message.digest in digests:
            _check_rows(turn, giver, message)


def _check_rows(turn: Transition, giver: str, message: RowDispute) -> None:
    """Under all headers with which the mean was named: which row is the giver's depends on them. Nothing happens
    without the mean: the rows are checked once it is here."""
    origins = {origin.basis: origin for origin in _origins(turn, *_shown_of(message))}
    for basis, origin in origins.items():
        if turn.state.faults.get((*_shown_of(message), basis)) or not _pledged(turn, origin, giver, message):
            continue
        index = [header.peer for header in origin.members].index(giver)
        if not message.contributors >> index & 1:
            continue
        rank = (message.contributors & ((1 << index) - 1)).bit_count()
        declared = norms.declared_of_part(origin.members[index], message.part)
        turn.emit(
            CheckRow(
                giver, message.digest, message.part, message.contributors, rank, message.payload, declared,
                origin.anchor, basis,
            )
        )  # fmt: skip


def on_row_checked(turn: Transition, event: RowChecked) -> None:
    """The row is false: no peer accepts this mean any more, everybody knows its author, and I pass the evidence on."""
    key = (event.digest, event.part, event.contributors, event.basis)
    sender, message = turn.state.shown.get((event.giver, key[:3]), ("", None))
    if event.right:
        proposals = turn.state.proposals.values()
        if message is None or all((event.basis, message.place.ballot) != (it.basis, it.ballot) for it in proposals):
            return  # it may be about a proposal that I have not seen, under other headers
        turn.set(wrong=turn.state.wrong | {sender})
        objected, _ = turn.state.objections.get(event.giver, ((), 0.0))
        if objected == key[:3]:  # its proof proves nothing: nobody waits on
            turn.set(unproven={**turn.state.unproven, event.giver: turn.state.head.round})
        return
    if turn.state.faults.get(key):
        return
    turn.set(faults={**turn.state.faults, key: ROW})
    once = (turn.state.acceptor.promised, _liar_or_mean(turn, key))
    _blame(turn, key, ROW)
    if message is not None and once not in turn.state.forwarded and turn.me in turn.state.electorate:
        turn.set(forwarded=turn.state.forwarded | {once})
        others = (peer for peer in turn.state.electorate if peer not in (turn.me, sender, event.giver))
        turn.send(others, replace(message, giver=event.giver))


def on_objection(turn: Transition, sender: str, message: Objection) -> None:
    """Accept one objection per anchor from a voter that has not objected without proof."""
    state = turn.state
    if message.place.anchor != state.head.anchor or sender not in state.electorate or sender in state.objections:
        return
    if state.head.round - state.unproven.get(sender, -OBJECTS_AGAIN_AFTER) < OBJECTS_AGAIN_AFTER:
        return
    key = (message.digest, message.part, message.contributors)
    turn.set(objections={**state.objections, sender: (key, turn.now)})
    turn.ballot_moved()


def is_objected_to(turn: Transition, proposal: Proposal) -> bool:
    """Whether a contributor of the mean may still prove that the mean misquotes it."""
    state, update, waits = turn.state, proposal.update, False
    for peer, ((digest, part, bits), at) in state.objections.items():
        key = (digest, part, bits, proposal.basis)
        if part >= len(update.parts) or (update.parts[part], update.contributors[part]) != (digest, bits):
            continue
        header = next((header for header in update.members if header.peer == peer), None)
        if header is None or not update.contributed(peer, part) or state.unproven.get(peer) == state.head.round:
            continue
        until = at + _proof_s(turn, header, part)
        if turn.now < until:
            waits = True
            if state.lead is not None and state.lead.stage is BallotPhase.PROPOSING:
                turn.set(lead=replace(state.lead, until=max(state.lead.until, until + PROOF_VOTES_S)))
        elif not state.faults.get(key) and (peer, key[:3]) not in state.shown:
            turn.set(unproven={**turn.state.unproven, peer: state.head.round})
    return waits


def _proof_s(turn: Transition, header: ContributionHeader, part: int) -> float:
    """How long its proof may take: two of its parts on its own line, and two on the lines of those that pass it on."""
    waits = timeouts.at(turn.state, max(0, turn.state.acceptor.promised))
    if not header.bandwidth_bps:
        return waits.exchange_s
    return min(waits.exchange_s, waits.ack_s + 2 * 8 * turn.part_bytes[part] / header.bandwidth_bps)


@dataclass(frozen=True, slots=True)
class MeanOrigin:
    """Where a mean comes from."""

    members: tuple[ContributionHeader, ...]
    anchor: bytes
    round: int
    """The round of that anchor."""
    basis: bytes


def _origins(turn: Transition, digest: bytes, part: int, bits: int) -> Iterator[MeanOrigin]:
    """The proposals, the last decided update, and the exchange, in which this mean may be."""
    decided = (Proposal(-1, step.block.update, b"") for step in turn.state.trail[-1:])
    for proposal in (*turn.state.proposals.values(), *decided):
        update = proposal.update
        if part < len(update.parts) and (update.parts[part], update.contributors[part]) == (digest, bits):
            basis = proposal.basis or norms.inputs_digest_of(update.members)
            yield MeanOrigin(update.members, update.parent, update.round - 1, basis)
    exchange, head = turn.state.exchange, turn.state.head
    if exchange is not None:
        yield MeanOrigin(exchange.members, head.anchor, head.round, exchange.basis)


def _origin(turn: Transition, key: Mean) -> MeanOrigin | None:
    """The one with these headers."""
    digest, part, bits, basis = key
    return next((origin for origin in _origins(turn, digest, part, bits) if origin.basis == basis), None)


def _mean(turn: Transition, key: Mean) -> MeanData | None:
    """What a peer has signed about it. If it was told other headers, a false mean is not its fault."""
    for exchange in (turn.state.exchange, turn.state.past):
        mean = exchange.means.get(key[1]) if exchange is not None else None
        if mean is not None and (mean.digest, mean.part, mean.contributors, mean.basis) == key:
            return mean
    return None


def _author(turn: Transition, key: Mean) -> str:
    mean = _mean(turn, key)
    return mean.reducer if mean is not None else ""


def _liar_or_mean(turn: Transition, key: Mean) -> str:
    """In one ballot one proof is enough for each liar, and one for each mean that nobody has signed to me."""
    return _author(turn, key) or key[0].hex()


def _blame(turn: Transition, key: Mean, fault: str) -> None:
    """Name the peer that signed the mean. If nobody has signed it to me, no peer is named: its proposal is refused."""
    mean, part = _mean(turn, key), key[1]
    if mean is None:
        return
    if mean.reducer != turn.me:
        found = _origin(turn, key)
        parts = turn.rules.fragment(found.round if found is not None else turn.state.head.round).parts
        catch(turn, mean.reducer, parts[part].layer, f"its mean of part {part}: {fault}")
    exchange = turn.state.exchange
    if exchange is not None and exchange.means.get(part) == mean:
        left = {other: item for other, item in exchange.means.items() if other != part}
        turn.set(exchange=replace(exchange, means=left))


# ---- what convicts a liar ----


def catch(turn: Transition, peer: str, layer: int, evidence: str) -> None:
    """Remember that a peer lied, and report it once a round."""
    state = turn.state
    round = state.head.round
    if peer in state.seen_lying and state.seen_lying[peer].round == round:
        return
    evidence = evidence[:MAX_EVIDENCE]
    turn.set(seen_lying={**state.seen_lying, peer: Misconduct(round, evidence)})
    turn.emit(
        Tell(
            PenaltyImposed(
                about=peer, code=MISDECLARED, layer="" if layer < 0 else str(layer), evidence=evidence, factor=0.0,
                until_round=round + 2,
            )
        )
    )  # fmt: skip
    turn.alert("error", MISDECLARED, f"{peer} lied in round {round}: {evidence}")


def signed(turn: Transition, place: BallotId, update: bytes, signature: bytes) -> bool:
    """Whether the coordinator of this ballot signed that it proposes `update`."""
    leader = turn.owner(place.ballot)
    return turn.rules.keys.verify(leader, "propose", pack((place.packed(), update)), signature)


def look_for_another(turn: Transition, place: BallotId, update: bytes, signature: bytes) -> bool:
    """Compare a signed proposal of a ballot with what I know of that ballot; True if they convict its author."""
    rival = _known(turn, place.ballot, update)
    if rival is None:
        return False
    others = (peer for peer in turn.state.electorate if peer != turn.me)
    convict(turn, place)
    turn.send(others, EquivocationProof(place, (update, signature), rival))
    return True


def on_proof(turn: Transition, proof: EquivocationProof) -> None:
    """Two signatures convict, whoever sends them."""
    (first, _), (second, _) = proof.first, proof.second
    dead = proof.place.ballot in turn.state.dead_ballots
    if not dead and first != second and all(signed(turn, proof.place, *one) for one in (proof.first, proof.second)):
        convict(turn, proof.place)


def convict(turn: Transition, place: BallotId) -> None:
    """This ballot decides nothing, and its coordinator is left out from now on."""
    state, author = turn.state, turn.owner(place.ballot)
    lead = None if state.lead is not None and state.lead.ballot == place.ballot else state.lead
    turn.set(dead_ballots=state.dead_ballots | {place.ballot}, equivocators=state.equivocators | {author}, lead=lead)
    what = f"{author} proposed two updates for round {state.head.round + 1}"
    turn.alert("error", "EQUIVOCATION", f"{what}: it is left out")


def _known(turn: Transition, ballot: int, update: bytes) -> tuple[bytes, bytes] | None:
    for digest, proposal in turn.state.proposals.items():
        if proposal.ballot == ballot and digest != update:
            return digest, proposal.signature
    state = turn.state
    for (other, digest), votes in chain(state.checks.items(), state.prepared.items(), state.votes.items()):
        if other == ballot and digest != update:
            return digest, next(iter(votes.values())).proposal_signature
    return None
