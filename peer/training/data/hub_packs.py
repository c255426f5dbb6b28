"""Keeps what a stream has delivered: the tokens of one pass over a shard, in the cache, and the stream's position.

<cache>/packs/hub/<name>/<shard>         tokens, as far as they were read
<cache>/packs/hub/<name>/<shard>.state   how many of them count, and how the stream continues after them
"""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from dht.atomic_files import raising_disk_full, write_atomic
from dht.errors import BadSpec, Unreachable
from peer.training.data.tokenizer import Tokens

TRIES = 3
"""Of a row that does not come; the libraries have waited and tried by themselves before."""
SAVE_EVERY = 1 << 18
"""Tokens; so many at most are read again after a crash."""


@dataclass
class RowPlace:
    """The position of a stream."""

    file: int = 0
    row: int = 0
    """In that file."""
    number: int = 0
    """In all."""


class RowStream:
    """Rows of a streamed data set, each once, whatever fails meanwhile.

    It resumes in the file where it was by counting rows: with states of `datasets` 5.2.0 (`state_dict`) the rest of a
    file was lost in streams whose first read had failed.
    """

    def __init__(self, rows: Any, name: str, place: RowPlace | None = None) -> None:
        """`rows` is an `IterableDataset`."""
        self._rows, self._name, self._files = rows, name, int(rows.num_shards)
        self.place = place or RowPlace()
        self._coming: Iterator[dict[str, Any]] | None = None

    def next(self) -> dict[str, Any] | None:
        """None at the end. Raises Unreachable, and then the next call asks for the same row."""
        for left in reversed(range(TRIES)):
            try:
                return self._next()
            except Exception as error:  # of any of the libraries, and whatever damaged bytes make of them
                self._coming = None
                if not left:
                    reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
                    raise Unreachable(f"the data set {self._name} cannot be read ({reason})") from error
        raise AssertionError("it returns or raises")

    def _next(self) -> dict[str, Any] | None:
        place = self.place
        while place.file < self._files:
            if self._coming is None:
                rows = self._rows.shard(num_shards=self._files, index=place.file)
                self._coming = islice(rows, place.row, None)
            row = next(self._coming, None)
            if row is not None:
                place.row, place.number = place.row + 1, place.number + 1
                return row
            self._coming, place.file, place.row = None, place.file + 1, 0
        return None


class ShardPack:
    """Tokens of a shard as if they never ended: after one pass the next follows."""

    def __init__(
        self, place: Path, item: str, rows: Any, name: str, encode: Callable[[int, dict[str, Any]], Tokens | None],
        filler: Callable[[int, int], Tokens],
    ) -> None:  # fmt: skip
        """`encode` makes tokens of a row and its number in the stream, or None if it is not of this shard; `filler`
        as in `DocumentEncoder`."""
        self._place, self._item, self._name, self._encode = place, np.dtype(item), name, encode
        self._filler = filler
        self._file, self._is_kept = _open_alone(place)
        weakref.finalize(self, os.close, self._file)
        saved = _read_state(place) if self._is_kept else None
        held = os.fstat(self._file).st_size // self._item.itemsize
        if saved is None or saved["size"] > held:
            saved = {"size": 0, "ended": False, "stream": {}}
        self._size, self._ended = saved["size"], saved["ended"]
        self._saved_size = self._size
        self._unwritten: Tokens | None = None
        self._stream = RowStream(rows, name, RowPlace(**saved["stream"]))

    def read(self, start: int, count: int) -> Tokens:
        """`count` tokens from the `start`-th on. Raises Unreachable, DiskFull, BadSpec for a pass of less."""
        while not self._ended and self._size < start + count:
            self._read_next()
        if self._ended and self._size < count:
            raise BadSpec(f"{self._place.name} of {self._name} holds too little text; take a larger data set")
        if start + count <= self._size:
            return self._at(start, count)
        start %= self._size
        first = min(count, self._size - start)
        return np.concatenate([self._at(start, first), self._at(0, count - first)])

    def _at(self, start: int, count: int) -> Tokens:
        width = self._item.itemsize
        return np.frombuffer(os.pread(self._file, count * width, start * width), self._item).astype(np.int32)

    def _read_next(self) -> None:
        """Read one more row; on a full disk the next call writes it."""
        if self._unwritten is None:
            number, row = self._stream.place.number, self._stream.next()
            if row is None:
                self._ended = True
                self._unwritten = self._filler(self._size, 1 << 62)  # the next pass begins with a window
            elif (tokens := self._encode(number, row)) is not None:
                self._unwritten = np.concatenate([self._filler(self._size, len(tokens)), tokens])
        with raising_disk_full(self._place):
            if self._unwritten is not None:
                self._write(self._unwritten)
                self._unwritten = None
            if self._is_kept and (self._ended or self._size - self._saved_size >= SAVE_EVERY):
                self._save()

    def _write(self, tokens: Tokens) -> None:
        payload, at = memoryview(tokens.astype(self._item).tobytes()), self._size * self._item.itemsize
        while payload:  # a disk may take a part
            written = os.pwrite(self._file, payload, at)
            payload, at = payload[written:], at + written
        self._size += len(tokens)

    def _save(self) -> None:
        os.fsync(self._file)
        said = {"size": self._size, "ended": self._ended, "stream": asdict(self._stream.place)}
        write_atomic(_state_of(self._place), json.dumps(said).encode())
        self._saved_size = self._size


def _state_of(place: Path) -> Path:
    return place.with_name(f"{place.name}.state")


def _read_state(place: Path) -> Any:
    with suppress(OSError, ValueError):
        return json.loads(_state_of(place).read_bytes())
    return None


def _open_alone(place: Path) -> tuple[int, bool]:
    """A file, and whether this process may write it: another peer of this machine may write it, or nobody may."""
    with suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(place, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(file)
        else:
            return file, True
    with tempfile.TemporaryFile() as own:
        return os.dup(own.fileno()), False
