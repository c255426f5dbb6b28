"""The settings of a running peer: changed all at once or not at all, saved, and passed to every listener."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from dht.addresses import check_listen, listened_on
from peer.schema.settings import AT_START, PeerSettings, settings_of

Listener = Callable[[PeerSettings], str | None]
"""Takes new settings; says what else they take, if it can not do all at once."""


class LiveSettings:
    """What the owner chose; `keep` has new ones on disk, or raises DiskFull."""

    def __init__(
        self, settings: PeerSettings | None = None, keep: Callable[[PeerSettings], None] = lambda settings: None
    ) -> None:
        self.settings = settings or PeerSettings()
        self._keep = keep
        self._listeners: list[Listener] = []
        self._changing = threading.Lock()

    def listen(self, listener: Listener) -> None:
        """Have it called with the settings now, and after every change by the thread that makes it."""
        with self._changing:
            self._listeners.append(listener)
            listener(self.settings)

    def forget(self, listener: Listener) -> None:
        with self._changing:
            self._listeners.remove(listener)

    def change(self, values: Mapping[str, Any]) -> str:
        """Check all, then keep and apply all. What else it takes, in words; empty if it is done.

        Raises BadInput with one line that names what is wrong, or DiskFull; then nothing has changed.
        """
        with self._changing:
            before = asdict(self.settings)
            settings = settings_of(before | dict(values))
            for address in listened_on(settings.listen):
                check_listen(address)  # the next start would fail, and a service would not try again
            self._keep(settings)
            self.settings = settings
            takes = [listener(settings) for listener in self._listeners]
        later = [name for name in AT_START if getattr(settings, name) != before[name]]
        if later:
            takes.append(
                f"{' and '.join(later)} {'takes' if len(later) == 1 else 'take'} effect when the peer starts again"
            )
        return "; ".join(words for words in takes if words)
