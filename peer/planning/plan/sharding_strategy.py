"""How the devices of one home can share a model: which rank holds what, and what they send to each other."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from dht.errors import BadInput


class Sharding(StrEnum):
    """The kinds of sharding, named as in `settings.sharding`; the terms are those of FSDP2
    (`torch.distributed.fsdp.fully_shard`)."""

    REPLICATED = "replicated"
    """Every rank holds the whole model; gradients are averaged (HSDP with groups of one)."""
    FULL = "full"
    """Every rank holds one shard of each layer, and gathers the layer before it computes (ZeRO-3)."""
    HIERARCHICAL = "hierarchical"
    """As full, but the backward pass gathers only within a group, from a second copy of the shards (hpZ, ZeRO++)."""
    HYBRID = "hybrid"
    """Every group holds the whole model, and each rank a shard of its group's copy (HSDP)."""


@dataclass(frozen=True, kw_only=True)
class ShardingStrategy:
    """One way to shard a model over `ranks` ranks. Raises BadInput for groups that do not divide them."""

    kind: Sharding
    ranks: int
    group: int = 0
    """The ranks of a fast group, for hierarchical and hybrid; otherwise 0."""
    offloads: bool = False
    """Whether shards and their moments lie in main memory, and a layer is loaded when it is used."""

    def __post_init__(self) -> None:
        assert self.ranks >= 1
        if self.kind not in (Sharding.HIERARCHICAL, Sharding.HYBRID):
            assert self.group == 0
            return
        if self.ranks < 4 or not 1 < self.group < self.ranks or self.ranks % self.group:
            raise BadInput(
                f"sharding {self.kind} takes groups of at least two devices, several of them; "
                f"{self.ranks} devices are not groups of {self.group}"
            )

    @property
    def shares(self) -> int:
        """The number of ranks among which one copy of the model is divided."""
        return {Sharding.REPLICATED: 1, Sharding.HYBRID: self.group}.get(self.kind, self.ranks)

    @property
    def is_sharded(self) -> bool:
        """Whether anything is gathered before it is used. One device that holds the whole model gathers nothing."""
        return self.ranks > 1 or self.offloads

    @property
    def uses_arena(self) -> bool:
        """Whether parameters and moments lie where the lead sees them, so that it needs no copies: only with a
        single rank."""
        return self.offloads and self.ranks == 1

    def __str__(self) -> str:
        grouped = f" in groups of {self.group}" if self.group else ""
        aside = ", from main memory" if self.offloads else ""
        return f"{self.kind}{grouped}{aside}" if self.ranks > 1 else f"one device{aside}"


def strategies_of(ranks: int, *, offloads: bool = False) -> tuple[ShardingStrategy, ...]:
    """All strategies for this number of ranks, the one that moves the fewest bytes first."""
    ways = [ShardingStrategy(kind=Sharding.REPLICATED, ranks=ranks, offloads=offloads)]
    if ranks == 1:
        return tuple(ways)
    groups = [group for group in range(2, ranks) if ranks % group == 0]
    for kind in (Sharding.HYBRID, Sharding.HIERARCHICAL):
        ways += [ShardingStrategy(kind=kind, ranks=ranks, group=group, offloads=offloads) for group in groups]
    return (*ways, ShardingStrategy(kind=Sharding.FULL, ranks=ranks, offloads=offloads))
