"""Conversations of many lengths in a folder, and specs of runs that read them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np

from peer.schema.spec import RunSpec
from peer.schema.spec_fields import MixTable

CONTEXT = 32


def write_talks(folder: Path, count: int = 400) -> list[int]:
    """Of lengths that are returned, the number of each in its answer: of 22 bytes and so many more, of which 3 to 6 are
    predicted."""
    folder.mkdir(parents=True, exist_ok=True)
    lengths: list[int] = np.random.default_rng(0).integers(0, 40, count).tolist()
    talks = [_talk("q" * length, f"({number})") for number, length in enumerate(lengths)]
    (folder / "talks.jsonl").write_text("".join(json.dumps({"messages": talk}) + "\n" for talk in talks))
    return lengths


def _talk(question: str, answer: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def on_talks(spec: RunSpec, folder: Path) -> RunSpec:
    """The same run on conversations that lie in `folder`."""
    write_talks(folder)
    return _with(spec, source="files", path=str(folder), format="chat", eval_sequences=32)


def on_talks_and_letters(spec: RunSpec, folder: Path) -> RunSpec:
    """The same run on a mix of conversations and of text, in folders of `folder`, which `data.path` names."""
    write_both(folder)
    talks = MixTable(name="talks", source="files", path="talks", format="chat")
    letters = MixTable(name="letters", source="files", path="letters", weight=2.0)
    return _with(spec, eval_sequences=32, path=str(folder), mix=(talks, letters))


def mixed_sets(folder: Path) -> tuple[str, ...]:
    """Assignments to keys of a spec by which its run reads that mix, which is in `folder` then."""
    write_both(folder)
    talks = "{name='talks', source='files', path='talks', format='chat'}"
    letters = "{name='letters', source='files', path='letters', weight=2.0}"
    return (f"data.path='{folder}'", f"data.mix=[{talks}, {letters}]")


def write_both(folder: Path) -> None:
    """Conversations and text, each in a folder of its own."""
    write_talks(folder / "talks")
    (folder / "letters").mkdir()
    letters = np.random.default_rng(1).integers(97, 123, size=(40, 3000), dtype=np.uint8)
    for number, row in enumerate(letters):
        (folder / "letters" / f"{number}.txt").write_bytes(row.tobytes())


def _with(spec: RunSpec, **data: Any) -> RunSpec:
    """With a context in which some of these conversations have room."""
    model = dataclasses.replace(spec.model, context=max(CONTEXT, spec.model.context))
    return dataclasses.replace(spec, model=model, data=dataclasses.replace(spec.data, **data))
