"""What convicts a liar: norms that are not those of the bytes, two means of a part, two proposals of a ballot.

Every member compares the rows about itself with what its own encoded parts come to. Where a row is wrong it
sends the parts behind it to all members, each with its path to the root that it has pledged, so that each can
measure them itself. Then either the reducer or the objector has lied, and everybody knows which.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from peer.consensus.protocol import norms
from peer.consensus.protocol.block import MAX_EVIDENCE, NormRow, SignedNorms
from peer.consensus.protocol.encoding import pack
from peer.consensus.protocol.head import MISDECLARED
from peer.consensus.protocol.messages import BallotId, EquivocationProof, NormDispute, PartData
from peer.consensus.protocol.norms import PartNorms, float_of
from peer.consensus.rounds.interface import MeasurePart, PartMeasured, SendParts, Tell
from peer.consensus.rounds.state import Dispute, MemberState, Misconduct
from peer.consensus.rounds.transition import Transition
from peer.schema.events import PenaltyImposed

DISPUTE = 2
"""The attempt that a part is sent for as evidence."""
TOLERANCE = 1e-3
"""Of a square, and of an inner product as a share of the largest that it could be: float32 rounds, sums differ."""
CERTAIN = 2.0
"""Nobody objects unless it is so many tolerances off: others may compute it a little differently."""
DISPUTES_MOST = 8
"""That a peer looks into at a time: each costs the bytes of some parts."""


def look_at_rows(turn: Transition) -> None:
    """Object to one wrong row about me, once all that I gave is measured and TABLE is here."""
    exchange = turn.state.exchange
    if exchange is None or not exchange.tabled or exchange.objected:
        return
    if not exchange.listed.keys() <= exchange.mine.keys():
        return
    turn.set(exchange=replace(exchange, objected=True))
    index = exchange.names.index(turn.me)
    for item in exchange.measured:
        if item.reducer == turn.me:
            continue
        for row in item.rows:
            if _direction_is_wrong(turn, exchange, item, row):
                catch(turn, item.reducer, row.layer, "it compares with another mean than the last committed one")
                return
            mine = _parts_behind(turn, exchange, item, row.layer, index)
            if mine and agrees(row, index, _sum(exchange.mine, mine), CERTAIN) is False:
                _object(turn, exchange, item, row, mine)
                return


def _object(turn: Transition, exchange: MemberState, item: SignedNorms, row: NormRow, mine: tuple[int, ...]) -> None:
    index = exchange.names.index(turn.me)
    catch(turn, item.reducer, row.layer, _claims(row, index, turn.me, _sum(exchange.mine, mine)))
    others = [header.peer for header in exchange.members if header.peer != turn.me]
    turn.send(others, NormDispute(exchange.place, item, row.layer))
    for peer in others:
        turn.emit(SendParts(peer, exchange.place, mine, attempt=DISPUTE))


def _direction_is_wrong(turn: Transition, exchange: MemberState, item: SignedNorms, row: NormRow) -> bool:
    """The last mean is the same for all: no bytes need be shown."""
    parts = turn.fragment.parts
    behind = [part for part, bits in item.received if bits and parts[part].layer == row.layer]
    known = [exchange.mine[part].direction for part in behind]
    if not row.dots or any(square is None for square in known):
        return False
    right = sum(square for square in known if square is not None)
    return abs(float_of(row.direction) - right) > CERTAIN * TOLERANCE * right


def on_objection(turn: Transition, sender: str, message: NormDispute) -> None:
    """Wait for the bytes that prove it. The row is the one that the objector shows, with its reducer's signature."""
    exchange, item = exchange_at(turn, message.place), message.measurements
    key = (message.place, sender)
    if exchange is None or key in turn.state.disputes or sender == turn.me:
        return
    index = exchange.index_of(sender)
    row = next((row for row in item.rows if row.layer == message.layer), None)
    if index is None or row is None or not norms.fits(row, len(exchange.members)):
        return
    behind = _parts_behind(turn, exchange, item, row.layer, index)
    place = exchange.place
    if not behind or not item.genuine(turn.rules.keys, place.anchor, place.ballot, exchange.members):
        return
    # One objection per member and exchange, and of those that stay open only the newest: nobody can fill my memory.
    open_ones = list(turn.state.disputes.items())[-(DISPUTES_MOST - 1) :]
    turn.set(disputes={**dict(open_ones), key: Dispute(item.reducer, index, row, behind)})


def on_part(turn: Transition, sender: str, message: PartData) -> None:
    """Evidence: measure it once, if it is what its sender pledged, or the member whose delegate that is."""
    exchange = exchange_at(turn, message.place)
    if exchange is None or message.giver:
        return
    members = (exchange.names[index] for index in exchange.spoken_for(turn.rules, sender, message.part))
    open_ones = {peer: turn.state.disputes.get((message.place, peer)) for peer in members}
    awaited = {
        peer: dispute
        for peer, dispute in open_ones.items()
        if dispute is not None and message.part in dispute.parts and message.part not in dispute.taken
    }
    index = exchange.giver_of(turn.rules, sender, message) if awaited else None
    if index is None or exchange.names[index] not in awaited:
        return
    giver = exchange.names[index]
    key, dispute = (message.place, giver), awaited[giver]
    taken = replace(dispute, taken=dispute.taken | {message.part})
    turn.set(disputes={**turn.state.disputes, key: taken})
    direction = _direction(turn, exchange, message.part)
    turn.emit(MeasurePart(message.place, giver, message.part, message.payload, direction, evidence=True))


def on_measured(turn: Transition, event: PartMeasured) -> None:
    """With all of the bytes it is clear who lied, but where only the reducer knows the last mean."""
    key = (event.place, event.giver)
    dispute = turn.state.disputes.get(key)
    if dispute is None or event.part not in dispute.parts:
        return
    dispute = replace(dispute, figures={**dispute.figures, event.part: event.figures})
    turn.set(disputes={**turn.state.disputes, key: dispute})
    if len(dispute.figures) < len(dispute.parts):
        return
    found, row = _sum(dispute.figures, dispute.parts), dispute.row
    verdict = agrees(row, dispute.index, found)
    if verdict is True:
        catch(turn, event.giver, row.layer, f"it objected to a norm of {dispute.reducer} that is right")
    elif verdict is False:
        catch(turn, dispute.reducer, row.layer, _claims(row, dispute.index, event.giver, found))


def agrees(row: NormRow, index: int, found: PartNorms, tolerances: float = 1.0) -> bool | None:
    """Whether what a reducer published of a member is what the bytes come to; None if that cannot be told."""
    square, tolerance = float_of(row.squares[index]), tolerances * TOLERANCE
    if not (math.isfinite(square) and math.isfinite(found.square)):
        return math.isfinite(square) == math.isfinite(found.square) or found.square > 1e38
    if abs(square - found.square) > tolerance * max(square, found.square):
        return False
    if not row.dots:
        return True
    if found.direction is None:
        return None
    largest = math.sqrt(found.square * found.direction)
    return abs(float_of(row.dots[index]) - found.dot) <= tolerance * largest + 1e-30


def _parts_behind(
    turn: Transition, exchange: MemberState, item: SignedNorms, layer: int, index: int
) -> tuple[int, ...]:  # fmt: skip
    """The parts of a layer that this reducer says it holds of a member."""
    parts = turn.rules.fragment(exchange.round).parts
    return tuple(
        part for part, bits in item.received
        if part < len(parts) and parts[part].layer == layer and bits >> index & 1
    )  # fmt: skip


def _direction(turn: Transition, exchange: MemberState, part: int) -> bytes:
    """The last committed mean as it was in that exchange: of the round before that averaged the same fragment."""
    if exchange.place.anchor not in turn.state.ancestors:
        return b""
    for step in reversed(turn.state.trail):
        if step.block.update.round == exchange.round + 1 - turn.rules.fragments:
            return step.block.update.parts[part]
    return b""


def _sum(figures: Mapping[int, PartNorms], parts: Iterable[int]) -> PartNorms:
    chosen = [figures[part] for part in parts]
    known = [item.direction for item in chosen if item.direction is not None]
    return PartNorms(
        sum(item.square for item in chosen), sum(item.dot for item in chosen), sum(known) if known else None
    )  # fmt: skip


def _claims(row: NormRow, index: int, giver: str, found: PartNorms) -> str:
    said, right = math.sqrt(abs(float_of(row.squares[index]))), math.sqrt(abs(found.square))
    return f"it says that the norm of {giver[-8:]} is {said:.4g}, its bytes come to {right:.4g}"


def catch(turn: Transition, peer: str, layer: int, evidence: str) -> None:
    """Remember that a peer lied, and say so once a round."""
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


def exchange_at(turn: Transition, place: BallotId) -> MemberState | None:
    """The exchange that a message is about: the one that goes on, or the last one that was committed."""
    for exchange in (turn.state.exchange, turn.state.past):
        if exchange is not None and exchange.place == place:
            return exchange
    return None


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
    """Believe two signatures, whoever sends them."""
    (first, _), (second, _) = proof.first, proof.second
    dead = proof.place.ballot in turn.state.dead_ballots
    if not dead and first != second and all(signed(turn, proof.place, *one) for one in (proof.first, proof.second)):
        convict(turn, proof.place)


def convict(turn: Transition, place: BallotId) -> None:
    """This ballot decides nothing, and its coordinator is left out from now on."""
    state, guilty = turn.state, turn.owner(place.ballot)
    lead = None if state.lead is not None and state.lead.ballot == place.ballot else state.lead
    turn.set(dead_ballots=state.dead_ballots | {place.ballot}, banned=state.banned | {guilty}, lead=lead)
    what = f"{guilty} proposed two updates for round {state.head.round + 1}"
    turn.alert("error", "EQUIVOCATION", f"{what}: it is left out")


def _known(turn: Transition, ballot: int, update: bytes) -> tuple[bytes, bytes] | None:
    for digest, proposal in turn.state.proposals.items():
        if proposal.ballot == ballot and digest != update:
            return digest, proposal.signature
    for (other, digest), votes in turn.state.votes.items():
        if other == ballot and digest != update:
            return digest, next(iter(votes.values())).proposal_signature
    return None
