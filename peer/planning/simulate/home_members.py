"""The members of a simulated run: peers that hold the model, and clusters of homes that do not.

The clusters are those that homes of a run find by themselves (`peer.planning.homes.home_match`), and as fast as every
forecast says. In the simulation a cluster is one peer: it trains while all of its homes are there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from dht.errors import BadInput
from dht.streams.base import MOST_MBPS
from peer.planning.homes.home_match import HomeMatching, Match
from peer.planning.placement.block_shares import StageHome
from peer.planning.plan.cluster_cost import no_cluster, room_of_stage
from peer.planning.plan.model_shape import ModelShape
from peer.planning.plan.peer_set import Machine, PeerSpecs
from peer.planning.plan.round_cost import stated_step_s, step_tokens
from peer.schema.spec import RunSpec


@dataclass(frozen=True, kw_only=True)
class Members:
    """Who trains, and who cannot."""

    machines: tuple[Machine, ...]
    """One of each member. That of a cluster has its lead's name and region."""
    clusters: dict[int, tuple[str, ...]]
    """By the number of the member: the names of its homes in the order of the stages."""
    idle: tuple[str, ...]
    """The homes that hold no model and are in no cluster."""


def members_of(spec: RunSpec, shape: ModelShape, declared: PeerSpecs) -> Members:
    """The members that these peers make. Raises BadInput if there are none."""
    needed_gb = room_of_stage(shape, spec, 1) / 1e9
    small = [each for each in declared.machines if each.devices == 1 and 0 < each.memory_gb < needed_gb]
    whole = [each for each in declared.machines if each not in small]
    found = () if no_cluster(spec) else _matches(spec, shape, replace(declared, machines=tuple(small)))
    by_name = {each.name: each for each in small}
    clusters = [_cluster(spec, match, [by_name[name] for name in match.homes]) for match in found]
    if not whole and not clusters:
        why = no_cluster(spec) or f"no {len(small)} of them hold it together"
        raise BadInput(f"the model needs {needed_gb:.3g} GB on a device, which no peer has; {why}")
    in_one = {name for match in found for name in match.homes}
    return Members(
        machines=(*whole, *clusters),
        clusters={len(whole) + number: match.homes for number, match in enumerate(found)},
        idle=tuple(each.name for each in small if each.name not in in_one),
    )


def _matches(spec: RunSpec, shape: ModelShape, small: PeerSpecs) -> tuple[Match, ...]:
    if not small.machines:
        return ()
    regions, places = small.regions()
    trips = {
        frozenset((small.machines[one].name, small.machines[other].name)): float(
            regions.delay_s[places[one], places[other]] + regions.delay_s[places[other], places[one]]
        )
        for one, other in combinations(range(len(small.machines)), 2)
    }
    homes = {
        each.name: StageHome(
            tokens_per_s=step_tokens(spec) / stated_step_s(shape, spec, each),
            room_bytes=1e9 * each.memory_gb,
            upload_bps=each.upload_bps,
        )
        for each in small.machines
    }
    return HomeMatching(shape, spec).matches(homes, trips)


def _cluster(spec: RunSpec, match: Match, homes: Sequence[Machine]) -> Machine:
    """Each home exchanges its own layers, on its own line, and the slowest is waited for: an equal share each."""
    return replace(
        homes[0], step_s=step_tokens(spec) / match.tokens_per_s, flops=0.0, memory_gb=0.0,
        upload_mbps=_together_mbps([each.upload_mbps for each in homes]),
        download_mbps=_together_mbps([each.download_mbps for each in homes]),
    )  # fmt: skip


def _together_mbps(caps: Sequence[float]) -> float:
    """0: no cap."""
    return min(len(caps) * min(filter(None, caps), default=0.0), MOST_MBPS)
