"""Prometheus metrics, computed from the events that a process prints: one reducer for peers and the bootstrap node.

An event costs a few assignments; the thread that serves a request formats the text.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from dht.errors import BadInput, PortInUse
from peer.node.host.gpu import Gpus
from peer.node.host.processes import ProcessTree, every
from peer.node.telemetry.http import Page, serving
from peer.schema.events import DeviceMeasured, Event

PREFIX = "homefires_"
EVERY_S = 5.0
"""How often this machine is measured."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    name: str
    help: str
    counts: bool = False
    """Whether it only grows."""


FIGURES = (
    Figure(name="start_time_seconds", help="When this process started, Unix seconds."),
    Figure(name="round", help="The newest round that this peer has, or that the bootstrap node has heard of."),
    Figure(name="step", help="Inner steps made in this round."),
    Figure(name="loss_nats", help="Training loss, nats per token."),
    Figure(name="held_out_loss_nats", help="Newest held-out loss measured here, nats per token."),
    Figure(name="learning_rate", help="Of the newest inner step."),
    Figure(name="tokens_per_second", help="Speed of the inner steps."),
    Figure(name="tokens_trained", help="Tokens of all inner steps since the start.", counts=True),
    Figure(name="rounds_committed", help="Rounds that this peer has committed since its start.", counts=True),
    Figure(name="rounds_aborted", help="Tries of a round that ended without a decision.", counts=True),
    Figure(name="round_seconds", help="How long the newest round took."),
    Figure(name="round_exposed_seconds", help="Seconds of the newest round in which no inner step could be made."),
    Figure(name="round_weight", help="This peer's weight in the newest round, 0 to 1."),
    Figure(name="round_members", help="Members of the newest round."),
    Figure(name="tokens_given", help="Tokens of this peer that committed rounds counted.", counts=True),
    Figure(name="sent_bytes", help="Bytes that this peer's link sent since its start.", counts=True),
    Figure(name="received_bytes", help="Bytes that it received.", counts=True),
    Figure(name="connections", help="Peers that it is connected with."),
    Figure(name="chain_bytes", help="What the chain takes on disk."),
    Figure(name="chain_quota_bytes", help="What it may take."),
    Figure(name="cpu_percent", help="Processor time of all processes of this peer, percent of one core."),
    Figure(name="memory_bytes", help="Their resident memory."),
    Figure(name="gpu_percent", help="Use of the GPU."),
    Figure(name="gpu_memory_used_bytes", help="Memory in use on the GPU."),
    Figure(name="gpu_temperature_celsius", help="Temperature of the GPU."),
    Figure(name="gpu_power_watts", help="Power that the GPU takes."),
    Figure(name="peers_seen", help="Peers on the board."),
    Figure(name="founders_here", help="Founders that are here, before the run begins."),
    Figure(name="invites_issued", help="Invites printed since the start.", counts=True),
    Figure(name="disk_bytes", help="What the folder of the bootstrap node takes on disk."),
)
LABELLED = (
    Figure(name="alerts", help="Alerts by level and code.", counts=True),
    Figure(name="penalties", help="Penalties against this peer by code.", counts=True),
    Figure(name="state", help="1 for the state that the peer is in."),
)

_SAME = {
    "InnerProgressed": {
        "step": "step", "loss": "loss_nats", "learning_rate": "learning_rate", "tokens_per_s": "tokens_per_second",
    },
    "RoundCommitted": {"round": "round", "round_s": "round_seconds", "exposed_s": "round_exposed_seconds"},
    "Evaluated": {"loss": "held_out_loss_nats"},
    "NetworkMeasured": {
        "bytes_sent": "sent_bytes", "bytes_received": "received_bytes", "disk_bytes": "chain_bytes",
        "disk_quota_bytes": "chain_quota_bytes",
    },
    "DeviceMeasured": {
        "cpu_percent": "cpu_percent", "memory_bytes": "memory_bytes", "gpu_percent": "gpu_percent",
        "vram_used_bytes": "gpu_memory_used_bytes", "temperature_c": "gpu_temperature_celsius",
        "power_w": "gpu_power_watts",
    },
}  # fmt: skip
"""By type of event: fields that are a figure as they are."""


class Metrics(Collector):
    """What is known of one process, for Prometheus. `note` may be called from one thread, and the text made in
    others. `peer` is the process's own id: penalties and weights of others are not counted."""

    def __init__(self, peer: str, t: float) -> None:
        self._peer = peer
        self._lock = threading.Lock()
        self._values: dict[str, float] = {"start_time_seconds": t}
        self._labelled: dict[str, dict[tuple[tuple[str, str], ...], float]] = {each.name: {} for each in LABELLED}
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def note(self, kind: str, fields: Mapping[str, Any]) -> None:
        """Take in an event: the name of its type, and its fields."""
        with self._lock:
            for field, name in _SAME.get(kind, {}).items():
                self._set(name, fields.get(field))
            if (more := _MORE.get(kind)) is not None:
                more(self, fields)

    def set(self, **values: float) -> None:
        """Take in figures that no event holds, by their names."""
        with self._lock:
            for name, value in values.items():
                self._set(name, value)

    def page(self) -> Page:
        """What Prometheus reads."""
        return Page(content_type=CONTENT_TYPE_LATEST, body=generate_latest(self._registry))

    def collect(self) -> Iterable[Metric]:
        with self._lock:
            values, labelled = dict(self._values), {name: dict(rows) for name, rows in self._labelled.items()}
        for figure in FIGURES:
            if figure.name in values:
                family = _family(figure, [])
                family.add_metric([], values[figure.name])
                yield family
        for figure in LABELLED:
            rows = labelled[figure.name]
            if rows:
                family = _family(figure, [label for label, _ in next(iter(rows))])
                for labels, value in sorted(rows.items()):
                    family.add_metric([text for _, text in labels], value)
                yield family

    def describe(self) -> Iterable[Metric]:
        """A figure is listed only once it is known."""
        return ()

    # ---- events that need more than an assignment ----

    def _committed(self, fields: Mapping[str, Any]) -> None:
        self._add("rounds_committed", 1)
        self._add("tokens_given", fields.get("given", {}).get(self._peer, 0))
        self._set("round_weight", fields.get("weights", {}).get(self._peer, 0) / 65_536)
        self._set("round_members", len(fields.get("group", ())))

    def _penalty(self, fields: Mapping[str, Any]) -> None:
        if fields.get("about") == self._peer:
            self._count("penalties", code=str(fields.get("code", "")))

    def _state(self, fields: Mapping[str, Any]) -> None:
        self._labelled["state"] = {(("state", str(fields.get("state", ""))),): 1}

    def _set(self, name: str, value: Any) -> None:
        """An unknown figure keeps its last value."""
        if isinstance(value, int | float):
            self._values[name] = float(value)

    def _add(self, name: str, value: Any) -> None:
        self._set(name, self._values.get(name, 0.0) + (value or 0))

    def _count(self, name: str, **labels: str) -> None:
        key = tuple(labels.items())
        rows = self._labelled[name]
        rows[key] = rows.get(key, 0) + 1


_MORE: dict[str, Callable[[Metrics, Mapping[str, Any]], None]] = {
    "InnerProgressed": lambda it, fields: it._add("tokens_trained", fields.get("tokens")),
    "RoundCommitted": Metrics._committed,
    "RoundAborted": lambda it, fields: it._add("rounds_aborted", 1),
    "NetworkMeasured": lambda it, fields: it._set("connections", len(fields.get("peers", ()))),
    "InviteIssued": lambda it, fields: it._add("invites_issued", 1),
    "AlertRaised": lambda it, fields: it._count(
        "alerts", level=str(fields.get("level", "")), code=str(fields.get("code", ""))
    ),
    "PenaltyImposed": Metrics._penalty,
    "PeerStateChanged": Metrics._state,
}


def _family(figure: Figure, labels: list[str]) -> CounterMetricFamily | GaugeMetricFamily:
    kind = CounterMetricFamily if figure.counts else GaugeMetricFamily
    return kind(f"{PREFIX}{figure.name}", figure.help, labels=labels)


PATH = "/metrics"


class MetricsExporter:
    """Publishes the events of the peer `me` as metrics at this port; with port 0 it does nothing."""

    def __init__(self, port: int, me: str) -> None:
        self._port, self._me = port, me
        self._metrics: Metrics | None = None
        self._open = ExitStack()

    def close(self) -> None:
        self._open.close()

    def start(self, warn: Callable[[str, str], None]) -> None:
        """Serve from now on. If the port cannot be had that is reported, and only the metrics are missing."""
        if not self._port:
            return
        metrics = Metrics(self._me, time.time())
        try:
            self._open.enter_context(serving(self._port, {PATH: metrics.page}))
        except (PortInUse, BadInput) as error:
            warn("METRICS", f"there are no metrics: {error}")
            return
        self._metrics = metrics

    def note(self, event: Event) -> None:
        if self._metrics is not None:
            self._metrics.note(type(event).__name__, vars(event))


@contextmanager
def measuring(emit: Callable[[Event], None], gpus: Gpus | None = None) -> Iterator[None]:
    """Call `emit` with a DeviceMeasured every EVERY_S, from another thread, until the block ends. A sample reads a
    few small files of /proc and asks the GPU's driver, which takes a millisecond or two and holds no lock of Python
    meanwhile: the inner loop does not notice. What this machine does not report is None."""
    tree, cards = ProcessTree(os.getpid()), gpus or Gpus()
    with every(EVERY_S, "measuring", lambda: emit(DeviceMeasured(**tree.figures(time.monotonic()), **cards.figures()))):
        yield


def one_at_a_time(emit: Callable[[Event], None]) -> Callable[[Event], None]:
    """`emit` made safe for several threads."""
    lock = threading.Lock()

    def emit_alone(event: Event) -> None:
        with lock:
            emit(event)

    return emit_alone
