"""A peer's figures for Prometheus, on loopback. The trainer hands over events; all else happens in another thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Self

from dht.errors import BadInput, PortInUse
from peer.events import Event

if TYPE_CHECKING:
    from peer.telemetry.metrics import Metrics

PATH = "/metrics"


class MetricsExporter:
    """Publishes the events of the peer `me` as metrics at this port; with port 0 it does nothing."""

    def __init__(self, port: int, me: str) -> None:
        self._port, self._me = port, me
        self._metrics: Metrics | None = None
        self._open = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def start(self, warn: Callable[[str, str], None]) -> None:
        """Serve from now on. A port that cannot be had is told, and costs nothing but the metrics."""
        if not self._port:
            return
        from peer.telemetry.http import serving
        from peer.telemetry.metrics import Metrics

        metrics = Metrics(self._me, time.time())
        try:
            self._open.enter_context(serving(self._port, {PATH: metrics.page}))
        except (PortInUse, BadInput) as error:
            warn("METRICS", f"there are no metrics: {error}")
            return
        self._metrics = metrics

    def note(self, event: Event) -> None:
        """Take in an event."""
        if self._metrics is not None:
            self._metrics.note(type(event).__name__, vars(event))
