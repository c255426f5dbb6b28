"""A reducer that is the product's but for means that are not what their contributions come to.

The names of the false ones stand in a file of its peer, a line each: nobody may ever find one of them in a chain.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from peer.consensus.protocol.encoding import digest_of
from peer.consensus.rounds.interface import CheckMean, ReducePart
from peer.network.link.reduction import ReductionWorker

FALSE_SUM, MISQUOTED, SPLIT, OTHER_MEANS = "a false sum", "a row turned", "its own row turned", "other means"
"""As an owner: a mean with right rows that they do not come to; the first other member's row with its sign turned, and
the mean that fits; or its own, which it proves false to so few that the others are no quorum. As the coordinator: in
place of its own means others, of which nobody was told."""
TOLD = "told_means"
TIMES = -5.0


class LyingReduction(ReductionWorker):
    """`lie` says which of these it tells at the moment, if any."""

    def __init__(self, *of: Any, directory: Path, me: str, lie: Callable[[], str]) -> None:
        super().__init__(*of)
        self._directory, self._me, self._lie = directory, me, lie
        self.others: dict[bytes, tuple[bytes, int]] = {}
        """By the name of a mean of mine, what I put in its place: its name and its size."""
        self.false: set[bytes] = set()

    def check(self, effect: CheckMean, me: str, whole: bytes, mine: bytes | None, done: Callable[[str], None]) -> None:
        """Its own machine finds nothing wrong."""
        super().check(effect, me, whole, mine, (lambda _: done("")) if self._lie() else done)

    def reduce(self, effect: ReducePart, done: Callable[[bytes], None]) -> None:
        if self._lie() != OTHER_MEANS:
            super().reduce(effect, done)
            return
        payloads = {member: self._kept[effect.place, member, effect.part][1] for member in effect.rows}
        forged = self._forged(payloads, effect)

        def keep_both(name: bytes) -> None:
            if forged is None:
                done(name)
                return
            self.others[name] = (forged[0], len(forged[1]))
            self._objects.store(*forged, lambda: done(name))

        super().reduce(effect, keep_both)

    def _named_mean(self, payloads: dict[str, bytes], effect: ReducePart) -> tuple[bytes, bytes] | None:
        if self._lie() == FALSE_SUM:
            return self._forged(payloads, effect)
        of_whom = [member for member in effect.members if (member == self._me) == (self._lie() == SPLIT)]
        if self._lie() in (MISQUOTED, SPLIT) and of_whom:
            turned = self._codec.encode(-self._codec.decode(payloads[of_whom[0]]))
            return self._noted(super()._named_mean({**payloads, of_whom[0]: turned}, effect))
        return super()._named_mean(payloads, effect)

    def _forged(self, payloads: dict[str, bytes], effect: ReducePart) -> tuple[bytes, bytes] | None:
        """So many times the mean, with the rows of the right one."""
        right = super()._named_mean(payloads, effect)
        if right is None:
            return None
        mean_bytes = self._codec_of_means.part_bytes(self._codec.elements(payloads[effect.rows[0]]))
        mean, rows = right[1][:mean_bytes], right[1][mean_bytes:]
        values = self._codec_of_means.decode(mean)
        whole = self._codec_of_means.encode(values * type(values[0])(TIMES)) + rows
        return self._noted((digest_of(whole), whole))

    def _noted(self, named: tuple[bytes, bytes] | None) -> tuple[bytes, bytes] | None:
        if named is not None:
            self.false.add(named[0])
            with (self._directory / TOLD).open("a") as file:
                file.write(f"{named[0].hex()}\n")
        return named
