"""A conversation as tokens: which of them are learned, and at which token an answer ends."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from dht.errors import BadInput, BadSpec
from peer.training.data.chat.talk_text import ASSISTANT, Message, Talk, is_mute, left_out
from peer.training.data.chat.template_process import ChatTemplate, TemplateSource
from peer.training.data.chat.token_flags import BEGINS, HIDDEN, NUMBER

Tokens = npt.NDArray[np.int32]
MARKED = re.compile(r"{%-?\s*generation\s*-?%}")
"""In a template that says itself what is an answer."""
ASKED, PROBE = "warm", "cold"
"""What a user and an assistant say, to see what comes behind it."""


@dataclass(frozen=True)
class EncodedTalk:
    """A conversation, with the flags of `token_flags`."""

    tokens: Tokens
    left_out: Sequence[str] = ()
    """Keys of the conversation that the template leaves out of its text."""


def flagged(pieces: Iterable[tuple[Tokens, bool]]) -> Tokens:
    """The tokens of a conversation from its pieces, each with whether it is learned."""
    tokens = np.concatenate([piece if is_learned else piece | HIDDEN for piece, is_learned in pieces]).astype(np.int32)
    tokens[:1] |= HIDDEN | BEGINS
    return tokens


def ends_of(tokens: Tokens) -> npt.NDArray[np.int64]:
    """For each learned answer, or piece of one, the number of tokens up to its end."""
    learned = np.append(tokens <= NUMBER, False)
    return np.flatnonzero(learned[:-1] & ~learned[1:]) + 1


def tokens_of(tokenizer: Any, text: str) -> Tokens:
    """Without special tokens that the text does not contain."""
    # verbose=False: a document longer than the model's context is cut into windows later, no reason to warn.
    return np.asarray(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"], np.int32)


class TemplateEncoder:
    """A chat template with the tokenizer for which it was written."""

    def __init__(self, tokenizer: Any, template: str, date: str) -> None:
        """`tokenizer` is one of transformers; `template` replaces its own, unless it is empty. Raises BadSpec if
        there is none."""
        self._tokenizer = tokenizer
        own = template or None
        try:
            plain, with_tools = tokenizer.get_chat_template(own), tokenizer.get_chat_template(own, [{}])
        except ValueError as error:
            raise BadSpec(
                "the tokenizer has no chat template; choose that of a model that was tuned, or name one with "
                "data.template"
            ) from error
        self._template = ChatTemplate(
            TemplateSource(plain=plain, with_tools=with_tools, special=dict(tokenizer.special_tokens_map), date=date)
        )
        self._is_marked = MARKED.search(plain) is not None and MARKED.search(with_tools) is not None

    def encode(self, talk: Talk) -> EncodedTalk:
        """Raises BadInput for messages that the template refuses, BadSpec for a template that takes too long or does
        not separate answers."""
        text, tokens = self._written(talk)
        missing = tuple(left_out(talk, text))
        if any(is_mute(answer, missing) for answer in talk.answers):
            _, tokens = self._written(talk.without(missing))
        return EncodedTalk(tokens, missing)

    def _written(self, talk: Talk) -> tuple[str, Tokens]:
        if self._is_marked:
            text, spans = self._template.marked(talk)
            return text, self._with_ends(self._by_marks(text, spans))
        pieces = self._template.pieces(talk)
        tokens = flagged((self._tokens(piece), is_learned) for piece, is_learned in pieces)
        return "".join(piece for piece, _ in pieces), self._with_ends(tokens) if self._is_open else tokens

    def _by_marks(self, text: str, spans: Sequence[tuple[int, int]]) -> Tokens:
        """A token belongs to an answer if any character of it does."""
        encoded = self._tokenizer(text, add_special_tokens=False, verbose=False, return_offsets_mapping=True)
        tokens = np.asarray(encoded["input_ids"], np.int32)
        learned, coming = np.zeros(len(tokens), bool), iter(spans)
        span = next(coming, None)
        for number, (begin, end) in enumerate(encoded["offset_mapping"]):
            while span is not None and begin >= span[1]:
                span = next(coming, None)
            learned[number] = span is not None and end > span[0]
        return flagged([(np.where(learned, tokens, tokens | HIDDEN).astype(np.int32), True)])

    def _with_ends(self, tokens: Tokens) -> Tokens:
        """With the token learned that closes each answer right behind it: some templates leave it outside of their
        marks, or begin the next turn with it, and the model would never stop."""
        for end in ends_of(tokens):
            tokens[end : self._closed_at(tokens & NUMBER, int(end))] &= NUMBER
        is_unclosed = self._is_open and tokens[-1] <= NUMBER
        return np.append(tokens, np.int32(self.closing or 0)) if is_unclosed else tokens

    def _closed_at(self, tokens: Tokens, start: int) -> int:
        """The position after the token that closes an answer, if only white space is before it; otherwise `start`."""
        for place in range(start, len(tokens)):
            if tokens[place] == self.closing or (self._is_open and int(tokens[place]) in self._special):
                return place + 1
            if not str(self._tokenizer.decode([int(tokens[place])])).isspace():
                break
        return start

    def rest(self) -> None:
        """No conversation follows for a while."""
        self._template.rest()

    def _tokens(self, text: str) -> Tokens:
        return tokens_of(self._tokenizer, text)

    def prompt(self, messages: Sequence[dict[str, Any]]) -> list[int]:
        """The prompt of a model that answers the last message. Raises BadInput, BadSpec."""
        ids: list[int] = self._tokens(self._template.prompt(messages)).tolist()
        return ids

    @property
    def closing(self) -> int | None:
        """The token with which the template ends an answer, or else the user's next turn begins (GLM-4); None if it
        uses no special token."""
        return self._end if self._end is not None else self._next

    @property
    def _is_open(self) -> bool:
        """Whether answers end where the next turn begins."""
        return self._end is None and self._next is not None

    @cached_property
    def _end(self) -> int | None:
        return self._behind_an_answer()

    @cached_property
    def _next(self) -> int | None:
        found = self._behind_an_answer({"role": "user", "content": ASKED})
        # It begins a text, and a conversation of some templates, too, has several.
        return None if found == self._tokenizer.bos_token_id else found

    @cached_property
    def _special(self) -> frozenset[int]:
        """Tokens that are no text."""
        return frozenset({*self._tokenizer.added_tokens_decoder, self._tokenizer.eos_token_id})

    def _behind_an_answer(self, *then: Message) -> int | None:
        """The first special token that comes after one, with nothing but white space before it."""
        messages = [{"role": "user", "content": ASKED}, {"role": ASSISTANT, "content": PROBE}, *then]
        try:
            text = self._template.whole(Talk(messages))
        except BadInput:
            return None
        for token in self._tokens(text.rpartition(PROBE)[2]).tolist():
            if token in self._special:
                return int(token)
            if not str(self._tokenizer.decode([token])).isspace():
                return None
        return None
