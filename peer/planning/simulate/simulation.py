"""Simulates one group of peers, message by message, and returns its summary: one call."""

from __future__ import annotations

from peer.planning.simulate.group import Group, Sink
from peer.planning.simulate.run_summary import Summary, figures_of
from peer.planning.simulate.scenario import ScenarioOptions


def simulate(asked: ScenarioOptions, *, sink: Sink | None = None) -> Summary:
    """Simulate the scenario that the options describe. Raises BadInput for impossible options."""
    setting = asked.setting()
    group = Group(setting, sink=sink)
    group.run()
    return figures_of(group.tally, len(setting.machines), setting.spec.round.fragments, group.network.messages)
