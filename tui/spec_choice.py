"""The spec that a command line means: a file or a shipped one, with values laid over it."""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from dht.errors import BadInput
from peer.schema.events import printable
from tui.command_line import Argument, Option
from tui.processes.children import python_module
from tui.processes.one_shot import answer

if TYPE_CHECKING:
    from peer.schema.spec import RunSpec

SPEC = "a TOML file, or the name of a shipped one, such as micro, tiny, smollm2-135m-code"
Spec = Annotated[str, Argument(SPEC, "SPEC")]
Sets = Annotated[
    tuple[str, ...],
    Option("change one value of the spec, as in --set round.steps=50; repeatable", "TABLE.KEY=VALUE", flag="--set"),
]


def choose_spec(
    name_or_path: str, *, sets: Sequence[str] = (), fixed: Mapping[str, Any] | None = None, drafts: bool = False
) -> RunSpec:  # fmt: skip
    """The spec for `name_or_path`, with the `table.key=value` texts and then `fixed` (dotted keys) applied.

    If it starts from a model, that is loaded once, and the spec gets the values that follow from it. A draft that
    describes its model in [model] is not loaded if `drafts` are allowed. Raises BadSpec for the spec, and BadInput for
    a text that is not `table.key=value` or contradicts a fixed value.
    """
    from peer.schema.spec import from_mapping, parse_tables, read_text

    table = parse_tables(read_text(name_or_path), name_or_path)
    if not is_to_adopt(table):
        from_mapping(table, name_or_path)  # names the file in its errors, before anything is laid over it
    lay_over(table, sets)
    for key, value in (fixed or {}).items():
        _refuse_other(sets, key, value)
        _put(table, key, value, key)
    if is_to_adopt(table) and not (drafts and "architecture" in table.get("model", {})):
        adopt(table)
    return from_mapping(table, name_or_path if not sets else f"{name_or_path} with --set {' --set '.join(sets)}")


ADOPT_S = 3600.0
"""The time limit for loading even the largest model."""


def is_to_adopt(table: Mapping[str, Any]) -> bool:
    start = table.get("start")
    return isinstance(start, dict) and "model" in start and not start.get("digest")


def adopt(table: dict[str, Any]) -> None:
    """Fill [model] and [start] with what follows from the named model. A child process does it, since it loads
    torch."""
    own = {key: value for key, value in table.get("model", {}).items() if key in ("context", "tokenizer")}
    asked = {
        "model": table["start"]["model"], "revision": table["start"].get("revision", ""), "own": own,
        "template": table.get("data", {}).get("template", ""),
    }  # fmt: skip
    said = answer("model to start from", python_module("peer", "adopt", json.dumps(asked)), ADOPT_S)
    found = json.loads(said.splitlines()[-1])
    if found["filled_in"]:
        print(printable(found["filled_in"]), file=sys.stderr, flush=True)
    table["model"] = found["model"]
    table["start"] |= found["start"]


def lay_over(table: dict[str, Any], sets: Sequence[str]) -> None:
    """Apply `table.key=value` texts. Raises BadInput."""
    for text in sets:
        key, value = _parse_setting(text)
        _put(table, key, value, text)


def _refuse_other(sets: Sequence[str], key: str, value: Any) -> None:
    """Raises BadInput if a text sets another value than `value` for this key: it would be overwritten silently."""
    for text in sets:
        if _parse_setting(text)[0] == key and _parse_setting(text)[1] != value:
            raise BadInput(f"--set {text}: another option has {key} = {json.dumps(value)}; leave one of them out")


def _parse_setting(text: str) -> tuple[str, Any]:
    """`round.steps=50` → ("round.steps", 50). The value is TOML; a bare word is a string."""
    key, equals, value = text.partition("=")
    key, value = key.strip(), value.strip()
    if not equals or not value or "." not in key or not all(key.split(".")):
        raise BadInput(f"--set {text}: write table.key=value, for example --set round.steps=50")
    try:
        return key, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key, value


def _put(table: dict[str, Any], key: str, value: Any, text: str) -> None:
    *path, last = key.split(".")
    for step in path:
        table = table.setdefault(step, {})
        if not isinstance(table, dict):
            raise BadInput(f"--set {text}: {step!r} is a value, not a table")
    table[last] = value
