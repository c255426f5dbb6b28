"""Where a rank waits for a layer: just before FSDP gathers the parameters of a unit that contains the layer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import cast

from torch import nn
from torch.distributed.fsdp import FSDPModule

from peer.parallel.fsdp.sharded_model import forget_gathered, fsdp_modules, has_gathered
from peer.training.model.flat_parameters import FlatParameters, layer_name

Enter = Callable[[Collection[int]], None]
"""Called with the layers that are about to be gathered."""


class GatherGates:
    """Hooks that call `enter` in every forward pass with the layers that FSDP gathers next.

    Each module that FSDP gathers by itself enters the layers of that gather: a block its own layer, the whole model all
    layers outside of blocks. After the model's forward pass all layers are entered. `model` is already sharded
    (`sharded_model.shard`), on the CPU or a GPU, and prefetches nothing in its forward pass. `flat` is that of the same
    model, sharded or not: only the names of its layers are read.
    """

    def __init__(self, model: nn.Module, flat: FlatParameters, enter: Enter) -> None:
        number_of = {layer.name: number for number, layer in enumerate(flat.layers)}
        self._module_of: dict[int, FSDPModule] = {}
        for module, names in _gathered_together(model):
            layers = sorted({number_of[name] for name in names})
            assert not self._module_of.keys() & layers, "two gathers read one layer"
            self._module_of.update(dict.fromkeys(layers, module))
            _gate(cast("nn.Module", module), layers, enter)
        assert len(self._module_of) == len(flat.layers), "a layer is in no gather"
        self.order = tuple(self._module_of)
        """The layers in the order in which a forward pass needs them. Those outside of blocks come first, so they
        are applied first."""
        model.register_forward_hook(lambda *_: enter(self.order))
        self._model = model

    def is_gathered(self, layer: int) -> bool:
        """Whether the next pass reads this layer from an earlier copy, and not from the ranks' present shards."""
        return has_gathered(self._module_of[layer])

    def forget(self) -> None:
        """Drop all such copies. Call it only when no forward or backward pass is running."""
        forget_gathered(self._model)


def _gate(module: nn.Module, layers: Collection[int], enter: Enter) -> None:
    # Before FSDP's own hook, which was made first of all hooks when it divided the module.
    module.register_forward_pre_hook(lambda *_: enter(layers), prepend=True)


def _gathered_together(model: nn.Module) -> Iterator[tuple[FSDPModule, list[str]]]:
    """Each module that gathers for itself, with the names of the layers whose trained parameters it gathers."""
    name_of = {id(value): layer_name(name) for name, value in model.named_parameters() if value.requires_grad}
    for module in fsdp_modules(model):
        parts = _own_parts(cast("nn.Module", module))
        read = (id(value) for part in parts for value in part.parameters(recurse=False))
        yield module, [name_of[each] for each in read if each in name_of]


def _own_parts(module: nn.Module) -> Iterator[nn.Module]:
    """The module itself, and all modules in it that no other one gathers."""
    yield module
    for child in module.children():
        if not isinstance(child, FSDPModule):
            yield from _own_parts(child)
