"""The forecast of `sharding_cost` for a peer with several devices, or with one that is too small for the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from peer.planning.plan.cluster_cost import smallest_cluster
from peer.planning.plan.model_shape import ModelShape
from peer.planning.plan.peer_set import HOME_FLOPS, Machine
from peer.planning.plan.sharding_cost import (
    HOME_PROFILE,
    RanksProfile,
    ShardedCost,
    ShardedWork,
    deal,
    fastest_that_fits,
    sharded_cost,
    sharded_work,
)
from peer.planning.plan.sharding_strategy import Sharding, ShardingStrategy, strategies_of
from peer.schema.settings import AUTO
from peer.schema.spec import RunSpec

GB = 1e9
UNSURE = 1.1
"""A way is still tried if it needs up to this many times the memory there is: the forecast is accurate to about a
tenth."""


def home_cost(shape: ModelShape, spec: RunSpec, machine: Machine, device_step_s: float) -> ShardedCost:
    """The fastest way for the equal devices of `machine` to make an inner step for which one of them needs
    `device_step_s`. If no way fits, the one that needs the least memory. Each rank processes as many sequences at a
    time as the spec's micro-batch has, or fewer if its share of a step has fewer."""
    ranks, whole = machine.devices, spec.inner.sequences * spec.inner.accumulation
    at_once = min(whole, spec.inner.sequences * ranks)
    inner = replace(spec.inner, sequences=at_once, accumulation=-(-whole // at_once))
    dealt = deal(at_once, [1.0] * ranks, [at_once] * ranks)
    work = sharded_work(shape, replace(spec, inner=inner), dealt, [device_step_s / whole] * ranks)
    given = _profile_of(machine)
    room_bytes = machine.memory_gb * GB or float("inf")
    found = fastest_that_fits(work, given, [room_bytes] * ranks, main_bytes=0.0)
    if found is not None:
        return found
    return min(
        (sharded_cost(work, way, given) for way in strategies_of(ranks)), key=lambda cost: max(cost.device_bytes)
    )  # fmt: skip


def _profile_of(machine: Machine) -> RanksProfile:
    """The profile with the bandwidths that the machine states; all else is assumed."""
    return replace(
        HOME_PROFILE, inside_bytes_per_s=machine.inside_gbps * 1e9 / 8,
        between_bytes_per_s=machine.between_gbps * 1e9 / 8, group=machine.fast_group,
    )  # fmt: skip


def ways_to_try(
    shape: ModelShape, spec: RunSpec, room_bytes: Sequence[float], main_bytes: float, *, kind: Sharding | None = None,
    offload: bool = False,
) -> list[ShardingStrategy]:  # fmt: skip
    """The ways that may fit devices with `room_bytes` each (0: not known), the fastest by the forecast first. If the
    owner allows `offload`, ways that keep layers in `main_bytes` of main memory follow last. Of one `kind`, or of
    all."""
    ranks, whole = len(room_bytes), spec.inner.sequences * spec.inner.accumulation
    one_each = replace(spec, inner=replace(spec.inner, sequences=ranks, accumulation=-(-whole // ranks)))
    sequence_s = spec.model.context * shape.flops_per_token(spec.model.context) / HOME_FLOPS
    work = sharded_work(shape, one_each, [1] * ranks, [sequence_s] * ranks)
    found = []
    for offloads in (False, True) if offload else (False,):
        costs = [
            sharded_cost(work, way, HOME_PROFILE) for way in strategies_of(ranks, offloads=offloads)
            if kind in (None, way.kind) and (spec.inner.optimizer != "muon" or way.shares == 1)
        ]  # fmt: skip
        fitting = [cost for cost in costs if ranks * cost.main_bytes <= main_bytes and _may_fit(cost, room_bytes)]
        found += [cost.strategy for cost in sorted(fitting, key=lambda cost: cost.step_s)]
    return found


def _may_fit(cost: ShardedCost, room_bytes: Sequence[float]) -> bool:
    return all(not room or needed <= UNSURE * room for needed, room in zip(cost.device_bytes, room_bytes, strict=True))


# ---- one device that a model does not fit ----


@dataclass(frozen=True, kw_only=True)
class OffloadForecast:
    """The forecast for one device that loads layers from main memory."""

    tokens_per_s: float
    share: float
    """The speed relative to the same device if it held the whole model."""
    device_bytes: float
    main_bytes: float
    """The bytes for parameters, gradients and moments; what a round needs is not included."""


def offload_tokens_per_s(
    shape: ModelShape, spec: RunSpec, room_bytes: float, *, flops: float = HOME_FLOPS,
    given: RanksProfile = HOME_PROFILE,
) -> OffloadForecast | None:  # fmt: skip
    """The forecast for a device that offloads. Layers cross the bus forward and backward, gradients go back, and the
    processor runs AdamW.

    It uses the largest micro-batch that fits in `room_bytes` of the device, starting from the spec's and halving it.
    None if not even a single sequence fits. `flops` is the FLOP/s that training reaches on the device.
    """
    whole, sequences = spec.inner.sequences * spec.inner.accumulation, spec.inner.sequences
    sequence_s = spec.model.context * shape.flops_per_token(spec.model.context) / flops
    while True:
        inner = replace(spec.inner, sequences=sequences, accumulation=-(-whole // sequences))
        work = sharded_work(shape, replace(spec, inner=inner), [sequences], [sequence_s])
        streamed, held = (_alone(work, given, offloads=offloads) for offloads in (True, False))
        if max(streamed.device_bytes) <= room_bytes:
            break
        if sequences == 1:
            return None
        sequences = (sequences + 1) // 2
    return OffloadForecast(
        tokens_per_s=whole * spec.model.context / streamed.step_s, share=held.step_s / streamed.step_s,
        device_bytes=max(streamed.device_bytes), main_bytes=streamed.main_bytes,
    )  # fmt: skip


def _alone(work: ShardedWork, given: RanksProfile, *, offloads: bool) -> ShardedCost:
    return sharded_cost(work, ShardingStrategy(kind=Sharding.REPLICATED, ranks=1, offloads=offloads), given)


# ---- what a home can do that does not hold a model ----

FROM_MAIN_MEMORY = "offload=yes"
UPLOAD_BPS = 20e6
"""The assumed upload bandwidth of a home whose line was not measured."""


@dataclass(frozen=True, kw_only=True)
class WayToTrain:
    """A way to train where a device cannot hold the model. A peer whose owner chose nothing takes layers from main
    memory; if there is no room for them either, it looks for other homes in a run that is open to all."""

    setting: str
    """The setting, as `KEY=VALUE`."""
    words: str
    tokens_per_s: float

    def in_words(self) -> str:
        return f"{self.words}: about {self.tokens_per_s:,.0f} tokens/s"


def ways_without_room(
    shape: ModelShape, spec: RunSpec, room_bytes: float, main_bytes: float, upload_bps: float = UPLOAD_BPS
) -> tuple[WayToTrain, ...]:
    """The ways to train on a device with `room_bytes` that is too small for the model, the fastest first.
    `main_bytes` of main memory can hold what the device cannot.

    The frozen model of an adapter is in no main memory.
    """
    found = []
    aside = None if spec.adapter is not None else offload_tokens_per_s(shape, spec, room_bytes)
    if aside is not None and aside.main_bytes <= main_bytes:
        words = "layers from main memory"
        found.append(WayToTrain(setting=FROM_MAIN_MEMORY, words=words, tokens_per_s=aside.tokens_per_s))
    together = smallest_cluster(shape, spec, room_bytes, upload_bps)
    if together is not None:
        finds = not found and spec.admission.policy == "open"
        which = ", which find each other," if finds else ","
        words = f"a cluster of {together.homes} such homes{which} on lines of {upload_bps / 1e6:.0f} Mbit/s"
        setting = f"stages={AUTO if finds else together.homes}"
        found.append(WayToTrain(setting=setting, words=words, tokens_per_s=together.tokens_per_s))
    return tuple(sorted(found, key=lambda way: -way.tokens_per_s))
