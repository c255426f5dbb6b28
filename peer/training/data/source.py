"""The interface behind `spec.data`, and its in-memory form.

A *document* is a named text. A *shard* is the tokens of its documents one after the other, each closed by end-of-text.
A *window* is context + 1 tokens of a shard; its last token is the first of the next window, so that every token is
predicted once per pass.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dht.errors import BadSpec
from peer.schema.spec import RunSpec
from peer.training.data.chat.token_flags import NUMBER
from peer.training.data.data_shards import Document, shard_of
from peer.training.data.document_tokens import DocumentEncoder, encoder_of
from peer.training.data.tokenizer import Tokenizer, Tokens

# B = sequences, T = context + 1 tokens


class Source(Protocol):
    """Training windows by (shard, position), and the held-out set."""

    windows: Mapping[int, int]
    """Windows in one pass over each shard that is not empty; 1 each if the sizes are unknown."""

    def window(self, shard: int, position: int) -> Tokens:
        """Tokens (T) of the `position`-th window that the run reads from the shard.

        Positions never end: past the last window the next pass begins, in another order.
        """
        ...

    def held_out(self) -> npt.NDArray[np.int64]:
        """Tokens (B, T) for evaluation, the same for every peer with the same data."""
        ...


class MemorySource:
    """All documents as tokens, in memory. Raises BadSpec if there is too little of it."""

    def __init__(self, documents: Iterable[Document], tokenizer: Tokenizer, spec: RunSpec) -> None:
        encoder = encoder_of(spec, tokenizer)
        self._context, self._seed = spec.model.context, spec.run.seed
        self._eval_sequences = spec.data.eval_sequences
        training: dict[int, list[Tokens]] = {}
        held_out: list[Tokens] = []
        for document, tokens in encoder.encoded(documents):
            if document.is_held_out(spec.data):
                held_out.append(tokens)
            else:
                training.setdefault(shard_of(document.name), []).append(tokens)
        encoder.rest()
        compact = np.uint16 if encoder.most <= 1 << 16 else np.int32
        joined = {shard: _joined(training[shard], encoder).astype(compact) for shard in sorted(training)}
        self._shards = {shard: tokens for shard, tokens in joined.items() if len(tokens) > self._context}
        self._held_out = _joined(held_out, encoder)
        self.windows: Mapping[int, int] = {
            shard: (len(tokens) - 1) // self._context for shard, tokens in self._shards.items()
        }
        self._orders = WindowOrders(self._seed, self.windows)
        require_enough(self.windows, len(self._held_out), self._context)
        self.held_out()

    def window(self, shard: int, position: int) -> Tokens:
        """Tokens (T): the shard's windows in a permutation of (run seed, shard, pass over the shard)."""
        start = self._orders.place(shard, position) * self._context
        window: Tokens = self._shards[shard][start : start + self._context + 1].astype(np.int32)
        return window

    def held_out(self) -> npt.NDArray[np.int64]:
        """Tokens (B, T) evenly spread over the held-out text; B may be less than asked for if it is short."""
        return spread(self._held_out, self._eval_sequences, self._context)


def _joined(encoded: list[Tokens], encoder: DocumentEncoder) -> Tokens:
    tokens: Tokens = np.concatenate([*encoder.joined(encoded), encoder.end])
    return tokens


class WindowOrders:
    """The place in its shard of the window at a position: each pass over a shard has a permutation of its own."""

    def __init__(self, seed: int, windows: Mapping[int, int]) -> None:
        self._seed, self._windows = seed, windows
        self._known: dict[int, tuple[int, npt.NDArray[np.uint32]]] = {}

    def place(self, shard: int, position: int) -> int:
        """The number of a window in the order of the text."""
        turn, index = divmod(position, self._windows[shard])
        known = self._known.get(shard)
        if known is None or known[0] != turn:
            # Half the memory: there is one for each shard, and together they have an entry for every window.
            known = (turn, permutation(self._seed, shard, turn, self._windows[shard]).astype(np.uint32))
            self._known[shard] = known
        return int(known[1][index])


def require_enough(windows: Mapping[int, int], held_out_tokens: int, context: int) -> None:
    """Raises BadSpec if there is nothing to train on, or nothing to evaluate with."""
    if not windows:
        raise BadSpec(f"the data hold no training text of {context + 1} tokens; add files, or lower model.context")
    if held_out_tokens <= context:
        raise BadSpec(
            f"the data hold {held_out_tokens} held-out tokens, fewer than model.context + 1 = "
            f"{context + 1}; add files, or lower data.held_out_every"
        )


def permutation(seed: int, shard: int, turn: int, windows: int) -> npt.NDArray[np.int64]:
    """The order in which pass number `turn` visits the windows of a shard."""
    key = hashlib.blake2b(f"order/{seed}/{shard}/{turn}".encode(), digest_size=16).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(key, "big"))).permutation(windows)


def spread(tokens: npt.NDArray[np.int32], sequences: int, context: int) -> npt.NDArray[np.int64]:
    """`sequences` windows (B, T) at even distances over `tokens`, which do not overlap. Raises BadSpec if none of
    their tokens is predicted."""
    available = (len(tokens) - 1) // context
    chosen = [index * available // sequences for index in range(sequences)] if sequences < available else None
    starts = np.asarray(chosen if chosen is not None else range(available), dtype=np.int64) * context
    offsets = np.arange(context + 1)
    windows_BT: npt.NDArray[np.int64] = tokens[starts[:, None] + offsets[None, :]].astype(np.int64)
    if not (windows_BT[:, 1:] <= NUMBER).any():
        raise BadSpec("no held-out window holds an answer; raise data.eval_sequences or model.context")
    return windows_BT
