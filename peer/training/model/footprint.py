"""How large a run's model is, and what memory a peer of it needs."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from dht.errors import BadSpec
from peer.consensus.codec.codec import Codec
from peer.consensus.protocol.layout import share_out
from peer.schema.spec import RunSpec
from peer.training.model.build import build_config, build_meta
from peer.training.model.flat_parameters import FlatParameters, hidden_matrices

FLOAT32_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """What one peer needs, for `parameters` trainable parameters, each counted once."""

    parameters: int
    training_bytes: int
    """On the training device: parameters, gradients and the optimizer's one (Muon) or two (AdamW) moments, float32."""
    frozen_bytes: int
    """On the training device: the model beside which an adapter is trained."""
    activation_bytes: int
    """On the training device: an estimate for one micro-batch."""
    anchor_bytes: int
    """In main memory: θ, outer momentum, residual, and where the inner steps began, float32."""
    encoded_bytes: int
    """In main memory: own encoded contribution, parts received to reduce, and the encoded mean, of one fragment."""

    @property
    def total_bytes(self) -> int:
        """All of it, as on a machine whose training device is the CPU."""
        return self.training_bytes + self.frozen_bytes + self.activation_bytes + self.anchor_bytes + self.encoded_bytes


def size_of(spec: RunSpec) -> Footprint:
    """Count and estimate without allocating the model. Raises BadSpec."""
    model = build_meta(spec)
    parameters = sum(value.numel() for value in model.parameters() if value.requires_grad)
    frozen = [value for value in model.parameters() if not value.requires_grad]
    one_moment = sum(value.numel() for value in hidden_matrices(model)) if spec.inner.optimizer == "muon" else 0
    codec, elements = Codec(spec.codec.wire), _largest_fragment(model, spec)
    return Footprint(
        parameters=parameters,
        training_bytes=FLOAT32_BYTES * (4 * parameters - one_moment),
        frozen_bytes=sum(value.numel() * value.element_size() for value in frozen),
        activation_bytes=_activation_bytes(spec),
        anchor_bytes=4 * FLOAT32_BYTES * parameters,
        # Reducing is shared out: of n peers each averages 1/n of the model for n contributors.
        encoded_bytes=2 * codec.part_bytes(elements) + codec.of_means.part_bytes(elements),
    )


def _largest_fragment(model: nn.Module, spec: RunSpec) -> int:
    """Elements that one round averages at most. Raises BadSpec for more fragments than layers."""
    sizes = [layer.size for layer in FlatParameters(model).layers]
    try:
        owners = share_out(sizes, spec.round.fragments)
    except ValueError as error:
        raise BadSpec(f"round.fragments is {spec.round.fragments}: {error}") from error
    return max(sum(size for size, owner in zip(sizes, owners, strict=True) if owner == each) for each in set(owners))


def describe(spec: RunSpec) -> str:
    """One paragraph on the run's model, for people. Raises BadSpec."""
    size = size_of(spec)
    tokens = spec.inner.sequences * spec.inner.accumulation * spec.model.context
    frozen = f"{_bytes(size.frozen_bytes)} for the model beside them, " if size.frozen_bytes else ""
    optimizer = "AdamW" if spec.inner.optimizer == "adamw" else "Muon"
    of_what = f"{spec.model.architecture} with {_short(size.parameters)} parameters"
    if spec.start is not None:
        of_what = f"{_short(size.parameters)} parameters {'beside' if spec.adapter else 'of'} {spec.start.model}"
    return (
        f"{spec.run.name}: {of_what}, context "
        f"{spec.model.context}, {spec.model.tokenizer} tokens. A peer needs about {_bytes(size.total_bytes)}: "
        f"{_bytes(size.training_bytes)} for parameters, gradients and {optimizer}, {frozen}"
        f"{_bytes(size.activation_bytes)} for activations, {_bytes(size.anchor_bytes)} for anchor and "
        f"residual, {_bytes(size.encoded_bytes)} for encoded "
        f"parts. An inner step reads {tokens:,} tokens; a round is {spec.round.steps} inner steps, after which each "
        f"peer sends about {_bytes(size.encoded_bytes // 3)} twice over."
    )


def _activation_bytes(spec: RunSpec) -> int:
    """34 bytes per token, width and block in 16 bit without stored attention maps (arXiv:2205.05198), plus logits."""
    config = build_config(spec)
    tokens = spec.inner.sequences * spec.model.context
    blocks = int(getattr(config, "num_hidden_layers", 1)) * int(getattr(config, "hidden_size", 1))
    wide = 1 if spec.inner.precision == "bfloat16" else 2
    logits = 3 * FLOAT32_BYTES * int(getattr(config, "vocab_size", 1))
    return tokens * (34 * wide * blocks + logits)


def _short(count: int) -> str:
    for limit, unit in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if count >= limit:
            return f"{count / limit:.3g} {unit}"
    return str(count)


def _bytes(count: int) -> str:
    for limit, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= limit:
            return f"{count / limit:.3g} {unit}"
    return f"{count} B"
