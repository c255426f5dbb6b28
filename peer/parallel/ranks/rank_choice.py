"""How the devices of a peer share its model: as its owner chose, or as it fits."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dht.errors import BadInput
from peer.node.host.device import free_bytes
from peer.node.host.processes import available_bytes
from peer.node.host.threads import threads_for
from peer.parallel.ranks.sharded_backend import RankOptions
from peer.planning.plan.sharding_strategy import Sharding, ShardingStrategy
from peer.schema.settings import PeerSettings
from peer.schema.spec import RunSpec
from peer.training.model.footprint import size_of
from peer.training.train.autotune_result import Tuned
from peer.training.train.round_vectors import MEMORY_SHARE


def choose_ranks(
    spec: RunSpec, settings: PeerSettings, devices: Sequence[torch.device], fit: Tuned | None
) -> RankOptions:
    """The options for one rank on each of these devices: as a dry run found them, or otherwise by the memory. Raises
    BadInput for a way that is impossible with this number of devices."""
    if fit is not None and fit.sharding:
        strategy = ShardingStrategy(
            kind=Sharding(fit.sharding), ranks=len(devices), group=fit.group, offloads=fit.offloads
        )
    else:
        strategy = _strategy(spec, settings, devices)
    if spec.inner.optimizer == "muon" and strategy.shares > 1:
        raise BadInput(
            f"{spec.run.name} trains with Muon, which needs whole matrices, and sharding {strategy.kind} divides them; "
            "set settings.sharding=replicated, or name one device"
        )
    threads = threads_for(devices[0].type, settings.threads or torch.get_num_threads()).torch
    return RankOptions(
        devices=tuple(map(str, devices)), strategy=strategy, threads=max(1, threads // len(devices)),
        speeds=fit.speeds if fit else (), most=fit.most if fit else (),
    )  # fmt: skip


def _strategy(spec: RunSpec, settings: PeerSettings, devices: Sequence[torch.device]) -> ShardingStrategy:
    ranks = len(devices)
    if ranks == 1:
        return ShardingStrategy(kind=Sharding.FULL, ranks=1, offloads=settings.offload)
    if settings.sharding != "auto":
        kind = Sharding(settings.sharding)
    else:
        kind = Sharding.REPLICATED if _each_holds_all(spec, devices) else Sharding.FULL
    group = ranks // 2 if kind in (Sharding.HIERARCHICAL, Sharding.HYBRID) else 0
    return ShardingStrategy(kind=kind, ranks=ranks, group=group, offloads=settings.offload)


def _each_holds_all(spec: RunSpec, devices: Sequence[torch.device]) -> bool:
    needed_bytes = size_of(spec).device_bytes
    main_bytes = MEMORY_SHARE * available_bytes() / len(devices)
    return all(needed_bytes <= (free_bytes(each) if each.type == "cuda" else main_bytes) for each in devices)
