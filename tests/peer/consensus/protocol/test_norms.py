"""From signed rows to norms of layers, what may not be counted, and who is convicted of lying."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.consensus.aggregation.aggregate import AggregationResult, aggregate
from peer.consensus.aggregation.evidence import AggregationRules, Contributor, LayerNorms
from peer.consensus.protocol import norms, penalties
from peer.consensus.protocol.block import (
    FLOAT_BITS,
    MAX_EVIDENCE,
    MAX_REPORTS,
    POSITIVE,
    WEIGHT_ONE,
    ContributionHeader,
    NormRow,
    SignedNorms,
    Update,
    givers,
)
from peer.consensus.protocol.head import MISDECLARED, ChainHead
from peer.consensus.protocol.layout import Part
from peer.consensus.protocol.norms import (
    PartNorms,
    bits_of,
    caught,
    fault_of_measurements,
    float_of,
    judgement_of,
    shard_owners,
)
from peer.consensus.protocol.rules import Rules
from peer.testing.memory_peer import ModelKeys
from tests.peer.consensus.rounds.build import HEAD, NAMES, header, measured_by_all, place, rules, update

ALL = tuple(header(name) for name in NAMES)
WIDE = replace(
    rules("p0"), parts=(Part(0, 0, 2), Part(0, 2, 6), Part(1, 8, 4), Part(1, 12, 4)), part_bytes=(8, 24, 16, 16)
)
"""Two layers of eight elements, each in two parts."""
NAN = float("nan")

# ---- numbers as bits ----


@given(st.floats(width=32, allow_nan=False))
def test_a_float32_survives_as_bits(value: float) -> None:
    """Zeros keep their sign, and infinity is itself."""
    assert float_of(bits_of(value)) == value
    assert math.copysign(1, float_of(bits_of(value))) == math.copysign(1, value)


@given(st.floats())
def test_any_float_has_bits(value: float) -> None:
    """Beyond float32 it is infinite on its side; there is one NaN, which a square may be."""
    bits = bits_of(value)
    assert 0 <= bits <= FLOAT_BITS
    if math.isnan(value):
        assert bits == 0x7FC00000
        assert bits <= POSITIVE
    elif abs(value) > 3.5e38:
        assert float_of(bits) == math.copysign(math.inf, value)
    else:
        assert float_of(bits) == pytest.approx(value, rel=1e-7, abs=1e-44)


def test_a_nan_with_a_sign_makes_no_square_that_is_refused() -> None:
    """A contributor chooses the bits of its NaN; its reducer's NORMS must come through all the same."""
    (signed,) = struct.unpack("<d", struct.pack("<Q", 0xFFF8 << 48))
    assert math.copysign(1, signed) == -1
    found = measured({0: {0: PartNorms(signed)}})
    assert found.rows[0].squares[0] <= POSITIVE
    assert NormRow.unpacked(found.rows[0].packed()) == found.rows[0]


# ---- what a reducer signs ----


def measured(figures: dict[int, dict[int, PartNorms]], parts: tuple[int, ...] = ()) -> SignedNorms:
    """What a reducer says that measured this, by part and member."""
    received = {part: sum(1 << index for index in figures.get(part, {})) for part in parts or figures}
    return norms.measurements(WIDE, 0, len(ALL), received, figures)


def test_a_row_sums_the_parts_of_a_layer() -> None:
    """One row per layer; the direction counts once for each part, whoever gave it."""
    figures = {
        0: {0: PartNorms(1.0, 0.5, 4.0), 2: PartNorms(9.0, -2.0, 4.0)},
        1: {2: PartNorms(16.0, 1.0, 5.0)},
        3: {1: PartNorms(2.0)},
    }
    found = measured(figures, parts=(0, 1, 3))
    assert found.received == ((0, 0b101), (1, 0b100), (3, 0b010))
    first, second = found.rows
    assert (first.layer, second.layer) == (0, 1)
    assert [float_of(bits) for bits in first.squares] == [1.0, 0.0, 25.0]
    assert [float_of(bits) for bits in first.dots] == [0.5, 0.0, -1.0]
    assert float_of(first.direction) == 9.0
    assert second == NormRow(1, (0, bits_of(2.0), 0)), "nothing to compare with"


def test_a_reducer_that_received_nothing_says_so() -> None:
    """It lists its parts all the same, or others would wait for them."""
    found = measured({}, parts=(2, 3))
    assert found.received == ((2, 0), (3, 0))
    assert found.rows == (NormRow(1, (0, 0, 0)),)


# ---- norms of layers ----


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[list[Contributor], list[LayerNorms]]]:
    """What reaches `peer.consensus.aggregation` of these rules, members and measurements."""

    def look(rules: Rules, members: tuple[ContributionHeader, ...], *measured: SignedNorms) -> tuple[Any, Any]:
        asked: list[Any] = []

        def noting(*args: Any) -> AggregationResult:
            asked.append(args)
            return aggregate(*args)

        monkeypatch.setattr(norms, "aggregate", noting)
        judgement_of(rules, HEAD, members, measured)
        return asked[0][3], asked[0][4]

    return look


Judged = Callable[..., tuple[list[Contributor], list[LayerNorms]]]


def said(reducer: str, received: tuple[tuple[int, int], ...], *rows: NormRow) -> SignedNorms:
    return SignedNorms(reducer, received, rows)


def squares(layer: int, *values: float, dots: tuple[float, ...] = (), direction: float = 0.0) -> NormRow:
    return NormRow(layer, tuple(map(bits_of, values)), tuple(map(bits_of, dots)), bits_of(direction))


def test_norms_of_a_layer_add_up_over_its_reducers(judged: Judged) -> None:
    """√ of the sum of squares, and sums of inner products."""
    first = said("p0", ((0, 7),), squares(0, 1, 4, 9, dots=(1, 2, 3), direction=9))
    second = said("p1", ((1, 7), (2, 7)), squares(0, 8, 12, 0, dots=(-1, 0, 1), direction=16), squares(1, 25, 1, 0))
    third = said("p2", ((3, 7),), squares(1, 0, 3, 0))
    _, (zero, one) = judged(WIDE, ALL, first, second, third)
    assert zero == LayerNorms((3.0, 4.0, 3.0), (0.0, 2.0, 4.0), 5.0)
    assert one == LayerNorms((5.0, 2.0, 0.0), (None, None, None), None)


def test_what_is_missing_of_a_layer_is_like_what_is_there(judged: Judged) -> None:
    """A member of whom a quarter of the layer came has four times that square; who gave none has no norm."""
    first = said("p0", ((0, 0b011),), squares(0, 1, 4, 0, dots=(1, 2, 0), direction=9))
    second = said("p1", ((1, 0b010),), squares(0, 0, 12, 0, dots=(0, 6, 0), direction=16))
    _, (zero, one) = judged(WIDE, ALL, first, second)
    assert zero.norms == (2.0, 4.0, None)
    assert zero.dots == (4.0, 8.0, None)
    assert zero.direction == 5.0
    assert one == LayerNorms((None,) * 3, (None,) * 3, None), "its reducers said nothing"
    _, (zero, _) = judged(WIDE, ALL, first)
    assert zero.norms == (2.0, 4.0, None)
    assert zero.direction == 6.0


def test_what_is_not_a_number_stays_none(judged: Judged) -> None:
    """NaN and infinity reach the judge, who decides."""
    found = said("p0", ((0, 7), (1, 7)), squares(0, NAN, math.inf, 1, dots=(NAN, -math.inf, 0), direction=NAN))
    _, (zero, _) = judged(WIDE, ALL, found)
    assert zero.norms[1:] == (math.inf, 1.0)
    assert math.isnan(zero.norms[0] or 0.0)
    assert zero.direction is None


def test_a_direction_of_a_layer_of_which_nothing_came_is_none(judged: Judged) -> None:
    """A reducer may say so; a round must not fall over it."""
    found = said("p0", ((0, 0), (1, 0)), squares(0, 0, 0, 0, dots=(0, 0, 0), direction=9))
    _, (zero, _) = judged(WIDE, ALL, found)
    assert zero == LayerNorms((None,) * 3, (None,) * 3, None)


def test_claims_are_capped(judged: Judged) -> None:
    """Tokens and steps that no peer can have made count as what it can; age discounts; idle members share nothing."""
    members = (
        header("p0", tokens=10**12, steps=10**9), header("p1", staleness=8, steps=0), header("p2", root=b"", tokens=5),
    )  # fmt: skip
    claims, _ = judged(replace(WIDE, steps_cap=50), members)
    assert [claim.steps for claim in claims] == [50, 1, 10]
    assert [claim.share for claim in claims] == [10**9 * WEIGHT_ONE, 100 * 37_449, 0]
    assert [claim.root for claim in claims] == [member.root for member in members]


bits = st.integers(0, FLOAT_BITS)
positive = st.integers(0, POSITIVE) | st.sampled_from((0, bits_of(1.0), bits_of(math.inf), bits_of(NAN), POSITIVE))


@given(
    reducer=st.sampled_from(("mean", "edit", "centered-clip", "agreement")),
    received=st.lists(st.integers(0, 7), min_size=4, max_size=4),
    numbers=st.lists(st.tuples(positive, bits, positive), min_size=6, max_size=6),
    compared=st.booleans(),
    rounds=st.integers(1, 3),
)
def test_no_bits_stop_a_round(
    reducer: str, received: list[int], numbers: list[tuple[int, int, int]], compared: bool, rounds: int
) -> None:
    """Whatever a reducer signs that passes the checks is judged, to a table whose integers fit an update."""
    standards = AggregationRules(rule=reducer, warmup_rounds=1)
    rows = tuple(
        NormRow(layer, tuple(item[0] for item in part), tuple(item[1] for item in part) if compared else (), part[0][2])
        for layer, part in enumerate((numbers[:3], numbers[3:]))
    )
    found = SignedNorms("p0", tuple(enumerate(received)), rows)
    head = HEAD
    for _ in range(rounds):
        judgement = judgement_of(replace(WIDE, aggregation=standards), head, ALL, (found,))
        weights, scales, pulls = norms.table_of(judgement)
        assert {len(row) for row in weights} == {3}
        assert all(0 <= value <= WEIGHT_ONE for row in (*weights, scales, pulls) for value in row)
        assert all(finding.evidence.isprintable() for finding in judgement.findings)
        assert all(len(finding.evidence) <= MAX_EVIDENCE for finding in judgement.findings)
        item = replace(update(), weights=weights, scales=scales, pulls=pulls, records=judgement.records)
        item = replace(item, penalties=penalties.due(WIDE, head, item, judgement.findings))
        assert Update.from_bytes(item.to_bytes()) == item
        head = replace(head, round=head.round + 1, records=judgement.records)


# ---- what cannot be counted ----

MEASURED = measured_by_all(ALL)
FIRST = MEASURED[0]
LISTS, LAYERS, SIGNED, ORDER = "the parts that it reduces", "the layers that it reduces", "has not signed", "in order"


def signed(found: SignedNorms, **changes: Any) -> SignedNorms:
    """The same with changes, signed by its reducer."""
    changed = replace(found, **changes)
    return changed.signed(ModelKeys(changed.reducer), HEAD.anchor, 0, ALL)


def fault(*measured: SignedNorms) -> str:
    return fault_of_measurements(rules("p0"), HEAD, ALL, 0, measured)


def with_row(**changes: Any) -> SignedNorms:
    return signed(FIRST, rows=(replace(FIRST.rows[0], **changes),))


def test_honest_measurements_are_counted() -> None:
    """Of all reducers, or of those that answered; also if nothing came of anybody."""
    assert fault(*MEASURED) == ""
    assert fault(FIRST) == ""
    assert fault() == ""
    nothing = with_row(squares=(0, 0, 0), dots=(), direction=0)
    assert fault(signed(nothing, received=((FIRST.received[0][0], 0),))) == ""
    assert fault(with_row(squares=(POSITIVE,) * 3, dots=(FLOAT_BITS,) * 3, direction=POSITIVE)) == ""


OTHER_PART = MEASURED[1].received[0][0]
WRONG: dict[str, tuple[Callable[[], SignedNorms], str]] = {
    "of a stranger": (lambda: signed(FIRST, reducer="x"), LISTS),
    "without its parts": (lambda: signed(FIRST, received=(), rows=()), LISTS),
    "of another's part": (lambda: signed(FIRST, received=((OTHER_PART, 7),)), LISTS),
    "of a part more": (lambda: signed(FIRST, received=(*FIRST.received, (OTHER_PART, 7))), LISTS),
    "of a part twice": (lambda: signed(FIRST, received=FIRST.received * 2), LISTS),
    "of a part that is not there": (lambda: signed(FIRST, received=((65_536, 7),)), LISTS),
    "of a member that is not there": (lambda: signed(FIRST, received=((FIRST.received[0][0], 15),)), LISTS),
    "of a member of whom it has nothing": (
        lambda: signed(FIRST, received=((FIRST.received[0][0], 3),)),
        "does not hold",
    ),
    "without a row": (lambda: signed(FIRST, rows=()), LAYERS),
    "with a row twice": (lambda: signed(FIRST, rows=FIRST.rows * 2), LAYERS),
    "of another layer": (lambda: with_row(layer=MEASURED[1].rows[0].layer), LAYERS),
    "of a layer that is not there": (lambda: with_row(layer=65_536), LAYERS),
    "with a member less": (lambda: with_row(squares=(0, 0)), LAYERS),
    "with a member more": (lambda: with_row(squares=(0,) * 4), LAYERS),
    "with no squares": (lambda: with_row(squares=()), LAYERS),
    "with a product less": (lambda: with_row(dots=(0, 0)), LAYERS),
    "with a product more": (lambda: with_row(dots=(0,) * 4), LAYERS),
    "unsigned": (lambda: replace(FIRST, signature=b"\x01" * 64), SIGNED),
    "changed after signing": (lambda: replace(FIRST, rows=(replace(FIRST.rows[0], squares=(1, 1, 1)),)), SIGNED),
    "signed by another": (lambda: replace(FIRST, signature=MEASURED[1].signature), SIGNED),
    "of another ballot": (lambda: FIRST.signed(ModelKeys(FIRST.reducer), HEAD.anchor, 3, ALL), SIGNED),
    "of another anchor": (lambda: FIRST.signed(ModelKeys(FIRST.reducer), b"a" * 32, 0, ALL), SIGNED),
    "of other members": (lambda: FIRST.signed(ModelKeys(FIRST.reducer), HEAD.anchor, 0, ALL[:2]), SIGNED),
    "of another contribution": (
        lambda: FIRST.signed(ModelKeys(FIRST.reducer), HEAD.anchor, 0, (header("p0", root=b"r" * 32), *ALL[1:])),
        SIGNED,
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_measurements_that_cannot_be_counted_are_refused(what: str) -> None:
    """Each with its own words, wherever they stand among honest ones."""
    make, words = WRONG[what]
    wrong = make()
    assert words in fault(wrong)
    assert words in fault(wrong, *MEASURED[1:])
    assert wrong.reducer in fault(*MEASURED, wrong)


def test_measurements_come_in_order_and_once() -> None:
    """Or one update could be spelled in two ways, and a norm counted twice."""
    assert ORDER in fault(*MEASURED[::-1])
    assert ORDER in fault(FIRST, FIRST)


def test_nothing_is_listed_of_who_gave_nothing() -> None:
    """A member without a root has no bytes."""
    members = (header("p0", root=b""), *ALL[1:])
    honest = measured_by_all(members)
    assert fault_of_measurements(rules("p0"), HEAD, members, 0, honest) == ""
    part = honest[0].received[0][0]
    lying = replace(honest[0], received=((part, 7),)).signed(ModelKeys(honest[0].reducer), HEAD.anchor, 0, members)
    assert LISTS in fault_of_measurements(rules("p0"), HEAD, members, 0, (lying,))


# ---- who is convicted ----


def swarm(peers: int, reporting: int, *, accused: str = "p0") -> tuple[ContributionHeader, ...]:
    """So many members; the first of those who are not accused report it."""
    names = [f"p{index}" for index in range(peers)]
    reporters = [name for name in names if name != accused][:reporting]
    return tuple(header(name, reports=((accused, "lied"),) if name in reporters else ()) for name in names)


@pytest.mark.parametrize(("peers", "needed"), [(1, None), (2, None), (3, 2), (4, 2), (5, 3), (6, 3), (7, 4)])
def test_more_than_half_of_the_others_convict(peers: int, needed: int | None) -> None:
    """And never one: of two nobody can be convicted."""
    for reporting in range(peers):
        members = swarm(peers, reporting)
        head = replace(HEAD, electorate=tuple(member.peer for member in members))
        convicted = needed is not None and reporting >= needed
        assert caught(head, members) == ({"p0": reporting} if convicted else {})


def test_who_has_not_earned_a_vote_convicts_nobody() -> None:
    """Names cost nothing: of nine members six accuse an honest one, and none of them is a voter."""
    newcomers = tuple(header(f"x{index}", reports=(("p0", "lied"),)) for index in range(6))
    assert caught(HEAD, (*ALL, *newcomers)) == {}


def test_the_word_of_the_accused_does_not_count() -> None:
    """Neither for nor against itself, however often anybody says it."""
    members = list(swarm(3, 1))
    assert caught(HEAD, members) == {}
    members[0] = header("p0", reports=(("p0", "I did"),))
    assert caught(HEAD, members) == {}
    loud = tuple((f"p{index}", "lied") for index in range(MAX_REPORTS - 7))
    assert caught(HEAD, (header("p0", reports=loud), *ALL[1:])) == {}


def test_who_is_not_there_can_be_convicted_too() -> None:
    """A liar may stay away for a round: then all members are the others."""
    members = tuple(header(name, reports=(("p9", "lied"),)) for name in NAMES[:2])
    assert caught(HEAD, (*members, ALL[2])) == {"p9": 2}
    assert caught(HEAD, (members[0], *ALL[1:])) == {}


def decided(head: ChainHead, members: tuple[ContributionHeader, ...], cooldown: int) -> Update:
    """What an honest coordinator would propose after this head."""
    theirs = replace(rules("p0"), aggregation=AggregationRules(rule="mean", cooldown_rounds=cooldown))
    judgement = judgement_of(theirs, head, members, ())
    weights, scales, pulls = norms.table_of(judgement)
    gave = givers(members)
    plain = replace(
        update(), members=members, parent=head.anchor, round=head.round + 1, contributors=(gave,) * 3,
        weights=weights, scales=scales, pulls=pulls, records=judgement.records,
    )  # fmt: skip
    return replace(plain, penalties=penalties.due(theirs, head, plain, judgement.findings))


@pytest.mark.parametrize("cooldown", [1, 3])
def test_a_convicted_peer_counts_and_reduces_nothing_for_so_many_rounds(cooldown: int) -> None:
    """From the round in which it is reported; afterwards it does both again."""
    accusing, quiet = swarm(3, 2), swarm(3, 0)
    head, counted, rows = HEAD, [], []
    for number in range(cooldown + 3):
        members = tuple(
            replace(item, anchor=head.anchor).signed(ModelKeys(item.peer))
            for item in (accusing if number == 1 else quiet)
        )
        item = decided(head, members, cooldown)
        reduces = "p0" in shard_owners(rules("p0"), head, members, 0)
        assert reduces == (item.weights[0][0] > 0)
        assert min(item.weights[0][1:]) > 0
        assert item.contributors[0] & 1, "what it gave was judged: it does not come back"
        counted.append(reduces)
        rows += [penalty for penalty in item.penalties if penalty[1] == MISDECLARED]
        head = head.after(item)
    assert counted == [True, *[False] * (1 + cooldown), True]
    until = HEAD.round + 2 + 1 + cooldown
    assert rows == [("p0", MISDECLARED, 0, until, -1, "2 of 3 members caught it: lied")] * (1 + cooldown)


def test_who_is_reported_again_begins_again() -> None:
    """The cool-down counts from the newest conviction."""
    head = HEAD.after(decided(HEAD, swarm(3, 2), 4))
    members = tuple(replace(item, anchor=head.anchor).signed(ModelKeys(item.peer)) for item in swarm(3, 2))
    (row,) = decided(head, members, 4).penalties
    assert row[3] == head.round + 1 + 1 + 4
    (before,) = head.caught
    assert before[3] == row[3] - 1


def test_if_all_are_guilty_somebody_reduces_all_the_same() -> None:
    """Or the run would stand still for ever."""
    accused = tuple((name, "lied") for name in NAMES)
    members = tuple(header(name, reports=accused) for name in NAMES)
    assert set(caught(HEAD, members)) == set(NAMES)
    assert set(shard_owners(rules("p0"), HEAD, members, 0)) <= set(NAMES)
    assert judgement_of(rules("p0"), HEAD, members, ()).weights[0] == (0, 0, 0)


def test_a_verdict_fits_its_line() -> None:
    """However long the evidence of the reporters is."""
    long = tuple(header(name, reports=(("p9", "x" * MAX_EVIDENCE),)) for name in NAMES)
    (row,) = [row for row in decided(HEAD, long, 8).penalties if row[1] == MISDECLARED]
    assert len(row[5]) == MAX_EVIDENCE
    assert row[5].startswith("3 of 3 members caught it: xxx")


def test_reducers_are_those_of_the_ballot() -> None:
    """The runs of parts rotate with it; each part has one of the members."""
    by_ballot = {shard_owners(rules("p0"), HEAD, ALL, place(ballot).ballot) for ballot in range(20)}
    assert len(by_ballot) > 1
    assert all(set(reducers) <= set(NAMES) and len(reducers) == 3 for reducers in by_ballot)
