"""Messages of trainer and link: what is one comes through whole, and nothing else comes through."""

from __future__ import annotations

import sys
from collections.abc import Callable
from random import Random
from typing import Any, get_args

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.inspect import BytesType, DictType, FloatType, IntType, StrType, type_info

from peer.schema import ipc
from peer.schema.ipc import (
    AnyToLink,
    AnyToTrainer,
    BadMessage,
    Hello,
    Leave,
    LinkLimits,
    OpenLink,
    ReportEvent,
    decode_to_link,
    decode_to_trainer,
    encode,
)

Decode = Callable[[bytes], Any]
Kind = type[Struct]
BOTH: list[tuple[Decode, tuple[Kind, ...]]] = [
    (decode_to_link, get_args(AnyToLink)),
    (decode_to_trainer, get_args(AnyToTrainer)),
]
KINDS = [(decode, kind) for decode, kinds in BOTH for kind in kinds]
NO_FIELDS_VALUE = [[{}]]
LARGE = 1 << 20
"""Nothing longer is made here: the bounds beyond are those of the whole message, which the channel watches."""

# ---- any message, from the definitions of the structs

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(st.text(max_size=8), values, max_size=3),
    max_leaves=6,
)  # fmt: skip


def values_of(info: Any) -> st.SearchStrategy[Any]:
    """Values of a field, short ones: what lies at the bounds is another test's."""
    match info:
        case msgspec.inspect.UnionType(types=types):
            return st.one_of([values_of(one) for one in types])
        case msgspec.inspect.NoneType():
            return st.none()
        case msgspec.inspect.BoolType():
            return st.booleans()
        case IntType(ge=low, le=high):
            return st.integers(low, high)
        case FloatType(ge=low, le=high):
            return st.floats(low, high, allow_nan=False)
        case BytesType(min_length=low, max_length=high):
            return st.binary(min_size=low or 0, max_size=min(high, (low or 0) + 40))
        case StrType():
            return st.text(max_size=20)
        case msgspec.inspect.VarTupleType(item_type=item, min_length=low):
            return st.lists(values_of(item), min_size=low or 0, max_size=(low or 0) + 3).map(tuple)
        case DictType(key_type=key, value_type=value):
            return st.dictionaries(values_of(key), values_of(value), max_size=3)
        case msgspec.inspect.StructType(cls=kind):
            return messages_of(kind)
        case msgspec.inspect.LiteralType(values=words):
            return st.sampled_from(words)
        case msgspec.inspect.AnyType():
            return PLAIN
    raise AssertionError(f"no values for {info}")


def messages_of(kind: Kind) -> st.SearchStrategy[Any]:
    info = type_info(kind)
    assert isinstance(info, msgspec.inspect.StructType)
    return st.builds(kind, **{field.name: values_of(field.type) for field in info.fields})


def example(kind: Kind) -> dict[str, Any]:
    """The fields of one message of this kind, by name, with its tag."""
    message = EXAMPLES[kind.__name__]
    fields: dict[str, Any] = msgspec.msgpack.decode(encode(message))
    return fields


def packed(fields: dict[str, Any]) -> bytes:
    return msgspec.msgpack.encode(fields)


STAGES = ipc.Assignment(1, (ipc.StageHolder("alice", 0, 1), ipc.StageHolder("bob", 2, 3)), (), "int8")
HOME = ipc.HomeOffer("bob", "Bob", 8.0, 100.0, 20.0)
LIMITS = LinkLimits(4000, 0.0, 0.0, 0.0, 100.0)
INSIDE: dict[Kind, Struct] = {type(part): part for part in (LIMITS, STAGES, STAGES.stages[0], HOME)}
"""Structs that are fields of messages."""
EXAMPLES: dict[str, Any] = {
    message.__class__.__name__: message
    for message in (
        OpenLink("invite", "me", ("none",), LIMITS, 1, ""),
        ipc.ChangeLimits(LIMITS),
        Hello((1, 2), b"s" * 32, b""),
        ipc.ReportProgress(0.5, 1.5, 100.0, None),
        ipc.OfferContribution(b"a" * 32),
        ipc.PausedAt(b"a" * 32),
        ipc.StepsGoOn(),
        ipc.StandsAt(b"a" * 32, b"s" * 32),
        ipc.AssignStages(STAGES),
        ipc.HomesExpelled(("bob",)),
        ipc.LayersHeld(0, 1),
        ipc.LookForHomes(8.0, 100.0, ("bob",)),
        ipc.HomesFound("alice", ("alice", "bob"), 100.0, "", 20.0),
        ipc.HomesMissing(("bob",)),
        ipc.StartLooked(True),
        ipc.SeekWork(8.0, 100.0),
        ipc.HomesOffered((HOME,)),
        ipc.StagesAssigned(STAGES),
        ipc.HomeLost("bob", "silent"),
        ipc.LossMeasured(1, 2.5),
        Leave(True),
        ipc.SpecText("[run]"),
        ipc.StartBrought(),
        ipc.Waiting("for the organiser"),
        ipc.BeginAt(b"a" * 32, ("p0",)),
        ipc.ReplayBlock(b"block", 7),
        ipc.ResumeAt(b"a" * 32),
        ipc.BlockCommitted(b"block", b"a" * 32, 1, 2, 3.5),
        ipc.AdoptSnapshot(3, b"a" * 32, ("p0",)),
        ipc.InStep(True),
        ipc.AskSubmit(),
        ipc.OthersSpeeds({"p1": 100.0}),
        ReportEvent("AlertRaised", {"level": "info"}),
        ipc.LinkFailed("ClockOff", "words"),
    )
}


@pytest.mark.parametrize(("decode", "kind"), KINDS, ids=[kind.__name__ for _, kind in KINDS])
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_every_message_comes_through_whole(decode: Decode, kind: Kind, data: st.DataObject) -> None:
    """With its type, and nothing but the other union takes it."""
    message = data.draw(messages_of(kind))
    assert decode(encode(message)) == message
    assert type(decode(encode(message))) is kind
    other = decode_to_link if decode is decode_to_trainer else decode_to_trainer
    with pytest.raises(BadMessage):
        other(encode(message))


@pytest.mark.parametrize(("decode", "kind"), KINDS, ids=[kind.__name__ for _, kind in KINDS])
def test_a_field_that_is_misspelt_missing_or_of_another_type_is_no_message(decode: Decode, kind: Kind) -> None:
    """An unknown tag likewise."""
    fields = example(kind)
    assert decode(packed(fields)) == EXAMPLES[kind.__name__]
    wrong = [{**fields, "type": "Unknown"}, {**fields, "more": 1}, {**fields, "type": None}]
    for name in fields.keys() - {"type"}:
        less = {other: value for other, value in fields.items() if other != name}
        wrong += [less, {**less, name + "s": fields[name]}, {**fields, name: NO_FIELDS_VALUE}]
    for one in wrong:
        with pytest.raises(BadMessage):
            decode(packed(one))


def test_figures_may_come_from_numpy() -> None:
    """As means and losses do; they arrive as plain ones. What is no value of a message is our mistake."""
    said = ipc.ReportProgress(np.float64(0.5), np.float64(1.5), 1.0, None)
    assert repr(decode_to_link(encode(said))) == repr(ipc.ReportProgress(0.5, 1.5, 1.0, None))
    with pytest.raises(TypeError):
        encode(ReportEvent("x", {"a": np.zeros(1)}))


# ---- bounds


def at_bounds(info: Any) -> list[tuple[Any, Any]]:
    """Of a field: values that are just within a bound, each with the next one beyond."""
    match info:
        case msgspec.inspect.UnionType(types=types):
            return [pair for one in types for pair in at_bounds(one)]
        case IntType(ge=low, le=high):
            return [(low, low - 1), (high, high + 1)]
        case FloatType(ge=low, le=high) if low is not None:
            return [(low, -5e-324), (high, high * (1 + sys.float_info.epsilon)), (low, float("nan"))]
        case BytesType(min_length=low, max_length=high):
            pairs = [(b"x" * high, b"x" * (high + 1))] if high <= LARGE else []
            return pairs + ([(b"x" * low, b"x" * (low - 1))] if low else [])
        case StrType(max_length=high):
            return [("x" * high, "x" * (high + 1))] if high else []
        case msgspec.inspect.VarTupleType(item_type=item, min_length=low, max_length=high):
            one, least = short(item), max(1, low or 0)
            pairs = [([one] * high, [one] * (high + 1)), *(([a] * least, [b] * least) for a, b in at_bounds(item))]
            return pairs + ([([one] * low, [one] * (low - 1))] if low else [])
        case DictType(key_type=StrType(max_length=key), value_type=value, max_length=high) if high:
            many = {f"{number}": 1.0 for number in range(high + 1)}
            of_keys = ({"x" * key: 1.0}, {"x" * (key + 1): 1.0})
            fewer = {name: many[name] for name in list(many)[:high]}
            return [(fewer, many), of_keys, *(({"a": a}, {"a": b}) for a, b in at_bounds(value))]
        case msgspec.inspect.StructType(cls=kind, fields=fields):
            whole, pairs = msgspec.to_builtins(INSIDE[kind]), []
            for field in fields:
                pairs += [({**whole, field.name: a}, {**whole, field.name: b}) for a, b in at_bounds(field.type)]
            return pairs
    return []


def short(info: Any) -> Any:
    if isinstance(info, msgspec.inspect.StructType):
        return msgspec.to_builtins(INSIDE[info.cls])
    return {BytesType: b"x", StrType: "x", IntType: 1}[type(info)]


CASES = [
    (decode, kind, field.name, *pair)
    for decode, kind in KINDS
    for field in type_info(kind).fields  # type: ignore[attr-defined]
    for pair in at_bounds(field.type)
]


def test_every_field_has_bounds() -> None:
    """But flags, losses, which may be anything, and the fields of an event, which `peer.schema.events` knows."""
    free = {("ReportProgress", "loss"), ("LossMeasured", "loss"), ("ReportEvent", "fields"), ("Leave", "finished"),
            ("InStep", "here"), ("StartLooked", "is_here")}  # fmt: skip
    of_messages = {("ReplayBlock", "block"), ("BlockCommitted", "block")}  # MAX_BYTES: the channel's bound
    bounded = {(kind.__name__, name) for _, kind, name, *_ in CASES}
    every = {(kind.__name__, name) for _, kind in KINDS for name in kind.__struct_fields__}
    assert every - bounded == free | of_messages


def is_taken(decode: Decode, fields: dict[str, Any]) -> bool:
    try:
        decode(packed(fields))
    except BadMessage:
        return False
    return True


def test_bounds() -> None:
    """The last value within is taken, the next one is not."""
    for decode, kind, name, within, beyond in CASES:
        fields = example(kind)
        assert is_taken(decode, {**fields, name: within}), f"{kind.__name__}.{name} = {within}"
        assert not is_taken(decode, {**fields, name: beyond}), f"{kind.__name__}.{name} = {beyond}"


# ---- any bytes


@pytest.mark.parametrize(("decode", "kinds"), BOTH, ids=["to link", "to trainer"])
def test_mutated_messages_are_messages_or_refused(decode: Decode, kinds: tuple[Kind, ...]) -> None:
    """Bits flipped, bytes put in, taken out, repeated, and messages spliced: never another error."""
    rng, taken, refused = Random(40), 0, 0
    frames = [encode(EXAMPLES[kind.__name__]) for kind in kinds]
    for _ in range(20_000):
        try:
            message = decode(mutated(rng, frames))
        except BadMessage:
            refused += 1
            continue
        taken += 1
        assert isinstance(message, kinds)
        assert encode(decode(encode(message))) == encode(message)
    assert taken > 100
    assert refused > 10_000


def mutated(rng: Random, frames: list[bytes]) -> bytes:
    frame = bytearray(rng.choice(frames))
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(frame) + 1)
        match rng.randrange(5):
            case 0 if at < len(frame):
                frame[at] ^= 1 << rng.randrange(8)
            case 1:
                frame[at:at] = rng.randbytes(rng.randint(1, 8))
            case 2:
                del frame[at : at + rng.randint(1, 8)]
            case 3:
                frame[at:at] = frame[at : at + rng.randint(1, 40)]
            case _:
                other = rng.choice(frames)
                frame[at:] = other[rng.randrange(len(other)) :]
    return bytes(frame)


@pytest.mark.parametrize("head", [b"\x91", b"\x81\xa1a"], ids=["lists", "maps"])
def test_values_in_values_without_end_are_refused(head: bytes) -> None:
    """An event's fields may hold such; the interpreter's stack does not."""
    frame = encode(ReportEvent("x", {"a": 1}))
    with pytest.raises(BadMessage):
        decode_to_trainer(frame[:-1] + head * 100_000 + b"\x01")


@pytest.mark.parametrize("head", [b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff"])
def test_a_length_that_is_not_there_takes_no_memory(head: bytes) -> None:
    """Of a list, of a map, of bytes."""
    with pytest.raises(BadMessage):
        decode_to_trainer(encode(ReportEvent("x", {"a": 1}))[:-1] + head)
