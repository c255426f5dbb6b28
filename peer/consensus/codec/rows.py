"""Rows: a mean carries one row per contribution, so that everybody can check the mean without the contributions.

A mean is linear in its contributions, and so is a random sketch S: S·mean is the weighted sum of the S·contribution, up
to the error of encoding the mean. S is drawn from the digest of the finished mean. The owner of a part appends
S·contribution of every contributor to its mean: one *row* each. Everybody who holds the mean compares it with the sum
of the rows; each contributor compares its own row with its own bytes. Contributions were pledged before the mean was
made, and S is unknown before the mean is fixed, so no owner can find a false mean that fits.

S is a count sketch (Charikar et al. 2002): every run of `RUN` elements is summed with random signs and added to one of
`BUCKETS` buckets at random. The elements of a run are drawn as well, each from another eighth of the part: an attacker
who knew the runs could put everything into one of them, whose sum is √RUN times its norm once in a hundred draws.
Norms are estimated within 1 / √(2 · BUCKETS), one standard deviation. A row is float16, divided by the norm that its
contributor declared for the part, since plain float16 would overflow.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from peer.consensus.codec.blockwise import Floats, tiles
from peer.consensus.codec.codec import Codec
from peer.consensus.protocol.block import WEIGHT_ONE
from peer.consensus.protocol.encoding import digest, digest_of

BUCKETS = 64
ROW_BYTES = 2 * BUCKETS
RUN = 8
SPREAD = 1 << 15
"""A part of fewer elements is sketched one by one, else too few runs would share the buckets."""
DEVIATIONS = 7.0 / math.sqrt(2 * BUCKETS)
"""By how much a norm that a row shows may exceed the declared one: seven standard deviations. At five one round in
sixteen of 64 members and 1,000 parts would raise a false alarm."""
ROUNDING = 1.35
"""How many times the largest error of the mean's own encoding the rows may be off: four standard deviations of a
sketch's norm, where errors are seldom the largest."""
HALF_ULP, HALF_SUBNORMAL = 2.0**-11, 2.0**-25
"""Of float16: relative, and absolute."""
NEARLY_NOTHING = 1e-14
"""Who declares no larger norm has an empty row: the square of a smaller one is lost in the float32 of a header, and
what reducers let pass would be any multiple of it."""
SUMS_DIFFER = 1e-5
"""Of float32 sums in another order, relative to what was summed."""

_SIGNS = 1 - 2 * np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).astype(np.float32)
"""Eight signs for each byte."""

Sums = npt.NDArray[np.float64]
"""(BUCKETS,)"""


@dataclass(frozen=True)
class Sketch:
    """S for one mean of so many elements."""

    octets: npt.NDArray[np.uint8]
    """One bit for the sign of each element, in their order in the part."""
    buckets: npt.NDArray[np.intp]
    """(runs,)"""
    shifts: tuple[int, ...]
    """(elements of a run,): by how many runs these are shifted against their order in the part."""

    @classmethod
    def drawn(cls, anchor: bytes, part: int, mean: bytes, elements: int) -> Sketch:
        """The one that belongs to these encoded bytes of this part of the round from `anchor`.

        Philox' raw numbers are the same in all versions of numpy (NEP 19).
        """
        key = int.from_bytes(digest("rows", anchor, part, digest_of(mean))[:16], "big")
        run = RUN if elements >= SPREAD else 1
        runs = -(-elements // run)
        source = np.random.Philox(key=key)
        octets = source.random_raw(-(-runs * run // 64) + -(-runs // 8)).astype("<u8").view(np.uint8)
        buckets = (octets[len(octets) - runs :] & (BUCKETS - 1)).astype(np.intp)
        shifts = source.random_raw(run) % np.uint64(runs) if run > 1 else (0,)
        return cls(octets[: -(-runs * run // 8)], buckets, tuple(map(int, shifts)))

    def of(self, values: Floats) -> Sums:
        """S·values."""
        return self.of_pieces(values[tile] for tile in tiles(values.size))

    def of_pieces(self, pieces: Iterable[Floats]) -> Sums:
        """S·values, which come in pieces of whole octets, the last one up to the end."""
        sums, start = np.zeros(len(self.buckets), np.float32), 0
        signs = np.empty((0, 8), np.float32)  # of a piece; new memory for each would take longer than all the rest
        with np.errstate(over="ignore", invalid="ignore"):
            for piece in pieces:
                octets = self.octets[start // 8 :][: -(-piece.size // 8)]
                if len(octets) > len(signs):
                    signs = np.empty((len(octets), 8), np.float32)
                drawn = np.take(_SIGNS, octets, axis=0, out=signs[: len(octets)], mode="clip").reshape(-1)
                self._add(sums, np.multiply(piece, drawn[: piece.size], out=drawn[: piece.size]), start)
                start += piece.size
            return np.bincount(self.buckets, weights=sums, minlength=BUCKETS).astype(np.float64)

    def _add(self, sums: Floats, signed: Floats, start: int) -> None:
        """Each element to the sum of its run."""
        while signed.size:
            place, at = divmod(start, len(sums))
            first = (at + self.shifts[place]) % len(sums)
            count = min(signed.size, len(sums) - at, len(sums) - first)
            sums[first : first + count] += signed[:count]
            signed, start = signed[count:], start + count


@dataclass(frozen=True, kw_only=True)
class MeanFormula:
    """How a mean was to be computed: the arguments of `codec.weighted_mean`, and what its contributors declared."""

    weights: Sequence[int]
    declared: Sequence[float]
    """Norms of the part, one for each contributor."""
    missing: int = 0
    scale: int = WEIGHT_ONE
    pull: int = 0

    @property
    def factor(self) -> float:
        """What a contribution is multiplied by for each unit of weight."""
        total = sum(self.weights) + self.pull
        return self.scale / WEIGHT_ONE / math.sqrt(total * (total + self.missing)) if total else 0.0


def row_of(sums: Sums, declared: float) -> bytes:
    """The row of a contribution whose sketch this is; zeros where nothing, or nothing finite, was declared."""
    if not (NEARLY_NOTHING < declared < math.inf):
        return bytes(ROW_BYTES)
    with np.errstate(over="ignore", invalid="ignore"):
        return (sums / declared).astype("<f2").tobytes()


def taken_apart(whole: bytes, contributors: int) -> tuple[bytes, bytes]:
    """(the encoded mean, the rows of so many contributors behind it)."""
    at = len(whole) - contributors * ROW_BYTES
    return whole[:at], whole[at:]


def rows_in(rows: bytes) -> Sums:
    """(contributors, BUCKETS), over what each declared."""
    return np.frombuffer(rows, "<f2").astype(np.float64).reshape(-1, BUCKETS)


def sum_is_right(
    codec: Codec, sketch: Sketch, mean: bytes, values: Floats, rows: Sums, formula: MeanFormula, last: Floats | None
) -> bool:
    """Whether a mean (encoded, and its decoded `values`) is what its rows come to, up to what encoding it has lost.

    `last` is the decoded last mean, if the formula pulls to it.
    """
    shares = formula.factor * np.array(formula.weights, np.float64) * _finite(formula.declared)
    expected = shares @ rows if len(shares) else np.zeros(BUCKETS)
    if formula.pull and last is not None:
        pulled = _on_support(values, last) if codec.is_sparse else last
        expected = expected + formula.factor * formula.pull * sketch.of(pulled)
    found = sketch.of(values)
    error = float(np.linalg.norm(found - expected))
    halves = HALF_ULP * np.linalg.norm(rows, axis=1) + HALF_SUBNORMAL * math.sqrt(BUCKETS)
    bound = ROUNDING * math.sqrt(codec.of_means.rounding_square(mean, values)) + float(np.abs(shares) @ halves)
    bound += 2 * NEARLY_NOTHING * formula.factor * sum(formula.weights)
    # An infinite row would be an infinite bound.
    return math.isfinite(bound) and error <= bound + SUMS_DIFFER * float(np.linalg.norm(found))


def norms_are_declared(rows: Sums, formula: MeanFormula) -> bool:
    """Whether no row is larger than its contributor declared."""
    counted = [index for index, weight in enumerate(formula.weights) if weight]
    return bool((np.linalg.norm(rows[counted], axis=1) <= 1.0 + DEVIATIONS).all())


def row_is_right(row: bytes, mine: bytes, *, tolerances: float = 1.0) -> bool:
    """Whether a row is the one that these bytes come to; whoever objects allows twice what whoever judges allows."""
    said, right = rows_in(row)[0], rows_in(mine)[0]
    allowed = 4 * HALF_ULP * float(np.linalg.norm(right)) + 8 * HALF_SUBNORMAL * math.sqrt(BUCKETS)
    return bool(float(np.linalg.norm(said - right)) <= tolerances * allowed)


def contribution_on(codec: Codec, values: Floats, contribution: bytes) -> Iterator[Floats]:
    """What of an encoded contribution is sketched, in pieces: all of it; of a sparse run what lies where the mean is
    not zero, since the rest of it is not in the mean."""
    given = codec.pieces(contribution)
    if not codec.is_sparse:
        return given
    return (_on_support(values[tile], piece) for tile, piece in zip(codec.tiles(values.size), given, strict=True))


def _on_support(values: Floats, other: Floats) -> Floats:
    """What of `other` lies where the values are not zero."""
    kept = -(values != 0).astype(np.int32)  # all bits or none; `np.where` takes three times as long
    inside: Floats = (other[: values.size].view(np.int32) & kept).view(np.float32)
    return inside


def _finite(declared: Sequence[float]) -> Sums:
    norms = np.array(declared, np.float64)
    return np.where(np.isfinite(norms) & (norms > NEARLY_NOTHING), norms, 0.0)
