"""From documents to the tokens of a shard: plain text in sequence, conversations packed into windows.

A shard is cut into windows every `context` tokens, whatever it holds. So that a conversation stays whole it is put with
others into a *slot* of `context` tokens, and the rest of the slot is filled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Protocol

import numpy as np

from dht.errors import BadInput
from peer.schema.spec import RunSpec
from peer.training.data.chat.chat_template import ends_of
from peer.training.data.chat.talk_text import Talk, is_empty, is_mute, is_without_weight
from peer.training.data.chat.token_flags import HIDDEN
from peer.training.data.data_shards import Document
from peer.training.data.tokenizer import Tokenizer, Tokens

OPEN_SLOTS = 16
"""Slots that still have room for a conversation to come."""
AT_ONCE = 1 << 19
"""Characters that a tokenizer is given at a time, so that each core has some; their tokens take some 20 MB."""
LEFT_OUT = "left out: "
"""Begins the name of a count of what a template does not write, by the key of a message, or `tools`."""


class DocumentEncoder(Protocol):
    """How a source turns documents into tokens."""

    most: int
    """Tokens are below this."""
    end: Tokens
    """The tokens after the last document of a shard."""
    counts: Counter[str]
    """How much of its documents is learned, and how much is not and why: see `ChatEncoder`."""
    identity: str
    """Differs if the same documents have other tokens, or another place in a shard."""

    def encode(self, text: str, name: str) -> Tokens:
        """The tokens of the document with this name."""
        ...

    def encoded(self, documents: Iterable[Document]) -> Iterator[tuple[Document, Tokens]]:
        """Each with its tokens, in their order."""
        ...

    follows: bool
    """Whether documents follow one another as they are, so that `joined` changes nothing."""

    def joined(self, encoded: Iterable[Tokens]) -> Iterator[Tokens]:
        """The pieces of a shard, from its documents in order. Their concatenation is cut into windows."""
        ...

    def filler(self, size: int, length: int) -> Tokens:
        """The tokens between `size` tokens of an endless shard and a next document of `length` tokens."""
        ...

    def rest(self) -> None:
        """Nothing is encoded for a while: free memory."""
        ...


class TextEncoder:
    """Documents one after the other, each closed by end-of-text."""

    follows = True

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.most = tokenizer.vocabulary
        self.end: Tokens = np.empty(0, np.int32)
        self.counts = Counter[str]()
        self.identity = tokenizer.identity

    def encode(self, text: str, name: str) -> Tokens:
        return self._closed(self._tokenizer.encode(text))

    def encoded(self, documents: Iterable[Document]) -> Iterator[tuple[Document, Tokens]]:
        for some in _some_at_once(documents):
            yield from zip(
                some, map(self._closed, self._tokenizer.encode_all([each.text for each in some])), strict=True
            )

    def _closed(self, tokens: Tokens) -> Tokens:
        closed = np.empty(len(tokens) + 1, np.int32)
        closed[:-1], closed[-1] = tokens, self._tokenizer.end_of_text
        return closed

    def joined(self, encoded: Iterable[Tokens]) -> Iterator[Tokens]:
        yield from encoded

    def filler(self, size: int, length: int) -> Tokens:
        return self.end

    def rest(self) -> None: ...


class ChatEncoder:
    """Conversations, each whole in a window, so that every answer is predicted from everything before it. One that
    is longer than the context ends with the last answer that fits with everything before it. One without a learned
    answer left has no tokens."""

    most = 1 << 31
    follows = False

    def __init__(self, tokenizer: Tokenizer, context: int) -> None:
        self._tokenizer, self._context = tokenizer, context
        self.end: Tokens = np.asarray([tokenizer.end_of_text | HIDDEN], np.int32)
        self.counts = Counter[str]()
        self.identity = f"{tokenizer.identity} closed chats {context}"

    def encode(self, text: str, name: str) -> Tokens:
        """Raises BadInput that names the document, and BadSpec."""
        talk = Talk.from_json(text)
        try:
            encoded = self._tokenizer.encode_talk(talk)
        except BadInput as error:
            raise type(error)(f"{name}: {error}") from error
        ends = ends_of(encoded.tokens)
        room = ends[ends <= self._context]
        tokens = encoded.tokens if len(encoded.tokens) <= self._context else encoded.tokens[: room.max(initial=0)]
        self.counts.update(f"{LEFT_OUT}{key}" for key in encoded.left_out)
        self.counts += Counter(
            learned=len(room), long=len(tokens) < len(encoded.tokens), beyond=len(ends) - len(room),
            empty=sum(map(is_empty, talk.answers)), mute=sum(is_mute(each, encoded.left_out) for each in talk.answers),
            unweighted=sum(map(is_without_weight, talk.answers)),
            silent=not len(room),
        )  # fmt: skip
        return tokens if len(room) else tokens[:0]

    def encoded(self, documents: Iterable[Document]) -> Iterator[tuple[Document, Tokens]]:
        return ((each, self.encode(each.text, each.name)) for each in documents)

    def joined(self, encoded: Iterable[Tokens]) -> Iterator[Tokens]:
        """Each conversation goes to the first open slot in which it fits; the oldest slot is closed for a new one."""
        slots: list[list[Tokens]] = []
        for tokens in encoded:
            if not len(tokens):
                continue
            slot = next((slot for slot in slots if sum(map(len, slot)) + len(tokens) <= self._context), None)
            if slot is None:
                if len(slots) == OPEN_SLOTS:
                    yield self._filled(slots.pop(0))
                slots.append(slot := [])
            slot.append(tokens)
        yield from map(self._filled, slots)

    def filler(self, size: int, length: int) -> Tokens:
        """A new slot if the last one is too full: the kept tokens of a stream know no open slots."""
        room = -size % self._context
        return np.repeat(self.end, room if length > room else 0)

    def rest(self) -> None:
        self._tokenizer.rest()

    def _filled(self, slot: list[Tokens]) -> Tokens:
        filler = np.repeat(self.end, self._context - sum(map(len, slot)))
        return np.concatenate([*slot, filler])


def _some_at_once(documents: Iterable[Document]) -> Iterator[list[Document]]:
    some: list[Document] = []
    characters = 0
    for document in documents:
        some.append(document)
        characters += len(document.text)
        if characters >= AT_ONCE:
            yield some
            some, characters = [], 0
    if some:
        yield some


def encoder_of(spec: RunSpec, tokenizer: Tokenizer) -> DocumentEncoder:
    """The encoder for `data.format`."""
    return ChatEncoder(tokenizer, spec.model.context) if spec.data.format == "chat" else TextEncoder(tokenizer)
