"""The time of an inner step, and the memory of each rank, where the devices of one home share a model.

P are the bytes of a unit that is gathered as one (a block, or everything outside of blocks), in float32. A collective
among n ranks sends (n − 1)/n of them from each rank, an all-reduce twice that (rings). For each micro-batch, but an
all-reduce once in a step:

    replicated    gradients of all units: all-reduce, 2 (n − 1)/n · P
    full          gather forward, gather again backward, reduce-scatter gradients: 3 (n − 1)/n · P (ZeRO-3,
                  arXiv:1910.02054, section 7)
    hierarchical  as full, but the second gather is among the g of a group: 2 (n − 1)/n · P between groups and
                  (g − 1)/g · P within them (hpZ of ZeRO++, arXiv:2306.10209, section 3)
    hybrid        as full among the g of a group, then an all-reduce of the P/g of each rank over the groups (HSDP)

What is outside of blocks is gathered once and kept. With offloading (`offloads`) each gather of shards brings them from
main memory over the bus, each reduction takes them back, and the processor makes the optimizer's step (ZeRO-Offload,
arXiv:2101.06840).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dht.errors import BadInput
from peer.planning.plan.model_shape import ModelShape, peak_of
from peer.planning.plan.sharding_strategy import Sharding, ShardingStrategy, strategies_of
from peer.schema.model_layers import FLOAT32_BYTES
from peer.schema.spec import RunSpec

SLOWER_TOGETHER = 1.1
"""Communication that overlaps computation slows both (Galvatron's overlap coefficient, arXiv:2211.13878). The value
is a guess: nothing here has measured it."""


@dataclass(frozen=True, kw_only=True)
class RanksProfile:
    """What was measured or assumed about the devices of a home, apart from their speed."""

    inside_bytes_per_s: float
    """The bandwidth from a rank to the next one of its fast group."""
    between_bytes_per_s: float
    """The bandwidth where a ring passes from one fast group to the next."""
    group: int = 0
    """The number of ranks in a fast group, neighbours in the order of ranks; 0: all ranks are one group."""
    collective_s: float = 0.0
    """The fixed cost of any collective, whatever its size and number of ranks."""
    hop_s: float = 0.0
    """The fixed cost of passing anything on to the next rank of a ring."""
    optimizer_s: float = 0.0
    """The optimizer's seconds per parameter of a rank, on the device."""
    bus_bytes_per_s: float = math.inf
    """The bandwidth between main memory and a device, each way."""
    host_optimizer_s: float = 0.0
    """The optimizer's seconds per parameter of a rank, on the processor."""
    overlap: float = 0.0
    """The share of the computing time during which blocks can be moved: 1 for a device that does both at once, 0 for
    a processor."""
    activations: float = 1.0
    """The size of activations, as a multiple of the estimate (`peer.schema.peak_memory`)."""
    gathered_twice: bool = False
    """Whether a collective holds a copy of what it gathers (gloo does, NCCL does not)."""


HOME_PROFILE = RanksProfile(
    inside_bytes_per_s=10e9, between_bytes_per_s=10e9, collective_s=30e-6, hop_s=10e-6, optimizer_s=40e-12,
    bus_bytes_per_s=12e9, host_optimizer_s=1.5e-9, overlap=1.0,
)  # fmt: skip
"""Two cards on PCIe 4 without a bridge: 10 GB/s from one to the other, 12 between main memory and each; AdamW reads and
writes 28 bytes per parameter, at 700 GB/s on a card and 20 GB/s on a processor. Assumptions, not measurements."""


@dataclass(frozen=True, kw_only=True)
class ShardedWork:
    """One inner step of a peer, divided among its ranks."""

    block_parameters: int
    blocks: int
    root_parameters: int
    """The parameters outside of all blocks."""
    head_parameters: int
    """The output head's part of `root_parameters`; its gradient is ready first."""
    micro_batches: int
    """The number of micro-batches of an inner step."""
    sequences: tuple[int, ...]
    """The sequences of each micro-batch, by rank (`deal`)."""
    sequence_s: tuple[float, ...]
    """Seconds forward and backward for one sequence, by rank, with the whole model on the device."""
    state_bytes: float
    """The bytes of parameters, gradients and moments of the whole model."""
    copied_bytes: float
    """The bytes of what autocast keeps of the parameters, of each block from its gather to its backward pass."""
    activation_bytes: float
    """The bytes for one sequence, without those of the output head."""
    logit_bytes: tuple[float, ...]
    """The bytes of the logits, by rank."""

    @property
    def parameters(self) -> int:
        return self.block_parameters * self.blocks + self.root_parameters

    @property
    def compute_s(self) -> float:
        """Seconds of the slowest rank, since all wait for it at every collective."""
        each = (count * sequence_s for count, sequence_s in zip(self.sequences, self.sequence_s, strict=True))
        return self.micro_batches * max(each)


def sharded_work(
    shape: ModelShape, spec: RunSpec, sequences: Sequence[int], sequence_s: Sequence[float]
) -> ShardedWork:
    """The work of a spec's inner step, whose micro-batches were dealt as `sequences`."""
    is_narrow = spec.inner.precision != "float32"  # devices that share a model are cards
    one, inside = peak_of(shape, spec, 1, bfloat16=is_narrow), shape.layers[shape.before : shape.before + shape.blocks]
    return ShardedWork(
        block_parameters=round(sum(inside) / shape.blocks), blocks=shape.blocks,
        root_parameters=shape.parameters - sum(inside),
        head_parameters=shape.vocabulary * shape.width, micro_batches=spec.inner.accumulation,
        sequences=tuple(sequences), sequence_s=tuple(sequence_s), state_bytes=one.states,
        copied_bytes=one.copies, activation_bytes=one.blocks,
        logit_bytes=tuple(peak_of(shape, spec, count, bfloat16=is_narrow).logits for count in sequences),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ShardedCost:
    """The cost of one sharding strategy."""

    strategy: ShardingStrategy
    step_s: float
    compute_s: float
    moved_s: float
    """The seconds in which no rank computed, because data was being moved or copied."""
    optimizer_s: float
    between_bytes: float
    """The bytes that each rank sends in an inner step through rings that leave its fast group."""
    inside_bytes: float
    device_bytes: tuple[float, ...]
    """The most that each rank's device holds at any time."""
    main_bytes: float
    """The main memory that each rank needs for its shares."""


def sharded_cost(work: ShardedWork, strategy: ShardingStrategy, given: RanksProfile) -> ShardedCost:
    """The seconds of an inner step and the bytes of each rank, for one strategy."""
    assert strategy.ranks == len(work.sequences) == len(work.sequence_s)
    # Nothing is computed before the root has been gathered, nor after its gradients were sent: nothing hides that.
    root = _moves(work.root_parameters, strategy, given, work.micro_batches, again=False)
    blocks = _moves(work.block_parameters, strategy, given, work.micro_batches, again=True).times(work.blocks)
    slower = SLOWER_TOGETHER if given.overlap else 1.0
    beyond_s = max(0.0, slower * blocks.seconds(given) - given.overlap * work.compute_s)
    moved_s = root.seconds(given) + beyond_s
    each_s = given.host_optimizer_s if strategy.offloads else given.optimizer_s
    optimizer_s = each_s * work.parameters / strategy.shares
    return ShardedCost(
        strategy=strategy, step_s=work.compute_s + moved_s + optimizer_s, compute_s=work.compute_s, moved_s=moved_s,
        optimizer_s=optimizer_s, between_bytes=root.between_bytes + blocks.between_bytes,
        inside_bytes=root.inside_bytes + blocks.inside_bytes,
        device_bytes=tuple(_device_bytes(work, strategy, given, rank) for rank in range(strategy.ranks)),
        main_bytes=work.state_bytes / strategy.shares if strategy.offloads else 0.0,
    )  # fmt: skip


# ---- what is moved ----


@dataclass(frozen=True, kw_only=True)
class _Moves:
    """What each rank does to gather units and to reduce their gradients: the bytes that it sends, collectives and
    hops."""

    between_bytes: float = 0.0
    inside_bytes: float = 0.0
    collectives: int = 0
    hops: int = 0
    bus_bytes: float = 0.0

    def times(self, number: int) -> _Moves:
        return _Moves(**{name: number * value for name, value in vars(self).items()})

    def seconds(self, given: RanksProfile) -> float:
        return (
            self.between_bytes / given.between_bytes_per_s + self.inside_bytes / given.inside_bytes_per_s
            + self.collectives * given.collective_s + self.hops * given.hop_s
            + self.bus_bytes / given.bus_bytes_per_s
        )  # fmt: skip


def _moves(
    parameters: int, strategy: ShardingStrategy, given: RanksProfile, micro_batches: int, *, again: bool
) -> _Moves:
    """The moves for one unit in a step. With `again`, the backward pass gathers the unit, too."""
    if not strategy.is_sharded:
        return _Moves()
    whole, shares, copies = FLOAT32_BYTES * parameters, strategy.shares, strategy.ranks // strategy.shares
    is_second = strategy.kind is Sharding.HIERARCHICAL
    rings = [(shares, whole * (shares - 1) / shares)] * 2  # forward, and gradients
    if again:
        among = strategy.group if is_second else shares
        rings.append((among, whole * (among - 1) / among))
    between = inside = 0.0
    for ranks, sent_bytes in rings:
        if given.group and given.group % ranks:
            between += micro_batches * sent_bytes
        else:
            inside += micro_batches * sent_bytes
    if copies > 1:
        reduced_bytes = 2 * (copies - 1) / copies * whole / shares
        if given.group and given.group < strategy.ranks:
            between += reduced_bytes
        else:
            inside += reduced_bytes
    trips = 2 + (again and not is_second)
    return _Moves(
        between_bytes=between, inside_bytes=inside,
        collectives=micro_batches * sum(ranks > 1 for ranks, _ in rings) + (copies > 1),
        hops=micro_batches * sum(ranks - 1 for ranks, _ in rings) + 2 * (copies - 1),
        bus_bytes=micro_batches * trips * whole / shares if strategy.offloads else 0.0,
    )  # fmt: skip


# ---- what is held ----


def _device_bytes(work: ShardedWork, strategy: ShardingStrategy, given: RanksProfile, rank: int) -> float:
    """The most that a device holds: when the loss is computed, in the backward pass of the last two blocks, or in
    the optimizer's step. Which buffers FSDP2 holds then was read from a profile of its allocations."""
    shares, block, root, head = (
        strategy.shares, FLOAT32_BYTES * work.block_parameters, FLOAT32_BYTES * work.root_parameters,
        FLOAT32_BYTES * work.head_parameters,
    )  # fmt: skip
    gradients = FLOAT32_BYTES * work.parameters / shares
    states = work.state_bytes / shares
    begun = states if work.micro_batches > 1 else states - gradients
    activations, logits = given.activations * work.sequences[rank] * work.activation_bytes, work.logit_bytes[rank]
    activations += work.copied_bytes
    if strategy.offloads:
        begun = states = 0.0
    if not strategy.is_sharded:
        return max(begun + activations + logits, states)
    gathered = (2 + given.gathered_twice) * block if shares > 1 else block
    second = work.blocks * block / strategy.group if strategy.kind is Sharding.HIERARCHICAL else 0.0
    before_loss = begun + root + second + activations
    sent = block + (0.0 if strategy.offloads else block / shares)  # gradients on their way, and as they arrived
    one_less = (second + activations) / work.blocks
    return max(
        before_loss + logits,
        before_loss + head + gathered,
        before_loss + head + gathered + sent - one_less if work.blocks > 1 else 0.0,
        states + root + head + 2 * block,
    )


# ---- who gets what ----


def deal(sequences: int, speeds: Sequence[float], most: Sequence[int]) -> tuple[int, ...]:
    """The number of sequences of a micro-batch that each rank gets: in proportion to its speed, and at most `most`.

    Each further sequence goes to the rank that would finish it first, which is optimal for equal sequences; among equal
    ranks, to the first. Raises BadInput if they do not all fit.
    """
    assert len(speeds) == len(most)
    if sum(most) < sequences:
        raise BadInput(f"{len(most)} devices have room for {sum(most)} sequences at a time, of {sequences}")
    dealt = [0] * len(speeds)
    for _ in range(sequences):
        free = [rank for rank in range(len(speeds)) if dealt[rank] < most[rank]]
        dealt[min(free, key=lambda rank: (dealt[rank] + 1) / speeds[rank])] += 1
    return tuple(dealt)


def fastest_that_fits(
    work: ShardedWork, given: RanksProfile, device_bytes: Sequence[float], main_bytes: float
) -> ShardedCost | None:
    """The strategy with the shortest step that fits in each rank's device memory and in the shared main memory.

    Main memory is used only if nothing fits without it. None if nothing fits. Among equally fast strategies, the one
    that moves less.
    """
    for offloads in (False, True):
        costs = [sharded_cost(work, way, given) for way in strategies_of(len(device_bytes), offloads=offloads)]
        fitting = [
            cost for cost in costs
            if len(device_bytes) * cost.main_bytes <= main_bytes
            and all(needed <= room for needed, room in zip(cost.device_bytes, device_bytes, strict=True))
        ]  # fmt: skip
        if fitting:
            return min(fitting, key=lambda cost: cost.step_s)
    return None
