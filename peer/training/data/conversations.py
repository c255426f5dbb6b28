"""Conversations in local files and in rows of data sets, as documents of one line of JSON each."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from dht.errors import BadInput
from peer.schema.toml_tables import shortened
from peer.training.data.chat.talk_text import ASSISTANT
from peer.training.data.data_shards import Document
from peer.training.data.reading.data_files import FoundFiles
from peer.training.data.reading.file_rows import KEYS, Findings, rows_of
from peer.training.data.reading.plain_text import without_surrogates

UNNAMED = "text"
"""What `data.text_field` is in a run that names none."""
ROLES: Mapping[str, str] = {
    "human": "user", "user": "user", "system": "system",
    **dict.fromkeys((ASSISTANT, "gpt", "chatgpt", "bard", "bing", "bot", "ai", "model"), ASSISTANT),
}  # fmt: skip
"""In ShareGPT's words, Gemini's, and in ours, in any case; any other stays as it is."""
MEDIA = ("image", "images", "video", "videos", "audio", "audios")
"""Of a row, what its texts are about."""


def conversations_of(found: FoundFiles, text_field: str, told: Findings) -> Iterator[Document]:
    """One for every row."""
    for file in found.files:
        for where, row in rows_of(file, None, told):
            try:
                line = as_line(row, text_field, where)
            except BadInput as error:
                told.fault(error)
                continue
            yield Document(where, line)


def as_line(row: Any, text_field: str, where: str) -> str:
    """The conversation of a row as JSON, see `Talk`. Raises BadInput that names `where`."""
    keys = KEYS if text_field == UNNAMED else (text_field,)
    found = next((row[key] for key in keys if key in row), None) if isinstance(row, Mapping) else None
    try:
        found = json.loads(found) if isinstance(found, str) else found  # as CSV and some tables hold lists
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list) or not found:
        raise BadInput(f"{where} has no list of messages named {' or '.join(keys)}; data.text_field names it")
    messages = [_message(each, where) for each in found]
    if messages[0]["role"] == ASSISTANT:
        raise BadInput(f"{where} begins with an answer; put what was asked before it, or remove it")
    if all(each["role"] != ASSISTANT for each in messages):
        roles = shortened(", ".join(sorted({each["role"] for each in messages})))
        raise BadInput(f"{where} has no answer: its roles are {roles}; call the one that answers assistant")
    if seen := next((key for key in MEDIA if row.get(key)), None):
        raise BadInput(f"{where} has {seen}; texts alone are learned, so remove it")
    tools = _tools(row.get("tools"), where)
    said = {"messages": messages, "tools": tools} if tools else messages
    return without_surrogates(json.dumps(said, ensure_ascii=False))


def _message(value: Any, where: str) -> dict[str, Any]:
    """A message in transformers' form: keys without a value are left out."""
    said = dict(value) if isinstance(value, Mapping) else {}
    role = said.pop("role", None) or said.pop("from", None)
    content = said.pop("content", None)
    if content is None:
        content = said.pop("value", None)
    calls, weight = said.get("tool_calls") or [], said.get("weight")
    if not isinstance(role, str) or not isinstance(content, str | list | None):
        raise BadInput(f"{where} has a message that is {shortened(value)}; it has texts named role and content")
    if not isinstance(calls, list) or not all(_is_call(call) for call in calls):
        raise BadInput(f"{where} has tool_calls that are {shortened(calls)}; each has a function with a name")
    if weight not in (None, 0, 1):
        raise BadInput(f"{where} has a weight of {shortened(weight)}; it is 0 for what is not learned, or 1")
    message = {"role": ROLES.get(role.lower(), role)}
    if content is not None:
        message["content"] = _joined(content, where)
    return message | {key: each for key, each in said.items() if each is not None and each != []}


def _is_call(call: Any) -> bool:
    function = call.get("function", call) if isinstance(call, Mapping) else None
    return isinstance(function, Mapping) and isinstance(function.get("name"), str)


def _joined(content: str | list[Any], where: str) -> str:
    """The texts of parts, one after the other: many templates take no parts, and all take text."""
    if isinstance(content, str):
        return content
    texts: list[Any] = [part.get("text") if isinstance(part, Mapping) else part for part in content]
    for part, text in zip(content, texts, strict=True):
        if not isinstance(text, str) or (isinstance(part, Mapping) and part.get("type", "text") != "text"):
            raise BadInput(f"{where} has a part that is {shortened(part)}; texts alone are learned, so remove it")
    return "".join(texts)


def _tools(said: Any, where: str) -> list[Any]:
    """Tools, also as JSON text: columns of tables hold them so, since each tool has other fields."""
    try:
        tools = json.loads(said) if isinstance(said, str) and said.strip() else said or []
    except (ValueError, RecursionError):
        tools = None
    if not isinstance(tools, list) or not all(isinstance(tool, Mapping) for tool in tools):
        raise BadInput(f"{where} has tools that are {shortened(said)}; they are a list of JSON schemas")
    return tools
