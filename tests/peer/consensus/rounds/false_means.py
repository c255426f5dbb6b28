"""A swarm in which one owner of parts makes false means, and what must never be decided there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from peer.consensus.protocol.block import VOID, Block, Penalty
from peer.consensus.protocol.encoding import digest_of
from peer.consensus.protocol.head import MISDECLARED, ChainHead
from peer.consensus.protocol.norms import row_for
from peer.consensus.rounds.interface import CheckMean, CheckRow, ReducePart
from peer.schema.events import PenaltyImposed
from peer.testing.memory_peer import PART_BYTES, IntegerSums, LogicalPeer, decoded, encoded
from peer.testing.memory_swarm import World

LIAR = "p1"
SECONDS = 120.0
HONEST = LogicalPeer.make_sums

Rows = dict[str, int]
"""What a mean says that each contributor gave, by name."""
Lie = Callable[[int, Rows], tuple[int, Rows]]
"""Of the sum and the rows of a mean what its owner says in their place."""


def false_sum(total: int, rows: Rows) -> tuple[int, Rows]:
    """The rows are right and do not come to it."""
    return 3 * total + 40, rows


def false_norm(total: int, rows: Rows) -> tuple[int, Rows]:
    """All fits, but somebody gave three times what it declared."""
    name = max(rows, key=lambda peer: abs(rows[peer]))
    return total + 2 * rows[name], {**rows, name: 3 * rows[name]}


def false_rows(*victims: str) -> Lie:
    """Their signs are turned around; the sum fits, and so do the norms."""

    def lie(total: int, rows: Rows) -> tuple[int, Rows]:
        turned = {name: -value if name in victims else value for name, value in rows.items()}
        return sum(turned.values()), turned

    return lie


@dataclass
class LyingSums(IntegerSums):
    """The arithmetic of an owner that lies about its own parts, and finds nothing wrong with any mean."""

    lie: Lie = false_sum
    told: list[bytes] = field(default_factory=list)
    """The means that it made so."""

    def reduce(self, effect: ReducePart, done: Callable[[bytes], None]) -> None:
        total = sum(decoded(self.parts[effect.place, peer, effect.part][1]) for peer in effect.members)
        rows = {peer: decoded(self.parts[effect.place, peer, effect.part][1]) for peer in effect.rows}
        said, shown = self.lie(total, rows)
        payload = encoded(16 * said) + b"".join(map(encoded, shown.values()))
        digest = digest_of(payload)
        if (said, shown) != (total, rows):
            self.told.append(digest)
        self.disk.store(digest, payload, lambda: done(digest))

    def check(self, effect: CheckMean, me: str, whole: bytes, mine: bytes | None, done: Callable[[str], None]) -> None:
        done("")

    def check_row(self, effect: CheckRow, whole: bytes, done: Callable[[bool], None]) -> None:
        done(True)


class MeansWorld(World):
    """Notes every mean that an honest peer commits and that is not the sum of what its contributors gave."""

    def __init__(self, seed: int, peers: int, lie: Lie | None, monkeypatch: pytest.MonkeyPatch) -> None:
        self.false: set[tuple[int, int]] = set()
        """(round, part)."""
        self.lying: LyingSums | None = None

        def make_sums(peer: LogicalPeer) -> IntegerSums:
            if lie is None or peer.name != LIAR:
                return HONEST(peer)
            self.lying = LyingSums(peer.disk, self.rng, lie=lie)
            return self.lying

        monkeypatch.setattr(LogicalPeer, "make_sums", make_sums)
        super().__init__(seed, peers)
        if lie is not None:
            self.liars.add(LIAR)

    def committing(self, peer: LogicalPeer, block: Block, head: ChainHead) -> None:
        super().committing(peer, block, head)
        update = block.update
        for part, (digest, bits) in enumerate(zip(update.parts, update.contributors, strict=True)):
            if digest == VOID or peer.name == LIAR:
                continue
            weights = row_for(update.weights, part)
            behind = [(header.peer, index) for index, header in enumerate(update.members) if bits >> index & 1]
            given = sum(
                decoded(self.contributions[name, update.parent][part]) for name, index in behind if weights[index]
            )
            whole = peer.disk.load(digest)
            assert whole is not None
            assert len(whole) == PART_BYTES * (1 + len(behind))
            if not 0 <= decoded(whole) - 16 * given < 16:
                self.false.add((update.round, part))

    @property
    def rounds(self) -> int:
        """That the slowest of the honest has committed."""
        return min(peer.disk.head.round for peer in self.peers if peer.name not in self.liars)

    def convictions(self) -> list[Penalty]:
        blocks = self.peers[0].disk.blocks
        return [row for block in blocks for row in block.update.penalties if row[1] == MISDECLARED]

    def accused(self) -> dict[str, set[str]]:
        """Whom each honest peer says that it caught."""
        return {
            peer.name: {event.about for event in peer.reports if isinstance(event, PenaltyImposed)}
            for peer in self.peers
            if peer.name not in self.liars
        }


def lived(
    lie: Lie | None, monkeypatch: pytest.MonkeyPatch, *, peers: int = 4, seed: int = 3, seconds: float = SECONDS
) -> MeansWorld:
    """Such a swarm after some virtual seconds."""
    world = MeansWorld(seed, peers, lie, monkeypatch)
    world.scheduler.run_until(seconds)
    world.check()
    return world
