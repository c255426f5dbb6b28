"""Which peer a panel's cursor is on."""

from __future__ import annotations


class Chosen:
    """What the person chose here last, or somewhere else since.

    A choice goes to the application as a message and comes back in a view. Until then views still tell an earlier
    choice: those do not move the cursor back.
    """

    def __init__(self) -> None:
        self.peer = ""
        self._seen = ""
        self._asked: set[str] = set()

    def choose(self, peer: str) -> None:
        """The person chose it here."""
        self.peer = peer
        self._asked.add(peer)

    def take(self, selected: str) -> None:
        """A view says which peer is selected."""
        if selected == self.peer:
            self._asked.clear()
        elif selected != self._seen and selected not in self._asked:
            self.peer = selected
        self._seen = selected
