"""The rounds to come as somebody foretells them who takes no part: as a member would, from what members state."""

from __future__ import annotations

from collections.abc import Mapping

from peer.consensus.protocol.block import Update
from peer.planning.forecast.round_forecast import RoundForecaster, fact_of
from peer.planning.plan.model_shape import shape_of
from peer.planning.plan.peer_set import HOME_DELAY_S, Machine, claimed_mbps, claimed_step_s
from peer.schema.events import RoundForecast
from peer.schema.spec import RunSpec

HALF_A_SECOND_S = 0.5
"""Blocks are dated in whole seconds: two of the same second lie about so far apart."""


class WatchedOutlook:
    """Follows the blocks of one run, each once and in order; some may be missing."""

    def __init__(self, spec: RunSpec) -> None:
        self._spec, self._live = spec, RoundForecaster(spec, shape_of(spec))
        self._last: Update | None = None

    def follow(self, update: Update, speeds: Mapping[str, float]) -> RoundForecast | None:
        """Take note of a round, and foretell the next one and the rest of the run. `speeds` holds the tokens per second
        that peers state. None after the last round, and where no member states a speed."""
        round_s = self._seconds_of(update)
        self._last = update
        self._live.learn(fact_of(update, "", round_s))
        speed_of = {member.peer: speeds.get(member.peer, 0.0) for member in update.members}
        if update.round == self._spec.run.rounds or not any(speed_of.values()):
            self._live.forget_foretold()
            return None
        upload_bps = {member.peer: member.bandwidth_bps for member in update.members}
        first = max(speed_of, key=lambda peer: speed_of[peer])
        step_s = claimed_step_s(self._spec.step_tokens, speed_of.pop(first))
        mine = Machine(name=first, step_s=step_s, upload_mbps=claimed_mbps(upload_bps.pop(first)))
        others = [speed_of[peer] for peer in upload_bps]
        expected = self._live.expect(update.round, mine, others, HOME_DELAY_S, tuple(upload_bps.values()))
        left_s = expected.round_s + self._live.later_s(update.round + 1) if self._spec.run.rounds else None
        return RoundForecast(
            round=update.round + 1, expected_s=round(expected.round_s, 3), low_s=round(expected.low_s, 3),
            high_s=round(expected.high_s, 3), took_s=round_s, run_left_s=None if left_s is None else round(left_s, 3),
        )  # fmt: skip

    def _seconds_of(self, update: Update) -> float:
        """How long a round took by the dates in the blocks; 0 where the block before it is not known."""
        if self._last is None or self._last.round != update.round - 1:
            self._live.forget_foretold()
            return 0.0
        return max(HALF_A_SECOND_S, float(update.time - self._last.time))
