"""Whom this link serves, and how this peer gets its own admission.

No peer needs the organiser's node to take part: it shows its own admission, and orders pass from peer to peer. Only a
newcomer's first admission, and later its renewal, come from that node.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from dht.access import AccessList, RejectCode
from dht.addresses import peer_id_in
from dht.admission import (
    FOR_EVER,
    MAX_ADMISSION_BYTES,
    MAX_ORDERS_BYTES,
    Admission,
    QuarantineList,
    load_quarantine,
    read_admission,
    read_quarantine,
    save_quarantine,
)
from dht.atomic_files import write_atomic
from dht.board import peers_in
from dht.errors import DiskFull, HomefiresError, NotAdmitted, Unreachable
from dht.invite import Invite
from dht.node import Node
from dht.reach.dial_back import KNOCK
from dht.records import Malformed, PeerRecord, Record, unpack_value
from peer.network.link.channel import LinkEnd
from peer.schema.events import AlertRaised
from peer.schema.ipc import Waiting

log = logging.getLogger(__name__)

ADMISSION = "admission"
"""Under this name a peer shows its own, and keeps it in its folder."""
ORDERS = "quarantine"
"""Under this name everybody gives the newest orders, if they are newer than the number in the request."""
OPEN = frozenset({"spec", ADMISSION, ORDERS, "time", KNOCK, ""})
"""What anybody may ask. The empty name is that of a question that measures a round trip."""
ASK_S = 5.0
ASKED_AT_ONCE = 16
"""Strangers, and peers that say to have newer orders. One more has to wait."""
HEAR_S = 10.0
NUMBER_BYTES = 8
ADMIT = "admission-request"
"""Under this name the organiser's node admits whoever shows an invite that says so, and whom it has admitted before."""
ADMIT_S = 10.0
ASK_AGAIN_S = 2.0
PATIENCE_S = 45.0
MAX_ANSWER_BYTES = MAX_ADMISSION_BYTES + 1024
ASK_NEXT_S = 3600.0
"""The next one is asked for so often, and oftener in the last hours. It is given once a third of the time is over."""
SOONEST_S = 1.0

Clock = Callable[[], float]


class Gatekeeper:
    """Stands between a node and the other peers of the run. `changed` is called with new quarantine orders and the
    ones before."""

    def __init__(self, node: Node, roster: AccessList, directory: Path, run: bytes, organiser: str) -> None:
        self.roster = roster
        self.changed: Callable[[QuarantineList, QuarantineList], None] = lambda orders, before: None
        self._node, self._path = node, directory / ORDERS
        self._run, self._organiser = run, organiser
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._further: dict[str, int] = {}
        """Peers whose records name newer orders, and their numbers."""

    def stand(self) -> None:
        """Begin. Raises BadInput if a file in the folder is damaged."""
        self.roster.obey(load_quarantine(self._path, self._run, self._organiser))
        self._node.guard(self.lets_in, OPEN)
        self._node.answer(ORDERS, self._give_orders)

    # ---- who may come in ----

    async def lets_in(self, peer: str) -> bool:
        """Whether a peer may open streams and send requests; an unknown one is asked for its admission."""
        refused = self.roster.why_not(peer)
        if refused is not None and refused[0] is RejectCode.STRANGER:
            await self._ask_admission(peer)
            refused = self.roster.why_not(peer)
        if refused is not None:
            self._node.refusals(refused[0], peer, refused[1])
        return refused is None

    async def _ask_admission(self, peer: str) -> None:
        if peer not in self._asking and len(self._asking) >= ASKED_AT_ONCE:
            return
        if peer not in self._asking:
            self._asking[peer] = asyncio.create_task(self._learn(peer))
            self._asking[peer].add_done_callback(lambda _: self._asking.pop(peer, None))
        await asyncio.wait([self._asking[peer]])

    async def _learn(self, peer: str) -> None:
        try:
            shown = await self._node.ask(peer, ADMISSION, ASK_S, MAX_ADMISSION_BYTES)
            if shown is not None:
                self.roster.learn(peer, shown)
        except Unreachable as error:
            log.info("%s", error)
        except Malformed as error:
            self._node.refusals(RejectCode.STRANGER, peer, f"what it shows is no admission: {error}")

    def takes(self, peer: str, said: PeerRecord) -> bool:
        """Whether a peer's record on the board is believed; its number of orders is noted, too."""
        if said.admission is not None and self.roster.asks_admission:
            with suppress(Malformed):
                self.roster.learn(peer, said.admission)
        refused = self.roster.why_not(peer)
        if refused is not None:
            self._node.refusals(refused[0], peer, refused[1])
        elif said.orders is not None and said.orders > self.roster.orders.number:
            self._further[peer] = said.orders
        return refused is None

    def look(self, record: Record) -> None:
        """Learn from a stranger's record on the board whether the organiser has admitted it. Raises Malformed."""
        said = peers_in({record.author: record}).get(record.author)
        if said is not None and said.admission is not None:
            self.roster.learn(record.author, said.admission)

    def show_out(self) -> None:
        """Cut the streams of peers in quarantine that no round needs any more."""
        for peer in self.roster.kept_out() - set(self.roster.needed()):
            self._node.cut(peer)

    # ---- what the organiser orders ----

    async def follow(self) -> None:
        """Ask again and again: the organiser's node, and peers that know newer orders."""
        while True:
            await self.hear()
            await asyncio.sleep(HEAR_S)

    async def hear(self) -> None:
        connected: set[str] = set()
        with suppress(Unreachable):
            connected = set(await self._node.connections())
        asked = [peer for peer in self._further if self._further[peer] > self.roster.orders.number]
        self._further.clear()
        # In an open run anybody says so: whom a round needs is asked before those of whom nothing is known.
        needed = self.roster.needed()
        asked.sort(key=lambda peer: (peer not in needed, random.random()))
        asked = [*({self._organiser} & connected), *asked[:ASKED_AT_ONCE]]
        await asyncio.gather(*(self._ask_orders(peer) for peer in dict.fromkeys(asked)))

    async def _ask_orders(self, peer: str) -> None:
        number = self.roster.orders.number.to_bytes(NUMBER_BYTES, "big")
        try:
            given = await self._node.ask(peer, ORDERS, ASK_S, MAX_ORDERS_BYTES, number)
            if given:
                self._obey(read_quarantine(given, self._run, self._organiser))
        except Unreachable as error:
            log.info("%s", error)
        except Malformed as error:
            self._node.refusals(RejectCode.ORGANISER, peer, f"it gives orders that count for nobody: {error}")

    def _obey(self, orders: QuarantineList) -> None:
        before = self.roster.orders
        if not self.roster.obey(orders):
            return
        try:
            save_quarantine(self._path, orders)
        except DiskFull as error:
            log.warning("the organiser's orders are not on disk: %s", error)
        self.changed(orders, before)

    async def _give_orders(self, peer: str, request: bytes) -> bytes | None:
        orders = self.roster.orders
        return orders.to_bytes() if orders.number > int.from_bytes(request[:NUMBER_BYTES], "big") else None


def quarantine_alerts(orders: QuarantineList, before: QuarantineList, me: str) -> list[AlertRaised]:
    """What people are told: which peers came into quarantine and why, and which are out again."""
    alerts = []
    for peer, reason in sorted(orders.quarantined.items()):
        if before.quarantined.get(peer) == reason:
            continue
        who = "this peer" if peer == me else peer
        level = "error" if peer == me else "warning"
        text = f"the organiser has put {who} in quarantine: {reason}; nobody works with it until that is lifted"
        alerts.append(AlertRaised(level=level, code=RejectCode.QUARANTINE, text=text))
    for peer in sorted(before.quarantined.keys() - orders.quarantined.keys()):
        who = "this peer" if peer == me else peer
        alerts.append(AlertRaised(level="info", code=RejectCode.QUARANTINE, text=f"the quarantine of {who} is lifted"))
    return alerts


# ---- my own admission ----


class Membership:
    """My admission in a run that asks for one. `clock` is Unix time in seconds."""

    def __init__(
        self, node: Node, invite: Invite, directory: Path, me: str, admission: Admission, tell: Callable[[str], None],
        clock: Clock = time.time,
    ) -> None:  # fmt: skip
        self._node, self._invite, self._path, self._me = node, invite, directory / ADMISSION, me
        self._admission, self._tell, self._clock = admission, tell, clock
        self._failure: HomefiresError | None = None
        """Why the last request for the next admission failed."""

    @property
    def shown(self) -> bytes:
        return self._admission.to_bytes()

    async def keep(self) -> None:
        """Renew the admission well before it ends, as long as this peer runs. Raises NotAdmitted once it has ended
        because the organiser gives no other, Unreachable if the organiser could not be asked."""
        while self._admission.expires != FOR_EVER:
            left_s = self._admission.expires - self._clock()
            await asyncio.sleep(max(SOONEST_S, min(ASK_NEXT_S, left_s / 4)))
            await self._ask()
            if self._admission.is_over(self._clock()):
                raise self._over()
        await asyncio.get_running_loop().create_future()

    async def _ask(self) -> None:
        try:
            self._admission, self._failure = await _ask_once(self._node, self._invite, self._me), None
            write_atomic(self._path, self.shown)
        except DiskFull as error:
            log.warning("the new admission is not on disk: %s", error)
        except NotAdmitted as error:
            if str(error) != str(self._failure):
                self._tell(f"{error}; the admission that this peer has ends on {_date(self._admission)}")
            self._failure = error
        except Unreachable as error:
            log.info("no new admission: %s", error)
            self._failure = error

    def _over(self) -> HomefiresError:
        ended = f"this peer's admission ended on {_date(self._admission)}"
        if isinstance(self._failure, NotAdmitted):
            return NotAdmitted(f"{ended}: {self._failure}")
        return Unreachable(
            f"{ended}, and the organiser's node, which alone renews it, was not reached ({self._failure}); start again "
            "when it runs"
        )


async def find_admission(node: Node, invite: Invite, directory: Path, me: str, pipe: LinkEnd) -> Admission:
    """The admission in this folder, or the one that the organiser's node gives now. Raises NotAdmitted if the node
    refuses, Unreachable if it does not answer: nobody else can admit a newcomer."""
    path = directory / ADMISSION
    kept = _kept(path, invite, me)
    if kept is not None and not kept.is_over(time.time()):
        return kept
    if kept is None and invite.token is None:
        raise _refused(node, "the invite holds no token; ask the organiser for one that admits")
    pipe.send(Waiting("asking the organiser's node for an admission"))
    admission = await _ask_until_answered(node, invite, me)
    write_atomic(path, admission.to_bytes())
    return admission


def _kept(path: Path, invite: Invite, me: str) -> Admission | None:
    if not path.exists():
        return None
    try:
        return read_admission(path.read_bytes(), invite.spec_hash, invite.organiser, me)
    except Malformed as error:
        log.warning("%s is of no use here (%s): asking for another", path, error)
        return None


async def _ask_until_answered(node: Node, invite: Invite, me: str) -> Admission:
    failure = "no answer"
    try:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    return await _ask_once(node, invite, me)
                except Unreachable as error:
                    failure = str(error)
                await asyncio.sleep(ASK_AGAIN_S)
    except TimeoutError:
        tried = ", ".join(address for address in invite.addrs if peer_id_in(address) == invite.organiser)
        raise Unreachable(
            f"only the organiser's node admits newcomers, and it does not ({failure}; tried {tried or 'its id'}); "
            "try again when it runs"
        ) from None


async def _ask_once(node: Node, invite: Invite, me: str) -> Admission:
    """Raises NotAdmitted, Unreachable."""
    answer = await node.ask(invite.organiser, ADMIT, ADMIT_S, MAX_ANSWER_BYTES, request=invite.text.encode())
    if not answer:
        raise Unreachable("it admits nobody now")
    fields: Any = None
    with suppress(Malformed):
        fields = unpack_value(answer)
    match fields:
        case [bytes(shown), str(why)]:
            pass
        case _:
            raise Unreachable("its answer is none that this client knows")
    if not shown:
        raise _refused(node, "".join(letter if letter.isprintable() else "\ufffd" for letter in why))
    try:
        return read_admission(shown, invite.spec_hash, invite.organiser, me)
    except Malformed as error:
        raise _refused(node, f"what the organiser's node gives is no admission: {error}") from error


def _refused(node: Node, why: str) -> NotAdmitted:
    node.refusals(RejectCode.TOKEN, "this peer", why)
    return NotAdmitted(f"this run takes those alone whom its organiser admits: {why}")


def _date(admission: Admission) -> str:
    return time.strftime("%Y-%m-%d at %H:%M UTC", time.gmtime(admission.expires))
