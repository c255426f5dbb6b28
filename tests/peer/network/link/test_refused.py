"""What a peer refuses at its border, each with a code and one line in the log. Real nodes on loopback."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dht.access import AccessList, RejectCode
from dht.addresses import LOOPBACK
from dht.admission import issue_admission, sign_quarantine
from dht.errors import BadInvite, ClockOff, NotAdmitted, RunMismatch, Unreachable
from dht.identity import Identity
from dht.invite import Invite, issue, parse
from dht.node import NetworkConfig, Node, open_node
from dht.records import GENESIS, HEAD, Genesis, PeerRecord, dht_key, pack, sign_record
from peer.network.link.discovery import Announcer
from peer.network.link.gatekeeper import ADMISSION, ADMIT, ASKED_AT_ONCE, OPEN, ORDERS, Gatekeeper, find_admission
from peer.network.sync.run_discovery import find_genesis, find_spec, said_genesis
from peer.node.telemetry.reporter import Reporter
from peer.schema import spec as specs
from peer.schema.ipc import ToTrainer
from peer.testing.child_process import HANG_S
from peer.tools.watch import watch_session

pytestmark = pytest.mark.swarm

SPEC = specs.load("micro")
RUN = SPEC.digest()
OTHER = specs.dump(specs.load("tiny")).encode()


class Pipe:
    """What the trainer would hear."""

    def __init__(self) -> None:
        self.said: list[ToTrainer] = []

    def send(self, message: ToTrainer) -> None:
        self.said.append(message)


class Place:
    """Nodes of one run; the first is the organiser's, and the others dial it."""

    def __init__(self, folder: Path, stack: AsyncExitStack) -> None:
        self.folder, self._stack = folder, stack
        self.organiser = Identity.load_or_create(folder / "0" / "identity.key")
        self._addresses: tuple[str, ...] = ()
        self._count = 0

    async def add(self, **changes: Any) -> tuple[Identity, Node]:
        folder = self.folder / str(self._count)
        self._count += 1
        identity = Identity.load_or_create(folder / "identity.key")
        fields: dict[str, Any] = {
            "run": RUN, "identity_path": folder / "identity.key", "socket_folder": folder / "run", "listen": LOOPBACK,
            "bootstrap": self._addresses,
        }  # fmt: skip
        node = await self._stack.enter_async_context(open_node(NetworkConfig(**(fields | changes))))
        self._addresses = self._addresses or await node.addresses()
        return identity, node

    def invite(self, **terms: Any) -> Invite:
        text = issue(self.organiser, run="micro", spec_hash=RUN, addrs=self._addresses, **terms)
        return parse(text, time.time())

    def stand_guard(self, node: Node, *, asks: bool = True) -> Gatekeeper:
        """Before this node, from now on."""
        roster = AccessList(RUN, self.organiser.peer_id, asks_admission=asks)
        guard = Gatekeeper(node, roster, self.folder, RUN, self.organiser.peer_id)
        guard.stand()
        return guard


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with AsyncExitStack() as stack:
        yield Place(tmp_path, stack)


def refused(caplog: pytest.LogCaptureFixture, code: RejectCode, who: str) -> list[str]:
    """The lines of the log that say so."""
    start = f"refused {code} of {who}: "
    return [text for record in caplog.records if (text := record.getMessage()).startswith(start)]


class Heard:
    """What comes, one after the other."""

    def __init__(self) -> None:
        self.all: list[Any] = []
        self._came = asyncio.Event()

    def add(self, what: object) -> None:
        self.all.append(what)
        self._came.set()

    async def something(self) -> None:
        async with asyncio.timeout(HANG_S):
            await self._came.wait()


def outgoing(node: Node) -> list[asyncio.Task[None]]:
    """The streams that this node has opened. What is written before one has ended that was cut is lost."""
    return [task for _, task in node._links._outgoing.values()]


async def ended(streams: list[asyncio.Task[None]]) -> None:
    assert streams
    _, left = await asyncio.wait(streams, timeout=HANG_S)
    assert not left


def head(identity: Identity, run: bytes = RUN, **changes: Any) -> PeerRecord:
    fields: dict[str, Any] = {
        "run": run, "anchor": b"a" * 32, "round": 3, "weight": 9, "state": b"s" * 32, "ready": True,
        "tokens": 1, "steps": 1, "leaving": False, "name": "x", "version": "1",
    }  # fmt: skip
    return PeerRecord(**(fields | changes))


# ---- the six of the promise ----


async def test_a_forged_spec(place: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The node that the invite names serves another spec; a peer with the right one is there, too."""
    lied: list[bytes] = []

    def lie() -> bytes:
        lied.append(OTHER)
        return OTHER

    _, liar = await place.add()
    liar.serve("spec", lie)
    _, honest = await place.add()
    honest.serve("spec", lambda: specs.dump(SPEC).encode() if lied else b"")  # whoever is asked first
    _, newcomer = await place.add()
    assert await newcomer.meet(honest.peer_id, await honest.addresses())
    (tmp_path / "new").mkdir()
    text = await find_spec(newcomer, place.invite(), tmp_path / "new")
    assert specs.parse(text).digest() == RUN
    (line,) = refused(caplog, RejectCode.SPEC, liar.peer_id) or [""]
    assert "another spec than the invite names" in line


async def test_an_expired_token(place: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Refused where it is read; and by the organiser's node, should a client not look."""
    _, node = await place.add()
    with pytest.raises(BadInvite, match="expired"):
        place.invite(token=b"t", expires=time.time() - 1)

    from bootstrap.members import AdmissionBook
    from dht.admission import QuarantineList

    book = AdmissionBook(tmp_path, place.organiser, RUN)

    async def answer(peer: str, request: bytes) -> bytes | None:
        return book.answer(peer, request.decode(), QuarantineList(), time.time() + 60).to_bytes()

    node.answer(ADMIT, answer)
    identity, newcomer = await place.add()
    (tmp_path / "new").mkdir()
    with pytest.raises(NotAdmitted, match="expired") as caught:
        await find_admission(
            newcomer, place.invite(token=b"t", expires=time.time() + 30), tmp_path / "new", identity.peer_id, Pipe()
        )
    assert caught.value.exit_code == 11
    assert len(refused(caplog, RejectCode.TOKEN, "this peer")) == 1
    assert book.members(time.time()) == frozenset()


async def test_a_replayed_record(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """A record is put up again when its time is over, or with a later end than its author signed."""
    _, honest = await place.add()
    alice = Identity.generate()
    _, mallory = await place.add()
    dht = mallory.board._dht  # what a client without checks would do
    dht.protocol.record_validator = None
    old = sign_record(alice, RUN, HEAD, head(alice).pack(), time.time() - 300)
    later = time.time() + 60
    assert not await dht.store(dht_key(HEAD, RUN), pack(old), later, subkey=alice.peer_id, exclude_self=True)
    assert await honest.board.read(HEAD) == {}
    (line,) = refused(caplog, RejectCode.REPLAY, alice.peer_id) or [""]
    assert "to live longer than its author signed" in line


async def test_a_wrong_organiser(place: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Somebody else names founders, on the board and by stream; and a folder belongs to another organiser's run."""
    await place.add()
    mallory, liar = await place.add()
    body = Genesis(run=RUN, founders=(mallory.peer_id,), state=b"s" * 32).pack()
    forged = sign_record(mallory, RUN, GENESIS, body, time.time() + 60)
    assert await liar.board.publish(GENESIS, forged, 60)
    liar.serve("genesis", lambda: pack(forged))
    _, newcomer = await place.add()
    assert await newcomer.meet(liar.peer_id, await liar.addresses())
    assert await said_genesis(newcomer, RUN, place.organiser.peer_id) is None
    (line,) = refused(caplog, RejectCode.ORGANISER, mallory.peer_id) or [""]
    assert "not the organiser of the invite" in line
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "genesis").write_bytes(pack(forged))
    with pytest.raises(RunMismatch, match="another organiser") as caught:
        await find_genesis(
            newcomer, RUN, place.organiser.peer_id, tmp_path / "new", b"s" * 32, count=1, offer=pytest.fail,
            wait=pytest.fail,
        )  # fmt: skip
    assert caught.value.exit_code == 5


@pytest.mark.parametrize(("off_s", "says"), [(10.0, "10 s ahead of"), (-10.0, "10 s behind")])
async def test_a_clock_that_is_off_by_10_s(
    place: Place, off_s: float, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    await place.add()
    with pytest.raises(ClockOff, match=says) as caught:
        await place.add(clock=lambda: time.time() + off_s)
    assert caught.value.exit_code == 10
    assert "NTP" in str(caught.value)
    assert len(refused(caplog, RejectCode.CLOCK, "this machine")) == 1


async def test_a_clock_that_goes_wrong_later(place: Place) -> None:
    """Most of those asked must disagree, and as many as are wanted: the other machine may be the one that is wrong."""
    ahead = [0.0]
    _, first = await place.add()
    _, second = await place.add()
    _, node = await place.add(clock=lambda: time.time() + ahead[0])
    both = [first.peer_id, second.peer_id]
    await node.meet(second.peer_id, await second.addresses())
    assert await node.compare_clocks(both, 1)
    ahead[0] = -90.0
    with pytest.raises(ClockOff, match="90 s behind that of 2 nodes asked"):
        await node.compare_clocks(both, 2)
    assert await node.compare_clocks(both[:1], 2), "one alone proves nothing"
    assert await first.compare_clocks([second.peer_id, node.peer_id], 2), "most agree with it"
    assert not await node.compare_clocks([], 1)


async def test_a_clock_that_is_off_by_1_s_is_borne(place: Place) -> None:
    await place.add()
    await place.add(clock=lambda: time.time() + 1)


async def test_a_stranger_that_opens_streams(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """It connects, sends a frame, and asks for what peers give each other: nothing of that comes through.

    Another that shows an admission is served, though the organiser's node knows nothing of it."""
    _, node = await place.add()
    node.serve("chain-status", lambda: b"standing")
    place.stand_guard(node)
    heard, refusals = Heard(), Heard()
    node.streams.listen(lambda sender, frame: heard.add(sender))
    node.refusals.hear = lambda *told: refusals.add(told)
    stranger, strange = await place.add()
    strange.streams.send(node.peer_id, b"frame")
    assert await strange.ask(node.peer_id, "chain-status", HANG_S) is None
    await refusals.something()
    member, known = await place.add()
    known.serve(ADMISSION, issue_admission(place.organiser, RUN, member.peer_id).to_bytes)
    known.streams.send(node.peer_id, b"frame")
    assert await known.ask(node.peer_id, "chain-status", HANG_S) == b"standing"
    await heard.something()
    assert set(heard.all) == {member.peer_id}
    assert len(refused(caplog, RejectCode.STRANGER, stranger.peer_id)) == 1, "said once, not for each stream"


# ---- and what belongs to them ----


async def test_a_stranger_that_was_there_first_is_shown_the_door(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """Its stream was open before this peer knew what the run asks for."""
    _, node = await place.add()
    heard, refusals = Heard(), Heard()
    node.streams.listen(lambda sender, frame: heard.add(frame))
    node.refusals.hear = lambda *told: refusals.add(told)
    stranger, strange = await place.add()
    strange.streams.send(node.peer_id, b"before")
    await heard.something()
    streams = outgoing(strange)
    place.stand_guard(node)
    await ended(streams)
    strange.streams.send(node.peer_id, b"after")
    await refusals.something()
    assert refused(caplog, RejectCode.STRANGER, stranger.peer_id)
    assert heard.all == [b"before"]


async def test_orders_come_through_though_strangers_claim_to_have_newer_ones(place: Place) -> None:
    """In an open run names cost nothing: more of them than are asked at once, all of which sort before the others."""
    await place.add()
    _, node = await place.add()
    guard = place.stand_guard(node, asks=False)
    odd = Identity.generate()
    teller, telling = await place.add()
    telling.serve(ORDERS, sign_quarantine(place.organiser, RUN, 1, {odd.peer_id: "sends noise"}).to_bytes)
    asked: list[str] = []

    async def ask(peer: str, *about: Any) -> bytes | None:
        asked.append(peer)
        return await real_ask(peer, *about) if peer == telling.peer_id else None

    real_ask, node.ask = node.ask, ask  # type: ignore[method-assign]
    for number in range(4 * ASKED_AT_ONCE):
        stranger = Identity.from_seed(number.to_bytes(32, "big"))
        assert guard.takes(stranger.peer_id, head(stranger, orders=2**62))
    guard.takes(teller.peer_id, head(teller, orders=1))
    guard.roster.needed = lambda: {teller.peer_id}
    await guard.hear()
    assert guard.roster.orders.number == 1
    assert asked[0] == place.organiser.peer_id
    assert len(asked) == 1 + ASKED_AT_ONCE


async def test_an_admission_of_somebody_else_opens_nothing(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    _, node = await place.add()
    node.serve("chain-status", lambda: b"standing")
    place.stand_guard(node)
    mallory, liar = await place.add()
    liar.serve(ADMISSION, issue_admission(place.organiser, RUN, Identity.generate().peer_id).to_bytes)
    assert await liar.ask(node.peer_id, "chain-status", HANG_S) is None
    assert any("no admission" in line for line in refused(caplog, RejectCode.STRANGER, mallory.peer_id))


async def test_a_head_of_a_stranger_is_not_listened_to(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """The board is open; who reads it is not."""
    identity, node = await place.add()
    guard = place.stand_guard(node)
    notices = Announcer(node.board, identity, RUN, "", guard=guard)
    for shows in (False, True):
        other = Identity.generate()
        shown = issue_admission(place.organiser, RUN, other.peer_id).to_bytes() if shows else None
        record = sign_record(other, RUN, HEAD, head(other, admission=shown).pack(), time.time() + 60)
        assert await node.board.publish(HEAD, record, 60)
        assert (other.peer_id in await notices.read_heads()) is shows
        assert len(refused(caplog, RejectCode.STRANGER, other.peer_id)) == (not shows)


async def test_a_peer_in_quarantine_is_shut_out_until_that_is_lifted(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """In an open run, by a peer that has heard of it from another peer, while the organiser's node is not asked.

    While a round needs the peer it is served; then its stream ends at once."""
    _, node = await place.add()
    node.serve("chain-status", lambda: b"standing")
    guard = place.stand_guard(node, asks=False)
    changes: list[tuple[int, int]] = []
    guard.changed = lambda orders, before: changes.append((before.number, orders.number))
    teller, telling = await place.add()
    odd, oddly = await place.add()
    assert await oddly.ask(node.peer_id, "chain-status", HANG_S) == b"standing"
    heard = Heard()
    node.streams.listen(lambda sender, frame: heard.add(sender))
    oddly.streams.send(node.peer_id, b"frame")
    await heard.something()
    streams = outgoing(oddly)

    said = [sign_quarantine(place.organiser, RUN, 1, {odd.peer_id: "sends noise"})]

    async def give(peer: str, request: bytes) -> bytes | None:
        return said[0].to_bytes()

    telling.answer(ORDERS, give)
    guard.takes(teller.peer_id, head(teller, orders=1))
    guard.roster.needed = lambda: {odd.peer_id}
    await guard.hear()
    guard.show_out()
    assert await oddly.ask(node.peer_id, "chain-status", HANG_S) == b"standing"
    guard.roster.needed = tuple
    guard.show_out()
    assert await oddly.ask(node.peer_id, "chain-status", HANG_S) is None
    (line,) = refused(caplog, RejectCode.QUARANTINE, odd.peer_id) or [""]
    assert "sends noise" in line
    await ended(streams)
    heard.all.clear()
    answers = Heard()

    async def lets_in(peer: str) -> bool:
        answers.add(await guard.lets_in(peer))
        return bool(answers.all[-1])

    node.guard(lets_in, OPEN)
    oddly.streams.send(node.peer_id, b"frame")
    await answers.something()
    assert (answers.all[0], heard.all) == (False, [])
    assert not guard.takes(odd.peer_id, head(odd))

    said[0] = sign_quarantine(place.organiser, RUN, 2, {})
    guard.takes(teller.peer_id, head(teller, orders=2))
    await guard.hear()
    assert changes == [(0, 1), (1, 2)]
    assert await oddly.ask(node.peer_id, "chain-status", HANG_S) == b"standing"


async def test_orders_that_the_organiser_did_not_sign_are_obeyed_by_nobody(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    identity, node = await place.add()
    guard = place.stand_guard(node, asks=False)
    mallory, liar = await place.add()
    liar.serve(ORDERS, sign_quarantine(mallory, RUN, 7, {identity.peer_id: "in my way"}).to_bytes)
    guard.takes(mallory.peer_id, head(mallory, orders=7))
    await guard.hear()
    assert guard.roster.orders.number == 0
    assert len(refused(caplog, RejectCode.ORGANISER, mallory.peer_id)) == 1


async def test_no_token_and_no_organiser_are_told_apart(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a token nobody is asked; without the organiser's node the newcomer is told to come again."""
    await place.add()
    identity, newcomer = await place.add()
    with pytest.raises(NotAdmitted, match="holds no token"):
        await find_admission(newcomer, place.invite(), tmp_path, identity.peer_id, Pipe())
    monkeypatch.setattr("peer.network.link.gatekeeper.PATIENCE_S", 0.2)
    with pytest.raises(Unreachable, match="only the organiser's node admits newcomers"):
        await find_admission(newcomer, place.invite(token=b"t"), tmp_path, identity.peer_id, Pipe())


async def test_who_was_admitted_needs_the_organiser_never_again(place: Place, tmp_path: Path) -> None:
    await place.add()
    identity, newcomer = await place.add()
    admission = issue_admission(place.organiser, RUN, identity.peer_id)
    (tmp_path / "admission").write_bytes(admission.to_bytes())
    assert await find_admission(newcomer, place.invite(), tmp_path, identity.peer_id, Pipe()) == admission


def test_every_code_has_its_own_word() -> None:
    assert len({str(code) for code in RejectCode}) == len(RejectCode)
    assert logging.getLogger("dht.access").propagate


async def test_who_only_watches_an_invited_run_is_told_where_to_look(tmp_path: Path) -> None:
    """It has read the spec, which is no secret; everything else is for members."""
    spec = replace(SPEC, admission=specs.AdmissionTable(policy="invited"))
    assert specs.parse(specs.dump(spec)) == spec
    organiser = Identity.load_or_create(tmp_path / "0" / "identity.key")
    config = NetworkConfig(
        run=spec.digest(), identity_path=tmp_path / "0" / "identity.key", socket_folder=tmp_path / "0" / "run",
        listen=LOOPBACK,
    )  # fmt: skip
    async with open_node(config) as node:
        node.serve("spec", specs.dump(spec).encode)
        text = issue(organiser, run="micro", spec_hash=spec.digest(), addrs=await node.addresses(), token=b"t")
        (tmp_path / "watch").mkdir()
        with pytest.raises(NotAdmitted, match="homefires attach"):
            await watch_session.story(parse(text, time.time()), tmp_path / "watch", Reporter(lambda event: None))


def test_asking_for_an_admission_makes_another_run() -> None:
    assert replace(SPEC, admission=specs.AdmissionTable(policy="invited")).digest() != SPEC.digest()
