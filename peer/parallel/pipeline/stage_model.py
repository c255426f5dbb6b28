"""Some neighbouring layers of a run's model, with the same bits as in the whole model. No home holds other layers.

The architecture's own forward pass computes a stage: with activations in place of embeddings, and the identity in place
of a last norm that another home has. If an architecture does more, for example if it scales the input of the first
block, every stage would do so. So whether an architecture may be cut is tried on a small model.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from dht.errors import BadSpec
from peer.planning.plan.cluster_cost import no_cluster
from peer.schema.architectures import ARCHITECTURES
from peer.schema.spec import RunSpec
from peer.training.model.build import build, build_cut, build_meta
from peer.training.model.expert_balance import balance_coefficient
from peer.training.model.flat_parameters import FlatParameters, Layer
from peer.training.model.net import Head
from peer.training.outer.outer_state import OuterState

TRIED_BLOCKS, TRIED_VOCABULARY, TRIED_TOKENS = 4, 64, 5
NARROW = {
    "hidden_size": 64, "intermediate_size": 128, "moe_intermediate_size": 128, "head_dim": 16,
    "linear_key_head_dim": 16, "linear_value_head_dim": 16, "global_head_dim": 16,
}  # fmt: skip
"""The widest that a model is tried in."""
BLOCK_COUNTS = ("num_hidden_layers", "n_layer", "num_layers")
"""The keys of a configuration for the number of blocks."""


class MatrixCopy(nn.Module):
    """The output matrix of a model whose first and last layer are one. The first stage trains it; it is no parameter
    here, but has a gradient."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight: Tensor
        self.register_buffer("weight", weight.detach())
        self.bias: Tensor | None = None


class StageModel(nn.Module):
    """The modules of the layers in `held`. The input is tokens or hidden values, the output hidden values; the loss of
    the last ones takes `head` (`peer.training.model.net.Head`). What is not trained, beside an adapter, belongs to the
    first stage or to the last."""

    def __init__(self, model: nn.Module, held: range, layers: tuple[Layer, ...]) -> None:
        """`model` is a whole model of all `layers`, which is cut in place."""
        super().__init__()
        self.is_first, self.is_last = held.start == 0, held.stop == len(layers)
        plain: Any = model.get_base_model() if hasattr(model, "get_base_model") else model  # type: ignore[operator]
        blocks = [number for number, layer in enumerate(layers) if layer.is_block]
        container: Any = model.get_submodule(layers[blocks[0]].name.rpartition(".")[0])
        kept = [block for number, block in zip(blocks, container, strict=True) if number in held]
        base: Any = plain.base_model
        here, matrix = _trained_in(model, held), plain.get_output_embeddings()
        self._dtype = matrix.weight.dtype
        self.is_tied = matrix.weight is plain.get_input_embeddings().weight and matrix.weight.requires_grad
        is_before = True
        for name, child in list(base.named_children()):
            if child is container:
                setattr(base, name, nn.ModuleList(kept))
                is_before = False
            elif not self._keeps(child, here, is_before=is_before):
                setattr(base, name, nn.Identity())
        base.config = copy.copy(base.config)
        for key in BLOCK_COUNTS:
            if hasattr(base.config, key):
                setattr(base.config, key, len(kept))
        if getattr(base.config, "layer_types", None):  # read by a block's place among those that are here
            kinds = zip(blocks, base.config.layer_types, strict=True)
            base.config.layer_types = [kind for number, kind in kinds if number in held]
        self.base = base
        # Behind the rest, as in the whole model.
        self.head: nn.Module | None = matrix if self.is_last else None

    def _keeps(self, child: nn.Module, here: set[int], *, is_before: bool) -> bool:
        own = list(child.parameters())
        trained = {id(parameter) for parameter in own if parameter.requires_grad}
        if trained or not own:
            return not own or bool(trained & here)
        return self.is_first if is_before else self.is_last

    def copy_tied(self) -> None:
        """Make the output matrix of a last stage a copy, if it is the first layer's."""
        if self.is_tied and self.head is not None and not self.is_first:
            self.head = MatrixCopy(self.head.weight)  # type: ignore[arg-type]

    @property
    def tied(self) -> Tensor | None:
        """The matrix (V, H) that the first stage and the last have in common; None in a stage without it."""
        if not self.is_tied or self.is_first == self.is_last:
            return None
        base: Any = self.base
        holder: Any = base.get_input_embeddings() if self.head is None else self.head
        matrix: Tensor = holder.weight
        return matrix

    def forward(self, entering: Tensor, **told: Tensor) -> Tensor:
        """`entering`: tokens (B, T), int64, at the first stage, otherwise hidden values (B, T, H). `told`: see
        `peer.training.model.build.position_inputs`."""
        name = "input_ids" if self.is_first else "inputs_embeds"
        if not self.is_first:
            entering = entering.to(self._dtype)
        hidden_BTH: Tensor = self.base(**{name: entering}, use_cache=False, **told).last_hidden_state
        return hidden_BTH

    @property
    def config(self) -> Any:
        """transformers' configuration, of the blocks that are here."""
        return self.base.config

    @property
    def width(self) -> int:
        """H, the width of a hidden value."""
        width: int = self.config.hidden_size
        return width

    @property
    def vocabulary(self) -> int:
        size: int = self.config.vocab_size
        return size

    @property
    def has_dropout(self) -> bool:
        """Whether the model draws dropout masks in training."""
        said = self.config.to_dict().items()
        return any("drop" in key and isinstance(value, float) and value > 0 for key, value in said) or any(
            isinstance(module, nn.Dropout) and module.p > 0 for module in self.modules()
        )

    def get_output_embeddings(self) -> nn.Module | None:
        """The output head, named as in transformers: an optimizer for hidden matrices leaves it out."""
        return self.head


class LastStage(nn.Module):
    """The last stage of a model, and the loss of what leaves it. It has no parameters of its own."""

    def __init__(self, stage: StageModel) -> None:
        super().__init__()
        self.stage, self.loss = stage, Head(stage)

    def forward(self, entering: Tensor, labels_BT: Tensor, **told: Tensor) -> Tensor:
        """In nats, summed over what is predicted. Logits of all tokens never exist at once."""
        loss: Tensor = self.loss(self.stage(entering, **told), labels_BT)
        return loss


def _trained_in(model: nn.Module, held: range) -> set[int]:
    """The identities of the trained parameters of these layers."""
    flat = FlatParameters(model)
    return {id(parameter) for number in held for parameter in flat.members[number]}


def model_layers(spec: RunSpec) -> tuple[Layer, ...]:
    """The layers of the whole model. Raises BadSpec."""
    return FlatParameters(build_meta(spec)).layers


def build_stage(spec: RunSpec, held: range) -> tuple[StageModel, FlatParameters]:
    """The stage with these layers in float32 on the CPU, and its parameters by layer. Raises BadSpec."""
    layers: tuple[Layer, ...] = ()

    def cut(whole: nn.Module) -> StageModel:
        nonlocal layers
        layers = FlatParameters(whole).layers
        return StageModel(whole, held, layers)

    stage = build_cut(spec, cut)
    assert isinstance(stage, StageModel)
    stage.copy_tied()
    return stage, FlatParameters.of_span(stage, layers, held)


def initial_span(spec: RunSpec, held: range) -> OuterState:
    """The state of these layers at anchor 0."""
    _, flat = build_stage(spec, held)
    theta = flat.by_layer()
    momentum = [torch.zeros_like(layer) for layer in theta]
    return OuterState(theta, momentum, 0, {}, first_layer=held.start, first_element=flat.layers[0].start)


def initial_layer_digests(spec: RunSpec) -> tuple[bytes, ...]:
    """The digest of every layer at anchor 0, with one layer in memory at a time; see
    `peer.consensus.codec.state_digest`."""
    count = len(model_layers(spec))
    return tuple(initial_span(spec, range(number, number + 1)).layer_digests()[0] for number in range(count))


def require_cuttable(spec: RunSpec) -> None:
    """Raises BadSpec for a model whose stages would not compute the same as the whole model."""
    if why := no_cluster(spec):
        raise BadSpec(why)
    tried, whole = _small_model(spec)
    layers = model_layers(tried)
    if balance_coefficient(whole):
        raise BadSpec(
            f"the routers of a {spec.model.architecture} model are balanced over all of its blocks, which no home has "
            "in a cluster; a run whose spec says model.config.router_aux_loss_coef = 0.0 can be trained by one"
        )
    middle = [number for number, layer in enumerate(layers) if layer.is_block][1:]
    cuts = [0, *middle, len(layers)]
    tokens_BT = torch.arange(TRIED_TOKENS)[None]
    with torch.no_grad():
        try:
            stages = [build_stage(tried, range(first, last))[0].eval() for first, last in pairwise(cuts)]
            is_equal = torch.equal(_through(stages, tokens_BT), _last_hidden(whole.eval(), tokens_BT))
        except (RuntimeError, TypeError, AssertionError):  # an architecture that takes no hidden values, in some way
            is_equal = False
        if not is_equal:
            raise BadSpec(
                f"models of the architecture {spec.model.architecture}, with this config, cannot be cut into stages"
            )
        whole.train()
        with _DropoutCount() as in_whole:
            _last_hidden(whole, tokens_BT)
        with _DropoutCount() as in_stages:
            _through([stage.train() for stage in stages], tokens_BT)
    if in_whole.count != in_stages.count:
        raise BadSpec(
            f"every stage of a {spec.model.architecture} model would apply the embedding's dropout; a "
            "run whose spec has none there can be trained by a cluster"
        )


def _small_model(spec: RunSpec) -> tuple[RunSpec, nn.Module]:
    """A model that is cut like the run's, narrower if its architecture allows: in full width that of an 8 B model takes
    half a minute, and 7 GB of memory. Raises BadSpec."""
    wide = _small(spec)
    for config in (wide | _narrow(wide, ARCHITECTURES[spec.model.architecture].keys), wide):
        model = replace(spec.model, config=config, tokenizer="bytes")
        tried = replace(spec, model=model, start=None, adapter=None)
        try:
            return tried, build(tried)
        except (BadSpec, RuntimeError, ValueError):
            if config is wide:
                raise
    raise AssertionError("one of them is built, or raises")


def _narrow(config: Mapping[str, Any], keys: Collection[str]) -> dict[str, int]:
    """Smaller widths, where the heads' are a key of their own; whether a model can be cut does not depend on them."""
    if "head_dim" not in keys or any(isinstance(value, tuple) for value in config.values()):
        return {}
    return {key: min(most, config.get(key, most)) for key, most in NARROW.items() if key in keys}


def _small(spec: RunSpec) -> dict[str, Any]:
    """A configuration with few blocks, a small vocabulary, and sliding windows short enough to matter; otherwise the
    same."""
    config: dict[str, Any] = dict(spec.model.config)
    of_blocks = next((key for key in BLOCK_COUNTS if key in config), None)
    of_blocks = of_blocks or next(key for key in ARCHITECTURES[spec.model.architecture].keys if key in BLOCK_COUNTS)
    small: dict[str, Any] = config | {of_blocks: min(TRIED_BLOCKS, int(config.get(of_blocks, TRIED_BLOCKS)))}
    bounds = {
        "vocab_size": TRIED_VOCABULARY, "max_window_layers": 1, "sliding_window": 2, "full_attention_interval": 2,
    }  # fmt: skip
    small |= {key: min(most, small[key]) for key, most in bounds.items() if key in small}
    small.pop("layer_scalars", None)  # of as many blocks as there were
    if "full_attn_idxs" in small:
        small["full_attn_idxs"] = tuple(number for number in small["full_attn_idxs"] if number < small[of_blocks])
    return small


def _through(stages: Sequence[StageModel], tokens_BT: Tensor) -> Tensor:
    hidden = tokens_BT
    for stage in stages:
        hidden = stage(hidden)
    return hidden


def _last_hidden(whole: nn.Module, tokens_BT: Tensor) -> Tensor:
    """What a whole model multiplies with its output matrix."""
    base: Any = whole.base_model
    last_BTH: Tensor = base(input_ids=tokens_BT, use_cache=False).last_hidden_state
    return last_BTH


class _DropoutCount(TorchFunctionMode):
    """Counts how many calls of dropout change a value."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        share = named.get("p", args[1] if len(args) > 1 else 0.5)
        if func is nn.functional.dropout and named.get("training", True) and share > 0:
            self.count += 1
        return func(*args, **named)
