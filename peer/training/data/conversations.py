"""Conversations in files of this machine, and in rows of data sets: as documents, each of one line of JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from dht.errors import BadInput
from peer.schema.toml_tables import shortened
from peer.training.data.chat.chat_template import ASSISTANT, Message
from peer.training.data.reading.data_files import FoundFiles, find_files, require_some
from peer.training.data.reading.file_rows import KEYS, Findings, rows_of
from peer.training.data.reading.plain_text import without_surrogates
from peer.training.data.source import Document

UNNAMED = "text"
"""What `data.text_field` is in a run that names none."""
ROLES: Mapping[str, str] = {"human": "user", "gpt": ASSISTANT, "user": "user", ASSISTANT: ASSISTANT, "system": "system"}
"""In ShareGPT's words, and in ours; any other stays as it is."""


def read_conversations(path: str, text_field: str) -> Iterator[Document]:
    """A document for every row of the files at `path`. Raises BadInput with file and row, and BadSpec."""
    found = find_files(path).of_rows()
    require_some(found, path)
    yield from conversations_of(found, text_field, Findings())


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
    """The messages of a row as JSON: a list of `Message`. Raises BadInput that names `where`."""
    keys = KEYS if text_field == UNNAMED else (text_field,)
    found = next((row[key] for key in keys if key in row), None) if isinstance(row, Mapping) else None
    if not isinstance(found, list) or not found:
        raise BadInput(f"{where} has no list of messages named {' or '.join(keys)}; data.text_field names it")
    messages = [_message(each, where) for each in found]
    if messages[0]["role"] == ASSISTANT or all(each["role"] != ASSISTANT for each in messages):
        raise BadInput(f"{where} is no conversation in which an assistant answers; remove it")
    return without_surrogates(json.dumps(messages, ensure_ascii=False))


def _message(value: Any, where: str) -> Message:
    if isinstance(value, Mapping):
        role, content = value.get("role", value.get("from")), value.get("content", value.get("value"))
        if isinstance(role, str) and isinstance(content, str):
            return {"role": ROLES.get(role, role), "content": content}
    raise BadInput(f"{where} has a message that is {shortened(value)}; it has texts named role and content")
