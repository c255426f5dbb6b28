"""Messages of flights, and bytes that are none."""

from __future__ import annotations

import random

import msgspec
import pytest

from peer.parallel.pipeline.flight_messages import (
    Alive,
    AnyFlight,
    AskNorm,
    BadFlight,
    EndStep,
    Finished,
    FlightBack,
    Forward,
    Garbage,
    GiveUpStep,
    NotThere,
    SquareNorm,
    StageFull,
    Stand,
    Sweep,
    Swept,
    decode_flight,
    encode_flight,
)

ALL: list[AnyFlight] = [
    Forward(
        epoch=1, step=2, number=3, round=4, rows=2, columns=3, whole=8, tokens=bytes(32), hidden=b"123", measures=True
    ),
    FlightBack(epoch=1, step=2, number=3, loss=0.5, gradient=b"123"),
    Sweep(epoch=1, step=2, number=9),
    Swept(epoch=1, step=2, number=9),
    Alive(epoch=1, step=2, forwards=3, backwards=1),
    Garbage(epoch=1, step=2, peer="second", why="zeros"),
    AskNorm(epoch=1, step=2),
    SquareNorm(epoch=1, step=2, square=1.5),
    EndStep(epoch=1, step=2, scale=0.5, learning_rate=1e-3, loss=2.5, tokens=256),
    Finished(epoch=1, step=2, busy_s=0.25),
    StageFull(epoch=1, step=2),
    NotThere(epoch=1, step=2, round=3),
    GiveUpStep(epoch=1, step=2),
    Stand(epoch=1, step=2, where="anchor", round=3),
]  # fmt: skip


@pytest.mark.parametrize("message", ALL, ids=lambda message: type(message).__name__)
def test_a_message_comes_back_as_it_was(message: AnyFlight) -> None:
    frame = encode_flight(message)
    assert frame[0] == 0
    assert decode_flight(frame) == decode_flight(memoryview(frame)) == message


def test_spoilt_frames_are_refused_and_nothing_else_happens() -> None:
    chance, refused = random.Random(5), 0
    for _ in range(3000):
        frame = bytearray(encode_flight(chance.choice(ALL)))
        for _ in range(chance.randint(1, 4)):
            frame[chance.randrange(len(frame))] = chance.randrange(256)
        try:
            decode_flight(bytes(frame[: chance.randint(0, len(frame))]) if chance.random() < 0.3 else bytes(frame))
        except BadFlight:
            refused += 1
    assert refused > 1000


@pytest.mark.parametrize(
    "fields",
    [
        {"type": "SquareNorm", "epoch": 1, "step": 2, "square": -1.0},
        {"type": "SquareNorm", "epoch": 1, "step": 2, "square": float("nan")},
        {"type": "SquareNorm", "epoch": 1, "step": 2, "square": float("inf")},
        {"type": "SquareNorm", "epoch": -1, "step": 2, "square": 1.0},
        {"type": "AskNorm", "epoch": 1, "step": 1 << 63},
        {"type": "Garbage", "epoch": 1, "step": 2, "peer": "x" * 129, "why": ""},
        {"type": "Garbage", "epoch": 1, "step": 2, "peer": "x", "why": "y" * 401},
        {"type": "Stand", "epoch": 1, "step": 2, "where": "elsewhere", "round": 1},
        {"type": "StageFull", "epoch": 1, "step": 2, "more": 1},
        {"type": "Shutdown", "epoch": 1, "step": 2},
    ],
)
def test_what_is_out_of_bounds_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(BadFlight):
        decode_flight(b"\0" + msgspec.msgpack.encode(fields))
