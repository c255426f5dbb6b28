"""A liar says one thing otherwise, with a signature that holds, and everything else as it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from peer.consensus.protocol.bounds import fault_of_header
from peer.consensus.protocol.messages import Message, Nack, Promise, Start, decode, encode
from peer.consensus.protocol.refusals import RANGES, STEPS, TOKENS
from peer.testing.lying_link import ALL_RANGES, HUGE, LIE, NEGATIVE, TEN_YEARS_S, TOKENS_TWICE, YEARS_AHEAD, Liar
from tests.peer.consensus.rounds.build import NAMES, header, place, rules, update

ME, OTHER = NAMES[:2]
KEYS = rules(ME).keys
HONEST = [
    Promise(place(), header(ME)),
    Start(place(), (header(ME), header(OTHER))),
    Nack(place(), 7),
]  # fmt: skip


def liar(directory: Path, lie: str) -> Liar:
    (directory / LIE).write_text(lie)
    return Liar(directory, ME, KEYS)


def said(directory: Path, lie: str, message: Message) -> Message:
    return decode(liar(directory, lie).encode(message))


@pytest.mark.parametrize(
    ("lie", "rule"), [(TOKENS_TWICE, TOKENS), (ALL_RANGES, RANGES), (HUGE, STEPS), (NEGATIVE, TOKENS)]
)
def test_a_header_with_a_lie_is_signed_and_out_of_bounds(tmp_path: Path, lie: str, rule: str) -> None:
    """Whoever leads; the headers of others are theirs."""
    mine = header(ME)
    bounded = replace(rules(OTHER), step_tokens=mine.tokens // mine.steps, context=1)
    promise, start, nack = (said(tmp_path, lie, message) for message in HONEST)
    assert isinstance(promise, Promise)
    assert promise.header != mine
    assert promise.header.genuine(KEYS)
    assert fault_of_header(bounded, mine) == ("", "")
    assert fault_of_header(bounded, promise.header)[0] == rule
    assert start == replace(HONEST[1], headers=(promise.header, header(OTHER)))
    assert nack == HONEST[2]


@pytest.mark.parametrize("lie", ["", YEARS_AHEAD])
def test_who_does_not_lie_about_its_header_says_what_it_is(tmp_path: Path, lie: str) -> None:
    for message in HONEST:
        assert liar(tmp_path, lie).encode(message) == encode(message)


def test_a_header_that_gives_nothing_is_left_alone(tmp_path: Path) -> None:
    """Whoever gives nothing has nothing to exaggerate."""
    message = Promise(place(), header(ME, root=b""))
    assert said(tmp_path, HUGE, message) == message


@pytest.mark.parametrize(("lie", "ahead_s"), [(YEARS_AHEAD, TEN_YEARS_S), ("", 0), (HUGE, 0)])
def test_an_update_is_dated_ahead(tmp_path: Path, lie: str, ahead_s: int) -> None:
    honest = update(time=100)
    assert liar(tmp_path, lie).dated(honest) == replace(honest, time=100 + ahead_s)
