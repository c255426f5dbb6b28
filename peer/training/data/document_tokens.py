"""From documents to the tokens of a shard: text as it comes, conversations packed into windows.

A shard is cut into windows every `context` tokens, whatever it holds. So a conversation is kept whole by where it is
put: in a *slot* of `context` tokens with others, and the rest of the slot is filled.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Protocol

import numpy as np

from dht.errors import BadInput
from peer.schema.spec import RunSpec
from peer.training.data.chat.token_flags import HIDDEN
from peer.training.data.tokenizer import Tokenizer, Tokens

OPEN_SLOTS = 16
"""Slots that still have room for a conversation to come."""


class DocumentEncoder(Protocol):
    """What a source does with its documents."""

    most: int
    """Tokens are below this."""
    end: Tokens
    """Behind the last of a shard."""
    identity: str
    """Differs where the same documents have other tokens, or lie otherwise in a shard."""

    def encode(self, text: str, name: str) -> Tokens:
        """Of the document of this name."""
        ...

    def joined(self, encoded: Iterable[Tokens]) -> Iterator[Tokens]:
        """The pieces of a shard, from its documents in order. Their concatenation is cut into windows."""
        ...

    def filler(self, size: int, length: int) -> Tokens:
        """What lies between `size` tokens of an endless shard and a document of `length` tokens, which comes next."""
        ...


class TextEncoder:
    """Documents one after the other, each closed by end-of-text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.most = tokenizer.vocabulary
        self.end: Tokens = np.empty(0, np.int32)
        self.identity = tokenizer.identity

    def encode(self, text: str, name: str) -> Tokens:
        return np.append(self._tokenizer.encode(text), np.int32(self._tokenizer.end_of_text))

    def joined(self, encoded: Iterable[Tokens]) -> Iterator[Tokens]:
        yield from encoded

    def filler(self, size: int, length: int) -> Tokens:
        return self.end


class ChatEncoder:
    """Conversations, none of them cut that has room in a window."""

    most = 1 << 31

    def __init__(self, tokenizer: Tokenizer, context: int) -> None:
        self._tokenizer, self._context = tokenizer, context
        self.end: Tokens = np.asarray([tokenizer.end_of_text | HIDDEN], np.int32)
        self.identity = f"{tokenizer.identity} chat {context}"

    def encode(self, text: str, name: str) -> Tokens:
        """Raises BadInput that names the document, and BadSpec."""
        try:
            return self._tokenizer.encode_chat(json.loads(text))
        except BadInput as error:
            raise type(error)(f"{name}: {error}") from error

    def joined(self, encoded: Iterable[Tokens]) -> Iterator[Tokens]:
        """Each conversation goes to the first open slot with room for it; the oldest is closed for a new one."""
        slots: list[list[Tokens]] = []
        for tokens in encoded:
            if len(tokens) > self._context:
                whole = len(tokens) // self._context * self._context
                yield tokens[:whole]
                if whole < len(tokens):
                    yield self._filled([tokens[whole:]])  # right behind: the first of them is predicted from there
                continue
            slot = next((slot for slot in slots if sum(map(len, slot)) + len(tokens) <= self._context), None)
            if slot is None:
                if len(slots) == OPEN_SLOTS:
                    yield self._filled(slots.pop(0))
                slots.append(slot := [])
            slot.append(tokens)
        yield from map(self._filled, slots)

    def filler(self, size: int, length: int) -> Tokens:
        """A new slot where the last one has no room: what is kept of a stream knows no open ones."""
        room = -size % self._context
        return np.repeat(self.end, room if length > room else 0)

    def _filled(self, slot: list[Tokens]) -> Tokens:
        filler = np.repeat(self.end, self._context - sum(map(len, slot)))
        return np.concatenate([*slot, filler])


def encoder_of(spec: RunSpec, tokenizer: Tokenizer) -> DocumentEncoder:
    """That of `data.format`."""
    return ChatEncoder(tokenizer, spec.model.context) if spec.data.format == "chat" else TextEncoder(tokenizer)
