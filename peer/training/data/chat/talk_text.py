"""What is known of a conversation without a template: which of its answers are learned, and its texts.

A conversation is kept as JSON: a list of messages, or `{"messages": [...], "tools": [...]}` where it has tools.
Messages are as transformers' `apply_chat_template` takes them; in addition `weight` says whether an answer is learned.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Message = Mapping[str, Any]
"""`role`, and what it says: `content`, `tool_calls`, `reasoning_content` and whatever else a template asks for."""
ASSISTANT = "assistant"
REASONING = ("reasoning_content", "reasoning", "thinking")
"""Names under which templates find what was thought before an answer."""
SAID = ("content", "tool_calls", *REASONING)
"""Keys under which an assistant says something."""
UNSAID = frozenset({"role", "weight", "tool_call_id"})
"""Keys of a message that are no text of it."""


@dataclass(frozen=True)
class Talk:
    """One conversation."""

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] = ()
    """The tools that the assistant may call, as JSON schemas."""

    @classmethod
    def from_json(cls, text: str) -> Talk:
        said = json.loads(text)
        return cls(said) if isinstance(said, list) else cls(said["messages"], said["tools"])

    @property
    def answers(self) -> Iterator[Message]:
        return (message for message in self.messages if message["role"] == ASSISTANT)

    def without(self, left_out: Collection[str]) -> Talk:
        """The same, in which no answer is learned that is nothing but these keys."""
        return Talk([{**each, "weight": 0} if is_mute(each, left_out) else each for each in self.messages], self.tools)

    @property
    def learned(self) -> list[bool]:
        """For each message whether it is predicted: an answer with text, and without a weight of 0."""
        return [
            message["role"] == ASSISTANT and not is_empty(message) and not is_without_weight(message)
            for message in self.messages
        ]


def is_empty(message: Message) -> bool:
    """Whether a message has no text, no call and no thought: only its end could be learned."""
    said = (message.get(key) for key in SAID)
    return not any(each.strip() if isinstance(each, str) else each for each in said)


def is_mute(message: Message, left_out: Collection[str]) -> bool:
    """Whether a message is nothing but what a template leaves out: it would teach to answer nothing."""
    if message.get("content"):
        return False
    said = {"reasoning_content" if key in REASONING else key for key in SAID if message.get(key)}
    return bool(said) and said <= set(left_out)


def is_without_weight(message: Message) -> bool:
    return bool(message.get("weight", 1) == 0)


def left_out(talk: Talk, text: str) -> Iterator[str]:
    """The key of each thing that is in the conversation and not in `text`, which a template has made of it. White
    space does not count, and neither does the JSON escaping of a character, since templates change both."""
    written = _bare(text)

    def is_written(said: str) -> bool:
        return _bare(said) in written or _bare(json.dumps(said)[1:-1]) in written

    for message in talk.messages:
        for key, value in message.items():
            if key not in UNSAID and not all(map(is_written, _texts(key, value))):
                yield "reasoning_content" if key in REASONING else key
    yield from ("tools" for tool in talk.tools if not is_written(str(tool.get("function", tool).get("name", ""))))


def _bare(text: str) -> str:
    return "".join(text.split())


def _texts(key: str, value: Any) -> Iterator[str]:
    """For calls the names and arguments: ids and kinds belong to the interface."""
    if key == "tool_calls":
        for call in value:
            function = call.get("function", call)
            yield str(function.get("name", ""))
            yield from _leaves(function.get("arguments", ""))
        return
    yield from _leaves(value)


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield str(key)
            yield from _leaves(each)
    elif isinstance(value, list):
        for each in value:
            yield from _leaves(each)
