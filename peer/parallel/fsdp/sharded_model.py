"""A model whose parameters are sharded over several ranks by FSDP2, in the planned way.

Each block is gathered by itself, and everything outside of blocks as one unit. `fully_shard` divides every parameter
along its first dimension, so that a rank's shard of it is one run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from peer.planning.plan.sharding_strategy import Sharding, ShardingStrategy
from peer.training.model.flat_parameters import FlatParameters


def shard(model: nn.Module, strategy: ShardingStrategy, device: torch.device, *, pins: bool = True) -> None:
    """Shard `model` in place, on or off `device`, over all ranks of the open process group.

    With `pins`, memory off a GPU is page-locked, which makes copies faster.
    """
    mesh = _mesh(strategy, device)
    policy: OffloadPolicy = OffloadPolicy()
    if strategy.offloads:
        policy = CPUOffloadPolicy(pin_memory=pins and device.type == "cuda")
    after: bool | int = strategy.group if strategy.kind is Sharding.HIERARCHICAL else True
    for block in blocks_of(model):
        fully_shard(block, mesh=mesh, reshard_after_forward=after, offload_policy=policy)
    # The root keeps what it gathered until the backward pass, which begins with it.
    fully_shard(model, mesh=mesh, reshard_after_forward=False, offload_policy=policy)


def _mesh(strategy: ShardingStrategy, device: torch.device) -> DeviceMesh:
    if strategy.shares == strategy.ranks:
        return init_device_mesh(device.type, (strategy.ranks,))
    copies = strategy.ranks // strategy.shares
    return init_device_mesh(device.type, (copies, strategy.shares), mesh_dim_names=("replicate", "shard"))


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The repeated modules, in model order."""
    return [model.get_submodule(layer.name) for layer in FlatParameters(model).layers if layer.is_block]


def fsdp_modules(model: nn.Module) -> Iterator[FSDPModule]:
    return (cast("FSDPModule", module) for module in model.modules() if isinstance(module, FSDPModule))


def forget_gathered(model: nn.Module) -> None:
    """Drop all gathered and second copies. Call it before anything except an optimizer changes a parameter.

    A forward pass without a backward pass leaves the second copies of `hierarchical` behind, and the next forward pass
    would gather from these even if the parameters have changed since.
    """
    for module in fsdp_modules(model):
        module.reshard()


def add_up_gradients(model: nn.Module, wanted: bool) -> None:
    """Whether the next backward pass adds up the gradients of ranks that hold copies of one share. If not, each keeps
    the sum of its own."""
    for module in fsdp_modules(model):
        module.set_requires_all_reduce(wanted, recurse=False)


def forget_gradients(model: nn.Module) -> None:
    """Also those that were not added up: of a step that was given up."""
    for parameter in model.parameters():
        parameter.grad = None
    for module in fsdp_modules(model):
        for group in module._get_fsdp_state()._fsdp_param_groups:
            group._partial_reduce_output = None


def has_gathered(module: FSDPModule) -> bool:
    """Whether the next pass over this module reads a gathered or second copy, and not the ranks' present shards."""
    return not all(group.is_sharded for group in module._get_fsdp_state()._fsdp_param_groups)


@torch.no_grad()
def lie_in(model: nn.Module, vectors: Sequence[Tensor]) -> None:
    """Move all parameters into these vectors, one float32 vector per layer. Only for a model that a single rank
    holds."""
    flat = FlatParameters(model)
    places = {
        id(parameter): vectors[number][where].view(parameter.shape)
        for number, members in enumerate(flat.members)
        for where, parameter in zip(flat.layer_slices(number), members, strict=True)
    }

    def moved(parameter: Tensor) -> Tensor:
        if id(parameter) not in places:
            return parameter
        return like(parameter, places[id(parameter)])

    model._apply(moved)  # type: ignore[no-untyped-call]


def like(parameter: Tensor, local: Tensor) -> Tensor:
    """`local` as this rank's shard of a tensor that is sharded as `parameter` is."""
    if not isinstance(parameter, DTensor):
        return local
    return DTensor.from_local(
        local, parameter.device_mesh, parameter.placements, run_check=False, shape=parameter.shape,
        stride=parameter.stride(),
    )  # fmt: skip


def held_by_rank(parameter: Tensor) -> tuple[slice, Tensor]:
    """This rank's shard of a parameter, flat, and its place in the parameter, in elements.

    The shard shares the memory that inner steps change.
    """
    if not isinstance(parameter, DTensor):
        return slice(0, parameter.numel()), parameter.detach().view(-1)
    local = parameter._local_tensor.detach().view(-1)
    _, offset = compute_local_shape_and_global_offset(parameter.shape, parameter.device_mesh, parameter.placements)
    row_elements = parameter.numel() // max(1, parameter.shape[0]) if parameter.dim() else 1
    first = offset[0] * row_elements if local.numel() else 0
    return slice(first, first + local.numel()), local


def owned_run(elements: int, copies: int, copy: int) -> slice:
    """The slice that one of several ranks with the same shard works on; together they cover all of it."""
    return slice(elements * copy // copies, elements * (copy + 1) // copies)
