"""Rows show a false mean, and never an honest one: not for spikes, missing parts, scales, pulls, or any size."""

from __future__ import annotations

import time
import timeit
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pytest

from peer.consensus.codec import rows
from peer.consensus.codec.blockwise import BLOCK, Floats
from peer.consensus.codec.codec import Codec, weighted_mean
from peer.consensus.codec.rows import BUCKETS, ROW_BYTES, RUN, SPREAD, MeanFormula, Sketch
from peer.consensus.codec.topk import CHUNK
from peer.consensus.protocol import norms
from peer.consensus.protocol.block import WEIGHT_ONE
from peer.consensus.protocol.layout import Part, divide
from tests.peer.consensus.rounds.build import HEAD, header

WIRES = ("float32", "float16", "int8", "int4", "sparse")
BY_DAY, BY_NIGHT = 60, 20_000
"""Honest means of each wire."""
SIZES = (2 * CHUNK, 5000, CHUNK, 700, SPREAD + 100)
"""Elements of a part: whole units of all wires, and not; so many that runs of them fall into one bucket."""


@dataclass(frozen=True)
class Round:
    """A part of a round: what was given, the formula, and the mean with its rows."""

    codec: Codec
    parts: tuple[bytes, ...]
    """Encoded contributions."""
    formula: MeanFormula
    last: Floats | None
    """Decoded."""
    mean: bytes
    rows: bytes = b""
    anchor: bytes = field(default=HEAD.anchor, repr=False)

    @property
    def values(self) -> Floats:
        return self.codec.of_means.decode(self.mean)

    @property
    def sketch(self) -> Sketch:
        return Sketch.drawn(self.anchor, 0, self.mean, self.values.size)

    def row(self, index: int, *, scaled: float = 1.0) -> bytes:
        """The right one of a contributor; or that of what it did not give."""
        contribution = rows.contribution_on(self.codec, self.values, self.parts[index])
        return rows.row_of(self.sketch.of_pieces(contribution) * scaled, self.formula.declared[index])

    def honest(self) -> Round:
        """With all rows as they are."""
        return replace(self, rows=b"".join(self.row(index) for index in range(len(self.parts))))

    def said(self, mean: bytes) -> Round:
        """The same contributions behind another mean: rows of its own sketch, which is all that a liar can show."""
        return replace(self, mean=mean).honest()

    def sum_is_right(self) -> bool:
        found = rows.rows_in(self.rows)
        return rows.sum_is_right(
            self.codec, self.sketch, self.mean, self.values, found, self.formula, self.last
        )  # fmt: skip

    def norms_are_declared(self) -> bool:
        return rows.norms_are_declared(rows.rows_in(self.rows), self.formula)

    def mine_is_right(self, index: int) -> bool:
        """As a contributor compares the row about itself."""
        said = self.rows[index * ROW_BYTES :][:ROW_BYTES]
        return rows.row_is_right(said, self.row(index), tolerances=2.0)


def made(wire: str, seed: int) -> Round:
    """Some contributions of any kind that honest peers give, averaged by any formula that a round may have."""
    dice = np.random.default_rng(seed)
    codec, elements = Codec(wire), int(dice.choice(SIZES, p=(0.2, 0.2, 0.2, 0.35, 0.05)))
    members = 64 if dice.random() < 0.02 else int(dice.integers(1, 9))
    size = 10.0 ** float(dice.uniform(-30, 14) if dice.random() < 0.2 else dice.uniform(-6, 3))
    given = [_given(dice, elements, size) for _ in range(members)]
    if dice.random() < 0.1:  # next to nothing is left of them
        given = [values if index % 2 else -given[max(0, index - 1)] for index, values in enumerate(given)]
    parts = tuple(map(codec.encode, given))
    decoded = [codec.decode(part) for part in parts]
    weights = [int(weight) for weight in dice.integers(1, WEIGHT_ONE // members + 1, members)]
    if members > 1 and dice.random() < 0.3:
        weights[int(dice.integers(members))] = 0
    several = float(dice.uniform(1, 900)) if dice.random() < 0.3 else 1.0  # of the layer this is a part
    declared = [_declared(several * float(np.square(values.astype(np.float64)).sum())) for values in decoded]
    pulls = dice.random() < 0.4
    last = codec.of_means.decode(codec.of_means.encode(_given(dice, elements, size))) if pulls else None
    formula = MeanFormula(
        weights=weights, declared=declared, missing=int(dice.integers(0, 20_000)) if dice.random() < 0.5 else 0,
        scale=int(dice.integers(1, WEIGHT_ONE)) if dice.random() < 0.4 else WEIGHT_ONE,
        pull=int(dice.integers(1, WEIGHT_ONE)) if pulls else 0,
    )  # fmt: skip
    counted = [(values, weight) for values, weight in zip(decoded, weights, strict=True) if weight]
    mean = weighted_mean(
        [values for values, _ in counted], [weight for _, weight in counted], formula.missing, scale=formula.scale,
        pull=formula.pull, last=last,
    )  # fmt: skip
    return Round(codec, parts, formula, last, codec.of_means.encode(mean)).honest()


def _declared(square: float) -> float:
    """The norm of a part that has this square, as a header says it."""
    part = Part(0, 0, 1)
    said = header("p0", norms=norms.declare(divide((part,), 1)[0], {0: norms.PartNorms(square)}))
    return norms.declared_of_part(said, 0)


def _given(dice: np.random.Generator, elements: int, size: float) -> Floats:
    """Gaussian numbers of any size; often with one spike in each block, almost nothing but zeros, or one number."""
    values = dice.standard_normal(elements) * size
    match int(dice.integers(5)):
        case 0:
            values[::BLOCK] *= float(dice.uniform(5, 500))
        case 1:
            values[dice.random(elements) < 0.95] = 0
            values[0] = size
        case 2:
            values *= 10.0 ** dice.uniform(-3, 1, elements)
        case 3:
            values = np.sign(values) * size * float(dice.uniform(1, 9))
    return values.astype(np.float32)


def seeds(wire: str, count: int) -> range:
    first = zlib.crc32(wire.encode()) % 1000 * 1_000_000
    return range(first, first + count)


def raises_an_alarm(honest: Round) -> bool:
    fine = honest.sum_is_right() and honest.norms_are_declared()
    return not (fine and all(honest.mine_is_right(index) for index in range(len(honest.parts))))


@pytest.mark.parametrize("wire", WIRES)
def test_an_honest_mean_raises_no_alarm(wire: str) -> None:
    """Not one in a thousand: an alarm convicts somebody."""
    assert [seed for seed in seeds(wire, BY_DAY) if raises_an_alarm(made(wire, seed))] == []


@pytest.mark.parametrize("wire", WIRES)
def test_nobody_makes_an_honest_owner_lie_by_giving_one_number(wire: str) -> None:
    """All are rounded by the same then, up to half a step: three times the square that is lost on average."""
    codec, alarms = Codec(wire), []
    for seed in range(BY_DAY):
        dice = np.random.default_rng(seed)
        signs = dice.choice((-1.0, 1.0), CHUNK).astype(np.float32)
        part = codec.encode(signs * np.float32(dice.uniform(0.1, 9)))
        given = codec.decode(part)
        declared = _declared(float(np.square(given.astype(np.float64)).sum()))
        formula = MeanFormula(weights=(40_000,), missing=int(dice.integers(0, 20_000)), declared=(declared,))
        mean = codec.of_means.encode(weighted_mean([given], formula.weights, formula.missing))
        if raises_an_alarm(Round(codec, (part,), formula, None, mean).honest()):
            alarms.append(seed)
    assert alarms == []


@pytest.mark.nightly
@pytest.mark.parametrize("wire", WIRES)
def test_no_honest_mean_of_a_hundred_thousand_raises_an_alarm(wire: str) -> None:
    """All wires together."""
    assert [seed for seed in seeds(wire, BY_NIGHT) if raises_an_alarm(made(wire, seed))] == []


# ---- what they show ----

LIES_TOLD = 10
"""Draws of each lie and wire."""


def plain(wire: str, seed: int) -> Round:
    """A mean of three Gaussian contributions of one size, which leaves a liar the least room."""
    dice, codec = np.random.default_rng(seed), Codec(wire)
    parts = tuple(codec.encode(dice.standard_normal(2 * CHUNK).astype(np.float32)) for _ in range(3))
    decoded = [codec.decode(part) for part in parts]
    weights = (20_000, 25_000, 20_000)
    declared = tuple(_declared(float(np.square(values.astype(np.float64)).sum())) for values in decoded)
    mean = codec.of_means.encode(weighted_mean(decoded, weights))
    return Round(codec, parts, MeanFormula(weights=weights, declared=declared), None, mean).honest()


def times(factor: float) -> Callable[[Round], Round]:
    return lambda honest: honest.said(honest.codec.of_means.encode(honest.values * np.float32(factor)))


def with_a_block(honest: Round) -> Round:
    """64 elements of 8,192 are ten times as large."""
    values = honest.values.copy()
    first = int(np.flatnonzero(values)[0]) // BLOCK * BLOCK
    values[first : first + BLOCK] *= 10 if not honest.codec.is_sparse else 30
    return honest.said(honest.codec.of_means.encode(values))


def weighed_otherwise(honest: Round) -> Round:
    """One contribution counts for all three."""
    return honest.said(honest.codec.of_means.encode(honest.codec.decode(honest.parts[0])))


def missing_untold(honest: Round) -> Round:
    """As if half of all weight were missing."""
    return replace(honest, formula=replace(honest.formula, missing=195_000))


def scaled_untold(honest: Round) -> Round:
    return replace(honest, formula=replace(honest.formula, scale=WEIGHT_ONE // 2))


def pulled_untold(honest: Round) -> Round:
    """To a mean that there was not."""
    return replace(honest, formula=replace(honest.formula, pull=WEIGHT_ONE), last=np.zeros_like(honest.values))


def of_another_part(honest: Round) -> Round:
    """Right rows, for another sketch."""
    return replace(honest, anchor=bytes(32))


FALSE_SUMS: dict[str, Callable[[Round], Round]] = {
    "half as much again": times(1.5),
    "its sign turned": times(-1.0),
    "a block replaced": with_a_block,
    "one contribution alone": weighed_otherwise,
    "other weights missing": missing_untold,
    "another scale": scaled_untold,
    "another pull": pulled_untold,
    "rows of another round": of_another_part,
}


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("what", FALSE_SUMS)
def test_a_false_mean_is_not_what_its_rows_come_to(wire: str, what: str) -> None:
    """Though its owner shows the right rows for it."""
    for seed in range(LIES_TOLD):
        honest = plain(wire, seed)
        assert honest.sum_is_right()
        assert not FALSE_SUMS[what](honest).sum_is_right(), seed


@pytest.mark.parametrize("wire", WIRES)
def test_an_empty_mean_is_false_unless_it_is_sparse(wire: str) -> None:
    """What of a sparse mean is not zero its owner may choose: of that alone the values are checked. It is a limit."""
    assert times(0.0)(plain(wire, 3)).sum_is_right() is (wire == "sparse")


@pytest.mark.parametrize("wire", WIRES)
def test_numbers_that_are_none_are_never_right(wire: str) -> None:
    """In the mean, or in a row."""
    honest = plain(wire, 1)
    values = honest.values.copy()
    values[int(np.flatnonzero(values)[0])] = np.nan
    assert not honest.said(honest.codec.of_means.encode(values)).sum_is_right()
    for spoilt in (np.nan, np.inf):
        found = rows.rows_in(honest.rows).copy()
        found[1, 3] = spoilt
        said = replace(honest, rows=found.astype("<f2").tobytes())
        assert not said.sum_is_right()
        assert not said.norms_are_declared()
        assert not said.mine_is_right(1)


@pytest.mark.parametrize(("wire", "most"), [("int8", 127), ("int4", 7), ("sparse", 127)])
def test_inflated_scales_hide_nothing(wire: str, most: int) -> None:
    """A scale four times as large would allow four times the error; its largest level tells."""
    honest = plain(wire, 2)
    whole = bytearray(honest.mean)
    scales = honest.codec.of_means.rows(whole)[0].view("<u2")
    scales += np.uint16(2 << 7)  # of a bfloat16 the exponent begins at bit 7
    inflated = bytes(whole)
    assert np.allclose(honest.codec.of_means.decode(inflated), 4 * honest.values)
    assert not honest.said(inflated).sum_is_right()
    levels = honest.codec.of_means.rows(whole)[-1]
    if wire == "int4":
        low, high = (levels & 15).astype(int) - 8, (levels >> 4).astype(int) - 8
        levels[:] = ((low // 4 + 8) | (high // 4 + 8) << 4).astype(np.uint8)
    else:
        levels[:] = (levels.view(np.int8) // 4).view(np.uint8)
    coarse = honest.said(bytes(whole))
    assert np.isnan(coarse.codec.of_means.rounding_square(coarse.mean, coarse.values))
    assert not coarse.sum_is_right(), f"no level of {most} is used"


@pytest.mark.parametrize("wire", WIRES)
def test_a_row_of_somebody_else_is_seen_by_whom_it_is_about(wire: str) -> None:
    """Also where the sum still fits: two contributors of one weight, whose rows have changed places."""
    for seed in range(LIES_TOLD):
        honest = plain(wire, seed)
        assert all(honest.mine_is_right(index) for index in range(3))
        first, second, third = (honest.rows[at * ROW_BYTES :][:ROW_BYTES] for at in range(3))
        swapped = replace(honest, rows=third + second + first)
        assert [swapped.mine_is_right(index) for index in range(3)] == [False, True, False]
        if not honest.codec.is_sparse:  # there their norms differ by what lies outside of the mean
            assert not replace(honest, rows=first + first + third).sum_is_right()
        turned = replace(honest, rows=honest.row(0, scaled=-1.0) + second + third)
        assert not turned.mine_is_right(0)
        assert not turned.sum_is_right()


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("factor", [2.0, 10.0, -2.0])
def test_a_row_that_is_larger_than_declared_is_seen_by_all(wire: str, factor: float) -> None:
    """At twice the norm at the latest; of a sparse contribution that lies in the mean as a whole."""
    for seed in range(LIES_TOLD):
        honest = plain(wire, seed)
        if honest.codec.is_sparse:
            inside = np.concatenate(
                [piece.copy() for piece in rows.contribution_on(honest.codec, honest.values, honest.parts[1])]
            )
            kept = float(np.linalg.norm(inside.astype(np.float64)))
            declared = (honest.formula.declared[0], kept, honest.formula.declared[2])
            honest = replace(honest, formula=replace(honest.formula, declared=declared)).honest()
        assert honest.norms_are_declared()
        parts = [honest.row(0), honest.row(1, scaled=factor), honest.row(2)]
        assert not replace(honest, rows=b"".join(parts)).norms_are_declared()
        unweighed = replace(honest.formula, weights=(20_000, 0, 20_000))
        assert replace(honest, formula=unweighed, rows=b"".join(parts)).norms_are_declared(), "it counts nothing"


def test_a_judge_allows_half_of_what_an_objector_allows() -> None:
    """So that no honest objection is turned down for the last bit of a sum."""
    honest = plain("int8", 4)
    mine = rows.rows_in(honest.row(0))[0]
    off = np.random.default_rng(1).standard_normal(BUCKETS)
    allowed = 4 * rows.HALF_ULP * float(np.linalg.norm(mine)) + 8 * rows.HALF_SUBNORMAL * BUCKETS**0.5
    for size, judged, objected in ((0.8, True, True), (1.5, False, True), (2.5, False, False)):
        said = mine + off / np.linalg.norm(off) * allowed * size
        row = said.astype("<f2").tobytes()
        assert rows.row_is_right(row, honest.row(0)) is judged
        assert rows.row_is_right(row, honest.row(0), tolerances=2.0) is objected


# ---- the sketch ----


GOLDEN_SIGNS = [1, 1, -1, -1, 1, -1, -1, 1, 1, 1, 1, -1, 1, 1, -1, -1]
GOLDEN_BUCKETS = [16, 38, 60, 47, 29, 34, 42, 61, 32, 31, 54, 22, 28, 57, 27, 28]


def hashed(sketch: Sketch) -> tuple[bytes, bytes]:
    return sketch.octets.tobytes()[:16], sketch.buckets.astype(np.uint8).tobytes()[:16]


def test_every_mean_has_its_own_sketch_and_everybody_draws_the_same() -> None:
    """By the anchor, the part and all of its bytes: golden, for peers of any numpy."""
    mine = Sketch.drawn(HEAD.anchor, 1, b"mean", SPREAD)
    assert hashed(mine) == hashed(Sketch.drawn(HEAD.anchor, 1, b"mean", SPREAD))
    assert 8 * mine.octets.size == SPREAD == RUN * mine.buckets.size
    others = (
        Sketch.drawn(bytes(32), 1, b"mean", SPREAD), Sketch.drawn(HEAD.anchor, 2, b"mean", SPREAD),
        Sketch.drawn(HEAD.anchor, 1, b"Mean", SPREAD),
    )  # fmt: skip
    assert len({hashed(mine), *map(hashed, others)}) == 4
    golden = Sketch.drawn(bytes(32), 3, b"a mean", 64)
    assert (1 - 2 * np.unpackbits(golden.octets)[:16].astype(int)).tolist() == GOLDEN_SIGNS
    assert golden.buckets[:16].tolist() == GOLDEN_BUCKETS


@pytest.mark.parametrize("elements", [1, 7, 64, 700, SPREAD - 1, SPREAD, SPREAD + 3])
def test_a_sketch_keeps_norms_and_is_linear(elements: int) -> None:
    """On average over sketches; a part that is shorter than its whole units is as if zeros followed."""
    dice = np.random.default_rng(elements)
    one, two = (dice.standard_normal(elements).astype(np.float32) for _ in range(2))
    squares = []
    for number in range(40):
        sketch = Sketch.drawn(HEAD.anchor, 0, b"%d" % number, elements)
        assert np.allclose(sketch.of(one) + sketch.of(two), sketch.of(one + two), atol=1e-3)
        squares.append(float(np.square(sketch.of(one)).sum()))
    assert np.mean(squares) == pytest.approx(float(np.square(one).sum()), rel=6 / np.sqrt(40 * BUCKETS / 2))
    assert sketch.buckets.max() < BUCKETS


def test_who_gives_all_in_a_few_elements_shows_no_larger_norm_than_it_has() -> None:
    """Wherever they lie: else its row would hold an honest owner for a liar."""
    formula = MeanFormula(weights=(1,), declared=(1.0,))
    for step in (1, 2 * SPREAD // RUN):
        spike = np.zeros(2 * SPREAD, np.float32)
        spike[: RUN * step : step] = RUN**-0.5
        for number in range(200):
            row = rows.row_of(Sketch.drawn(HEAD.anchor, 0, b"%d" % number, spike.size).of(spike), 1.0)
            assert rows.norms_are_declared(rows.rows_in(row), formula)


def test_all_buckets_are_used_alike() -> None:
    """By chance within five deviations."""
    counts: npt.NDArray[np.int64] = np.zeros(BUCKETS, np.int64)
    for number in range(20):
        counts += np.bincount(Sketch.drawn(HEAD.anchor, 0, b"%d" % number, 4096).buckets, minlength=BUCKETS)
    expected = counts.sum() / BUCKETS
    assert (np.abs(counts - expected) <= 5 * np.sqrt(expected)).all()


def test_a_mean_and_its_rows_are_taken_apart() -> None:
    assert rows.taken_apart(b"mean" + bytes(2 * ROW_BYTES), 2) == (b"mean", bytes(2 * ROW_BYTES))
    assert rows.taken_apart(b"mean", 0) == (b"mean", b"")


@pytest.mark.parametrize("declared", [0.0, 1e-30, rows.NEARLY_NOTHING, float("nan"), float("inf"), -1.0])
def test_who_declares_no_norm_has_an_empty_row(declared: float) -> None:
    """It weighs nothing, or next to nothing."""
    sketch = Sketch.drawn(HEAD.anchor, 0, b"mean", 8)
    assert rows.row_of(sketch.of(np.ones(8, np.float32)), declared) == bytes(ROW_BYTES)


@pytest.mark.parametrize("wire", ["float32", "int8", "int4"])
def test_nobody_makes_an_honest_owner_lie_by_declaring_next_to_nothing(wire: str) -> None:
    """A reducer lets any square below 1e-30 pass: over the least norm that can be declared no float16 would hold it."""
    dice, codec = np.random.default_rng(5), Codec(wire)
    values = [dice.standard_normal(CHUNK).astype(np.float32) for _ in range(2)]
    values.append((values[0] / np.linalg.norm(values[0]) * 1e-15).astype(np.float32))
    parts = tuple(map(codec.encode, values))
    formula = MeanFormula(weights=(1, 1, 1), declared=(80.0, 80.0, _declared(1e-45)))
    mean = codec.encode(weighted_mean([codec.decode(part) for part in parts], formula.weights))
    assert not raises_an_alarm(Round(codec, parts, formula, None, mean).honest())
    alone = replace(formula, weights=(0, 0, 65_536))
    assert not raises_an_alarm(Round(codec, parts, alone, None, parts[2]).honest())


def test_a_sketch_adds_what_lies_a_shift_apart() -> None:
    """The same bits as by the definition, since an owner and those who check it compare float16 sums."""
    values = np.random.default_rng(3).standard_normal(2 * SPREAD + 5).astype(np.float32)
    sketch = Sketch.drawn(HEAD.anchor, 2, b"mean", values.size)
    runs = np.zeros(sketch.buckets.size, np.float32)
    signs = 1 - 2 * np.unpackbits(sketch.octets)[: RUN * runs.size].astype(np.float32)
    whole = np.pad(values, (0, signs.size - values.size))
    for elements, shift in zip((whole * signs).reshape(RUN, -1), sketch.shifts, strict=True):
        runs += np.roll(elements, shift)
    assert (sketch.of(values) == np.bincount(sketch.buckets, weights=runs, minlength=BUCKETS)).all()


MOST_SORTS = 5.0
"""Sorting as many numbers takes 3 ns of a processor for each. Measured with all decoding: 1.4 to 2.4 times that, and up
to 3.4 beside programs that fill the caches, which sorting does without."""


@pytest.mark.nightly
@pytest.mark.parametrize("wire", [wire for wire in WIRES if wire != "float32"])
def test_rows_cost_a_few_nanoseconds_of_each_parameter(wire: str) -> None:
    """To check every mean and one's own row of it, and to make the four rows of one mean in four."""
    dice, codec, elements = np.random.default_rng(1), Codec(wire), 1 << 20
    parts = [codec.encode(dice.standard_normal(elements).astype(np.float32)) for _ in range(4)]
    mean = codec.of_means.encode(weighted_mean([codec.decode(part) for part in parts], (16_384,) * 4))
    formula = MeanFormula(weights=(16_384,) * 4, declared=(1100.0,) * 4)

    def shown(given: list[bytes]) -> tuple[Sketch, Floats, bytes]:
        values = codec.of_means.decode(mean)
        sketch = Sketch.drawn(HEAD.anchor, 0, mean, elements)
        pieces = (rows.contribution_on(codec, values, part) for part in given)
        return sketch, values, b"".join(rows.row_of(sketch.of_pieces(each), 1100.0) for each in pieces)

    made_rows = rows.rows_in(shown(parts)[2])

    def check() -> None:
        sketch, values, _ = shown(parts[:1])
        assert rows.sum_is_right(codec, sketch, mean, values, made_rows, formula, None)

    unsorted = dice.standard_normal(elements).astype(np.float32)
    checking_s, making_s, sorting_s = _least_seconds(check, lambda: shown(parts), lambda: np.sort(unsorted))
    assert checking_s + making_s / 4 <= MOST_SORTS * sorting_s


def _least_seconds(*works: Callable[[], object]) -> list[float]:
    """Of the processor, by turns: what other tests do to memory and caches meanwhile is done to all."""
    turns = [[timeit.timeit(work, timer=time.process_time, number=1) for work in works] for _ in range(40)]
    return [min(seconds) for seconds in zip(*turns, strict=True)]
