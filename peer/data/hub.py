"""Hugging Face data sets, streamed: nothing is downloaded that is not read."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from dht.errors import BadSpec, Unreachable
from peer.data.conversations import as_line
from peer.data.data_shards import DATA_SHARDS, is_held_out
from peer.data.document_tokens import encoder_of
from peer.data.source import spread
from peer.data.tokenizer import Tokenizer, Tokens
from peer.spec import RunSpec
from peer.tables import shortened


@dataclass
class _Reader:
    """Where this peer stands in one shard."""

    pieces: Iterator[Tokens]
    """Of the tokens of its documents, see `DocumentEncoder.joined`."""
    position: int = 0
    turn_windows: int = 0
    """Windows read in this pass, to notice a shard that holds none."""
    pending: Tokens = field(default_factory=lambda: np.empty(0, np.int32))


class HubSource:
    """A streamed data set. Raises BadSpec if there is none, or one of another kind than text, Unreachable.

    Documents of one shard come in the data set's order, which should be a shuffled one. To start in
    mid-run, a shard is read from its beginning up to the cursor.
    """

    def __init__(self, tokenizer: Tokenizer, spec: RunSpec) -> None:
        self._encoder, self._table = encoder_of(spec, tokenizer), spec.data
        self._context = spec.model.context
        self._dataset = _open(spec)
        # A data set of few files is cut by rows, so that every shard has its own documents.
        self._files = min(DATA_SHARDS, int(self._dataset.num_shards))
        self._readers: dict[int, _Reader] = {}
        self.windows: Mapping[int, int] = dict.fromkeys(range(DATA_SHARDS), 1)

    def window(self, shard: int, position: int) -> Tokens:
        """Tokens (T) of the `position`-th window of the shard in the order of the stream."""
        reader = self._readers.get(shard)
        if reader is None or reader.position > position:
            reader = self._readers[shard] = _Reader(self._pieces(shard))
        while reader.position < position:
            self._read(shard, reader)
        return self._read(shard, reader)

    def held_out(self) -> npt.NDArray[np.int64]:
        """Tokens (B, T) of the first held-out documents of the data set."""
        enough = self._table.eval_sequences * self._context + 1
        pieces: list[Tokens] = []
        documents = (self._encode(text) for text in self._texts(self._dataset) if self._is_held_out(text))
        for piece in self._encoder.joined(documents):
            pieces.append(piece)
            if sum(map(len, pieces)) >= enough:
                break
        tokens = np.concatenate([*pieces, self._encoder.end])
        if len(tokens) <= self._context:
            raise BadSpec(
                f"{self._table.path} holds {len(tokens)} held-out tokens, fewer than model.context + 1 = "
                f"{self._context + 1}; lower data.held_out_every or take a larger data set"
            )
        return spread(tokens, self._table.eval_sequences, self._context)

    def _read(self, shard: int, reader: _Reader) -> Tokens:
        while len(reader.pending) <= self._context:
            piece = next(reader.pieces, None)
            if piece is not None:
                reader.pending = np.concatenate([reader.pending, piece])
                continue
            if reader.turn_windows == 0:
                raise BadSpec(f"shard {shard} of {self._table.path} holds too little text; take a larger data set")
            reader.pieces, reader.turn_windows = self._pieces(shard), 0
        window = reader.pending[: self._context + 1]
        reader.pending = reader.pending[self._context :]
        reader.position += 1
        reader.turn_windows += 1
        return window

    def _pieces(self, shard: int) -> Iterator[Tokens]:
        return self._encoder.joined(map(self._encode, self._documents(shard)))

    def _documents(self, shard: int) -> Iterator[str]:
        file = shard % self._files
        share, sharers = shard // self._files, len(range(file, DATA_SHARDS, self._files))
        rows = self._dataset.shard(num_shards=self._files, index=file)
        for number, text in enumerate(self._texts(rows)):
            if number % sharers == share and not self._is_held_out(text):
                yield text

    def _texts(self, rows: Any) -> Iterator[str]:
        name = self._table.text_field
        if self._table.format == "chat":
            yield from (as_line(row, name, f"a row of {self._table.path}") for row in rows)
            return
        for row in rows:
            if name not in row:
                raise BadSpec(f"data.text_field is {name!r}, no column of {self._table.path}; it has {', '.join(row)}")
            yield row[name] or ""

    def _is_held_out(self, text: str) -> bool:
        # By content: a document keeps its side however the data set's files are cut.
        return is_held_out(hashlib.blake2b(text.encode("utf-8", "replace")).hexdigest(), self._table.held_out_every)

    def _encode(self, text: str) -> Tokens:
        return self._encoder.encode(text, f"a row of {self._table.path}")


TABLES = frozenset({"arrow", "csv", "json", "parquet", "text"})
"""Formats of data sets that are read: rows of plain values. Others unpack archives, images or pickles."""


def _open(spec: RunSpec) -> Any:
    from datasets import load_dataset_builder

    table = spec.data
    if os.path.lexists(table.path):
        # datasets would read it instead.
        raise BadSpec(f"data.path is {table.path!r}, which is in the folder {os.getcwd()} too; start from another one")
    try:
        builder = load_dataset_builder(table.path, table.subset or None, token=False)
        require_own_files(builder, table.path)
        return builder.as_streaming_dataset(split=table.split)
    except ConnectionError as error:
        raise Unreachable(f"the data set {table.path!r} cannot be reached; check the connection") from error
    except (FileNotFoundError, RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise BadSpec(
            f"data.path is {table.path!r} (subset {table.subset!r}, split {table.split!r}): {reason}"
        ) from error


def require_own_files(builder: Any, name: str) -> None:
    """Raises BadSpec for a data set whose card names other files than its own, such as some of this machine, or whose
    format is none that is read."""
    kind = type(builder).__module__.rpartition(".")[2]
    if kind not in TABLES:
        raise BadSpec(f"data.path is {name!r}, a data set of the kind {kind!r}; use one of {', '.join(sorted(TABLES))}")
    own = f"hf://datasets/{name}@"
    for file in chain.from_iterable((builder.config.data_files or {}).values()):
        if not str(file).split("::")[-1].startswith(own):
            raise BadSpec(f"data.path is {name!r}, whose card names a file elsewhere: {shortened(str(file))}")
