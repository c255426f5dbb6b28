"""What a round counts for whom, and the sums that stay when its block is dropped."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peer.consensus.credit.tally import Counting, Credit, Tally, read_tally, tally_path, total
from peer.consensus.protocol.block import VOID, WEIGHT_ONE
from tests.peer.consensus.rounds.build import HEAD, NAMES, PARTS, header, update

COUNTING = Counting(parts=(PARTS,), tokens_cap=10**9)
EVERYBODY = 0b111


def of(*members, contributors=(EVERYBODY,) * 3, cap=10**9, **changes):  # type: ignore[no-untyped-def]
    made = update(members=members, contributors=contributors, **changes)
    return dataclasses.replace(COUNTING, tokens_cap=cap).of(made)


def test_equal_members_count_equally() -> None:
    counted = of(*map(header, NAMES))
    assert {credit.weight for credit in counted.values()} <= {WEIGHT_ONE // 3, WEIGHT_ONE // 3 + 1}
    assert [(credit.tokens, credit.accepted) for credit in counted.values()] == [(100, 1)] * 3


def test_who_had_nothing_ready_is_idle_and_who_did_not_answer_has_missed_it() -> None:
    """The chain does not tell a paused peer from a slow one, and holds neither against it as a rejection."""
    counted = of(header("p0"), header("p1", root=b"", tokens=500, steps=0), contributors=(0b01,) * 3, elect=NAMES)
    assert counted["p0"] == Credit(tokens=100, weight=WEIGHT_ONE, accepted=1)
    assert counted["p1"] == Credit(idle=1)
    assert counted["p2"] == Credit(missed=1)


def test_tokens_are_worth_nothing_where_no_bytes_are_in_the_mean() -> None:
    """A header is its author's own word; that its parts came is what the others say."""
    counted = of(header("p0"), header("p1", tokens=10**6), header("p2"), contributors=(0b101,) * 3)
    assert counted["p1"] == Credit(late=1)


def test_more_tokens_than_the_run_lets_count_are_not_counted() -> None:
    counted = of(header("p0"), header("p1", tokens=10**6), header("p2"), cap=150)
    assert [credit.tokens for credit in counted.values()] == [100, 150, 100]


def test_a_round_of_void_parts_counts_for_nobody() -> None:
    members = tuple(map(header, NAMES))
    counted = COUNTING.of(update(members=members, parts=(VOID,) * 3, contributors=(0, 0, 0)))
    assert total(counted) == Credit(rejected=counted["p0"].rejected * 3, accepted=counted["p0"].accepted * 3)


CREDITS = st.builds(Credit, **{each.name: st.integers(0, 1 << 40) for each in dataclasses.fields(Credit)})


@settings(derandomize=True, max_examples=50, deadline=None)
@given(st.dictionaries(st.sampled_from(["a", "b", "c"]), CREDITS), st.integers(1, 99), st.integers(0, 99))
def test_a_tally_is_read_as_it_was_written(credits: dict[str, Credit], first: int, last: int) -> None:
    tally = Tally(first=first, last=last, anchor=HEAD.anchor, credits=credits)
    assert Tally.from_bytes(tally.to_bytes()) == tally


def test_every_damaged_byte_of_a_tally_is_noticed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Then it is as if nothing had been counted; the peer goes on."""
    (tmp_path / "chain").mkdir()
    path = tally_path(tmp_path, HEAD.anchor)
    whole = Tally(first=1, last=0, anchor=HEAD.anchor, credits={"a": Credit(tokens=5)}).to_bytes()
    path.write_bytes(whole)
    assert read_tally(tmp_path, HEAD).credits == {"a": Credit(tokens=5)}
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with caplog.at_level(logging.WARNING):
            assert read_tally(tmp_path, HEAD) == Tally.after(HEAD)
    assert caplog.messages[0].endswith("contributions before round 1 are not counted")


def test_a_tally_of_another_anchor_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "chain").mkdir()
    other = Tally(first=1, last=4, anchor=bytes(32))
    tally_path(tmp_path, HEAD.anchor).write_bytes(other.to_bytes())
    assert read_tally(tmp_path, HEAD) == Tally.after(HEAD)
