"""Every code that a person can meet, in words: its meaning, and what to do. The texts are in `explain.toml`."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files

from dht.errors import BadInput


@dataclass(frozen=True, kw_only=True)
class CodePage:
    """What a code means, and what a volunteer can do about it."""

    short: str
    """The meaning, on one line."""
    meaning: str = ""
    """The meaning in sentences; empty if the line says everything."""
    remedy: str = ""
    """What to do; empty if nothing needs to be done."""


def _read() -> Iterator[Mapping[str, CodePage]]:
    told = tomllib.loads((files("tui.text") / "explain.toml").read_text("utf-8"))
    for kind in ("penalty", "alert", "rule", "hold", "state", "log", "exit"):
        yield {code: CodePage(**page) for code, page in told[kind].items()}


PENALTY_PAGES, ALERTS, BROKEN_RULES, HOLDS, STATES, LOG, EXITS = _read()

KINDS: Mapping[str, Mapping[str, CodePage]] = {
    "penalty": PENALTY_PAGES, "alert": ALERTS, "rule of a round": BROKEN_RULES, "reason to pause": HOLDS,
    "state": STATES, "line of the log": LOG, "exit code": EXITS,
}  # fmt: skip
"""The pages by kind. A code can be of several kinds."""

UNKNOWN = CodePage(short="", meaning="This client does not know the code; a newer one may.", remedy="Update.")


def advice_of(code: str) -> CodePage:
    """The page of a penalty's code."""
    return PENALTY_PAGES.get(code, UNKNOWN)


def pages_for(code: str) -> Iterator[tuple[str, CodePage]]:
    """(kind, page) for each meaning of a code."""
    return ((kind, pages[code]) for kind, pages in KINDS.items() if code in pages)


def explain(code: str) -> list[str]:
    """Everything that is known about a code, as lines for people. Raises BadInput, with the closest code, for an
    unknown one."""
    name = code.strip().upper()
    lines: list[str] = []
    for kind, page in pages_for(name):
        lines += ["", f"{name} ({kind}): {page.short}"]
        lines += [text for text in (page.meaning, page.remedy and f"What to do: {page.remedy}") if text]
    if lines:
        return lines[1:]
    known = sorted({each for pages in KINDS.values() for each in pages})
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]}?" if close else "homefires explain alone lists all"
    raise BadInput(f"there is no code {code!r}; {hint}")


def list_all() -> list[str]:
    lines: list[str] = []
    for kind, pages in KINDS.items():
        ordered = sorted(pages.items(), key=lambda item: (int(item[0]), "") if item[0].isdigit() else (0, item[0]))
        lines += ["", f"{kind}:", *(f"  {code:<14}{page.short}" for code, page in ordered)]
    return [*lines[1:], "", "more about one of them: homefires explain CODE"]
