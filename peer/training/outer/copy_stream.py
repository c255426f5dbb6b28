"""Copies between a device and main memory: through few pinned buffers, on a CUDA stream of this thread.

A GPU copies from pinned memory many times faster than from pageable memory (52 against 1.1 GB/s on one H100). torch
keeps the pinned buffers and reuses them once their copies are done.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from peer.consensus.codec.state_digest import CHUNK_BYTES, FLOAT32_BYTES
from peer.node.host.device import assert_index

CHUNK_ELEMENTS = CHUNK_BYTES // FLOAT32_BYTES
PIECE_ELEMENTS = 8 * CHUNK_ELEMENTS
"""What is copied at a time; the next piece is under way while one is read."""


@contextmanager
def on_copy_stream(device: torch.device) -> Iterator[None]:
    """Work that is queued inside follows everything queued before, and nothing later waits for it before the end of
    the block, when all of it is done. On a processor nothing happens."""
    if device.type != "cuda":
        yield
        return
    stream = _stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        yield
    stream.synchronize()


def host_chunks(vector: Tensor) -> Iterator[memoryview]:
    """A float32 vector's little-endian bytes, CHUNK_BYTES at a time; each is valid until the next is asked for."""
    for piece in _pieces_on_host(vector):
        for chunk in torch.split(piece, CHUNK_ELEMENTS):
            yield chunk.numpy().astype("<f4", copy=False).view("u1").data


def _pieces_on_host(vector: Tensor) -> Iterator[Tensor]:
    if vector.device.type != "cuda":
        yield vector.cpu()
        return
    stream = _stream(vector.device)
    stream.wait_stream(torch.cuda.current_stream(vector.device))
    under_way: list[tuple[Tensor, torch.cuda.Event]] = []
    for piece in torch.split(vector, PIECE_ELEMENTS):
        with torch.cuda.stream(stream):
            buffer = torch.empty(len(piece), pin_memory=True).copy_(piece, non_blocking=True)
        under_way.append((buffer, stream.record_event()))
        if len(under_way) > 1:
            yield _arrived(*under_way.pop(0))
    yield from (_arrived(*each) for each in under_way)


def octets_on_host(octets: Tensor) -> bytes:
    """The bytes of a uint8 tensor, wherever it lies."""
    if octets.device.type != "cuda":
        return octets.cpu().numpy().tobytes()
    buffer = torch.empty(octets.numel(), dtype=torch.uint8, pin_memory=True).copy_(octets, non_blocking=True)
    return _arrived(buffer, torch.cuda.current_stream(octets.device).record_event()).numpy().tobytes()


def octets_on(payload: bytes, device: torch.device) -> Tensor:
    """Those bytes as a uint8 tensor on the device, ready for what the present stream does next."""
    octets = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
    return octets if device.type == "cpu" else upload(octets, device)


def upload(values: Tensor, device: torch.device) -> Tensor:
    """A copy on the device of values in main memory, ready for what the present stream does next."""
    if device.type != "cuda":
        return values.to(device)
    there = torch.empty(values.shape, dtype=values.dtype, device=device)
    copy_over(values, there)
    return there


def copied(tensor: Tensor, device: torch.device) -> Tensor:
    """The same bits in other memory; there as `copy_over` says."""
    tensor = tensor.detach()
    if tensor.device.type == device.type or not tensor.is_contiguous():
        return tensor.to(device, copy=True)
    made = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
    copy_over(tensor, made)
    return made


def copy_over(values: Tensor, into: Tensor) -> None:
    """As `into.copy_(values)`, for equal shapes and contiguous tensors. A copy to a device is ready for what the
    present stream does next; a copy from one has ended when this returns."""
    to_device = into.device.type == "cuda"
    if to_device == (values.device.type == "cuda"):
        into.copy_(values)
        return
    under_way: list[tuple[Tensor, torch.cuda.Event, Tensor]] = []
    for piece, place in zip(*(torch.split(each.view(-1), PIECE_ELEMENTS) for each in (values, into)), strict=True):
        buffer = torch.empty(len(piece), dtype=piece.dtype, pin_memory=True).copy_(piece, non_blocking=not to_device)
        if to_device:
            place.copy_(buffer, non_blocking=True)
        stream = torch.cuda.current_stream(into.device if to_device else values.device)
        under_way.append((buffer, stream.record_event(), place))
        if len(under_way) > 1:  # few buffers
            _end_piece(*under_way.pop(0), to_device=to_device)
    if not to_device:
        _end_piece(*under_way.pop(), to_device=False)


def _end_piece(buffer: Tensor, end: torch.cuda.Event, place: Tensor, *, to_device: bool) -> None:
    arrived = _arrived(buffer, end)
    if not to_device:
        place.copy_(arrived)


def _arrived(buffer: Tensor, end: torch.cuda.Event) -> Tensor:
    end.synchronize()
    return buffer


def _stream(device: torch.device) -> torch.cuda.Stream:
    assert_index(device)
    if not hasattr(_OWN, "streams"):
        _OWN.streams = {}
    streams: dict[torch.device, torch.cuda.Stream] = _OWN.streams
    if device not in streams:
        streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    return streams[device]


_OWN = threading.local()
