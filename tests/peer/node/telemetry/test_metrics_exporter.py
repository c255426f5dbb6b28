"""A peer's metrics are there for who asks, and cost a peer nothing where they cannot be."""

from __future__ import annotations

import socket
import threading
import urllib.request
from contextlib import closing

import pytest

from peer.node.telemetry.http import HOST, Page, serving
from peer.node.telemetry.metrics import MetricsExporter
from peer.schema.events import Evaluated, PeerStateChanged


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        return int(taken.getsockname()[1])


@pytest.mark.outside
def test_events_become_figures() -> None:
    port, warned = free_port(), list[tuple[str, str]]()
    with closing(MetricsExporter(port, "me")) as publisher:
        publisher.start(lambda code, text: warned.append((code, text)))
        publisher.note(Evaluated(round=3, loss=1.5, tokens=10))
        publisher.note(PeerStateChanged(state="TRAINING", why="x"))
        with urllib.request.urlopen(f"http://{HOST}:{port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
    assert "homefires_held_out_loss_nats 1.5" in text
    assert 'homefires_state{state="TRAINING"} 1.0' in text
    assert warned == []


@pytest.mark.outside
def test_who_asks_for_the_head_alone_gets_no_body() -> None:
    """As a monitor asks that only wants to know whether the page is there."""
    with serving(0, {"/": lambda: Page(content_type="text/plain", body=b"here")}) as port:
        asked = urllib.request.Request(f"http://{HOST}:{port}/", method="HEAD")
        with urllib.request.urlopen(asked, timeout=10) as answer:
            assert (answer.status, answer.headers["Content-Length"], answer.read()) == (200, "4", b"")


@pytest.mark.outside
def test_a_taken_port_is_told_and_the_peer_goes_on() -> None:
    warned: list[tuple[str, str]] = []
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        with closing(MetricsExporter(taken.getsockname()[1], "me")) as publisher:
            publisher.start(lambda code, text: warned.append((code, text)))
            publisher.note(Evaluated(round=3, loss=1.5, tokens=10))
    assert warned[0][0] == "METRICS"
    assert "is taken by another program" in warned[0][1]


def test_without_a_port_nothing_is_served() -> None:
    warned: list[str] = []
    before = threading.enumerate()
    with closing(MetricsExporter(0, "me")) as publisher:
        publisher.start(lambda code, text: warned.append(text))
        publisher.note(Evaluated(round=3, loss=1.5, tokens=10))
        assert threading.enumerate() == before
    assert not warned
