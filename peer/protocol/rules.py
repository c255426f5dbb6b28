"""What many peers in one process compute alike, computed once: for simulators, where a message is one object for all.

The rules are pure functions of what a message holds; whoever gets the same message computes the same. Real peers share
nothing, so their rules have none of this (`Rules.shared` is None).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

T = TypeVar("T")

MOST = 48
"""Results that are remembered, the newest."""


class Shared:
    """Results by the objects that they come from."""

    def __init__(self) -> None:
        self._found: dict[Hashable, tuple[tuple[Any, ...], Any]] = {}

    def once(self, key: Hashable, objects: tuple[Any, ...], compute: Callable[[], T]) -> T:
        """`compute()`, or what it gave before for this key and these very objects.

        They are kept while their result is: no other object can get the identity of one of them meanwhile.
        """
        whole = (key, *map(id, objects))
        found = self._found.get(whole)
        if found is None:
            found = self._found[whole] = objects, compute()
            if len(self._found) > MOST:
                del self._found[next(iter(self._found))]
        result: T = found[1]
        return result
