"""Every code that a person can meet, in words: what it means, and what to do. The one place for such texts."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping

from dht.errors import BadInput
from tui.text.codes.advice import CodePage
from tui.text.codes.alerts import ALERTS
from tui.text.codes.exits import EXITS
from tui.text.codes.holds import HOLDS
from tui.text.codes.penalties import PENALTY_PAGES
from tui.text.codes.states import LOG, STATES

ADVICE = PENALTY_PAGES
"""What a contribution counted less for."""

KINDS: Mapping[str, Mapping[str, CodePage]] = {
    "penalty": PENALTY_PAGES, "alert": ALERTS, "reason to pause": HOLDS, "state": STATES, "line of the log": LOG,
    "exit code": EXITS,
}  # fmt: skip
"""A code can be of several kinds."""

UNKNOWN = CodePage(
    category="errors", short="", meaning="This client does not know the code; a newer one may.", remedy="Update."
)


def advice_of(code: str) -> CodePage:
    """What a penalty means; an unknown one is an error that a newer client explains."""
    return ADVICE.get(code, UNKNOWN)


def pages_of(code: str) -> Iterator[tuple[str, CodePage]]:
    """(kind, page) of each meaning of a code."""
    return ((kind, pages[code]) for kind, pages in KINDS.items() if code in pages)


def explain(code: str) -> list[str]:
    """All that is known of a code, as lines for people. Raises BadInput, with the closest one, for what is no code."""
    name = code.strip().upper()
    lines: list[str] = []
    for kind, page in pages_of(name):
        lines += ["", f"{name} ({kind}): {page.short}"]
        lines += [text for text in (page.meaning, page.remedy and f"What to do: {page.remedy}") if text]
    if lines:
        return lines[1:]
    known = sorted({each for pages in KINDS.values() for each in pages})
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    hint = f"did you mean {close[0]}?" if close else "homefires explain alone lists all"
    raise BadInput(f"there is no code {code!r}; {hint}")


def list_all() -> list[str]:
    """Every code on a line of its own, by kind."""
    lines: list[str] = []
    for kind, pages in KINDS.items():
        lines += ["", f"{kind}:"]
        lines += [f"  {code:<14}{page.short}" for code, page in sorted(pages.items(), key=_by_number_or_name)]
    return [*lines[1:], "", "more about one of them: homefires explain CODE"]


def _by_number_or_name(item: tuple[str, CodePage]) -> tuple[int, str]:
    return (int(item[0]), "") if item[0].isdigit() else (0, item[0])
