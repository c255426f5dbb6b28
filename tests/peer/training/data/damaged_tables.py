"""Damaged files, read one after the other:

python -m tests.peer.training.data.damaged_tables FOLDER SEED FILES

Each is a small file of rows in which some bytes are others. Each is inspected as text and as conversations, in FOLDER.
Ends with an error for anything but a line about it, and where one takes more than MOST_MB of memory. What pyarrow
itself does not bear ends the process by a signal.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pyarrow
import pyarrow.ipc
import pyarrow.parquet

from peer.training.data.inspection import inspect
from tests.peer.training.data.test_inspection import make_spec

MOST_MB = 200
WORDS = [f"{number} " * 50 for number in range(20)]
TALK = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
TABLE = pyarrow.table(
    {"text": WORDS, "messages": [TALK] * 20, "kind": pyarrow.array(["a", "b"] * 10).dictionary_encode()}
)
EDGES = (2**31 - 1, 2**40, 2**63 - 1, 2**64 - 1)


def whole_files() -> dict[str, bytes]:
    files = dict[str, bytes]()
    for compression in ("zstd", "lz4", None):
        sink, options = pyarrow.BufferOutputStream(), pyarrow.ipc.IpcWriteOptions(compression=compression)
        with pyarrow.ipc.new_file(sink, TABLE.schema, options=options) as writer:
            writer.write_table(TABLE)
        files[f"{compression}.arrow"] = bytes(sink.getvalue())
    for compression in ("zstd", "none"):
        sink = pyarrow.BufferOutputStream()
        pyarrow.parquet.write_table(TABLE, sink, compression=compression)
        files[f"{compression}.parquet"] = bytes(sink.getvalue())
    return files


def damaged(whole: bytes, chance: random.Random) -> bytes:
    found = bytearray(whole)
    for _ in range(chance.choice((1, 1, 2, 5))):
        at = chance.randrange(len(found))
        match chance.randrange(4):
            case 0:
                del found[at : at + chance.randrange(1, 20)]
            case 1:
                found[at : at + 8] = chance.choice(EDGES).to_bytes(8, "little")
            case _:
                found[at] = chance.randrange(256)
    return bytes(found)


def memory_mb(name: str) -> float:
    """Of this process: VmRSS now, VmHWM at most since `forget_peak`."""
    return int(Path("/proc/self/status").read_text().split(f"{name}:")[1].split()[0]) / 1024


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def main(folder: Path, seed: int, files: int) -> None:
    chance, whole = random.Random(seed), whole_files()
    for _ in range(files):
        name = chance.choice(sorted(whole))
        (folder / name).write_bytes(damaged(whole[name], chance))
        forget_peak()
        before = memory_mb("VmRSS")
        for kind in ("text", "chat"):
            for found in inspect(make_spec(format=kind), str(folder)):
                assert all(fault.isprintable() for fault in found.faults), found.faults
        grown = memory_mb("VmHWM") - before
        assert grown < MOST_MB, f"{name} took {grown:.0f} MB"
        (folder / name).unlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
