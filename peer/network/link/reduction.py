"""A reducer's arithmetic: it keeps members' encoded parts, averages them off the event loop, and
encodes the mean once.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np

from peer.consensus.codec import rows
from peer.consensus.codec.blockwise import Floats, inner_product, tiles
from peer.consensus.codec.codec import Codec, weighted_mean
from peer.consensus.protocol.block import VOID
from peer.consensus.protocol.encoding import digest_of
from peer.consensus.protocol.messages import BallotId
from peer.consensus.protocol.norms import PartNorms
from peer.consensus.rounds.interface import NORM, ROW, SUM, BufferPart, CheckMean, CheckRow, ReducePart
from peer.node.store.objects import ObjectStore

LASTS_BYTES = 64 << 20
"""Decoded parts of the last committed mean that are kept: each is needed once per member."""


class ReductionWorker:
    """`peer.consensus.rounds.driver.ReductionPort` with numpy in `executor`."""

    def __init__(
        self, codec: Codec, objects: ObjectStore, executor: Executor, call_soon: Callable[[Callable[[], None]], object]
    ) -> None:
        self._codec, self._codec_of_means, self._objects = codec, codec.of_means, objects
        self._executor, self._call_soon = executor, call_soon
        self._place: BallotId | None = None
        self._kept: dict[tuple[BallotId, str, int], tuple[tuple[bytes, ...], bytes]] = {}
        self._lasts: dict[bytes, _Last] = {}

    def keep(self, effect: BufferPart) -> None:
        if self._place != effect.place:  # what an earlier ballot left will not be reduced any more
            self._place = effect.place
            self._kept.clear()
        self._kept[effect.place, effect.sender, effect.part] = (effect.path, effect.payload)

    def measure(self, payload: bytes, direction: bytes, done: Callable[[PartNorms], None]) -> None:
        working = self._executor.submit(self._figures, payload, direction)
        working.add_done_callback(lambda _: self._call_soon(lambda: done(working.result())))

    def reduce(self, effect: ReducePart, done: Callable[[bytes], None]) -> None:
        keys = [(effect.place, member, effect.part) for member in effect.rows]
        payloads = {key[1]: self._kept.pop(key)[1] for key in keys}
        working = self._executor.submit(self._named_mean, payloads, effect)

        def finish() -> None:
            named = working.result()
            if named is not None:
                self._objects.store(*named, lambda: done(named[0]))

        working.add_done_callback(lambda _: self._call_soon(finish))

    def check(self, effect: CheckMean, me: str, whole: bytes, mine: bytes | None, done: Callable[[str], None]) -> None:
        working = self._executor.submit(self._fault_of, effect, me, whole, mine)
        working.add_done_callback(lambda _: self._call_soon(lambda: done(working.result())))

    def check_row(self, effect: CheckRow, whole: bytes, done: Callable[[bool], None]) -> None:
        working = self._executor.submit(self._is_row_right, effect, whole)
        working.add_done_callback(lambda _: self._call_soon(lambda: done(working.result())))

    def forget(self) -> None:
        self._kept.clear()
        self._lasts.clear()

    def _figures(self, payload: bytes, direction: bytes) -> PartNorms:
        last = self._last(direction, self._codec.elements(payload))
        square, dot, decode_tile = 0.0, 0.0, self._codec.opened(payload)
        for tile in tiles(self._codec.elements(payload)):
            values = decode_tile(tile)
            square += inner_product(values, values)
            if last is not None:
                dot += inner_product(values, last.values[tile])
        return PartNorms(square) if last is None else PartNorms(square, dot, last.square)

    def _named_mean(self, payloads: dict[str, bytes], effect: ReducePart) -> tuple[bytes, bytes] | None:
        mean = self._mean([payloads[member] for member in effect.members], effect)
        if mean is None:
            return None
        values = self._codec_of_means.decode(mean)
        sketch = rows.Sketch.drawn(effect.place.anchor, effect.part, mean, values.size)
        whole = mean + b"".join(
            self._row(sketch, values, payloads[member], declared)
            for member, declared in zip(effect.rows, effect.declared, strict=True)
        )
        return digest_of(whole), whole

    def _row(self, sketch: rows.Sketch, values: Floats, payload: bytes, declared: float) -> bytes:
        return rows.row_of(sketch.of_pieces(rows.contribution_on(self._codec, values, payload)), declared)

    def _fault_of(self, effect: CheckMean, me: str, whole: bytes, mine: bytes | None) -> str:
        """What is wrong with a mean; empty if nothing is."""
        mean, shown = rows.taken_apart(whole, len(effect.names))
        values = self._codec_of_means.decode(mean)
        sketch = rows.Sketch.drawn(effect.anchor, effect.part, mean, values.size)
        formula = rows.MeanFormula(
            weights=effect.weights, declared=effect.declared, missing=effect.missing, scale=effect.scale,
            pull=max(0, effect.pull),
        )  # fmt: skip
        last = self._last(effect.direction, values.size) if effect.pull > 0 else None
        is_comparable = effect.pull == 0 or last is not None or (effect.pull > 0 and effect.direction == VOID)
        sums = rows.rows_in(shown)
        if is_comparable and not rows.sum_is_right(
            self._codec, sketch, mean, values, sums, formula, None if last is None else last.values
        ):
            return SUM
        if mine is not None:
            index = effect.names.index(me)
            row = self._row(sketch, values, mine, effect.declared[index])
            if not rows.row_is_right(shown[index * rows.ROW_BYTES :][: rows.ROW_BYTES], row, tolerances=2.0):
                return ROW
        return "" if rows.norms_are_declared(sums, formula) else NORM

    def _is_row_right(self, effect: CheckRow, whole: bytes) -> bool:
        mean, shown = rows.taken_apart(whole, effect.contributors.bit_count())
        if len(mean) != self._codec_of_means.part_bytes(self._codec.elements(effect.payload)):
            return True  # whoever shows this names another part, or more or fewer contributors than are behind it
        values = self._codec_of_means.decode(mean)
        sketch = rows.Sketch.drawn(effect.anchor, effect.part, mean, values.size)
        row = self._row(sketch, values, effect.payload, effect.declared)
        return rows.row_is_right(shown[effect.rank * rows.ROW_BYTES :][: rows.ROW_BYTES], row)

    def _mean(self, payloads: list[bytes], effect: ReducePart) -> bytes | None:
        """The encoded mean of what is finite; None if there is nothing to say."""
        last = self._last(effect.direction, self._codec.elements(payloads[0])) if effect.pull else None
        if effect.pull and last is None and effect.direction != VOID:
            return None
        pairs = [pair for pair in zip(payloads, effect.weights, strict=True) if self._is_finite(pair[0])]
        if not pairs:
            return None
        finite, weights = zip(*pairs, strict=True)
        opened = [self._codec.opened(payload) for payload in finite]

        def mean_of(tile: slice) -> Floats:
            return weighted_mean(
                [decode_tile(tile) for decode_tile in opened], weights, effect.missing, scale=effect.scale,
                pull=effect.pull, last=None if last is None else last.values[tile],
            )  # fmt: skip

        return self._codec_of_means.encode_tiles(self._codec.elements(finite[0]), mean_of)

    def _is_finite(self, payload: bytes) -> bool:
        return self._codec.is_finite(payload) or bool(np.isfinite(self._codec.decode(payload)).all())

    def _last(self, direction: bytes, elements: int) -> _Last | None:
        """The decoded last committed mean of a part, without its rows; None without one. In the executor's threads."""
        if direction == VOID:
            return None
        found = self._lasts.get(direction)
        if found is not None:
            return found
        payload = self._objects.load(direction)
        if payload is None:
            return None
        values = self._codec_of_means.decode(self._codec.without_rows(payload, elements))
        last = _Last(values, sum(inner_product(values[tile], values[tile]) for tile in tiles(values.size)))
        if sum(kept.values.nbytes for kept in list(self._lasts.values())) + values.nbytes <= LASTS_BYTES:
            self._lasts[direction] = last
        return last


@dataclass(frozen=True)
class _Last:
    """A decoded mean, and its square."""

    values: Floats
    square: float
