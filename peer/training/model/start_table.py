"""What a configuration of transformers says, as the table [model] of a spec says it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from transformers import AutoConfig, PreTrainedConfig

from dht.errors import BadSpec
from peer.schema.architectures import ARCHITECTURES
from peer.schema.keys.allowed_values import OneOf, Several
from peer.schema.spec_fields import START
from peer.schema.toml_tables import shortened
from peer.training.model.build import ROPE_NAMES

CONTEXT_MOST = 2048
"""Tokens of a sequence where nobody says how many; a model may have more positions than a home has room for."""
GLOBAL_HEADS = {"global_head_dim": "head_dim", "num_global_key_value_heads": "num_key_value_heads"}
"""Of Gemma 4: what transformers takes for blocks that see all, and what it is called among what a block has of its
own."""


def model_table(config: PreTrainedConfig, in_files: Mapping[str, Any], table: Mapping[str, Any]) -> dict[str, Any]:
    """[model] of a spec, as far as the organiser has not said it: keys that `peer.schema.architectures` lists, where
    their values are not those that transformers takes by itself. `in_files` is what the model's files say."""
    known = ARCHITECTURES.get(config.model_type)
    if known is None:  # out of a GGUF file
        raise BadSpec(f"start.model is of {shortened(config.model_type)}, none of {', '.join(ARCHITECTURES)}")
    for key in known.without:
        if getattr(config, key, None):
            filled = "" if key in in_files else " (its files leave that open, and transformers fills it in)"
            raise BadSpec(
                f"start.model has {key} = {shortened(getattr(config, key))}{filled}, which no spec can say yet"
            )
    rotary, usual = _rotary(config), AutoConfig.for_model(config.model_type)
    types = known.keys.get("rope_type", OneOf(("default",)))
    if not isinstance(types, OneOf) or rotary["rope_type"] not in types.words:
        raise BadSpec(
            f"start.model scales its rotary positions ({shortened(config.rope_parameters)}), which no spec can say yet"
        )
    values: dict[str, Any] = {}
    for key, allowed in known.keys.items():
        plain = _numbers if isinstance(allowed, Several) else _plain
        value, default = (plain(_value_of(each, key)) for each in (config, usual))
        if value is not None and (value != default or key == "vocab_size"):
            values[key] = value
    positions = int(getattr(config, "max_position_embeddings", CONTEXT_MOST))
    said: dict[str, Any] = {
        "architecture": config.model_type,
        "context": min(positions, CONTEXT_MOST),
        "tokenizer": START,
    }
    said |= {key: value for key, value in table.items() if key != "config"}
    return said | {"config": values | dict(table.get("config", {}))}


NO_PART = frozenset(
    {"vocab_size", "initializer_range", "init_std", "bos_token_id", "eos_token_id", "max_window_layers"}
)
"""Keys that change nothing that a model computes by themselves, or that its tensors say."""
ALIKE = (
    frozenset({"partial_rotary_factor", "rotary_pct"}),
    frozenset({"layer_types", "sliding_window_pattern", "full_attention_interval", "no_rope_layer_interval"}),
    frozenset({"layer_types", "full_attn_idxs"}), frozenset({"no_rope_layer_interval", "no_rope_layers"}),
)  # fmt: skip
"""Of each of these one says what the others would."""


def left_open(config: PreTrainedConfig, said: Mapping[str, Any]) -> dict[str, Any]:
    """What transformers fills in with more than nothing where the model's files, which say `said`, say nothing: a
    window, positions that turn otherwise, a width. The tensors would be the same without it."""
    said = with_global_heads(said)
    known, usual = ARCHITECTURES[config.model_type], AutoConfig.for_model(config.model_type)
    names, defaults = type(config).attribute_map, {each.name: each.default for each in fields(type(config))}
    inside = [said[key] for key in ("rope_parameters", "rope_scaling") if isinstance(said.get(key), dict)]
    inside += [value for each in inside for value in each.values() if isinstance(value, dict)]
    mentioned = {names.get(key, key) for each in (said, *inside) for key in each}
    found: dict[str, Any] = {}
    for key in {**known.keys, **known.without}:
        if key in NO_PART or (inside and key in (*ROPE_NAMES, "rope_local_base_freq")):
            continue
        group = dict.fromkeys((key, *sorted(set().union(*(each for each in ALIKE if key in each)))))
        name = names.get(key, key)
        values = (defaults[name],) if name in defaults else (_value_of(usual, each) for each in group)
        default = next((value for value in values if value is not None), None)
        is_on = is_something(_plain(default)) and all(_value_of(config, each) != 0 for each in group)
        if is_on and not {names.get(each, each) for each in group} & mentioned:
            found[key] = default
    return found


def is_something(value: Any) -> bool:
    """Whether a value does more than no value would."""
    return value is True or value not in (None, False, 0, 1, "default")


def _value_of(config: PreTrainedConfig, key: str) -> Any:
    told = _kinds(config) | _rotary(config)
    return told[key] if key in told else getattr(config, key, None)


def _rotary(config: PreTrainedConfig) -> dict[str, Any]:
    """Values of its rotary positions as a spec names them; `rope_type` is another than `default` if any is."""
    said: dict[str, Any] = dict(getattr(config, "rope_parameters", None) or {})
    if isinstance(said.get("full_attention"), dict) and isinstance(said.get("sliding_attention"), dict):
        # Of those that slide no more than this can be said; `_require_alike` sees the rest.
        said = said["full_attention"] | {"rope_local_base_freq": said["sliding_attention"].get("rope_theta")}
    ours: dict[str, str] = {name: key for key, name in ROPE_NAMES.items()}
    return {"rope_type": "default"} | {ours.get(name, name): value for name, value in said.items()}


def _kinds(config: PreTrainedConfig) -> dict[str, Any]:
    """Which blocks slide, as a spec says it: a window of 0 is none, and of a pattern the last block sees all. Or which
    blocks attend at all, where others convolve or keep a state."""
    if getattr(config, "sliding_window", 0) is None:
        return {"sliding_window": 0, "sliding_window_pattern": None}
    kinds = getattr(config, "layer_types", None) or ()
    if "global_head_dim" in ARCHITECTURES[config.model_type].keys:
        said, numbers = config.to_dict(), (number for number, kind in enumerate(kinds) if kind == "full_attention")
        seeing_all = config.per_layer_config[next(numbers)]
        of_all = {key: getattr(seeing_all, name) for key, name in GLOBAL_HEADS.items()}
        return {name: said[name] for name in GLOBAL_HEADS.values()} | of_all
    if "conv" in kinds:
        return {"full_attn_idxs": [number for number, kind in enumerate(kinds) if kind == "full_attention"]}
    if "full_attention_interval" in ARCHITECTURES[config.model_type].keys:
        attends = [number for number, kind in enumerate(kinds) if kind == "full_attention"]
        return {"full_attention_interval": (*attends, len(kinds))[0] + 1}
    if "sliding_attention" in kinds and "full_attention" in kinds:
        return {"sliding_window_pattern": kinds.index("full_attention") + 1}
    return {}


def _plain(value: Any) -> Any:
    """A value as a spec says it: of several ends of text the first."""
    first = value[0] if isinstance(value, list) and value else value
    return first if isinstance(first, int | float | str | bool) else None


def _numbers(value: Any) -> tuple[float, ...] | None:
    return tuple(value) if isinstance(value, list | tuple) else None


def with_global_heads(said: Mapping[str, Any]) -> dict[str, Any]:
    """A config.json that transformers has written says for each block what differs there; one that Google has written
    says it once."""
    of_blocks = said.get("per_layer_config")
    if not isinstance(of_blocks, dict):
        return dict(said)
    of_first = next((each for each in of_blocks.values() if isinstance(each, dict)), {})
    return {**said, **{key: of_first.get(name, said.get(name)) for key, name in GLOBAL_HEADS.items()}}
