"""What convicts a liar: means whose rows are false, declared norms that are too small, two proposals in one ballot."""

from __future__ import annotations

from itertools import chain

from peer.consensus.protocol.block import MAX_EVIDENCE
from peer.consensus.protocol.encoding import pack
from peer.consensus.protocol.head import MISDECLARED
from peer.consensus.protocol.messages import BallotId, EquivocationProof
from peer.consensus.rounds.interface import Tell
from peer.consensus.rounds.state import Misconduct
from peer.consensus.rounds.transition import Transition
from peer.schema.events import PenaltyImposed


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
    state, guilty = turn.state, turn.owner(place.ballot)
    lead = None if state.lead is not None and state.lead.ballot == place.ballot else state.lead
    turn.set(dead_ballots=state.dead_ballots | {place.ballot}, banned=state.banned | {guilty}, lead=lead)
    what = f"{guilty} proposed two updates for round {state.head.round + 1}"
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
