"""How the devices of one home can share a model: which rank holds what, and what they send to each other."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from dht.errors import BadInput


class Sharding(StrEnum):
    """As `settings.sharding` says it; torch's words are FSDP2's (`torch.distributed.fsdp.fully_shard`)."""

    REPLICATED = "replicated"
    """Every rank holds all of it; gradients are averaged (HSDP with groups of one)."""
    FULL = "full"
    """Every rank holds one share of each layer, and gathers it before it computes (ZeRO-3)."""
    HIERARCHICAL = "hierarchical"
    """As full, but the backward pass gathers within a group alone, from a second copy of the shares (hpZ, ZeRO++)."""
    HYBRID = "hybrid"
    """Every group holds all of it, each rank a share of its group's (HSDP)."""


@dataclass(frozen=True, kw_only=True)
class ShardingStrategy:
    """One way for so many ranks. Raises BadInput for groups that do not divide them."""

    kind: Sharding
    ranks: int
    group: int = 0
    """Ranks of a fast group, for hierarchical and hybrid; else 0."""
    offloads: bool = False
    """Whether shares and what the optimizer remembers of them lie in main memory, and a layer comes when it is used."""

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
        """Ranks among which one copy of the model is divided."""
        return {Sharding.REPLICATED: 1, Sharding.HYBRID: self.group}.get(self.kind, self.ranks)

    @property
    def is_sharded(self) -> bool:
        """Whether anything is gathered before it is used. One device that holds all of the model gathers nothing."""
        return self.ranks > 1 or self.offloads

    @property
    def uses_arena(self) -> bool:
        """Whether parameters and moments are where the lead sees them, so that it needs no copies: one rank's alone."""
        return self.offloads and self.ranks == 1

    def __str__(self) -> str:
        grouped = f" in groups of {self.group}" if self.group else ""
        aside = ", from main memory" if self.offloads else ""
        return f"{self.kind}{grouped}{aside}" if self.ranks > 1 else f"one device{aside}"


def strategies_of(ranks: int, *, offloads: bool = False) -> tuple[ShardingStrategy, ...]:
    """All that there are for so many ranks, the one that moves the fewest bytes first."""
    ways = [ShardingStrategy(kind=Sharding.REPLICATED, ranks=ranks, offloads=offloads)]
    if ranks == 1:
        return tuple(ways)
    groups = [group for group in range(2, ranks) if ranks % group == 0]
    for kind in (Sharding.HYBRID, Sharding.HIERARCHICAL):
        ways += [ShardingStrategy(kind=kind, ranks=ranks, group=group, offloads=offloads) for group in groups]
    return (*ways, ShardingStrategy(kind=Sharding.FULL, ranks=ranks, offloads=offloads))
