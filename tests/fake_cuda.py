"""A CUDA device that is none: tensors of the processor whose storages are marked `cuda:0`, and what CUDA would say.

The numbers are computed for real, so that they can be compared with those of the processor, to the bit. Noted is what
a card would refuse, operands of two devices; each time that the host waits for the device, with the function of the
product in which it does; and where two streams race (`tests/noted_card.py`).
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch._dynamo.trace_rules import get_torch_obj_rule_map
from torch.cuda._utils import _get_device_index
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from peer.consensus.codec import torch_codec
from peer.training.outer import bitwise_check, copy_stream
from tests.noted_card import HOST, Clock, NotedCard, function_at_work

CARD, CPU = torch.device("cuda:0"), torch.device("cpu")
WAITING = {"_local_scalar_dense": "item", "equal": "equal", "nonzero": "nonzero", "masked_select": "masked_select"}
"""Operations whose result the host has to know, by name."""
BY_PLACE = ("index", "index_put_", "index_put")
NO_ACCESS = ("detach", "alias", "empty", "empty_like", "empty_strided", "new_empty", "record_stream")
SWEEP = 16
"""Operations after which memory that nobody has any more is looked for."""


class _Operations(TorchDispatchMode):
    """Every operation of a thread comes by here."""

    def __init__(self, cuda: NotedCard) -> None:
        super().__init__()
        self._cuda, self._done = cuda, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with self._cuda.lock:
            self._done += 1
            if self._done % SWEEP == 0:
                self._cuda.sweep()
            return self._do(func, args, dict(kwargs or {}))

    def _do(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        cuda, name = self._cuda, func.overloadpacket.__name__
        tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        there = [each for each in tensors if cuda.lies_there(each)]
        self._refuse_mixed(name, tensors, there)
        if name == "record_stream":
            memory = cuda.memory_of(args[0])
            assert memory is not None
            memory.streams.add(args[1].name)
            return None
        asked = kwargs.get("device")
        if asked is not None and asked.type == "cuda":
            kwargs["device"] = CPU
        is_pinned = bool(kwargs.pop("pin_memory", False))
        on_card = bool(there) if asked is None or name == "_to_copy" else asked.type == "cuda"
        out = func(*args, **kwargs)
        known = {each.untyped_storage()._cdata for each in tensors if each.is_cpu}
        new = [each for each in tree_leaves(out) if isinstance(each, Tensor) and each.is_cpu]
        new = [each for each in new if each.untyped_storage()._cdata not in known]
        for each in new if on_card or is_pinned else ():
            cuda.mark(each, is_pinned=not on_card)
        if name not in NO_ACCESS and not _is_view(func):
            by, written = cuda.stream if there or (on_card and new) else HOST, _written(func, args, kwargs)
            cuda.access(by, [each for each in tensors if id(each) not in written], writes=False)
            cuda.access(by, [*(each for each in tensors if id(each) in written), *new], writes=True)
        if there and (kind := _waits(name, args)):
            cuda.wait(kind)
        if name == "copy_":
            cuda.copied(args[0], args[1], waits=not (kwargs.get("non_blocking") or (len(args) > 2 and args[2])))
        return out

    def _refuse_mixed(self, name: str, tensors: Sequence[Tensor], there: Sequence[Tensor]) -> None:
        if not there or name in ("copy_", "_to_copy"):
            return
        here = [each for each in tensors if not any(each is other for other in there)]
        if "fused_adam" not in name:
            here = [each for each in here if each.dim()]  # a number goes along as an argument of the kernel
        if name in BY_PLACE:
            here = [each for each in here if each.dtype not in (torch.int64, torch.bool)]
        if here:
            self._cuda.mixed.append(f"{name} in {function_at_work()}")


def _is_view(func: Any) -> bool:
    return any(each.alias_info is not None and not each.alias_info.is_write for each in func._schema.returns)


def _written(func: Any, args: Any, kwargs: dict[str, Any]) -> set[int]:
    """The identities of those operands that it changes."""
    given = [*zip(func._schema.arguments, args, strict=False)]
    given += [(each, kwargs[each.name]) for each in func._schema.arguments if each.name in kwargs]
    changed = [value for each, value in given if each.alias_info is not None and each.alias_info.is_write]
    return {id(each) for each in tree_leaves(changed)}


def _waits(name: str, args: Any) -> str:
    if name in BY_PLACE:
        masks = [each for each in tree_leaves(args[1]) if isinstance(each, Tensor) and each.dtype is torch.bool]
        return "mask" if masks else ""
    return WAITING.get(name, "")


@contextmanager
def fake_cuda(free_bytes: int = 20 << 30) -> Iterator[NotedCard]:
    """Inside there is one card, with so much memory free; what lay there has to be let go of before the end."""
    cuda = NotedCard(free_bytes)
    get_torch_obj_rule_map()  # torch makes a table of its own functions once, and must not find these among them
    with ExitStack() as patches:
        for target, names in ((torch.Tensor, _of_tensors(cuda)), (torch.cuda, _of_cuda(cuda))):
            for name, value in names.items():
                patches.enter_context(patch.object(target, name, value))
        patches.enter_context(patch.dict(torch_codec._PAIRS))  # what the product remembers of a device
        patches.enter_context(patch.object(copy_stream, "_OWN", threading.local()))
        patches.callback(bitwise_check.device_for.cache_clear)
        patches.enter_context(patch.object(torch, "tensor", _from_data(torch.tensor)))
        grouped = "_group_tensors_by_device_and_dtype"
        clip: Any = sys.modules["torch.nn.utils.clip_grad"]
        patches.enter_context(patch.object(clip, grouped, _grouped(getattr(clip, grouped))))
        run = threading.Thread.run

        def run_seen(thread: threading.Thread) -> None:
            with _Operations(cuda):
                run(thread)

        patches.enter_context(patch.object(threading.Thread, "run", run_seen))
        patches.enter_context(_Operations(cuda))
        yield cuda


def _of_tensors(cuda: NotedCard) -> dict[str, Any]:
    real: Any = torch._C.TensorBase

    def device(tensor: Tensor) -> torch.device:
        with cuda.lock:
            return CARD if cuda.lies_there(tensor) else real.device.__get__(tensor)

    def to(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        copy = kwargs.pop("copy", False)
        first = args[0] if args else None
        if isinstance(first, Tensor):
            args = (first.device, first.dtype, *args[1:])
        where, dtype, no_wait, layout = torch._C._nn._parse_to(*args, **kwargs)
        there = cuda.lies_there(tensor)
        if not tensor.is_cpu or where is None or where.type not in ("cpu", "cuda") or (where.type == "cuda") == there:
            kept = {} if layout is None else {"memory_format": layout}
            where = None if where is not None and where.type == "cuda" else where
            return real.to(tensor, where, dtype or tensor.dtype, no_wait, copy, **kept)
        with cuda.lock:
            moved: Tensor = real.to(tensor, dtype or tensor.dtype, copy=True)  # with the formula of its gradient
            cuda.unmark(moved)
            if where.type == "cuda":
                cuda.mark(moved)
            cuda.access(cuda.stream, [tensor], writes=False)
            cuda.access(cuda.stream, [moved], writes=True)
            cuda.copied(moved, tensor, waits=not no_wait)
        return moved

    def numpy(tensor: Tensor) -> Any:
        with cuda.lock:
            if cuda.lies_there(tensor):
                raise TypeError("can't convert cuda:0 device type tensor to numpy")
            cuda.access(HOST, [tensor], writes=False)
        return real.numpy(tensor)

    return {
        "device": property(device), "is_cuda": property(lambda tensor: device(tensor).type == "cuda"),
        "to": to, "cpu": lambda tensor: to(tensor, CPU), "cuda": lambda tensor: to(tensor, CARD), "numpy": numpy,
    }  # fmt: skip


def _of_cuda(cuda: NotedCard) -> dict[str, Any]:
    class Event:
        def __init__(self, **how: bool) -> None:
            self.clock: Clock = {}

        def record(self, stream: Stream | None = None) -> None:
            self.clock = cuda.clock_of(stream.name if stream else cuda.stream)

        def synchronize(self) -> None:
            cuda.wait("event", self.clock)

        def query(self) -> bool:
            return True

    class Stream:
        def __init__(self, device: torch.device | None = None, name: str = "") -> None:
            self.name = name or cuda.new_stream()

        def wait_event(self, event: Event) -> None:
            with cuda.lock:
                cuda.follows(self.name, event.clock)

        def wait_stream(self, other: Stream) -> None:
            with cuda.lock:
                cuda.follows(self.name, cuda.clock_of(other.name))

        def record_event(self) -> Event:
            event = Event()
            event.record(self)
            return event

        def synchronize(self) -> None:
            cuda.wait("stream", cuda.clock_of(self.name))

    @contextmanager
    def on(stream: Stream | None) -> Iterator[None]:
        before = cuda.stream
        cuda.stream = stream.name if stream else before
        yield
        cuda.stream = before

    def nothing(*given: object) -> None:
        """Nobody needs to know more of it."""

    def allocated(device: object = None) -> int:
        return cuda.allocated_bytes()

    return {
        "Stream": Stream, "Event": Event, "stream": on, "current_stream": lambda device=None: Stream(name=cuda.stream),
        "synchronize": lambda device=None: cuda.wait_for_all(), "set_device": _get_device_index,
        "is_available": lambda: True, "device_count": lambda: 1, "_lazy_init": nothing, "empty_cache": nothing,
        "is_bf16_supported": lambda including_emulation=True: including_emulation,
        "get_device_name": lambda device=None: "a fake",
        "mem_get_info": lambda device=None: (cuda.free_bytes, 24 << 30),
        "memory_reserved": allocated, "memory_allocated": allocated, "max_memory_allocated": allocated,
        "reset_peak_memory_stats": nothing, "set_rng_state": nothing,
        "get_rng_state": lambda device=None: torch.zeros(16, dtype=torch.uint8),
    }  # fmt: skip


def _from_data(real: Any) -> Any:
    def tensor(data: Any, *, device: torch.device | None = None, **how: Any) -> Tensor:
        made: Tensor = real(data, **how)
        return made if device is None else made.to(device)

    return tensor


def _grouped(real: Any) -> Any:
    """By the devices that tensors say they are on."""

    def group(tensors: Any, *more: Any, **how: Any) -> Any:
        return {(each[0][0].device, key[1]): (each, at) for key, (each, at) in real(tensors, *more, **how).items()}

    return group
