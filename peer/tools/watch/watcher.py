"""Reads the board again and again, and asks one peer at a time for the blocks after the last one that it knows.

A peer answers it like any peer that is behind: once in two seconds, or at once if it has advanced. A watcher never
reports its own position, so nobody counts it, sends it anything unasked, or waits for it.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping

from dht.errors import BadChain, Unreachable
from dht.node import Node
from dht.records import PeerRecord
from peer.consensus.protocol.block import MAX_PARTS, Update
from peer.consensus.protocol.encoding import integer, rows, unpack
from peer.consensus.protocol.head import ChainHead
from peer.consensus.protocol.layout import layer_sizes
from peer.consensus.protocol.messages import Blocks, GetBlocks, Heartbeat, decode, encode
from peer.consensus.protocol.rules import Rules
from peer.network.sync.certified_way import Follower, TwoWays
from peer.network.sync.chain_status import ASK_MOST, query_status
from peer.network.sync.checkpoint_keeper import CheckpointKeeper
from peer.network.sync.run_discovery import LAYERS
from peer.node.telemetry.reporter import Reporter
from peer.planning.forecast.watched_outlook import WatchedOutlook
from peer.schema.events import ReportReceived
from peer.tools.watch.archive import Archive
from peer.tools.watch.verified_chain import WatchedChain, commit_events

LOOK_S = 2.0
BURST_S = 10.0
"""While it catches up the board is read this often at least."""
ANSWER_S = 3.0
SILENT_S = 10.0
"""Who did not answer, or had nothing, is left alone for so long."""
REFUSE_S = 60.0
"""And who gave a block that cannot be."""
CATCH_UP_BYTES_PER_S = 256 << 10
"""On the average: volunteers' upload is for rounds."""
FEW_ROUNDS = 4
"""No more than may be made between two looks where rounds are short: that is not being behind."""
FAR_ROUNDS = 512
"""Who is further behind begins at a snapshot's round; what a screen shows is not much longer."""
CUT_OFF_BY = 2
"""So many peers that are further must know none of the anchors here before the chain is begun elsewhere."""
LAYERS_FROM = 5
LAYERS_BYTES = 1 << 20
ASK_S = 5.0
KEEP_LOOK_S = 15.0
"""Who keeps checkpoints asks so often for new ones, which is less often than peers write them."""
LINGER_S = 10.0
"""After the last round: its evaluation comes a little later."""
CODE = "WATCH"


class Watcher:
    """Tells what happens in a run, from the anchor `head` on.

    `rules_of` gives the rules for a model with layers of these sizes; it raises ValueError for impossible ones.
    """

    def __init__(
        self, node: Node, read_heads: Callable[[], Awaitable[Mapping[str, PeerRecord]]],
        rules_of: Callable[[tuple[int, ...]], Rules], run: bytes, head: ChainHead, session: Reporter,
        checkpoints: CheckpointKeeper, outlook: WatchedOutlook, rng: random.Random | None = None,
    ) -> None:  # fmt: skip
        self._node, self._read_heads, self._rules_of, self._run, self._session = (
            node, read_heads, rules_of, run, session
        )  # fmt: skip
        self._head, self._checkpoints, self._outlook = head, checkpoints, outlook
        self._rng = rng or random.Random()
        self._following: WatchedChain | None = None
        self._layer_sizes: tuple[int, ...] = ()
        """Empty until peers have told, and again when a block did not fit them."""
        self._hearsay = AnnouncementLog()
        self._left_alone: dict[str, float] = {}
        """Peers that are not asked, and until when."""
        self._cut_off: set[str] = set()
        """Further peers that had nothing that follows."""
        self._elected: frozenset[str] = frozenset()
        """Whom the verified blocks elected. Others, whose names cost nothing, cannot lead away from these blocks."""
        self._met: set[str] = set()
        self._awaited: tuple[str, asyncio.Future[tuple[Blocks | Heartbeat, int]]] | None = None
        self._warned = ""

    @property
    def head(self) -> ChainHead:
        return self._head if self._following is None else self._following.head

    async def keep(self, archive: Archive) -> None:
        """Have checkpoints kept of what is verified here, for ever."""
        while True:
            await asyncio.sleep(KEEP_LOOK_S)
            if self._following is not None and self._following.trail:
                peers = self._some(ASK_MOST, self._trusted(self._hearsay.heads))
                await asyncio.gather(*(self._meet(peer) for peer in peers))
                layers = layer_sizes(self._following.rules.parts)
                await archive.look(self._following.trail, layers, peers)

    async def follow(self, rounds: int) -> None:
        """Until this many rounds are made, for ever if that is 0. Raises BadChain where certificates part."""
        self._node.streams.listen(self._on_frame)
        until = float("inf")
        while time.monotonic() < until:
            self._tell(await self._read_heads())
            await self._catch_up()
            if rounds and self.head.round >= rounds:
                until = min(until, time.monotonic() + LINGER_S)
            await asyncio.sleep(LOOK_S)

    def _tell(self, heads: Mapping[str, PeerRecord]) -> None:
        for report in self._hearsay.news(heads):
            self._session.emit(report)
        if not heads:
            self._session.say("JOINING", "no peer is on the board of this run")

    # ---- the chain ----

    async def _catch_up(self) -> None:
        until = time.monotonic() + BURST_S
        while (source := self._source()) and time.monotonic() < until:
            if not self._layer_sizes and not await self._start():
                return
            assert self._following is not None
            await self._ask(source, self._following)
        if self._hearsay.heads and not self._further():
            self._session.say("READY", "watching: every round is checked as it comes")

    def _further(self) -> list[str]:
        """Peers that say that they are further; they say which bits they have as soon as they have computed them."""
        known = {self.head.anchor} if self._following is None else set(self._following.anchors)
        return [
            peer
            for peer, said in self._hearsay.heads.items()
            if said.anchor and said.state and said.anchor not in known
            and (said.round > self.head.round or said.weight > self.head.weight)
        ]  # fmt: skip

    def _source(self) -> str:
        """Any of them, so that none has all the work; empty if there is nobody to ask."""
        now = time.monotonic()
        self._left_alone = {peer: until for peer, until in self._left_alone.items() if now < until}
        free = [peer for peer in self._further() if peer not in self._left_alone]
        return self._rng.choice(free) if free else ""

    async def _ask(self, source: str, following: WatchedChain) -> None:
        if self._newest() - self.head.round > FEW_ROUNDS:
            self._session.say("SYNCING", f"round {self.head.round} of {self._newest()} is checked")
        await self._meet(source)
        answer: asyncio.Future[tuple[Blocks | Heartbeat, int]] = asyncio.get_running_loop().create_future()
        self._awaited = (source, answer)
        self._node.streams.send(source, encode(GetBlocks(following.anchors)))
        try:
            async with asyncio.timeout(ANSWER_S):
                message, size_bytes = await answer
        except TimeoutError:
            self._met.discard(source)
            self._leave_alone(source, SILENT_S)
            return
        finally:
            self._awaited = None
        if isinstance(message, Blocks):
            self._take(source, message, following)
            await asyncio.sleep(size_bytes / CATCH_UP_BYTES_PER_S)
        else:
            await self._note_cut_off(source, message)

    def _on_frame(self, sender: str, frame: bytes) -> None:
        if self._awaited is None or sender != self._awaited[0] or self._awaited[1].done():
            return
        try:
            message = decode(frame)
        except ValueError:
            return
        if isinstance(message, Blocks | Heartbeat):
            self._awaited[1].set_result((message, len(frame)))

    def _take(self, source: str, chain: Blocks, following: WatchedChain) -> None:
        taken = following.take(chain.blocks)
        if taken.parted:
            raise BadChain(
                f"round {taken.parted} as {source} gives it is certified and is not the one that was certified before: "
                "two chains of this run stand, and its organiser must say which is its own; watching ends here"
            )
        for step in taken.steps:
            rules = following.rules
            averaged = rules.fragment(step.before.round).parts
            for event in commit_events(step, averaged, self._state_of, rules.fragments, rules.tokens_cap):
                self._session.emit(event)
            self._foretell(step.block.update)
        if taken.steps:
            self._cut_off.clear()
            self._elected |= frozenset(following.head.electorate)
        if taken.fault:
            fault = f"round {following.head.round + 1} as {source} gives it cannot be verified: {taken.fault}"
            self._warn(f"{fault}; others are asked")
            self._leave_alone(source, REFUSE_S)
            self._layer_sizes = ()
        elif not taken.steps:
            self._leave_alone(source, SILENT_S)

    def _foretell(self, update: Update) -> None:
        speeds = {peer: said.tokens_per_s for peer, said in self._hearsay.heads.items() if said.tokens_per_s}
        forecast = self._outlook.follow(update, speeds)
        if forecast is not None:
            self._session.emit(forecast)

    # ---- where it begins ----

    async def _start(self) -> bool:
        """Know the model's layers, and where to begin; False if nobody tells."""
        self._layer_sizes = await self._learn_layers()
        if not self._layer_sizes:
            return False
        if self._following is not None:
            self._following.rules = self._rules_of(self._layer_sizes)
            return True
        self._following = WatchedChain(self._rules_of(self._layer_sizes), self._head)
        if self._newest() - self.head.round > FAR_ROUNDS:
            await self._begin_late(f"{self._newest() - self.head.round} rounds are too many to load")
        return True

    async def _learn_layers(self) -> tuple[int, ...]:
        """What most of some peers say of the sizes of the layers. A wrong word is found out by the next block."""
        answers = await asyncio.gather(
            *(self._ask_layers(peer) for peer in self._some(LAYERS_FROM, self._hearsay.heads))
        )
        said = Counter(answer for answer in answers if answer)
        if not said:
            self._warn("no peer tells how large the model's layers are; without that no round can be checked")
        return said.most_common(1)[0][0] if said else ()

    async def _ask_layers(self, peer: str) -> tuple[int, ...]:
        await self._meet(peer)
        try:
            answer = await self._node.ask(peer, LAYERS, ASK_S, LAYERS_BYTES)
            sizes = tuple(integer(size, 1) for size in rows(unpack(answer or b""), MAX_PARTS))
            self._rules_of(sizes)
            return sizes
        except (Unreachable, ValueError):
            return ()

    async def _note_cut_off(self, source: str, said: Heartbeat) -> None:
        """It says where it is, and has nothing that follows: what it knows begins later, if it is further."""
        self._leave_alone(source, SILENT_S)
        if said.round > self.head.round:
            self._cut_off.add(source)
        counted = self._trusted(self._cut_off)
        if not counted or len(counted) < min(CUT_OFF_BY, len(self._trusted(self._further()))):
            return
        why = f"no peer has round {self.head.round + 1} any more"
        if not await self._begin_late(why):
            self._warn(f"{why}, and no peer shows the certificates that lead further")

    async def _begin_late(self, why: str) -> bool:
        """Go on from where certificates lead; False if nobody shows them. Raises BadChain where two chains part."""
        assert self._following is not None
        peers = self._some(ASK_MOST, self._trusted(self._hearsay.heads))
        await asyncio.gather(*(self._meet(peer) for peer in peers))
        rules = self._following.rules
        follower = Follower(asker=self._node, keys=rules.keys, organiser=rules.organiser)
        await self._checkpoints.hear(peers)
        signed = self._checkpoints.newest
        start = signed.head if signed is not None and signed.round > self.head.round else self.head
        try:
            ways = await follower.follow_all(await query_status(self._node, peers, ()), (start,))
        except TwoWays as error:
            raise BadChain(f"{error}: its organiser must say which is its own; watching ends here") from error
        if not ways:
            return False
        head = max((way.head for way in ways.values()), key=lambda head: head.round)
        self._following = WatchedChain(self._rules_of(self._layer_sizes), head)
        self._left_alone.clear()
        self._cut_off.clear()
        self._warn(
            f"{why}: watching begins at round {head.round}, to which certificates lead; the rounds before are not "
            "checked, what follows is"
        )
        return True

    # ---- peers ----

    def _trusted(self, peers: Iterable[str]) -> list[str]:
        """Of these, whoever the verified blocks elected; all of them before there is one."""
        return [peer for peer in peers if not self._elected or peer in self._elected]

    def _newest(self) -> int:
        return max((said.round for said in self._hearsay.heads.values()), default=0)

    async def _meet(self, peer: str) -> None:
        if peer not in self._met and peer in self._hearsay.heads:
            await self._node.meet(peer, self._hearsay.heads[peer].ways(peer))
            self._met.add(peer)

    def _state_of(self, anchor: bytes) -> bytes:
        """The hash of the bits there, as those say it who are to be trusted."""
        return self._hearsay.state_of(anchor, self._trusted(self._hearsay.heads))

    def _some(self, most: int, of: Iterable[str]) -> list[str]:
        peers = sorted(of)
        return self._rng.sample(peers, min(most, len(peers)))

    def _leave_alone(self, peer: str, seconds: float) -> None:
        self._left_alone[peer] = time.monotonic() + seconds

    def _warn(self, text: str) -> None:
        if text != self._warned:
            self._warned = text
            self._session.warn(CODE, text)


PEERS_MOST = 256
"""Peer ids cost nothing: more than so many are not listened to, and who was heard before comes first."""
ANCHORS_MOST = 8
"""Of a peer. A snapshot is offered when whoever wrote it is further already."""
AGAIN_S = 30.0
"""Who says the same for this long is told of again: it is still there."""


class AnnouncementLog:
    """The board's HEADs, which are signed by those of whom they speak, as they were read last."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.heads: Mapping[str, PeerRecord] = {}
        self._clock = clock
        self._stood: dict[str, dict[bytes, bytes]] = {}
        """By peer: at which anchors it stood, the newest last, and the hash of its bits there."""
        self._told: dict[str, tuple[ReportReceived, float]] = {}
        """By peer: what was told of it, and when."""

    def news(self, heads: Mapping[str, PeerRecord]) -> list[ReportReceived]:
        """Take in what the board says now; returns what is not as it was, and now and then what still is."""
        now = self._clock()
        heard_first = sorted(heads, key=lambda peer: (peer not in self.heads, peer))
        self.heads = {peer: heads[peer] for peer in sorted(heard_first[:PEERS_MOST])}
        self._stood = {peer: _noted(self._stood.get(peer, {}), head) for peer, head in self.heads.items()}
        reports = {peer: _report(peer, head) for peer, head in self.heads.items()}
        fresh = {peer: report for peer, report in reports.items() if self._is_due(peer, report, now)}
        kept = {peer: told for peer, told in self._told.items() if peer in reports}
        self._told = kept | {peer: (report, now) for peer, report in fresh.items()}
        return list(fresh.values())

    def _is_due(self, peer: str, report: ReportReceived, now: float) -> bool:
        before, told_at = self._told.get(peer, (None, now))
        return report != before or now - told_at >= AGAIN_S

    def state_of(self, anchor: bytes, of: Iterable[str]) -> bytes:
        """The hash of the bits that most of these peers said when they stood at this anchor; empty if none did."""
        said = Counter(self._stood[peer][anchor] for peer in of if anchor in self._stood.get(peer, {}))
        return said.most_common(1)[0][0] if said else b""


def _noted(stood: Mapping[bytes, bytes], head: PeerRecord) -> dict[bytes, bytes]:
    if not head.anchor or not head.state:
        return dict(stood)
    others = {anchor: state for anchor, state in stood.items() if anchor != head.anchor}
    return dict(list({**others, head.anchor: head.state}.items())[-ANCHORS_MOST:])


def _report(peer: str, head: PeerRecord) -> ReportReceived:
    began = bool(head.anchor)  # before the first round a peer waits for the organiser, ready for nothing
    return ReportReceived(
        about=peer, round=max(0, head.round), ready=head.ready and began, tokens=head.tokens, steps=head.steps,
        name=head.name, leaving=head.leaving, loss=head.loss, evaluated=head.evaluated,
        evaluated_round=head.evaluated_round or 0, tokens_per_s=head.tokens_per_s or 0.0,
        device_gb=head.device_gb or 0.0,
    )  # fmt: skip
