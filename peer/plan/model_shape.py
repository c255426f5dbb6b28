"""What a run's model costs, from its spec alone: parameters by layer, floating-point operations, bytes of memory.

The layers are those of `peer.model.flat`, counted here by formula for the architectures that people train most, so
that a plan needs neither torch nor transformers. Of any other architecture one says how large it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dht.errors import BadInput
from peer.codec.codec import Codec
from peer.protocol.layout import share_out
from peer.spec import RunSpec

FLOAT32_BYTES = 4
BYTE_TOKENS = 257
"""Of the tokenizer `bytes`: 256 values and end-of-text."""
ACTIVATION_BYTES = 34
"""Per token, width and block in 16 bit, without stored attention maps (arXiv:2205.05198, section 4.1)."""
MOST_PARAMETERS = 10**13
STATE_VECTORS = 4
"""θ, outer momentum, residual, and where the inner steps began: float32 in main memory."""

LLAMA: Mapping[str, Any] = {
    "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32,
    "tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False,
}  # fmt: skip
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "llama": LLAMA,
    "mistral": {**LLAMA, "intermediate_size": 14336, "num_key_value_heads": 8},
    "qwen2": {**LLAMA, "intermediate_size": 22016, "num_key_value_heads": 32},
    "qwen3": {**LLAMA, "intermediate_size": 22016, "num_key_value_heads": 32, "head_dim": 128},
    "gpt2": {"n_embd": 768, "n_layer": 12, "n_head": 12, "n_inner": None, "tie_word_embeddings": True},
}
"""What transformers' configurations take where a spec says nothing."""


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """A model as a planner sees it."""

    layers: tuple[int, ...]
    """Parameters of each layer, in the order of the flat vector: one transformer block, or one module beside them."""
    blocks: int
    """Transformer blocks."""
    width: int
    """Of the residual stream."""
    attention_width: int
    """Of all query heads together."""
    vocabulary: int
    matrix_parameters: int
    """Of the matrices that every token is multiplied with, the output head included even where it is tied."""
    before: int = 0
    """Layers before the first block; what is neither of them nor a block comes after the last one."""

    @property
    def parameters(self) -> int:
        """Trainable ones, tied ones once."""
        return sum(self.layers)

    def flops_per_token(self, context: int) -> float:
        """Forward and backward: 6 N + 12 · blocks · width · context (arXiv:2204.02311, appendix B)."""
        return 6.0 * self.matrix_parameters + 12.0 * self.blocks * self.attention_width * context

    def fragment_parameters(self, fragments: int) -> tuple[int, ...]:
        """Parameters of each fragment, as `peer.protocol.layout` shares layers out. Raises BadInput for too many."""
        if fragments > len(self.layers):
            raise BadInput(f"round.fragments is {fragments}; the model has {len(self.layers)} layers to share out")
        owners = share_out(self.layers, fragments)
        return tuple(
            sum(size for size, owner in zip(self.layers, owners, strict=True) if owner == fragment)
            for fragment in range(fragments)
        )


def shape_of(spec: RunSpec, parameters: int = 0) -> ModelShape:
    """The shape of a spec's model; of an architecture that is not known, one of so many `parameters`.

    Raises BadInput if neither is known.
    """
    if parameters:
        if not 1 <= parameters <= MOST_PARAMETERS:
            raise BadInput(f"--parameters is {parameters}; it must be between 1 and {MOST_PARAMETERS:,}")
        return _scaled(spec, parameters)
    known = DEFAULTS.get(spec.model.architecture)
    if known is None:
        raise BadInput(
            f"model.architecture is {spec.model.architecture!r}, whose size the planner cannot compute (it can for "
            f"{', '.join(DEFAULTS)}); say how large the model is with --parameters N"
        )
    values = {**known, **spec.model.config}
    vocabulary = _vocabulary(spec)
    return _gpt2(values, vocabulary, spec) if spec.model.architecture == "gpt2" else _llama(values, vocabulary, spec)


def known_shape(spec: RunSpec, parameters: int) -> ModelShape:
    """The shape of a model that is there, and has so many parameters, whatever its architecture."""
    return shape_of(spec) if spec.model.architecture in DEFAULTS else shape_of(spec, parameters)


def _vocabulary(spec: RunSpec) -> int:
    if "vocab_size" in spec.model.config:
        return int(spec.model.config["vocab_size"])
    if spec.model.tokenizer == "bytes":
        return BYTE_TOKENS
    raise BadInput(
        f"model.config has no vocab_size, and the planner does not load the tokenizer {spec.model.tokenizer!r}; "
        "add vocab_size to [model.config]"
    )


def _llama(values: Mapping[str, Any], vocabulary: int, spec: RunSpec) -> ModelShape:
    """Llama, Mistral and Qwen: grouped-query attention, gated feed-forward, two norms per block."""
    width, inner = int(values["hidden_size"]), int(values["intermediate_size"])
    heads, blocks = int(values["num_attention_heads"]), int(values["num_hidden_layers"])
    key_heads = int(values.get("num_key_value_heads") or heads)
    head = int(values.get("head_dim") or width // heads)
    matrices = width * head * (2 * heads + 2 * key_heads) + 3 * width * inner
    vectors = _llama_vectors(values, spec.model.architecture, head * heads, head * key_heads, head)
    own_head = () if values["tie_word_embeddings"] else (vocabulary * width,)
    return ModelShape(
        layers=(vocabulary * width, *(matrices + vectors,) * blocks, width, *own_head),
        blocks=blocks, width=width, attention_width=heads * head, vocabulary=vocabulary,
        matrix_parameters=blocks * matrices + vocabulary * width, before=1,
    )  # fmt: skip


def _llama_vectors(values: Mapping[str, Any], architecture: str, queries: int, keys: int, head: int) -> int:
    """Parameters of a block that are in no matrix: norms and biases."""
    width, inner = int(values["hidden_size"]), int(values["intermediate_size"])
    vectors = 2 * width
    if architecture == "qwen2":
        vectors += queries + 2 * keys
    elif values["attention_bias"] and architecture != "mistral":
        vectors += queries + 2 * keys + width
    if architecture == "qwen3":
        vectors += 2 * head
    if architecture == "llama" and values["mlp_bias"]:
        vectors += 2 * inner + width
    return vectors


def _gpt2(values: Mapping[str, Any], vocabulary: int, spec: RunSpec) -> ModelShape:
    """GPT-2: learned positions, fused query, key and value, biases everywhere."""
    width, blocks = int(values["n_embd"]), int(values["n_layer"])
    inner = int(values["n_inner"] or 4 * width)
    positions = int(values.get("n_positions") or values.get("max_position_embeddings") or spec.model.context)
    matrices = 4 * width * width + 2 * width * inner
    vectors = 9 * width + inner
    own_head = () if values["tie_word_embeddings"] else (vocabulary * width,)
    return ModelShape(
        layers=(vocabulary * width, positions * width, *(matrices + vectors,) * blocks, 2 * width, *own_head),
        blocks=blocks, width=width, attention_width=width, vocabulary=vocabulary,
        matrix_parameters=blocks * matrices + vocabulary * width, before=2,
    )  # fmt: skip


def _scaled(spec: RunSpec, parameters: int) -> ModelShape:
    """A model of which only the size is known: equal blocks, and all of it in matrices."""
    values = spec.model.config
    blocks = min(parameters, max(1, int(values.get("num_hidden_layers", values.get("n_layer", 24)))))
    width = int(values.get("hidden_size", values.get("n_embd", 0))) or max(1, round((parameters / 12 / blocks) ** 0.5))
    layers = tuple(parameters * (at + 1) // blocks - parameters * at // blocks for at in range(blocks))
    return ModelShape(
        layers=layers, blocks=blocks, width=width, attention_width=width,
        vocabulary=int(values.get("vocab_size", 32000)), matrix_parameters=parameters,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class MemoryFootprint:
    """What one peer needs, in bytes. The same estimate as `python -m peer describe` makes."""

    training: float
    """On the device: parameters, gradients and the moments of the optimizer, float32."""
    activations: float
    """On the device: an estimate for one micro-batch (arXiv:2205.05198), and logits three times over."""
    logits: float
    """What of the activations belongs to the output head."""
    anchor: float
    """In main memory."""
    encoded: float
    """In main memory: own contribution, parts to reduce, and the mean, of the largest fragment."""

    @property
    def device(self) -> float:
        return self.training + self.activations

    @property
    def total(self) -> float:
        """Of a machine whose device is the processor."""
        return self.device + self.anchor + self.encoded


def memory_of(shape: ModelShape, spec: RunSpec) -> MemoryFootprint:
    """Of a peer that trains `spec` on one device."""
    parameters, inner = shape.parameters, spec.inner
    moments = 2 * parameters
    if inner.optimizer == "muon":
        moments -= shape.matrix_parameters - shape.vocabulary * shape.width
    wide = 1 if inner.precision == "bfloat16" else 2
    tokens = inner.sequences * spec.model.context
    logits = tokens * 3 * FLOAT32_BYTES * shape.vocabulary
    codec, largest = Codec(spec.codec.wire), max(shape.fragment_parameters(spec.round.fragments))
    return MemoryFootprint(
        training=FLOAT32_BYTES * (2 * parameters + moments),
        activations=tokens * ACTIVATION_BYTES * wide * shape.blocks * shape.width + logits,
        logits=logits,
        anchor=STATE_VECTORS * FLOAT32_BYTES * parameters,
        encoded=2 * codec.part_bytes(largest) + codec.of_means.part_bytes(largest),
    )


def stage_bytes(shape: ModelShape, spec: RunSpec, stages: int) -> int:
    """What the largest of so many stages of consecutive layers is when encoded as the spec says: what its peers send
    each other to average it."""
    largest = max(
        sum(size for at, size in enumerate(shape.layers) if at * stages // len(shape.layers) == stage)
        for stage in range(stages)
    )
    return Codec(spec.codec.wire).part_bytes(largest)
