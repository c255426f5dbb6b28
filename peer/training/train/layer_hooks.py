"""Where a forward pass waits for a layer: just before the first module that reads the layer's parameters runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from peer.training.checkpoint.checkpoint import generator_states, set_generator_states
from peer.training.model.build import next_token_logits
from peer.training.model.compiled_blocks import plain_blocks
from peer.training.model.flat_parameters import FlatParameters

PROBE_TOKENS = 3

Enter = Callable[[Collection[int]], None]
"""Called with the layers that are about to be read."""


class LayerGates:
    """Hooks that call `enter` with the layers that the module behind them reads, in every forward pass.

    A layer's own module has one, such as a block, and so has every module outside of it that holds a trained parameter
    of the layer itself, such as a tied one. A parameter may also be read by a module that does not hold it, as in
    `F.linear(x, self.head.weight)`, before any hook of its layer runs. One small forward pass shows which layers
    those are; they are entered before the model runs at all, and so are those that this pass did not read.
    """

    def __init__(
        self, model: nn.Module, flat: FlatParameters, device: torch.device, enter: Enter,
        probe_pass: Callable[[], object] | None = None, called: nn.Module | None = None,
    ) -> None:  # fmt: skip
        """`probe_pass` makes a small forward pass; None: of tokens, as a whole model takes them. `called` is the module
        around `model` that is called in its place."""
        every_layer = frozenset(range(len(flat.layers)))
        probe = _Probe(flat)
        self._enter: Enter = probe.entered.update
        whole = called or model
        for module, layers in _readers(model, whole, flat):
            self._gate(module, layers)
        tokens_BT = torch.zeros((1, PROBE_TOKENS), dtype=torch.int64, device=device)
        with plain_blocks(model):  # a compiled block hides its operations from the probe
            _run(device, probe, probe_pass or (lambda: next_token_logits(model, tokens_BT)))
        self.early = every_layer - probe.caught
        """Layers that only the model's own hook catches."""
        self._gate(whole, self.early)
        # What this pass did not read must be whole, too, before the optimizer looks at it.
        whole.register_forward_hook(lambda *_: self._enter(every_layer))
        self._enter = enter

    def _gate(self, module: nn.Module, layers: Collection[int]) -> None:
        # First of all hooks: one of the architecture's own may read parameters.
        module.register_forward_pre_hook(lambda *_: self._enter(layers), prepend=True)


def _readers(model: nn.Module, whole: nn.Module, flat: FlatParameters) -> Iterator[tuple[nn.Module, frozenset[int]]]:
    """The modules that a hook belongs on, each with the numbers of the layers that it reads."""
    layer_of = {id(parameter): number for number, members in enumerate(flat.members) for parameter in members}
    numbers = {layer.name: number for number, layer in enumerate(flat.layers)}
    named = {module: numbers[name] for name, module in model.named_modules() if name in numbers}
    inside = {each: number for module, number in named.items() for each in module.modules() if each is not module}
    for module in whole.modules():
        own = {layer_of[id(value)] for value in module.parameters(recurse=False) if id(value) in layer_of}
        if module in named:
            own.add(named[module])
        # The hook of a block is enough for all that is inside of it; a compiled block runs none of theirs.
        if own and own != {inside.get(module)}:
            yield module, frozenset(own)


class _Probe(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operation of a forward pass, and so which layers are read, and whether they were entered before."""

    def __init__(self, flat: FlatParameters) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.entered: set[int] = set()
        self._layer_of = {
            parameter.untyped_storage().data_ptr(): number
            for number, members in enumerate(flat.members)
            for parameter in members
            if parameter.numel()
        }
        self._read = {number for number, layer in enumerate(flat.layers) if not layer.size}
        self._too_early: set[int] = set()

    @property
    def caught(self) -> frozenset[int]:
        """Layers that were read, and never before they were entered."""
        return frozenset(self._read - self._too_early)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        for value in tree_leaves((args, kwargs)):
            if isinstance(value, Tensor):
                self._note(self._layer_of.get(value.untyped_storage().data_ptr()))
        return func(*args, **(kwargs or {}))

    def _note(self, layer: int | None) -> None:
        if layer is None:
            return
        self._read.add(layer)
        if layer not in self.entered:
            self._too_early.add(layer)


@torch.no_grad()
def _run(device: torch.device, probe: _Probe, probe_pass: Callable[[], object]) -> None:
    drawn_before = generator_states(device)
    with probe:
        probe_pass()
    set_generator_states(drawn_before, device)
