"""A link that tells one lie: a file in the directory of its peer names it. Everything else is the product's own link.

A header is changed as it leaves, and signed again by the peer's own key: its own machine knows nothing of it. The date
of an update is changed before it is proposed, since a peer that proposes two updates in one ballot would convict
itself. The digests of false means are appended to another file: none of them may ever be found in a chain.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from peer.consensus.protocol.block import ContributionHeader, Update
from peer.consensus.protocol.electorate import quorum
from peer.consensus.protocol.encoding import Keys, digest_of
from peer.consensus.protocol.frame_reader import Framing
from peer.consensus.protocol.messages import Message, Promise, Propose, Start, encode
from peer.consensus.protocol.rules import DATA_SHARDS
from peer.consensus.rounds import acceptor, collector
from peer.consensus.rounds.driver import Driver
from peer.consensus.rounds.interface import CheckMean, ReducePart, ShowRow
from peer.consensus.rounds.state import CoordinatorState, MemberState
from peer.consensus.rounds.transition import Transition
from peer.network.link import participation
from peer.network.link.reduction import ReductionWorker

LIE = "lie"
"""The name of that file. It holds one of the names below, or nothing: then the peer is honest."""
TOKENS_TWICE, ALL_RANGES, HUGE, NEGATIVE = "tokens twice", "all ranges", "everything huge", "less than nothing"
"""Of a header, whoever leads."""
YEARS_AHEAD = "ten years ahead"
"""Of the update that it makes as coordinator."""
ACCEPTED = "an acceptance"
"""Of what nobody proposed, to every coordinator that asks."""
FALSE_SUM, MISQUOTED, SPLIT, OTHER_MEANS = "a false sum", "a row turned", "its own row turned", "other means"
"""As an owner: a mean with right rows that they do not come to; the first other member's row with its sign turned, and
the mean that fits; or its own, which it proves false to so few that the others are no quorum. As the coordinator: in
place of its own means others, of which nobody was told."""
TOLD = "told_means"
TIMES = -5.0
TEN_YEARS_S = 10 * 365 * 24 * 3600
MOST = (1 << 63) - 1

HEADERS: Mapping[str, Callable[[ContributionHeader], ContributionHeader]] = {
    TOKENS_TWICE: lambda header: replace(header, tokens=2 * header.tokens),
    ALL_RANGES: lambda header: replace(header, ranges=tuple((shard, 0, MOST) for shard in range(DATA_SHARDS))),
    HUGE: lambda header: replace(header, tokens=MOST, steps=MOST, bandwidth_bps=MOST, staleness=MOST),
    NEGATIVE: lambda header: replace(header, tokens=-MOST, bandwidth_bps=-MOST, staleness=-MOST),
}


class LyingReduction(ReductionWorker):
    """`lie` says which of these it tells at the moment, if any."""

    def __init__(self, *of: Any, directory: Path, me: str, lie: Callable[[], str]) -> None:
        super().__init__(*of)
        self._directory, self._me, self._lie = directory, me, lie
        self.others: dict[bytes, tuple[bytes, int]] = {}
        """By the name of a mean of mine, what I put in its place: its name and its size."""
        self.false: set[bytes] = set()

    def check(self, effect: CheckMean, me: str, whole: bytes, mine: bytes | None, done: Callable[[str], None]) -> None:
        """Its own machine finds nothing wrong."""
        super().check(effect, me, whole, mine, (lambda _: done("")) if self._lie() else done)

    def reduce(self, effect: ReducePart, done: Callable[[bytes], None]) -> None:
        if self._lie() != OTHER_MEANS:
            super().reduce(effect, done)
            return
        payloads = {member: self._kept[effect.place, member, effect.part][1] for member in effect.rows}
        forged = self._forged(payloads, effect)

        def keep_both(name: bytes) -> None:
            if forged is None:
                done(name)
                return
            self.others[name] = (forged[0], len(forged[1]))
            self._objects.store(*forged, lambda: done(name))

        super().reduce(effect, keep_both)

    def _named_mean(self, payloads: dict[str, bytes], effect: ReducePart) -> tuple[bytes, bytes] | None:
        if self._lie() == FALSE_SUM:
            return self._forged(payloads, effect)
        of_whom = [member for member in effect.members if (member == self._me) == (self._lie() == SPLIT)]
        if self._lie() in (MISQUOTED, SPLIT) and of_whom:
            turned = self._codec.encode(-self._codec.decode(payloads[of_whom[0]]))
            return self._noted(super()._named_mean({**payloads, of_whom[0]: turned}, effect))
        return super()._named_mean(payloads, effect)

    def _forged(self, payloads: dict[str, bytes], effect: ReducePart) -> tuple[bytes, bytes] | None:
        """So many times the mean, with the rows of the right one."""
        right = super()._named_mean(payloads, effect)
        if right is None:
            return None
        mean_bytes = self._codec_of_means.part_bytes(self._codec.elements(payloads[effect.rows[0]]))
        mean, rows = right[1][:mean_bytes], right[1][mean_bytes:]
        values = self._codec_of_means.decode(mean)
        whole = self._codec_of_means.encode(values * type(values[0])(TIMES)) + rows
        return self._noted((digest_of(whole), whole))

    def _noted(self, named: tuple[bytes, bytes] | None) -> tuple[bytes, bytes] | None:
        if named is not None:
            self.false.add(named[0])
            with (self._directory / TOLD).open("a") as file:
                file.write(f"{named[0].hex()}\n")
        return named


class Liar:
    """The tongue of peer `me`, whose `keys` sign what it says."""

    def __init__(self, directory: Path, me: str, keys: Keys) -> None:
        self._directory, self._me, self._keys = directory, me, keys
        self._reduction: LyingReduction | None = None

    def stand_in(self) -> None:
        """Have what this process says pass through here from now on."""
        make_update = collector.make_update

        def make_false(turn: Transition, lead: CoordinatorState, exchange: MemberState) -> Update:
            return self.with_others(turn, self.dated(make_update(turn, lead, exchange)))

        on_propose = acceptor.on_propose

        def show_some(turn: Transition, sender: str, message: Propose) -> None:
            self.show(turn, message)
            on_propose(turn, sender, message)

        vars(collector)["make_update"] = make_false
        vars(acceptor)["on_propose"] = show_some
        vars(participation)["ReductionWorker"] = self._reducer
        vars(participation)["Driver"] = partial(Driver, framing=Framing(encode=self.encode))

    def encode(self, message: Message) -> bytes:
        """The frame of a message, with the lie about the header of this peer if there is one to tell."""
        match message:
            case Promise() if self._lie == ACCEPTED:
                return encode(replace(message, accepted=(0, digest_of(b"poison")), certificate=()))
            case Promise(header=header):
                return encode(replace(message, header=self._changed(header)))
            case Start(headers=headers):
                return encode(replace(message, headers=tuple(map(self._changed, headers))))
        return encode(message)

    def dated(self, update: Update) -> Update:
        """An update that this peer is about to propose."""
        return replace(update, time=update.time + TEN_YEARS_S) if self._lie == YEARS_AHEAD else update

    def with_others(self, turn: Transition, update: Update) -> Update:
        """With the means of which nobody was told, in place of those of this peer that the update names."""
        others = self._reduction.others if self._reduction is not None and self._lie == OTHER_MEANS else {}
        chosen = {name: others[name] for name in update.parts if name in others}
        if not chosen:
            return update
        turn.set(held={**turn.state.held, **dict(chosen.values())})
        return replace(update, parts=tuple(chosen[name][0] if name in chosen else name for name in update.parts))

    def show(self, turn: Transition, message: Propose) -> None:
        """What is false in a proposal, by this peer's doing, to one voter more than a quorum can do without."""
        false, update = self._reduction.false if self._reduction is not None else set[bytes](), message.update
        voters = turn.state.electorate
        others = tuple(peer for peer in voters if peer != self._me)
        for part, name in enumerate(update.parts):
            if name in false and self._lie == SPLIT:
                few = others[: len(others) - quorum(voters) + 1]
                turn.emit(ShowRow(few, message.place, part, name, update.contributors[part]))

    def _reducer(self, *of: Any) -> LyingReduction:
        self._reduction = LyingReduction(*of, directory=self._directory, me=self._me, lie=lambda: self._lie)
        return self._reduction

    @property
    def _lie(self) -> str:
        path = self._directory / LIE
        return path.read_text() if path.exists() else ""

    def _changed(self, header: ContributionHeader) -> ContributionHeader:
        """What it gives as it says it gives it; of others, and of nothing, there is nothing to say."""
        lie = HEADERS.get(self._lie)
        if lie is None or header.peer != self._me or not header.root:
            return header
        return lie(header).signed(self._keys)
