"""A round's arithmetic on a sharded model: each call goes to all ranks, and each works on what it owns."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from torch import Tensor

from peer.consensus.codec.codec import Codec
from peer.consensus.protocol.layout import Part
from peer.parallel.fsdp.rank_messages import Command, FollowLayer, LayerWork, PartWork, RankAnswer
from peer.parallel.fsdp.shared_parameters import SharedLayer
from peer.training.outer.kernels import PartUpdate
from peer.training.outer.layer_tensors import LayerTensors, Origin

Ask = Callable[[Command], "list[RankAnswer]"]


class ShardedKernels:
    """Implements `peer.training.outer.kernels.Kernels` on ranks. Only the lead decides about a layer's `start`,
    never a rank."""

    def __init__(self, ask: Ask, payload: Tensor, codec: Codec, *, copies: int) -> None:
        """`ask` sends a command to all ranks; `payload` is the arena's; `copies` is the number of copies of the
        model on the ranks."""
        self._ask, self._payload, self._codec, self._has_copies = ask, payload.numpy(), codec, copies > 1
        self.octets: dict[int, int] = {}
        """The bytes of encoded parts that each rank has read or written so far."""

    def progress(self, t: LayerTensors) -> None:
        self._do("progress", t)
        t.start = Origin.AT_PARAMETERS

    def encode(self, t: LayerTensors, part: Part) -> bytes:
        where = (0, self._codec.part_bytes(part.size))
        self._do("encode", t, [PartWork(start=part.start, size=part.size, mine=where)])
        return self._payload[: where[1]].tobytes()

    def apply(self, t: LayerTensors, updates: Sequence[PartUpdate]) -> float:
        works, at = [], 0
        for update in updates:
            mean, at = self._store_payload(update.mean, at)
            mine, at = self._store_payload(update.mine, at)
            works.append(PartWork(
                start=update.part.start, size=update.part.size, outer=update.outer, mean=mean, mine=mine,
                kept=update.kept, gives_up=update.gives_up, own=update.own,
            ))  # fmt: skip
        given_up = self._do("apply", t, works)
        self._follow(t)
        return math.hypot(*given_up)

    def begin(self, t: LayerTensors) -> None:
        self._do("begin", t)
        self._follow(t)

    def keep_start(self, t: LayerTensors) -> None:
        if t.start is Origin.KEPT:
            return
        self._do("keep_start", t)
        t.room_for_start()
        t.start = Origin.KEPT

    def counted(self, t: LayerTensors, part: Part, payload: bytes) -> float:
        return math.fsum(self._settle("counted", t, part, payload))

    def restored(self, t: LayerTensors, part: Part, payload: bytes) -> None:
        self._settle("restored", t, part, payload)

    def give_up(self, t: LayerTensors, part: Part) -> float:
        self.keep_start(t)
        return math.hypot(*self._do("give_up", t, [PartWork(start=part.start, size=part.size)]))

    def _settle(self, call: str, t: LayerTensors, part: Part, payload: bytes) -> list[float]:
        self.keep_start(t)
        mine, _ = self._store_payload(payload, 0)
        return self._do(call, t, [PartWork(start=part.start, size=part.size, mine=mine)])

    def _follow(self, t: LayerTensors) -> None:
        """All ranks have reset the layer to its start: where several ranks hold the same shard, they copy each
        other's part."""
        t.start = Origin.AT_ANCHOR
        if self._has_copies:
            self._ask(FollowLayer(layer=_number(t)))

    def _store_payload(self, payload: bytes | None, at: int) -> tuple[tuple[int, int] | None, int]:
        """Write a payload to where all ranks find it. Returns its place, and where the next one may begin."""
        if payload is None:
            return None, at
        end = at + len(payload)
        self._payload[at:end] = np.frombuffer(payload, np.uint8)
        return (at, len(payload)), end

    def _do(self, call: str, t: LayerTensors, parts: Sequence[PartWork] = ()) -> list[float]:
        work = LayerWork(call=call, layer=_number(t), origin=t.start.name, parts=tuple(parts))
        answers = self._ask(work)
        for rank, answer in enumerate(answers):
            self.octets[rank] = self.octets.get(rank, 0) + answer.octets
        return [answer.value for answer in answers]


def _number(t: LayerTensors) -> int:
    assert isinstance(t, SharedLayer)
    return t.number
