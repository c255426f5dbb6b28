"""What each peer has put into a run, counted from the updates that its peers agreed on.

No peer can raise these figures by its own word. Rounds and weights are what a quorum voted for; tokens are those of the
peer's header, up to the run's limit, in rounds where the votes say that some of its bytes are in the mean.

A chain on disk drops its oldest blocks when it exceeds its quota. Before that, their counts go into a tally beside the
base, with the base's name:

chain/<anchor hex>.tally    a digest, then the sums of all rounds up to the anchor where the blocks begin
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields
from pathlib import Path
from typing import Self

import msgpack

from peer.consensus.credit.round_credit import outcomes_of, tokens_counted, weights_of
from peer.consensus.protocol.block import Update
from peer.consensus.protocol.encoding import DIGEST_BYTES, digest_of, integer, octets, pack, row, rows, text
from peer.consensus.protocol.head import ChainHead
from peer.consensus.protocol.layout import Part, cut, divide

log = logging.getLogger(__name__)

MAX_PEERS = 1 << 20
"""More than any run has."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Credit:
    """What one peer has put in, over some rounds."""

    tokens: int = 0
    """Trained for what was counted."""
    weight: int = 0
    """Over 65,536, summed over rounds: 65,536 is as much as all of one round."""
    accepted: int = 0
    """Rounds in which what it gave counted, and came in time."""
    late: int = 0
    """Rounds in which it came late, or with old work."""
    idle: int = 0
    """Rounds in which it was a member and gave nothing: it was paused, or had nothing ready."""
    rejected: int = 0
    """Rounds in which it counted nothing, for what was measured of it."""
    missed: int = 0
    """Rounds in which it was expected and did not answer."""

    def plus(self, other: Credit) -> Credit:
        """Both together."""
        return Credit(**{each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(Credit)})


NOTHING = Credit()


@dataclass(frozen=True, kw_only=True)
class Counting:
    """How a run counts: `parts` of each fragment's rounds in turn, and how many tokens of a header count at most."""

    parts: tuple[tuple[Part, ...], ...]
    tokens_cap: int

    @classmethod
    def of_model(cls, layers: Sequence[int], part_elements: int, fragments: int, tokens_cap: int) -> Self:
        """Of a run whose model has layers of so many elements."""
        divided = divide(cut(layers, part_elements), fragments)
        return cls(parts=tuple(fragment.parts for fragment in divided), tokens_cap=tokens_cap)

    def of(self, update: Update) -> dict[str, Credit]:
        """What one round counted for everybody that it speaks of."""
        weights = weights_of(update, self.parts[(update.round - 1) % len(self.parts)])
        tokens = tokens_counted(update, weights, self.tokens_cap, len(self.parts))
        return {
            peer: Credit(tokens=tokens.get(peer, 0), weight=weights.get(peer, 0), **{outcome: 1})
            for peer, outcome in outcomes_of(update, weights).items()
        }


@dataclass(frozen=True, kw_only=True)
class Tally:
    """The sums of rounds `first` to `last`, which made `anchor`; of no round if `last` is before `first`."""

    first: int
    last: int
    anchor: bytes
    credits: Mapping[str, Credit] = field(default_factory=dict)
    """By peer."""

    @classmethod
    def after(cls, head: ChainHead) -> Self:
        """Nothing yet: the first round to count is the one after this anchor."""
        return cls(first=head.round + 1, last=head.round, anchor=head.anchor)

    def plus(self, counted: Mapping[str, Credit], head: ChainHead) -> Tally:
        """With the round that made `head`."""
        assert head.round == self.last + 1, "rounds are counted one after the other"
        added = {peer: self.credits.get(peer, NOTHING).plus(credit) for peer, credit in counted.items()}
        return Tally(first=self.first, last=head.round, anchor=head.anchor, credits={**self.credits, **added})

    def to_bytes(self) -> bytes:
        table = tuple((peer, *astuple(credit)) for peer, credit in sorted(self.credits.items()))
        packed = pack((self.first, self.last, self.anchor, table))
        return digest_of(packed) + packed

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """Raises ValueError."""
        packed = content[DIGEST_BYTES:]
        if digest_of(packed) != content[:DIGEST_BYTES]:
            raise ValueError("its bytes are not those that were written")
        first, last, anchor, table = row(msgpack.unpackb(packed, use_list=False), 4)
        return cls(
            first=integer(first, 1), last=integer(last, 0), anchor=octets(anchor, DIGEST_BYTES),
            credits=dict(map(_credit, rows(table, MAX_PEERS))),
        )  # fmt: skip


def tally_path(directory: Path, anchor: bytes) -> Path:
    return directory / "chain" / f"{anchor.hex()}.tally"


def read_tally(directory: Path, base: ChainHead) -> Tally:
    """What was counted up to the anchor where the blocks of a run directory begin.

    An empty tally where nothing was: at the genesis, and where the chain began with somebody's snapshot. Damage costs
    the figures, not the run: it is logged, and counting begins at the base.
    """
    path = tally_path(directory, base.anchor)
    if not path.exists():
        return Tally.after(base)
    try:
        found = Tally.from_bytes(path.read_bytes())
        if (found.last, found.anchor) != (base.round, base.anchor):
            raise ValueError("it is of another model")
    except (ValueError, msgpack.UnpackException) as error:
        log.warning("%s is damaged (%s): contributions before round %d are not counted", path, error, base.round + 1)
        return Tally.after(base)
    return found


def total(credits: Mapping[str, Credit]) -> Credit:
    whole = NOTHING
    for credit in credits.values():
        whole = whole.plus(credit)
    return whole


def _credit(value: object) -> tuple[str, Credit]:
    peer, *figures = row(value, 1 + len(fields(Credit)))
    named: Sequence[str] = [each.name for each in fields(Credit)]
    return text(peer), Credit(**{name: integer(figure, 0) for name, figure in zip(named, figures, strict=True)})
