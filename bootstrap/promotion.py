"""The organiser's node promotes strangers to known peers once voters have counted their work for a day and 20 rounds.

Every certified update says which contributions it accepted, so that less than a third of the voters cannot make this
up. Keys cost nothing but addresses do: at most two peers of one IPv4 /24, or IPv6 /48, are promoted.
"""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from bootstrap.members import load_table
from bootstrap.roster import load_promoted, promote
from dht.addresses import network_of
from dht.atomic_files import write_atomic
from dht.errors import DiskFull, Unreachable
from dht.node import Node
from peer.consensus.protocol.block import MAX_MEMBERS, Block, Update
from peer.schema.events import AlertRaised, Event

CANDIDATES_FILE = "candidates.json"
ROUNDS = 20
"""In which a peer's work was counted, as seen at looks of this node: one a look at most."""
EACH_NETWORK = 2

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A stranger: since when it is watched (Unix s), in how many rounds its work was counted, and the newest of
    them."""

    since: float
    rounds: int
    seen: int


class Promoter:
    """`after_s` None promotes nobody. Raises BadInput for a damaged file."""

    def __init__(
        self, directory: Path, after_s: float | None, report: Callable[[Event], None],
        clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._directory, self._after_s = directory, after_s
        self._report, self._clock = report, clock
        rows = load_table(directory / CANDIDATES_FILE, _is_candidate, "remove it, and the node begins to watch anew")
        self._candidates = {peer: Candidate(**row) for peer, row in rows.items()}

    def watches(self, peer: str) -> bool:
        """Whether the chain says that its work was counted."""
        return peer in self._candidates

    async def look(self, node: Node, blocks: Iterable[Block], known: Collection[str]) -> None:
        """Find in these new blocks which strangers have earned a promotion."""
        updates = [block.update for block in blocks]
        for update in updates:
            self.note(update)
        try:
            if updates:
                self._save()
            if self._after_s is not None:
                await self._promote_due(node, known)
        except DiskFull as error:
            log.warning("whom this node watches is not on disk: %s", error)

    def note(self, update: Update) -> None:
        """Count the rounds of peers that do not vote and are not known; a peer that the voters have forgotten begins
        anew."""
        now, before = self._clock(), self._candidates
        self._candidates = {}
        for tenure in update.tenures:
            one = before.get(tenure.peer, Candidate(since=now, rounds=0, seen=0))
            is_new = tenure.seen > one.seen
            self._candidates[tenure.peer] = replace(one, rounds=one.rounds + is_new, seen=max(one.seen, tenure.seen))

    def due(self, known: Collection[str]) -> list[str]:
        """The candidates that have earned it, the most diligent first."""
        assert self._after_s is not None
        watched = ((peer, one) for peer, one in self._candidates.items() if peer not in known)
        earned = [
            (peer, one) for peer, one in watched if one.rounds >= ROUNDS and self._clock() - one.since >= self._after_s
        ]
        return [peer for peer, _ in sorted(earned, key=lambda row: (-row[1].rounds, row[0]))]

    async def _promote_due(self, node: Node, known: Collection[str]) -> None:
        due = self.due(known)
        if not due:
            return
        try:
            connected = await node.connections()
        except Unreachable as error:
            log.info("%s", error)
            return
        promoted = load_promoted(self._directory)
        of_network = Counter(how.rpartition(", from ")[2] for how in promoted.values())
        for peer in due[: max(0, MAX_MEMBERS - len(known))]:
            network = network_of(connected.get(peer, ""))
            if peer in promoted or not network or of_network[network] >= EACH_NETWORK:
                continue
            of_network[network] += 1
            date = time.strftime("%Y-%m-%d", time.gmtime(self._clock()))
            promote(self._directory, peer, f"by itself on {date}, from {network}")
            text = f"{peer} is no stranger any more: its work was counted in {self._candidates[peer].rounds} rounds"
            self._report(AlertRaised(level="info", code="PROMOTED", text=f"{text}; it comes from {network}"))

    def _save(self) -> None:
        rows = {peer: asdict(one) for peer, one in self._candidates.items()}
        write_atomic(self._directory / CANDIDATES_FILE, json.dumps(rows).encode())


def _is_candidate(row: object) -> bool:
    match row:
        case {"since": int() | float(), "rounds": int(), "seen": int(), **rest}:
            return not rest
    return False
