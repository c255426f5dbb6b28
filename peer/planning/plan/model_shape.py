"""The cost of a run's model from its spec alone: parameters by layer, floating-point operations, bytes of memory.

The layers are those of `peer.training.model.flat_parameters`, counted by formula, so that a plan needs neither torch
nor transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dht.errors import BadInput, BadSpec
from peer.consensus.codec.codec import Codec
from peer.consensus.protocol.layout import share_out
from peer.schema.model_layers import FLOAT32_BYTES, ModelLayers
from peer.schema.peak_memory import BASE_BYTES, PLAIN, REST_BYTES, Peak, Rung, frozen_bytes, peak
from peer.schema.spec import RunSpec

MOST_PARAMETERS = 10**13
STATE_VECTORS = 4
"""θ, outer momentum, residual, and the start of the inner steps: float32 in main memory."""


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """A model as a planner sees it."""

    layers: tuple[int, ...]
    """The parameters of each layer, in the order of the flat vector. A layer is one transformer block, or one module
    outside the blocks."""
    blocks: int
    """The number of transformer blocks."""
    width: int
    """The width of the residual stream."""
    attention_width: int
    """The width of all query heads together; the mean where some blocks have none."""
    key_width: int
    """The width of all key heads together."""
    inner_width: int
    """The width of the feed-forward layer, of all experts together that a token is sent to."""
    vocabulary: int
    matrix_parameters: int
    """The parameters of the matrices that every token is multiplied with, including the output head even if it is
    tied."""
    hidden_parameters: int
    """The parameters of the matrices that Muon optimizes."""
    extra: tuple[int, ...] = ()
    """The values that each block keeps for each token beside what blocks of its sizes usually do."""
    frozen_matrix_parameters: int = 0
    """The parameters of such matrices in the frozen model of an adapter."""
    frozen_bytes: int = 0
    """The bytes of that frozen model on the device."""
    frozen_matrix_bytes: int = 0
    """Those of its embedding, or of its output matrix."""
    unpacked_bytes: int = 0
    """The bytes (at most) of the largest frozen matrix while it is in use, where frozen ones are packed."""
    is_tied: bool = False
    """Whether the output matrix is that of the embedding."""
    before: int = 0
    """The number of layers before the first block; all other layers that are not blocks come after the last block."""

    @property
    def parameters(self) -> int:
        """The number of trainable parameters; tied ones count once."""
        return sum(self.layers)

    def flops_per_token(self, context: int) -> float:
        """Operations forward and backward: 6 N + 12 · blocks · width · context (arXiv:2204.02311, appendix B).

        Frozen matrices count 4 N, since their own gradients are not computed.
        """
        multiplied = 6.0 * self.matrix_parameters + 4.0 * self.frozen_matrix_parameters
        return multiplied + 12.0 * self.blocks * self.attention_width * context

    def fragment_parameters(self, fragments: int) -> tuple[int, ...]:
        """The number of parameters of each fragment, shared out as in `peer.consensus.protocol.layout`. Raises
        BadSpec for more fragments than layers."""
        if fragments > len(self.layers):
            raise BadSpec(f"round.fragments is {fragments}; the model has {len(self.layers)} layers to share out")
        owners = share_out(self.layers, fragments)
        return tuple(
            sum(size for size, owner in zip(self.layers, owners, strict=True) if owner == fragment)
            for fragment in range(fragments)
        )


def shape_of(spec: RunSpec, parameters: int = 0) -> ModelShape:
    """The shape of a spec's model, or of a model with `parameters` parameters. Raises BadInput if that number is out
    of range."""
    if parameters:
        if not 1 <= parameters <= MOST_PARAMETERS:
            raise BadInput(f"--parameters is {parameters}; it must be between 1 and {MOST_PARAMETERS:,}")
        return _scaled(spec, parameters)
    model, trained = spec.model_layers, spec.trained_layers
    layers = (*trained.before, *trained.inside, *trained.after)
    matrices, adapter = model.multiplied + model.vocabulary * model.width, spec.adapter
    frozen, of_matrix, unpacked = (0, 0, 0) if adapter is None else _frozen_bytes(spec, model, adapter.base)
    return ModelShape(
        layers=layers, blocks=model.blocks, width=model.width, attention_width=model.attention_width,
        key_width=model.key_width, inner_width=model.inner_width, vocabulary=model.vocabulary,
        matrix_parameters=matrices if adapter is None else sum(layers),
        hidden_parameters=trained.hidden, extra=model.extra,
        frozen_matrix_parameters=0 if adapter is None else matrices,
        frozen_bytes=frozen, frozen_matrix_bytes=of_matrix, unpacked_bytes=unpacked,
        is_tied=model.vocabulary * model.width not in model.after, before=len(trained.before),
    )  # fmt: skip


def _frozen_bytes(spec: RunSpec, model: ModelLayers, base: str) -> tuple[int, int, int]:
    """Of an adapter's frozen model: all, one matrix outside of its blocks, and what is unpacked at a time."""
    largest = model.width * max(model.inner_width, model.attention_width)
    return (
        frozen_bytes(base, model.parameters, model.multiplied) + _drawn_bytes(spec),
        REST_BYTES[base] * model.vocabulary * model.width,
        FLOAT32_BYTES * largest if BASE_BYTES[base] < REST_BYTES[base] else 0,
    )


def _drawn_bytes(spec: RunSpec) -> int:
    """The bytes (float32) of the half of an adapter that keeps its random initial values, where only the other half
    is trained."""
    assert spec.adapter is not None
    both = replace(spec, adapter=replace(spec.adapter, trains="both"))
    return FLOAT32_BYTES * (both.trained_layers.parameters - spec.trained_layers.parameters)


def _scaled(spec: RunSpec, parameters: int) -> ModelShape:
    """A model of which only the size is known: it is assumed to consist of equal blocks, and of matrices only."""
    values: Mapping[str, Any] = spec.model.config
    blocks = min(parameters, max(1, int(values.get("num_hidden_layers", values.get("n_layer", 24)))))
    width = int(values.get("hidden_size", values.get("n_embd", 0))) or max(1, round((parameters / 12 / blocks) ** 0.5))
    vocabulary = int(values.get("vocab_size", 32000))
    layers = tuple(parameters * (at + 1) // blocks - parameters * at // blocks for at in range(blocks))
    return ModelShape(
        layers=layers, blocks=blocks, width=width, attention_width=width, key_width=width,
        inner_width=4 * width, vocabulary=vocabulary, matrix_parameters=parameters,
        hidden_parameters=max(0, parameters - vocabulary * width),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class MemoryFootprint:
    """The memory that one peer needs for `parameters` trainable parameters, each counted once."""

    parameters: int
    training_bytes: int
    """On the device: parameters, gradients and the optimizer's one (Muon) or two (AdamW) moments, float32."""
    frozen_bytes: int
    """On the device: the frozen model of an adapter."""
    activation_bytes: int
    """On the device: an estimate for one micro-batch, with its logits (`peer.schema.peak_memory`)."""
    anchor_bytes: int
    """In main memory: θ, outer momentum, residual, and the start of the inner steps, float32."""
    encoded_bytes: int
    """In main memory: the peer's own contribution, the parts to reduce, and the mean, for the largest fragment."""

    @property
    def device_bytes(self) -> int:
        return self.training_bytes + self.frozen_bytes + self.activation_bytes

    @property
    def total_bytes(self) -> int:
        """The sum for a machine that trains on its processor."""
        return self.device_bytes + self.anchor_bytes + self.encoded_bytes


def peak_of(shape: ModelShape, spec: RunSpec, sequences: int, *, bfloat16: bool | None, rung: Rung = PLAIN) -> Peak:
    """With micro-batches of so many sequences. Where the spec leaves the precision to the device and nobody says which,
    float32 is assumed, which takes more."""
    return peak(
        shape, sequences * spec.model.context, parameters=shape.parameters, rung=rung,
        one_moment=shape.hidden_parameters if spec.inner.optimizer == "muon" else 0,
        bfloat16=spec.inner.precision == "bfloat16" if bfloat16 is None else bfloat16,
    )  # fmt: skip


def memory_of(
    shape: ModelShape, spec: RunSpec, sequences: int = 0, *, bfloat16: bool | None = None, rung: Rung = PLAIN
) -> MemoryFootprint:
    """The memory of a peer that trains `spec` on one device, as in `peak_of`. Raises BadSpec for more fragments than
    layers."""
    parameters = shape.parameters
    found = peak_of(shape, spec, sequences or spec.inner.sequences, bfloat16=bfloat16, rung=rung)
    # Reducing is shared out: of n peers each averages 1/n of the model for n contributors.
    codec, largest = Codec(spec.codec.wire), max(shape.fragment_parameters(spec.round.fragments))
    return MemoryFootprint(
        parameters=parameters,
        training_bytes=found.states,
        frozen_bytes=shape.frozen_bytes,
        activation_bytes=found.copies + found.blocks + found.logits + shape.unpacked_bytes,
        anchor_bytes=STATE_VECTORS * FLOAT32_BYTES * parameters,
        encoded_bytes=2 * codec.part_bytes(largest) + codec.of_means.part_bytes(largest),
    )


def stage_bytes(shape: ModelShape, spec: RunSpec, stages: int) -> int:
    """The encoded size of the largest of `stages` stages of consecutive layers, with the spec's codec: what the
    peers of that stage send each other to average it."""
    largest = max(
        sum(size for at, size in enumerate(shape.layers) if at * stages // len(shape.layers) == stage)
        for stage in range(stages)
    )
    return Codec(spec.codec.wire).part_bytes(largest)
