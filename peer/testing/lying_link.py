"""A link that is the product's but for one thing that it says: a file in the directory of its peer names the lie.

A header is changed as it leaves, and signed again by the peer's own key: its own machine knows nothing of it. The date
of an update is changed before it is proposed: who proposes two in one ballot would convict itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from peer.consensus.protocol.block import ContributionHeader, Update
from peer.consensus.protocol.encoding import Keys
from peer.consensus.protocol.frame_reader import Framing
from peer.consensus.protocol.messages import Message, Promise, Start, encode
from peer.consensus.protocol.rules import DATA_SHARDS
from peer.consensus.rounds import collector
from peer.consensus.rounds.driver import Driver
from peer.consensus.rounds.state import CoordinatorState, MemberState
from peer.consensus.rounds.transition import Transition
from peer.network.link import participation

LIE = "lie"
"""The name of that file. It holds one of the names below, or nothing: then the peer is honest."""
TOKENS_TWICE, ALL_RANGES, HUGE, NEGATIVE = "tokens twice", "all ranges", "everything huge", "less than nothing"
"""Of a header, whoever leads."""
YEARS_AHEAD = "ten years ahead"
"""Of the update that it makes as coordinator."""
TEN_YEARS_S = 10 * 365 * 24 * 3600
MOST = (1 << 63) - 1

HEADERS: Mapping[str, Callable[[ContributionHeader], ContributionHeader]] = {
    TOKENS_TWICE: lambda header: replace(header, tokens=2 * header.tokens),
    ALL_RANGES: lambda header: replace(header, ranges=tuple((shard, 0, MOST) for shard in range(DATA_SHARDS))),
    HUGE: lambda header: replace(header, tokens=MOST, steps=MOST, bandwidth_bps=MOST, staleness=MOST),
    NEGATIVE: lambda header: replace(header, tokens=-MOST, bandwidth_bps=-MOST, staleness=-MOST),
}


class Liar:
    """The tongue of peer `me`, whose `keys` sign what it says."""

    def __init__(self, directory: Path, me: str, keys: Keys) -> None:
        self._directory, self._me, self._keys = directory, me, keys

    def stand_in(self) -> None:
        """Have what this process says pass through here from now on."""
        make_update = collector.make_update

        def make_dated(turn: Transition, lead: CoordinatorState, exchange: MemberState) -> Update:
            return self.dated(make_update(turn, lead, exchange))

        vars(collector)["make_update"] = make_dated
        vars(participation)["Driver"] = partial(Driver, framing=Framing(encode=self.encode))

    def encode(self, message: Message) -> bytes:
        """The frame of a message, with the lie about the header of this peer if there is one to tell."""
        match message:
            case Promise(header=header):
                return encode(replace(message, header=self._changed(header)))
            case Start(headers=headers):
                return encode(replace(message, headers=tuple(map(self._changed, headers))))
        return encode(message)

    def dated(self, update: Update) -> Update:
        """An update that this peer is about to propose."""
        return replace(update, time=update.time + TEN_YEARS_S) if self._lie == YEARS_AHEAD else update

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
