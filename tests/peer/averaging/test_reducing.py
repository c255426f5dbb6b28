"""A reducer: keeps parts, averages them, stores the mean, forgets."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

import numpy as np
import pytest

from peer.averaging.codec import Codec, Floats
from peer.averaging.reducing import Reducer
from peer.rounds.effects import Keep, Reduce
from peer.rounds.messages import Place
from peer.rounds.names import digest_of
from tests.peer.rounds.build import place

CODEC = Codec("float16")


class Objects:
    """A disk that is never slow."""

    def __init__(self) -> None:
        self.stored: dict[bytes, bytes] = {}

    def store(self, digest: bytes, payload: bytes, done: Callable[[], None]) -> None:
        self.stored[digest] = payload
        done()


def encoded(*values: float) -> bytes:
    return CODEC.encode(np.array(values, np.float32))


def keep(reducer: Reducer, sender: str, payload: bytes, where: Place | None = None) -> None:
    reducer.keep(Keep(where or place(), sender, 0, payload))


def test_the_mean_is_stored_under_its_digest_and_told_on_the_loop() -> None:
    """Computed in the executor from the encoded bytes, encoded once."""
    objects, calls, done = Objects(), SimpleQueue[Callable[[], None]](), []
    with ThreadPoolExecutor(1) as executor:
        reducer = Reducer(CODEC, objects, executor, calls.put)
        keep(reducer, "p0", encoded(1, 2))
        keep(reducer, "p1", encoded(3, 6))
        reducer.reduce(Reduce(place(), 0, 0b11, ("p0", "p1"), (3, 1)), done.append)
        assert done == []
        calls.get(timeout=10.0)()
    mean: Floats = np.array([1.5, 3.0], np.float32)
    assert objects.stored == {digest_of(CODEC.encode(mean)): CODEC.encode(mean)}
    assert done == list(objects.stored)


def test_kept_parts_do_not_outlive_their_round_or_ballot() -> None:
    """Otherwise every failed ballot would keep the bytes of a model."""
    with ThreadPoolExecutor(1) as executor:
        reducer = Reducer(CODEC, Objects(), executor, lambda call: call())
        keep(reducer, "p0", encoded(1))
        keep(reducer, "p0", encoded(2), place(1))
        keep(reducer, "p1", encoded(2), place(1))
        assert len(reducer._kept) == 2
        with pytest.raises(KeyError):
            reducer.reduce(Reduce(place(0), 0, 1, ("p0",), (1,)), lambda digest: None)
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
            reducer = Reducer(codec, Objects(), executor, calls.put)
            for name in arrival:
                keep(reducer, name, payloads[name])
            reducer.reduce(Reduce(place(), 0, 0b111, names, weights, attempt), digests.append)
            calls.get(timeout=10.0)()
    assert digests[0] == digests[1]


def test_what_is_reduced_a_second_time_stays_as_evidence() -> None:
    """With the path that binds it to what its giver signed; what is reduced at first is not kept twice in memory."""
    with ThreadPoolExecutor(1) as executor:
        calls = SimpleQueue[Callable[[], None]]()
        reducer = Reducer(CODEC, Objects(), executor, calls.put)
        for attempt, left in ((1, ((b"path",), encoded(1))), (0, None)):
            reducer.keep(Keep(place(), "p0", 0, encoded(1), (b"path",)))
            reducer.reduce(Reduce(place(), 0, 1, ("p0",), (1,), attempt), lambda digest: None)
            calls.get(timeout=10.0)()
            assert reducer.kept(place(), "p0", 0) == left
