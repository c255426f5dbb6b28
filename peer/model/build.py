"""The model of a run: any causal language model built into transformers, with agreed first parameters."""

from __future__ import annotations

import difflib
import functools
import hashlib
import inspect
import math
from typing import Any

import numpy as np
import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from dht.errors import BadSpec
from peer.data.tokenizer import load_tokenizer
from peer.spec import RunSpec

_DRAWN_AT_ONCE = 1 << 22


def build(spec: RunSpec) -> nn.Module:
    """The model of `spec` in float32 on the CPU, with the same parameter bits on every machine.

    transformers' own initialisation decides which parameters are constants; the others are
    redrawn, because its normal draws differ between processors. Raises BadSpec.
    """
    config = build_config(spec)
    model = _from_config(config)
    spread = _random_parameters(model, config)
    for name, parameter in model.named_parameters():
        if name in spread:
            _draw_uniform(parameter, f"{spec.run.seed}/{name}", spread[name])
    return model


def build_meta(spec: RunSpec) -> nn.Module:
    """The same model without storage (device `meta`), to count and to name. Raises BadSpec."""
    config = build_config(spec)
    with torch.device("meta"):
        return _from_config(config)


def build_config(spec: RunSpec) -> PreTrainedConfig:
    """The transformers configuration of `spec`. Raises BadSpec for an unknown architecture, key or value."""
    table = spec.model
    if table.architecture not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        hint = _closest(table.architecture, list(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES))
        raise BadSpec(f"model.architecture is {table.architecture!r}, no causal language model of transformers{hint}")
    valid = _config_keys(table.architecture)
    for key in table.config:
        if key not in valid:
            raise BadSpec(f"unknown key 'model.config.{key}' for {table.architecture}{_closest(key, sorted(valid))}")
    values = _tokenizer_values(spec) | {"max_position_embeddings": table.context, "use_cache": False} | table.config
    try:
        return AutoConfig.for_model(table.architecture, **values)
    except (TypeError, ValueError, ZeroDivisionError, StrictDataclassError) as error:
        reason = " ".join(str(error).split())
        raise BadSpec(f"model.config does not fit {table.architecture}: {reason}") from error


def _tokenizer_values(spec: RunSpec) -> dict[str, Any]:
    """Vocabulary and end of text, from the tokenizer unless the spec names the vocabulary itself.

    A spec that does can be counted and planned on a machine that never loads the tokenizer.
    """
    if "vocab_size" in spec.model.config:
        return {}
    tokenizer = load_tokenizer(spec.model.tokenizer)
    end = tokenizer.end_of_text
    return {"vocab_size": tokenizer.vocabulary, "bos_token_id": end, "eos_token_id": end, "pad_token_id": None}


@functools.cache
def _config_keys(architecture: str) -> frozenset[str]:
    kind = type(AutoConfig.for_model(architecture))
    named = inspect.signature(kind.__init__).parameters.values()
    keys = {name.name for name in named if name.kind is not inspect.Parameter.VAR_KEYWORD}
    return frozenset((keys | set(kind.attribute_map) | {"attn_implementation"}) - {"self"})


def _closest(name: str, valid: list[str]) -> str:
    close = difflib.get_close_matches(name, valid, n=1, cutoff=0.4)
    return f"; did you mean {close[0]!r}?" if close else ""


def _from_config(config: PreTrainedConfig) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        try:
            # Not annotated by transformers. Built-in architectures only: without trust_remote_code no other is known.
            make: Any = AutoModelForCausalLM.from_config
            model: nn.Module = make(config, dtype=torch.float32, trust_remote_code=False)
        except (ValueError, KeyError, AttributeError, RuntimeError, ZeroDivisionError) as error:
            reason = " ".join(str(error).split())
            raise BadSpec(f"model.config makes no {config.model_type} model: {reason}") from error
    return model


def _random_parameters(model: nn.Module, config: PreTrainedConfig) -> dict[str, float]:
    """Standard deviation of each parameter that is not a constant.

    `initializer_range` where the architecture has one; otherwise what transformers drew, rounded
    to two digits so that the last bits of its draws do not matter.
    """
    declared = getattr(config, "initializer_range", None)
    found: dict[str, float] = {}
    for name, parameter in model.named_parameters():
        values = parameter.detach()
        if values.numel() < 2 or bool((values == values.flatten()[0]).all()):
            continue
        found[name] = float(declared) if declared else float(f"{float(values.std()):.1e}")
    return found


@torch.no_grad()
def _draw_uniform(parameter: Tensor, stream: str, standard_deviation: float) -> None:
    """Fill with uniform draws of mean 0, by operations that are exact or rounded once on every processor."""
    key = hashlib.blake2b(f"parameters/{stream}".encode(), digest_size=16).digest()
    generator = np.random.PCG64(int.from_bytes(key, "big"))
    bound = np.float32(math.sqrt(3.0) * standard_deviation)
    flat = parameter.view(-1)
    for start in range(0, flat.numel(), _DRAWN_AT_ONCE):
        size = min(_DRAWN_AT_ONCE, flat.numel() - start)
        unit = (generator.random_raw(size) >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)
        flat[start : start + size] = torch.from_numpy(unit * (2 * bound) - bound)


def next_token_logits(model: nn.Module, tokens_BT: Tensor) -> Tensor:
    """Logits (B, T − 1, V) of every token but the first, from those before it."""
    # No mask: sequences are full, and without one attention takes its fastest causal path.
    logits_BTV: Tensor = model(input_ids=tokens_BT[:, :-1], use_cache=False).logits
    return logits_BTV
