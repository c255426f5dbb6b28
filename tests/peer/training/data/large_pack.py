"""Much text, packed and read by a process that is smaller than it:

python -m tests.peer.training.data.large_pack MEGABYTES GROWTH MB_PER_S

Half of the text is one file, the rest are files of 8 MB. Ends with an error where the process grows by more than GROWTH
megabytes, is slower than MB_PER_S, or a window far ahead comes late. The bar's full size is 2048 250 30, with room for
three times as much in the temporary folder and the cache.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from peer.schema import spec as specs
from peer.training.data.open_source import open_source

FILE_MB = 8
FAR = 10_000_000
FAR_S = 0.05
"""Of one that is far ahead, whose pass has an order that nothing has asked for."""


def write_texts(folder: Path, megabytes: int) -> None:
    lines = "".join(
        f"line {number:06} of some text, as long as lines are in books and code\n" for number in range(16_000)
    )
    piece = lines.encode()[: 1 << 20]
    sizes = [megabytes // 2, *[FILE_MB] * (megabytes // 2 // FILE_MB)]
    for number, size_mb in enumerate(sizes):
        with (folder / f"{number}.txt").open("wb") as file:
            for place in range(size_mb):
                file.write(f"{number} {place}\n".encode() + piece)


def peak_mb() -> float:
    """Of this process, in all its life."""
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1024


def main(megabytes: int, most_mb: int, least_mb_per_s: float, folder: Path) -> None:
    write_texts(folder, megabytes)
    model = {"architecture": "llama", "context": 128}
    data = {"source": "files", "path": "large", "eval_sequences": 8, "held_out_every": 100, "held_out_by": "content"}
    spec = specs.from_mapping({"run": {"name": "t"}, "model": model, "data": data})
    before, began = peak_mb(), time.monotonic()
    source = open_source(spec, str(folder))
    packed_s = time.monotonic() - began
    source.window(min(source.windows), 0)
    began = time.monotonic()
    source.window(min(source.windows), FAR)
    far_s = time.monotonic() - began
    for at in range(64):
        for shard in source.windows:
            source.window(shard, FAR + at)
    source.held_out()
    grown_mb, mb_per_s = peak_mb() - before, megabytes / packed_s
    print(
        f"{megabytes} MB packed at {mb_per_s:.0f} MB/s; window {FAR} in {1000 * far_s:.1f} ms; grew {grown_mb:.0f} MB"
    )
    if grown_mb > most_mb or mb_per_s < least_mb_per_s or far_s > FAR_S:
        sys.exit(1)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), Path(scratch))
