"""Rounds beside two ways to train without them: `python -m tests.benchmarks rivals`.

How fast: rounds as they are simulated, and formulas for rounds, for an all-reduce after every step, and for one-peer
exponential gossip (`gossip.py`), on the same machines and lines. How far: delayed Nesterov, where nobody waits
(`pushes.py`), on a quadratic. What is modelled, and what is not, is printed with it. The same seed gives the same
figures.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from dht.errors import BadInput
from peer.consensus.protocol.block import MAX_MEMBERS
from peer.planning.simulate.grid import lines_of, wire_bytes
from peer.planning.simulate.scenario import Scenario, ScenarioOptions
from peer.planning.simulate.simulation import simulate
from tests.benchmarks.gossip import (
    Floats,
    all_reduce_ends_s,
    consensus_distance,
    gossip_ends_s,
    mix,
    partners,
    period,
    rounds_ends_s,
)
from tests.benchmarks.pushes import Curve, Problem, in_rounds, one_by_one, time_to

MOST_STEPS = 20_000
"""Steps that formulas look at, in whole rounds."""
PAPER_STEP_S = (0.58, 0.75, 1.51, 3.33)
"""Seconds per step of the four workers of the toy that its authors publish (arXiv:2401.09135)."""
TOY_STEPS, TOY_ROUNDS = 20, 40
"""Steps of a round of the quadratic, and how many rounds there is time for."""
TOY_OUTER = (0.7, 0.5)
"""Its outer learning rate and momentum."""
SMALL = 200
"""A loss is small when it is this many times less than at the beginning."""


@dataclass(frozen=True, kw_only=True)
class Speed:
    """One way to train."""

    way: str
    step_s: float
    """From step to step, on average, of all peers."""
    tokens_per_s: float
    """All peers together."""
    sent_bytes: float
    """By each peer per step."""


@dataclass(frozen=True, kw_only=True)
class Reached:
    """Virtual seconds until the loss of the quadratic is small; None if it is not in time."""

    way: str
    peers_s: float | None
    """With the speeds of these peers."""
    paper_s: float | None
    """With those of the paper's four workers."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """All of it."""

    peers: int
    steps: int
    """Of a round."""
    model_bytes: int
    """Encoded."""
    wire: str
    speeds: tuple[Speed, ...]
    period: int
    """Steps of gossip after which everybody has heard, through others, of everybody."""
    left: float
    """Share of the distance between peers that is left then, if nobody learns meanwhile."""
    reached: tuple[Reached, ...]

    def plain(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


def compare(asked: ScenarioOptions) -> Comparison:
    """Simulate rounds, and put the formulas beside them. Raises BadInput unless there are 2 to 64 peers."""
    setting = asked.setting()
    peers = len(setting.machines)
    if not 2 <= peers <= MAX_MEMBERS:
        raise BadInput(f"this is for one group, and there are {peers} peers; take 2 to {MAX_MEMBERS}")
    spec = setting.spec
    if spec.round.pace == "time":
        raise BadInput("round.pace is 'time', so that no formula knows the steps of a round; use 'steps'")
    return Comparison(
        peers=peers, steps=spec.round.steps, model_bytes=wire_bytes(setting), wire=spec.codec.wire,
        speeds=(_simulated(asked, setting), *_formulas(setting)), period=period(peers), left=_left(peers, setting.seed),
        reached=_reached(setting),
    )  # fmt: skip


# ---- how fast ----


def _simulated(asked: ScenarioOptions, setting: Scenario) -> Speed:
    figures = simulate(asked).figures
    if not figures.rounds:
        raise BadInput("no round was made in the time that rounds have; make steps or transfers shorter")
    steps, tokens = setting.spec.round.steps, len(setting.machines) * setting.step_tokens
    return Speed(
        way=f"rounds of {steps} steps, simulated", sent_bytes=figures.bytes_sent / steps,
        step_s=tokens / figures.tokens_per_s, tokens_per_s=figures.tokens_per_s,
    )  # fmt: skip


def _formulas(setting: Scenario) -> list[Speed]:
    """The same machines and lines, without agreeing, judging, churn and attackers."""
    peers, steps = len(setting.machines), setting.spec.round.steps
    rounds = max(1, min(setting.rounds, MOST_STEPS // steps))
    compute_KN = _compute_s(setting, rounds * steps)
    whole_bytes, share = float(wire_bytes(setting)), 1 / setting.spec.round.fragments
    both_bytes = 2 * (peers - 1) / peers * whole_bytes
    found = (
        (
            f"rounds of {steps} steps",
            rounds_ends_s(compute_KN, steps, _all_reduce_s(setting, share)),
            share * both_bytes / steps,
        ),
        ("all-reduce after every step", all_reduce_ends_s(compute_KN, _all_reduce_s(setting)), both_bytes),
        ("one-peer exponential gossip", gossip_ends_s(compute_KN, _gossip_s(setting)), whole_bytes),
    )
    tokens = peers * setting.step_tokens * rounds * steps
    return [
        Speed(
            way=way, step_s=float(ends[-1]) / (rounds * steps), tokens_per_s=tokens / float(ends[-1]),
            sent_bytes=sent_bytes,
        )
        for way, ends, sent_bytes in found
    ]  # fmt: skip


def _compute_s(setting: Scenario, steps: int) -> Floats:
    """Shape (steps, peers): seconds of each step of each peer."""
    dice = np.random.Generator(np.random.PCG64([setting.seed, 0xC03]))
    step_s, spread = (np.array([getattr(each, name) for each in setting.machines]) for name in ("step_s", "spread"))
    found: Floats = step_s * np.exp(spread * dice.standard_normal((steps, len(step_s))))
    return found


def _transfer_s(setting: Scenario) -> Floats:
    """Shape (peers, peers): a whole encoded model from each to each, alone on its way."""
    delay_s, pair_bps = setting.between(np.arange(len(setting.machines)))
    up, down = lines_of(setting)
    found: Floats = delay_s + 8 * wire_bytes(setting) / np.minimum(pair_bps, np.minimum(up[:, None], down[None, :]))
    return found


def _gossip_s(setting: Scenario) -> Floats:
    """Shape (period, peers): what each takes in from whom it hears in each iteration."""
    transfer_s, peers = _transfer_s(setting), len(setting.machines)
    return np.array([transfer_s[partners(peers, at), np.arange(peers)] for at in range(period(peers))])


def _all_reduce_s(setting: Scenario, share: float = 1.0) -> float:
    """Of such a share of the model, there and back: 2 (n − 1)/n of it over the slowest line, or 2/n between the slowest
    pair, and two of the longest delays (arXiv:2503.09799, appendix A)."""
    peers = len(setting.machines)
    delay_s, pair_bps = setting.between(np.arange(peers))
    others = ~np.eye(peers, dtype=bool)
    part_bits = 8 * share * wire_bytes(setting) / peers
    line_bps = min(bps.min() for bps in lines_of(setting))
    slowest_s = max((peers - 1) * part_bits / line_bps, part_bits / pair_bps[others].min())
    return float(2 * (slowest_s + delay_s[others].max()))


def _left(peers: int, seed: int) -> float:
    x_NP = np.random.default_rng(seed).normal(size=(peers, 64))
    before = consensus_distance(x_NP)
    for iteration in range(period(peers)):
        x_NP = mix(x_NP, iteration)
    return consensus_distance(x_NP) / before


# ---- how far ----


def _reached(setting: Scenario) -> tuple[Reached, ...]:
    """In time, on a quadratic, with these peers' speeds and with the paper's."""
    these, theirs = (
        _times(speeds, setting.seed) for speeds in ([machine.step_s for machine in setting.machines], PAPER_STEP_S)
    )
    return tuple(Reached(way=way, peers_s=these[way], paper_s=theirs[way]) for way in these)


def _times(step_s: list[float] | tuple[float, ...], seed: int) -> dict[str, float | None]:
    problem = Problem(workers=len(step_s), curvature_P=np.linspace(0.05, 1.0, 16), apart=0.1, seed=seed)
    asked = (problem, step_s, TOY_STEPS, TOY_ROUNDS * TOY_STEPS * max(step_s), TOY_OUTER)
    curves: dict[str, Curve] = {
        "rounds: all wait for the slowest": in_rounds(*asked),
        "delayed Nesterov, parts by speed": one_by_one(*asked),
        "delayed Nesterov, equal parts": one_by_one(*asked, by_speed=False),
        "momentum with every push": one_by_one(*asked, period=1),
    }
    small = curves["rounds: all wait for the slowest"][0][1] / SMALL
    times = {way: time_to(curve, small) for way, curve in curves.items()}
    return {way: at if math.isfinite(at) else None for way, at in times.items()}
