"""Shards that are not alike: every peer reads whole folders of the text of its own, instead of a bit of everything.

A document's name decides by its hash who reads it, so documents are written to a folder under names that put
them where they are wanted. The product then reads that folder as it reads any other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from pathlib import Path

from peer.schema.spec import RunSpec
from peer.training.data.data_shards import Document, is_held_out, shard_of, shards_of
from peer.training.data.documents import piece_characters, standard_library
from tests.peer.training.data.read_whole import read_files


def dealt(spec: RunSpec, names: Sequence[str], folder: Path) -> RunSpec:
    """`spec` on the same documents, of which each of `names` reads a part of its own. They are written to `folder`."""
    documents = list(documents_of(spec))
    for document in renamed(documents, names, spec.data.held_out_every):
        path = folder / document.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(document.text, encoding="utf-8")
    return dataclasses.replace(spec, data=dataclasses.replace(spec.data, source="files", path=str(folder)))


def documents_of(spec: RunSpec) -> Iterable[Document]:
    """All documents of the spec's data, in order of their names."""
    if spec.data.source == "files":
        return read_files(spec.data.path, spec.data.text_field)
    assert spec.data.source == "stdlib", "a streamed data set has no parts"
    return standard_library()


def renamed(documents: Sequence[Document], names: Sequence[str], held_out_every: int) -> Iterator[Document]:
    """The documents, in the same order, under names that give them to their readers; what was held out stays so.

    The first of `names` reads the first documents, and so on, as many characters each as can be. Long ones come in
    pieces, before whoever reads them cuts them under names of its own.
    """
    total, before = sum(len(document.text) for document in documents), 0
    piece = piece_characters([len(document.text.encode()) for document in documents])
    owned = [frozenset(shards_of(name, names)) for name in names]
    for place, document in enumerate(documents):
        shards = owned[min(before * len(names) // max(1, total), len(names) - 1)]
        before += len(document.text)
        kept_out = is_held_out(document.name, held_out_every)
        for start in range(0, max(1, len(document.text)), piece):
            candidates = (f"{place:06}/{start:09}/{number}/{document.name}.txt" for number in count())
            name = next(
                name
                for name in candidates
                if is_held_out(name, held_out_every) == kept_out and (kept_out or shard_of(name) in shards)
            )
            yield Document(name, document.text[start : start + piece])
