"""Chat templates for training: shipped ones by name, and files that came with a pretrained model.

Some templates write a turn differently once the conversation has gone on; Qwen3's drops earlier thoughts. Then nobody
can tell which tokens belong to which turn. A template for training writes every turn as the model writes its newest,
and marks its answers.
"""

from __future__ import annotations

import importlib.resources
from pathlib import Path

from dht.errors import BadSpec
from peer.schema.spec_fields import TEMPLATE_FILE, TEMPLATES


def template_of(name: str, folder: Path) -> str:
    """The template that `data.template` names; a file of that name lies in `folder`, with the tokenizer. Empty for
    none: then the tokenizer's own is used. Raises BadSpec."""
    if name in TEMPLATES:
        return (importlib.resources.files("peer.training.data.chat.templates") / f"{name}.jinja").read_text("utf-8")
    if not TEMPLATE_FILE.fullmatch(name):
        return ""
    try:
        return (folder / name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadSpec(
            f"data.template is {name!r}, which is no text beside the tokenizer of the model from which the run starts; "
            f"put it there before the run is founded, or name one of {', '.join(TEMPLATES)}"
        ) from error
