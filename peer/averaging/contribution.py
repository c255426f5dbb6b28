"""What a peer offers for one anchor: encoded parts on disk, written once, sent in every ballot of the round.

The trainer writes it; the link reads it. The file is the shared buffer between the two processes
and the write-ahead copy at the same time: after a crash the same bytes are offered again.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import msgpack

from dht.files import telling_full_disk, write_whole
from peer.averaging.codec import Codec, Floats
from peer.rounds import merkle
from peer.rounds.layout import Part
from peer.rounds.names import digest_of
from peer.rounds.update import Pledge, Ranges


@dataclass(frozen=True)
class Effort:
    """What stands behind a contribution."""

    tokens: int
    steps: int
    ranges: Ranges


def write_contribution(
    folder: Path, anchor: bytes, balance: Floats, parts: tuple[Part, ...], codec: Codec, effort: Effort
) -> None:
    """Encode the balance part by part and have it on disk (fsync) under the anchor's name. Raises DiskFull."""
    leaves = []
    path = folder / f"{anchor.hex()}.parts"
    scratch = path.with_name(path.name + ".new")
    with telling_full_disk(folder), scratch.open("wb") as file:
        for part in parts:
            payload = codec.encode(balance[part.start : part.start + part.size])
            leaves.append(digest_of(payload))
            file.write(payload)
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)  # never in place: the link may have mapped an earlier file of this name
    pledge = (effort.tokens, effort.steps, effort.ranges, tuple(leaves))
    write_whole(folder / f"{anchor.hex()}.pledge", msgpack.packb(pledge))


class Contribution:
    """A contribution on disk, mapped into memory."""

    def __init__(self, folder: Path, anchor: bytes, parts: tuple[Part, ...], codec: Codec) -> None:
        fields = msgpack.unpackb((folder / f"{anchor.hex()}.pledge").read_bytes(), use_list=False)
        tokens, steps, ranges, self.leaves = fields
        self.anchor = anchor
        self.effort = Effort(tokens, steps, ranges)
        self._ends = tuple(accumulate(codec.part_bytes(part.size) for part in parts))
        with (folder / f"{anchor.hex()}.parts").open("rb") as file:
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        assert len(self._bytes) == self._ends[-1], "the file holds another model's parts"

    @classmethod
    def find(cls, folder: Path, anchor: bytes, parts: tuple[Part, ...], codec: Codec) -> Contribution | None:
        """The contribution for `anchor`; None if this peer froze none."""
        if not (folder / f"{anchor.hex()}.pledge").exists():
            return None
        return cls(folder, anchor, parts, codec)

    def payload(self, part: int) -> bytes:
        """Encoded bytes of one part."""
        return self._bytes[self._ends[part - 1] if part else 0 : self._ends[part]]

    def path(self, part: int) -> tuple[bytes, ...]:
        """Merkle path of one part to the pledged root."""
        return merkle.path(self.leaves, part)

    def pledge(self, peer: str) -> Pledge:
        """The unsigned pledge that stands for this contribution."""
        return Pledge(
            peer, self.anchor, merkle.root(self.leaves), self.effort.tokens, self.effort.steps, 0, False,
            self.effort.ranges,
        )  # fmt: skip


def keep_newest(folder: Path, rounds: int) -> None:
    """Delete all but the newest `rounds` contributions."""
    pledges = sorted(folder.glob("*.pledge"), key=lambda path: path.stat().st_mtime_ns)
    for path in pledges[:-rounds]:
        path.unlink()
        path.with_suffix(".parts").unlink()
