"""Text, .jsonl and parquet files of this machine as documents."""

from __future__ import annotations

import json
import os
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dht.errors import BadInput, BadSpec
from peer.schema.toml_tables import shortened
from peer.training.data.source import Document

TEXT_SUFFIXES = frozenset(
    {".txt", ".text", ".md", ".rst", ".tex", ".html", ".xml", ".json", ".jsonl", ".csv", ".log"}
    | {".py", ".c", ".h", ".cc", ".cpp", ".hpp", ".rs", ".go", ".java", ".js", ".ts", ".sh", ".toml", ".yaml", ".yml"}
)
PIECE_CHARACTERS = 1 << 18
"""Longer texts are cut at line ends into pieces of about this size, so that one large file feeds many peers."""
LEAST_PIECE = 1 << 11
PIECES_WANTED = 128
"""Of files that have less, pieces are shorter: so some are held out, and many shards have one."""


def read_files(path: str, text_field: str) -> Iterator[Document]:
    """Documents of the file or folder at `path`, in order of their names. Raises BadInput and BadSpec.

    A text file is a document, and so is a row of a parquet file and a line of a .jsonl file.
    """
    base, names = named_files(path)
    piece = piece_characters([(base / name).stat().st_size for name in names])
    for file, name in ((base / name, name) for name in names):
        if file.suffix == ".parquet":
            for where, row in rows_of(file, name, text_field):
                yield from _pieces(where, row[text_field] or "", piece)
        elif file.suffix == ".jsonl":
            for where, row in json_lines(file, name):
                yield from _pieces(where, _text_of(row, where, text_field), piece)
        else:
            yield from _pieces(name, file.read_text(encoding="utf-8", errors="replace"), piece)


def piece_characters(sizes_bytes: Sequence[int]) -> int:
    """How long a piece of a text is, among files of these sizes."""
    if sum(max(1, size // PIECE_CHARACTERS) for size in sizes_bytes) >= PIECES_WANTED:
        return PIECE_CHARACTERS
    return max(LEAST_PIECE, min(PIECE_CHARACTERS, sum(sizes_bytes) // (4 * PIECES_WANTED)))


def json_lines(file: Path, name: str) -> Iterator[tuple[str, Any]]:
    """Name and value of each line, but for empty ones, of a file called `name`. Raises BadInput with file and line."""
    with file.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            if line.isspace():
                continue
            where = f"{name}:{number}"
            try:
                yield where, json.loads(line)
            except (ValueError, RecursionError) as error:
                raise BadInput(f"{where} is no JSON ({str(error)[:100]}); each line is a value of its own") from error


def _text_of(row: Any, where: str, text_field: str) -> str:
    """Raises BadSpec for a line that has no such text, in which nobody wants to learn the braces."""
    fields = row if isinstance(row, Mapping) else {}
    text = fields.get(text_field)
    if isinstance(text, str):
        return text
    has = f"it has {shortened(', '.join(map(str, fields)))}" if fields else "it is no JSON object"
    raise BadSpec(
        f"{where} has no text named {text_field!r}: {has}; say which with data.text_field, or for conversations "
        "data.format = 'chat'"
    )


def readable_files(path: str) -> Iterator[tuple[Path, str]]:
    """Text and parquet files at `path`, and what each is called there, in that order. Raises BadInput."""
    base, names = named_files(path)
    yield from ((base / name, name) for name in names)


def named_files(path: str) -> tuple[Path, list[str]]:
    """A folder, and the text and parquet files below it, in order. Raises BadInput where there is nothing.

    Hidden files, and files that are neither, are left out.
    """
    root = Path(os.path.expanduser(path))
    if not os.path.exists(root):  # without an error for a name that no file can have
        raise BadInput(
            f"settings.data_path is {path!r}, which is not on this machine; name a text or parquet file or a folder"
        )
    found = [root] if root.is_file() else sorted(file for file in root.rglob("*") if file.is_file())
    base = root.parent if root.is_file() else root
    readable = [file.relative_to(base) for file in found if _is_readable(file.relative_to(base))]
    if not readable:
        raise BadInput(f"settings.data_path is {path!r}, which holds no text or parquet file")
    names = [name.as_posix() for name in readable]
    for name in names:
        if any("\ud800" <= letter <= "\udfff" for letter in name):
            raise BadInput(f"settings.data_path is {path!r}; give {name[:200]!a} in it a name that is UTF-8 text")
    return base, names


def _is_readable(name: Path) -> bool:
    hidden = any(part.startswith(".") for part in name.parts)
    return not hidden and (name.suffix in TEXT_SUFFIXES or name.suffix == ".parquet")


def rows_of(file: Path, name: str, column: str | None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and values of each row of a parquet file called `name`: of one column, or of all. Raises BadSpec."""
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(file) as table:
            columns = table.schema_arrow.names
            if column is not None and column not in columns:
                raise BadSpec(f"data.text_field is {column!r}, no column of {name}; it has {', '.join(columns)}")
            number = 0
            for batch in table.iter_batches(batch_size=256, columns=None if column is None else [column]):
                for row in batch.to_pylist():
                    yield f"{name}#{number}", row
                    number += 1
    except pyarrow.ArrowInvalid as error:
        raise BadSpec(f"{name} is no parquet file ({str(error).splitlines()[0]}); remove or rename it") from error


def _pieces(name: str, text: str, size: int) -> Iterator[Document]:
    if len(text) <= size:
        yield Document(name, text)
        return
    start, number = 0, 0
    while start < len(text):
        line_end = text.find("\n", start + size, start + 2 * size)
        end = line_end + 1 if line_end > 0 else start + size
        yield Document(f"{name}#{number}", text[start:end])
        start, number = end, number + 1


LEFT_OUT = frozenset({"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"})
"""Folders that are not read: tests are long and odd, the others are not the standard library."""


def standard_library(root: Path | None = None) -> Iterator[Document]:
    """Every Python file of the standard library, sorted by its path, which is its name."""
    base, names = library_files(root)
    for name in names:
        yield Document(name, (base / name).read_text(encoding="utf-8", errors="replace"))


def library_files(root: Path | None = None) -> tuple[Path, list[str]]:
    """Its folder, and what is read below it, in order."""
    root = root or Path(sysconfig.get_path("stdlib"))
    return root, sorted(_python_files(root))


def _python_files(root: Path) -> Iterator[str]:
    # Nine of ten files below a usual root lie in folders that are left out: those are never looked into.
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in LEFT_OUT]
        where = Path(folder).relative_to(root)
        yield from ((where / name).as_posix() for name in files if name.endswith(".py"))
