"""The head of a chain: the newest anchor, and who decides what follows it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from peer.consensus.aggregation.peer_history import PeerHistory
from peer.consensus.protocol.block import Block, Penalty, Tenure, Update
from peer.consensus.protocol.electorate import instance_of
from peer.consensus.protocol.encoding import digest

MISDECLARED = "MISDECLARED"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainHead:
    """The newest anchor: its place in the chain and who decides what follows."""

    anchor: bytes
    round: int
    weight: int
    """W: signed contributions since the start of the run."""
    electorate: tuple[str, ...]
    """Sorted; a majority of it decides."""
    members: tuple[str, ...]
    """Members of the update that made this anchor, less those who left."""
    time: int = 0
    """Unix time that the update says; 0 at the start."""
    records: tuple[PeerHistory, ...] = ()
    """What `peer.consensus.aggregation` remembers of every peer."""
    tenures: tuple[Tenure, ...] = ()
    """Who has earned a vote, or is about to."""
    caught: tuple[Penalty, ...] = ()
    """Of the update that made this anchor the penalties of liars that go on; sorted by peer."""
    instance: bytes = b""

    def __post_init__(self) -> None:
        object.__setattr__(self, "instance", instance_of(self.anchor, self.electorate))

    def after(self, update: Update) -> ChainHead:
        """The head that a decided update leads to."""
        lasting = (item for item in update.penalties if item[1] == MISDECLARED and item[3] > update.round + 1)
        return ChainHead(
            anchor=next_anchor(self.anchor, update.digest), round=update.round, weight=update.weight,
            electorate=update.elect, members=update.staying, time=update.time, records=update.records,
            tenures=update.tenures, caught=tuple(lasting),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class ChainEntry:
    """A block of my chain and the head before it."""

    before: ChainHead
    block: Block


def genesis_anchor(run: bytes, founders: Iterable[str], state: bytes) -> bytes:
    """anchor_0 = H(run, "0", founders, H(initial parameters))."""
    return digest(run, "0", tuple(sorted(founders)), state)


def next_anchor(anchor: bytes, update: bytes) -> bytes:
    """anchor_{r+1} = H(anchor_r, H(U)): a digest of the chain, not of tensors."""
    return digest(anchor, update)
