"""Conversations in which an assistant calls tools, made from a seed."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

CITIES = (
    "Paris", "Rome", "Cairo", "Lima", "Tokyo", "Delhi", "Quito", "Dublin", "Vienna", "Athens", "Seoul", "Hanoi",
    "Nairobi", "Boston", "Prague", "Madrid", "Sydney", "Bogota", "Kyoto", "Munich",
)  # fmt: skip
ASKED = {
    "weather": ("What is the weather in {}?", "How warm is it in {} today?", "Do I need a coat in {}?"),
    "timer": ("Set a timer for {} minutes.", "Wake me in {} minutes.", "Remind me in {} minutes, please."),
}
ARGUMENT = {"weather": "city", "timer": "minutes"}


def tools() -> list[dict[str, Any]]:
    """Their schemas, as a chat template takes them."""
    types = {"weather": "string", "timer": "integer"}
    return [
        {
            "type": "function",
            "function": {"name": name, "parameters": {"properties": {argument: {"type": types[name]}}}},
        }
        for name, argument in ARGUMENT.items()
    ]


def question(name: str, value: str | int, wording: int = 0) -> dict[str, Any]:
    return {"role": "user", "content": ASKED[name][wording].format(value)}


def call(name: str, value: str | int) -> dict[str, Any]:
    """The turn that is due after a question for this tool."""
    function = {"name": name, "arguments": {ARGUMENT[name]: value}}
    return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}


def result(name: str, value: str | int, found: int) -> list[dict[str, Any]]:
    """What the tool says, and the turn that is due after it."""
    if name == "weather":
        said, told = json.dumps({"degrees": found}), f"It is {found} degrees in {value}."
    else:
        said, told = json.dumps({"ends": f"{found}:00"}), f"Your timer ends at {found}:00."
    return [{"role": "tool", "content": said}, {"role": "assistant", "content": told}]


def write_tool_talks(folder: Path, count: int, seed: int) -> None:
    """So many conversations with two tools, of which one is called, in one file."""
    folder.mkdir()
    draw, lines = Random(seed), []
    for _ in range(count):
        name = draw.choice(list(ASKED))
        value: str | int = draw.choice(CITIES) if name == "weather" else draw.randint(2, 59)
        wording, found = draw.randrange(3), draw.randint(1, 35 if name == "weather" else 23)
        messages = [question(name, value, wording), call(name, value), *result(name, value, found)]
        lines.append(json.dumps({"messages": messages, "tools": tools()}))
    (folder / "talks.jsonl").write_text("".join(f"{line}\n" for line in lines))
