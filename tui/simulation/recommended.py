"""The rounds that a plan recommends where only the run is known: its founders are home GPUs on home lines."""

from __future__ import annotations

from dataclasses import dataclass

from peer.planning.plan.coefficients import shipped
from peer.planning.plan.home_cost import UPLOAD_BPS
from peer.planning.plan.model_shape import shape_of
from peer.planning.plan.peer_set import Machine, uniform_peers
from peer.planning.plan.planning_problem import PlanningProblem
from peer.planning.plan.run_needs import peers_of
from peer.planning.plan.strategy_search import RankedStrategy, as_it_stands, differences, search
from peer.schema.spec import RunSpec
from tui.simulation.planner import chosen_spec

LEAST_GAIN = 0.05
"""A smaller gain is within what a plan errs by."""
MOST_DELAY = 0.25
"""An average that came later than after this share of a round's steps was never measured."""


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """A spec whose rounds make more of such homes."""

    spec: RunSpec
    words: str
    """What differs, and what is gained by it."""
    homes: str
    """The options of `homefires plan` that name the same homes."""


def recommended(spec: RunSpec) -> Recommendation | None:
    """What `homefires plan` recommends for as many homes as found the run; None if its own rounds are as good."""
    homes = uniform_peers(peers_of(spec), Machine(name="a home", upload_mbps=UPLOAD_BPS / 1e6))
    question = PlanningProblem(spec=spec, shape=shape_of(spec), swarm=homes, given=shipped())
    now = as_it_stands(question)
    best = next((ranked for ranked in search(question).ranked if _is_measured(ranked)), now)
    gain = best.score / now.score
    if gain < 1 + LEAST_GAIN:
        return None
    more = f"{gain - 1:.0%} more" if gain < 2 else f"{gain:.1f} times as much"
    upload = f"{UPLOAD_BPS / 1e6:.0f}"
    words = (
        f"{differences(best.strategy, now.strategy)}: {len(homes)} home GPUs on {upload} Mbit/s would learn {more} in "
        "the same time"
    )
    return Recommendation(
        spec=chosen_spec(question, best), words=words, homes=f"--peers {len(homes)} --upload {upload}"
    )


def _is_measured(ranked: RankedStrategy) -> bool:
    """Whether its average comes no later than any that was measured."""
    chosen = ranked.strategy
    return chosen.overlap != "streaming" or ranked.cost.delay_steps <= MOST_DELAY * chosen.steps
