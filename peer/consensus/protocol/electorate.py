"""Names that every peer computes alike: digests, anchors, the coordinator of a ballot, and the size of a quorum.

All digests are BLAKE3-256 over canonical msgpack. It has arrays, integers, byte strings and text only, so there is one
encoding per value.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache

from peer.consensus.protocol.encoding import digest


def instance_of(anchor: bytes, electorate: Sequence[str], number: int = 0) -> bytes:
    """The name of one agreement: an anchor, the voters on its successor, and how often that was restarted."""
    return digest(anchor, tuple(electorate), number) if number else digest(anchor, tuple(electorate))


def order(led: Mapping[str, int]) -> tuple[str, ...]:
    """The coordinators of ballots 0, 1, 2, …: the peer that led longest ago first (`Tenure.led`). Nothing that a
    coordinator writes into an update changes it."""
    return tuple(sorted(led, key=lambda peer: (led[peer], _lot(led[peer], peer))))


@lru_cache(maxsize=4096)
def _lot(round: int, peer: str) -> bytes:
    return digest(round, peer)


def quorum(electorate: Sequence[object]) -> int:
    """All of the electorate but as many as may lie, never a share of those present: any two quorums share an honest
    voter. Of three none may lie, and one may be gone."""
    count = len(electorate)
    return count - (count - 1) // 3 if count > 3 else count // 2 + 1


def named(electorate: Sequence[str], known: Collection[str]) -> tuple[str, ...]:
    """The voters on the organiser's list; all of them if it lists none."""
    return tuple(peer for peer in electorate if peer in known) if known else tuple(electorate)


def may_restart(electorate: Sequence[str], known: Collection[str], left: Collection[str]) -> bool:
    """Whether the voters that are `left` may go on together without a person's word: half of those that the
    organiser knows, and no stranger. Strangers hold less than a third of the votes. So a quorum that decided
    something shares a known voter with those that are left, and the others can never be a quorum again."""
    trusted = named(electorate, known)
    return set(left) <= set(trusted) and 2 * len(set(left)) >= len(trusted)


def majority(electorate: Sequence[str]) -> int:
    """More than half."""
    return len(electorate) // 2 + 1
