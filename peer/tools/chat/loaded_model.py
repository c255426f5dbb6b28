"""A model to talk to, with its tokenizer: the newest outer state of a peer's folder, a checkpoint, or an export.

Nothing is written and nothing is downloaded: a pretrained model is read from this machine's cache.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.utils import logging as transformers_logging

from dht.errors import BadInput
from peer.node.store.held_layers import read_held
from peer.schema.spec import RunSpec, load
from peer.tools.export.folder import require_start, spec_in
from peer.training.checkpoint.checkpoint import STATE, Checkpoint, find_damage
from peer.training.checkpoint.replay import read_chain, restore_anchor, restore_at
from peer.training.data.chat.chat_template import TemplateEncoder
from peer.training.data.tokenizer import tokenizer_of
from peer.training.model.build import build
from peer.training.model.flat_parameters import FlatParameters
from peer.training.model.generation import generation_of


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """On the CPU."""

    name: str
    """What it is, in words."""
    model: nn.Module
    tokenizer: Any
    """Of transformers."""
    context: int
    """Tokens that it reads at most."""
    generation: GenerationConfig

    @cached_property
    def talks(self) -> TemplateEncoder | None:
        """How it is written to in turns; None where nobody says so."""
        is_said = bool(self.tokenizer.chat_template)
        return TemplateEncoder(self.tokenizer, "", date.today().isoformat()) if is_said else None

    @property
    def stops(self) -> frozenset[int]:
        """Tokens at which an answer ends: those of its own, and the one that closes a turn."""
        own: Any = self.generation.eos_token_id
        closing = None if self.talks is None else self.talks.closing
        return frozenset({*(own if isinstance(own, list) else [own]), closing, self.end} - {None})

    @property
    def end(self) -> int:
        """The token at which a text ends."""
        return int(self.tokenizer.eos_token_id)


def load_model(folder: Path) -> LoadedModel:
    """What lies in `folder`. Raises BadInput, RunMismatch, BadSpec."""
    quiet: Any = transformers_logging.disable_progress_bar  # not annotated by transformers
    quiet()
    if (folder / "adapter_config.json").exists():
        return _load_adapter(folder)
    if (folder / "config.json").exists():
        return _load_whole(folder)
    if (folder / STATE).exists() and folder.parent.name == "checkpoints":
        return _load_checkpoint(folder)
    return _load_newest(folder)


def _load_newest(directory: Path) -> LoadedModel:
    spec = spec_in(directory)
    if read_held(directory) is not None:
        raise BadInput(f"{directory} is of a home of a cluster, which holds some layers; export them with --homes")
    chain, model = read_chain(directory, spec), _built(spec)
    flat = FlatParameters(model)
    flat.copy_layers(restore_anchor(chain, spec, flat).theta)
    return _of_run(f"{spec.run.name}, round {chain.head.round}", spec, model)


def _load_checkpoint(path: Path) -> LoadedModel:
    """The anchor at which it was taken: what a peer has learned since is nobody's but its own."""
    directory = path.parent.parent
    spec = spec_in(directory)
    if fault := find_damage(path):
        raise BadInput(f"{path} is damaged ({fault})")
    checkpoint = Checkpoint(path=path, state=json.loads((path / STATE).read_text()))
    if "layers" in checkpoint.state:
        raise BadInput(f"{path} is of a home of a cluster, which holds some layers of the model")
    model = _built(spec)
    anchor = restore_at(directory, spec, checkpoint.anchor, checkpoint.round)
    FlatParameters(model).copy_layers(anchor.theta)
    return _of_run(f"{spec.run.name}, round {checkpoint.round}", spec, model)


def _load_whole(folder: Path) -> LoadedModel:
    try:
        read: Any = AutoModelForCausalLM.from_pretrained
        model = read(
            folder, trust_remote_code=False, local_files_only=True, use_safetensors=True, dtype=torch.float32
        )  # fmt: skip
        tokenizer = _tokenizer(folder)
        context = min(int(getattr(model.config, "max_position_embeddings", 1024)), tokenizer.model_max_length)
    except (OSError, ValueError, KeyError, TypeError, ImportError, RuntimeError, SafetensorError) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise BadInput(f"{folder} holds no model that transformers can load ({reason})") from error
    return LoadedModel(
        name=folder.resolve().name, model=model, tokenizer=tokenizer, context=context,
        generation=model.generation_config,
    )  # fmt: skip


def _load_adapter(folder: Path) -> LoadedModel:
    """Of an export, whose spec says which base of the cache it belongs to."""
    from peft import set_peft_model_state_dict

    spec = load(str(folder / "spec.toml"))
    if spec.adapter is None:
        raise BadInput(f"{folder / 'spec.toml'} is of a run without an adapter, and so not of this one")
    model: Any = _built(spec)
    try:
        found: Any = set_peft_model_state_dict(model, load_file(folder / "adapter_model.safetensors"))
        odd = [*found.unexpected_keys, *(name for name in found.missing_keys if ".lora_" in name)]
        if odd:
            raise ValueError(f"its tensors are not those of the run, such as {odd[0]}")
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise BadInput(f"{folder} holds no adapter of {spec.run.name} ({reason})") from error
    name = f"{folder.resolve().name}, an adapter of {spec.run.name}"
    return _of_run(name, spec, model)


def _tokenizer(folder: Path) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    if tokenizer.eos_token_id is None:
        raise ValueError("its tokenizer has no end-of-text token")
    return tokenizer


def _built(spec: RunSpec) -> nn.Module:
    require_start(spec)
    return build(spec)


def _of_run(name: str, spec: RunSpec, model: nn.Module) -> LoadedModel:
    context, tokenizer = spec.model.context, tokenizer_of(spec)
    return LoadedModel(
        name=name, model=model, tokenizer=tokenizer.for_transformers(context), context=context,
        generation=generation_of(spec, tokenizer),
    )  # fmt: skip
