"""The matrix of a model whose first and last layer are one, in two homes of a cluster.

The first stage trains it, as part of the first layer, so digests, contributions and shares are those of a whole peer,
which counts it once. The last stage has a copy, which gets the first stage's values before every step, and whose
gradient is added to that of the first stage after all flights. So both are updated alike, and moments exist once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from peer.parallel.pipeline.activation_codec import BadActivations, decode_activations, encode_activations
from peer.parallel.pipeline.flight_messages import GradientRows, RowsHere

# V = vocabulary, H = width

PIECE_ELEMENTS = 1 << 18
"""The elements of a piece, in whole rows: 1 MiB as float32. A line of 1 Mbit/s carries its int8 in two seconds."""
PIECES_AT_ONCE = 4
"""The pieces under way at a time: with int8 as much as 100 Mbit/s carry in 80 ms."""
Rows = TypeVar("Rows", RowsHere, GradientRows)


class TiedMatrix:
    """One of the two copies, in pieces of whole rows that have numbers."""

    def __init__(self, matrix_VH: Tensor, wire: str) -> None:
        """Gradients travel as hidden values do; values travel as bfloat16 at least, which is what a product in bfloat16
        rounds them to."""
        self._matrix_VH, self._wire = matrix_VH.requires_grad_(), wire
        self._wire_of_values = "float32" if wire == "float32" else "bfloat16"
        self._rows = max(1, PIECE_ELEMENTS // matrix_VH.shape[1])
        self.pieces = math.ceil(len(matrix_VH) / self._rows)

    def _piece(self, number: int) -> slice:
        return slice(number * self._rows, (number + 1) * self._rows)

    def values(self, number: int) -> bytes:
        return encode_activations(self._matrix_VH[self._piece(number)], self._wire_of_values)

    @torch.no_grad()
    def write(self, number: int, values: bytes) -> bool:
        """Whether the values of a piece fit, and have taken the place of the present ones."""
        rows_VH = self._matrix_VH[self._piece(number)]
        if not rows_VH.numel():
            return False
        try:
            rows_VH.copy_(decode_activations(values, tuple(rows_VH.shape), self._wire_of_values, rows_VH.device))
        except BadActivations:
            return False
        return True

    def gradient(self, number: int) -> bytes:
        grad_VH = self._matrix_VH.grad
        rows_VH = self._matrix_VH[self._piece(number)]
        return encode_activations(
            torch.zeros_like(rows_VH) if grad_VH is None else grad_VH[self._piece(number)], self._wire
        )

    @torch.no_grad()
    def add_gradient(self, number: int, values: bytes) -> None:
        """Raises BadActivations."""
        if self._matrix_VH.grad is None:
            self._matrix_VH.grad = torch.zeros_like(self._matrix_VH)
        rows_VH = self._matrix_VH.grad[self._piece(number)]
        rows_VH += decode_activations(values, tuple(rows_VH.shape), self._wire, rows_VH.device)

    def forget(self) -> None:
        """Drop the gradient."""
        self._matrix_VH.grad = None


def exchanged(pieces: int, ask: Callable[[int], None], hear: Callable[[Sequence[int]], Rows]) -> Iterator[Rows]:
    """One answer for each piece, some of which are under way at a time. `hear` returns the next answer about one of
    those that are waited for, the longest first.

    Frames keep their order. So what was asked before something that is answered, and is not, was lost.
    """
    waiting: list[int] = []
    asked = 0
    while waiting or asked < pieces:
        while asked < pieces and len(waiting) < PIECES_AT_ONCE:
            ask(asked)
            waiting.append(asked)
            asked += 1
        answer = hear(tuple(waiting))
        at = waiting.index(answer.number)
        lost = waiting[:at]
        waiting = waiting[at + 1 :] + lost
        for number in lost:
            ask(number)
        yield answer
