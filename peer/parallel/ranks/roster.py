"""On which of its owner's devices a peer computes after some were lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from dht.errors import DeviceLost
from peer.parallel.ranks.rank_group import RankLost

if TYPE_CHECKING:
    import torch

AGAIN_S = 600.0
"""A device that is lost twice within this time is left out: a third time would cost another round."""


class DeviceRoster:
    """The devices that a peer uses. A rank that ends once may have been killed for lack of memory, so its device is
    tried again."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._devices: tuple[torch.device, ...] = ()
        self._left_out: set[int] = set()
        self._lost_at: dict[int, float] = {}
        self._present: list[int] = []

    @property
    def is_whole(self) -> bool:
        """Whether no device is left out."""
        return not self._left_out

    def present(self, find: Callable[[], Sequence[torch.device]]) -> tuple[torch.device, ...]:
        """The devices in use, of those that `find` finds in the first call; a device that is left out is not touched
        again."""
        self._devices = self._devices or tuple(find())
        self._present = [number for number in range(len(self._devices)) if number not in self._left_out]
        return tuple(self._devices[number] for number in self._present)

    def lost(self, lost: RankLost) -> str:
        """A rank on one of the present devices was lost. Returns how the peer goes on, in words. Raises DeviceLost
        if no device is left."""
        number, now = self._present[lost.rank], self._clock()
        is_second = now - self._lost_at.get(number, -AGAIN_S) < AGAIN_S
        self._lost_at[number] = now
        if not lost.is_device and not is_second:
            return "it is tried once more"
        self._left_out.add(number)
        left = len(self._present) - 1
        if not left:
            raise DeviceLost(f"{lost}, and there is no other device; join again in the same folder once it works")
        return f"going on with {left} other{'s' if left > 1 else ''}"
