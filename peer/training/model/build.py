"""Builds the model of a run: an architecture of transformers that `peer.schema.architectures` lists, with agreed
initial parameters.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Context, Decimal, localcontext
from typing import Any

import numpy as np
import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig

from dht.errors import BadSpec
from peer.node.store import start_blob
from peer.schema.architectures import ARCHITECTURES
from peer.schema.spec import RunSpec
from peer.training.data.chat import token_flags
from peer.training.data.tokenizer import ByteTokenizer
from peer.training.model.flat_parameters import FlatParameters
from peer.training.model.frozen_bits import Packing, pieces_of

_DRAWN_AT_ONCE = 1 << 22


def build(spec: RunSpec) -> nn.Module:
    """The model of `spec` on the CPU, with the same parameter bits on every machine; trained parameters are float32.

    Without a pretrained model, transformers' own initialisation decides which parameters are constants, and the spread
    of the others; those are redrawn, because its normal draws differ between processors. Raises BadSpec, and BadInput
    if the pretrained model is not in the cache.
    """
    if spec.start is not None:
        return build_cut(spec, lambda model: model)
    with _noted_spreads() as spreads:
        model = _made(spec)
    _draw(model, spreads, spec, _names(model))
    return model


def _with_adapter(model: nn.Module, spec: RunSpec) -> nn.Module:
    if spec.adapter is None:
        return model
    from peer.training.model.adapter import attach

    return attach(model, spec.adapter, _draw_uniform, spec.run.seed)


def _names(model: nn.Module) -> dict[int, str]:
    return {id(parameter): name for name, parameter in model.named_parameters()}


def build_cut(spec: RunSpec, cut: Callable[[nn.Module], nn.Module]) -> nn.Module:
    """The part of the model of `spec` that `cut` leaves, with the parameter bits of `build`; the rest is never
    allocated. Raises BadSpec."""
    from transformers.initialization import no_init_weights

    with _parameters_on_meta(), no_init_weights():  # what has no storage takes longest to draw
        model: Any = _made(spec)
        model.tie_weights()  # which transformers leaves out with the draws
        scalars = scalars_of(model)
        names = _names(model)
        whole = _with_adapter(model, spec)
    names = _names(whole) | names  # without what an adapter puts in front of the model's own
    kept = cut(whole)
    pack = _packing(kept, spec)
    _give_room(kept, names, pack.places)
    if spec.start is None:
        with torch.random.fork_rng(devices=[]), torch.no_grad(), _noted_spreads() as spreads:
            torch.manual_seed(0)
            innermost_first = reversed(list(kept.modules()))  # as transformers: a module may set what its parts have
            for module in innermost_first:
                model._init_weights(module)
        _set_scalars(scalars, spec)
        _draw(kept, spreads, spec, names)
        return kept
    if spec.adapter is not None:
        from peer.training.model.adapter import set_initial

        set_initial(((names[id(value)], value) for value in kept.parameters()), _draw_uniform, spec.run.seed)
    _fill(kept, names, spec, pack)
    return kept


def _give_room(kept: nn.Module, names: dict[int, str], packed: Container[int]) -> None:
    """To parameters without storage, but for `packed` ones; their names are then found under the new ones, too."""
    here = [(module, *named) for module in kept.modules() for named in module.named_parameters(recurse=False)]
    held: dict[int, nn.Parameter] = {}  # tied ones once
    for module, name, value in here:
        if id(value) in packed:
            continue
        if id(value) not in held:
            room = torch.empty(value.shape, dtype=value.dtype) if value.is_meta else value.detach()
            held[id(value)] = nn.Parameter(room, value.requires_grad)
            names[id(held[id(value)])] = names[id(value)]
        setattr(module, name, held[id(value)])


@torch.no_grad()
def _fill(model: nn.Module, names: Mapping[int, str], spec: RunSpec, pack: Packing) -> None:
    """Fill in pretrained values, or pack them; `names` are those in the whole model, without its adapter."""
    assert spec.start is not None
    flat, layers = FlatParameters(meta := build_base_meta(spec)), start_blob.read_layers(spec.start.digest)
    if [layer.size for layer in flat.layers] != [len(layer) for layer in layers]:
        raise BadSpec("start.digest is that of a model with other layers than [model] says")
    places: dict[str, tuple[int, slice]] = {}
    of_meta = _names(meta)
    for number, members in enumerate(flat.members):
        for where, parameter in zip(flat.layer_slices(number), members, strict=True):
            places[of_meta[id(parameter)]] = number, where
    for parameter in [value for name, value in model.named_parameters() if ".lora_" not in name]:
        number, where = places[names[id(parameter)]]
        pieces = pieces_of(layers[number][where])
        if id(parameter) in pack.places:
            pack(parameter, pieces)
            continue
        for at, piece in pieces:
            parameter.view(-1)[at : at + len(piece)] = piece


def _packing(model: nn.Module, spec: RunSpec) -> Packing:
    return Packing(model, "" if spec.adapter is None else spec.adapter.base)


def _draw(model: nn.Module, spreads: Mapping[Tensor, float], spec: RunSpec, names: Mapping[int, str]) -> None:
    """Draw all parameters that are no constants, with the deviation in `spreads`; `names` are those in the whole
    model, by the identity of the parameter."""
    for parameter in model.parameters():
        name, values = names[id(parameter)], parameter.detach()
        if name.endswith(".A_log"):
            _draw_logarithms(parameter, f"{spec.run.seed}/{name}", *RATES)
            continue
        if values.numel() < 2 or bool((values == values.flatten()[0]).all()):
            continue
        assert parameter in spreads, f"transformers draws {name} of {spec.model.architecture} in another way"
        _draw_uniform(parameter, f"{spec.run.seed}/{name}", spreads[parameter])


@contextmanager
def _noted_spreads() -> Iterator[Mapping[Tensor, float]]:
    """The standard deviation with which transformers draws each parameter inside: the requested one, not that of the
    result, which differs between processors. GPT-2 has smaller ones where a block adds to the residual stream."""
    from transformers import initialization

    spreads: dict[Tensor, float] = {}
    normal = initialization.normal_

    def noting(tensor: Tensor, mean: float = 0.0, std: float = 1.0, generator: torch.Generator | None = None) -> Tensor:
        spreads[tensor] = std
        return normal(tensor, mean=mean, std=std, generator=generator)

    initialization.normal_ = noting
    try:
        yield spreads
    finally:
        initialization.normal_ = normal


def build_meta(spec: RunSpec) -> nn.Module:
    """The same model without storage (device `meta`), to count and to name. Raises BadSpec."""
    with torch.device("meta"):
        model = _with_adapter(build_base_meta(spec), spec)
        pack = _packing(model, spec)
        for parameter in [value for value in model.parameters() if id(value) in pack.places]:
            pack(parameter, ())
        return model


def build_base_meta(spec: RunSpec) -> nn.Module:
    """The same without its adapter. Raises BadSpec."""
    with torch.device("meta"):
        return _made(spec)


def build_unset(spec: RunSpec) -> nn.Module:
    """The same model on the CPU with uninitialised parameters, which take no memory until somebody writes them.
    Buffers are as in `build`. Raises BadSpec, also for a model with an adapter."""
    if spec.adapter is not None:
        raise BadSpec("a run with [adapter] is trained on one device of each peer")
    with _parameters_on_meta():
        model = _made(spec)
    unset: dict[int, nn.Parameter] = {}  # tied ones once
    for module in model.modules():
        for name, value in module.named_parameters(recurse=False, remove_duplicate=False):
            parameter = unset.setdefault(id(value), nn.Parameter(torch.empty(value.shape), value.requires_grad))
            setattr(module, name, parameter)
    return model


@contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """Modules that are made inside have their parameters on the device `meta`, and everything else in its usual
    place; so have parameters of one number, which a module may set when it is made, and nobody after that (Apertus).
    """
    register = nn.Module.register_parameter

    def on_meta(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and not parameter.is_meta and parameter.numel() > 1:
            parameter = nn.Parameter(parameter.to("meta"), parameter.requires_grad)
        register(module, name, parameter)

    nn.Module.register_parameter = on_meta  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


def build_config(spec: RunSpec) -> PreTrainedConfig:
    """The transformers configuration of `spec`, whose keys and values are allowed. Raises BadSpec."""
    table = spec.model
    as_lists = {key: list(value) if isinstance(value, tuple) else value for key, value in table.config.items()}
    known = ARCHITECTURES[table.architecture]
    said = {**known.rope, **as_lists}
    values = _tokenizer_values(spec) | {_positions(table.architecture): table.context}
    scaling = _rope_scaling(table.architecture, said)
    elsewhere = {*ROPE_NAMES, SCALARS} | (known.rope.keys() if "rope_parameters" in scaling else set())
    values |= {key: value for key, value in said.items() if key not in elsewhere}
    values |= scaling | _without_windows(table.architecture, said) | _global_blocks(table.architecture, said)
    # An embedding that pads is not trained at that token, and some architectures pad by default.
    values |= {"use_cache": False, "pad_token_id": None, **known.without}
    try:
        return AutoConfig.for_model(table.architecture, **values)
    except (TypeError, ValueError, ZeroDivisionError, StrictDataclassError) as error:
        reason = " ".join(str(error).split())
        raise BadSpec(f"model.config does not fit {table.architecture}: {reason}") from error


ROPE_NAMES = {
    "rope_type": "rope_type", "rope_factor": "factor", "rope_original_positions": "original_max_position_embeddings",
    "rope_low_freq_factor": "low_freq_factor", "rope_high_freq_factor": "high_freq_factor",
    "rope_beta_fast": "beta_fast", "rope_beta_slow": "beta_slow", "rope_attention_factor": "attention_factor",
    "rope_mscale": "mscale", "rope_mscale_all_dim": "mscale_all_dim", "rope_query_beta": "llama_4_scaling_beta",
    "rope_truncate": "truncate", "rope_short_factor": "short_factor", "rope_long_factor": "long_factor",
}  # fmt: skip
"""Keys of a spec, and what transformers calls them inside of `rope_scaling`."""
POSITIONS = "rope_original_positions"
SCALARS = "layer_scalars"
ROPE_VALUES: Mapping[str, Mapping[str, float | None]] = {
    "default": {},
    "linear": {"rope_factor": 1.0},
    "llama3": {
        "rope_factor": 8.0, "rope_original_positions": 8192, "rope_low_freq_factor": 1.0, "rope_high_freq_factor": 4.0,
    },
    "yarn": {
        "rope_factor": 8.0, "rope_original_positions": 8192, "rope_beta_fast": None, "rope_beta_slow": None,
        "rope_attention_factor": None, "rope_mscale": None, "rope_mscale_all_dim": None, "rope_query_beta": None,
        "rope_truncate": None,
    },
    "proportional": {},
    "longrope": {
        "rope_short_factor": None, "rope_long_factor": None, "rope_original_positions": None,
        "rope_factor": None, "rope_attention_factor": None,
    },
}  # fmt: skip
"""By `rope_type` the keys that it takes, and their values where a spec has none; None follows from the others."""


def _rope_scaling(architecture: str, said: Mapping[str, Any]) -> dict[str, Any]:
    if "rope_type" not in said:
        return {}
    kind, keys = said["rope_type"], ARCHITECTURES[architecture].keys
    if kind == "proportional":
        # transformers hears of these in no other way.
        full = {key: said[key] for key in ("rope_type", "rope_theta", "partial_rotary_factor")}
        slides = {"rope_type": "default", "rope_theta": said["rope_local_base_freq"]}
        return {"rope_parameters": {"full_attention": full, "sliding_attention": slides}}
    taken = {key: said.get(key, value) for key, value in ROPE_VALUES[kind].items() if key in keys}
    low, high = (taken.get(f"rope_{side}_freq_factor") for side in ("low", "high"))
    if kind == "llama3" and not float(low or 0) < float(high or 0):
        raise BadSpec("model.config.rope_low_freq_factor is not below rope_high_freq_factor, between which is divided")
    needed = ("rope_short_factor", "rope_long_factor", POSITIONS)
    if kind == "longrope" and not said.keys() >= {*needed}:
        raise BadSpec(f"model.config.rope_type is 'longrope', which needs {', '.join(needed)}")
    scaling = {ROPE_NAMES[key]: value for key, value in taken.items() if value is not None}
    # Phi 3 has this one outside, too, and transformers takes it from there.
    beside = {key: value for key, value in scaling.items() if kind == "longrope" and key == ROPE_NAMES[POSITIONS]}
    return beside | {"rope_scaling": {"rope_type": kind} | scaling}


def _global_blocks(architecture: str, said: Mapping[str, Any]) -> dict[str, Any]:
    """Which blocks of Gemma 4 see all: every sixth, and the last, about which transformers would complain in a log."""
    known = ARCHITECTURES[architecture]
    if "global_head_dim" not in known.keys:
        return {}
    blocks = int(said.get("num_hidden_layers", known.values["num_hidden_layers"]))
    sees_all = [number % 6 == 0 or number == blocks for number in range(1, blocks + 1)]
    return {"layer_types": [("sliding", "full")[each] + "_attention" for each in sees_all]}


def _without_windows(architecture: str, said: Mapping[str, Any]) -> dict[str, Any]:
    """transformers' values for a `sliding_window` of 0."""
    if said.get("sliding_window") != 0:
        return {}
    known = ARCHITECTURES[architecture]
    if "sliding_window_pattern" not in known.keys:
        return {"sliding_window": None}
    blocks = int(said.get("num_hidden_layers", known.values["num_hidden_layers"]))
    # transformers would derive these from a pattern of 0, by which it divides.
    return {"sliding_window": None, "layer_types": ["full_attention"] * blocks}


def _tokenizer_values(spec: RunSpec) -> dict[str, Any]:
    """Vocabulary and end of text of bytes, unless the spec names the vocabulary itself."""
    if "vocab_size" in spec.model.config:
        return {}
    end = ByteTokenizer.end_of_text
    return {"vocab_size": ByteTokenizer.vocabulary, "bos_token_id": end, "eos_token_id": end}


def _positions(architecture: str) -> str:
    return "n_positions" if architecture == "gpt2" else "max_position_embeddings"


def _made(spec: RunSpec) -> nn.Module:
    config = build_config(spec)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        try:
            # Not annotated by transformers.
            make: Any = AutoModelForCausalLM.from_config
            model: nn.Module = make(config, dtype=torch.float32, trust_remote_code=False)
            _set_scalars(scalars_of(model), spec)
        except (ValueError, KeyError, AttributeError, RuntimeError, ZeroDivisionError, AssertionError) as error:
            reason = " ".join(str(error).split())
            raise BadSpec(f"model.config makes no {config.model_type} model: {reason}") from error
    return model


def scalars_of(model: nn.Module) -> list[Tensor]:
    """The numbers of one element each with which Gemma 4 multiplies what leaves a block; they are not trained."""
    return [value for name, value in model.named_buffers() if name.endswith(".layer_scalar")]


def _set_scalars(scalars: Sequence[Tensor], spec: RunSpec) -> None:
    said: Any = spec.model.config.get(SCALARS, ())
    for scalar, value in zip(scalars, said, strict=SCALARS in spec.model.config):
        scalar.fill_(value)


RATES = (0.01, 16.0)
"""Between which transformers draws how fast each head of a gated delta rule forgets (arXiv:2412.06464)."""


@torch.no_grad()
def _draw_logarithms(parameter: Tensor, stream: str, low: float, high: float) -> None:
    """Fill with the logarithms of uniform draws. Those of decimals are rounded alike everywhere, as others are not."""
    generator = _generator(stream)
    units = (generator.random_raw(parameter.numel()) >> np.uint64(40)).astype(np.float64) * 2.0**-24
    with localcontext(Context(prec=20)):
        drawn = [float(Decimal(low + (high - low) * unit).ln()) for unit in units.tolist()]
    parameter.copy_(torch.tensor(drawn).view_as(parameter))


@torch.no_grad()
def _draw_uniform(parameter: Tensor, stream: str, standard_deviation: float) -> None:
    """Fill with uniform draws of mean 0, by operations that are exact or rounded once on every processor."""
    generator = _generator(stream)
    bound = np.float32(math.sqrt(3.0) * standard_deviation)
    flat = parameter.view(-1)
    for start in range(0, flat.numel(), _DRAWN_AT_ONCE):
        size = min(_DRAWN_AT_ONCE, flat.numel() - start)
        unit = (generator.random_raw(size) >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)
        flat[start : start + size] = torch.from_numpy(unit * (2 * bound) - bound)


def _generator(stream: str) -> np.random.PCG64:
    key = hashlib.blake2b(f"parameters/{stream}".encode(), digest_size=16).digest()
    return np.random.PCG64(int.from_bytes(key, "big"))


def position_inputs(entering_BT: Tensor) -> dict[str, Tensor]:
    """What a model is told beside its tokens: nothing, or the position of each in its document."""
    positions_BT = token_flags.positions(entering_BT)
    return {} if positions_BT is None else {"position_ids": positions_BT}


def next_token_logits(model: nn.Module, tokens_BT: Tensor) -> Tensor:
    """Logits (B, T − 1, V) of every token but the first, from those before it."""
    # No mask: sequences are full, and without one attention takes its fastest causal path.
    entering_BT = tokens_BT[:, :-1]
    outputs = model(input_ids=token_flags.plain(entering_BT), use_cache=False, **position_inputs(entering_BT))
    logits_BTV: Tensor = outputs.logits
    return logits_BTV
