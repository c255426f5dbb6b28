"""A peer's forecast: after every round, the times of the next one, and a warning if this peer's part would be late."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from peer.consensus.protocol.block import Update
from peer.node.lifecycle.pace import Pace
from peer.planning.forecast.round_forecast import Forecast, RoundForecaster, fact_of, in_words, remedy
from peer.planning.placement.pairwise_network import Distances
from peer.planning.plan.model_shape import shape_of
from peer.planning.plan.peer_set import HOME_DELAY_S, Machine, claimed_mbps
from peer.schema.events import AlertRaised, Event, NetworkMeasured, RoundForecast, RoundTripsReported
from peer.schema.spec import RunSpec

QUIET_ROUNDS = 16
"""A warning is not repeated for this number of rounds."""


class Forecaster:
    """Compares each round's forecast with what the round really took, and reports both."""

    def __init__(
        self, spec: RunSpec, me: str, settings: Callable[[], Mapping[str, Any]],
        emit: Callable[[Event], None],
    ) -> None:  # fmt: skip
        self._spec, self._me, self._settings, self._emit = spec, me, settings, emit
        self._pace = Pace(spec)
        self._live = RoundForecaster(spec, shape_of(spec))
        self._distances = Distances()
        self._foretold_s: float | None = None
        self._warned_at: int | None = None

    def heard(self, event: Event) -> None:
        """Take note of a measurement of the network. Of round trips, their seconds are kept."""
        match event:
            case NetworkMeasured():
                self._distances.tell(self._me, {row["peer"]: row["rtt_s"] for row in event.peers})
            case RoundTripsReported():
                self._distances.tell(event.about, event.rtt_s)

    def committed(self, update: Update, round_s: float, pace: Pace) -> None:
        """Called after a round that took `round_s` from anchor to anchor. Reports what is expected of the next
        round, once this peer's speed is known."""
        self._pace = pace
        self._live.learn(fact_of(update, self._me, round_s))
        foretold_s, self._foretold_s = self._foretold_s, None
        if not self._pace.step_s or self._spec.run.rounds == update.round:
            return
        self._distances.keep({self._me, *(member.peer for member in update.members)})  # anybody may tell some
        settings = self._settings()
        upload_bps = {member.peer: member.bandwidth_bps for member in update.members}
        mine = self._mine(settings, upload_bps.pop(self._me, 0))
        others = self._others(len(update.members))
        expected = self._live.expect(
            update.round,
            mine,
            others,
            HOME_DELAY_S,
            tuple(upload_bps.values()),
            tuple(upload_bps),
            self._distances.one_way_s(),
        )
        self._foretold_s = expected.round_s
        ends = self._spec.run.rounds > 0
        run_left_s = expected.round_s + self._live.later_s(update.round + 1) if ends else None
        steps = self._pace.expected(update.round)
        advice = remedy(self._spec, expected, self._pace.step_s, steps, settings)
        self._emit(
            RoundForecast(
                round=update.round + 1, expected_s=round(expected.round_s, 3), low_s=round(expected.low_s, 3),
                high_s=round(expected.high_s, 3), took_s=round(round_s, 3),
                foretold_s=None if foretold_s is None else round(foretold_s, 3),
                late_s=None if expected.late_s is None else round(expected.late_s, 3), advice=advice,
                run_left_s=None if run_left_s is None else round(run_left_s, 3),
            )
        )  # fmt: skip
        self._warn(update.round, expected, advice)

    def restarted(self) -> None:
        """The round in training is not an ordinary one (after a pause or a jump), so nothing is learned from it."""
        self._live.forget_foretold()
        self._foretold_s = None

    def _mine(self, settings: Mapping[str, Any], upload_bps: int) -> Machine:
        return Machine(
            name="mine", step_s=self._pace.step_s, upload_mbps=claimed_mbps(upload_bps) or settings["upload_mbps"],
            download_mbps=settings["download_mbps"], region=self._me,
        )  # fmt: skip

    def _others(self, members: int) -> tuple[float, ...]:
        """The tokens per second of the other members; 0 for those that state none."""
        said = self._pace.others_tokens_per_s[: max(0, members - 1)]
        return said + (0.0,) * (members - 1 - len(said))

    def _warn(self, round: int, expected: Forecast, advice: str) -> None:
        if not expected.is_tight:
            return
        if self._warned_at is not None and round - self._warned_at < QUIET_ROUNDS:
            return
        self._warned_at = round
        self._emit(AlertRaised(level="warning", code="FORECAST", text=f"{in_words(expected)}; {advice}"))
