"""A worker's hands: what it does for its lead, and what nobody gets it to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from peer.consensus.delegates.delegate_driver import FETCHES_MOST, MEANS_MOST
from peer.consensus.delegates.worker_messages import (
    CompareMean,
    FetchMeans,
    GiveMean,
    GiveObjects,
    GiveParts,
    GiveRow,
    MeanCompared,
    MeanHeld,
    MeasureShare,
    ShareMeasured,
    WorkerRequest,
    decode_request,
    encode_request,
    is_order,
)
from peer.consensus.protocol.encoding import digest_of
from peer.consensus.protocol.messages import (
    BallotId,
    GetObjects,
    MeanData,
    Message,
    ObjectData,
    PartData,
    RowDispute,
    decode,
    encode,
)
from peer.consensus.rounds.interface import ROW, SUM
from peer.testing.memory_cluster import LogicalLead, LogicalWorker
from peer.testing.memory_peer import ModelKeys, decoded, encoded
from peer.testing.memory_swarm import World

LEAD, WORKER, LAYER = "p0", "p0.1", 2
OTHER = "p1"


def whole(number: int) -> bytes:
    """A mean of one contributor, with its row."""
    return encoded(16 * number) + encoded(number)


class Home:
    """A worker in a swarm that has made some rounds, and what it sends from now on."""

    def __init__(self) -> None:
        self.world = World(7, 3, clusters={0: 2})
        self.world.scheduler.run_until(20.0)
        self.lead, self.worker = (self.world.peers[self.world.index[name]] for name in (LEAD, WORKER))
        self.sent: list[tuple[str, WorkerRequest | Message]] = []
        self.world.network.drops = self._note

    def _note(self, sender: str, receiver: str, frame: bytes) -> bool:
        if sender == WORKER:
            self.sent.append((receiver, decode_request(frame) if is_order(frame) else decode(frame)))
        return sender == WORKER

    def hear(self, sender: str, what: WorkerRequest | Message) -> None:
        assert isinstance(self.worker, LogicalWorker)
        self.worker.on_frame(sender, encode_request(what) if isinstance(what, WorkerRequest) else encode(what))
        self.world.scheduler.run_until(self.world.now + 0.01)

    def said(self, kind: type[WorkerRequest | Message]) -> list[tuple[str, WorkerRequest | Message]]:
        return [(to, what) for to, what in self.sent if isinstance(what, kind)]

    @property
    def place(self) -> BallotId:
        head = self.worker.disk.head
        return BallotId(head.anchor, head.instance, 0)

    def mean(self, number: int = 1, reducer: str = OTHER, **changes: object) -> MeanData:
        payload = whole(number)
        mean = MeanData(self.place, 0, LAYER, reducer, 1, digest_of(payload), b"", payload)
        return replace(mean, **changes).signed(ModelKeys(reducer))  # type: ignore[arg-type]


@pytest.fixture
def home() -> Home:
    return Home()


def test_a_mean_of_its_layer_is_stored_and_its_lead_is_told(home: Home) -> None:
    """With the word of its reducer; its own machine knows that the bytes are here."""
    mean = home.mean()
    home.hear(OTHER, mean)
    assert home.worker.disk.load(mean.digest) == mean.payload
    assert home.said(MeanHeld) == [(LEAD, MeanHeld(mean.digest, 16, replace(mean, payload=b"")))]
    assert mean.digest in home.worker.driver.state.held


@pytest.mark.parametrize(
    "spoil", ["digest", "size", "no rows", "rows of others", "layer", "part", "anchor", "unsigned", "empty"]
)
def test_no_other_mean_is_taken(home: Home, spoil: str) -> None:
    """Nothing is written, and nobody is told."""
    honest = home.mean()
    bad: dict[str, Callable[[], MeanData]] = {
        "digest": lambda: home.mean(digest=digest_of(b"another")),
        "size": lambda: home.mean(payload=b"x" * 17, digest=digest_of(b"x" * 17)),
        "no rows": lambda: home.mean(payload=b"x" * 8, digest=digest_of(b"x" * 8)),
        "rows of others": lambda: home.mean(contributors=3),
        "layer": lambda: home.mean(part=LAYER - 1),
        "part": lambda: home.mean(part=65_536),
        "anchor": lambda: home.mean(place=replace(home.place, anchor=bytes(32))),
        "unsigned": lambda: replace(honest, signature=bytes(64)),
        "empty": lambda: home.mean(payload=b"", digest=digest_of(b"")),
    }
    before = dict(home.worker.disk.objects)
    home.hear(OTHER, bad[spoil]())
    assert home.worker.disk.objects == before
    assert home.said(MeanHeld) == []


def test_a_flood_of_means_ends(home: Home) -> None:
    """A few of each voter, and a few of all strangers together: names cost nothing."""
    before = len(home.worker.disk.objects)
    for number in range(50):
        home.hear(OTHER, home.mean(number))
        home.hear(f"x{number}", home.mean(1000 + number, f"x{number}"))
    assert len(home.worker.disk.objects) - before == 2 * MEANS_MOST
    home.hear("p2", home.mean(2000, "p2"))
    assert len(home.worker.disk.objects) - before == 2 * MEANS_MOST + 1


def test_it_sends_the_parts_that_its_lead_orders(home: Home) -> None:
    """With their paths; of layers that it has not, nothing; of an older ballot than the last two, nothing."""
    assert isinstance(home.lead, LogicalLead)
    home.world.network.drops = None
    while home.lead.disk.header(home.worker.disk.head.anchor) is None or not home.worker.disk.contributions:
        home.world.scheduler.run_until(home.world.now + 0.1)
    home.world.network.drops = home._note
    anchor = home.place.anchor
    path = home.lead.disk.my_path(anchor, LAYER)
    assert path is not None
    home.hear(LEAD, GiveParts("p2", home.place, 0, ((LAYER, path), (0, path), (65_535, ()))))
    ((to, part),) = home.said(PartData)
    assert to == "p2"
    mine = home.worker.disk.offered(anchor)
    assert mine is not None
    assert part == PartData(home.place, 0, LAYER, path, mine[LAYER])
    home.hear(LEAD, MeasureShare(anchor, LAYER, b""))
    (measured,) = home.said(ShareMeasured)
    square = float(decoded(mine[LAYER])) ** 2
    assert measured == (LEAD, ShareMeasured(anchor, LAYER, square, 0.0, None))
    home.hear(LEAD, GiveRow(("p1", WORKER, "p2"), home.place, LAYER, bytes(32), 3, path))
    shown = RowDispute(home.place, LAYER, bytes(32), 3, path, mine[LAYER], LEAD)
    assert home.said(RowDispute) == [("p1", shown), ("p2", shown)]


@pytest.mark.parametrize("change", [0, 1, 1 << 20])
def test_it_compares_a_mean_that_its_lead_cannot_see(home: Home, change: int) -> None:
    """With its rows, and the row about us with what we gave; of a mean that is not here it says nothing."""
    home.world.network.drops = None
    while not home.worker.disk.contributions or home.worker.disk.offered(home.worker.disk.head.anchor) is None:
        home.world.scheduler.run_until(home.world.now + 0.1)
    home.world.network.drops = home._note
    mine = home.worker.disk.offered(home.place.anchor)
    assert mine is not None
    value = decoded(mine[LAYER]) + change
    payload = encoded(16 * value) + encoded(value)
    digest = digest_of(payload)
    order = CompareMean(
        digest, LAYER, 1, (LEAD,), (65_536,), (float(abs(value)),), home.place.anchor, 0, 65_536, 0, b"", bytes(32)
    )  # fmt: skip
    home.hear(LEAD, order)
    assert home.said(MeanCompared) == []
    home.worker.disk.objects[digest] = payload
    home.hear(LEAD, order)
    assert home.said(MeanCompared) == [(LEAD, MeanCompared(digest, LAYER, 1, ROW if change else "", bytes(32)))]
    swollen = encoded(16 * value + 64) + encoded(value)
    home.worker.disk.objects[digest_of(swollen)] = swollen
    home.hear(LEAD, replace(order, digest=digest_of(swollen)))
    assert home.said(MeanCompared)[1:] == [(LEAD, MeanCompared(digest_of(swollen), LAYER, 1, SUM, bytes(32)))]


def test_it_fetches_what_its_lead_wants_and_says_so(home: Home) -> None:
    """At once what is there; the rest once somebody gives it."""
    there = next(iter(home.worker.disk.objects))
    payload = whole(77)
    digest = digest_of(payload)
    home.hear(LEAD, FetchMeans(OTHER, (there, digest)))
    assert home.said(MeanHeld) == [(LEAD, MeanHeld(there, len(home.worker.disk.objects[there])))]
    assert home.said(GetObjects) == [(OTHER, GetObjects((digest,)))]
    for bad in (b"x" * 16, b"x" * 17):
        home.hear(OTHER, ObjectData(b"", bad))
    assert len(home.said(MeanHeld)) == 1
    home.hear("p2", ObjectData(b"", payload))
    assert home.said(MeanHeld)[1:] == [(LEAD, MeanHeld(digest, 16))]


def test_it_gives_what_its_lead_was_asked_for(home: Home) -> None:
    """An object, or a mean with its signature; of what it has not, nothing."""
    digest, payload = next(iter(home.worker.disk.objects.items()))
    mean = home.mean(payload=b"", digest=digest)
    home.hear(LEAD, GiveObjects("p2", (digest, bytes(32))))
    home.hear(LEAD, GiveMean("p2", mean))
    home.hear(LEAD, GiveMean("p2", replace(mean, digest=bytes(32))))
    assert [(to, what.payload) for to, what in home.said(ObjectData)] == [("p2", payload)]  # type: ignore[union-attr]
    assert home.said(MeanData) == [("p2", replace(mean, payload=payload))]


@pytest.mark.parametrize("sender", [OTHER, "p0.0", "x0"])
def test_it_obeys_its_lead_alone(home: Home, sender: str) -> None:
    digest = next(iter(home.worker.disk.objects))
    for order in (
        FetchMeans(OTHER, (digest,)), GiveObjects("p2", (digest,)), GiveMean("p2", home.mean(payload=b"")),
        GiveParts("p2", home.place, 0, ((LAYER, ()),)), MeasureShare(home.place.anchor, LAYER, b""),
        MeanHeld(digest, 8),
        GiveRow(("p2",), home.place, LAYER, digest, 1, ()), MeanCompared(digest, LAYER, 1, "", digest),
        CompareMean(digest, LAYER, 1, ("p0",), (1,), (1.0,), home.place.anchor, 0, 0, 0, b"", bytes(32)),
    ):  # fmt: skip
        home.hear(sender, order)
    assert home.sent == []
    assert home.worker.delegate.bad_frames == 9  # type: ignore[attr-defined]


def test_orders_have_bounds_too(home: Home) -> None:
    """What a lead asks for without end takes the place of what it asked for before; orders to itself are none."""
    for number in range(2 * FETCHES_MOST // 1024 + 2):
        digests = tuple(digest_of(f"{number} {index}".encode()) for index in range(1024))
        home.hear(LEAD, FetchMeans(WORKER, digests))
    assert len(home.worker.delegate._fetching) == FETCHES_MOST  # type: ignore[attr-defined]
    home.hear(LEAD, GiveParts(WORKER, home.place, 0, ((LAYER, ()),)))
    home.hear(LEAD, GiveObjects(WORKER, (bytes(32),)))
    assert home.sent == []


@pytest.mark.parametrize("to_lead", [False, True])
def test_no_bytes_stop_a_home(home: Home, to_lead: bool) -> None:
    """Orders and answers with flipped, missing and foreign bytes, from a home of the cluster itself."""
    dice = Random(3)
    mean = home.mean()
    orders: tuple[WorkerRequest, ...] = (
        GiveParts("p2", home.place, 0, ((LAYER, (bytes(32),)),)), MeasureShare(bytes(32), LAYER, bytes(32)),
        FetchMeans(OTHER, (bytes(32),)), GiveObjects("p2", (bytes(32),)), GiveMean("p2", mean),
        MeanHeld(bytes(32), 8, mean), ShareMeasured(home.place.anchor, LAYER, 1.0, 0.5, None),
        CompareMean(bytes(32), LAYER, 1, ("p0",), (1,), (1.0,), bytes(32), 0, 0, 0, b"", bytes(32)),
        GiveRow(("p2",), home.place, LAYER, bytes(32), 1, ()), MeanCompared(bytes(32), LAYER, 1, "false", bytes(32)),
    )  # fmt: skip
    peer, sender = (home.lead, WORKER) if to_lead else (home.worker, LEAD)
    for frame in map(encode_request, orders):
        for _ in range(150):
            broken = bytearray(frame[: dice.randrange(3, len(frame) + 1)])
            for _ in range(dice.randrange(3)):
                broken[dice.randrange(2, len(broken))] = dice.randrange(256)
            peer.on_frame(sender, bytes(broken))
        peer.on_frame(sender, frame)
    home.world.network.drops = None
    before = peer.disk.head.round
    home.world.scheduler.run_until(home.world.now + 20.0)
    assert peer.disk.head.round > before + 1
    home.world.check()
