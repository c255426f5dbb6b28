"""Hugging Face data sets, streamed: only what is read is downloaded."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from dht.errors import BadSpec, Unreachable
from peer.consensus.protocol.encoding import digest_of, pack
from peer.consensus.protocol.rules import DATA_SHARDS
from peer.schema.extras import require_extra
from peer.schema.spec import RunSpec
from peer.schema.toml_tables import shortened
from peer.training.data import packs
from peer.training.data.conversations import as_line
from peer.training.data.data_shards import is_held_out
from peer.training.data.document_tokens import encoder_of
from peer.training.data.hub_packs import RowStream, ShardPack
from peer.training.data.reading.plain_text import content_of
from peer.training.data.source import spread
from peer.training.data.tokenizer import Tokenizer, Tokens

VERSION = 1
"""Of what is kept of a stream."""


class HubSource:
    """A streamed data set. Raises BadSpec if it does not exist, or holds no text, Unreachable.

    Documents of one shard come in the data set's order, which should be a shuffled one. What was read is kept in the
    cache; to start in mid-run on another machine, a shard is read once from its beginning up to the cursor.
    """

    def __init__(self, tokenizer: Tokenizer, spec: RunSpec) -> None:
        self._encoder, self._table = encoder_of(spec, tokenizer), spec.data
        self._context = spec.model.context
        self._dataset, files = _open(spec)
        # A data set of few files is cut by rows, so that every shard has its own documents.
        self._files = min(DATA_SHARDS, int(self._dataset.num_shards))
        table = spec.data
        said = (VERSION, table.path, files, table.text_field, table.held_out_every, self._encoder.identity)
        self.kept = packs.folder() / "hub" / digest_of(pack(said)).hex()[:32]
        self._shards: dict[int, ShardPack] = {}
        self.windows: Mapping[int, int] = dict.fromkeys(range(DATA_SHARDS), 1)

    def window(self, shard: int, position: int) -> Tokens:
        """Tokens (T) of the `position`-th window of the shard in the order of the stream. Raises Unreachable."""
        if shard not in self._shards:
            self._shards[shard] = self._shard(shard)
        return self._shards[shard].read(position * self._context, self._context + 1)

    def held_out(self) -> npt.NDArray[np.int64]:
        """Tokens (B, T) of the first held-out documents of the data set. Raises Unreachable."""
        enough = self._table.eval_sequences * self._context + 1
        pieces: list[Tokens] = []
        for piece in self._encoder.joined(self._held_out_documents()):
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

    def _held_out_documents(self) -> Iterator[Tokens]:
        rows = RowStream(self._dataset, self._table.path)
        while (row := rows.next()) is not None:
            text = self._text(row)
            if self._is_held_out(text):
                yield self._encode(text)

    def _shard(self, shard: int) -> ShardPack:
        file = shard % self._files
        share, sharers = shard // self._files, len(range(file, DATA_SHARDS, self._files))

        def encode(number: int, row: Mapping[str, Any]) -> Tokens | None:
            text = self._text(row)
            mine = number % sharers == share and not self._is_held_out(text)
            return self._encode(text) if mine else None

        item = packs.item_of(self._encoder.most)
        place = self.kept / f"shard {shard}"
        rows = self._dataset.shard(num_shards=self._files, index=file)
        return ShardPack(place, item, rows, self._table.path, encode, self._encoder.filler)

    def _text(self, row: Mapping[str, Any]) -> str:
        name = self._table.text_field
        if self._table.format == "chat":
            return as_line(row, name, f"a row of {self._table.path}")
        if name not in row:
            raise BadSpec(f"data.text_field is {name!r}, no column of {self._table.path}; it has {', '.join(row)}")
        text = row[name]
        if text is None or isinstance(text, str):
            return text or ""
        kind = type(text).__name__
        raise BadSpec(
            f"data.text_field is {name!r}, a column of {kind} in {self._table.path}; name one that holds text"
        )

    def _is_held_out(self, text: str) -> bool:
        # By content: a document keeps its side however the data set's files are cut.
        return is_held_out(content_of(text), self._table.held_out_every)

    def _encode(self, text: str) -> Tokens:
        return self._encoder.encode(text, f"a row of {self._table.path}")


TABLES = frozenset({"arrow", "csv", "json", "parquet", "text"})
"""Formats of data sets that are read: rows of plain values. Others unpack archives, images or pickles."""


def _open(spec: RunSpec) -> tuple[Any, tuple[str, ...]]:
    """The data set, with its files and their revision."""
    require_extra("datasets", f"data.source = 'hub' ({spec.data.path})")
    from datasets import config, load_dataset_builder

    # Who waits is told after a while, and the stream goes on from the same row.
    config.STREAMING_READ_MAX_RETRIES = 1

    table = spec.data
    if os.path.lexists(table.path):
        # datasets would read it instead.
        raise BadSpec(f"data.path is {table.path!r}, which is in the folder {os.getcwd()} too; start from another one")
    try:
        builder = load_dataset_builder(table.path, table.subset or None, token=False)
        require_own_files(builder, table.path)
        files: Any = (builder.config.data_files or {}).get(table.split, ())
        return builder.as_streaming_dataset(split=table.split), tuple(map(str, files))
    except ConnectionError as error:
        raise Unreachable(f"the data set {table.path!r} cannot be reached; check the connection") from error
    except (FileNotFoundError, RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise BadSpec(
            f"data.path is {table.path!r} (subset {table.subset!r}, split {table.split!r}): {reason}"
        ) from error


def require_own_files(builder: Any, name: str) -> None:
    """Raises BadSpec for a data set whose card names files other than its own, such as some of this machine, or
    whose format is not supported."""
    kind = type(builder).__module__.rpartition(".")[2]
    if kind not in TABLES:
        raise BadSpec(f"data.path is {name!r}, a data set of the kind {kind!r}; use one of {', '.join(sorted(TABLES))}")
    own = f"hf://datasets/{name}@"
    for file in chain.from_iterable((builder.config.data_files or {}).values()):
        if not str(file).split("::")[-1].startswith(own):
            raise BadSpec(f"data.path is {name!r}, whose card names a file elsewhere: {shortened(str(file))}")
