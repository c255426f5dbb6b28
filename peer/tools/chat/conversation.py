"""`homefires chat`: sends what a person types to a model, and prints its answer as it is generated."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import torch
from transformers import TextStreamer

from peer.schema.events import printable
from peer.tools.chat.loaded_model import LoadedModel, load_model
from peer.training.model.continuation import continued

INTERRUPTED_CODE = 130
HELP = "What you type goes to the model, and what it says to that is printed. To end: Ctrl-D, or /quit."
HELP_WORDS, END_WORDS = ("/help", "/?"), ("/quit", "/exit", "/bye")
"""Lines that are meant for this program, and not for the model."""


@dataclass(frozen=True, kw_only=True)
class Manner:
    """How it answers."""

    temperature: float
    """0: the likeliest token each time."""
    tokens: int
    """Of an answer, at most."""


class PrintedWords(TextStreamer):
    """Writes whole words as soon as they are there, and nothing that a terminal would obey."""

    def __init__(self, tokenizer: Any, out: TextIO) -> None:
        super().__init__(tokenizer, skip_prompt=True, skip_special_tokens=True)
        self._out = out

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        self._out.write("\n".join(printable(line.replace("\t", "    ")) for line in text.split("\n")))
        self._out.write("\n" * stream_end)
        self._out.flush()


@dataclass(kw_only=True)
class Conversation:
    """Of a model whose tokenizer says how turns are written it remembers them; another one continues each text."""

    loaded: LoadedModel
    manner: Manner
    out: TextIO
    turns: list[dict[str, str]] = field(default_factory=list)

    def answer(self, said: str) -> str:
        """What the model says to it, once that is on `out`."""
        loaded, manner, tokenizer = self.loaded, self.manner, self.loaded.tokenizer
        new = continued(
            loaded.model, self._read(said), tokens=min(manner.tokens, self._most), context=loaded.context,
            end=loaded.end, stops=loaded.stops, temperature=manner.temperature,
            streamer=PrintedWords(tokenizer, self.out),
        )  # fmt: skip
        text = str(tokenizer.decode(new, skip_special_tokens=True))
        self.turns.append({"role": "assistant", "content": text})
        return text

    @property
    def _most(self) -> int:
        """Of an answer where what it answers takes no less."""
        return max(1, self.loaded.context // 2)

    def _read(self, said: str) -> list[int]:
        talks = self.loaded.talks
        if talks is None:
            return list(self.loaded.tokenizer(said, add_special_tokens=False)["input_ids"])
        self.turns.append({"role": "user", "content": said})
        while len(ids := talks.prompt(self.turns)) > self.loaded.context - self._most and len(self.turns) > 1:
            del self.turns[:2]  # the oldest question and its answer
        return ids


def chat(folder: Path, manner: Manner, prompt: str | None) -> int:
    """Answer `prompt`, or else each line of standard input; the exit code. Raises what `load_model` does."""
    loaded = load_model(folder)
    # What a person's own terminal draws must differ from one time to the next.
    torch.seed()
    conversation = Conversation(loaded=loaded, manner=manner, out=sys.stdout)
    if prompt is None and sys.stdin.isatty():
        print(f"{loaded.name}. {HELP}", file=sys.stderr)
    try:
        for said in [prompt] if prompt is not None else _typed(input):
            conversation.answer(said)
    except KeyboardInterrupt:
        print()
        return INTERRUPTED_CODE
    return 0


def _typed(read: Callable[[str], str]) -> Iterator[str]:
    """The lines for the model, which are not empty."""
    mark = "> " if sys.stdin.isatty() else ""
    while True:
        try:
            line = read(mark)
        except EOFError:
            return
        match line.strip():
            case "":
                continue
            case word if word in END_WORDS:
                return
            case word if word in HELP_WORDS:
                print(HELP, file=sys.stderr)
            case _:
                yield line
