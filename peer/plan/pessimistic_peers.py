"""How bad the lines of peers may be of which nobody said or measured anything: the upper end of an interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from peer.placement.place import Placement, in_order
from peer.placement.stage_workload import StageWorkload, problem_of
from peer.plan.coefficients import UNMEASURED, shipped
from peer.plan.peer_set import HOME_DELAY_S, PeerSet, rates_between

UPLOAD_MBPS, DOWNLOAD_MBPS, DELAY_S = 10.0, 50.0, 0.1
"""Of a home behind a slow line, and far from the others. An assumption, as the fast one is that it stands beside."""


def worst_of(swarm: PeerSet) -> PeerSet | None:
    """The same peers with slow lines and far apart wherever that was only assumed; None if nothing was."""
    capped = all(machine.upload_mbps and machine.download_mbps for machine in swarm.machines)
    if len(swarm) == 1 or swarm.cores or swarm.knows_lines or (capped and not swarm.assumes_delay):
        return None
    machines = tuple(
        replace(
            machine,
            upload_mbps=machine.upload_mbps or UPLOAD_MBPS,
            download_mbps=machine.download_mbps or DOWNLOAD_MBPS,
        )
        for machine in swarm.machines
    )
    delay_s = swarm.network.delay_s
    if swarm.assumes_delay:
        delay_s = np.where(delay_s == HOME_DELAY_S, DELAY_S, delay_s)
    network = replace(swarm.network, delay_s=delay_s, bandwidth_bps=rates_between(machines))
    return replace(swarm, machines=machines, network=network)


def step_between_s(
    swarm: PeerSet, work: StageWorkload, speeds: Sequence[float], found: Placement
) -> tuple[float, float]:  # fmt: skip
    """The bounds that hold nine tenths of the steps of a layout, as far as that can be said: no pipeline was measured
    here. The upper one reaches to what these stages, paired for that, take behind slow lines if some are assumed."""
    low_s, high_s = shipped().interval(found.cost_s, UNMEASURED)
    worst = worst_of(swarm)
    if worst is None:
        return low_s, high_s
    network = worst.network.both_ways()
    problem = problem_of(network, work, speeds=speeds, pipelines=len(found.pipelines))
    slow_s = in_order(problem, network, np.array(found.stages)).cost_s
    return low_s, max(high_s, shipped().interval(slow_s, UNMEASURED)[1])
