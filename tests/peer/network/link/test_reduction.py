"""A reducer: keeps parts, averages them, stores the mean, forgets."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

import numpy as np
import pytest

from peer.consensus.codec.codec import Codec, Floats
from peer.consensus.protocol.block import VOID, WEIGHT_ONE
from peer.consensus.protocol.encoding import digest_of
from peer.consensus.protocol.messages import BallotId
from peer.consensus.protocol.norms import PartNorms
from peer.consensus.rounds.interface import BufferPart, ReducePart
from peer.network.link.reduction import ReductionWorker
from peer.testing.child_process import HANG_S
from tests.peer.consensus.rounds.build import place

CODEC = Codec("float16")


class Objects:
    """A disk that is never slow."""

    def __init__(self) -> None:
        self.stored: dict[bytes, bytes] = {}

    def store(self, digest: bytes, payload: bytes, done: Callable[[], None]) -> None:
        self.stored[digest] = payload
        done()

    def load(self, digest: bytes) -> bytes | None:
        return self.stored.get(digest)


def encoded(*values: float) -> bytes:
    return CODEC.encode(np.array(values, np.float32))


def keep(reducer: ReductionWorker, sender: str, payload: bytes, where: BallotId | None = None) -> None:
    reducer.keep(BufferPart(where or place(), sender, 0, payload))


def test_the_mean_is_stored_under_its_digest_and_told_on_the_loop() -> None:
    """Computed in the executor from the encoded bytes, encoded once."""
    objects, calls, done = Objects(), SimpleQueue[Callable[[], None]](), []
    with ThreadPoolExecutor(1) as executor:
        reducer = ReductionWorker(CODEC, objects, executor, calls.put)
        keep(reducer, "p0", encoded(1, 2))
        keep(reducer, "p1", encoded(3, 6))
        reducer.reduce(ReducePart(place(), 0, 0b11, ("p0", "p1"), (3, 1)), done.append)
        assert done == []
        calls.get(timeout=HANG_S)()
    mean: Floats = np.array([1.5, 3.0], np.float32)
    assert objects.stored == {digest_of(CODEC.encode(mean)): CODEC.encode(mean)}
    assert done == list(objects.stored)


def test_kept_parts_do_not_outlive_their_round_or_ballot() -> None:
    """Otherwise every failed ballot would keep the bytes of a model."""
    with ThreadPoolExecutor(1) as executor:
        reducer = ReductionWorker(CODEC, Objects(), executor, lambda call: call())
        keep(reducer, "p0", encoded(1))
        keep(reducer, "p0", encoded(2), place(1))
        keep(reducer, "p1", encoded(2), place(1))
        assert len(reducer._kept) == 2
        with pytest.raises(KeyError):
            reducer.reduce(ReducePart(place(0), 0, 1, ("p0",), (1,)), lambda digest: None)
        reducer.forget()
        assert reducer._kept == {}


@pytest.mark.parametrize("wire", ["float32", "float16", "int8", "int4"])
@pytest.mark.parametrize("weights", [(1, 1, 1), (65_000, 535, 1)])
def test_a_second_reduction_gives_the_same_bytes(wire: str, weights: tuple[int, ...]) -> None:
    """On another reducer, from parts that came in another order: an audit can prove a mean wrong."""
    codec, rng = Codec(wire), np.random.default_rng(1)
    names = ("p0", "p1", "p2")
    payloads = {name: codec.encode(rng.standard_normal(5000).astype(np.float32)) for name in names}
    digests: list[bytes] = []
    with ThreadPoolExecutor(2) as executor:
        for attempt, arrival in ((0, names), (1, names[::-1])):
            calls = SimpleQueue[Callable[[], None]]()
            reducer = ReductionWorker(codec, Objects(), executor, calls.put)
            for name in arrival:
                keep(reducer, name, payloads[name])
            reducer.reduce(ReducePart(place(), 0, 0b111, names, weights, attempt), digests.append)
            calls.get(timeout=HANG_S)()
    assert digests[0] == digests[1]


def test_what_is_reduced_a_second_time_stays_as_evidence() -> None:
    """With the path that binds it to what its giver signed; what is reduced at first is not kept twice in memory."""
    with ThreadPoolExecutor(1) as executor:
        calls = SimpleQueue[Callable[[], None]]()
        reducer = ReductionWorker(CODEC, Objects(), executor, calls.put)
        for attempt, left in ((1, ((b"path",), encoded(1))), (0, None)):
            reducer.keep(BufferPart(place(), "p0", 0, encoded(1), (b"path",)))
            reducer.reduce(ReducePart(place(), 0, 1, ("p0",), (1,), attempt), lambda digest: None)
            calls.get(timeout=HANG_S)()
            assert reducer.kept(place(), "p0", 0) == left


# ---- measuring, and what the judge says ----


def with_last(*values: float, codec: Codec = CODEC) -> tuple[Objects, bytes]:
    """A disk that has the last committed mean, and its digest."""
    objects, payload = Objects(), codec.encode(np.array(values, np.float32))
    objects.stored[digest_of(payload)] = payload
    return objects, digest_of(payload)


def measured(codec: Codec, objects: Objects, payload: bytes, direction: bytes = VOID) -> PartNorms:
    """As the executor finds it and the loop is told."""
    calls, found = SimpleQueue[Callable[[], None]](), list[PartNorms]()
    with ThreadPoolExecutor(1) as executor:
        ReductionWorker(codec, objects, executor, calls.put).measure(payload, direction, found.append)
        assert found == []
        calls.get(timeout=HANG_S)()
    (figures,) = found
    return figures


def test_a_part_is_measured_by_what_its_bytes_come_to() -> None:
    """The square of its norm, and its inner product with the last mean, if that is here."""
    objects, last = with_last(2, 0, -1)
    assert measured(CODEC, objects, encoded(1, 2, 2), last) == PartNorms(9.0, 0.0, 5.0)
    assert measured(CODEC, objects, encoded(3, 0, 1), last) == PartNorms(10.0, 5.0, 5.0)
    assert measured(CODEC, objects, encoded(3, 0, 1)) == PartNorms(10.0)
    assert measured(CODEC, objects, encoded(3, 0, 1), digest_of(b"gone")) == PartNorms(10.0)


@pytest.mark.parametrize("wire", ["float32", "float16", "int8", "int4"])
@pytest.mark.parametrize("fill", [b"\xff", b"\x7f", b"\x80", b"\x00"])
def test_any_bytes_can_be_measured(wire: str, fill: bytes) -> None:
    """NaN, infinities and the largest numbers: figures come, whatever they are, and no warning."""
    codec = Codec(wire)
    objects, last = with_last(*[1.0] * 70, codec=codec)
    found = measured(codec, objects, fill * codec.part_bytes(70), last)
    assert isinstance(found.square, float)
    assert isinstance(found.dot, float)
    assert found.direction == pytest.approx(70.0, rel=0.02)


def mean_of(effect: ReducePart, objects: Objects, **parts: bytes) -> list[bytes]:
    """The stored mean, or nothing."""
    calls, done = SimpleQueue[Callable[[], None]](), list[bytes]()
    with ThreadPoolExecutor(1) as executor:
        reducer = ReductionWorker(CODEC, objects, executor, calls.put)
        for name, payload in parts.items():
            keep(reducer, name, payload)
        reducer.reduce(effect, done.append)
        calls.get(timeout=HANG_S)()
    return [objects.stored[digest] for digest in done]


def reduction(weights: tuple[int, ...], **more: int | bytes) -> ReducePart:
    names = ("p0", "p1")[: len(weights)]
    return ReducePart(place(), 0, 0b11, names, weights, **more)  # type: ignore[arg-type]


def test_a_mean_is_scaled_and_pulled_as_the_judge_says() -> None:
    """c · (Σ w·x + p·v) / (Σ w + p); without a last mean v is zero."""
    objects, last = with_last(8, -8)
    parts = {"p0": encoded(4, 0), "p1": encoded(0, 4)}
    half = WEIGHT_ONE // 2
    assert mean_of(reduction((1, 1), scale=half), objects, **parts) == [encoded(1, 1)]
    assert mean_of(reduction((1, 1), pull=2, direction=last), objects, **parts) == [encoded(5, -3)]
    assert mean_of(reduction((1, 1), pull=2), objects, **parts) == [encoded(1, 1)]
    assert mean_of(reduction((1, 1), direction=last), objects, **parts) == [encoded(2, 2)]


def test_without_the_mean_that_it_needs_a_reducer_says_nothing() -> None:
    """Another has it: to count without would look like a lie."""
    assert mean_of(reduction((1,), pull=1, direction=digest_of(b"gone")), Objects(), p0=encoded(1)) == []


def test_what_is_not_finite_is_left_out_of_a_mean() -> None:
    """Where the coordinator has no norms of it a repair may be given some; if nothing else is there, there is none."""
    nan, fine = CODEC.encode(np.array([np.nan, 1], np.float32)), encoded(1, 2)
    assert mean_of(reduction((3, 1)), Objects(), p0=nan, p1=fine) == [fine]
    assert mean_of(reduction((3, 1)), Objects(), p0=nan, p1=nan) == []


def test_a_last_mean_is_decoded_once_and_forgotten_with_its_round() -> None:
    """Every member's part is compared with it."""
    objects, last = with_last(1, 2)
    loads = []
    load, found = objects.load, list[PartNorms]()
    objects.load = lambda digest: (loads.append(digest), load(digest))[1]  # type: ignore[method-assign, func-returns-value]
    calls = SimpleQueue[Callable[[], None]]()
    with ThreadPoolExecutor(1) as executor:
        reducer = ReductionWorker(CODEC, objects, executor, calls.put)
        for forgotten in (False, True):
            for _ in range(3):
                reducer.measure(encoded(1, 1), last, found.append)
                calls.get(timeout=HANG_S)()
            assert len(loads) == 1 + forgotten
            reducer.forget()
    assert found == [PartNorms(2.0, 3.0, 5.0)] * 6
