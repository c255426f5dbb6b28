"""A peer of a logical swarm that is honest but for one field of all that it says of one kind.

What it says is changed after its own honest machine has made it, and signed again by its own key. Of a header and of
an update it lies to itself as well, so that everything it says agrees with the lie: a coordinator whose vote is for
another update than it proposed would convict itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar
from unittest.mock import patch

from dht.protocol_version import PROTOCOL_VERSION
from dht.streams.base import MAX_FRAME_BYTES, MakeFrame, OnFrame, Streams
from peer.consensus.protocol import bounds, norms, penalties, validation
from peer.consensus.protocol.block import ContributionHeader, Update, Vote
from peer.consensus.protocol.encoding import Packed, digest_of, pack, unpack
from peer.consensus.protocol.membership import next_electorate
from peer.consensus.protocol.messages import (
    BallotId,
    Blocks,
    MeanData,
    Message,
    Promise,
    Propose,
    Restarted,
    Start,
    StuckSaid,
    VoteCast,
    decode,
    encode,
)
from peer.consensus.protocol.refusals import PLACE, TABLES, TIME
from peer.consensus.protocol.rules import Rules
from peer.consensus.protocol.validation import CLOCKS_DIFFER_S
from peer.consensus.rounds import collector, member
from peer.consensus.rounds.state import CoordinatorState, MemberState, State
from peer.consensus.rounds.transition import Transition
from peer.planning.simulate.memory_store import ModelKeys
from tests.fields.declared import SAID_AT_HOME, Field
from tests.fields.extremes import NotSaid, Seen, at, changed, lies_about
from tests.fields.unasked import UNASKED

P = TypeVar("P", bound=Packed)
WHEN = ("always", "leads", "follows")
"""In all ballots, in those that the liar coordinates, in the others."""


@dataclass(frozen=True, slots=True)
class Lie:
    """What is said in a field, by which name of `extremes.lies_about`, and when."""

    field: Field
    values: tuple[str, ...]
    """Of several the first that is not what an honest peer says, and that a reader takes, if there is one."""
    when: str = "always"

    def __str__(self) -> str:
        return f"{self.field} = {' or '.join(self.values)}, {self.when}"


class Liar:
    """The tongue of one peer. `state_of` gives what its own honest machine knows."""

    def __init__(
        self, lie: Lie, me: str, state_of: Callable[[], State], now: Callable[[], float], begins: Callable[[], bool]
    ) -> None:
        self.lie, self.me, self.keys = lie, me, ModelKeys(me)
        self._state_of, self._now, self._begins = state_of, now, begins
        self._frames: dict[int, bytes] = {}
        """Of others, the last of each kind."""
        self._heard: dict[type, Any] = {}
        """What others said last of each kind, packed."""
        self._said: dict[tuple[type, bytes], Any] = {}
        """What it said itself, by anchor."""
        self._value = lie.values[0] if len(lie.values) == 1 else ""
        self._pledged: dict[str, Any] = {}
        """What is false in its header."""
        self.told: Counter[str] = Counter()
        """How often it has said what."""
        self.first_told: int | None = None
        """In which round first."""
        self.broken: Counter[str] = Counter()
        """How often that breaks which rule of `peer.consensus.protocol.refusals`; none: an empty name."""

    # ---- on the wire ----

    def hear(self, frame: bytes) -> None:
        """What others say can be said again."""
        self._frames[frame[1]] = frame

    def _of_another(self, kind: type) -> Any:
        """What another said last of a kind, packed; None if it said nothing."""
        for frame in self._frames.values():
            self._note(decode(frame))
        self._frames.clear()
        return self._heard.get(kind)

    def _note(self, said: Any) -> None:
        if isinstance(said, tuple):
            for item in said:
                self._note(item)
        elif hasattr(said, "packed"):
            if self.me not in (getattr(said, name, None) for name in ("peer", "reducer", "voter")):
                self._heard[type(said)] = rows_of(said)
            for name in said.__match_args__:
                self._note(getattr(said, name))

    def frames(self, frame: bytes) -> list[bytes]:
        """What is sent in place of a frame."""
        kind, sent = self.lie.field.said_in, [frame]
        unasked = UNASKED.get(kind)
        if frame[1] == getattr(kind, "code", None):
            sent = [self._changed(decode(frame), frame)]
        if unasked is not None and frame[1] == unasked.beside.code:
            made = unasked.make(self._state_of(), self.keys, decode(frame))
            honest = b"" if made is None else encode(made)
            lie = honest if made is None else self._changed(made, honest)
            sent += [lie] if lie != honest else []  # the truth unasked is no lie
        return sent

    def _changed(self, message: Message, honest: bytes) -> bytes:
        """The frame with the lie. What no reader takes goes out as well: it must be refused."""
        place = getattr(message, "place", None)
        if not self._lies_at(place):
            return honest
        plain = rows_of(message)
        rows = self._lied(type(message), plain)
        frame = bytes((PROTOCOL_VERSION, message.code)) + pack(as_sent(type(message), rows))
        if rows == plain or len(frame) > MAX_FRAME_BYTES:
            return honest
        self._note_told()
        try:
            signed = self._signed(decode(frame))
        except ValueError:
            return frame
        self.broken[self._breaks(signed)] += 1
        return encode(signed)

    def _note_told(self) -> None:
        self.told[self._value] += 1
        if self.told.total() == 1:
            self.first_told = self._state_of().head.round

    def _lies_at(self, place: Any) -> bool:
        state = self._state_of()
        if not self._begins():
            return False
        if self.lie.when == "always":
            return True
        ballot = getattr(place, "ballot", 0)
        leads = state.head.leader(ballot) == self.me
        return leads == (self.lie.when == "leads")

    def _lied(self, kind: type[Any], honest: Any) -> Any:
        """`honest` with the lie in it, or as it is where the lie makes no difference."""
        path, anchor = self.lie.field.path, self._state_of().head.anchor
        known = [rows for (said, when), rows in self._said.items() if said is kind and when != anchor]
        self._said[kind, anchor] = honest
        anothers = at(self._of_another(kind), path, "")
        earlier = at(known[-1], path, self.me) if known else None
        lies = lies_about(self.lie.field.hint)
        said: dict[str, Any] = {}
        for value in [self._value] if self._value else self.lie.values:
            with suppress(NotSaid, TypeError):
                said[value] = changed(
                    honest, path, lambda one, say=lies[value]: say(Seen(one, anothers, earlier)), self.me
                )  # fmt: skip
        differ = {value: rows for value, rows in said.items() if rows != honest}
        if not differ:
            return honest
        self._value = next((value for value, rows in differ.items() if _is_read(kind, rows)), next(iter(differ)))
        return differ[self._value]

    # ---- signatures ----

    def _signed(self, message: Message) -> Message:
        """With every signature of mine made anew, but one that is itself the lie."""
        if "signature" in self.lie.field.path[-1].name:
            return message
        match message:
            case Promise(header=header):
                return replace(message, header=header.signed(self.keys))
            case Start(headers=headers):
                return replace(message, headers=tuple(map(self._header, headers)))
            case MeanData():
                return self._mean(message)
            case StuckSaid(stuck=stuck):
                return replace(message, stuck=stuck.signed(self.keys))
            case Propose(place=place, update=update):
                return replace(message, signature=self.keys.sign("propose", pack((place.packed(), update.digest))))
            case VoteCast(vote=vote):
                return replace(message, vote=self._vote(vote))
        return message

    def _header(self, header: ContributionHeader) -> ContributionHeader:
        return header.signed(self.keys) if header.peer == self.me else header

    def _mean(self, mean: MeanData) -> MeanData:
        if mean.payload and self.lie.field.path[-1].name == "payload":
            mean = replace(mean, digest=digest_of(mean.payload))
        return mean.signed(self.keys)

    def _vote(self, vote: Vote) -> Vote:
        return vote.signed(self.keys)

    # ---- at home ----

    def at_home(self, structure: P, place: Any = None) -> P:
        """A structure of mine with the lie, before anything is said of it; as it is if no reader would take it."""
        if type(structure) is not self.lie.field.said_in or not self._lies_at(place):
            return structure
        rows = self._lied(type(structure), structure.packed())
        if not _is_read(type(structure), rows):
            return structure
        lie = type(structure).unpacked(unpack(pack(rows)))
        if lie != structure:
            self._note_told()
        return lie

    def header_at_home(self, header: ContributionHeader) -> ContributionHeader:
        """The same of what it pledges for its anchor."""
        lie = self.at_home(header)
        if lie != header and lie.anchor == header.anchor and lie.peer == self.me:
            state = self._state_of()
            self.broken[validation.fault_of_header(state.rules, state.head, lie.signed(self.keys))[0]] += 1
        return lie

    def _pledge(self, turn: Transition, honest: Callable[[Transition], None]) -> None:
        """Its header with the lie, also where its own machine would say otherwise."""
        assert turn.state.offered is not None
        lie, name = self.header_at_home(turn.state.offered), self.lie.field.path[0].name
        self._pledged = {name: getattr(lie, name)} if lie != turn.state.offered and name != "signature" else {}
        turn.set(offered=lie)
        honest(turn)
        if self._pledged and turn.state.header is not None:
            turn.set(header=replace(turn.state.header, **self._pledged).signed(self.keys))

    def _update(self, update: Update) -> Update:
        """With the lie, and all that others would compute from it."""
        lie = self.at_home(update)
        if lie == update:
            return update
        with suppress(ValueError, IndexError):  # nothing agrees with it
            lie = self._agreeing(lie)
        if any(lie.contributors):  # else it is not proposed
            self.broken[self._breaks(lie)] += 1
        return lie

    def _agreeing(self, lie: Update) -> Update:
        state, named = self._state_of(), self.lie.field.path[0].name
        judgement = norms.judgement_of(state.rules, state.head, lie.members)
        if named == "members":
            weights, scales, pulls = norms.table_of(judgement)
            lie = replace(lie, weights=weights, scales=scales, pulls=pulls, records=judgement.records)
        if named not in ("tenures", "elect"):
            tenures = validation.tenures_due(state.rules, state.head, lie)
            lie = replace(lie, tenures=tenures, elect=next_electorate(state.head, lie.members, tenures, lie.roster))
        if named == "penalties":
            return lie
        return replace(lie, penalties=penalties.due(state.rules, state.head, lie, judgement.findings))

    @contextmanager
    def tells_itself(self) -> Iterator[None]:
        """While this lasts, its own machine pledges and proposes what it lies about."""
        if self.lie.field.said_in not in SAID_AT_HOME:
            yield
            return
        make_update, pledge, within = collector.make_update, member._pledge, bounds.within
        my_header = Transition.my_header

        def proposed(turn: Transition, lead: CoordinatorState, exchange: MemberState) -> Update:
            honest = make_update(turn, lead, exchange)
            return self._update(honest) if turn.me == self.me else honest

        def pledged(turn: Transition) -> None:
            if turn.me == self.me:
                self._pledge(turn, pledge)
            else:
                pledge(turn)

        def mine(turn: Transition) -> ContributionHeader:
            header = my_header(turn)
            return replace(header, **self._pledged).signed(self.keys) if turn.me == self.me else header

        def unbounded(rules: Rules, header: ContributionHeader) -> ContributionHeader:
            return header if rules.me == self.me else within(rules, header)

        with (
            patch.object(collector, "make_update", proposed), patch.object(member, "_pledge", pledged),
            patch.object(bounds, "within", unbounded), patch.object(Transition, "my_header", mine),
        ):  # fmt: skip
            yield

    # ---- what the others must tell ----

    def _breaks(self, said: object) -> str:
        """The rule that something which it says breaks, as any of the others would find."""
        state = self._state_of()
        rules, head = state.rules, state.head
        match said:
            case Promise(header=header) if header.peer == self.me and said.place == self._place(said.place.ballot):
                return validation.fault_of_header(rules, head, header)[0]
            case Start(headers=headers) if said.place == self._place(said.place.ballot):
                mine = (header for header in headers if header.peer == self.me)
                return next((validation.fault_of_header(rules, head, header)[0] for header in mine), "")
            case Propose(update=update) if said.place == self._place(said.place.ballot):
                return self._breaks(update)
            case Update() if validation.fault_of_place(rules, head, said):
                return PLACE
            case Update(time=time) if not self._now() - validation.MADE_S <= time <= self._now() + CLOCKS_DIFFER_S:
                return TIME
            case Update() if validation.fault_of_tables(rules, head, said):
                return TABLES
        return ""

    def _place(self, ballot: int) -> BallotId:
        state = self._state_of()
        return BallotId(state.head.anchor, state.instance, ballot)


def rows_of(said: Any) -> Any:
    """What is said, field by field, also of what travels sealed."""
    match said:
        case Propose(place, update, signature, certificate):
            return place.packed(), update.packed(), signature, tuple(vote.packed() for vote in certificate)
        case Blocks(blocks):
            return (tuple(block.packed() for block in blocks),)
        case Restarted(restart):
            return (restart.packed(),)
    return said.packed()


def as_sent(kind: type[Any], rows: Any) -> Any:
    """Sealed, if that kind travels so and the lie leaves something to seal."""
    with suppress(ValueError, TypeError, IndexError):
        if kind is Propose:
            place, update, signature, certificate = rows
            return place, pack(update), signature, certificate
        if kind is Blocks:
            (blocks,) = rows
            sealed = tuple(
                (pack(update), votes, tuple((pack(tuple(payload)), signature) for *payload, signature in restarts))
                for update, votes, restarts in blocks
            )
            return blocks[0][0][0] if blocks else b"", sealed
        if kind is Restarted:
            ((*payload, signature),) = rows
            return pack(tuple(payload)), signature
    return rows


def _is_read(kind: type[Any], rows: Any) -> bool:
    """Whether a reader takes it."""
    try:
        if kind in (Propose, Blocks, Restarted):
            decode(bytes((PROTOCOL_VERSION, kind.code)) + pack(as_sent(kind, rows)))
        else:
            kind.unpacked(unpack(pack(rows)))
    except (ValueError, OverflowError):
        return False
    return True


class LyingStreams:
    """Streams through which a liar speaks."""

    def __init__(self, inner: Streams, liar: Liar) -> None:
        self._inner, self._liar = inner, liar

    def send(self, to: str, frame: bytes) -> None:
        for said in self._liar.frames(frame):
            self._inner.send(to, said)

    def send_bulk(self, to: str, make_frame: MakeFrame) -> None:
        """The same for a frame that is made later."""
        frame = make_frame()
        for said in [] if frame is None else self._liar.frames(frame):
            self._inner.send_bulk(to, lambda said=said: said)

    def listen(self, on_frame: OnFrame) -> None:
        def hear(sender: str, frame: bytes) -> None:
            self._liar.hear(frame)
            on_frame(sender, frame)

        self._inner.listen(hear)

    @property
    def unreachable(self) -> frozenset[str]:
        return self._inner.unreachable
