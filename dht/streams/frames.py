"""A frame on a stream: a length, checked before memory is allocated, and then bytes that must keep coming."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress

from dht.streams.shaper import CHUNK_BYTES

HEADER_BYTES = 4
PROGRESS_BYTES = 4 * 2**10
"""Least that keeps a stream alive: a sender whose line is slow and shared by many is not cut off."""
SLOWEST_BYTES_PER_S = 4096.0
"""A line of 0.5 Mbit/s that fifteen share."""


class OversizeError(ValueError):
    """A header announced more bytes than the cap."""


Take = Callable[[int], Awaitable[None]]
"""Called with a number of bytes; returns when they may pass."""


async def pass_all(size_bytes: int) -> None:
    """The `Take` of a line without a limit."""


async def read_frame(
    reader: asyncio.StreamReader,
    cap_bytes: int,
    progress_timeout_s: float,
    take: Take = pass_all,
    slowest_bytes_per_s: float = SLOWEST_BYTES_PER_S,
) -> bytes:
    """The next frame; it waits for the header without a limit, and for the content as `read_content` does. Raises
    EOFError, TimeoutError, OSError, or OversizeError before memory is allocated."""
    size = await read_size(reader, cap_bytes)
    return await read_content(reader, size, progress_timeout_s, take, slowest_bytes_per_s)


async def read_size(reader: asyncio.StreamReader, cap_bytes: int) -> int:
    """The header of a frame. Raises EOFError, OSError, or OversizeError."""
    size = int.from_bytes(await reader.readexactly(HEADER_BYTES), "big")
    if size > cap_bytes:
        raise OversizeError(f"a frame of {size} bytes; at most {cap_bytes} are allowed")
    return size


async def read_content(
    reader: asyncio.StreamReader,
    size: int,
    progress_timeout_s: float,
    take: Take = pass_all,
    slowest_bytes_per_s: float = SLOWEST_BYTES_PER_S,
) -> bytes:
    """The bytes of a frame, as long as they keep coming and are fast enough. Time spent in `take` does not count,
    since then we do not read. Raises EOFError, TimeoutError, OSError."""
    now = asyncio.get_running_loop().time
    content = bytearray()  # pieces would cost more than what is in them, if they are small
    left_s = progress_timeout_s + size / slowest_bytes_per_s
    unpaid = HEADER_BYTES
    while len(content) < size:
        before, began = len(content), now()
        await _read_some(reader, content, size, min(progress_timeout_s, left_s))
        left_s -= now() - began
        await take(unpaid + len(content) - before)
        unpaid = 0
    await take(unpaid)
    return bytes(content)


async def _read_some(reader: asyncio.StreamReader, content: bytearray, size: int, timeout_s: float) -> None:
    """Add the bytes of a frame that have arrived, once they are enough to count as progress."""
    enough = min(size, len(content) + PROGRESS_BYTES)
    async with asyncio.timeout(timeout_s):
        while len(content) < enough:
            piece = await reader.read(min(size - len(content), CHUNK_BYTES))
            if not piece:
                raise EOFError("the stream ended within a frame")
            content += piece


# ---- the other end ----


def in_chunks(frames: Sequence[bytes | bytearray], size: int, chunk_bytes: int) -> Iterator[list[bytes | memoryview]]:
    """The pieces to write: frames that fit together, or one frame piece by piece, without copying it. `size` is that
    of all frames with their headers."""
    if size <= chunk_bytes:
        yield [b"".join(part for frame in frames for part in (len(frame).to_bytes(HEADER_BYTES, "big"), frame))]
        return
    (frame,) = frames
    view, start = memoryview(frame), chunk_bytes - HEADER_BYTES
    yield [len(frame).to_bytes(HEADER_BYTES, "big"), view[:start]]
    for offset in range(start, len(frame), chunk_bytes):
        yield [view[offset : offset + chunk_bytes]]


async def read_to_end(reader: asyncio.StreamReader) -> None:
    """Nothing that counts comes back on an outgoing stream, however much it is; an error ends it, too."""
    with suppress(OSError):
        while await reader.read(CHUNK_BYTES):
            continue


def require_open(writer: asyncio.StreamWriter) -> None:
    """Raises ConnectionResetError if the stream was closed meanwhile, since uvloop's `write` would raise
    RuntimeError."""
    if writer.is_closing():
        raise ConnectionResetError("the stream was closed")
