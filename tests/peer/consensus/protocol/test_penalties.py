"""Penalties: who gets which, for how long, in which words; and that a late peer holds nobody and is not dropped."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from peer.consensus.protocol import penalties
from peer.consensus.protocol.block import VOID, WEIGHT_ONE, Penalty, Update, discount
from peer.consensus.protocol.head import ChainHead
from peer.testing.faults import Slow, Stall
from peer.testing.memory_peer import ModelKeys
from peer.testing.memory_swarm import LogicalSwarm
from tests.peer.consensus.rounds.build import HEAD, NAMES, fault_of, header, owner, rules, state_of, update

EVERYBODY = (0b111, 0b111, 0b111)
HALF = discount(3, 8)
SILENT = "did not answer"


def due(item: Update, head: ChainHead = HEAD) -> tuple[Penalty, ...]:
    """The penalties of an update in which nothing was found against anybody's norms."""
    return penalties.due(rules("p0"), head, item, ())


def row(peer: str, code: str, factor: int, evidence: str, until: int = 2) -> Penalty:
    """About the whole model."""
    return peer, code, factor, until, -1, evidence


def decided(*members: str, elect: tuple[str, ...] = NAMES, **changes: object) -> Update:
    """An update with these members, in which everybody counts everywhere."""
    everywhere = (1 << len(members)) - 1
    fields: dict[str, Any] = {"contributors": (everywhere,) * 3, "elect": elect} | changes
    return update(members=tuple(header(name) for name in members), **fields)


def test_nobody_is_punished_in_a_round_without_trouble() -> None:
    """Every voter answered and counts everywhere, with fresh work."""
    assert due(decided(*NAMES)) == ()


def test_a_voter_that_does_not_answer_is_absent() -> None:
    """Nothing of it counts, until the round after; whoever has just left, and so is not elected again, owes nothing."""
    item = decided("p0", "p1")
    assert due(item) == (row("p2", "ABSENT", 0, SILENT),)
    assert due(decided("p0", "p1", elect=("p0", "p1"))) == ()
    second = replace(HEAD, members=("p0", "p1"))
    assert due(decided("p0", "p1", elect=("p0", "p1")), second) == (row("p2", "ABSENT", 0, SILENT),)


def test_parts_that_come_too_late_are_late_by_their_share() -> None:
    """Void parts came from nobody."""
    item = decided(*NAMES, contributors=(0b111, 0b011, 0b001))
    assert due(item) == (
        row("p1", "LATE", WEIGHT_ONE * 2 // 3, "2 of 3 parts came in time"),
        row("p2", "LATE", WEIGHT_ONE // 3, "1 of 3 parts came in time"),
    )
    void = decided(*NAMES, contributors=(0b111, 0, 0b011), parts=(item.parts[0], VOID, item.parts[2]))
    assert due(void) == (row("p2", "LATE", WEIGHT_ONE // 2, "1 of 2 parts came in time"),)


def test_who_has_nothing_ready_is_late() -> None:
    """It keeps its vote."""
    item = update(members=(header("p0"), header("p1", root=b"", tokens=0, staleness=2), header("p2")),
                  contributors=(0b101,) * 3)  # fmt: skip
    assert due(item) == (row("p1", "LATE", 0, "had nothing ready"),)


@pytest.mark.parametrize(
    ("staleness", "factor", "words"),
    [(3, 58_254, "3 rounds old"), (8, 37_449, "8 rounds old"), (9, 0, "9 rounds old")],
)
def test_old_work_is_stale_by_its_discount(staleness: int, factor: int, words: str) -> None:
    """FedAsync's hinge, and nothing beyond the age limit."""
    item = update(members=(header("p0"), header("p1", staleness=staleness), header("p2")), contributors=EVERYBODY)
    assert due(item) == (row("p1", "STALE", factor, words),)


@pytest.mark.parametrize("staleness", [1, 2])
def test_a_round_or_two_are_no_penalty(staleness: int) -> None:
    """The residual has lost its share for them already."""
    members = (replace(header("p0"), staleness=staleness).signed(ModelKeys("p0")), header("p1"), header("p2"))
    assert due(update(members=members, contributors=(0b111,) * 3)) == ()


def test_late_and_stale_may_meet() -> None:
    """One row each, in the order of peers and codes."""
    item = update(LED, (header("p0"), header("p1", staleness=3)), contributors=(1, 3, 3), elect=NAMES)
    assert due(item) == (
        row("p1", "LATE", WEIGHT_ONE * 2 // 3, "2 of 3 parts came in time"),
        row("p1", "STALE", HALF, "3 rounds old"),
        row("p2", "ABSENT", 0, SILENT),
    )


LED = next(ballot for ballot in range(3) if owner(ballot) == "p0")
HONEST = update(LED, (header("p0"), header("p1", staleness=3)), contributors=(1, 3, 3), elect=NAMES)
ROWS = HONEST.penalties


@pytest.mark.parametrize(
    "rows",
    [
        (),
        ROWS[:2],
        ROWS[::-1],
        (*ROWS, row("x", "LATE", 0, SILENT)),
        ((*ROWS[0][:2], WEIGHT_ONE, *ROWS[0][3:]), *ROWS[1:]),
        ((*ROWS[0][:3], 3, *ROWS[0][4:]), *ROWS[1:]),
        ((*ROWS[0][:4], 0, ROWS[0][5]), *ROWS[1:]),
        ((*ROWS[0][:5], "it is a liar"), *ROWS[1:]),
    ],
)
def test_voters_refuse_other_penalties(rows: tuple[Penalty, ...]) -> None:
    """None, one less, in another order, one more, another factor, end, layer or evidence."""
    assert not fault_of(state_of("p0"), HONEST)
    fault = fault_of(state_of("p0"), replace(HONEST, penalties=rows))
    assert fault == "its penalties are not those that are due"


def test_too_old_work_weighs_nothing_to_the_last_digit() -> None:
    """Nor does any other weight forgive a digit."""
    item = update(members=(header("p0"), header("p1", staleness=9), header("p2")), contributors=EVERYBODY)
    assert item.weights == ((32768, 0, 32768),)
    assert not fault_of(state_of("p0"), item)
    assert fault_of(state_of("p0"), replace(item, weights=((32767, 0, 32769),)))
    assert fault_of(state_of("p0"), replace(item, weights=((32768, 1, 32768),)))


# ---- in a swarm ----


def rows_of(run: LogicalSwarm, peer: int) -> list[Penalty]:
    """All penalties in one peer's chain."""
    return [row for block in run.world.peers[peer].disk.blocks for row in block.update.penalties]


@pytest.mark.parametrize(("bytes_per_s", "counted"), [(10.0, {0}), (200.0, {1, 2})])
def test_a_throttled_peer_is_late_for_all_to_see_and_holds_no_round(bytes_per_s: float, counted: set[int]) -> None:
    """For thirty seconds most of its parts do not come through: rounds take no longer than their deadlines, it is
    LATE with the share that came (of three parts), what did not count is owed, and afterwards it counts again.

    Its votes wait behind its parts on that line, so it is ABSENT from the round after that."""
    run = LogicalSwarm(peers=4, seed=3)
    rules = run.world.rules("p0")
    run.until_round(2, within_s=60)
    head = next(head for head in run.world.peers[0].disk.heads if head.round == 2)
    leader = head.leader(0)
    assert leader != "p1", "another seed: a ballot of its own would fail, and it would be absent from the next one"
    run.inject(Slow(peer=1, phase="exchange", round=2, seconds=30.0, bytes_per_s=bytes_per_s))
    run.until_round(9, within_s=150)
    run.assert_agreement()
    for peer in range(4):
        _, code, factor, until, *_ = next(row for row in rows_of(run, peer) if row[0] == "p1")
        assert (code, until) == ("LATE", 4)
        assert factor in {WEIGHT_ONE * parts // 3 for parts in counted}
        assert {row[0] for row in rows_of(run, peer)} == {"p1"}
        assert rows_of(run, peer)[1][:2] == ("p1", penalties.ABSENT)
    others = [run.committed(peer) for peer in (0, 2, 3)]
    ends = [min(commits[index].at_s for commits in others) for index in range(9)]
    longest_s = 6.0 + rules.gather_s + 3 * (rules.exchange_s + rules.ack_s)
    assert max(after - before for before, after in pairwise(ends)) < longest_s
    last = run.world.peers[0].disk.blocks[-1].update
    assert all(last.contributed("p1", part) for part in range(len(last.parts)))


def test_a_peer_that_is_gone_for_a_round_is_absent() -> None:
    """Stopped while the others agree: they say so, until the round after, and it is back in the next ones."""
    run = LogicalSwarm(peers=4, seed=3)
    run.inject(Stall(peer=2, phase="train", round=1, seconds=15.0))
    run.until_round(6, within_s=120)
    found = next(item for item in rows_of(run, 0) if item[0] == "p2")
    assert found == row("p2", penalties.ABSENT, 0, SILENT, until=3)
    assert 2 in run.group(6)
    run.assert_agreement()
