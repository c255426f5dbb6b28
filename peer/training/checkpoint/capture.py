"""Reads the tensors of a checkpoint while the peer goes on training: nothing is copied before somebody changes it.

A thread reads piece after piece, first what inner steps change. Code that is about to change tensors says so
(`before_step`, `before_move`) and continues once none of them is still to be read in place: most have been read by
then. The rest is copied where memory allows, and waited for otherwise.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from peer.consensus.codec.state_digest import FLOAT32_BYTES
from peer.node.host.device import assert_index, free_bytes
from peer.node.host.processes import available_bytes
from peer.training.checkpoint.layer_state import derived_start
from peer.training.checkpoint.tensor_file import DTYPES, TensorEntry
from peer.training.outer.copy_stream import CHUNK_ELEMENTS, copied, host_chunks
from peer.training.outer.layer_tensors import LayerTensors, Origin

CPU = torch.device("cpu")
READ_ELEMENTS = 16 * CHUNK_ELEMENTS
"""Read at a time: so long whoever is about to change something waits at least."""
HOST_COPY_BYTES = 256 << 20
"""No more is copied in main memory: a copy of a large model would be what this is there to avoid."""
SPARE = 3
"""It is copied where so many times its size is available in main memory."""
DEVICE_SPARE_BYTES = 512 << 20
"""So much more than a copy takes is free on a device that gets one: activations come back to it."""
LOOK_S = 1.0


@dataclass(eq=False, kw_only=True)
class Piece:
    """One tensor of a checkpoint, flat float32, made of tensors that follow one another."""

    name: str
    shape: tuple[int, ...]
    sources: list[Tensor]
    """Sources that were read are removed, so that a copy of them is freed."""
    moves: bool = False
    """Whether inner steps change it."""
    is_safe: bool = False
    """Whether its sources are copies that nobody changes."""

    @property
    def entry(self) -> TensorEntry:
        return TensorEntry(name=self.name, shape=self.shape)

    @property
    def size_bytes(self) -> int:
        """Still to be read."""
        return FLOAT32_BYTES * sum(source.numel() for source in self.sources)


@dataclass(eq=False, kw_only=True)
class LayerCapture:
    """One layer with its optimizer state."""

    theta: Tensor
    local: Piece
    start: Piece | None
    residual: Piece
    optimizer: list[Piece]
    sparse: bool
    anchor: list[Piece]
    """θ and m, if nothing else on this disk determines them."""

    @classmethod
    def of(
        cls, t: LayerTensors, optimizer: Mapping[str, Tensor], *, sparse: bool, copied: bool = False,
        with_anchor: bool = False,
    ) -> LayerCapture:  # fmt: skip
        """`copied`: nobody changes parameters and `optimizer` as they are given here."""
        whole, parameters = tuple(t.residual.shape), [parameter for _, parameter in t.local]
        start: Piece | None = None
        if t.start is Origin.KEPT:
            start = Piece(name="start", shape=whole, sources=[t.kept])
        elif t.start is Origin.AT_PARAMETERS:
            start = Piece(name="start", shape=whole, sources=list(parameters), moves=True, is_safe=copied)
        return cls(
            theta=t.theta,
            local=Piece(name="local", shape=whole, sources=parameters, moves=True, is_safe=copied),
            start=start,
            residual=Piece(name="residual", shape=whole, sources=[t.residual]),
            optimizer=[
                Piece(
                    name=name,
                    shape=tuple(value.shape),
                    sources=[value.detach().reshape(-1)],
                    moves=True,
                    is_safe=copied,
                )
                for name, value in optimizer.items()
            ],
            sparse=sparse,
            anchor=[
                Piece(name=name, shape=whole, sources=[vector])
                for name, vector in (("theta", t.theta), ("momentum", t.momentum))
                if with_anchor
            ],
        )

    @property
    def pieces(self) -> list[Piece]:
        """In the order in which they are read and stored."""
        still = [self.residual] if self.start is None else [self.start, self.residual]
        return [*self.optimizer, self.local, *still, *self.anchor]


class Capture:
    """A checkpoint that is to be written."""

    def __init__(
        self, *, state: Mapping[str, Any], layers: Sequence[LayerCapture], rest: Mapping[str, Tensor],
        device: torch.device,
    ) -> None:  # fmt: skip
        """`rest` belongs to no layer, and does not change any more."""
        assert_index(device)
        self.state, self.layers, self.rest = state, tuple(layers), rest
        self.waited_s = 0.0
        """How long others have waited for it, in all."""
        self._device = device
        self._lock = threading.Condition()
        self._decided = self._has_ended = False
        self._buffer = np.empty(READ_ELEMENTS * FLOAT32_BYTES, np.uint8)
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # what the threads so far have queued is part of it

    @property
    def most_bytes(self) -> int:
        """The most that it takes on disk: if little follows from the anchor."""
        return sum(piece.size_bytes for layer in self.layers for piece in layer.pieces if piece is not layer.start)

    @property
    def has_ended(self) -> bool:
        return self._has_ended

    # ---- by the thread that writes ----

    @contextmanager
    def being_read(self) -> Iterator[None]:
        """The context of all calls below. On a GPU, copies have a stream of their own and need not wait for training
        that is queued meanwhile."""
        try:
            with _aside(self._device):
                yield
        finally:
            with self._lock:
                self._has_ended = True
                for piece in self._pieces():
                    piece.sources.clear()
                self._lock.notify_all()

    @torch.no_grad()
    def decide(self, layer: LayerCapture) -> list[TensorEntry]:
        """Decide which tensors of a layer are stored."""
        if layer.start is not None and self._is_derived(layer, layer.start):
            self._forget(layer.start)
            layer.start = None
        if self._is_derived(layer, layer.local) if layer.start is None else self._is_same(layer.local, layer.start):
            self._forget(layer.local)
        pieces = [piece for piece in layer.pieces if piece.sources]
        return [piece.entry for piece in pieces]

    def moving(self, layer: LayerCapture) -> Iterator[memoryview]:
        """The bytes of what inner steps change, in order; each chunk is valid until the next is asked for."""
        for piece in layer.pieces:
            if piece.moves:
                yield from self._read(piece)

    def all_decided(self) -> None:
        """From here on nothing reads θ any more."""
        with self._lock:
            self._decided = True
            self._lock.notify_all()

    def staying(self, layer: LayerCapture) -> Iterator[memoryview]:
        """The bytes of the rest of a layer, likewise."""
        for piece in layer.pieces:
            if not piece.moves:
                yield from self._read(piece)

    def _read(self, piece: Piece) -> Iterator[memoryview]:
        at = 0
        while piece.sources:
            with self._lock:
                source = piece.sources[0]
                end_bytes = self._fill(source[at : at + READ_ELEMENTS])
                at += READ_ELEMENTS
                if at >= source.numel():
                    at = 0
                    del piece.sources[0]
                    self._lock.notify_all()
            yield self._buffer.data[:end_bytes]

    def _fill(self, vector: Tensor) -> int:
        """Fill the buffer with these values; returns the number of bytes."""
        at = 0
        for chunk in host_chunks(vector.float()):
            self._buffer[at : at + len(chunk)] = np.frombuffer(chunk, np.uint8)
            at += len(chunk)
        return at

    def _is_derived(self, layer: LayerCapture, piece: Piece) -> bool:
        residual = layer.residual.sources[0]
        return self._equals(piece, lambda some: derived_start(layer.theta[some], residual[some], sparse=layer.sparse))

    def _is_same(self, piece: Piece, other: Piece) -> bool:
        return other.moves or self._equals(piece, lambda some: other.sources[0][some])

    def _equals(self, piece: Piece, expected: Callable[[slice], Tensor]) -> bool:
        """Whether it has these bits, in its own dtype. Ends at the first chunk that differs."""
        first = 0
        for number in range(len(piece.sources)):
            elements = piece.sources[number].numel()
            for at in range(0, elements, READ_ELEMENTS):
                end = min(at + READ_ELEMENTS, elements)
                with self._lock:
                    here = copied(piece.sources[number][at:end], CPU)
                    there = copied(expected(slice(first + at, first + end)), CPU).to(here.dtype)
                    if not _same_bits(here, there):
                        return False
            first += elements
        return True

    def _forget(self, piece: Piece) -> None:
        with self._lock:
            piece.sources.clear()

    # ---- by whoever changes tensors ----

    def before_step(self) -> None:
        """Inner steps are about to change parameters and what the optimizers remember."""
        self._secure(lambda: [piece for piece in self._pieces() if piece.moves])

    def before_move(self) -> None:
        """All of it, and θ, is about to change."""
        self._secure(self._pieces, anchor=True)

    def before_leaving(self) -> None:
        """The device is about to be given to others: no copy may lie there."""
        with self._lock:
            for piece in self._pieces():
                if piece.is_safe and any(source.device == self._device for source in piece.sources):
                    piece.is_safe = False
        self._secure(lambda: [piece for piece in self._pieces() if piece.moves], host_only=True)

    def before_copies_change(self) -> None:
        """The given copies are about to be copied anew: all of them must have been read."""
        with self._lock:
            while not self._has_ended:
                self._lock.wait(LOOK_S)

    def _secure(self, of: Callable[[], list[Piece]], *, anchor: bool = False, host_only: bool = False) -> None:
        began_at = time.monotonic()
        with self._lock:
            while not self._has_ended:
                exposed = [piece for piece in of() if piece.sources and not piece.is_safe]
                has_decided = self._decided or not anchor
                if has_decided and (not exposed or self._copy(exposed, host_only=host_only)):
                    break
                self._lock.wait(LOOK_S)
        self.waited_s += time.monotonic() - began_at

    def _copy(self, pieces: Sequence[Piece], *, host_only: bool) -> bool:
        """Whether there was memory for all of them."""
        size_bytes = sum(piece.size_bytes for piece in pieces)
        place = self._place_for(size_bytes, host_only=host_only)
        if place is None:
            return False
        for piece in pieces:
            piece.sources = [copied(source, place) for source in piece.sources]
            piece.is_safe = True
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)  # another stream reads the copies
        return True

    def _place_for(self, size_bytes: int, *, host_only: bool) -> torch.device | None:
        if not host_only and free_bytes(self._device) >= size_bytes + DEVICE_SPARE_BYTES:
            return self._device
        # Whoever leaves a device has to copy what lies there anyway, and its owner waits.
        if (host_only or size_bytes <= HOST_COPY_BYTES) and available_bytes() >= SPARE * size_bytes:
            return CPU
        return None

    def _pieces(self) -> list[Piece]:
        return [piece for layer in self.layers for piece in layer.pieces]


def _same_bits(one: Tensor, other: Tensor) -> bool:
    kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[one.element_size()]
    return torch.equal(one.contiguous().view(kind), other.contiguous().view(kind))


def _aside(device: torch.device) -> AbstractContextManager[object]:
    return torch.cuda.stream(torch.cuda.Stream(device)) if device.type == "cuda" else nullcontext()  # type: ignore[no-untyped-call]


def entry_of(name: str, tensor: Tensor) -> TensorEntry:
    """Of a tensor of any kind."""
    return TensorEntry(name=name, shape=tuple(tensor.shape), dtype=DTYPES[str(tensor.dtype)])


def bytes_of(tensor: Tensor) -> bytes:
    """Little-endian, as every machine that torch runs on has them."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
