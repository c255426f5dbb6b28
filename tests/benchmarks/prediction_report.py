"""What the prediction benchmark found, for people: repeatability first, then every configuration, then the bars."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from peer.planning.plan.calibration import MeasuredRun, RoundTiming
from peer.planning.plan.coefficients import Coefficients
from peer.planning.plan.round_cost import predict
from tests.benchmarks.rows import Bar, markdown

if TYPE_CHECKING:
    from tests.benchmarks.prediction import Configuration

MEAN, WORST, BEST = 0.96, 0.85, 0.03


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """One configuration."""

    name: str
    group: str
    """Peers and line: what one would choose for."""
    held_out: bool
    measured_s: float
    """Of a round: the median over repeats."""
    repeats_s: list[float]
    predicted_s: float
    low_s: float
    high_s: float
    measured_tokens_per_s: float
    predicted_tokens_per_s: float
    measured_step_s: float
    predicted_step_s: float
    measured_up_bytes: float
    predicted_up_bytes: float

    @property
    def accuracy(self) -> float:
        """1 − |predicted − measured| / measured."""
        return 1 - abs(self.predicted_s - self.measured_s) / self.measured_s

    @property
    def tokens_accuracy(self) -> float:
        apart = abs(self.predicted_tokens_per_s - self.measured_tokens_per_s)
        return 1 - apart / self.measured_tokens_per_s

    @property
    def spread(self) -> float:
        """How far repeats are apart, over their median."""
        return (max(self.repeats_s) - min(self.repeats_s)) / self.measured_s

    @property
    def is_inside(self) -> bool:
        """Whether what was measured lies in the interval that was foretold."""
        return self.low_s <= self.measured_s <= self.high_s


def predict_all(
    samples: Mapping[Configuration, MeasuredRun],
    rows: Mapping[Configuration, Sequence[RoundTiming]],
    found: Coefficients,
) -> list[Predicted]:
    """Every configuration with its prediction, the fitted ones too."""
    predicted = []
    for each, sample in samples.items():
        cost = predict(sample.shape, sample.spec, sample.swarm, found)
        predicted.append(
            Predicted(
                name=each.name, group=f"{each.peers} peers, {each.upload_mbps:g} Mbit/s", held_out=each.is_held_out,
                measured_s=sample.timed.round_s, repeats_s=[timed.round_s for timed in rows[each]],
                predicted_s=cost.round_s, low_s=cost.low_s, high_s=cost.high_s,
                measured_tokens_per_s=sample.timed.tokens_per_s, predicted_tokens_per_s=cost.tokens_per_s,
                measured_step_s=sample.timed.step_s, predicted_step_s=statistics.fmean(cost.step_s),
                measured_up_bytes=sample.timed.up_bytes, predicted_up_bytes=cost.traffic.up_bytes,
            )
        )  # fmt: skip
    return predicted


def tables(predicted: Sequence[Predicted]) -> str:
    """Repeatability in a sentence, and a line per configuration."""
    spreads = [each.spread for each in predicted]
    text = (
        f"Repeats of one configuration differ by {statistics.fmean(spreads):.1%} in the mean, {max(spreads):.1%} at "
        f"most (largest less smallest round time, over the median).\n\n"
    )
    titles = ["configuration", "", "round (s)", "repeats ±", "predicted", "accuracy", "step (ms)", "predicted",
              "tokens/s", "predicted", "MB up", "predicted"]  # fmt: skip
    return text + markdown([titles, *(_line(each) for each in predicted)])


def _line(each: Predicted) -> list[str]:
    return [
        each.name, "held out" if each.held_out else "fitted", f"{each.measured_s:.3f}", f"{each.spread / 2:.1%}",
        f"{each.predicted_s:.3f}", f"{each.accuracy:.1%}", f"{1000 * each.measured_step_s:.2f}",
        f"{1000 * each.predicted_step_s:.2f}", f"{each.measured_tokens_per_s:.0f}",
        f"{each.predicted_tokens_per_s:.0f}", f"{each.measured_up_bytes / 1e6:.3f}",
        f"{each.predicted_up_bytes / 1e6:.3f}",
    ]  # fmt: skip


def judge(predicted: Sequence[Predicted]) -> list[Bar]:
    """The issue's bars, on those that fitted nothing."""
    held_out = [each for each in predicted if each.held_out]
    accuracies = [each.accuracy for each in held_out]
    mean, worst = statistics.fmean(accuracies), min(held_out, key=lambda each: each.accuracy)
    inside = sum(each.is_inside for each in held_out)
    tokens = statistics.fmean(each.tokens_accuracy for each in held_out)
    return [
        Bar(
            name=f"mean accuracy on held-out configurations at least {MEAN:.0%}", met=mean >= MEAN,
            figures=f"{mean:.1%} of {len(held_out)} (of tokens/s {tokens:.1%}; fitted ones "
            f"{statistics.fmean(each.accuracy for each in predicted if not each.held_out):.1%}); {inside} in their "
            "nine-in-ten interval",
        ),
        Bar(
            name=f"worst at least {WORST:.0%}", met=worst.accuracy >= WORST,
            figures=f"{worst.accuracy:.1%}, {worst.name}",
        ),
        _best(predicted),
    ]  # fmt: skip


def _best(predicted: Sequence[Predicted]) -> Bar:
    """Of all, and of those with the same peers and lines: is what is ranked first as good as what was?"""
    groups = {"all": list(predicted)}
    for each in predicted:
        groups.setdefault(each.group, []).append(each)
    losses = {name: _loss(rows) for name, rows in groups.items() if len(rows) > 1}
    worst = max(losses, key=lambda name: losses[name])
    return Bar(
        name=f"best-ranked configuration within {BEST:.0%} of the measured best, of all and for each kind of line",
        met=losses[worst] <= BEST,
        figures=f"{losses.get('all', 0.0):.1%} of all; worst {losses[worst]:.1%}, {worst}",
    )


def _loss(rows: Sequence[Predicted]) -> float:
    """How much fewer tokens per second the best-ranked makes than the best."""
    chosen = max(rows, key=lambda each: each.predicted_tokens_per_s)
    best = max(rows, key=lambda each: each.measured_tokens_per_s)
    return 1 - chosen.measured_tokens_per_s / best.measured_tokens_per_s
