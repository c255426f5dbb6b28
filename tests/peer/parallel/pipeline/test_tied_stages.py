"""Stages of models whose first and last layer are one, of models to start from, and of adapters, compute what whole
peers do."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import structs
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from peer.parallel.pipeline import tied_matrix
from peer.parallel.pipeline.flight_messages import (
    AskRows,
    GradientRows,
    MatrixRows,
    RowsHere,
    decode_flight,
    encode_flight,
)
from peer.parallel.pipeline.home_group import GarbageHome
from peer.parallel.pipeline.stage_model import (
    build_stage,
    initial_layer_digests,
    initial_span,
    model_layers,
    require_cuttable,
)
from peer.schema import peak_memory
from peer.schema.spec import RunSpec
from peer.schema.spec_fields import AdapterTable
from peer.training.data.documents import library_files, standard_library
from peer.training.data.open_source import open_source
from peer.training.data.sampler import ShardSampler
from peer.training.model import net
from peer.training.model.build import build
from peer.training.model.flat_parameters import FlatParameters
from peer.training.outer.outer_state import OuterState
from tests.night import at_night
from tests.open_models import publish, run_from
from tests.peer.parallel.pipeline.stages import Cluster, alone, small_spec

TIED = {"tie_word_embeddings": True}
STEPS = 2


def started(folder: Path, *, tied: bool = True, adapter: AdapterTable | None = None) -> RunSpec:
    """A run of small steps from a model of others."""
    publish(folder, num_hidden_layers=3, tie_word_embeddings=tied)
    spec, own = run_from(folder, adapter=adapter), small_spec()
    return replace(spec, inner=own.inner, data=own.data, codec=own.codec)


@pytest.fixture(params=["tied", "started", "adapter", "adapter of b", "adapter beside tied"])
def spec(request: pytest.FixtureRequest, tmp_path: Path) -> RunSpec:
    match request.param:
        case "tied":
            return small_spec(blocks=3, config=TIED)
        case "started":
            return started(tmp_path / "start")
        case "adapter":
            return started(tmp_path / "start", tied=False, adapter=AdapterTable(rank=4, alpha=8))
        case "adapter of b":
            return started(tmp_path / "start", tied=False, adapter=AdapterTable(rank=4, alpha=8, trains="b"))
        case _:
            return started(tmp_path / "start", adapter=AdapterTable(rank=4, alpha=8, base="bfloat16"))


@pytest.fixture(autouse=True)
def small_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """One package of the standard library: a published tokenizer takes five seconds for all of it."""
    for each in (library_files, standard_library):
        whole_of_it = partial(each, Path(asyncio.__file__).parent)
        monkeypatch.setattr(f"peer.training.data.open_source.{each.__name__}", whole_of_it)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """The matrix of 257 rows takes several messages."""
    monkeypatch.setattr(tied_matrix, "PIECE_ELEMENTS", 64 * 20)


def test_every_stage_has_the_bits_of_the_whole_model(spec: RunSpec) -> None:
    require_cuttable(spec)
    whole = FlatParameters(build(spec))
    values, digests = whole.by_layer(), OuterState.initial(whole.by_layer()).layer_digests()
    assert model_layers(spec) == whole.layers
    for first, end in combinations(range(len(values) + 1), 2):
        _, flat = build_stage(spec, range(first, end))
        assert flat.layers == whole.layers[first:end]
        assert all(map(torch.equal, flat.by_layer(), values[first:end]))
    assert initial_span(spec, range(1, 3)).layer_digests() == digests[1:3]
    assert initial_layer_digests(spec) == digests


@pytest.mark.parametrize("homes", [*at_night(2), 3])
def test_tied_and_started_models_and_adapters_have_the_loss_of_whole_peers(
    spec: RunSpec, homes: int, tmp_path: Path
) -> None:
    """In float32 to 1e-5, and a frozen base of bfloat16 to 1e-3: of steps, of the anchor between them, and then of
    steps again; and parameters."""
    near = 1e-3 if spec.adapter is not None and spec.adapter.base == "bfloat16" else 1e-5
    one, cluster = alone(spec), Cluster(spec, homes, "float32", tmp_path)
    theta = torch.cat([layer for stage in cluster.stages for layer in stage.anchor.theta])
    assert torch.equal(torch.cat(one.anchor.theta), theta), "the matrix counts once"
    held_out = ShardSampler(open_source(spec, spec.data.path), spec, "lead", ("lead",), {}).next(5)
    with cluster.at_work():
        for position in range(STEPS):
            mine, theirs = one.step(0, position), cluster.lead.step(0, position)
            assert theirs.loss == pytest.approx(mine.loss, rel=near)
            measured = cluster.lead.loss(held_out, lambda: False)
            assert measured == pytest.approx(one.loss(held_out, lambda: False), rel=near)
    torch.testing.assert_close(cluster.parameters(), one.vectors.flat.new(), rtol=1e-4, atol=near)


def test_lost_pieces_of_the_matrix_are_sent_again(tmp_path: Path) -> None:
    """Of each kind of message the first, the one in the middle and the last are lost once: the step has the same
    bits."""
    spec = small_spec(blocks=4, config=TIED)
    undisturbed, cluster = (Cluster(spec, 3, "float32", tmp_path, again_s=0.1) for _ in range(2))
    lost: set[tuple[type, int]] = set()
    pieces = cluster.lead._tied.pieces  # type: ignore[union-attr]

    def lose_once(sender: str, to: str, frame: bytes) -> bytes | None:
        message = decode_flight(frame)
        if isinstance(message, MatrixRows | RowsHere | AskRows | GradientRows):
            what = type(message), message.number
            if message.number in (0, pieces // 2, pieces - 1) and what not in lost:
                lost.add(what)
                return None
        return frame

    cluster.flow.change = lose_once
    for each in (undisturbed, cluster):
        with each.at_work():
            for position in range(2):
                each.lead.step(0, position)
    assert len(lost) == 4 * 3
    assert torch.equal(cluster.parameters(), undisturbed.parameters())
    copies = [stage._tied for stage in cluster.stages if stage._tied is not None]
    assert len(copies) == 2, "the stage in the middle has none"


def test_a_last_stage_that_returns_no_gradient_of_the_matrix_is_named(tmp_path: Path) -> None:
    cluster = Cluster(small_spec(config=TIED), 2, "float32", tmp_path)

    def spoil(sender: str, to: str, frame: bytes) -> bytes:
        message = decode_flight(frame)
        if isinstance(message, GradientRows):
            return encode_flight(structs.replace(message, values=b"\xff" * len(message.values)))
        return frame

    cluster.flow.change = spoil
    with cluster.at_work(), pytest.raises(GarbageHome, match=r"second.*returned values that are not finite"):
        cluster.lead.step(0, 0)


class _Largest(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The elements of the largest tensor that an operation returns."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        returned = func(*args, **(kwargs or {}))
        self.elements = max([self.elements, *(each.numel() for each in tree_leaves(returned) if torch.is_tensor(each))])
        return returned


def test_logits_of_all_tokens_never_exist_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A last stage computes its loss in chunks of tokens, as whole peers do, with the same loss."""
    for module in (net, peak_memory):
        monkeypatch.setattr(module, "CHUNK_TOKENS", 16)
    monkeypatch.setattr(peak_memory, "WHOLE_BYTES", 0)
    spec = small_spec(config={"vocab_size": 4096})
    one, cluster = alone(spec), Cluster(spec, 2, "float32", tmp_path)
    last, largest = cluster.workers[-1], _Largest()
    real = last._loss_of

    def watched(*arguments: Any) -> Tensor:
        with largest:
            return real(*arguments)

    monkeypatch.setattr(last, "_loss_of", watched)
    with cluster.at_work():
        assert cluster.lead.step(0, 0).loss == pytest.approx(one.step(0, 0).loss, rel=1e-5)
    of_matrix, of_logits = 4096 * 64, cluster.lead.micro.sequences * spec.model.context * 4096
    assert largest.elements == of_matrix < of_logits
