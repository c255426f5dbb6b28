"""How long the next round will take here, and whether this peer's part will be in time; compared with what happened.

A peer knows its own machine and the speeds that others report. The error of the formulas in `../plan/round_cost.py` on
these machines and lines shows in every round; `RoundForecaster` follows its median.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from peer.consensus.protocol.block import NEVER, Update
from peer.consensus.rounds.timeouts import MISSED, ready_after_s
from peer.planning.plan.coefficients import UNMEASURED, Z90, shipped
from peer.planning.plan.model_shape import ModelShape, shape_of
from peer.planning.plan.peer_set import Machine, PeerSet, claimed_mbps, claimed_step_s, swarm_of
from peer.planning.plan.round_cost import predict
from peer.schema.spec import RunSpec

SPREADS = 0.1
"""The weight of the newest round in the variance of how much rounds differ from their forecasts."""
KNOWN = 3
"""The number of rounds after which lateness can be judged."""
LOOKED_AT = 8
"""Lateness is judged by this number of the newest rounds; deadlines of a round are learned from as many."""
TIGHT = 0.2
"""A peer that has less than this share of the others' patience left will be late now and then."""
MOST_FACTOR = 100.0
"""The largest factor that one round can teach: a machine that slept should not teach more."""


@dataclass(frozen=True, kw_only=True)
class ObservedRound:
    """A round as this peer saw it."""

    round_s: float
    ready_s: float
    """How much later this peer's part was ready than the first peer's."""
    patience_s: float
    """How long the others would have waited after the first peer was ready."""


def fact_of(update: Update, peer: str, round_s: float) -> ObservedRound:
    """What a decided round shows about one peer. A peer for which the others waited in vain counts as `MISSED` times
    as late as they waited."""
    patience_s = update.waited[0] / 1000 if update.waited else 0.0
    missed = any(about == peer and code == "ABSENT" for about, code, *_ in update.penalties) or any(
        member.peer == peer and row[0] == NEVER for member, row in zip(update.members, update.took, strict=False)
    )
    ready_s = MISSED * patience_s if missed else ready_after_s(update, peer)
    return ObservedRound(round_s=round_s, ready_s=ready_s, patience_s=patience_s)


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """The forecast of the round that is in training."""

    round_s: float
    low_s: float
    high_s: float
    """Nine of ten such rounds are expected to last between `low_s` and `high_s`."""
    late_s: float | None
    """The expected delay of this peer's part after the others have stopped waiting, a median; negative if it will be
    in time. None while there are too few rounds to tell."""
    patience_s: float = 0.0

    @property
    def is_tight(self) -> bool:
        """Whether the owner should be warned."""
        return self.late_s is not None and self.late_s > -TIGHT * self.patience_s


class RoundForecaster:
    """Follows one run at one peer. It is pure: all that it knows is passed to it."""

    def __init__(self, spec: RunSpec, shape: ModelShape | None = None) -> None:
        self._spec, self._shape, self._given = spec, shape or shape_of(spec), shipped()
        self._variance = math.hypot(self._given.residual, UNMEASURED) ** 2
        self._learned = 0
        self._foretold_s: float | None = None
        """What the formulas alone predicted for the round in training."""
        self._expected_s = 0.0
        """What was forecast for it."""
        self._facts: deque[ObservedRound] = deque(maxlen=LOOKED_AT)
        self._errors: deque[tuple[float, float]] = deque(maxlen=LOOKED_AT)
        """Of the newest rounds that were foretold, how many seconds longer, and how many times as long, each took as
        the formulas alone said."""
        self._swarm: PeerSet | None = None
        """Who makes the round in training."""

    def expect(
        self, round: int, mine: Machine, others: Sequence[float], delay_s: float, others_upload_bps: Sequence[int] = (),
        ids: Sequence[str] = (), delays_s: Mapping[frozenset[str], float] | None = None,
    ) -> Forecast:  # fmt: skip
        """The forecast of the round that begins now at anchor `round`. `others` holds the tokens per second that each
        other member states; a member with 0 states none, and is assumed to be as fast as this peer.
        `others_upload_bps` holds the upload bandwidths that they state, 0 where one states none. The two need not list
        the peers in the same order: that makes hardly a difference, since a round waits for the slowest of each. `ids`
        are the ids of the others, and `mine.region` is the id of this peer. `delays_s` holds the one-way delay by pair
        of ids, and `delay_s` stands in for pairs that are missing."""
        tokens = self._spec.inner.sequences * self._spec.inner.accumulation * self._spec.model.context
        lines, ids = (*others_upload_bps, *[0] * len(others)), (*ids, *[""] * len(others))
        machines = [mine] + [
            Machine(
                name=f"other-{number}", step_s=claimed_step_s(tokens, speed) or mine.step_s,
                upload_mbps=claimed_mbps(upload_bps), region=region,
            )
            for number, (speed, upload_bps, region) in enumerate(zip(others, lines, ids, strict=False))
        ]  # fmt: skip
        self._swarm = swarm_of(machines, delays=delays_s, otherwise_s=delay_s)
        self._foretold_s = self._formulas_s(round, self._swarm)
        self._expected_s = round_s = self._corrected_s(self._foretold_s)
        wide = math.exp(Z90 * math.sqrt(self._variance))
        return Forecast(
            round_s=round_s, low_s=round_s / wide, high_s=round_s * wide, late_s=self._late_s(),
            patience_s=self._facts[-1].patience_s if self._facts else 0.0,
        )  # fmt: skip

    def later_s(self, round: int) -> float:
        """Of all rounds from anchor `round` to the end of the run, by those who make the round in training. A run may
        begin with short rounds, which grow."""
        table, last, total_s = self._spec.round, self._spec.run.rounds, 0.0
        ends = (table.sync_rounds, table.sync_rounds + table.ramp_rounds, last)
        for end in (min(end, last) for end in ends):
            if end > round:
                total_s += (end - round) * (self._length_s(round) + self._length_s(end - 1)) / 2
                round = end
        return total_s

    def _length_s(self, round: int) -> float:
        assert self._swarm is not None, "a round is expected first"
        return self._corrected_s(self._formulas_s(round, self._swarm))

    def _corrected_s(self, foretold_s: float) -> float:
        """A round is longer than the formulas say by as many seconds as the newest ones were, however long it is: inner
        steps are measured, so that what the formulas lack is of the agreement. What they say too much is a share.

        It is the median, so that a round that stood still is no rule.
        """
        if not self._errors:
            return foretold_s
        lacked_s, share = median(each for each, _ in self._errors), median(each for _, each in self._errors)
        corrected_s = foretold_s + lacked_s if lacked_s > 0 else foretold_s * share
        return float(max(self._spec.round.min_round_s, corrected_s))

    def _formulas_s(self, round: int, swarm: PeerSet) -> float:
        """Of the round from an anchor, with as many inner steps as it has."""
        table = replace(self._spec.round, steps=self._spec.steps_in(round))
        return predict(self._shape, replace(self._spec, round=table), swarm, self._given).round_s

    def learn(self, fact: ObservedRound) -> None:
        """Learn from a finished round. If there was no forecast for it (this peer had just joined), only its
        lateness counts."""
        self._facts.append(fact)
        if self._foretold_s is None or fact.round_s <= 0:
            return
        self._errors.append((fact.round_s - self._foretold_s, fact.round_s / self._foretold_s))
        error = math.log(fact.round_s / self._expected_s)
        error = min(max(error, -math.log(MOST_FACTOR)), math.log(MOST_FACTOR))
        if self._learned:  # the first one shows what the formulas are wrong by, not how much rounds differ
            self._variance += max(SPREADS, 1 / (self._learned + 1)) * (error * error - self._variance)
        self._learned += 1
        self._foretold_s = None

    def forget_foretold(self) -> None:
        """Drop the forecast: the round in training is not an ordinary one, so its duration says nothing about the
        formulas."""
        self._foretold_s = None

    def _late_s(self) -> float | None:
        """The median lateness over the newest rounds."""
        if len(self._facts) < KNOWN:
            return None
        return median(fact.ready_s - fact.patience_s for fact in self._facts)


def remedy(spec: RunSpec, expected: Forecast, step_s: float, steps: int, settings: Mapping[str, Any]) -> str:
    """What the owner of a late or nearly late peer can do about it, in words. `steps` of `step_s` each are this
    peer's part. Empty if nothing needs to be done."""
    if not expected.is_tight or expected.late_s is None:
        return ""
    too_long_s = expected.late_s + TIGHT * expected.patience_s
    needed_s = step_s - too_long_s / max(1, steps)
    slowed_s = float(settings.get("min_step_s") or 0.0)
    if needed_s > 0 and slowed_s > needed_s:
        return f"min_step_s is {slowed_s:g} s: with {_down(needed_s):g} s its part would be there in time"
    held = [name for name in ("max_temperature_c", "max_power_w") if settings.get(name)]
    if held:
        return f"{' and '.join(held)} slow it down: raise the limit, or let it be late; what it makes counts later"
    if spec.round.pace == "steps":
        share = max(0.0, too_long_s / max(1e-9, steps * step_s))
        text = f"its machine is {share:.0%} too slow for {steps} steps a round"
        if expected.late_s <= 0:
            text = f"{steps} steps a round leave its machine little time to spare"
        return f'{text}: a run with round.pace = "speed" would ask less of it; what it makes counts in the next round'
    return "close other programs that use the same device; what it makes counts in the next round"


def _down(seconds: float) -> float:
    """`seconds` rounded down to two digits."""
    digits = 1 - math.floor(math.log10(seconds))
    return float(math.floor(seconds * 10**digits) / 10**digits)


def in_words(expected: Forecast) -> str:
    text = f"a round of about {expected.round_s:.0f} s ({expected.low_s:.0f} to {expected.high_s:.0f})"
    if expected.late_s is None:
        return text
    if expected.late_s > 0:
        return f"{text}; this peer's part will be {expected.late_s:.0f} s late"
    return f"{text}; this peer's part will be there {-expected.late_s:.0f} s before the others stop waiting"
