"""What the folders of the shipped runs take."""

from __future__ import annotations

import dataclasses

import pytest

from peer.planning.plan.disk_use import DiskFootprint, disk_of
from peer.schema.settings import PeerSettings
from peer.schema.spec import load
from peer.training.model.footprint import size_of

GIB = 1 << 30


def of(name: str, optimizer: str = "adamw", **round: object) -> tuple[int, DiskFootprint]:
    spec = load(name)
    inner = dataclasses.replace(spec.inner, optimizer=optimizer)  # type: ignore[arg-type]
    spec = dataclasses.replace(spec, inner=inner, round=dataclasses.replace(spec.round, **round))  # type: ignore[arg-type]
    size = size_of(spec)
    return size.parameters, disk_of(size.parameters, size.training_bytes, spec, PeerSettings().chain_bytes)


def test_a_checkpoint_is_what_does_not_follow() -> None:
    """Muon remembers one number of a matrix's parameter, AdamW two."""
    parameters, disk = of("gpt2-small")
    assert (disk.snapshot, disk.checkpoint) == (8 * parameters, 16 * parameters)
    assert of("gpt2-small", overlap="streaming")[1].checkpoint == 20 * parameters
    assert 12 * parameters < of("gpt2-small", "muon")[1].checkpoint < 16 * parameters
    assert disk.checkpoints_kept == 2
    assert disk.least == (3 * 8 + 3 * 16) * parameters
    assert disk.peak - disk.at_rest == 24 * parameters


@pytest.mark.slow
def test_of_a_model_of_a_billion_parameters() -> None:
    """One checkpoint is kept; with two snapshots 32 bytes per parameter, where it was 72."""
    parameters, disk = of("llama-1b")
    assert disk.checkpoints_kept == 1
    assert disk.at_rest - disk.contributions - disk.chain == 32 * parameters < 33 * GIB
    assert disk.at_rest <= 40 * GIB
