"""How many seconds the parts of a round take on this machine: a few numbers, fitted to measured rounds.

What a formula can say (bytes over a line's rate, delays, how often something happens) is in `round_cost.py` and
`round_traffic.py`. These numbers are the rest: arithmetic per parameter, and costs that are equal in every round.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from dht.errors import BadInput
from peer.schema.event_fields import RENAMED_PHASES

Z90 = 1.645
"""Nine tenths of a normal distribution lie within this number of standard deviations of its mean."""
UNMEASURED = 0.35
"""The relative deviation of a time that depends on an assumed machine. An assumption itself."""
STEPS = ("step", "block", "flop", "update")
"""The terms of an inner step."""
PHASES: Mapping[str, tuple[str, ...]] = {
    "submit": ("fixed", "parameter"),
    "prepare": ("fixed", "member"),
    "exchange": ("fixed", "parameter", "wire"),
    "reduce": ("fixed", "parameter", "wire"),
    "commit": ("fixed", "member"),
    "apply": ("fixed", "parameter"),
}
"""The terms of each phase of a round, in the order of `PhaseEntered`. `parameter`: per parameter of the model
(apply) or of the fragment, times the slowdown by shared cores; `member`: per member; `wire`: per second that the
line needs."""

SHARES = ("sharing", "crowding", "beside", "spread", "residual")
LATER = ("crowding", "beside")
"""The keys that a file of an earlier fit may lack."""


@dataclass(frozen=True, kw_only=True)
class Coefficients:
    """Seconds by term. `steps` is not needed for a machine whose inner step was measured."""

    steps: Mapping[str, float]
    """`step`: per inner step; `block`: per transformer block and micro-batch; `flop`: per floating-point operation;
    `update`: per parameter and inner step (clipping, optimizer)."""
    phases: Mapping[str, Mapping[str, float]]
    sharing: float = 0.0
    """How much slower arithmetic is, as a share, when all cores of a machine are busy: they share memory and heat."""
    crowding: float = 0.0
    """How much slower arithmetic becomes in addition, as a share, for every process on each core beyond the first:
    processes share caches."""
    beside: float = 0.0
    """How many seconds of one core a second of an agreement takes from the steps made during it, where all cores are
    busy."""
    spread: float = 0.0
    """How much longer, as a share, the slowest of several peers on one machine trains than their mean."""
    residual: float = 0.1
    """The relative deviation of measured rounds from the fit."""
    measured: str = ""
    """Where and when they were measured, for people."""
    figures: int = field(default=0)
    """The number of configurations that were fitted."""

    def __post_init__(self) -> None:
        values = [*self.steps.values(), *(value for terms in self.phases.values() for value in terms.values())]
        if not all(0 <= value < math.inf for value in (*values, *(getattr(self, share) for share in SHARES))):
            raise BadInput("coefficients must be numbers that are not negative")

    def crowd(self, peers: int, cores: int) -> float:
        """The factor by which arithmetic is slower for each of `peers` peers on one machine; 1 if each has its own
        machine. The formula is ours."""
        if cores <= 0:
            return 1.0
        busy, turns = min(peers, cores), max(1.0, peers / cores)
        return turns * (1 + self.sharing * (busy - 1) / max(1, cores - 1)) * (1 + self.crowding * (turns - 1))

    def interval(self, seconds: float, deviation: float = 0.0) -> tuple[float, float]:
        """The bounds that contain nine tenths of all cases, from the fit's residual and a further relative
        `deviation`, log-normal."""
        factor = math.exp(Z90 * math.hypot(self.residual, deviation))
        return seconds / factor, seconds * factor


@cache
def shipped() -> Coefficients:
    """The coefficients that are shipped with the product; their file says where they were measured."""
    return parse(
        tomllib.loads((files("peer.planning.plan") / "data" / "coefficients.toml").read_text()), "coefficients.toml"
    )


def read(path: Path) -> Coefficients:
    """The coefficients in a TOML file, as `python -m tests.benchmarks prediction` writes it. Raises BadInput."""
    try:
        return parse(tomllib.loads(path.read_text()), str(path))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadInput(f"{path} is not TOML: {error}") from error
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}; name a file that `calibrate` wrote") from error


def parse(table: Mapping[str, Any], source: str) -> Coefficients:
    """The coefficients from nested dictionaries; unknown keys of an earlier fit are ignored. Raises BadInput if
    something is missing."""
    table = {RENAMED_PHASES.get(key, key): value for key, value in table.items()}
    try:
        steps = {term: float(table["steps"][term]) for term in STEPS}
        phases = {phase: {term: float(table[phase][term]) for term in terms} for phase, terms in PHASES.items()}
        shares = {key: float(table.get(key, 0.0) if key in LATER else table[key]) for key in SHARES}
        rest: dict[str, Any] = {key: table[key] for key in ("measured", "figures")} | shares
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(f"{source}: {error} is missing or no number") from error
    return Coefficients(steps=steps, phases=phases, **rest)
