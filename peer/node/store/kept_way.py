"""The way to a chain's base: the earlier blocks that changed the electorate (`light_chain`), which a peer keeps.

way    in the folder of the chain: the first round from which the file is complete, and the blocks

So a peer can show newcomers how its chain came about, however many blocks it has dropped. The file may reach beyond the
base; a reader leaves out those later blocks, since the chain itself has them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dht.atomic_files import raising_damaged, write_atomic
from peer.consensus.organiser.light_chain import changes_in
from peer.consensus.protocol.block import Block
from peer.consensus.protocol.encoding import COUNT, each, octets, pack, row, unpack
from peer.consensus.protocol.head import ChainHead

FILE = "way"
MOST = 1 << 16
"""Blocks."""


@dataclass(frozen=True)
class KeptWay:
    """The blocks after round `first` and up to a chain's base after which others decide."""

    first: int
    blocks: tuple[Block, ...] = ()

    def since(self, round: int) -> tuple[Block, ...] | None:
        """The blocks after a round; None if they are not all here."""
        return tuple(block for block in self.blocks if block.update.round > round) if round >= self.first else None

    def and_then(self, blocks: Sequence[Block], start: ChainHead) -> KeptWay:
        """With the needed ones of the blocks that follow `start`, where this way ends."""
        return replace(self, blocks=(*self.blocks, *changes_in(blocks, start)))


def read_kept_way(directory: Path, base: int) -> KeptWay:
    """The way in this folder as far as round `base`. Raises BadInput if it is damaged."""
    path = directory / FILE
    if not path.exists():
        return KeptWay(first=base)
    with raising_damaged(path):
        first, packed = row(unpack(path.read_bytes()), 2)
        blocks = [Block.from_bytes(item) for item in each(octets, MOST)(packed)]
        return KeptWay(COUNT(first), tuple(block for block in blocks if block.update.round <= base))


def write_kept_way(directory: Path, way: KeptWay) -> None:
    """Raises DiskFull."""
    write_atomic(directory / FILE, pack((way.first, tuple(block.to_bytes() for block in way.blocks))))
