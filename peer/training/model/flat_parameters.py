"""A model's parameters as one flat float32 vector, cut into layers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A run of the flat vector: one transformer block, or one module outside the blocks."""

    name: str
    start: int
    size: int

    @property
    def is_block(self) -> bool:
        """Whether it is one of the modules that repeat."""
        return self.name.rpartition(".")[2].isdecimal()


class FlatParameters:
    """The trainable parameters of a model, tied ones once, in model order.

    Layers lie one after the other and cover the vector. The model may live on any device and in
    any floating dtype; the vectors are float32 on the CPU, of `size` elements.
    """

    @classmethod
    def of_span(cls, model: nn.Module, whole: Sequence[Layer], held: range) -> FlatParameters:
        """Of a model cut to the neighbouring layers `held` of a whole one, whose names and positions they keep."""
        flat, layers = cls(model), whole[held.start : held.stop]
        sizes = [layer.size for layer in layers]
        parameters = iter(list(chain.from_iterable(flat.members)))
        members: list[tuple[Tensor, ...]] = []
        for size in sizes:
            own: list[Tensor] = []
            while sum(parameter.numel() for parameter in own) < size:
                own.append(next(parameters))
            members.append(tuple(own))
        assert next(parameters, None) is None, "the model has more than its layers"
        flat.members, flat.layers, flat.first_layer = tuple(members), tuple(layers), held.start
        assert [sum(parameter.numel() for parameter in own) for own in members] == sizes
        return flat

    def __init__(self, model: nn.Module) -> None:
        named = [(name, value) for name, value in model.named_parameters() if value.requires_grad]
        by_layer: dict[str, list[Tensor]] = {}
        for name, parameter in named:
            by_layer.setdefault(layer_name(name), []).append(parameter)
        self.members = tuple(tuple(members) for members in by_layer.values())
        """The parameters of each layer, in their order in the vector."""
        layers: list[Layer] = []
        start = 0
        for name, members in by_layer.items():
            size = sum(parameter.numel() for parameter in members)
            layers.append(Layer(name=name, start=start, size=size))
            start += size
        self.layers = tuple(layers)
        self.first_layer = 0
        """The number of the first of them in the whole model."""
        self.size = start

    @torch.no_grad()
    def new(self) -> Tensor:
        """A float32 vector of the parameters' present values."""
        flat = torch.empty(self.size, dtype=torch.float32)
        for parameter, part in self._parts(flat):
            part.copy_(parameter.view(-1))
        return flat

    @torch.no_grad()
    def by_layer(self) -> tuple[Tensor, ...]:
        """A float32 vector per layer of the parameters' present values."""
        return tuple(
            torch.cat([each.view(-1).to("cpu", torch.float32) for each in members]) for members in self.members
        )

    @torch.no_grad()
    def into(self, vectors: Sequence[Tensor]) -> None:
        """Copy the parameters' present values into `vectors`, float32, one per layer."""
        for number, vector in enumerate(vectors):
            for where, parameter in self.of_layer(number):
                vector[where] = parameter

    def layer_slices(self, layer: int) -> tuple[slice, ...]:
        """The slice of each parameter in its layer's vector, in their order."""
        ends = list(accumulate(parameter.numel() for parameter in self.members[layer]))
        return tuple(slice(first, last) for first, last in zip([0, *ends], ends, strict=False))

    @torch.no_grad()
    def copy_layers(self, vectors: Sequence[Tensor]) -> None:
        """Set the parameters to the values in `vectors`, one per layer, rounded to their dtype."""
        for number, vector in enumerate(vectors):
            for where, parameter in self.of_layer(number):
                parameter.copy_(vector[where])

    @torch.no_grad()
    def copy_from(self, flat: Tensor) -> None:
        """Set the parameters to the values in `flat`, rounded to their dtype."""
        for parameter, part in self._parts(flat):
            parameter.view(-1).copy_(part)

    def of_layer(self, number: int) -> tuple[tuple[slice, Tensor], ...]:
        """The parameters of a layer in place, flat, each with its slice in the layer's vector, in their order."""
        found, start = [], 0
        for parameter in self.members[number]:
            found.append((slice(start, start + parameter.numel()), parameter.detach().view(-1)))
            start += parameter.numel()
        return tuple(found)

    def _parts(self, flat: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        assert flat.shape == (self.size,), f"flat vector has shape {tuple(flat.shape)}, the model {self.size} elements"
        start = 0
        for parameter in chain.from_iterable(self.members):
            yield parameter, flat[start : start + parameter.numel()]
            start += parameter.numel()


def layer_name(parameter_name: str) -> str:
    """`model.layers.3` for anything inside that block; the module's name for a parameter outside the blocks."""
    block = re.match(r"(?:[^.]+\.)*?\d+(?=\.)", parameter_name)
    return block.group() if block else parameter_name.rpartition(".")[0] or parameter_name


def hidden_matrices(model: nn.Module) -> list[Tensor]:
    """The trained weights of linear layers except the output head's, tied to the embedding or not. Experts in one
    three-dimensional tensor are left out, since Muon needs matrices."""
    outside = {
        id(value) for module in model.modules() if isinstance(module, nn.Embedding) for value in module.parameters()
    }
    head = getattr(model, "get_output_embeddings", lambda: None)()
    if head is not None:
        outside |= {id(value) for value in head.parameters()}
    linear = (module for module in model.modules() if isinstance(module, (nn.Linear, Conv1D)))
    weights = {id(module.weight): module.weight for module in linear}
    return [value for key, value in weights.items() if key not in outside and value.requires_grad and value.dim() == 2]


def trained(model: nn.Module) -> list[Tensor]:
    """The parameters that training changes, tied ones once."""
    return [value for value in model.parameters() if value.requires_grad]
