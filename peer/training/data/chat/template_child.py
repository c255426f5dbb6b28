"""The process in which a chat template runs: a stranger's program, with limits of time and memory.

It reads JSON lines from a socket, which is its standard input and output: first the template, and then requests, each
of which it answers with a line. `template_process.py` is the other end.
"""

from __future__ import annotations

import json
import random
import resource
import signal
import sys
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

MOST_BYTES = 1 << 30
"""Of address space. Nothing but transformers' templates is loaded, which takes 0.2 GB."""
MOST_CHARACTERS = 1 << 25
"""Of a conversation as a template writes it."""
ASSISTANT = "assistant"
REWRITES = (
    "rewrites earlier messages, so that nobody can tell which tokens are the assistant's; name a template for training "
    "with data.template, such as qwen3 for Qwen3 and its like, or deepseek for what was distilled from DeepSeek-R1"
)


class Rewrites(ValueError):
    """A template that rewrites earlier turns, so that its answers cannot be told."""


class Template:
    """A template that is ready to be rendered. Raises jinja's errors for a text that is none."""

    def __init__(self, asked: dict[str, Any]) -> None:
        from transformers.utils import chat_template_utils as templates

        self._render: Any = templates.render_jinja_template
        self._plain, self._with_tools, self._special = asked["plain"], asked["with_tools"], asked["special"]
        self._end: str = self._special.get("eos_token") or ""
        today = datetime.fromisoformat(asked["date"])
        compiled: Any = templates._compile_jinja_template
        for text in {self._plain, self._with_tools}:
            # All peers train on the same text, also after midnight.
            compiled(text).globals["strftime_now"] = today.strftime

    def text(self, messages: Sequence[Any], tools: Any, *, prompts: bool = False) -> str:
        """The text of messages; with `prompts` up to where the assistant's next one begins."""
        return self._written(messages, tools, add_generation_prompt=prompts)[0]

    def marked(self, messages: Sequence[Any], tools: Any) -> tuple[str, list[tuple[int, int]]]:
        """The text, and the spans that it marks as answers."""
        return self._written(messages, tools, return_assistant_tokens_mask=True)

    def _written(self, messages: Sequence[Any], tools: Any, **options: bool) -> tuple[str, list[tuple[int, int]]]:
        random.seed(0)  # jinja has a filter that draws
        (text,), spans = self._render(
            conversations=[messages], tools=tools or None, chat_template=self._with_tools if tools else self._plain,
            **options, **self._special,
        )  # fmt: skip
        if len(text) > MOST_CHARACTERS:
            raise MemoryError
        return text, spans[0] if spans else []

    def answered(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request."""
        messages, tools = request["messages"], request["tools"]
        match request["kind"]:
            case "prompt":
                return {"text": self.text(messages, tools, prompts=True)}
            case "whole":
                return {"text": self.text(messages, tools)}
            case "marked":
                text, spans = self.marked(messages, tools)
                return {"text": text, "spans": self._of_learned(spans, messages, tools, request["learned"])}
            case _:
                return {"pieces": list(self._pieces(messages, tools, request["learned"]))}

    def _of_learned(
        self, spans: list[tuple[int, int]], messages: Sequence[Any], tools: Any, learned: Sequence[bool]
    ) -> list[tuple[int, int]]:
        """The spans of learned answers; the number of spans so far tells which belong to which answer."""
        answers = [number for number, message in enumerate(messages) if message["role"] == ASSISTANT]
        if all(learned[number] for number in answers):
            return spans
        found, before = list[tuple[int, int]](), 0
        for number in answers:
            upto = len(self.marked(messages[: number + 1], tools)[1])
            found += spans[before:upto] if learned[number] else []
            before = upto
        return found

    def _pieces(self, messages: Sequence[Any], tools: Any, learned: Sequence[bool]) -> Iterator[tuple[str, bool]]:
        """The pieces of a conversation's text, each with whether it is learned: what follows the prompt for it."""
        text, done = self.text(messages, tools), 0
        for number, message in enumerate(messages):
            if message["role"] != ASSISTANT:
                continue
            prompt = self.text(messages[:number], tools, prompts=True)
            answered = self.text(messages[: number + 1], tools)
            if not text.startswith(answered):  # some close a whole text by end-of-text, and no turn (Phi-3)
                answered = answered.removesuffix(self._end)
            if not (text.startswith(answered) and answered.startswith(prompt)):
                raise Rewrites(REWRITES)
            yield text[done : len(prompt)], False
            yield text[len(prompt) : len(answered)], learned[number]
            done = len(answered)
        yield text[done:], False


def main() -> None:
    """Serve requests until the other end is closed."""
    from transformers.utils import chat_template_utils  # noqa: F401  before its time is counted

    lines, out = sys.stdin.buffer, sys.stdout.buffer
    template: Template | None = None
    for line in iter(lines.readline, b""):
        request = json.loads(line)
        if template is None:
            most_s = request["most_s"]
            limit()
        # What takes longer ends this process, whatever it does meanwhile.
        signal.setitimer(signal.ITIMER_PROF, most_s)
        try:
            template = template or Template(request)
            said = template.answered(request) if "kind" in request else {}
        except Rewrites as error:
            said = {"wrong": str(error)}
        except (MemoryError, RecursionError):
            said = {"wrong": f"takes more memory than a conversation may, {MOST_BYTES >> 20:,} MiB"}
        except Exception as error:  # whatever a stranger's program raises
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            said = {"refused": reason} if template else {"wrong": f"is none: {reason}"}
        out.write(json.dumps(said).encode() + b"\n")
        out.flush()
        signal.setitimer(signal.ITIMER_PROF, 0)


def limit() -> None:
    """For the rest of this process's life: limited memory, and no file."""
    for what, most in ((resource.RLIMIT_AS, MOST_BYTES), (resource.RLIMIT_FSIZE, 0)):
        _, hard = resource.getrlimit(what)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (most, most))


if __name__ == "__main__":
    main()
