"""A conversation in a tokenizer's own words, and which of them are the assistant's answers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dht.errors import BadInput, BadSpec
from peer.training.data.chat.token_flags import BEGINS, HIDDEN

Message = dict[str, str]
"""`role` and `content`."""
ASSISTANT = "assistant"
MARKED = re.compile(r"{%-?\s*generation\s*-?%}")
"""In a template that says itself what is an answer."""


def flagged(pieces: Iterable[tuple[npt.NDArray[np.int32], bool]]) -> npt.NDArray[np.int32]:
    """The tokens of a conversation from its pieces, each with whether it is an answer, with the flags of
    `token_flags`."""
    tokens = np.concatenate([piece if is_answer else piece | HIDDEN for piece, is_answer in pieces]).astype(np.int32)
    tokens[:1] |= HIDDEN | BEGINS
    return tokens


def by_marks(tokenizer: Any, messages: Sequence[Message]) -> npt.NDArray[np.int32]:
    """Tokens with flags, by a template that marks its answers. Raises BadInput for messages that it refuses."""
    made = _applied(tokenizer, messages, tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
    tokens = np.asarray(made["input_ids"], np.int32)
    hidden = np.asarray(made["assistant_masks"]) == 0
    return flagged([(np.where(hidden, tokens | HIDDEN, tokens).astype(np.int32), True)])


def by_prefixes(tokenizer: Any, messages: Sequence[Message]) -> Iterator[tuple[str, bool]]:
    """Pieces of a conversation's text, each with whether it is an answer: what comes behind the prompt for it.

    Each is cut into tokens by itself, as it is when somebody talks to the model. Raises BadInput for messages that the
    template refuses, BadSpec for one that writes the beginning of a conversation in another way once it goes on.
    """
    text, done = _text(tokenizer, messages), 0
    for number, message in enumerate(messages):
        if message["role"] != ASSISTANT:
            continue
        prompt = _text(tokenizer, messages[:number], add_generation_prompt=True)
        answered = _text(tokenizer, messages[: number + 1])
        if not (text.startswith(answered) and answered.startswith(prompt)):
            raise BadSpec(
                "the tokenizer's chat template rewrites earlier messages, so that nobody can tell which tokens are the "
                "assistant's; choose a model whose template does not, or marks them with {% generation %}"
            )
        yield text[done : len(prompt)], False
        yield text[len(prompt) : len(answered)], True
        done = len(answered)
    yield text[done:], False


def _text(tokenizer: Any, messages: Sequence[Message], **options: bool) -> str:
    text: str = _applied(tokenizer, messages, tokenize=False, **options)
    return text


def _applied(tokenizer: Any, messages: Sequence[Message], **options: bool) -> Any:
    from jinja2 import TemplateError

    try:
        return tokenizer.apply_chat_template(list(messages), **options)
    except (TemplateError, TypeError, KeyError, IndexError) as error:
        reason = " ".join(str(error).split())[:200]
        raise BadInput(f"the tokenizer's chat template does not take these messages: {reason}") from error
