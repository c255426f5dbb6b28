"""What a lead has seen of its homes: which get no layers any more, which get some only if no other home can, and how
fast they are.
"""

from __future__ import annotations

from collections.abc import Sequence

from peer.parallel.cluster.cut_moves import HomeSpeeds
from peer.parallel.pipeline.home_group import GarbageHome, HomeGone, SilentHome
from peer.schema.ipc import HomeOffer


class HomesLacking(Exception):
    """Homes that found each other do not form a cluster, or not with this one: `missing` did not come in time, or
    refuses it. `why` in words."""

    def __init__(self, missing: Sequence[str], why: str = "") -> None:
        super().__init__(why or f"{len(missing)} of the homes that found each other did not come")
        self.missing = tuple(missing)


class HomeSuspicion:
    """A lead's suspicions, for the time of one process: a home that was repaired is trusted again after a restart of
    the lead."""

    def __init__(self) -> None:
        self._garbage: set[str] = set()
        self._last: set[str] = set()
        """The homes that were silent, and those of an accusation, of which one lies."""
        self._accusations: set[frozenset[str]] = set()
        """The two homes of each."""
        self.speeds = HomeSpeeds()

    @property
    def expelled(self) -> tuple[str, ...]:
        """The homes that get no layers again."""
        return tuple(sorted(self._garbage))

    def note(self, gone: HomeGone) -> str:
        """Note the error that ended a life. Returns the consequence for that home in words; empty if there is none
        and it may come back."""
        match gone:
            case GarbageHome(said_by=accuser) if accuser:
                return self._note_accusation(frozenset((gone.peer, accuser)))
            case GarbageHome():
                self._garbage.add(gone.peer)
                return "it gets no layers again until this peer is restarted"
            case SilentHome():
                self._last.add(gone.peer)
                return "others come before it when layers are dealt"
            case _:
                return ""

    def _note_accusation(self, both: frozenset[str]) -> str:
        """Nobody can tell which of the two lies: who accuses another home to be rid of it goes with it."""
        self._last |= both
        if both not in self._accusations:
            self._accusations.add(both)
            return "one of the two lies, so others come before both when layers are dealt"
        self._garbage |= both
        return "one of the two lies, for the second time, so both get no layers again until this peer is restarted"

    def admitted(self, homes: Sequence[HomeOffer]) -> tuple[HomeOffer, ...]:
        """The homes that may hold layers; suspected ones come last."""
        may = [home for home in homes if home.peer not in self._garbage]
        return tuple(sorted(may, key=lambda home: home.peer in self._last))

    def chosen(self, homes: Sequence[HomeOffer], needed: int) -> tuple[HomeOffer, ...]:
        """The admitted homes among which layers are dealt: without the suspected ones, if there are enough others."""
        heard = tuple(home for home in homes if home.peer not in self._last)
        return heard if len(heard) >= needed else tuple(homes)
