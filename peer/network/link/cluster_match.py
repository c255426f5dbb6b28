"""A link's search for other homes that do not hold the model alone either: offers on the board, round trips, and the
line of the cluster that is found."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable

from dht.errors import Unreachable
from dht.node import Node
from dht.reach.bandwidth_probe import measure_upload, serve_probes
from dht.records import MAX_MEASURE, MAX_TRIPS, MOST_TRIP_MS, PeerRecord, SoughtHomes, short_id
from peer.consensus.protocol.messages import Heartbeat
from peer.network.link.cluster_invite import ClusterInvite, parse_cluster
from peer.network.link.discovery import Announcer
from peer.planning.homes.home_match import HomeMatching
from peer.planning.homes.home_search import Follow, Gather, HomeSearch, Look, Next
from peer.planning.plan.model_shape import shape_of
from peer.schema.cluster_messages import ANSWER_BYTES, GATHER, PING, GatherWord, pack_gather, unpack_gather
from peer.schema.ipc import HomesFound, LookForHomes
from peer.schema.spec import RunSpec

LOOK_S = 2.0
"""Between two looks at the board."""
PUBLISH_S = 15.0
"""An offer that stays the same is published again so often."""
ASK_S = 4.0
MISSES = 2
"""A home that does not answer so often in a row is left out for a while."""
PING_AGAIN_S = 60.0
PINGS = 3
"""Of a home at a time; the shortest counts."""
LINE_S = 10.0
"""A home whose line is not known measures its upload with the first home that answers, for at most so long."""
PONG = b"here"


class HomeMatcher:
    """Looks for homes until a cluster is found."""

    def __init__(
        self, node: Node, notices: Announcer, spec: RunSpec, seek: LookForHomes, invite: ClusterInvite,
        say: Callable[[str], None],
    ) -> None:  # fmt: skip
        """`invite`: the line of the cluster that this home would lead. `say` is called with what it waits for."""
        self._node, self._notices, self._seek, self._invite, self._say = node, notices, seek, invite, say
        self._matching = HomeMatching(shape_of(spec), spec)
        self._me, upload_mbps = node.peer_id, node.upload_bps / 1e6
        self._upload_mbps = rounded_mbps(upload_mbps)
        self._search = HomeSearch(
            self._me, self._matching.matches, self._matching.rated, seek.avoid, time.monotonic()
        )  # fmt: skip
        self._searching = asyncio.Lock()
        self._heads: dict[str, PeerRecord] = {}
        self._trips_ms: dict[str, int] = {}
        self._pinged_at: dict[str, float] = {}
        self._missed: dict[str, int] = {}
        self._next: Next = Look()
        self._published: tuple[SoughtHomes | None, float] = None, -math.inf
        self._said = ""

    async def find(self) -> HomesFound:
        """Look until a cluster is found."""
        self._node.answer(PING, self._pong)
        self._node.answer(GATHER, self._answer)
        serve_probes(self._node)
        pinging = asyncio.create_task(self._keep_pinging())
        try:
            while True:
                found = await self._look()
                if found is not None:
                    return found
                if pinging.done():
                    await pinging
                await asyncio.sleep(LOOK_S)
        finally:
            pinging.cancel()
            await asyncio.gather(pinging, return_exceptions=True)
            self._notices.homes.said = None

    async def _look(self) -> HomesFound | None:
        self._heads = await self._notices.read_heads()
        board = {peer: head.homes for peer, head in self._heads.items() if head.homes is not None}
        board[self._me] = self._mine()
        async with self._searching:
            self._next = await asyncio.to_thread(self._search.look, board, time.monotonic())
        await self._publish()
        self._tell()
        match self._next:
            case Gather(match=match, is_given=True):
                return HomesFound(self._me, match.homes, match.tokens_per_s, "", self._mine().upload_mbps)
            case Follow(lead=lead):
                return await self._ask(lead)
        return None

    def _mine(self) -> SoughtHomes:
        gathers: tuple[str, ...] = ()
        expects = 0.0
        if isinstance(self._next, Gather):
            gathers, expects = self._next.match.homes, self._next.match.tokens_per_s
        nearest = sorted(self._trips_ms.items(), key=lambda trip: (trip[1], trip[0]))[:MAX_TRIPS]
        return SoughtHomes(
            memory_gb=min(self._seek.memory_gb, MAX_MEASURE), tokens_per_s=min(self._seek.tokens_per_s, MAX_MEASURE),
            upload_mbps=min(self._upload_mbps, MAX_MEASURE), expects=min(expects, MAX_MEASURE),
            trips_ms=tuple((short_id(peer), trip_ms) for peer, trip_ms in nearest),
            gathers=tuple(map(short_id, gathers)),
        )  # fmt: skip

    async def _publish(self) -> None:
        said, (before, at) = self._mine(), self._published
        if said == before and time.monotonic() - at < PUBLISH_S:
            return
        self._published = said, time.monotonic()
        self._notices.homes.said = said
        await self._notices.publish(Heartbeat(b"", -1, 0, b"", False, 0, 0, False))

    def _tell(self) -> None:
        match self._next:
            case Gather(match=match, is_complete=is_complete):
                expected = f"a cluster of {len(match.homes)} homes, about {match.tokens_per_s:,.0f} tokens/s"
                why = f"gathering {expected}" + (", all are here" if is_complete else "; waiting for all to answer")
            case Follow(lead=lead):
                head = self._heads.get(lead)
                why = f"waiting for {(head and head.name) or lead[-8:]} to gather its cluster"
            case Look(why=why):
                why = why or self._matching.missing_words(self._search.homes)
        if why != self._said:
            self._said = why
            self._say(why)

    async def _ask(self, lead: str) -> HomesFound | None:
        """Ask a lead for its line. A lead that does not answer, or does not know this home, is left out."""
        await self._reach(lead)
        try:
            packed = await self._node.ask(lead, GATHER, ASK_S, ANSWER_BYTES)
            word = unpack_gather(packed or b"")
            if not word.line:
                self._missed.pop(lead, None)
                return None
            if parse_cluster(word.line).lead != lead:
                raise ValueError("the line of another cluster")
        except (Unreachable, ValueError):  # a BadInvite is one, too
            await self._miss(lead)
            return None
        order = word.order if len(word.order) >= 2 else (lead, self._me)
        return HomesFound(lead, order, 0.0, word.line, self._mine().upload_mbps)

    async def _miss(self, peer: str) -> None:
        self._missed[peer] = self._missed.get(peer, 0) + 1
        if self._missed[peer] >= MISSES:
            del self._missed[peer]
            async with self._searching:
                self._search.leave_out(peer, time.monotonic())

    async def _reach(self, peer: str) -> None:
        head = self._heads.get(peer)
        if head is not None and peer not in await self._node.connections():
            await self._node.meet(peer, head.ways(peer))

    async def _pong(self, peer: str, request: bytes) -> bytes | None:
        return PONG

    async def _answer(self, peer: str, request: bytes) -> bytes | None:
        """The line, for a home that is named in this home's gathering, once all have asked."""
        async with self._searching:
            if not self._search.asks(peer, time.monotonic()) or not isinstance(self._next, Gather):
                return None
            is_complete, order = self._next.is_complete, self._next.match.homes
            if is_complete:
                self._search.given(peer)
        return pack_gather(GatherWord(self._invite.text() if is_complete else "", order))

    async def _keep_pinging(self) -> None:
        """Measure the round trips to the homes that look, new ones at once and each once a minute."""
        while True:
            now = time.monotonic()
            others = [peer for peer in self._search.homes if peer != self._me][:MAX_TRIPS]
            for peer in others:
                if now - self._pinged_at.get(peer, -math.inf) >= PING_AGAIN_S:
                    self._pinged_at[peer] = now
                    await self._ping(peer)
            self._trips_ms = {peer: trip_ms for peer, trip_ms in self._trips_ms.items() if peer in others}
            self._pinged_at = {peer: at for peer, at in self._pinged_at.items() if peer in others}
            await asyncio.sleep(LOOK_S)

    async def _ping(self, peer: str) -> None:
        shortest_s = math.inf
        await self._reach(peer)
        for _ in range(PINGS):
            began = time.monotonic()
            try:
                said = await self._node.ask(peer, PING, ASK_S, len(PONG))
            except Unreachable:
                break
            if said == PONG:
                shortest_s = min(shortest_s, time.monotonic() - began)
        if math.isinf(shortest_s):
            self._pinged_at.pop(peer, None)
            await self._miss(peer)
            return
        self._missed.pop(peer, None)
        self._trips_ms[peer] = rounded_ms(shortest_s)
        if not self._upload_mbps:
            self._upload_mbps = rounded_mbps(await measure_upload(self._node, peer, shortest_s, LINE_S) or 0.0)


def rounded_ms(seconds: float) -> int:
    """Whole milliseconds with one or two digits that count: else every ping would be news to all."""
    digits = 1 if seconds < 0.1 else 2
    return min(MOST_TRIP_MS, max(1, round(float(f"{1e3 * seconds:.{digits}g}"))))


def rounded_mbps(rate: float) -> float:
    """With two digits that count: every change of an offer makes all homes search anew."""
    return float(f"{rate:.2g}")
