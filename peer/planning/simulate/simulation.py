"""One call for a person's question: a single group, a grid of groups, or an estimate of one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from peer.consensus.protocol.block import MAX_MEMBERS
from peer.planning.simulate.estimate import Estimate
from peer.planning.simulate.grid import Grid, Spread, alone, check_sides, sides_for
from peer.planning.simulate.group import Group
from peer.planning.simulate.run_summary import Summary, figures_of
from peer.planning.simulate.scenario import Scenario, ScenarioOptions
from peer.schema.events import EventLine

MOST_EXACT = 1024
"""Peers of which every message is simulated; of more a few groups are, and the others are drawn from them."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of a simulation."""

    figures: Summary
    how: str = ""
    """In words: how the peers were grouped, and what was simulated of them."""
    told: str = ""
    """In words: whose events were told."""

    def plain(self) -> dict[str, Any]:
        return {"how": self.how, "events_of": self.told, **self.figures.plain()}


def simulate(
    asked: ScenarioOptions,
    *,
    grid: tuple[int, ...] = (),
    aggregate: bool = False,
    sink: Callable[[EventLine], None] | None = None,
    far: Spread = alone,
) -> Outcome:
    """Simulate what was asked for. Raises BadInput for what cannot be."""
    setting = asked.setting()
    peers = len(setting.machines)
    if peers <= MAX_MEMBERS and not grid:
        return _one_group(setting, sink)
    sides = grid or sides_for(peers)
    check_sides(sides, peers)
    drawn = aggregate or peers > MOST_EXACT
    run = (Estimate if drawn else Grid)(setting, sides, sink, far)
    run.run()
    how = "drawn from a few groups" if drawn else "message by message"
    return Outcome(figures=run.figures(), how=f"in a grid of {' × '.join(map(str, sides))}, {how}", told=run.told())


def _one_group(setting: Scenario, sink: Callable[[EventLine], None] | None) -> Outcome:
    group = Group(setting, sink=sink)
    group.run()
    figures = figures_of(group.tally, len(setting.machines), setting.spec.round.fragments, group.network.messages)
    return Outcome(figures=figures, how="in one group, message by message", told="all peers")
