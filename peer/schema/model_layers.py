"""The layers of a model and their numbers of parameters, computed from a spec.

They are those of `peer.training.model.flat_parameters`. Nothing is built, so that a spec can be refused for its size
when it is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dht.errors import BadSpec
from peer.schema.architectures import ARCHITECTURES
from peer.schema.keys.allowed_values import Value
from peer.schema.peak_memory import FLOAT32_BYTES as FLOAT32_BYTES
from peer.schema.peak_memory import frozen_bytes, peak

BYTE_TOKENS = 257
"""Of the tokenizer `bytes`: 256 values and end-of-text."""
XIELU = 2
"""Parameters of Apertus' activation (arXiv:2411.13010), once in each block."""
MOST_DEVICE_BYTES = 512 * 10**9
"""The largest memory of one home computer that a model can be trained in, as of 2025; 32 billion parameters with
gradients and both moments of AdamW. Who says more is mistaken, or wants to fill a volunteer's machine."""

_LAYER_NORMS = frozenset({"gpt2", "gpt_neox", "opt", "starcoder2"})
"""They have a bias; other norms have none."""
_SHARED_NAMES = {"n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads",
                 "n_inner": "intermediate_size", "n_positions": "max_position_embeddings",
                 "ffn_dim": "intermediate_size", "moe_intermediate_size": "intermediate_size",
                 "num_experts": "num_local_experts"}  # fmt: skip
_OF_GEMMA_4 = ("gemma4_text", "gemma4_unified_text")
_CHUNK = 64
"""Tokens after which transformers computes the state of a gated delta rule."""
_INTERVALS = {"qwen3_5_text": 4, **dict.fromkeys(_OF_GEMMA_4, 6)}
"""Of so many blocks the last one attends (in Gemma 4 to all), where a spec says nothing; of others every one."""
_PATTERNS = {"gemma3_text": 6, "olmo3": 4, "exaone4": 4}
"""Of so many blocks the last one sees all, likewise; of others none, where blocks slide."""
_WINDOWS = {**dict.fromkeys(("mistral", *_PATTERNS), 4096), **dict.fromkeys(_OF_GEMMA_4, 512)}
"""Tokens that a sliding block sees, likewise."""


@dataclass(frozen=True, kw_only=True)
class ModelLayers:
    """Parameters of each layer, in the order of the flat vector: one transformer block, or one module beside them."""

    before: tuple[int, ...]
    """Embeddings, and what else comes before the first block."""
    inside: tuple[int, ...]
    """Each block."""
    after: tuple[int, ...]
    width: int
    """Of the residual stream."""
    attention_width: int
    """Of all query heads together; the mean where some blocks have none."""
    key_width: int
    """Of all key heads together."""
    inner_width: int
    """Of the feed-forward layer, of all experts together that a token is sent to."""
    vocabulary: int
    multiplied: int
    """Of the matrices of all blocks that every token is multiplied with: of experts, those that it is sent to."""
    extra: tuple[int, ...]
    """Values that each block keeps for each token beside what one of a llama does (`peer.schema.peak_memory`)."""
    hidden: int
    """Of the matrices of all blocks that Muon takes: not of experts, which lie in one tensor, nor of their router."""

    @property
    def parameters(self) -> int:
        return sum((*self.before, *self.inside, *self.after))

    @property
    def blocks(self) -> int:
        return len(self.inside)

    @property
    def number(self) -> int:
        """Of layers."""
        return len(self.before) + self.blocks + len(self.after)

    def parts(self, elements: int) -> int:
        """How many there are of at most so many elements, each within one layer."""
        return sum(-(-size // elements) for size in (*self.before, *self.inside, *self.after))


@dataclass(frozen=True, kw_only=True)
class _Sizes:
    """The numbers under one name, whatever the architecture calls them."""

    architecture: str
    width: int
    inner: int
    blocks: int
    attending: frozenset[int]
    """The numbers of the blocks with attention: all of them, but in LFM2 and Qwen3.5. In Gemma 4 of those that see
    all."""
    heads: int
    key_heads: int
    sent: int
    """Experts that a token is sent to; 1 without experts."""
    head: int
    positions: int
    context: int
    vocabulary: int
    flags: Mapping[str, Any]
    sliding: frozenset[int]
    """The numbers of the blocks that see less than a whole text."""
    shares_keys: bool = False
    """Whether values are what the matrix of the keys gives."""

    @property
    def queries(self) -> int:
        return self.heads * self.head

    @property
    def keys(self) -> int:
        return self.key_heads * self.head


def layers_of(architecture: str, config: Mapping[str, Value], context: int) -> ModelLayers:
    """The layers of a model of an architecture that is known, with values that are allowed for it.

    Without `vocab_size` it reads bytes. Raises BadSpec for heads that do not fit the width.
    """
    sizes = _sizes(architecture, config, context)
    width, one = sizes.width, sizes.vocabulary * sizes.width
    without = {"lfm2": _convolving, "qwen3_5_text": _remembering}.get(architecture, _attending)
    attends, others = _attending(_seeing_all(sizes)), without(sizes)
    inside = [attends if number in sizes.attending else others for number in range(sizes.blocks)]
    norm = (2 if architecture in _LAYER_NORMS else 1) * width
    head = () if sizes.flags["tie_word_embeddings"] else (one,)
    before: tuple[int, ...] = (one,)
    after: tuple[int, ...] = (norm, *head)
    if architecture == "gpt2":
        before = (one, sizes.positions * width)
    if architecture == "opt":
        before, after = (one, (sizes.positions + 2) * width, norm), head
    return ModelLayers(
        before=before, inside=tuple(each.parameters for each in inside), after=after, width=width,
        attention_width=sum(each.queries for each in inside) // sizes.blocks, key_width=sizes.keys,
        inner_width=sizes.inner * sizes.sent, vocabulary=sizes.vocabulary,
        multiplied=sum(each.multiplied for each in inside), hidden=sum(each.hidden for each in inside),
        extra=tuple(each.extra + _masked(sizes) * (number in sizes.sliding) for number, each in enumerate(inside)),
    )  # fmt: skip


TARGETS = {
    "attention": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "all": ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
}
"""Matrices of a block beside which an adapter lies, by their names in transformers."""
ADAPTED = frozenset(
    {
        "llama", "mistral", "ministral3", "qwen2", "qwen3", "gemma", "gemma3_text", "granite", "olmo2", "olmo3",
        "apertus", "exaone4", "seed_oss", "smollm3", *_OF_GEMMA_4,
    }
)  # fmt: skip
"""Architectures whose matrices have these names."""
_QUERY_NORMS = frozenset(
    {
        "qwen3", "qwen3_moe", "olmo2", "olmo3", "olmoe", "gemma3_text", "exaone4", "apertus", "lfm2", "qwen3_5_text",
    }
)  # fmt: skip
"""Architectures with norms of queries and keys."""
_UNGATED = frozenset({*_LAYER_NORMS, "apertus"})
"""Their feed-forward layers have two matrices; those of others have a third, `gate_proj`."""


def adapter_layers(
    architecture: str, config: Mapping[str, Value], context: int, *, rank: int, targets: str, trains: str
) -> ModelLayers:
    """The layers of an adapter, see `AdapterTable`. Raises BadSpec for an architecture that takes none."""
    if architecture not in ADAPTED:
        raise BadSpec(f"[adapter] is for {', '.join(sorted(ADAPTED))}; this model is of {architecture}")
    sizes, base = _sizes(architecture, config, context), layers_of(architecture, config, context)
    of_both = _seeing_all(sizes), sizes
    seeing_all, others = (rank * _adapted(each, targets, trains) for each in of_both)
    inside = tuple(seeing_all if number in sizes.attending else others for number in range(sizes.blocks))
    return replace(base, before=(), inside=inside, after=(), hidden=sum(inside))


def _adapted(sizes: _Sizes, targets: str, trains: str) -> int:
    """Inputs and outputs of the matrices of a block beside which an adapter lies, of those that it trains."""
    width, inner = sizes.width, sizes.inner
    shapes = {
        "q_proj": (width, sizes.queries), "k_proj": (width, sizes.keys), "v_proj": (width, sizes.keys),
        "o_proj": (sizes.queries, width), "gate_proj": (width, inner), "up_proj": (width, inner),
        "down_proj": (inner, width),
    }  # fmt: skip
    if sizes.architecture in _UNGATED:
        del shapes["gate_proj"]
    if sizes.shares_keys:
        del shapes["v_proj"]
    of_a, of_b = (sum(shapes[name][side] for name in TARGETS[targets] if name in shapes) for side in (0, 1))
    return of_b if trains == "b" else of_a + of_b


def too_large(model: ModelLayers, trained: ModelLayers, context: int, base: str) -> str:
    """Why no home has what one sequence of a run takes, by the estimate of a plan; empty if one may. `base` is in what
    the model lies beside what is trained, empty where all of it is trained."""
    found = peak(model, context, parameters=trained.parameters)
    needed = found.states + found.copies + found.blocks + found.logits
    if base:
        needed += frozen_bytes(base, model.parameters, model.multiplied)
    if needed <= MOST_DEVICE_BYTES:
        return ""
    beside = f" in {base}, an adapter of {trained.parameters:,}" if base else ""
    return (
        f"model has {model.parameters:,} parameters{beside} and a context of {context:,}, for which a device needs "
        f"{needed / 1e9:,.0f} GB; no home has more than {MOST_DEVICE_BYTES / 1e9:.0f} GB"
    )


def _sizes(architecture: str, config: Mapping[str, Value], context: int) -> _Sizes:
    said = {**ARCHITECTURES[architecture].values, **config}
    values = {_SHARED_NAMES.get(key, key): value for key, value in said.items()}
    width, heads = int(values["hidden_size"]), int(values["num_attention_heads"])
    key_heads, head = int(values.get("num_key_value_heads", heads)), int(values.get("head_dim", 0))
    if not head and width % heads:
        raise BadSpec(f"model.config has {heads} attention heads, which do not divide its width of {width}")
    head = head or width // heads
    if heads % key_heads:
        raise BadSpec(f"model.config.num_key_value_heads is {key_heads}, which does not divide {heads} attention heads")
    if architecture not in ("gpt2", "opt") and head % 2:
        raise BadSpec(f"model.config makes attention heads {head} wide; rotary positions need an even number")
    experts, sent = int(values.get("num_local_experts", 1)), int(values.get("num_experts_per_tok", 1))
    if sent > experts:
        raise BadSpec(f"model.config.num_experts_per_tok is {sent}, of {experts} experts")
    positions = int(values.get("max_position_embeddings", context))
    if positions < context:
        raise BadSpec(f"model.config has {positions} positions, fewer than model.context, which is {context}")
    blocks = int(values["num_hidden_layers"])
    interval = int(values.get("full_attention_interval", _INTERVALS.get(architecture, 1)))
    attending = frozenset(values.get("full_attn_idxs", range(interval - 1, blocks, interval)))
    if architecture in _OF_GEMMA_4:
        attending |= {blocks - 1}
    if len(values.get("layer_scalars", range(blocks))) != blocks:
        raise BadSpec(f"model.config.layer_scalars has {len(values['layer_scalars'])} numbers, for {blocks} blocks")
    if attending and max(attending) >= blocks:
        raise BadSpec(f"model.config.full_attn_idxs names block {max(attending)}, of {blocks} that count from 0")
    return _Sizes(
        architecture=architecture, width=width, inner=_inner(values, width), blocks=blocks, attending=attending,
        heads=heads, key_heads=key_heads, sent=sent, head=head, sliding=_sliding(architecture, values, context),
        positions=positions, context=context, vocabulary=int(values.get("vocab_size", BYTE_TOKENS)), flags=values,
    )  # fmt: skip


def _sliding(architecture: str, values: Mapping[str, Any], context: int) -> frozenset[int]:
    """The numbers of blocks that see less than a whole text; not of gpt-oss, which keeps scores in any case."""
    window, blocks = int(values.get("sliding_window", _WINDOWS.get(architecture, 0))), int(values["num_hidden_layers"])
    is_qwen = architecture in ("qwen2", "qwen3", "qwen3_moe")
    if not 0 < window < context or architecture == "gpt_oss" or (is_qwen and not values.get("use_sliding_window")):
        return frozenset()
    first = int(values.get("max_window_layers", 28)) if architecture in ("qwen2", "qwen3") else 0
    every = int(values.get("sliding_window_pattern", _PATTERNS.get(architecture, _INTERVALS.get(architecture, 0))))
    return frozenset(number for number in range(first, blocks) if not every or (number + 1) % every)


def _inner(values: Mapping[str, Any], width: int) -> int:
    """The width of the feed-forward layer. LFM2's is two thirds of what is said, up to a multiple of something."""
    inner = int(values.get("intermediate_size", 4 * width))
    if not values.get("block_auto_adjust_ff_dim"):
        return inner
    multiple, less = int(values["block_multiple_of"]), int(2 * inner / 3)
    inner = -(-int(values["block_ffn_dim_multiplier"] * less) // multiple) * multiple
    if inner < 1:
        raise BadSpec("model.config makes feed-forward layers of no width; say more for intermediate_size")
    return inner


@dataclass(frozen=True, kw_only=True)
class _Block:
    """Parameters of one block: all, those that one token is multiplied with, and those of Muon."""

    parameters: int
    multiplied: int
    hidden: int
    extra: int
    """As in `ModelLayers`."""
    queries: int = 0
    """The width of all query heads together."""


def _attending(sizes: _Sizes) -> _Block:
    matrices, multiplied, hidden = _matrices(sizes)
    return _Block(
        parameters=matrices + _vectors(sizes), multiplied=multiplied, hidden=hidden, extra=_kept(sizes),
        queries=sizes.queries,
    )  # fmt: skip


def _kept(sizes: _Sizes) -> int:
    """`extra` of a block with attention; less than nothing where its queries are narrower than what enters."""
    architecture, width, queries, inner = sizes.architecture, sizes.width, sizes.queries, sizes.inner
    if architecture in _OF_GEMMA_4:
        return _kept_by_gemma_4(sizes)
    kept = 2 * (queries - width)
    if architecture in _QUERY_NORMS:
        kept += 2 * (queries + sizes.keys)
    if "num_local_experts" in sizes.flags:
        kept += 2 * sizes.sent * width  # what each expert is given, and what it returns
    own = {
        # The scores of other tokens, keys and values for each query, and an activation of several steps.
        "gpt_oss": sizes.heads * sizes.context + 2 * (queries - sizes.keys) + 3 * inner * sizes.sent,
        "gemma3_text": 4 * width,  # norms of what leaves attention and feed-forward layers, too
        "glm4": 4 * width + queries,  # so here
        "apertus": inner + inner // 4,  # an activation of several steps
        "qwen3_5_text": 4 * queries,  # gates
        "phi3": 2 * queries + sizes.keys,  # one matrix gives them with the values; and what attention returns
    }
    return kept + own.get(architecture, 0)


def _masked(sizes: _Sizes) -> int:
    """`extra` of a block that gets a mask: that mask, and keys and values for each query."""
    keeps_apart = sizes.architecture == "phi3" and sizes.keys < sizes.queries
    return sizes.context + 2 * (sizes.queries - sizes.keys) - keeps_apart * (sizes.queries + sizes.keys)


def _kept_by_gemma_4(sizes: _Sizes) -> int:
    """Norms of all that enters and leaves, of queries, keys and values."""
    heads, key_heads, flags = sizes.heads, sizes.key_heads, sizes.flags
    counted = 2 * int(flags["num_key_value_heads"]) * int(flags["head_dim"])  # the keys of a block that slides
    of_heads = 4 * sizes.queries + (5 - sizes.shares_keys) * sizes.keys
    return 2 * sizes.width + of_heads + 8 + 3 * heads + 4 * key_heads - counted


def _seeing_all(sizes: _Sizes) -> _Sizes:
    """Of the blocks of Gemma 4 that do not slide. Raises BadSpec."""
    if sizes.architecture not in _OF_GEMMA_4:
        return sizes
    head, key_heads = int(sizes.flags["global_head_dim"]), sizes.key_heads
    if sizes.flags["attention_k_eq_v"]:
        key_heads = int(sizes.flags.get("num_global_key_value_heads", key_heads))
    if head % 2 or sizes.heads % key_heads:
        raise BadSpec(
            f"model.config makes global attention heads {head} wide, {sizes.heads} with {key_heads} keys; the width "
            "must be even, and the keys divide the heads"
        )
    return replace(sizes, head=head, key_heads=key_heads, shares_keys=bool(sizes.flags["attention_k_eq_v"]))


def _convolving(sizes: _Sizes) -> _Block:
    """A block of LFM2 that has a gated convolution of neighbouring tokens in place of attention."""
    width, flags = sizes.width, sizes.flags
    matrices = 4 * width**2 + 3 * width * sizes.inner
    kernel = width * int(flags.get("conv_L_cache", 0))
    biases = 5 * width if flags.get("conv_bias") else 0
    return _Block(
        parameters=matrices + kernel + biases + 2 * width, multiplied=matrices, hidden=matrices,
        extra=4 * width - 2 * sizes.keys,
    )  # fmt: skip


def _remembering(sizes: _Sizes) -> _Block:
    """A block of Qwen3.5 that has a state in place of attention, by a gated delta rule. Raises BadSpec."""
    width, flags = sizes.width, sizes.flags
    key_heads, heads = int(flags["linear_num_key_heads"]), int(flags["linear_num_value_heads"])
    if heads % key_heads:
        raise BadSpec(
            f"model.config.linear_num_key_heads is {key_heads}, which does not divide {heads} linear_num_value_heads"
        )
    of_key, of_value = int(flags["linear_key_head_dim"]), int(flags["linear_value_head_dim"])
    keys, repeated, values = key_heads * of_key, heads * of_key, heads * of_value
    convolved = 2 * keys + values
    matrices = width * (convolved + 2 * values + 2 * heads + 3 * sizes.inner)
    vectors = convolved * int(flags["linear_conv_kernel_dim"]) + 2 * heads + of_value
    # For a chunk of tokens torch keeps five tables of each pair of them, and the state.
    chunked = 5 * heads * _CHUNK + heads * of_key * of_value // _CHUNK
    kept = 4 * keys + 12 * repeated + 12 * values + 10 * heads + chunked
    return _Block(
        parameters=matrices + vectors + 2 * width, multiplied=matrices, hidden=matrices,
        extra=max(0, kept - 2 * width - 2 * sizes.keys),
    )  # fmt: skip


def _matrices(sizes: _Sizes) -> tuple[int, int, int]:
    """Of a block with attention: all in matrices, those that one token is multiplied with, and those of Muon."""
    attention = sizes.width * (2 * (sizes.queries + sizes.keys) - sizes.shares_keys * sizes.keys)
    if sizes.architecture == "qwen3_5_text":  # each query has a gate
        attention += sizes.width * sizes.queries
    feed_forward = (2 if sizes.architecture in _UNGATED else 3) * sizes.width * sizes.inner
    if "num_local_experts" not in sizes.flags:
        return attention + feed_forward, attention + feed_forward, attention + feed_forward
    experts, sent = int(sizes.flags["num_local_experts"]), int(sizes.flags["num_experts_per_tok"])
    if sizes.architecture == "gpt_oss":  # its experts have biases in tensors of the same kind
        feed_forward += 2 * sizes.inner + sizes.width
    router = experts * sizes.width
    return attention + router + experts * feed_forward, attention + router + sent * feed_forward, attention


def _vectors(sizes: _Sizes) -> int:
    """Parameters of a block that are in no matrix: norms and biases."""
    width, inner, queries, keys = sizes.width, sizes.inner, sizes.queries, sizes.keys
    flags, into, out = sizes.flags, queries + (2 - sizes.shares_keys) * keys, width
    match sizes.architecture:
        case "gpt2" | "opt":
            return 4 * width + into + out + inner + width
        case "gpt_neox":
            return 4 * width + inner + width + (into + out if flags["attention_bias"] else 0)
        case "starcoder2":
            return 4 * width + (into + out + inner + width if flags["use_bias"] else 0)
        case "glm4":
            return 4 * width + (into if flags["attention_bias"] else 0)
        case "gpt_oss":
            sinks, of_router = sizes.heads, int(flags["num_local_experts"])
            return 2 * width + sinks + of_router + (into + out if flags["attention_bias"] else 0)
        case "qwen3_5_text":
            return 2 * width + 2 * sizes.head + (queries + into + out if flags.get("attention_bias") else 0)
        case "seed_oss":
            in_mlp = 2 * inner + width if flags.get("mlp_bias") else 0
            of_output = out if flags.get("attention_out_bias") else 0
            return 2 * width + (into if flags["attention_bias"] else 0) + of_output + in_mlp
    biases = (into + out if flags.get("attention_bias") else 0) + (2 * inner + width if flags.get("mlp_bias") else 0)
    own = {
        "qwen2": into, "qwen3": 2 * sizes.head, "qwen3_moe": 2 * sizes.head, "olmo2": queries + keys,
        "olmo3": queries + keys, "olmoe": queries + keys, "gemma3_text": 2 * width + 2 * sizes.head,
        **dict.fromkeys(_OF_GEMMA_4, 2 * width + 2 * sizes.head),
        "exaone4": 2 * sizes.head, "lfm2": 2 * sizes.head, "apertus": 2 * sizes.head + XIELU,
    }  # fmt: skip
    return 2 * width + own.get(sizes.architecture, 0) + biases
