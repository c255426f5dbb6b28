"""A PI controller: the share of the time to compute so that a GPU stays at a temperature or a power. Pure.

The heat of a GPU follows its mean power, which follows the share of the time in which it computes. A few watts or
degrees too many for some seconds do no harm. Readings are smoothed first, since they come in whole degrees or swing
with the micro-batches.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

LEAST_DUTY = 0.05
"""Below that a round is hardly worth its traffic: who is still too hot then pauses."""
ALL_THE_TIME = 0.995
"""Nobody notices the rests that would be left."""
LONGEST_STEP_S = 5.0
"""A look that comes later than that, as after a suspended night, counts as one of that length."""


@dataclass(frozen=True, kw_only=True)
class Gains:
    """The gains of a controller. Units of the error are degrees, or shares of the target."""

    proportional: float
    """Duty per unit of error."""
    integral_s: float
    """After this time the integral has answered a lasting error as much as the proportional part did."""
    smooth_s: float
    """Time constant of the smoothing."""
    band: float
    """A GPU that warms up is slowed down from so many units before the target; beyond that band the integral does
    not wind up."""
    guess_s: float = 0.0
    """A GPU that computes all the time and was above the target for so long is slowed down at once in proportion; 0:
    that is left to the controller, whose sensor is smoothed."""


TEMPERATURE = Gains(proportional=0.08, integral_s=60.0, smooth_s=2.0, band=12.0)
"""For coolers that take 20 to 150 s, and 25 to 80 degrees between rest and full load; the tests simulate them."""
POWER = Gains(proportional=0.2, integral_s=6.0, smooth_s=8.0, band=0.2, guess_s=1.0)
"""For a draw that follows at once, at rest between 5 and 60 % of the target and at work up to four times as much."""


@dataclass(frozen=True, kw_only=True)
class Governor:
    """The state of a controller."""

    duty: float = 1.0
    """Share of the time in which to compute, from LEAST_DUTY to 1."""
    integral: float = 1.0
    reading: float | None = None
    """The smoothed reading."""
    over_s: float = 0.0
    """For how long it has been above the target without a rest."""


def steer(
    control: Governor, gains: Gains, reading: float | None, target: float, unit: float, elapsed_s: float
) -> Governor:
    """The next state, `elapsed_s` after the last one; a missing reading changes nothing. `unit` is what one unit of
    the gains is in units of the reading: 1 for degrees, the target for a power."""
    if reading is None:
        return control
    seconds = min(max(elapsed_s, 0.0), LONGEST_STEP_S)
    over_s = control.over_s + seconds if control.duty == 1.0 and reading > target else 0.0
    if 0 < gains.guess_s <= over_s:
        guess = max(target / reading, LEAST_DUTY)
        return Governor(duty=guess, integral=guess, reading=target)
    before = reading if control.reading is None else control.reading
    smooth = before + (reading - before) * -math.expm1(-seconds / gains.smooth_s)  # exact for whatever time has passed
    error = (target - smooth) / unit
    integral = control.integral + gains.proportional * error * seconds / gains.integral_s
    most = 1.0 - gains.proportional * min(max(error, 0.0), gains.band)
    integral = min(max(integral, 0.0), most)
    duty = max(integral + gains.proportional * error, LEAST_DUTY)
    return Governor(duty=1.0 if duty > ALL_THE_TIME else duty, integral=integral, reading=smooth, over_s=over_s)


def rest_s(computed_s: float, duty: float) -> float:
    return computed_s * (1.0 - duty) / duty
