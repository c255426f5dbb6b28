"""A reducer: keeps parts, averages them, stores the mean with its rows, forgets; and whoever checks one."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

import numpy as np
import pytest

from peer.consensus.codec import rows
from peer.consensus.codec.codec import Codec, Floats
from peer.consensus.codec.topk import CHUNK
from peer.consensus.protocol.block import VOID, WEIGHT_ONE
from peer.consensus.protocol.encoding import digest_of
from peer.consensus.protocol.messages import BallotId
from peer.consensus.protocol.norms import PartNorms
from peer.consensus.rounds.interface import NORM, ROW, SUM, BufferPart, CheckMean, CheckRow, ReducePart
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


def reduction(weights: tuple[int, ...], **more: int | bytes) -> ReducePart:
    names = ("p0", "p1")[: len(weights)]
    declared = (8.0,) * len(names)
    return ReducePart(place(), 0, 0b11, names, weights, rows=names, declared=declared, **more)  # type: ignore[arg-type]


def test_the_mean_is_stored_under_its_digest_and_told_on_the_loop() -> None:
    """Computed in the executor from the encoded bytes, encoded once."""
    objects, calls, done = Objects(), SimpleQueue[Callable[[], None]](), []
    with ThreadPoolExecutor(1) as executor:
        reducer = ReductionWorker(CODEC, objects, executor, calls.put)
        keep(reducer, "p0", encoded(1, 2))
        keep(reducer, "p1", encoded(3, 6))
        reducer.reduce(reduction((3, 1)), done.append)
        assert done == []
        calls.get(timeout=HANG_S)()
    mean: Floats = np.array([1.5, 3.0], np.float32)
    assert done == list(objects.stored)
    ((name, whole),) = objects.stored.items()
    assert digest_of(whole) == name
    encoded_mean, shown = rows.taken_apart(whole, 2)
    assert encoded_mean == CODEC.encode(mean)
    sketch = rows.Sketch.drawn(place().anchor, 0, encoded_mean, 2)
    assert shown == b"".join(rows.row_of(sketch.of(np.array(each, np.float32)), 8.0) for each in ((1, 2), (3, 6)))


def test_kept_parts_do_not_outlive_their_round_or_ballot() -> None:
    """Otherwise every failed ballot would keep the bytes of a model."""
    with ThreadPoolExecutor(1) as executor:
        reducer = ReductionWorker(CODEC, Objects(), executor, lambda call: call())
        keep(reducer, "p0", encoded(1))
        keep(reducer, "p0", encoded(2), place(1))
        keep(reducer, "p1", encoded(2), place(1))
        assert len(reducer._kept) == 2
        with pytest.raises(KeyError):
            reducer.reduce(reduction((1,)), lambda digest: None)
        reducer.forget()
        assert reducer._kept == {}


@pytest.mark.parametrize("wire", ["float32", "float16", "int8", "int4"])
@pytest.mark.parametrize("weights", [(1, 1, 1), (65_000, 535, 1)])
def test_a_second_reduction_gives_the_same_bytes(wire: str, weights: tuple[int, ...]) -> None:
    """On another reducer, from parts that came in another order: whoever repairs a part makes the same mean."""
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
            reducer.reduce(
                ReducePart(place(), 0, 0b111, names, weights, attempt, rows=names, declared=(72.0,) * 3), digests.append
            )
            calls.get(timeout=HANG_S)()
    assert digests[0] == digests[1]


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
    """The stored mean, without its rows, or nothing."""
    calls, done = SimpleQueue[Callable[[], None]](), list[bytes]()
    with ThreadPoolExecutor(1) as executor:
        reducer = ReductionWorker(CODEC, objects, executor, calls.put)
        for name, payload in parts.items():
            keep(reducer, name, payload)
        reducer.reduce(effect, done.append)
        calls.get(timeout=HANG_S)()
    return [rows.taken_apart(objects.stored[digest], len(effect.rows))[0] for digest in done]


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


# ---- whoever checks a mean ----

GIVEN = {"p0": encoded(4, 0), "p1": encoded(0, 4), "p2": encoded(6, -2)}
"""The third is behind the mean, and weighs nothing in it."""


class Checked:
    """A mean of three, and what its checks say."""

    def __init__(self, objects: Objects | None = None, **more: int | bytes) -> None:
        self.objects, self.more, self.done = objects or Objects(), more, list[bytes]()
        self.weights = {"p0": 2, "p1": 1, "p2": 0}
        effect = ReducePart(
            place(), 0, 0b111, ("p0", "p1"), (2, 1), rows=tuple(GIVEN), declared=(8.0,) * 3, **more,  # type: ignore[arg-type]
        )  # fmt: skip
        self.on_worker(lambda reducer: reducer.reduce(effect, self.done.append), **GIVEN)
        self.whole = self.objects.stored[self.done[0]]

    def on_worker(self, call: Callable[[ReductionWorker], None], **parts: bytes) -> None:
        calls = SimpleQueue[Callable[[], None]]()
        with ThreadPoolExecutor(1) as executor:
            reducer = ReductionWorker(CODEC, self.objects, executor, calls.put)
            for name, payload in parts.items():
                keep(reducer, name, payload)
            call(reducer)
            calls.get(timeout=HANG_S)()

    def fault(
        self, whole: bytes | None = None, me: str = "", mine: bytes | None = None, declared: float = 8.0,
        **more: int | bytes,
    ) -> str:  # fmt: skip
        said = list[str]()
        effect = CheckMean(
            b"", 0, 0b111, tuple(GIVEN), tuple(self.weights.values()), (declared,) * 3, place().anchor,
            **(self.more | more),  # type: ignore[arg-type]
        )  # fmt: skip
        self.on_worker(lambda reducer: reducer.check(effect, me, whole or self.whole, mine, said.append))
        return said[0]

    def row_is_right(self, rank: int, payload: bytes) -> bool:
        said = list[bool]()
        effect = CheckRow("", b"", 0, 0b111, rank, payload, 8.0, place().anchor)
        self.on_worker(lambda reducer: reducer.check_row(effect, self.whole, said.append))
        return said[0]


def test_an_honest_mean_stands_every_check() -> None:
    """Also one that is scaled, pulled, or of whom somebody did not come."""
    objects, last = with_last(8, -8)
    for made in (
        Checked(),
        Checked(scale=WEIGHT_ONE // 2),
        Checked(objects, pull=2, direction=last),
        Checked(missing=3),
    ):
        assert [made.fault(me=name, mine=payload) for name, payload in GIVEN.items()] == ["", "", ""]
        assert all(made.row_is_right(rank, payload) for rank, payload in enumerate(GIVEN.values()))


def test_a_mean_that_its_rows_do_not_come_to_is_found_by_everybody() -> None:
    """Other bytes, another weight, another scale, a pull that was left out; and a row that is no number."""
    made, mean = Checked(), CODEC.encode(np.array([-2.7, -1.3], np.float32))
    assert made.fault(mean + made.whole[len(mean) :]) == SUM
    nan = np.full(rows.BUCKETS, np.nan, "<f2").tobytes()
    assert made.fault(made.whole[: len(mean)] + nan + made.whole[len(mean) + len(nan) :]) == SUM
    assert made.fault(scale=WEIGHT_ONE // 2) == SUM
    assert made.fault(missing=5) == SUM
    made.weights["p0"] = 1
    assert made.fault() == SUM
    objects, last = with_last(8, -8)
    assert Checked(objects).fault(pull=2, direction=last) == SUM


def test_where_the_last_mean_is_not_known_its_sum_is_not_looked_at() -> None:
    """Of who came later: its own row is."""
    objects, last = with_last(8, -8)
    made = Checked(objects, pull=2, direction=last)
    assert made.fault(pull=-1) == ""
    assert made.fault(pull=-1, me="p0", mine=encoded(5, 0)) == ROW


def test_a_row_about_me_that_is_of_other_bytes_is_found_by_me_and_by_whom_i_show_mine() -> None:
    made = Checked()
    assert made.fault(me="p1", mine=encoded(0, 5)) == ROW
    assert not made.row_is_right(1, encoded(0, 5))
    assert not made.row_is_right(0, GIVEN["p1"])


def test_whoever_says_that_other_numbers_of_members_are_behind_a_mean_proves_nothing() -> None:
    """Nor does who shows another part. What is left of the mean may be no whole units, which ended whoever looked."""
    for codec in map(Codec, ("float32", "float16", "int8", "int4", "sparse")):
        objects, said, calls = Objects(), list[bool](), SimpleQueue[Callable[[], None]]()
        whole = codec.of_means.encode(np.ones(2 * CHUNK, np.float32)) + bytes(3 * rows.ROW_BYTES)
        with ThreadPoolExecutor(1) as executor:
            reducer = ReductionWorker(codec, objects, executor, calls.put)
            for bits, elements in ((0b1, 2), (0b1111, 2), ((1 << 64) - 1, 2), (0b111, 1), (0b111, 3)):
                payload = codec.encode(np.ones(elements * CHUNK, np.float32))
                effect = CheckRow("", b"", 0, bits, 0, payload, 8.0, place().anchor)
                reducer.check_row(effect, whole, said.append)
                calls.get(timeout=HANG_S)()
        assert said == [True] * 5


def test_a_row_larger_than_declared_is_found() -> None:
    """Rows are over what was declared: of a quarter of that they would be four times as large."""
    made = Checked()
    mean, shown = rows.taken_apart(made.whole, 3)
    larger = (4 * rows.rows_in(shown)).astype("<f2").tobytes()
    assert made.fault(mean + larger, declared=8.0 / 4) == NORM


@pytest.mark.parametrize("wire", ["float32", "float16", "int8", "int4", "sparse"])
def test_bytes_that_mean_nothing_raise_nothing(wire: str) -> None:
    """Parts and means of the right size are all that members are held to before they are looked at."""
    codec, rng = Codec(wire), np.random.default_rng(1)
    with ThreadPoolExecutor(1) as executor, np.errstate(all="ignore"):
        reducer = ReductionWorker(codec, Objects(), executor, lambda call: call())
        for elements in (1, 5, 640) * 10:
            part = rng.bytes(codec.part_bytes(elements))
            whole = rng.bytes(codec.of_means.part_bytes(elements) + 2 * rows.ROW_BYTES)
            weights, declared = (1, 2), (1.0, 2.0)
            check = CheckMean(VOID, 0, 0b11, ("p0", "p1"), weights, declared, VOID, 0, WEIGHT_ONE, 0, VOID)
            assert reducer._fault_of(check, "p0", whole, part)
            reducer._is_row_right(CheckRow("p0", VOID, 0, 0b11, 0, part, 1.0, VOID), whole)
            reducer._figures(part, VOID)
            reducer._named_mean({"p0": part, "p1": part}, reduction(weights))
