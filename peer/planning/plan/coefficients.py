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
"""Deviations of a normal distribution on either side of its mean that hold nine tenths of it."""
UNMEASURED = 0.35
"""Relative deviation of a time that rests on what is assumed of a machine. An assumption itself."""
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
"""The terms of each phase of a round, in the order of `PhaseEntered`. `parameter`: per parameter of the model (apply)
or of the fragment, and slower by as much as cores are shared; `member`: per member; `wire`: per second that the line
takes."""

SHARES = ("sharing", "crowding", "beside", "spread", "residual")
LATER = ("crowding", "beside")
"""What a file of an earlier fit may lack."""


@dataclass(frozen=True, kw_only=True)
class Coefficients:
    """Seconds by term. Of a machine whose inner step was measured `steps` is not needed."""

    steps: Mapping[str, float]
    """`step`: per inner step; `block`: per transformer block and micro-batch; `flop`: per floating-point operation;
    `update`: per parameter and inner step (clipping, optimizer)."""
    phases: Mapping[str, Mapping[str, float]]
    sharing: float = 0.0
    """How much slower arithmetic is when all cores of a machine are busy, as a share: they share memory and heat."""
    crowding: float = 0.0
    """How much slower it is besides, as a share, for every process on each core beyond the first: caches are shared."""
    beside: float = 0.0
    """What a second of an agreement takes from the steps beside it, in seconds of one core, where all are busy."""
    spread: float = 0.0
    """By what share the slowest of several peers on one machine trains longer than their mean."""
    residual: float = 0.1
    """Relative deviation of measured rounds from the fit."""
    measured: str = ""
    """Where and when, for people."""
    figures: int = field(default=0)
    """How many configurations were fitted."""

    def __post_init__(self) -> None:
        values = [*self.steps.values(), *(value for terms in self.phases.values() for value in terms.values())]
        if not all(0 <= value < math.inf for value in (*values, *(getattr(self, share) for share in SHARES))):
            raise BadInput("coefficients must be numbers that are not negative")

    def crowd(self, peers: int, cores: int) -> float:
        """How much slower arithmetic is for each of so many peers on one machine; 1 on machines of their own (ours)."""
        if cores <= 0:
            return 1.0
        busy, turns = min(peers, cores), max(1.0, peers / cores)
        return turns * (1 + self.sharing * (busy - 1) / max(1, cores - 1)) * (1 + self.crowding * (turns - 1))

    def interval(self, seconds: float, deviation: float = 0.0) -> tuple[float, float]:
        """The bounds that hold nine tenths: of the fit's residual and a further relative `deviation`, log-normal."""
        factor = math.exp(Z90 * math.hypot(self.residual, deviation))
        return seconds / factor, seconds * factor


@cache
def shipped() -> Coefficients:
    """Those that come with the product; the file says where they were measured."""
    return parse(
        tomllib.loads((files("peer.planning.plan") / "data" / "coefficients.toml").read_text()), "coefficients.toml"
    )


def read(path: Path) -> Coefficients:
    """Those in a TOML file, as `python -m tests.benchmarks prediction` writes it. Raises BadInput."""
    try:
        return parse(tomllib.loads(path.read_text()), str(path))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadInput(f"{path} is not TOML: {error}") from error
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}; name a file that `calibrate` wrote") from error


def parse(table: Mapping[str, Any], source: str) -> Coefficients:
    """From nested dictionaries; what an earlier fit had besides is not looked at. Raises BadInput for one that lacks
    something."""
    table = {RENAMED_PHASES.get(key, key): value for key, value in table.items()}
    try:
        steps = {term: float(table["steps"][term]) for term in STEPS}
        phases = {phase: {term: float(table[phase][term]) for term in terms} for phase, terms in PHASES.items()}
        shares = {key: float(table.get(key, 0.0) if key in LATER else table[key]) for key in SHARES}
        rest: dict[str, Any] = {key: table[key] for key in ("measured", "figures")} | shares
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(f"{source}: {error} is missing or no number") from error
    return Coefficients(steps=steps, phases=phases, **rest)
