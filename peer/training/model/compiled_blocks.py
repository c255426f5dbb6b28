"""The blocks of a model and its last norm compiled by torch, below the hooks that wait for their layers.

Each block's own forward is compiled, with one graph for all blocks of one kind. A graph holds for one shape: whoever
calls a compiled model keeps the number of rows. Compiled and plain blocks differ in their last bits (4e-7 of a loss).
The loss in chunks is compiled with them (`peer.training.model.net`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar, cast

import torch
from torch import nn

from peer.training.model.expert_balance import balance_coefficient

BACKEND = "inductor"
T = TypeVar("T")


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The longest list of modules of one type."""
    lists = (list(each) for each in model.modules() if isinstance(each, nn.ModuleList))
    return max((each for each in lists if len(set(map(type, each))) == 1), key=len, default=[])


def can_compile(model: nn.Module) -> bool:
    """Not a mixture of experts: hooks inside of its blocks collect the routers' outputs."""
    plain: Any = model.get_base_model() if hasattr(model, "get_base_model") else model  # type: ignore[operator]
    return not balance_coefficient(plain) and bool(blocks_of(model))


def compile_blocks(model: nn.Module) -> None:
    """Compiled from their next call on; the compiler runs in the first one, for some 20 s unless its cache has the
    graph."""
    for module in _compilable(model):
        plain: Any = type(module).forward
        module.forward = compiled(plain.__get__(module))


def compiled(function: Callable[..., T]) -> Callable[..., T]:
    """One graph for each shape, and an error for what is not one graph."""
    made: Any = torch.compile(function, fullgraph=True, dynamic=False, backend=BACKEND)
    return cast("Callable[..., T]", made)


def uncompile_blocks(model: nn.Module) -> None:
    for module in _compilable(model):
        vars(module).pop("forward", None)


def _compilable(model: nn.Module) -> Iterator[nn.Module]:
    """The blocks, and the norms beside their list: a norm takes several kernels, and compiled one."""
    blocks = blocks_of(model)
    yield from blocks
    for parent in model.modules():
        children = list(parent.children())
        if any(isinstance(child, nn.ModuleList) and list(child) == blocks for child in children):
            yield from (child for child in children if "norm" in type(child).__name__.lower())


def is_compiled(model: nn.Module) -> bool:
    return any("forward" in vars(block) for block in blocks_of(model))


def plain_blocks(model: nn.Module) -> AbstractContextManager[object]:
    """Inside, compiled blocks run as they were before: for other shapes, and without gradients."""
    return torch.compiler.set_stance("force_eager") if is_compiled(model) else nullcontext()


def is_of_compiler(error: BaseException) -> bool:
    """Whether the error says that a compiler is missing, or cannot compile the model."""
    exceptions = sys.modules.get("torch._dynamo.exc")  # not loaded before something is compiled
    return exceptions is not None and isinstance(error, exceptions.TorchDynamoException)
