"""What one peer trains on next, and which ranges of the run's data that was.

A cursor counts how many windows of a shard the run has used, over all passes. Anchors hold the committed cursors; a
peer that owns a shard reads on from its own position, which may be ahead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from peer.consensus.protocol.block import CURSOR_END
from peer.consensus.protocol.rules import DATA_SHARDS
from peer.schema.spec import RunSpec
from peer.training.data.data_shards import shards_of
from peer.training.data.read_ahead import Place, ReadAhead
from peer.training.data.source import Source

AHEAD = 2
"""So many times what is asked for is kept ready."""
Range = tuple[int, int, int]
"""(shard, from, to) in windows; `to` is not included."""


class ShardSampler:
    """Training sequences of one peer, from the shards that are its own, each in proportion to its size."""

    def __init__(
        self, source: Source, spec: RunSpec, peer: str, peers: Collection[str], cursors: Mapping[int, int]
    ) -> None:
        self._source, self._peer = source, peer
        self._is_private = spec.data.private
        self._ahead = ReadAhead(source)
        self._positions: dict[int, int] = {}
        # How many passes this peer has made over each of its shards; the least read one is next.
        self._passes: dict[int, float] = {}
        self._ranges: list[Range] = []
        self._plan: deque[Place] = deque()
        """The next windows, already chosen, and not read as far as anybody knows."""
        self.reassign(peers, cursors)

    @property
    def waited_s(self) -> float:
        """Seconds of waiting for data."""
        return self._ahead.waited_s

    @property
    def shards(self) -> tuple[int, ...]:
        return tuple(self._positions)

    def reassign(self, peers: Collection[str], cursors: Mapping[int, int]) -> None:
        """Take over the shards that are this peer's among `peers`, from the run's `cursors` on.

        A shard that it keeps goes on from its own position, unless the run is ahead. A peer without a shard, as happens
        in a large group, reads all of them, which others read too. Of private text each peer has all shards, and only
        its own cursors.
        """
        if self._is_private:
            peers, cursors = {self._peer}, {}
        owned = [shard for shard in shards_of(self._peer, peers) if shard in self._source.windows]
        owned = owned or [shard for shard in range(DATA_SHARDS) if shard in self._source.windows]
        level = min((self._passes[shard] for shard in owned if shard in self._passes), default=0.0)
        self._positions = {shard: max(_at(cursors, shard), _at(self._positions, shard)) for shard in owned}
        self._passes = {shard: self._passes.get(shard, level) for shard in owned}
        self._choose_anew()

    def next(self, sequences: int) -> Tensor:
        """Tokens (sequences, context + 1), int64, on the CPU: inputs are all but the last, labels all but the first.
        Raises the source's errors, and Unreachable if it takes too long; then nothing is read."""
        self._choose(AHEAD * sequences)
        places = [self._plan[row] for row in range(sequences)]
        self._ahead.expect(self._plan)
        tokens_BT = np.stack(self._ahead.windows(places)).astype(np.int64)
        for shard, position in places:
            self._plan.popleft()
            self._use(shard, position)
        self._choose(AHEAD * sequences)
        self._ahead.expect(self._plan)
        return torch.from_numpy(tokens_BT)

    def mark(self) -> None:
        """Begin a new list of ranges."""
        self._ranges = []

    def put_back(self, ranges: Iterable[Range]) -> None:
        """What was read before `mark` belongs to this list after all."""
        later, self._ranges = self._ranges, list(ranges)
        for shard, start, end in later:
            self._note(shard, start, end)

    def pass_over(self, ranges: Iterable[Range]) -> None:
        """These ranges were read in an earlier life: go on after them."""
        for shard, _, end in ranges:
            ahead = end - self._positions.get(shard, end)
            if ahead > 0:
                self._positions[shard] = end
                self._passes[shard] += ahead / self._source.windows[shard]
        self._choose_anew()

    def ranges(self) -> tuple[Range, ...]:
        """What was read since `mark`, sorted; a shard appears twice only if the run jumped ahead in between."""
        return tuple(sorted(self._ranges))

    def state(self) -> dict[str, Any]:
        """Its position, as JSON values."""
        return {
            "positions": sorted(self._positions.items()),
            "passes": sorted(self._passes.items()),
            "ranges": list(self._ranges),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state`, also after a conversion to JSON and back."""
        self._positions = {shard: position for shard, position in state["positions"]}
        self._passes = {shard: passes for shard, passes in state["passes"]}
        self._ranges = [(shard, start, end) for shard, start, end in state["ranges"]]
        self._choose_anew()

    def _use(self, shard: int, position: int) -> None:
        self._positions[shard] += 1
        self._passes[shard] += 1 / self._source.windows[shard]
        self._note(shard, position, position + 1)

    def _choose_anew(self) -> None:
        self._plan.clear()
        self._planned = dict(self._positions), dict(self._passes)

    def _choose(self, windows: int) -> None:
        """Plan at least so many windows: those that `_use` will find, in its order."""
        positions, passes = self._planned
        while len(self._plan) < windows:
            shard = min(passes, key=lambda shard: (passes[shard], shard))
            self._plan.append((shard, positions[shard]))
            positions[shard] += 1
            passes[shard] += 1 / self._source.windows[shard]

    def _note(self, shard: int, start: int, end: int) -> None:
        for index, (known, known_start, known_end) in enumerate(self._ranges):
            if known == shard and known_end == start:
                self._ranges[index] = (shard, known_start, end)
                return
        self._ranges.append((shard, start, end))


class IdleSampler:
    """In place of a `ShardSampler` at a home that is sent what others read."""

    waited_s = 0.0

    def reassign(self, peers: Collection[str], cursors: Mapping[int, int]) -> None: ...

    def next(self, sequences: int) -> Tensor:
        raise AssertionError("nothing is read here")

    def mark(self) -> None: ...

    def put_back(self, ranges: Iterable[Range]) -> None: ...

    def pass_over(self, ranges: Iterable[Range]) -> None: ...

    def ranges(self) -> tuple[Range, ...]:
        return ()

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: Mapping[str, Any]) -> None: ...


def _at(cursors: Mapping[int, int], shard: int) -> int:
    """The position; 0 also if a lie once moved a cursor beyond any real position."""
    cursor = cursors.get(shard, 0)
    return cursor if cursor < CURSOR_END else 0
