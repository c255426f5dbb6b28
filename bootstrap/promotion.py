"""Whom the organiser's node promotes by itself: strangers whose work the voters have counted, for a day and 20 rounds.

Anybody says anything of itself on the board. So the node asks peers for the way along their chain, and believes what
the voters have certified: in every update it stands whose contribution was accepted last, and in which round. A third
of the voters, lying together, cannot make that up. Keys cost nothing, networks something: of one /24, or /48, two are
promoted at most.
"""

from __future__ import annotations

import json
import logging
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import asdict, dataclass, replace
from ipaddress import ip_address, ip_network
from pathlib import Path

from bootstrap.members import load_table
from bootstrap.roster import load_promoted, promote
from dht.addresses import CIRCUIT
from dht.atomic_files import write_atomic
from dht.errors import DiskFull, Unreachable
from dht.identity import Identity, RunKeys
from dht.node import Node
from dht.records import Genesis, PeerRecord
from peer.consensus.organiser import light_chain
from peer.consensus.protocol.block import MAX_MEMBERS, Block, Roster, Update
from peer.consensus.protocol.head import ChainHead, genesis_anchor
from peer.schema.events import AlertRaised, Event

FOLLOWED_FILE, CANDIDATES_FILE = "followed.block", "candidates.json"
LOOK_S = 60.0
ASK_S = 5.0
"""One peer at a look, any of those who say that they are further: the node does nothing else meanwhile."""
ROUNDS = 20
"""In which a peer's work was counted, as seen at looks of this node: one a look at most."""
EACH_NETWORK = 2
RELAYED = "a relay"
"""The network of those whom this node does not see itself."""

ReadHeads = Callable[[], Awaitable[Mapping[str, PeerRecord]]]
"""What those say of themselves on the board whose word is listened to."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A stranger: since when it is watched (Unix s), in how many rounds its work was counted, and the newest."""

    since: float
    rounds: int
    seen: int


class Promoter:
    """Follows the chain as far as that takes. `after_s` None promotes nobody. Raises BadInput for a damaged file."""

    def __init__(
        self, directory: Path, identity: Identity, run: bytes, after_s: float | None, report: Callable[[Event], None],
        clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._directory, self._keys, self._after_s = directory, RunKeys(identity, run), after_s
        self._report, self._clock = report, clock
        rows = load_table(directory / CANDIDATES_FILE, _is_candidate, "remove it, and the node begins to watch anew")
        self._candidates = {peer: Candidate(**row) for peer, row in rows.items()}
        self.head: ChainHead | None = None
        """Where the chain is that the node has followed; None before it has looked."""
        self._look_at = 0.0

    def votes(self, peer: str) -> bool:
        """Whether the chain elected this peer, as far as it was followed."""
        return self.head is not None and peer in self.head.electorate

    def watches(self, peer: str) -> bool:
        """Whether the chain says that its work was counted."""
        return peer in self._candidates

    async def look(self, node: Node, genesis: Genesis, read_heads: ReadHeads, known: Collection[str]) -> None:
        """See how the chain went on, and who has earned it, if that was LOOK_S ago."""
        if time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + LOOK_S
        self.head = self.head or self._load(genesis)
        further = [peer for peer, said in (await read_heads()).items() if said.round > self.head.round]
        try:
            if further:
                await self._follow(node, random.choice(further))
            if self._after_s is not None:
                await self._promote_due(node, known)
        except DiskFull as error:
            log.warning("whom this node watches is not on disk: %s", error)

    async def _follow(self, node: Node, peer: str) -> None:
        """Hear of a peer how the chain went on."""
        assert self.head is not None
        request = light_chain.packed_question(self.head.round)
        try:
            given = await node.ask(peer, light_chain.QUESTION, ASK_S, light_chain.MAX_WAY_BYTES, request)
            if given is None:
                return  # it has not all of that
            way = light_chain.read_way(given)
            self.head = light_chain.follow(self._keys, self._keys.identity.peer_id, self.head, way)
        except Unreachable as error:
            log.info("%s", error)
            return
        except ValueError as error:
            log.warning("the way that %s shows is none: %s", peer, error)
            return
        for block in way:
            self.note(block.update)
        if way:
            self._save(way[-1])

    def note(self, update: Update) -> None:
        """Count the rounds of those who vote not or are known not; who is forgotten by the voters begins anew."""
        now, before = self._clock(), self._candidates
        self._candidates = {}
        for tenure in update.tenures:
            one = before.get(tenure.peer, Candidate(since=now, rounds=0, seen=0))
            is_new = tenure.seen > one.seen
            self._candidates[tenure.peer] = replace(one, rounds=one.rounds + is_new, seen=max(one.seen, tenure.seen))

    def due(self, known: Collection[str]) -> list[str]:
        """Who has earned it, the most diligent first."""
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

    def _save(self, newest: Block) -> None:
        rows = {peer: asdict(one) for peer, one in self._candidates.items()}
        write_atomic(self._directory / CANDIDATES_FILE, json.dumps(rows).encode())
        write_atomic(self._directory / FOLLOWED_FILE, newest.to_bytes())

    def _load(self, genesis: Genesis) -> ChainHead:
        """Where this node stood last: what it wrote itself it has checked."""
        path = self._directory / FOLLOWED_FILE
        if path.exists():
            try:
                update = Block.from_bytes(path.read_bytes()).update
            except ValueError as error:
                log.warning("%s is damaged (%s): the chain is followed from its beginning", path, error)
            else:
                empty = ChainHead(anchor=update.parent, round=update.round - 1, weight=0, electorate=(), members=())
                return empty.after(update)
        anchor = genesis_anchor(genesis.run, genesis.founders, genesis.state)
        return ChainHead(
            anchor=anchor, round=0, weight=0, electorate=genesis.founders, members=(),
            roster=Roster(0, genesis.founders),
        )  # fmt: skip


def network_of(address: str) -> str:
    """The /24 or /48 of a multiaddr; all that come through relays are of one; empty if it tells none."""
    if CIRCUIT in address:
        return RELAYED
    match address.split("/")[1:3]:
        case ["ip4" | "ip6" as family, host]:
            bits = 24 if family == "ip4" else 48
            return str(ip_network(f"{ip_address(host)}/{bits}", strict=False))
    return ""


def _is_candidate(row: object) -> bool:
    match row:
        case {"since": int() | float(), "rounds": int(), "seen": int(), **rest}:
            return not rest
    return False
