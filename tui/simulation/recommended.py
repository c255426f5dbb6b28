"""The rounds that a plan recommends where only the run is known: its founders are home GPUs on home lines."""

from __future__ import annotations

from dataclasses import dataclass

from peer.planning.plan.coefficients import shipped
from peer.planning.plan.home_cost import UPLOAD_BPS
from peer.planning.plan.model_shape import shape_of
from peer.planning.plan.peer_set import Machine, uniform_peers
from peer.planning.plan.planning_problem import PlanningProblem
from peer.planning.plan.run_needs import peers_of
from peer.planning.plan.strategy_search import as_it_stands, differences, search
from peer.schema.spec import RunSpec
from tui.simulation.planner import chosen_spec

LEAST_GAIN = 0.05
"""A smaller gain is within what a plan errs by."""


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """A spec whose rounds make more of such homes."""

    spec: RunSpec
    words: str
    """What differs, and what is gained by it."""


def recommended(spec: RunSpec) -> Recommendation | None:
    """What `homefires plan` recommends for as many homes as found the run; None if its own rounds are as good."""
    homes = uniform_peers(peers_of(spec), Machine(name="a home", upload_mbps=UPLOAD_BPS / 1e6))
    question = PlanningProblem(spec=spec, shape=shape_of(spec), swarm=homes, given=shipped())
    best, now = search(question).best, as_it_stands(question)
    gain = best.score / now.score - 1
    if gain < LEAST_GAIN:
        return None
    words = (
        f"{differences(best.strategy, now.strategy)}: {gain:.0%} more tokens/s of equal worth, between {len(homes)} "
        f"home GPUs on {UPLOAD_BPS / 1e6:.0f} Mbit/s"
    )
    return Recommendation(spec=chosen_spec(question, best), words=words)
