"""The head of a chain: the newest anchor, and the electorate that decides the next one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from peer.consensus.aggregation.peer_history import PeerHistory
from peer.consensus.protocol.block import NEVER, NO_ROSTER, Block, Penalty, Restart, Roster, Tenure, Update
from peer.consensus.protocol.electorate import instance_of, order
from peer.consensus.protocol.encoding import digest

MISDECLARED = "MISDECLARED"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainHead:
    """The newest anchor: its place in the chain and the electorate of the next one."""

    anchor: bytes
    round: int
    weight: int
    """W: signed contributions since the start of the run."""
    electorate: tuple[str, ...]
    """Sorted; a quorum of it decides."""
    members: tuple[str, ...]
    """Members of the update that made this anchor, without those that have left."""
    time: int = 0
    """Unix time that the update says; 0 at the start."""
    records: tuple[PeerHistory, ...] = ()
    """What `peer.consensus.aggregation` remembers of every peer."""
    tenures: tuple[Tenure, ...] = ()
    """The peers that have earned a vote, or are about to."""
    roster: Roster = NO_ROSTER
    """The organiser's newest list in the chain."""
    convicted: tuple[Penalty, ...] = ()
    """The penalties of liars in the update that made this anchor that still go on; sorted by peer."""
    withheld: tuple[str, ...] = ()
    """Members of the update that made this anchor whose means never came; sorted."""
    parent: bytes = b""
    """The anchor before; empty at genesis."""
    number: int = 0
    """How often the organiser let the remaining voters go on from here."""
    instance: bytes = b""
    order: tuple[str, ...] = ()
    """The electorate in the order in which it leads."""

    def __post_init__(self) -> None:
        led = dict.fromkeys(self.electorate, self.round)  # of whom nothing is known, as of one that is convicted: last
        led |= {tenure.peer: tenure.led for tenure in self.tenures if tenure.peer in led}
        object.__setattr__(self, "instance", instance_of(self.anchor, self.electorate, self.number))
        object.__setattr__(self, "order", order(led))

    def restarted(self, restart: Restart) -> ChainHead:
        """The same anchor for the remaining voters."""
        return replace(self, electorate=restart.electorate, number=restart.number)

    @property
    def lot(self) -> bytes:
        """The seed of the lot for newcomers and guests. It is fixed one round before the update that made this
        anchor; otherwise that update's coordinator could try values until its friends are drawn."""
        return self.parent or self.anchor

    def leader(self, ballot: int) -> str:
        """The only peer that may use `ballot` after this head."""
        return self.order[ballot % len(self.order)]

    def after(self, update: Update) -> ChainHead:
        """The head that a decided update leads to."""
        lasting = (item for item in update.penalties if item[1] == MISDECLARED and item[3] > update.round + 1)
        means_took = zip(update.members, update.took, strict=False)
        return ChainHead(
            anchor=next_anchor(self.anchor, update.digest), round=update.round, weight=update.weight,
            electorate=update.elect, members=update.staying, time=update.time, records=update.records,
            tenures=update.tenures, roster=update.roster, convicted=tuple(lasting), parent=update.parent,
            withheld=tuple(header.peer for header, (*_, ms) in means_took if ms == NEVER),
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
