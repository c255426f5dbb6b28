"""A corpus larger than the process that packs and reads it: python -m tests.peer.training.data.large_pack MEGABYTES
GROWTH

Ends with an error where the process grows by more than GROWTH megabytes, or the first window comes late. The bar's full
size is 2048 500, with room for three times as much in the cache.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

from peer.schema import spec as specs
from peer.training.data.document_tokens import TextEncoder
from peer.training.data.packs import PackSource, packed
from peer.training.data.source import Document
from peer.training.data.tokenizer import ByteTokenizer

PIECE = 1 << 18
FAR = 10_000_000


def documents(megabytes: int) -> Iterator[Document]:
    for number in range(megabytes * (1 << 20) // PIECE):
        yield Document(f"file{number}", f"{number:010}" + "x" * (PIECE - 11))


def peak_mb() -> float:
    """Of this process, in all its life."""
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1024


def main(megabytes: int, most_mb: int) -> None:
    model = {"architecture": "llama", "context": 128}
    data = {"eval_sequences": 8, "held_out_every": 100}
    spec = specs.from_mapping({"run": {"name": "t"}, "model": model, "data": data})
    before, began = peak_mb(), time.monotonic()
    source = PackSource(
        spec, lambda: packed("large", b"", lambda: documents(megabytes), TextEncoder(ByteTokenizer()), spec)
    )
    packed_s, began = time.monotonic() - began, time.monotonic()
    source.window(min(source.windows), FAR)
    first_s = time.monotonic() - began
    for at in range(64):
        for shard in source.windows:
            source.window(shard, FAR + at)
    source.held_out()
    grown_mb = peak_mb() - before
    print(f"{megabytes} MB packed in {packed_s:.1f} s; window {FAR} in {1000 * first_s:.1f} ms; grew {grown_mb:.0f} MB")
    if grown_mb > most_mb or first_s > 1:
        sys.exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
