"""Rows of data files: lines of JSON, JSON arrays, CSV, parquet and Arrow. A row has a bounded size, or is refused.

Readers report what is wrong with a row to a `Findings` and continue behind it, so that all faults of a folder are found
at once.
"""

from __future__ import annotations

import csv
import json
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from dht.errors import BadInput, BadSpec
from peer.schema.events import printable
from peer.schema.extras import require_extra
from peer.training.data.reading.arrow_buffers import unpacked_bytes
from peer.training.data.reading.data_files import DataFile
from peer.training.data.reading.parquet_pages import RowGroup, pages_of, row_groups
from peer.training.data.reading.plain_text import PIECE, RATIO, RATIO_FREE_BYTES, ScannedText, opened, scan, text_of

MOST_ROW = 8 << 20
"""Characters of a row in text, and bytes of a cell in a table; JSON may take twenty times as much once it is read."""
ROWS = 256
"""Of a table that are read at a time, where they are small."""
ROWS_BYTES = 64 << 20
"""Those of a table that are read at a time come to no more."""
KEYS = ("messages", "conversations")
"""Of a conversation's messages, where a run names no other."""
MOST_PAGE = 128 << 20
"""Bytes of a page of a parquet file, or a packed batch of an Arrow file, which is in memory as a whole. Most writers
end a page at 1 MiB."""
MOST_VALUES = 1 << 20
"""Of a row in a table, in all that is nested in it."""
MOST_FAULTS = 1000
"""Faults that are kept; the others are counted."""
ALIKE = 3
"""Of those that differ in numbers alone so many are kept: the rows of one file do not hide what others have."""
NUMBERS = re.compile(r"[0-9]+")
ARROW_FILE = b"ARROW1"
"""Begins one; from `ARROW_STREAM` on it is a stream, and only its end differs."""
ARROW_STREAM = 8
LARGE = f"is larger than {MOST_ROW >> 20} MiB; cut its text into several"


@dataclass
class Findings:
    """What readers report beside documents."""

    raises: bool = True
    """The first fault ends the reading."""
    faults: list[str] = field(default_factory=list)
    more_faults: int = 0
    """Beyond those in `faults`."""
    kinds: Counter[str] = field(default_factory=Counter)
    """How many faults there were of each text without its numbers."""
    encodings: dict[str, str] = field(default_factory=dict)
    """Of files that were converted, by name."""

    def fault(self, error: BadInput) -> None:
        if self.raises:
            raise error
        kind = NUMBERS.sub("", str(error))
        if self.kinds[kind] < ALIKE and len(self.faults) < MOST_FAULTS:
            self.kinds[kind] += 1
            self.faults.append(str(error))
        else:
            self.more_faults += 1

    def scanned(self, file: DataFile, *, hashed: bool = True) -> ScannedText:
        """Raises BadInput."""
        found = scan(file, hashed=hashed)
        if found.encoding != "utf-8":
            self.encodings[file.name] = found.encoding
        return found


def rows_of(file: DataFile, column: str | None, told: Findings) -> Iterator[tuple[str, Any]]:
    """Name and value of each row; for a table, of one column alone, or of all."""
    try:
        if file.kind in ("parquet", "arrow"):
            yield from _table_rows(file, column, told)
            return
        with text_of(file, told.scanned(file, hashed=False).encoding) as text:
            if file.kind == "csv":
                yield from _csv_rows(file.name, text, column, told)
            else:
                yield from (_json_lines if file.kind == "lines" else _json_values)(file.name, text, told)
    except BadInput as error:  # of the file as a whole
        told.fault(error)


# ---- text ----


def _lines(name: str, text: TextIO, told: Findings) -> Iterator[tuple[int, str]]:
    """Each with its number, but for those that are too long."""
    number = 0
    while line := text.readline(MOST_ROW):
        number += 1
        if len(line) == MOST_ROW and not line.endswith("\n"):
            while (rest := text.readline(PIECE)) and not rest.endswith("\n"):
                pass
            told.fault(BadInput(f"{name}:{number} {LARGE}"))
            continue
        yield number, line


def _json_lines(name: str, text: TextIO, told: Findings) -> Iterator[tuple[str, Any]]:
    for number, line in _lines(name, text, told):
        if line.isspace():
            continue
        where = f"{name}:{number}"
        try:
            yield where, json.loads(line)
        except (ValueError, RecursionError) as error:
            why = str(error)[:100]
            told.fault(BadInput(f"{where} is no JSON ({why}); each line is a value of its own"))


def _json_values(name: str, text: TextIO, told: Findings) -> Iterator[tuple[str, Any]]:
    """Those of an array, or one behind the other."""
    decoder, number, pending, at, more = json.JSONDecoder(), 0, "", 0, True
    between, is_open = BETWEEN_VALUES, False
    while True:
        begins_at, at = at, _behind(between, pending, at)
        is_open = is_open and "]" not in pending[begins_at:at]
        if number == 0 and between is BETWEEN_VALUES and pending.startswith("[", at):
            between, at, is_open = BETWEEN_ELEMENTS, at + 1, True
            continue
        try:
            value, end = decoder.raw_decode(pending, at)
            if end == len(pending) and more:
                raise ValueError("it may go on")
        except (ValueError, RecursionError) as error:
            if more and len(pending) - at <= MOST_ROW:
                piece = text.read(max(PIECE, len(pending) - at))
                more, pending, at = bool(piece), pending[at:] + piece, 0
                continue
            if at < len(pending):
                why = LARGE if more else f"is no JSON ({str(error)[:100]})"
                told.fault(BadInput(f"{name}#{number} {why}; a .json file holds an array of rows, or row after row"))
            elif is_open:
                told.fault(BadInput(f"{name} is cut off behind #{number - 1}; get it again, or end its array"))
            return
        yield f"{name}#{number}", value
        number, at = number + 1, end


BETWEEN_VALUES, BETWEEN_ELEMENTS = re.compile(r"\s*"), re.compile(r"[\s,\]]*")


def _behind(between: re.Pattern[str], text: str, at: int) -> int:
    found = between.match(text, at)
    assert found is not None
    return found.end()


def _csv_rows(name: str, text: TextIO, column: str | None, told: Findings) -> Iterator[tuple[str, Any]]:
    """Rows by the names in the first row."""
    csv.field_size_limit(MOST_ROW)
    taken = 0

    def lines() -> Iterator[str]:
        nonlocal taken
        for _, line in _lines(name, text, told):
            taken += len(line)
            if taken > MOST_ROW:
                raise csv.Error("a row of it, or what stands behind a quotation mark that nothing closes, is too large")
            yield line

    coming, at = lines(), 1
    head = next(coming, "")
    delimiter = max(",;\t", key=head.count)
    try:
        titles = next(csv.reader([head], delimiter=delimiter), [])
        if column is not None and titles:
            _require_named(name, titles, column)
        if twice := next((title for title in titles if titles.count(title) > 1), ""):
            raise BadSpec(f"{name} has several columns named {twice!r}; give each a name of its own")
        table = csv.reader(coming, delimiter=delimiter, strict=True)
        while True:
            taken, at = 0, table.line_num + 2
            row = next(table, None)
            if row is None:
                return
            if any(row[len(titles) :]):
                told.fault(
                    BadInput(
                        f"{name}:{at} has {len(row)} cells under {len(titles)} titles; put quotation marks around "
                        f"each text with {delimiter!r} in it"
                    )
                )
            elif row:
                yield f"{name}:{at}", dict(zip(titles, row, strict=False))
    except csv.Error as error:
        told.fault(BadInput(f"{name}:{at} is no CSV from there on ({error}); write it anew, or as .jsonl"))


# ---- tables ----


def _table_rows(file: DataFile, column: str | None, told: Findings) -> Iterator[tuple[str, dict[str, Any]]]:
    require_extra("pyarrow", f"{file.name} ({file.kind})")
    import pyarrow

    number = 0
    try:
        for batch in _parquet(file, column) if file.kind == "parquet" else _arrow(file, column):
            has_many = sum(map(_values, batch.columns)) > MOST_VALUES
            for row in range(batch.num_rows):
                where, one = f"{file.name}#{number}", batch.slice(row, 1)
                number += 1
                is_large = one.get_total_buffer_size() > MOST_ROW and _row_bytes(one) > MOST_ROW
                if is_large or (has_many and sum(map(_values, one.columns)) > MOST_VALUES):
                    told.fault(BadInput(f"{where} {LARGE}"))
                    continue
                try:
                    (values,) = one.to_pylist()
                except UnicodeDecodeError:
                    told.fault(BadInput(f"{where} holds a text that is no UTF-8; write it anew"))
                    continue
                except (ValueError, OverflowError) as error:  # such as a date in the year 100 000
                    told.fault(BadInput(f"{where} holds a value that cannot be read ({error}); remove its column"))
                    continue
                yield where, values
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        why = next(iter(str(error).splitlines()), type(error).__name__)[:200]
        raise BadSpec(f"{file.name} is no {file.kind} file ({printable(why)}); remove or rename it") from error


def _row_bytes(one: Any) -> int:
    """Of a row; where values are numbers of a dictionary, of those that it names."""
    import pyarrow

    is_coded = pyarrow.types.is_dictionary
    return sum(int((each.dictionary_decode() if is_coded(each.type) else each).nbytes) for each in one.columns)


def _values(array: Any) -> int:
    """How many values Python would have for it: some take no byte in a table."""
    import pyarrow

    types, kind = pyarrow.types, array.type
    if types.is_map(kind):  # which nothing flattens but a list does
        pair = pyarrow.struct([pyarrow.field("key", kind.key_type), pyarrow.field("value", kind.item_type)])
        return _values(array.cast(pyarrow.list_(pair)))
    lists = (types.is_list, types.is_large_list, types.is_fixed_size_list, types.is_list_view, types.is_large_list_view)
    if any(is_list(kind) for is_list in lists):
        return len(array) + _values(array.flatten())
    if types.is_struct(kind):
        return len(array) + sum(map(_values, array.flatten()))
    return len(array)


def _parquet(file: DataFile, column: str | None) -> Iterator[Any]:
    import pyarrow.parquet

    with _seekable(file) as source, pyarrow.parquet.ParquetFile(source, buffer_size=PIECE) as table:
        schema = table.schema_arrow
        _require_column(file, schema, column)
        columns = None if column is None else [column]
        for group, rows in enumerate(_rows_at_once(file, source, column)):
            yield from table.iter_batches(batch_size=rows, row_groups=[group], columns=columns)


def _rows_at_once(file: DataFile, source: Path | BinaryIO, column: str | None) -> Iterator[int]:
    """See `_rows_of_group`, for each of a file."""
    with source.open("rb") if isinstance(source, Path) else nullcontext(source) as raw:
        try:
            for group in row_groups(raw):
                yield _rows_of_group(file, raw, group, column)
        except ValueError as error:
            if isinstance(error, BadInput):
                raise
            raise BadSpec(f"{file.name} is no parquet file ({error}); remove or rename it") from error


def _rows_of_group(file: DataFile, raw: BinaryIO, group: RowGroup, column: str | None) -> int:
    """How many rows of a group to read at once. Raises BadInput for a group that unpacks to more than its bytes can
    hold. A value that stands once in the file may be that of every row: then each row counts as much as the whole
    group."""
    chunks = [each for each in group.chunks if column is None or f"{each.path}.".startswith(f"{column}.")]
    pages_of_chunks = [list(pages_of(raw, chunk)) for chunk in chunks]
    for chunk, of_chunk in zip(chunks, pages_of_chunks, strict=True):
        values = sum(page.values for page in of_chunk)
        if values > max(group.rows, MOST_VALUES + RATIO * chunk.packed_bytes):
            raise BadInput(f"{file.name} has cells that claim {values:,} values out of {chunk.packed_bytes:,} bytes")
    pages = [page.unpacked_bytes for of_chunk in pages_of_chunks for page in of_chunk]
    claimed, packed = sum(pages), sum(chunk.packed_bytes for chunk in chunks)
    is_too_much = claimed > RATIO_FREE_BYTES + RATIO * packed or claimed > max(1, group.rows) * MOST_ROW
    if is_too_much or not all(0 <= size <= MOST_PAGE for size in pages):
        raise BadInput(f"{file.name} has cells that claim {claimed >> 20} MiB out of {packed:,} bytes; {CUT}")
    return int(min(ROWS, max(8, ROWS_BYTES // max(1, claimed))))


CUT = f"a cell may have {MOST_ROW >> 20} MiB: cut its texts into several rows"


def _arrow(file: DataFile, column: str | None) -> Iterator[Any]:
    """Rows of an Arrow file, or of a stream as `datasets` writes it. Raises BadInput for batches that unpack to too
    much; others are read where they lie."""
    import pyarrow

    with _mapped(file) as source:
        begins_at = ARROW_STREAM if source.read(len(ARROW_FILE)) == ARROW_FILE else 0
        source.seek(begins_at)
        try:
            largest = max(unpacked_bytes(pyarrow.MessageReader.open_stream(source)), default=0)
        except ValueError as error:
            raise BadSpec(f"{file.name} is no arrow file ({error}); remove or rename it") from error
        if largest > MOST_PAGE:
            raise BadInput(
                f"{file.name} has rows that unpack to {largest >> 20} MiB at once; write it anew as .parquet, or "
                "without compression"
            )
        source.seek(begins_at)
        table = pyarrow.ipc.open_stream(source)
        _require_column(file, table.schema, column)
        for batch in table:
            batch.validate(full=True)  # or a wrong offset ends this process by a signal
            yield batch if column is None else batch.select([column])


def _require_column(file: DataFile, schema: Any, column: str | None) -> None:
    """Raises BadSpec if the column does not exist, or holds no text."""
    import pyarrow

    if column is None:
        return
    _require_named(file.name, schema.names, column)
    kind = schema.field(column).type
    kind = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
    known = (pyarrow.types.is_string, pyarrow.types.is_large_string, pyarrow.types.is_string_view)
    if not any(is_text(kind) for is_text in known):
        raise BadSpec(f"data.text_field is {column!r}, a column of {kind} in {file.name}; name one that holds text")


def _require_named(name: str, columns: Sequence[str], column: str) -> None:
    if column not in columns:
        raise BadSpec(
            f"data.text_field is {column!r}, no column of {name}; it has {printable(', '.join(columns)[:200])}"
        )


@contextmanager
def _seekable(file: DataFile) -> Iterator[Any]:
    """Unpacked on disk if it is packed, since such a file is read from its end."""
    if not file.packing:
        yield file.path
        return
    with tempfile.NamedTemporaryFile() as whole, opened(file) as raw:
        while piece := raw.read(PIECE):
            whole.write(piece)
        whole.seek(0)
        yield whole


@contextmanager
def _mapped(file: DataFile) -> Iterator[Any]:
    import pyarrow

    with _seekable(file) as whole, pyarrow.memory_map(str(whole) if whole is file.path else whole.name) as source:
        yield source
