"""A frozen model in 8 or 4 bits beside an adapter: the same bits everywhere, nearly as good, as small as told."""

from __future__ import annotations

import dataclasses
import hashlib
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from peer.node.store import start_blob
from peer.planning.plan.model_shape import memory_of, shape_of
from peer.schema.model_layers import ADAPTED
from peer.schema.spec import RunSpec
from peer.schema.spec_fields import AdapterTable
from peer.training.data.documents import standard_library
from peer.training.data.tokenizer import ByteTokenizer
from peer.training.model.build import build, build_base_meta, build_cut
from peer.training.model.compiled_blocks import compile_blocks
from peer.training.model.flat_parameters import FlatParameters
from peer.training.model.frozen_bits import NF4, FrozenMatrix, pieces_of
from peer.training.model.net import Batch, Net, recompute_blocks
from tests.open_models import publish, run_from
from tests.peer.training.model.test_adapter import KEYS, adapted, logits_of
from tests.tensor_memory import held

BASES = ("int8", "nf4")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> RunSpec:
    folder = tmp_path_factory.mktemp("base")
    publish(folder)
    return run_from(folder)


def matrices(model: nn.Module) -> dict[str, FrozenMatrix]:
    return {name: each for name, each in model.named_modules() if isinstance(each, FrozenMatrix)}


def matrix_of(weight_OI: Tensor, base: str) -> FrozenMatrix:
    linear = nn.Linear(weight_OI.shape[1], weight_OI.shape[0], bias=False)
    matrix = FrozenMatrix(linear, base)
    for at, piece in pieces_of(weight_OI.flatten().numpy()):
        matrix.pack(at, piece)
    return matrix


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3))


def test_four_bits_are_the_nearest_of_sixteen_levels() -> None:
    """Also for a matrix whose size is no multiple of 64, and for zeros."""
    weight_OI = drawn(5, 30)
    weight_OI[2] = 0.0
    found = matrix_of(weight_OI, "nf4").values()
    flat = nn.functional.pad(weight_OI.flatten(), (0, 42)).view(-1, 64)
    scales = flat.abs().amax(1, keepdim=True)
    nearest = (flat / scales).unsqueeze(-1).sub(torch.tensor(NF4)).abs().argmin(-1)
    assert torch.equal(found, (torch.tensor(NF4)[nearest] * scales).flatten()[:150].view(5, 30))
    assert bool((matrix_of(torch.zeros(2, 64), "nf4").values() == 0).all())


def test_eight_bits_are_within_half_a_step() -> None:
    weight_OI = drawn(8, 64)
    difference = (matrix_of(weight_OI, "int8").values() - weight_OI).abs()
    assert bool((difference <= weight_OI.abs().amax(1, keepdim=True) / 127 * 0.5001).all())


@pytest.mark.parametrize(("kind", "golden"), [("int8", "0476e710baa675dc"), ("nf4", "5c20fd99cb6185aa")])
def test_the_base_has_agreed_bits(kind: str, golden: str) -> None:
    """Golden values: peers on other processors pack the same bytes, and unpack the same numbers."""
    exact_OI = ((torch.arange(64 * 48, dtype=torch.float32) * 7919 % 1009 - 504) / 977).view(64, 48)
    values = matrix_of(exact_OI, kind).values()
    assert hashlib.blake2b(values.numpy().astype("<f4").tobytes(), digest_size=8).hexdigest() == golden


@pytest.mark.parametrize("kind", BASES)
def test_gradients_are_those_of_the_unpacked_matrix(kind: str) -> None:
    matrix, rows_NI = matrix_of(drawn(48, 64), kind), drawn(3, 64).requires_grad_()
    (matrix(rows_NI) ** 2).sum().backward()
    found, rows_NI.grad = rows_NI.grad, None
    (nn.functional.linear(rows_NI, matrix.values()) ** 2).sum().backward()
    assert found is not None
    torch.testing.assert_close(found, rows_NI.grad)


@pytest.mark.parametrize("architecture", sorted(ADAPTED))
def test_all_matrices_of_blocks_are_packed_and_nothing_else(architecture: str, tmp_path: Path) -> None:
    """Of every architecture that takes an adapter: what is left has one dimension, or is outside of the blocks."""
    publish(tmp_path, architecture, **KEYS.get(architecture, {}))
    model = build(adapted(run_from(tmp_path), base="nf4", targets="attention"))
    left = [name for name, value in model.named_parameters() if value.dim() > 1 and ".lora_" not in name]
    assert left
    assert all("embed_tokens" in name or "lm_head" in name for name in left)
    kinds = {value.dtype for value in model.parameters() if not value.requires_grad}
    assert kinds == {torch.bfloat16}


@pytest.mark.parametrize(("kind", "most"), [("int8", 0.05), ("nf4", 0.3)])
def test_the_model_computes_nearly_what_it_did(kind: str, most: float, base: RunSpec) -> None:
    exact = logits_of(build(base))
    difference = logits_of(build(adapted(base, base=kind))).float() - exact
    assert 0 < float(difference.std() / exact.std()) < most


def test_a_stage_of_a_cluster_has_the_bits_of_the_whole(base: RunSpec) -> None:
    spec = adapted(base, base="nf4")
    whole = build(spec)
    part = build_cut(spec, lambda model: model.get_submodule("base_model.model.model.layers.1"))
    theirs = matrices(whole.get_submodule("base_model.model.model.layers.1"))
    assert len(theirs) == 7
    for name, matrix in matrices(part).items():
        assert torch.equal(matrix.values(), theirs[name].values())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch's own, about what its compiler looks at
def test_blocks_may_be_compiled_or_computed_again(base: RunSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peer.training.model.compiled_blocks.BACKEND", "aot_eager")
    batch = Batch.of(torch.randint(0, 257, (2, 33), generator=torch.Generator().manual_seed(1)))
    found = []
    for change in (lambda model: None, recompute_blocks, compile_blocks):
        model = build(adapted(base, base="nf4"))
        change(model)
        loss, _ = Net(model)(batch)
        torch.autograd.backward(loss)
        grads = [value.grad for value in model.parameters() if value.requires_grad]
        found.append(torch.cat([loss.detach().view(1), *(grad.flatten() for grad in grads if grad is not None)]))
    torch._dynamo.reset()
    for first, second in pairwise(found):
        torch.testing.assert_close(first, second, rtol=1e-2, atol=1e-2)


# ---- the bar: as good, and as small ----


def windows_of(context: int, number: int) -> Tensor:
    text = "".join(document.text for document, _ in zip(standard_library(), range(12), strict=False))
    tokens = torch.from_numpy(ByteTokenizer().encode(text).astype("int64"))
    return tokens[: number * (context + 1)].view(number, context + 1)


def train(model: nn.Module, windows_BT: Tensor, steps: int, rate: float) -> float:
    """The loss per token of windows that were not trained on."""
    trained = [value for value in model.parameters() if value.requires_grad]
    optimizer, net = torch.optim.AdamW(trained, rate), Net(model)
    for step in range(steps):
        batch = Batch.of(windows_BT[16 + step * 8 % (len(windows_BT) - 24) :][:8])
        loss, _ = net(batch)
        optimizer.zero_grad()
        torch.autograd.backward(loss / batch.labels_BT.numel())
        optimizer.step()
    with torch.no_grad():
        batch = Batch.of(windows_BT[:16])
        return float(net(batch)[0]) / batch.labels_BT.numel()


@pytest.mark.slow
def test_an_adapter_learns_as_well_beside_four_bits(tmp_path: Path) -> None:
    """The bar: within 2 % of the loss beside float32, of a model that has learned something before."""
    windows_BT = windows_of(64, 600)
    learned: Any = publish(tmp_path)
    before = train(learned.train(), windows_BT, 100, 3e-3)
    learned.save_pretrained(tmp_path)
    losses = {}
    for kind in ("float32", *BASES):
        model = build(adapted(run_from(tmp_path), base=kind, rank=8, alpha=16))
        losses[kind] = train(model, windows_BT, 40, 3e-3)
    assert losses["float32"] < before < 4.0
    for kind in BASES:
        assert losses[kind] == pytest.approx(losses["float32"], rel=0.02), losses


def test_a_plan_knows_what_is_packed(base: RunSpec) -> None:
    """A shape that is 30 times as wide as deep has nearly all of its values in matrices of blocks."""
    wide = dataclasses.replace(base.model, config={**base.model.config, "hidden_size": 1024, "intermediate_size": 4096})
    sizes = {}
    for kind in ("float32", "bfloat16", *BASES):
        spec = dataclasses.replace(base, model=wide, adapter=AdapterTable(rank=1, base=kind))  # type: ignore[arg-type]
        sizes[kind] = memory_of(shape_of(spec), spec).frozen_bytes
    assert sizes["bfloat16"] == sizes["float32"] / 2
    assert 0.26 < sizes["int8"] / sizes["float32"] < 0.28
    assert 0.14 < sizes["nf4"] / sizes["float32"] < 0.16


@pytest.mark.parametrize("kind", BASES)
def test_a_model_never_lies_in_memory_before_it_is_packed(kind: str, base: RunSpec) -> None:
    """Of 20 MB in float32 less than two matrices are there at a time, beside what a plan says of packed ones."""
    sizes = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 6}
    wide = dataclasses.replace(base.model, tokenizer="bytes", config={**base.model.config, **sizes})
    spec = adapted(dataclasses.replace(base, model=wide), base=kind)
    layers = FlatParameters(build_base_meta(spec)).layers
    manifest = start_blob.write((np.full(layer.size, 0.01, np.float32) for layer in layers), {})
    assert spec.start is not None
    spec = dataclasses.replace(spec, start=dataclasses.replace(spec.start, digest=manifest.name))
    with held() as noted:
        model = build(spec)
    memory = memory_of(shape_of(spec), spec)
    planned = memory.frozen_bytes + 4 * memory.parameters
    assert max(noted.most_bytes, noted.present_bytes) < planned + 2 * 4 * 256 * 1024
    assert noted.present_bytes > planned / 2, "it was measured at all"
    del model
