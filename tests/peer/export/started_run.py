"""A run that starts from a small model that plain transformers wrote, on disk after some rounds."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from peer.data.tokenizer import ByteTokenizer
from peer.model.start import adopt, find
from peer.spec import RunSpec
from peer.spec_tables import AdapterTable, ModelTable, StartTable
from tests.peer.export.run_on_disk import small_spec

CONTEXT = 16
VALUES = {
    "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "vocab_size": ByteTokenizer.vocabulary, "max_position_embeddings": 64,
    "tie_word_embeddings": True, "eos_token_id": ByteTokenizer.end_of_text, "bos_token_id": ByteTokenizer.end_of_text,
    "initializer_range": 0.2,
}  # fmt: skip


def write_base(folder: Path, chat_template: str | None = None) -> Path:
    """A llama with tied embeddings and a tokenizer of bytes."""
    make: Any = AutoModelForCausalLM.from_config
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = make(AutoConfig.for_model("llama", **VALUES))
    model.save_pretrained(folder)
    tokenizer = ByteTokenizer().for_transformers(64)
    tokenizer.chat_template = chat_template
    tokenizer.save_pretrained(folder)
    return folder


def started_spec(base: Path, corpus: Path, adapter: AdapterTable | None) -> RunSpec:
    """It is in the cache then."""
    told = adopt(find(str(base)), {"context": CONTEXT})
    spec = small_spec(corpus, "llama")
    # So that a few steps are seen in the loss.
    inner = dataclasses.replace(spec.inner, warmup_steps=0)
    model, start = ModelTable(**told["model"]), StartTable(**told["start"])
    return dataclasses.replace(spec, model=model, start=start, adapter=adapter, inner=inner)
