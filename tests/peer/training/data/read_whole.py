"""All documents of a file or a folder at once, as no peer reads them."""

from __future__ import annotations

from collections.abc import Iterator

from peer.training.data.conversations import conversations_of
from peer.training.data.data_shards import Document
from peer.training.data.documents import documents_of
from peer.training.data.reading.data_files import find_files, require_some
from peer.training.data.reading.file_rows import Findings


def read_files(path: str, text_field: str) -> Iterator[Document]:
    """In order of their names. Raises BadInput and BadSpec."""
    found = find_files(path)
    require_some(found, path)
    yield from documents_of(found, text_field, Findings())


def read_conversations(path: str, text_field: str) -> Iterator[Document]:
    """A document for every row. Raises BadInput with file and row, and BadSpec."""
    found = find_files(path).of_rows()
    require_some(found, path)
    yield from conversations_of(found, text_field, Findings())
