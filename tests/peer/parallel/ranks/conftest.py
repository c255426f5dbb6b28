"""Trainers on several ranks of the processor, which are ended with their test."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
import torch

from peer.parallel.ranks.rank_group import RankGroup
from peer.parallel.ranks.sharded_backend import RankOptions, sharded
from peer.planning.plan.sharding_strategy import Sharding, ShardingStrategy
from peer.schema import spec as specs
from peer.schema.spec import RunSpec
from peer.training.train.trainer import LocalTrainer

MakeOn = Callable[..., LocalTrainer]
HaveRoom = Callable[..., None]

WAYS = {
    "one device": None,
    "one rank": ShardingStrategy(kind=Sharding.FULL, ranks=1),
    "offload": ShardingStrategy(kind=Sharding.FULL, ranks=1, offloads=True),
    "full 2": ShardingStrategy(kind=Sharding.FULL, ranks=2),
    "offload 2": ShardingStrategy(kind=Sharding.FULL, ranks=2, offloads=True),
    "replicated 2": ShardingStrategy(kind=Sharding.REPLICATED, ranks=2),
    "full 4": ShardingStrategy(kind=Sharding.FULL, ranks=4),
    "hierarchical 4": ShardingStrategy(kind=Sharding.HIERARCHICAL, ranks=4, group=2),
    "hybrid 4": ShardingStrategy(kind=Sharding.HYBRID, ranks=4, group=2),
}  # fmt: skip


@pytest.fixture
def spec() -> RunSpec:
    """A llama with sizes that no number of ranks divides evenly, in blocks that no share begins with."""
    micro = specs.load("micro")
    small = {"hidden_size": 24, "intermediate_size": 37, "num_hidden_layers": 2, "num_attention_heads": 3,
             "num_key_value_heads": 3}  # fmt: skip
    return dataclasses.replace(
        micro,
        model=dataclasses.replace(micro.model, context=16, config=micro.model.config | small),
        data=dataclasses.replace(micro.data, held_out_every=4, eval_sequences=4),
        inner=dataclasses.replace(micro.inner, sequences=4),
        codec=dataclasses.replace(micro.codec, wire="int8", part_elements=3000),
    )


@pytest.fixture
def have_room(monkeypatch: pytest.MonkeyPatch) -> HaveRoom:
    """From now on ranks start on devices of so many bytes, by rank; 0: as many as it takes."""

    def have(*room_bytes: int) -> None:
        words = ("peer.testing.small_memory_rank", "--room", ",".join(map(str, room_bytes)))
        monkeypatch.setattr(RankGroup, "program", words)

    return have


@pytest.fixture
def make_on(spec: RunSpec, tmp_path: Path) -> Iterator[MakeOn]:
    """A trainer laid out in one of WAYS; `changed` is another spec than the fixture's."""
    made: list[LocalTrainer] = []
    numbers = count()

    def make(way: str, changed: RunSpec | None = None, me: str = "p0") -> LocalTrainer:
        asked, strategy = changed or spec, WAYS[way]
        folder = tmp_path / f"{next(numbers)}"
        folder.mkdir()
        engine = None
        if strategy is not None:
            engine = sharded(asked, RankOptions(devices=("cpu",) * strategy.ranks, strategy=strategy), folder)
        torch.manual_seed(7)
        made.append(
            LocalTrainer(asked, me, folder / "c", torch.device("cpu"), data_path=asked.data.path, make_engine=engine)
        )
        return made[-1]

    yield make
    for trainer in made:
        trainer.close()
