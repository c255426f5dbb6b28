"""What trainers of a test read, and small trainers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from peer.schema import spec as specs
from peer.schema.spec import RunSpec
from peer.training.train.trainer import LocalTrainer

Make = Callable[..., LocalTrainer]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some files of text."""
    folder = tmp_path_factory.mktemp("corpus")
    letters = np.random.default_rng(0).integers(97, 123, size=(40, 3000), dtype=np.uint8)
    for number, row in enumerate(letters):
        (folder / f"{number}.txt").write_bytes(row.tobytes())
    return folder


@pytest.fixture
def spec(corpus: Path) -> RunSpec:
    """The micro spec, shrunk further."""
    micro = specs.load("micro")
    small = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    return dataclasses.replace(
        micro,
        model=dataclasses.replace(micro.model, context=16, config=micro.model.config | small),
        data=dataclasses.replace(micro.data, source="files", path=str(corpus), held_out_every=4, eval_sequences=4),
        inner=dataclasses.replace(micro.inner, sequences=2),
        codec=dataclasses.replace(micro.codec, wire="float16", part_elements=512),
    )


@pytest.fixture
def make(spec: RunSpec, tmp_path: Path) -> Make:
    """A trainer of its own folder; the same name is the same folder."""

    def make_one(me: str = "p0", **round: float) -> LocalTrainer:
        table = dataclasses.replace(spec.round, **round)  # type: ignore[arg-type]
        changed = dataclasses.replace(spec, round=table)
        return LocalTrainer(changed, me, tmp_path / me, torch.device("cpu"), data_path=spec.data.path)

    return make_one
