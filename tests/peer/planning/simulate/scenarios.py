"""Settings for the tests of the simulator: a few peers on home lines, rounds of some seconds."""

from __future__ import annotations

import dataclasses
from typing import Any

from peer.planning.plan.model_shape import shape_of
from peer.planning.simulate.scenario import Scenario, ScenarioOptions
from peer.schema.spec import RunSpec, load


def spec(**round: Any) -> RunSpec:
    """The micro model without ramps."""
    found = load("micro")
    table = dataclasses.replace(found.round, **{"sync_rounds": 0, "ramp_rounds": 0, "steps": 20, **round})
    return dataclasses.replace(found, round=table)


def asked(peers: int = 4, rounds: int = 4, **options: Any) -> ScenarioOptions:
    """Peers of one kind."""
    found: RunSpec = options.pop("spec", None) or spec()
    lines = {"upload_mbps": 10.0, "download_mbps": 50.0, "step_s": 0.5, "seed": 1} | options
    return ScenarioOptions(spec=found, shape=shape_of(found), peers=peers, rounds=rounds, **lines)


def setting(peers: int = 4, rounds: int = 4, **options: Any) -> Scenario:
    """The same as a setting."""
    return asked(peers, rounds, **options).setting()
