"""A process that reads a data set of the Hub as a peer does, from a server of its own: python -m ... FAULT FOLDER

Ends with an error where a fault of the server loses a token, repeats one, or has a file read again.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path

from tests.hub_server import HubServer, serving

FILES = 210
ROWS = 12
CONTEXT = 16
SHARDS = (0, 5, 63)
WINDOWS = 150
"""More than a pass over a shard."""
IN_SECOND_FILE = 85
PACKED = 60
"""Less than that by more than what is read again after a crash."""
FIRST_FILES = {"train-020.jsonl", "train-207.jsonl"}
"""Of the second and the third shard."""


def data_set() -> dict[str, bytes]:
    files = {}
    for file in range(FILES):
        rows = [json.dumps({"text": f"row {row} of file {file} " * 3}) for row in range(ROWS)]
        files[f"train-{file:03}.jsonl"] = "\n".join(rows).encode()
    return files


def main(fault: str, folder: Path) -> None:
    hub = HubServer({"datasets/some/set": data_set()})
    with serving(hub):
        os.environ.update(
            HF_ENDPOINT=hub.address, HF_HOME=str(folder / "hf"), HF_HUB_DOWNLOAD_TIMEOUT="1",
            HF_HUB_OFFLINE="0", HF_DATASETS_OFFLINE="0", HOMEFIRES_CACHE=str(folder / "sound"),
        )  # fmt: skip
        read(hub, fault, folder)


def read(hub: HubServer, fault: str, folder: Path) -> None:
    from peer import spec as specs
    from peer.data import hub_packs
    from peer.data.open_source import open_source
    from peer.data.source import Source

    data = {"source": "hub", "path": "some/set", "held_out_every": 10, "eval_sequences": 4}
    model = {"architecture": "llama", "context": CONTEXT}
    spec = specs.from_mapping({"run": {"name": "t"}, "model": model, "data": data})
    hub_packs.SAVE_EVERY = 100

    def windows(source: Source, count: int) -> list[list[list[int]]]:
        return [[source.window(shard, at).tolist() for at in range(count)] for shard in SHARDS]

    sound = open_source(spec)
    expected, held_out = windows(sound, WINDOWS), sound.held_out().tolist()

    os.environ["HOMEFIRES_CACHE"] = str(folder / "faulty")
    if fault:
        setattr(hub, fault, 5)
    begun = open_source(spec)
    assert windows(begun, IN_SECOND_FILE) == [found[:IN_SECOND_FILE] for found in expected]
    del begun
    gc.collect()

    resumed = open_source(spec)
    hub.reads.clear()
    assert windows(resumed, PACKED) == [found[:PACKED] for found in expected]
    assert not hub.reads, f"what is packed was read again: {hub.reads}"
    assert windows(resumed, WINDOWS) == expected
    assert not {path for path, _, _ in hub.reads} & FIRST_FILES, f"it began anew: {hub.reads}"
    assert resumed.held_out().tolist() == held_out
    del resumed
    gc.collect()

    again = open_source(spec)
    hub.reads.clear()
    assert windows(again, WINDOWS) == expected
    assert {path for path, _, _ in hub.reads} <= {"train-003.jsonl"}, f"a pass was read again: {hub.reads}"


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
