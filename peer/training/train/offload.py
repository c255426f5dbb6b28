"""Where the model and the inner optimizer lie: on the device, or in main memory while the owner wants the device.

The bits are the same on both sides. Some GPU memory of a process belongs to no tensor: the driver's context of a few
hundred MB and a workspace of the matrix library. It is freed only when the process ends.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, MutableMapping

import torch
from torch import Tensor, nn

from peer.node.host.device import assert_index
from peer.training.outer.copy_stream import copied
from peer.training.train.optimizers import Optimizers

ASIDE = torch.device("cpu")


class Offload:
    """Moves one model and its optimizers from a device to main memory and back. References to parameters stay valid."""

    def __init__(
        self, model: nn.Module, optimizers: Optimizers, device: torch.device,
        beside: Callable[[], Iterable[Tensor]] = tuple, have_moved: Callable[[], object] = tuple,
    ) -> None:  # fmt: skip
        """`beside` gives what else may lie on the device; `have_moved` releases the memory where everything lay."""
        assert_index(device)
        self._model, self._optimizers, self._device, self._beside = model, optimizers, device, beside
        self._have_moved = have_moved
        self._left: list[Tensor] = []
        """The other tensors that have left the device."""
        self._places: dict[tuple[int, str], torch.device] = {}
        """Where the optimizers' tensors were, by parameter and key: counts of steps may lie in main memory anyway."""
        self.is_aside = False

    def leave(self) -> None:
        """Leave nothing on the device except what belongs to no tensor. A second call changes nothing."""
        if self.is_aside:
            return
        self._left = [tensor for tensor in self._beside() if tensor.device.type == self._device.type]
        for tensor in self._tensors():
            tensor.data = copied(tensor.data, ASIDE)
            tensor.grad = None
        for name, state, key in self._states():
            self._places[name] = state[key].device
            state[key] = copied(state[key], ASIDE)
        self.is_aside = True
        self._have_moved()
        empty_device_cache(self._device)

    def come_back(self) -> None:
        """Undo `leave`. Without memory for it raises torch's error, and then stays in main memory."""
        if not self.is_aside:
            return
        tensors = [(tensor, copied(tensor.data, self._device)) for tensor in self._tensors()]
        states = [
            (state, key, copied(state[key], self._places.get(name, self._device)))
            for name, state, key in self._states()
        ]
        for tensor, data in tensors:
            tensor.data = data
        for state, key, value in states:
            state[key] = value
        self.is_aside = False
        self._have_moved()

    def _tensors(self) -> Iterator[Tensor]:
        """Parameters, tied ones once, and buffers; and the other tensors that have left the device."""
        yield from self._model.parameters()
        yield from self._model.buffers()
        yield from self._left

    def _states(self) -> Iterator[tuple[tuple[int, str], MutableMapping[str, Tensor], str]]:
        for member in self._optimizers.members:
            for parameter, state in member.state.items():
                for key in [key for key, value in state.items() if isinstance(value, Tensor)]:
                    yield (id(parameter), key), state, key


def empty_device_cache(device: torch.device) -> None:
    """Give memory that no tensor needs back to the driver."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
