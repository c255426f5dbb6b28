"""The thread that looks: it looks before anything is trained, goes on whatever happens, and ends with its block."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from peer.node.limits import enforcer as enforcings
from peer.node.limits.enforcer import Enforcer, enforcing
from peer.node.limits.policy import Readings
from peer.node.limits.sensors import MachineSensors
from peer.node.telemetry.reporter import Reporter
from peer.schema.events import AlertRaised, Event
from peer.schema.settings import PeerSettings
from peer.testing.child_process import HANG_S
from tests.peer.node.limits.machines import FREE, Sensors, Traffic


class Broken(Sensors):
    """Fails while it is broken, and counts."""

    is_broken = False
    looks = 0

    def __init__(self) -> None:
        super().__init__()
        self.looked = threading.Semaphore(0)

    def read(self, settings: PeerSettings, now: float) -> Readings:
        self.looks += 1
        self.looked.release()
        if self.is_broken:
            raise RuntimeError("the driver has gone")
        return self.says


@pytest.fixture
def told() -> list[Event]:
    return []


@pytest.fixture
def sensors() -> Broken:
    return Broken()


@pytest.fixture
def enforcer(told: list[Event], sensors: Broken) -> Enforcer:
    return Enforcer(Reporter(told.append), sensors, Traffic())  # type: ignore[arg-type]


def test_it_looks_first_then_often_and_ends_with_its_block(
    enforcer: Enforcer, sensors: Broken, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enforcings, "LOOK_S", 0.001)
    sensors.says = Readings(on_battery=True)
    with enforcing(enforcer):
        assert enforcer._owner.wishes.pausing, "before the block begins"
        for _ in range(5):
            assert sensors.looked.acquire(timeout=HANG_S)
    assert "limits" not in {thread.name for thread in threading.enumerate()}


def test_a_sensor_that_fails_lets_nothing_go_and_is_told_once(
    enforcer: Enforcer, sensors: Broken, told: list[Event]
) -> None:
    """A pause stays a pause; when it works again all is as before."""
    sensors.says = Readings(on_battery=True)
    enforcer.poll()
    sensors.is_broken, sensors.says = True, FREE
    for _ in range(3):
        enforcer.poll()
    assert enforcer._owner.wishes.pausing
    (alert,) = told
    assert isinstance(alert, AlertRaised)
    assert alert.text == "limits cannot be looked at (the driver has gone); what held before goes on holding"
    sensors.is_broken = False
    enforcer.poll()
    assert len(told) == 1


def test_this_machine_can_be_looked_at(told: list[Event], tmp_path: Path) -> None:
    """Every limit at once, with the real sensors: a verdict, and alerts for what this machine does not tell."""
    session = Reporter(told.append)
    session.change(
        {
            "schedule": "mon-sun", "idle_min": 5, "pause_for": "no-such-program", "disk_gb": 1, "memory_gb": 1000,
            "max_temperature_c": 100, "max_power_w": 5000, "monthly_gb": 1,
        }
    )  # fmt: skip
    Enforcer(session, MachineSensors(tmp_path), Traffic()).look()  # type: ignore[arg-type]
    assert {hold.code for hold in session.wishes.holds} <= {"IDLE", "BATTERY"}
    assert session.wishes.duty == 1.0
