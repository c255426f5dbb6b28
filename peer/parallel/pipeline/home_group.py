"""What a round needs of a cluster's homes beside flights: one contribution for all, and the digest of the whole state.

A lead repeats a request until it is answered: a stream may have broken, and a worker gives the same answer however
often it is asked.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from dht.errors import BadInput
from peer.consensus.codec.state_digest import state_digest
from peer.consensus.protocol.layout import Part
from peer.node.store.contributions import WorkStats
from peer.parallel.pipeline.home_messages import (
    AnyHomeMessage,
    AskDigests,
    ChunksOfAll,
    ChunksWritten,
    LayerDigests,
    LeavesWritten,
    SubmitAtOnce,
    decode_home,
    encode_home,
)
from peer.schema.ipc import Assignment

log = logging.getLogger(__name__)
T = TypeVar("T")

ANSWER_S = 120.0
"""A home that has not answered by then is lost: in that time it can encode and write, or apply, its layers."""
ASK_AGAIN_S = 5.0
KEPT = 64
"""The number of anchors for which a worker remembers its answers, so that a lead that comes back can catch up."""

SendFrame = Callable[[str, bytes], None]
"""Called with the peer id of a home in the cluster, and a frame."""
Complete = Callable[[Sequence[bytes]], None]
"""Called with the digests of the chunks of all layers of a snapshot."""


class HomeGone(Exception):
    """A home of the cluster does not answer, or cannot go on: `peer`, and `why` in words."""

    def __init__(self, peer: str, why: str) -> None:
        super().__init__(f"home {peer[-8:]} of the cluster {why}")
        self.peer, self.why = peer, why


class GarbageHome(HomeGone):
    """A home sent something that it cannot have computed honestly; `why` contains the values.

    `said_by` is the neighbour that accuses it; empty if the lead itself has seen it.
    """

    def __init__(self, peer: str, why: str, said_by: str = "") -> None:
        super().__init__(peer, why)
        self.said_by = said_by


def accused(homes: Sequence[str], sender: str, peer: str, why: str) -> GarbageHome:
    """The error for an accusation of `peer` by its neighbour `sender`, among `homes` in the order of stages. A lead
    does not accuse itself: its own frames are correct."""
    why = "".join(character for character in why if character.isprintable())
    place = homes.index(sender)
    if peer not in homes[max(0, place - 1) : place + 2] or peer in (homes[0], sender):
        return GarbageHome(sender, f"says of {peer[-8:]} that it sent {why}")
    return GarbageHome(peer, f"sent {why}, as home {sender[-8:]} says", sender)


class SilentHome(HomeGone):
    """A home that can still be reached did not do its part in time."""


class CutMoved(HomeGone):
    """No home is gone: a lead deals the layers anew, since other cuts are faster. `why` says who takes which."""

    def __init__(self, lead: str, why: str) -> None:
        super().__init__(lead, why)
        self.args = (f"layers move between the homes of this cluster: {why}",)


class LeadHomes:
    """A lead's communication with its workers; implements `peer.training.train.engine.Homes`."""

    def __init__(
        self, assignment: Assignment, send: SendFrame, *, answer_s: float = ANSWER_S, again_s: float = ASK_AGAIN_S
    ) -> None:
        self._assignment, self._send = assignment, send
        self._answer_s, self._again_s = answer_s, again_s
        self._heard = threading.Condition()
        self._leaves: dict[tuple[bytes, str], LeavesWritten] = {}
        self._digests: dict[tuple[bytes, str], LayerDigests] = {}
        self._gone: dict[str, str] = {}
        self._asks: dict[bytes, SubmitAtOnce] = {}
        self._chunks: dict[str, ChunksWritten] = {}
        """The newest message of each worker."""
        self._drafted: tuple[bytes, Sequence[bytes], Complete] | None = None
        self.snapshot = b""
        """The anchor of the newest snapshot of which all homes have written their layers."""
        self._end: HomeGone | None = None

    @property
    def member(self) -> str:
        return self._assignment.lead

    @property
    def delegates(self) -> tuple[tuple[int, int, str], ...]:
        return tuple((holder.first, holder.last, holder.peer) for holder in self._assignment.workers)

    def submit(self, anchor: bytes, effort: WorkStats) -> WorkStats:
        ask = SubmitAtOnce(anchor, effort.tokens, effort.steps, effort.ranges, effort.staleness)
        with self._heard:
            self._asks = {anchor: ask}
            self._leaves.clear()
        self._tell(ask)
        return effort

    def gather_leaves(self, anchor: bytes, parts: Sequence[Part], leaves: Sequence[bytes]) -> Sequence[bytes]:
        """The leaves of all `parts`, once every worker has written its own to disk. Raises HomeGone."""
        joined = list(leaves)
        for holder in self._assignment.workers:
            answer = self._await(self._asks[anchor], holder.peer, self._leaves, "did not submit its layers")
            own = sum(part.layer in holder.layers for part in parts)
            if (answer.first_part, len(answer.leaves)) != (len(joined), own):
                raise GarbageHome(holder.peer, "speaks of layers that are not its own")
            joined += answer.leaves
        return joined

    def state_digest(self, anchor: bytes, round: int, layers: Sequence[bytes], cursors: Mapping[int, int]) -> bytes:
        """The digest of the whole state; empty if a worker has gone on and no longer remembers its digests. Raises
        HomeGone."""
        joined = list(layers)
        for holder in self._assignment.workers:
            why = "did not say which bits it has"
            answer = self._await(AskDigests(anchor, round), holder.peer, self._digests, why, ask_first=False)
            if not answer.digests:
                return b""
            if answer.first_layer != holder.first or len(answer.digests) != len(holder.layers):
                raise GarbageHome(holder.peer, "speaks of layers that are not its own")
            joined += answer.digests
        with self._heard:
            self._digests = {key: said for key, said in self._digests.items() if key[0] == anchor}
        return state_digest(joined, cursors.items())

    def share_chunks(self, anchor: bytes, chunks: Sequence[bytes], complete: Complete) -> None:
        """See `peer.training.train.engine.Homes`."""
        with self._heard:
            self._drafted = anchor, chunks, complete
        self._complete_snapshot()

    def _complete_snapshot(self) -> None:
        """If all homes have written their layers of one snapshot, tell all of them its chunks."""
        with self._heard:
            if self._drafted is None:
                return
            anchor, mine, complete = self._drafted
            found = [self._chunks.get(holder.peer) for holder in self._assignment.workers]
            if any(said is None or said.anchor != anchor for said in found):
                return
            self._drafted = None
        joined = (*mine, *(digest for said in found if said is not None for digest in said.chunks))
        frame = encode_home(ChunksOfAll(anchor, joined))
        for holder in (*self._assignment.workers, *self._assignment.spares):
            self._send(holder.peer, frame)
        complete(joined)
        self.snapshot = anchor

    def lost(self, peer: str, why: str) -> None:
        """This home has lost its connection to the lead; all waiting ends. May be called from any thread."""
        with self._heard:
            self._gone[peer] = why
            self._heard.notify_all()

    def end(self, error: HomeGone) -> None:
        """Have the next step raise this. May be called from any thread."""
        with self._heard:
            self._end = error

    def require_all(self) -> None:
        """Raises HomeGone if a home is known to be lost."""
        with self._heard:
            if self._end is not None:
                raise self._end
            for peer, why in self._gone.items():
                raise HomeGone(peer, why)

    def take(self, sender: str, frame: bytes) -> None:
        """Process a frame of a home, on the reading thread. Frames that are not valid messages, or come from
        strangers, are dropped."""
        try:
            message = decode_home(frame)
        except ValueError as error:
            log.warning("dropped what %s says: %s", sender, error)
            return
        if sender not in {holder.peer for holder in self._assignment.workers}:
            return
        with self._heard:
            match message:
                case LeavesWritten() if message.anchor in self._asks:
                    self._leaves[message.anchor, sender] = message
                case LayerDigests():
                    self._digests[message.anchor, sender] = message
                case ChunksWritten():
                    self._chunks[sender] = message
            self._heard.notify_all()
        self._complete_snapshot()

    def _tell(self, message: AnyHomeMessage) -> None:
        frame = encode_home(message)
        for holder in self._assignment.workers:
            self._send(holder.peer, frame)

    def _await(
        self, ask: SubmitAtOnce | AskDigests, peer: str, said: Mapping[tuple[bytes, str], T], why: str,
        *, ask_first: bool = True,
    ) -> T:  # fmt: skip
        """This home's answer about the anchor in question. Raises HomeGone."""
        until = time.monotonic() + self._answer_s
        again_at = time.monotonic() + (self._again_s if ask_first else min(0.2, self._again_s))
        while True:
            with self._heard:
                if (ask.anchor, peer) in said:
                    return said[ask.anchor, peer]
                for gone, gone_why in self._gone.items():  # whichever it is: perhaps this one waits for that one
                    raise HomeGone(gone, gone_why)
                now = time.monotonic()
                if now >= until:
                    raise SilentHome(peer, f"{why} within {self._answer_s:.0f} s")
                self._heard.wait(max(0.0, min(again_at, until) - now))
            if time.monotonic() >= again_at:
                again_at += self._again_s
                self._send(peer, encode_home(ask))


class WorkerHome:
    """A worker's communication with its lead; implements `peer.training.train.engine.Homes`."""

    def __init__(
        self, assignment: Assignment, me: str, send: SendFrame, *,
        written: Callable[[bytes], tuple[int, Sequence[bytes]] | None], ask_submit: Callable[[], None],
    ) -> None:  # fmt: skip
        """`written` finds the first part and the leaves that are on this disk for an anchor; `ask_submit` makes this
        home submit a contribution at its present anchor."""
        self._assignment, self._me, self._send = assignment, me, send
        self._written, self._ask_submit = written, ask_submit
        self._lock = threading.Lock()
        self._ask: SubmitAtOnce | None = None
        self._said: dict[bytes, LayerDigests] = {}
        self._stands_at, self._round = b"", 0
        self._drafted: tuple[bytes, Complete] | None = None

    def reassign(self, assignment: Assignment) -> None:
        """Switch to another epoch with the same lead and the same layers."""
        self._assignment = assignment

    @property
    def member(self) -> str:
        return self._assignment.lead

    @property
    def delegates(self) -> tuple[tuple[int, int, str], ...]:
        return ()

    def submit(self, anchor: bytes, effort: WorkStats) -> WorkStats:
        with self._lock:
            ask = self._ask
        if ask is None or ask.anchor != anchor:
            return effort
        return WorkStats(ask.tokens, ask.steps, ask.ranges, ask.staleness)

    def gather_leaves(self, anchor: bytes, parts: Sequence[Part], leaves: Sequence[bytes]) -> Sequence[bytes]:
        """Tell the lead this home's leaves. The parts of other homes are unknown here, so their leaves are empty."""
        holder = self._assignment.of(self._me)
        assert holder is not None
        first = sum(part.layer < holder.first for part in parts)
        self._tell(LeavesWritten(anchor, first, tuple(leaves)))
        return (*[b""] * first, *leaves)

    def state_digest(self, anchor: bytes, round: int, layers: Sequence[bytes], cursors: Mapping[int, int]) -> bytes:
        """Tell the lead this home's digests. Returns empty bytes: only the lead knows the digest of the whole state."""
        holder = self._assignment.of(self._me)
        assert holder is not None
        said = LayerDigests(anchor, holder.first, tuple(layers))
        with self._lock:
            self._said = dict(
                [*((key, old) for key, old in self._said.items() if key != anchor), (anchor, said)][-KEPT:]
            )
            self._stands_at, self._round = anchor, round
            is_asked = self._ask is not None and self._ask.anchor == anchor
        self._tell(said)
        if is_asked:
            self._ask_submit()
        return b""

    def share_chunks(self, anchor: bytes, chunks: Sequence[bytes], complete: Complete) -> None:
        """See `peer.training.train.engine.Homes`."""
        with self._lock:
            self._drafted = anchor, complete
        self._tell(ChunksWritten(anchor, tuple(chunks)))

    def take(self, sender: str, frame: bytes) -> None:
        """Process a frame of the lead, on the reading thread. Frames that are not valid messages, or come from
        others, are dropped."""
        try:
            message = decode_home(frame)
        except ValueError as error:
            log.warning("dropped what %s says: %s", sender, error)
            return
        if sender != self._assignment.lead:
            return
        match message:
            case SubmitAtOnce(anchor=anchor):
                try:
                    found = self._written(anchor)
                except BadInput as error:
                    log.warning("%s", error)  # the trainer says so as soon as it needs it
                    return
                if found is not None:
                    self._tell(LeavesWritten(anchor, found[0], tuple(found[1])))
                    return
                with self._lock:
                    self._ask, is_here = message, self._stands_at == anchor
                if is_here:
                    self._ask_submit()
            case AskDigests(anchor=anchor, round=round):
                with self._lock:
                    said = self._said.get(anchor)
                    if said is None and round < self._round:
                        said = LayerDigests(anchor, 0, ())
                if said is not None:
                    self._tell(said)
            case ChunksOfAll(anchor=anchor, chunks=chunks):
                with self._lock:
                    drafted = self._drafted
                if drafted is not None and drafted[0] == anchor:
                    drafted[1](chunks)

    def _tell(self, message: AnyHomeMessage) -> None:
        self._send(self._assignment.lead, encode_home(message))
