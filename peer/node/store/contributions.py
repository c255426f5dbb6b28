"""What a peer offers for one anchor: encoded parts on disk, written once, and sent in every ballot of the round.

The trainer writes the file and the link reads it. It is both the buffer that the two processes share and the write-
ahead copy: after a crash the same bytes are offered again.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import msgpack

from dht.atomic_files import raising_damaged, raising_disk_full, write_atomic
from dht.errors import BadInput
from peer.consensus.codec.codec import Codec
from peer.consensus.protocol import merkle
from peer.consensus.protocol.block import ContributionHeader, Ranges
from peer.consensus.protocol.encoding import digest_of
from peer.consensus.protocol.layout import Part


@dataclass(frozen=True)
class WorkStats:
    """The statistics of a contribution."""

    tokens: int
    steps: int
    ranges: Ranges
    staleness: int = 0
    """Rounds since the oldest work in it was done."""


@dataclass(frozen=True, kw_only=True)
class SharedContribution:
    """In a cluster: this home has the bytes of some parts, other homes have those of the others."""

    first_part: int
    """The first of the parts whose bytes are here; they follow one another."""
    delegates: tuple[tuple[int, int, str], ...]
    """The peers that send the others: (first layer, last layer, peer id)."""
    gather: Callable[[Sequence[bytes]], Sequence[bytes]]
    """From the leaves of the parts that are here, on disk by now, to those of all; empty if a home need not know
    them."""


def write_contribution(
    folder: Path, anchor: bytes, payloads: Iterable[bytes], effort: WorkStats, shared: SharedContribution | None = None
) -> None:
    """Write the encoded parts to disk (fsync) under the anchor's name, one after the other. Raises DiskFull."""
    leaves = []
    path = folder / f"{anchor.hex()}.parts"
    scratch = path.with_name(path.name + ".new")
    with raising_disk_full(folder), scratch.open("wb") as file:
        for payload in payloads:
            leaves.append(digest_of(payload))
            file.write(payload)
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)  # never in place: the link may have mapped an earlier file of this name
    header: tuple[object, ...] = (effort.tokens, effort.steps, effort.ranges, effort.staleness)
    if shared is None:
        header += (tuple(leaves),)
    else:
        header += (tuple(shared.gather(leaves)), shared.first_part, len(leaves), shared.delegates)
    write_atomic(folder / f"{anchor.hex()}.header", msgpack.packb(header))


class Contribution:
    """A contribution on disk, mapped into memory. Raises BadInput for a damaged one."""

    def __init__(self, folder: Path, anchor: bytes, parts: tuple[Part, ...], codec: Codec) -> None:
        self._path = folder / f"{anchor.hex()}.parts"
        with raising_damaged(self._path.with_suffix(".header")):
            fields = msgpack.unpackb(self._path.with_suffix(".header").read_bytes(), use_list=False)
            tokens, steps, ranges, staleness, self.leaves, *shared = fields
            first, count, delegates = shared or (0, len(parts), ())
        self.anchor = anchor
        self.effort = WorkStats(tokens, steps, ranges, staleness)
        self.here = range(first, first + count)
        """The parts whose bytes are on this disk: all of them, except in a cluster."""
        self.delegates: tuple[tuple[int, int, str], ...] = delegates
        self._ends = tuple(accumulate((codec.part_bytes(parts[part].size) for part in self.here), initial=0))
        with raising_damaged(self._path), self._path.open("rb") as file:
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if self._ends[-1] else b""
            if len(self._bytes) != self._ends[-1]:
                raise ValueError(f"{len(self._bytes)} bytes where {self._ends[-1]} were written")

    @classmethod
    def find(cls, folder: Path, anchor: bytes, parts: tuple[Part, ...], codec: Codec) -> Contribution | None:
        """The contribution for `anchor`; None if this peer made none."""
        if not is_written(folder, anchor):
            return None
        return cls(folder, anchor, parts, codec)

    def check(self) -> None:
        """Compare every byte with what was pledged. Raises BadInput."""
        for part in self.here:
            if digest_of(self.payload(part)) != self.leaves[part]:
                raise BadInput(f"{self._path} is damaged; bring it back, or join with a new folder")

    def payload(self, part: int) -> bytes:
        """Of a part that is `here`."""
        return self._bytes[self._ends[part - self.here.start] : self._ends[part - self.here.start + 1]]

    def path(self, part: int) -> tuple[bytes, ...]:
        return merkle.path(self.leaves, part)

    def header(self, peer: str, bandwidth_bps: int = 0) -> ContributionHeader:
        """The unsigned header of this contribution, with its upload in bits per second, 0 if unknown."""
        return ContributionHeader(
            peer, self.anchor, merkle.root(self.leaves), self.effort.tokens, self.effort.steps, bandwidth_bps, False,
            self.effort.ranges, self.effort.staleness, delegates=self.delegates,
        )  # fmt: skip


def is_written(folder: Path, anchor: bytes) -> bool:
    return (folder / f"{anchor.hex()}.header").exists()


def written_leaves(folder: Path, anchor: bytes) -> tuple[int, tuple[bytes, ...]] | None:
    """The first of the parts that are here, and their leaves, at a home of a cluster; None if nothing is here for
    `anchor`. Raises BadInput for a damaged header."""
    path = folder / f"{anchor.hex()}.header"
    if not path.exists():
        return None
    with raising_damaged(path):
        *_, leaves, first, count, _ = msgpack.unpackb(path.read_bytes(), use_list=False)
        return first, tuple(leaves[first : first + count])


def prune_contributions(folder: Path, rounds: int, anchor: bytes) -> None:
    """Delete all contributions except the one to `anchor` and the newest others, `rounds` in all; and what a crash
    left. The one to `anchor` stays by its name, since a machine's clock may have gone back since the others were
    written."""
    others = [path for path in folder.glob("*.header") if path.stem != anchor.hex()]
    others.sort(key=lambda path: path.stat().st_mtime_ns, reverse=True)
    for path in others[rounds - 1 :]:
        path.unlink()
    for path in [*folder.glob("*.parts"), *folder.glob("*.new")]:
        if not path.with_suffix(".header").exists():
            path.unlink()
