"""What a peer foretells of its rounds, and when it warns."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from peer.consensus.protocol.block import Update
from peer.node.lifecycle.pace import Pace
from peer.planning.forecast.forecaster import QUIET_ROUNDS, Forecaster
from peer.schema.events import AlertRaised, Event, NetworkMeasured, RoundForecast, RoundTripsReported
from peer.schema.settings import PeerSettings
from peer.schema.spec import RunSpec, load
from tests.peer.consensus.rounds.build import header, update

MICRO = load("micro")
SPEC = replace(MICRO, round=replace(MICRO.round, sync_rounds=0, ramp_rounds=0))
"""All of its rounds have as many inner steps."""
STEP_S = 0.5
WAITED_MS = 10_000


class Told:
    """A forecaster of p0, and what it said."""

    def __init__(self, settings: PeerSettings | None = None, *, speed_known: bool = True, spec: RunSpec = SPEC) -> None:
        self.events: list[Event] = []
        pace = Pace(spec)
        for _ in range(5 if speed_known else 0):
            pace = pace.stepped(STEP_S, 4096)
        self.pace = pace
        values = asdict(settings or PeerSettings())
        self.forecaster = Forecaster(spec, "p0", lambda: values, self.events.append)

    def rounds(self, first: int, last: int, *, round_s: float = 60.0, ready_ms: int = 0) -> None:
        for round in range(first, last + 1):
            self.forecaster.committed(decided(round, ready_ms), round_s, self.pace)

    @property
    def forecasts(self) -> list[RoundForecast]:
        return [event for event in self.events if isinstance(event, RoundForecast)]

    @property
    def warnings(self) -> list[str]:
        return [event.text for event in self.events if isinstance(event, AlertRaised) and event.code == "FORECAST"]


def decided(round: int, ready_ms: int) -> Update:
    """A round in which p0 was ready so much later than the first."""
    members = tuple(header(name) for name in ("p0", "p1", "p2"))
    took = ((ready_ms, 0, 0, 0), (0, 0, 0, 0), (0, 0, 0, 0))
    return replace(update(members=members), round=round, waited=(WAITED_MS, 0, 0, 0), took=took)


def test_after_each_round_the_next_is_foretold_beside_what_this_one_took() -> None:
    told = Told()
    told.rounds(1, 6)
    assert [event.round for event in told.forecasts] == [2, 3, 4, 5, 6, 7]
    assert told.forecasts[0].foretold_s is None
    assert all(event.took_s == 60.0 for event in told.forecasts)
    for before, after in zip(told.forecasts, told.forecasts[1:], strict=False):
        assert after.foretold_s == before.expected_s
    assert abs(told.forecasts[-1].expected_s / 60.0 - 1) < 0.01
    assert told.forecasts[-1].low_s < 60.0 < told.forecasts[-1].high_s
    assert told.warnings == []


def test_nothing_is_foretold_before_the_speed_is_known_nor_after_the_last_round() -> None:
    assert not _said(Told(speed_known=False), 1, 3)
    last = SPEC.run.rounds
    assert [event.round for event in _said(Told(), last - 1, last)] == [last]


def _said(told: Told, first: int, last: int) -> list[RoundForecast]:
    told.rounds(first, last)
    return told.forecasts


def test_the_rest_of_the_run_is_foretold_by_its_rounds_to_come() -> None:
    told = Told()
    told.rounds(1, 4)
    assert told.forecasts[-1].run_left_s == pytest.approx((SPEC.run.rounds - 4) * 60.0, rel=0.01)
    endless = Told(spec=replace(SPEC, run=replace(SPEC.run, rounds=0)))
    assert _said(endless, 1, 4)[-1].run_left_s is None


def test_a_peer_that_will_be_late_is_warned_once_with_the_setting_that_helps() -> None:
    told = Told(PeerSettings(min_step_s=STEP_S))
    told.rounds(1, 12, ready_ms=12_000)
    assert told.forecasts[-1].late_s == 2.0
    assert told.forecasts[-1].advice.startswith("min_step_s is 0.5 s: with ")
    assert len(told.warnings) == 1
    assert "2 s late; min_step_s is 0.5 s" in told.warnings[0]
    told.rounds(13, 4 + QUIET_ROUNDS, ready_ms=12_000)
    assert len(told.warnings) == 2


def test_who_was_not_there_counts_as_late() -> None:
    told = Told()
    absent = tuple(("p0", "ABSENT", 0, 2, -1, "did not answer") for _ in range(1))
    for round in range(1, 5):
        told.forecaster.committed(replace(decided(round, 0), penalties=absent), 60.0, told.pace)
    assert told.forecasts[-1].late_s == 5.0


def test_what_a_pause_took_teaches_nothing() -> None:
    told = Told()
    told.rounds(1, 6)
    told.forecaster.restarted()
    told.rounds(7, 7, round_s=8 * 3600.0)
    assert told.forecasts[-1].foretold_s is None
    assert abs(told.forecasts[-1].expected_s / 60.0 - 1) < 0.01


# ---- distances ----


def first_forecast_s(*heard: Event) -> float:
    told = Told()
    for event in heard:
        told.forecaster.heard(event)
    told.rounds(1, 1)
    return told.forecasts[0].expected_s


def measured(**rtt_s: float | None) -> NetworkMeasured:
    rows = [
        {"peer": peer, "address": "", "relayed": False, "bytes_sent": 0, "bytes_received": 0, "rtt_s": each}
        for peer, each in rtt_s.items()
    ]
    return NetworkMeasured(addresses=[], reach="", bytes_sent=0, bytes_received=0, peers=rows)


def test_round_trips_that_were_measured_are_foretold_with() -> None:
    """Of all pairs: mine as I measured them, the others' as they say; of the rest it is assumed how far they are."""
    others = RoundTripsReported(about="p1", rtt_s={"p2": 2.0})
    assumed_s, near_s = first_forecast_s(), first_forecast_s(measured(p1=0.002, p2=0.002))
    far_s = first_forecast_s(measured(p1=2.0, p2=2.0), others)
    assert near_s < assumed_s < far_s
    assert far_s - assumed_s > 5, "nine delays of a second instead of 30 ms"
    assert assumed_s < first_forecast_s(measured(p1=None, p2=None), others) < far_s
    assert first_forecast_s(measured(stranger=9.0)) == assumed_s
