"""A small model of every architecture: founded, trained for two rounds, exported, and loaded by plain transformers."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from peer.schema.architectures import ARCHITECTURES
from peer.schema.spec_fields import ModelTable, StartTable
from peer.tools.export.folder import export
from peer.training.model.build import build, next_token_logits
from peer.training.model.flat_parameters import FlatParameters
from peer.training.model.pretrained import adopt, find
from tests.open_models import publish
from tests.peer.tools.export.run_on_disk import make_run, small_spec, write_corpus
from tests.peer.training.model.test_build import SMALL

YOUNG = (
    "olmo3", "gemma3_text", "glm4", "seed_oss", "qwen3_moe", "olmoe", "ministral3", "apertus", "exaone4", "gpt_oss",
    "lfm2", "qwen3_5_text", "gemma4_text", "gemma4_unified_text",
)  # fmt: skip
"""Architectures in which a start is tried here; those of the others have tests of their own."""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts") / "corpus"
    write_corpus(folder)
    return folder


def expect_equal_logits(root: Path, spec: Any) -> None:
    """After two rounds, which have changed the model."""
    run = make_run(root, spec, rounds=2)
    export(run.directory, root / "out")
    load: Any = AutoModelForCausalLM.from_pretrained
    theirs, ours = load(root / "out").eval(), build(spec).eval()
    flat, tokens_BT = FlatParameters(ours), torch.arange(17)[None]
    before = flat.new()
    flat.copy_layers(run.trainer.anchor.theta)
    assert not torch.equal(before, flat.new())
    with torch.no_grad():
        torch.testing.assert_close(
            next_token_logits(theirs, tokens_BT), next_token_logits(ours, tokens_BT), rtol=0, atol=1e-5
        )


BY_DAY = ("gemma3_text", "gpt2", "llama", "qwen3_moe")
"""Of each kind one: with windows, with positions that are learned, plain, and with experts."""


def of_the_day(architecture: str) -> object:
    return pytest.param(architecture, marks=[] if architecture in BY_DAY else pytest.mark.nightly)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", map(of_the_day, sorted(ARCHITECTURES)))
def test_plain_transformers_loads_what_was_trained(architecture: str, corpus: Path, tmp_path: Path) -> None:
    spec = small_spec(corpus, "llama")
    model = dataclasses.replace(spec.model, architecture=architecture, config=SMALL[architecture])  # type: ignore[arg-type]
    expect_equal_logits(tmp_path, dataclasses.replace(spec, model=model))


@pytest.mark.parametrize("architecture", map(of_the_day, YOUNG))
def test_a_run_goes_on_from_a_model_of_it(architecture: str, corpus: Path, tmp_path: Path) -> None:
    """Whose logits are those of the run before its first round: `adopt` compares them."""
    publish(tmp_path / "base", architecture, initializer_range=0.1, pad_token_id=0, **SMALL[architecture])
    told = adopt(find(str(tmp_path / "base")), {"context": 16})
    spec = small_spec(corpus, "llama")
    (tmp_path / "run").mkdir()
    model, start = ModelTable(**told["model"]), StartTable(**told["start"])
    expect_equal_logits(tmp_path / "run", dataclasses.replace(spec, model=model, start=start))
