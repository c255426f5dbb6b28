"""A process that reads a data set of the Hub as a peer does, from a server of its own: python -m ... FOLDER FAULT...

Says as JSON, for each fault of the server ("" is none), what is wrong where it loses a token, repeats one, or has a
file read again; nothing if all is well.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tests.hub_server import HubServer, serving

if TYPE_CHECKING:
    from peer.schema.spec import RunSpec
    from peer.training.data.source import Source

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

Windows = list[list[list[int]]]


def data_set() -> dict[str, bytes]:
    files = {}
    for file in range(FILES):
        rows = [json.dumps({"text": f"row {row} of file {file} " * 3}) for row in range(ROWS)]
        files[f"train-{file:03}.jsonl"] = "\n".join(rows).encode()
    return files


def main(folder: Path, faults: Sequence[str]) -> None:
    hub = HubServer({"datasets/some/set": data_set()})
    with serving(hub):
        os.environ.update(
            HF_ENDPOINT=hub.address, HF_HOME=str(folder / "hf"), HF_HUB_DOWNLOAD_TIMEOUT="1",
            HF_HUB_OFFLINE="0", HF_DATASETS_OFFLINE="0", HOMEFIRES_CACHE=str(folder / "sound"),
        )  # fmt: skip
        print(json.dumps(read(hub, faults, folder)))


def read(hub: HubServer, faults: Sequence[str], folder: Path) -> dict[str, str]:
    from peer.schema import spec as specs
    from peer.training.data import hub_packs
    from peer.training.data.open_source import open_source

    data = {"source": "hub", "path": "some/set", "held_out_every": 10, "eval_sequences": 4}
    model = {"architecture": "llama", "context": CONTEXT}
    spec = specs.from_mapping({"run": {"name": "t"}, "model": model, "data": data})
    hub_packs.SAVE_EVERY = 100

    sound = open_source(spec)
    expected, held_out = windows(sound, WINDOWS), sound.held_out().tolist()
    said = {}
    for fault in faults:
        os.environ["HOMEFIRES_CACHE"] = str(folder / f"faulty {fault}")
        if fault:
            setattr(hub, fault, 5)
        try:
            expect(hub, spec, expected, held_out)
            said[fault] = ""
        except Exception:
            said[fault] = traceback.format_exc()
        if fault:
            setattr(hub, fault, 0)
    return said


def expect(hub: HubServer, spec: RunSpec, expected: Windows, held_out: list[list[int]]) -> None:
    """That each token comes once; a peer that begins anew reads on from where it was."""
    from peer.training.data.open_source import open_source

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


def windows(source: Source, count: int) -> Windows:
    return [[source.window(shard, at).tolist() for at in range(count)] for shard in SHARDS]


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
