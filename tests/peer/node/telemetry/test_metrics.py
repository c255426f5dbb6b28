"""What Prometheus reads, from the events of a process, and who may read it."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dht.errors import BadInput, PortInUse
from peer.node.telemetry.http import HOST, Page, serving
from peer.node.telemetry.metrics import FIGURES, LABELLED, PREFIX, Metrics
from peer.schema import events
from peer.schema.events import (
    AlertRaised,
    DeviceMeasured,
    Event,
    InnerProgressed,
    NetworkMeasured,
    PeerStateChanged,
    PenaltyImposed,
    RoundAborted,
    RoundCommitted,
)

ME = "12D3KooMe"


def read(metrics: Metrics) -> dict[str, float]:
    """By name and labels, without the prefix."""
    text = metrics.page().body.decode()
    return {
        (sample.name + "".join(f" {value}" for value in sample.labels.values())).removeprefix(PREFIX): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def told(*many: Event) -> dict[str, float]:
    metrics = Metrics(ME, 1000.0)
    for event in many:
        metrics.note(type(event).__name__, vars(event))
    return read(metrics)


def committed(round: int) -> RoundCommitted:
    return RoundCommitted(
        round=round, digest="d", state="s", group=[ME, "other"], weights={ME: 32_768, "other": 32_768}, penalties=[],
        tokens=900, bytes_sent=1, bytes_received=2, round_s=8.5, exposed_s=0.5, given={ME: 400, "other": 500},
    )  # fmt: skip


def test_training_and_rounds() -> None:
    progress = InnerProgressed(round=0, step=3, steps=9, loss=2.5, tokens=64, tokens_per_s=320.0, learning_rate=1e-3)
    found = told(progress, progress, committed(1), committed(2), RoundAborted(round=2, ballot=0, why="x"))
    assert found["start_time_seconds"] == 1000.0
    assert (found["loss_nats"], found["step"], found["tokens_trained_total"]) == (2.5, 3, 128)
    assert (found["round"], found["rounds_committed_total"], found["rounds_aborted_total"]) == (2, 2, 1)
    assert (found["round_weight"], found["round_members"], found["tokens_given_total"]) == (0.5, 2, 800)


def test_alerts_penalties_and_the_state() -> None:
    """Penalties of others are theirs; the newest state alone is shown."""
    penalties = [
        PenaltyImposed(about=about, code="LATE", layer="", evidence="x", factor=0.0, until_round=2)
        for about in (ME, ME, "other")
    ]
    states = [PeerStateChanged(state=state, why="x") for state in ("JOINING", "TRAINING")]
    found = told(*penalties, AlertRaised(level="warning", code="DISK", text="full"), *states)
    assert found["penalties_total LATE"] == 2
    assert found["alerts_total DISK warning"] == 1
    assert {name for name in found if name.startswith("state ")} == {"state TRAINING"}


def test_what_a_machine_does_not_tell_is_not_shown() -> None:
    network = NetworkMeasured(addresses=[], reach="direct", bytes_sent=7, bytes_received=8, peers=[{}, {}])
    found = told(DeviceMeasured(cpu_percent=50.0), network, InnerProgressed(
        round=0, step=1, steps=1, loss=None, tokens=0, tokens_per_s=0.0, learning_rate=0.0
    ))  # fmt: skip
    assert (found["cpu_percent"], found["sent_bytes_total"], found["connections"]) == (50.0, 7, 2)
    assert not {"gpu_percent", "loss_nats"} & found.keys()


def test_every_event_may_come() -> None:
    """Also one of a kind of which no figure is made."""
    metrics = Metrics(ME, 0.0)
    for kind in events.Event.registry:
        metrics.note(kind, {})
    assert read(metrics)["rounds_committed_total"] == 1


def test_names_are_those_of_prometheus() -> None:
    names = [each.name for each in (*FIGURES, *LABELLED)]
    assert len(set(names)) == len(names)
    assert all(not name.endswith("_total") for name in names), "the client adds that"


# ---- the server ----


@pytest.fixture
def port() -> Iterator[int]:
    """Port 0 takes a free one."""
    with serving(0, {"/x": lambda: Page(content_type="text/plain", body=b"here")}) as port:
        yield port


def ask(port: int, path: str, host: str = "") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(HOST, port, timeout=10)
    try:
        connection.request("GET", path, headers={"Host": host or f"{HOST}:{port}"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@pytest.mark.outside
def test_a_page_is_served_on_loopback(port: int) -> None:
    assert ask(port, "/x") == ask(port, "/x?y=1") == ask(port, "/x", f"localhost:{port}") == (200, b"here")
    assert ask(port, "/other")[0] == 404


@pytest.mark.outside
def test_who_was_led_here_under_another_name_is_refused(port: int) -> None:
    """DNS rebinding: a page of the web must not read what is on loopback."""
    assert ask(port, "/x", "evil.example")[0] == 403
    assert ask(port, "/x", f"evil.example:{port}")[0] == 403


@pytest.mark.outside
def test_nobody_else_can_connect(port: int) -> None:
    with socket.socket() as other, pytest.raises(ConnectionRefusedError):
        other.connect(("127.0.0.2", port))


@pytest.mark.outside
def test_a_taken_port_and_one_that_cannot_be(port: int) -> None:
    with pytest.raises(PortInUse, match=f"port {port} of {HOST} is taken"), serving(port, {}):
        pass
    with pytest.raises(BadInput, match="port 70000 does not exist"), serving(70_000, {}):
        pass


@pytest.mark.outside
def test_who_asks_and_never_reads_holds_nothing_up(port: int) -> None:
    """The end of the block does not wait for them."""
    with socket.create_connection((HOST, port)) as silent:
        silent.sendall(b"GET /x")
        assert ask(port, "/x") == (200, b"here")
