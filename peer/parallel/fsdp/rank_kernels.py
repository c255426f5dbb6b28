"""A round's arithmetic on what one rank owns: the calls of `peer.training.outer.kernels.Kernels`, one run of a layer at
a time.

A rank reads those units of an encoded part that its runs need, and writes those that begin in what it owns. All ranks
together make the same bytes as one device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

from torch import Tensor

from peer.consensus.codec.codec import Codec
from peer.consensus.protocol.layout import Part
from peer.parallel.fsdp.rank_messages import LayerWork, PartWork
from peer.parallel.fsdp.rank_shards import RankShards
from peer.training.outer.kernels import Kernels, PartUpdate
from peer.training.outer.layer_tensors import LayerTensors, Origin


class RankKernels:
    """The kernels of one rank."""

    def __init__(self, shards: RankShards, kernels: Kernels, codec: Codec, payload: Tensor) -> None:
        """`payload` is that of the arena, uint8."""
        self._shards, self._kernels, self._codec = shards, kernels, codec
        self._payload = payload.numpy()
        self.octets = 0
        """The bytes of encoded parts read or written so far."""
        self._calls: Mapping[str, Callable[[LayerWork], float]] = {
            "progress": lambda work: self._each(work, kernels.progress),
            "begin": lambda work: self._each(work, kernels.begin),
            "keep_start": lambda work: self._each(work, kernels.keep_start),
            "encode": self._encode,
            "apply": self._apply,
            "counted": lambda work: self._settle(work, kernels.counted),
            "restored": lambda work: self._settle(work, kernels.restored),
            "give_up": self._give_up,
        }

    def do(self, work: LayerWork) -> float:
        """Execute a call on the shards that this rank owns, and return its value."""
        return self._calls[work.call](work)

    def _owned(self, work: LayerWork) -> tuple[LayerTensors, ...]:
        return self._shards.owned(work.layer, Origin[work.origin])

    def _each(self, work: LayerWork, call: Callable[[LayerTensors], None]) -> float:
        for tensors in self._owned(work):
            call(tensors)
        return 0.0

    def _apply(self, work: LayerWork) -> float:
        given_up = []
        for tensors in self._owned(work):
            updates = [self._update(work, part, units) for part, units in self._needed(work, tensors)]
            given_up.append(self._kernels.apply(tensors, updates))
        return math.hypot(*given_up)

    def _update(self, work: LayerWork, part: PartWork, units: slice) -> PartUpdate:
        means = self._codec.of_means
        return PartUpdate(
            part=self._piece(work, part, units), outer=part.outer,
            mean=None if part.mean is None else self._read(means, part.mean, units),
            mine=None if part.mine is None else self._read(self._codec, part.mine, units),
            kept=part.kept, gives_up=part.gives_up, own=part.own,
        )  # fmt: skip

    def _settle(self, work: LayerWork, call: Callable[[LayerTensors, Part, bytes], float | None]) -> float:
        made = []
        for tensors in self._owned(work):
            for part, units in self._needed(work, tensors):
                assert part.mine is not None
                payload = self._read(self._codec, part.mine, units)
                made.append(call(tensors, self._piece(work, part, units), payload) or 0.0)
        return math.fsum(made)

    def _give_up(self, work: LayerWork) -> float:
        return math.hypot(*(
            self._kernels.give_up(tensors, self._piece(work, part, units))
            for tensors in self._owned(work) for part, units in self._needed(work, tensors)
        ))  # fmt: skip

    def _encode(self, work: LayerWork) -> float:
        """Encode a part into the arena. A unit that begins here may end in another rank's shard, whose residual is
        shared."""
        (part,), whole = work.parts, self._shards.gathered(work.layer)
        assert part.mine is not None
        for tensors in self._owned(work):
            units = self._beginning(part, tensors)
            if units.start < units.stop:
                payload = self._kernels.encode(whole, self._piece(work, part, units))
                self._write(part.mine, units, payload)
        return 0.0

    # ---- units ----

    def _needed(self, work: LayerWork, tensors: LayerTensors) -> Iterator[tuple[PartWork, slice]]:
        """The units of each part that overlap these tensors."""
        unit = self._codec.unit
        for part in work.parts:
            first = max(part.start, tensors.first) - part.start
            last = min(part.start + part.size, tensors.first + tensors.elements) - part.start
            if first < last:
                yield part, slice(first // unit, -(-last // unit))

    def _beginning(self, part: PartWork, tensors: LayerTensors) -> slice:
        """The units of a part whose first element lies here."""
        unit, before = self._codec.unit, tensors.first - part.start
        units = -(-part.size // unit)
        first, last = (min(max(0, -(-at // unit)), units) for at in (before, before + tensors.elements))
        return slice(first, last)

    def _piece(self, work: LayerWork, part: PartWork, units: slice) -> Part:
        """A part that consists of these units."""
        unit = self._codec.unit
        first, last = units.start * unit, min(units.stop * unit, part.size)
        return Part(work.layer, part.start + first, last - first)

    def _read(self, codec: Codec, where: tuple[int, int], units: slice) -> bytes:
        """The payload of only these units."""
        pieces = [rows[units].tobytes() for rows in codec.rows(self._payload[where[0] : where[0] + where[1]].data)]
        self.octets += sum(map(len, pieces))
        return b"".join(pieces)

    def _write(self, where: tuple[int, int], units: slice, payload: bytes) -> None:
        whole = self._codec.rows(self._payload[where[0] : where[0] + where[1]].data)
        for rows, made in zip(whole, self._codec.rows(payload), strict=True):
            rows[units] = made
        self.octets += len(payload)
