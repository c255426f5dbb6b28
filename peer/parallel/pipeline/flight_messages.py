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
    """Base of them all. A message of an epoch that is over, or of a step that was given up, is dropped."""

    epoch: Count
    """Of the assignment."""
    step: Count
    """The lead counts its steps, and whatever else it has all stages do together."""


class Forward(FlightMessage, frozen=True, kw_only=True):
    """To the next stage: a micro-batch as far as it was computed."""

    number: Count
    """Of the flight in this step."""
    round: Count
    """Of the anchor where all stages must stand."""
    rows: Size
    columns: Size
    """Inputs of a sequence: one fewer than its tokens."""
    whole: Size
    """Sequences of the whole step: the loss counts by the share of them."""
    tokens: Payload
    """(rows, columns + 1) as little-endian int32 with flags (`peer.training.data.chat.token_flags`): the last stage
    takes its labels from them."""
    hidden: Payload
    """(rows, columns, width), encoded."""
    measures: bool = False
    """Only the loss of the anchor is wanted, summed over tokens."""


class FlightBack(FlightMessage, frozen=True, kw_only=True):
    """To the stage before: the gradient of what it had sent, and the loss; of a measurement the loss alone."""

    number: Count
    loss: float
    """Its share of the step's mean, in nats per token; of a measurement the sum over tokens."""
    gradient: Payload


class AskNorm(FlightMessage, frozen=True, kw_only=True):
    """Lead to all: every flight of the step is back."""


class SquareNorm(FlightMessage, frozen=True, kw_only=True):
    """To the lead: of all gradients of this stage."""

    square: Figure


class Sweep(FlightMessage, frozen=True, kw_only=True):
    """To the next stage, behind the flights; the last one returns it."""

    number: Count


class Swept(FlightMessage, frozen=True, kw_only=True):
    """To the stage before, behind all that was answered."""

    number: Count


class Alive(FlightMessage, frozen=True, kw_only=True):
    """To the lead, when a sweep passes: how many flights of the step were computed forward, and backward."""

    forwards: Count
    backwards: Count


class Garbage(FlightMessage, frozen=True, kw_only=True):
    """To the lead: what a neighbour sent cannot have been computed honestly."""

    peer: Annotated[str, Meta(max_length=128)]
    why: Annotated[str, Meta(max_length=400)]


class EndStep(FlightMessage, frozen=True, kw_only=True):
    """Lead to all: multiply the gradients by this, and have the optimizer make its step."""

    scale: Figure
    learning_rate: Figure
    loss: float
    tokens: Count


class Finished(FlightMessage, frozen=True, kw_only=True):
    """To the lead: done."""

    busy_s: Figure = 0.0
    """Seconds that this stage computed in the step."""


class StageFull(FlightMessage, frozen=True, kw_only=True):
    """To the lead: this stage has no memory for the step, and nothing of it is left here."""


class NotThere(FlightMessage, frozen=True, kw_only=True):
    """To the lead: this home stands at another anchor, of this round."""

    round: Count


class GiveUpStep(FlightMessage, frozen=True, kw_only=True):
    """Lead to all: nothing of this step counts."""


class Stand(FlightMessage, frozen=True, kw_only=True):
    """Lead to all: have the anchor's values in the model, or your own again."""

    where: Literal["anchor", "own"]
    round: Count


AnyFlight = (
    Forward | FlightBack | Sweep | Swept | Alive | Garbage | AskNorm | SquareNorm | EndStep | Finished | StageFull
    | NotThere | GiveUpStep | Stand
)  # fmt: skip

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[AnyFlight] = msgspec.msgpack.Decoder(AnyFlight)


class BadFlight(ValueError):
    """Bytes that are no message of a flight, or one that does not fit."""


def encode_flight(message: AnyFlight) -> bytes:
    return bytes((KIND,)) + _encoder.encode(message)


def decode_flight(frame: bytes | memoryview) -> AnyFlight:
    """Raises BadFlight for anything else."""
    if len(frame) > MAX_FRAME_BYTES or len(frame) < 2 or frame[0] != KIND:
        raise BadFlight(f"{len(frame)} bytes are no message of a flight")
    try:
        return _decoder.decode(memoryview(frame)[1:])
    except (ValueError, RecursionError) as error:
        raise BadFlight(str(error)) from error
