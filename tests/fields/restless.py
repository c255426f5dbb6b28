"""A member that asks for ballots of its own all the time, in between those of others: nothing it says is wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from peer.consensus.protocol.block import Vote
from peer.consensus.protocol.encoding import pack
from peer.consensus.protocol.messages import BallotId, Message, Prepare, Propose, VoteCast, encode
from peer.consensus.rounds.state import State
from peer.consensus.rounds.timeouts import patience_s
from peer.planning.simulate.memory_store import ModelKeys
from tests.fields.field_swarm import LIAR, SEED, FieldWorld, Outcome, lived, measured, undisturbed

PRESS_S = 0.5
KEYS = ModelKeys(LIAR)


def _next_ballot(theirs: State, after: int) -> int:
    """The first of its own after this one."""
    ranked = theirs.head.order
    return after + 1 + (ranked.index(LIAR) - after - 1) % len(ranked)


def _place(theirs: State, after: int) -> BallotId:
    return BallotId(theirs.head.anchor, theirs.instance, _next_ballot(theirs, after))


def prepares(theirs: State, presses: int) -> list[Message]:
    """The next ballot of its own, whatever goes on."""
    return [Prepare(_place(theirs, theirs.acceptor.promised))]


def proposes(theirs: State, presses: int) -> list[Message]:
    """What somebody else has proposed, in the next ballot of its own."""
    place = _place(theirs, theirs.acceptor.promised)
    signatures = {digest: KEYS.sign("propose", pack((place.packed(), digest))) for digest in theirs.proposals}
    return [Propose(place, theirs.proposals[digest].update, signed) for digest, signed in signatures.items()]


def votes(theirs: State, presses: int) -> list[Message]:
    """For what somebody else has proposed, in ever later ballots of its own."""
    place = _place(theirs, theirs.acceptor.promised + len(theirs.electorate) * presses)
    found: list[Message] = []
    for digest in theirs.proposals:
        signature = KEYS.sign("propose", pack((place.packed(), digest)))
        found.append(VoteCast(place, Vote(LIAR, place.instance, place.ballot, digest, signature).signed(KEYS)))
    return found


Press = Callable[[State, int], list[Message]]


class RestlessWorld(FieldWorld):
    """A world in which one peer presses, all of the others or one of them, from its first lie on."""

    def __init__(self, press: Press, victims: int, seed: int) -> None:
        super().__init__(None, seed)
        self._press_with, self._victims, self._presses = press, victims, 0
        self.longest_s = 0.0
        """The longest patience with one ballot that anybody had."""
        self.scheduler.call_in(PRESS_S, self._press)

    def _press(self) -> None:
        self.scheduler.call_in(PRESS_S, self._press)
        self._presses += 1
        for other in self.honest:
            self.longest_s = max(self.longest_s, patience_s(other.driver.state))
        if not self.has_begun():
            return
        for other in self.honest[: self._victims]:
            theirs = other.driver.state
            if LIAR in theirs.electorate and theirs.decided is None:
                for message in self._press_with(theirs, self._presses):
                    self.peer(LIAR).streams.send(other.name, encode(message))


@dataclass(frozen=True, kw_only=True)
class Pressed:
    """What became of the others."""

    outcome: Outcome
    usual_s: float
    failover_s: float
    """Once the longest patience, and a turn."""


def press(with_what: Press, victims: int, *, led: int, seed: int = SEED) -> Pressed:
    """A swarm until the restless peer has been the first in turn in so many rounds."""
    usual_s = undisturbed(seed).slowest_s
    world = RestlessWorld(with_what, victims, seed)
    failures = lived(world, led, usual_s)
    return Pressed(
        outcome=replace(measured(world), failures=failures), usual_s=usual_s,
        failover_s=world.longest_s + world.rules(LIAR).stagger_s,
    )  # fmt: skip
