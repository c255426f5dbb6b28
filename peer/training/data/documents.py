"""Local files as documents: texts, and rows that contain one."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dht.errors import BadInput, BadSpec
from peer.schema.toml_tables import shortened
from peer.training.data.data_shards import Document
from peer.training.data.reading.data_files import FoundFiles
from peer.training.data.reading.file_rows import Findings, rows_of
from peer.training.data.reading.plain_text import content_of, text_of, without_surrogates

PIECE_CHARACTERS = 1 << 18
"""Longer texts are cut at line ends into pieces of about this size, so that one large file feeds many peers."""
LEAST_PIECE = 1 << 11
PIECES_WANTED = 128
"""Of files that have less, pieces are shorter: so some are held out, and many shards have one."""
FEW = 4
"""Times `data.held_out_every`: of fewer texts often none would be held out whole, so that pieces of them are."""


def is_whole(found: FoundFiles, held_out_every: int) -> bool:
    """Whether there are enough documents to hold out whole ones. A file of rows counts as many."""
    return len(found.files) >= FEW * held_out_every or any(file.kind != "text" for file in found.files)


def documents_of(found: FoundFiles, text_field: str, told: Findings, *, whole: bool = True) -> Iterator[Document]:
    """A text file is a document, and so is a row of any other file. Raises BadInput and BadSpec. `whole`: all pieces
    of a text are either held out or not."""
    size = piece_characters([file.size_bytes for file in found.files])
    for file in found.files:
        if file.kind != "text":
            for where, row in rows_of(file, text_field, told):
                try:
                    text = without_surrogates(_text_of(row, where, text_field))
                except BadSpec as error:
                    told.fault(error)
                    continue
                yield from _pieces(where, iter([text]), size, content_of(text) if len(text) > size else "", whole)
            continue
        try:
            scanned = told.scanned(file)
            with text_of(file, scanned.encoding) as text_file:
                content = scanned.content if scanned.characters > size else ""
                yield from _pieces(file.name, iter(lambda: text_file.read(2 * size), ""), size, content, whole)
        except BadInput as error:
            told.fault(error)


def piece_characters(sizes_bytes: Sequence[int]) -> int:
    """How long a piece of a text is, among files of these sizes."""
    if sum(max(1, size // PIECE_CHARACTERS) for size in sizes_bytes) >= PIECES_WANTED:
        return PIECE_CHARACTERS
    return max(LEAST_PIECE, min(PIECE_CHARACTERS, sum(sizes_bytes) // (4 * PIECES_WANTED)))


def _text_of(row: Any, where: str, text_field: str) -> str:
    """Raises BadSpec for a row without such a text, since nobody wants to learn its braces."""
    fields = row if isinstance(row, Mapping) else {}
    text = fields.get(text_field)
    if isinstance(text, str):
        return text
    if text is None and text_field in fields:
        return ""
    has = f"it has {shortened(', '.join(map(str, fields)))}" if fields else "it is no JSON object"
    if text_field in fields:
        has = f"it is {shortened(text)}"
    raise BadSpec(
        f"{where} has no text named {text_field!r}: {has}; say which with data.text_field, or for conversations "
        "data.format = 'chat'"
    )


def _pieces(name: str, text: Iterator[str], size: int, content: str, whole: bool) -> Iterator[Document]:
    """A text in pieces: cut after the first line that ends at `size` characters or later."""
    pending, number, ended = "", 0, False
    while True:
        while len(pending) < 2 * size and not ended:
            more = next(text, "")
            pending, ended = pending + more, not more
        if number == 0 and len(pending) <= size:
            yield Document(name, pending, content)
            return
        if not pending:
            return
        line_end = pending.find("\n", size, 2 * size)
        end = line_end + 1 if line_end > 0 else size
        yield Document(f"{name}#{number}", pending[:end], content, number, not whole)
        pending, number = pending[end:], number + 1


LEFT_OUT = frozenset({"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"})
"""Folders that are not read: tests are long and odd, the others are not the standard library."""


def standard_library(root: Path | None = None) -> Iterator[Document]:
    """Every Python file of the standard library, sorted by its path, which is its name."""
    base, names = library_files(root)
    for name in names:
        yield Document(name, (base / name).read_text(encoding="utf-8", errors="replace"))


def library_files(root: Path | None = None) -> tuple[Path, list[str]]:
    """The folder of the library, and what is read in it, in order."""
    root = root or Path(sysconfig.get_path("stdlib"))
    return root, sorted(_python_files(root))


def _python_files(root: Path) -> Iterator[str]:
    # Nine of ten files below a usual root lie in folders that are left out: those are never looked into.
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in LEFT_OUT]
        where = Path(folder).relative_to(root).as_posix()
        prefix = "" if where == "." else f"{where}/"
        yield from (f"{prefix}{name}" for name in files if name.endswith(".py"))
