"""What a lead has seen of its homes: which get no layers any more, and which get some only if no other home can."""

from __future__ import annotations

from collections.abc import Sequence

from peer.parallel.pipeline.home_group import GarbageHome, HomeGone, SilentHome
from peer.schema.ipc import HomeOffer


class HomeSuspicion:
    """Of one process of a lead: whoever has mended their home has the lead's owner restart it."""

    def __init__(self) -> None:
        self._garbage: set[str] = set()
        self._last: set[str] = set()
        """Those that were silent, or on whose word another was named."""

    def note(self, gone: HomeGone) -> str:
        """A life ended with this. What follows for that home, in words; empty if nothing does: it may come back."""
        match gone:
            case GarbageHome():
                self._garbage.add(gone.peer)
                if gone.said_by:  # it may be the one who lies
                    self._last.add(gone.said_by)
                return "it gets no layers again until this peer is restarted"
            case SilentHome():
                self._last.add(gone.peer)
                return "others come before it when layers are dealt"
            case _:
                return ""

    def admitted(self, homes: Sequence[HomeOffer]) -> tuple[HomeOffer, ...]:
        """Those who may hold layers, the doubtful last."""
        may = [home for home in homes if home.peer not in self._garbage]
        return tuple(sorted(may, key=lambda home: home.peer in self._last))

    def chosen(self, homes: Sequence[HomeOffer], needed: int) -> tuple[HomeOffer, ...]:
        """Those of the admitted among whom layers are dealt: without the doubtful, where so many others are there."""
        heard = tuple(home for home in homes if home.peer not in self._last)
        return heard if len(heard) >= needed else tuple(homes)
