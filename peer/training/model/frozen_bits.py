"""The frozen matrices beside an adapter in 8 or 4 bits each, with a scale for 64 of them (arXiv:2305.14314, § 3).

Every operation is exact, or rounded once as IEEE 754 says, and what is packed is packed on the processor: all peers
have the same base to the bit, whatever they train on. bitsandbytes' kernels differ between devices.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from peer.schema.model_layers import TARGETS
from peer.schema.peak_memory import GROUP

# G = groups of 64 neighbouring values, N = tokens, I = inputs, O = outputs of a matrix

NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
"""Normal draws, divided by the largest of 64, are about equally often near each of these (appendix E)."""
PIECE = 1 << 16
"""Values that are copied at a time."""
LEAST = 1e-30
"""The smallest scale: values below are 0, and nothing is divided by 0."""
AT_ONCE = 1 << 16
"""Groups that are unpacked at a time, so that little more than the matrix in use is in memory."""


class Packing:
    """Gives the matrices of a model the form of `adapter.base`. Those of an adapter, and all beside the blocks, stay as
    they are."""

    def __init__(self, model: nn.Module, base: str) -> None:
        self._base = base
        is_packed = base in ("int8", "nf4")
        self.places = {id(matrix.weight): (parent, name) for parent, name, matrix in matrices_of(model) if is_packed}
        """Of each matrix that is packed: a module and the name in it, by the identity of the parameter."""

    def __call__(self, parameter: nn.Parameter, pieces: Iterable[tuple[int, Tensor]]) -> None:
        """Put these values, packed, in the place of the parameter, which needs no storage."""
        parent, name = self.places[id(parameter)]
        matrix = FrozenMatrix(getattr(parent, name), self._base)
        for at, piece in pieces:
            matrix.pack(at, piece)
        setattr(parent, name, matrix)


def pieces_of(values: npt.NDArray[np.float32]) -> Iterator[tuple[int, Tensor]]:
    """Values of a mapped file, each piece with its place. A larger copy would leave a hole in memory that the packed
    ones fill in part, so that the next one has no room."""
    for at in range(0, len(values), PIECE):
        yield at, torch.from_numpy(values[at : at + PIECE].astype(np.float32))


def matrices_of(model: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Linear]]:
    """The matrices of blocks, each with its place: a module and the name in it."""
    for parent in list(model.modules()):
        children = dict(parent.named_children())
        for name in children.keys() & {*TARGETS["all"]}:
            inside = dict(children[name].named_children())
            where, called, matrix = (
                (children[name], "base_layer", inside["base_layer"]) if inside else (parent, name, children[name])
            )
            if isinstance(matrix, nn.Linear):
                yield where, called, matrix


class FrozenMatrix(nn.Module):
    """A linear layer that is never trained."""

    packed: Tensor
    scales_G: Tensor
    pairs: Tensor
    """For each byte of `nf4` its two values."""

    def __init__(self, matrix: nn.Linear, base: str) -> None:
        """Of the shape of `matrix`, and with its bias; its values are not there yet."""
        super().__init__()
        self.in_features, self.out_features, self.bias = matrix.in_features, matrix.out_features, matrix.bias
        groups = -(-self.in_features * self.out_features // GROUP)
        is_bytes = base == "int8"
        packed = torch.empty(groups, GROUP if is_bytes else GROUP // 2, dtype=torch.int8 if is_bytes else torch.uint8)
        self.register_buffer("packed", packed, persistent=False)
        self.register_buffer("scales_G", torch.empty(groups), persistent=False)
        levels = torch.tensor(NF4, device=packed.device)
        self.register_buffer("pairs", torch.cartesian_prod(levels, levels).flip(1), persistent=False)

    def pack(self, at: int, values: Tensor) -> None:
        """Some of its values, row by row, from a place that is a multiple of 64."""
        groups = slice(at // GROUP, at // GROUP + -(-len(values) // GROUP))
        pack = _in_bytes if self.packed.dtype == torch.int8 else _in_halves
        padded = F.pad(values, (0, -len(values) % GROUP))
        self.packed[groups], self.scales_G[groups] = pack(padded.view(-1, GROUP))

    def forward(self, rows: Tensor) -> Tensor:
        shape = self.out_features, self.in_features
        out: Tensor = _Multiplied.apply(rows, self.packed, self.scales_G, self.pairs, shape)  # type: ignore[no-untyped-call]
        return out if self.bias is None else out + self.bias.to(out.dtype)

    def values(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """(O, I)"""
        return _values(self.packed, self.scales_G, self.pairs, (self.out_features, self.in_features), dtype)


def _in_bytes(values: Tensor) -> tuple[Tensor, Tensor]:
    scales_G = (values.abs().amax(1) / 127).clamp(min=LEAST)
    return (values / scales_G[:, None]).round().to(torch.int8), scales_G


def _in_halves(values: Tensor) -> tuple[Tensor, Tensor]:
    """The nearest of `NF4`; two to a byte, the first in the lower half."""
    scales_G = values.abs().amax(1).clamp(min=LEAST)
    between = torch.tensor([(low + high) / 2 for low, high in pairwise(NF4)])
    levels = torch.bucketize(values / scales_G[:, None], between, out_int32=True).to(torch.uint8)
    return levels[:, ::2] | levels[:, 1::2] << 4, scales_G


def _values(packed: Tensor, scales_G: Tensor, pairs: Tensor, shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
    out = torch.empty(len(scales_G), GROUP, dtype=dtype, device=packed.device)
    for at in range(0, len(scales_G), AT_ONCE):
        some = packed[at : at + AT_ONCE]
        levels = some.float() if some.dtype == torch.int8 else pairs[some.flatten().int()].view(-1, GROUP)
        out[at : at + AT_ONCE] = levels * scales_G[at : at + AT_ONCE, None]
    return out.flatten()[: shape[0] * shape[1]].view(shape)


class _Multiplied(torch.autograd.Function):
    """Rows times the matrix, which is unpacked for the product, and again for the gradient of the rows: never are two
    of them in memory."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, packed: Tensor, scales_G: Tensor, pairs: Tensor, shape: tuple[int, int]
    ) -> Tensor:
        kind = rows.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else rows.dtype
        ctx.save_for_backward(packed, scales_G, pairs)
        ctx.shape, ctx.dtype = shape, rows.dtype
        with torch.autocast(kind, enabled=False):
            return F.linear(rows.to(dtype), _values(packed, scales_G, pairs, shape, dtype))

    @staticmethod
    def backward(ctx: Any, by_out: Tensor) -> tuple[Tensor | None, ...]:
        packed, scales_G, pairs = ctx.saved_tensors
        by_rows = torch.matmul(by_out, _values(packed, scales_G, pairs, ctx.shape, by_out.dtype))
        return by_rows.to(ctx.dtype), None, None, None, None
