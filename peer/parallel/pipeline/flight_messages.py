"""Messages between the stages of a cluster while they train. Their frames begin with byte 0.

A flight is a micro-batch on its way: forward from stage to stage, and back with gradients. Flights of a step are
numbered from 0, and every stage computes them in this order, so that a step has the same bits whatever was lost and
sent again. Frames between two homes keep their order. So when a sweep returns that was sent after some flights, those
of them that have not returned were lost.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

KIND = 0
MAX_FRAME_BYTES = 256 << 20

Count = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Size = Annotated[int, Meta(ge=1, le=1 << 20)]
Payload = Annotated[bytes, Meta(max_length=MAX_FRAME_BYTES)]
Figure = Annotated[float, Meta(ge=0, le=1e15)]


class FlightMessage(Struct, frozen=True, tag=True, forbid_unknown_fields=True, kw_only=True):
    """The base of all flight messages. A message of an old epoch, or of a step that was given up, is dropped."""

    epoch: Count
    """The epoch of the assignment."""
    step: Count
    """The lead's number for a step, or for anything else that it has all stages do together."""


class Forward(FlightMessage, frozen=True, kw_only=True):
    """To the next stage: a micro-batch with the hidden values computed so far."""

    number: Count
    """The number of the flight in this step."""
    round: Count
    """The round of the anchor at which all stages must be."""
    rows: Size
    columns: Size
    """The inputs of a sequence: one fewer than its tokens."""
    whole: Size
    """The sequences of the whole step, by which the loss is weighted."""
    tokens: Payload
    """(rows, columns + 1) as little-endian int32 with flags (`peer.training.data.chat.token_flags`); the last stage
    derives its labels from them."""
    hidden: Payload
    """(rows, columns, width), encoded."""
    measures: bool = False
    """Whether only the anchor's loss is wanted, summed over tokens."""


class FlightBack(FlightMessage, frozen=True, kw_only=True):
    """To the previous stage: the gradient of what it sent, and the loss; for a measurement only the loss."""

    number: Count
    loss: float
    """The flight's share of the step's mean loss, in nats per token; for a measurement the sum over tokens."""
    gradient: Payload


class AskNorm(FlightMessage, frozen=True, kw_only=True):
    """From the lead to all: every flight of the step has come back."""


class SquareNorm(FlightMessage, frozen=True, kw_only=True):
    """To the lead: the squared norm of all gradients of this stage."""

    square: Figure


class Sweep(FlightMessage, frozen=True, kw_only=True):
    """To the next stage, after the flights; the last stage returns it."""

    number: Count


class Swept(FlightMessage, frozen=True, kw_only=True):
    """To the previous stage, after all answers."""

    number: Count


class Alive(FlightMessage, frozen=True, kw_only=True):
    """To the lead, when a sweep passes: how many flights of the step were computed forward, and how many backward."""

    forwards: Count
    backwards: Count


class Garbage(FlightMessage, frozen=True, kw_only=True):
    """To the lead: a neighbour sent something that cannot have been computed honestly."""

    peer: Annotated[str, Meta(max_length=128)]
    why: Annotated[str, Meta(max_length=400)]


class AskShares(FlightMessage, frozen=True, kw_only=True):
    """From the lead to all: what do the first two flights of this step say of your gradients?"""


class Shares(FlightMessage, frozen=True, kw_only=True):
    """To the lead: the change of the loss that this stage's gradient promises, and the one that it passes on
    (`peer.parallel.pipeline.flight_shares`)."""

    promised: float
    passed: float


class EndStep(FlightMessage, frozen=True, kw_only=True):
    """From the lead to all: multiply the gradients by `scale`, and make the optimizer's step."""

    scale: Figure
    learning_rate: Figure
    loss: float
    tokens: Count


class Finished(FlightMessage, frozen=True, kw_only=True):
    """To the lead: the step is done."""

    busy_s: Figure = 0.0
    """The seconds of computing that this stage needed in the step."""


class StageFull(FlightMessage, frozen=True, kw_only=True):
    """To the lead: this stage has too little memory for the step, and has kept nothing of it."""


class NotThere(FlightMessage, frozen=True, kw_only=True):
    """To the lead: this home is at another anchor, that of `round`."""

    round: Count


class GiveUpStep(FlightMessage, frozen=True, kw_only=True):
    """From the lead to all: nothing of this step counts."""


class Stand(FlightMessage, frozen=True, kw_only=True):
    """From the lead to all: put the anchor's values into the model, or restore your own."""

    where: Literal["anchor", "own"]
    round: Count


class MatrixRows(FlightMessage, frozen=True, kw_only=True):
    """From the lead to the last stage: a piece of the matrix that both hold, encoded."""

    number: Count
    values: Payload


class RowsHere(FlightMessage, frozen=True, kw_only=True):
    """From the last stage to the lead: this piece of the matrix has come."""

    number: Count


class AskRows(FlightMessage, frozen=True, kw_only=True):
    """From the lead to the last stage, when all flights have come back: the gradient of a piece of that matrix?"""

    number: Count


class GradientRows(FlightMessage, frozen=True, kw_only=True):
    """From the last stage to the lead: the gradient of a piece of that matrix, encoded."""

    number: Count
    values: Payload


AnyFlight = (
    Forward | FlightBack | Sweep | Swept | Alive | Garbage | AskNorm | SquareNorm | EndStep | Finished | StageFull
    | NotThere | GiveUpStep | Stand | MatrixRows | RowsHere | AskRows | GradientRows | AskShares | Shares
)  # fmt: skip

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[AnyFlight] = msgspec.msgpack.Decoder(AnyFlight)


class BadFlight(ValueError):
    """The bytes are not a flight message, or the message does not fit."""


def encode_flight(message: AnyFlight) -> bytes:
    return bytes((KIND,)) + _encoder.encode(message)


def decode_flight(frame: bytes | memoryview) -> AnyFlight:
    """Raises BadFlight for anything that is not a flight message."""
    if len(frame) > MAX_FRAME_BYTES or len(frame) < 2 or frame[0] != KIND:
        raise BadFlight(f"{len(frame)} bytes are no message of a flight")
    try:
        return _decoder.decode(memoryview(frame)[1:])
    except (ValueError, RecursionError) as error:
        raise BadFlight(str(error)) from error
