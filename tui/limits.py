"""`homefires set` and `homefires snooze`: what a volunteer allows the peer of this machine.

The peer alone checks and writes settings. One that does not run is not written for: a person is told where it looks.
"""

from __future__ import annotations

import json
import textwrap
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dht.errors import BadInput, BadSpec, Unreachable
from peer.events import printable
from tui.control import PeerControl, name_of, note_of
from tui.holds import PeerStatus, clock, duty_words, hold_words, next_words, read_status
from tui.settings import KNOWN, Setting, check_name, grouped, in_words, to_value
from tui.status import is_locked

NAME, VALUE = 20, 26
"""Cells of the columns of the table."""
WIDE = 132
"""Cells from which a setting and its meaning stand on one line."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """The settings of a run directory, and what they hold up just now."""

    directory: Path
    running: bool
    settings: Mapping[str, Any]
    status: PeerStatus


def snooze(directory: Path, hours: float, now: float) -> str:
    """Have the peer pause for so long; one line about it. Raises BadInput and Unreachable."""
    if not 0 < hours < float("inf"):
        raise BadInput(f"HOURS is {hours:g}; give how many hours the peer shall pause, as in: homefires snooze 3")
    minutes = max(1, round(60 * hours))
    reply = PeerControl(directory).require("snooze", minutes=minutes)
    until = clock(now + 60 * minutes, now)
    return f"{name_of(reply)} is snoozed until {until}: what it has made is given; sooner with: homefires resume"


def change(directory: Path, assignments: Sequence[str]) -> list[str]:
    """Give the peer `KEY=VALUE` words; a line for each that was changed. Raises BadInput and Unreachable."""
    typed = [_split(assignment) for assignment in assignments]
    control = PeerControl(directory)
    if not is_locked(directory / "run" / "lock"):
        raise Unreachable(_what_to_write(directory, typed))
    status = read_status(control.require("status").fields)
    values = {key: to_value(text, status.settings.get(key, "")) for key, text in typed}
    reply = control.require("set", values=values)
    after = read_status(reply.fields).settings or {**status.settings, **values}
    said = [f"{name_of(reply)}: {key} is {in_words(_known(key), after.get(key))}" for key in values]
    return [*said, *([note] if (note := note_of(reply)) else [])]


def read_table(directory: Path) -> Table:
    """What the peer of a directory allows; of one that does not run, what its file says. Raises BadInput."""
    if not directory.is_dir():
        raise BadInput(f"{directory} is no folder; name that of a peer with --dir")
    running = is_locked(directory / "run" / "lock")
    status = read_status(PeerControl(directory).request("status").fields) if running else PeerStatus()
    return Table(
        directory=directory, running=running, settings=status.settings or _settings_on_disk(directory), status=status
    )


def describe(table: Table, now: float, width: int = WIDE) -> list[str]:
    """The table for people: by group, each with its meaning and what it holds up. In fewer cells than `WIDE` the
    meaning of each stands below it."""
    lines, shown = [_head(table), *_held(table.status, now)], ""
    for group, setting, value in grouped(table.settings):
        lines += ["", group] if group != shown else []
        shown = group
        start = " (when it starts again)" if setting.at_start else ""
        head, meaning = f"  {setting.name:<{NAME}}{in_words(setting, value):<{VALUE}}", f"{setting.meaning}{start}"
        if width >= WIDE:
            lines.append(f"{head}  {meaning}")
        else:
            below = textwrap.wrap(meaning, max(20, width - 6))
            lines += [head.rstrip(), *(f"      {line}" for line in below)]
        if setting.hold and (hold := table.status.hold(setting.hold)) is not None:
            lines.append(f"  {'':<{NAME}}holds it up now: {hold_words(hold, now)}")
    lines += ["", "change one with: homefires set KEY=VALUE, as in: homefires set max_power_w=180"]
    return [printable(line) for line in lines]


def to_json(table: Table) -> str:
    """The same as one JSON object."""
    settings = {
        setting.name: {
            "value": value, "group": group, "meaning": setting.meaning, "unit": setting.unit, "off": setting.off,
            "at_start": setting.at_start, "holds": bool(setting.hold) and table.status.hold(setting.hold) is not None,
        }
        for group, setting, value in grouped(table.settings)
    }  # fmt: skip
    status = {
        "until": table.status.until, "duty": table.status.duty,
        "holds": [asdict(hold) for hold in table.status.holds],
    }  # fmt: skip
    return json.dumps({"directory": str(table.directory), "running": table.running, **status, "settings": settings})


def _head(table: Table) -> str:
    if table.running:
        return f"the peer in {table.directory} runs; what is changed holds at once"
    return f"no peer runs in {table.directory}; it starts with these"


def _held(status: PeerStatus, now: float) -> list[str]:
    """What holds it up that is no setting, and when it goes on."""
    of_settings = {setting.hold for setting in KNOWN.values()}
    said = [hold_words(hold, now) for hold in status.holds if hold.code not in of_settings]
    return [text for text in (*said, duty_words(status), next_words(status, now)) if text]


def _split(assignment: str) -> tuple[str, str]:
    key, separator, text = assignment.partition("=")
    if not separator or not key:
        raise BadInput(f"{assignment!r} is not of the form KEY=VALUE; homefires set alone shows every KEY")
    return key, text


def _what_to_write(directory: Path, typed: Sequence[tuple[str, str]]) -> str:
    """Where a peer that does not run looks for what it shall be."""
    settings = _settings_on_disk(directory)
    for key, _ in typed:
        check_name(key, settings)
    lines = " and ".join(f"{key} = {_to_toml(to_value(text, settings[key]))}" for key, text in typed)
    where = directory / "settings.toml"
    return f"no peer runs in {directory}; it reads {where} when it starts: write there {lines}"


def _settings_on_disk(directory: Path) -> dict[str, Any]:
    """What a peer that starts there begins with. Raises BadSpec for a file that is not TOML."""
    from peer.settings import PeerSettings

    path = directory / "settings.toml"
    try:
        written = tomllib.loads(path.read_text())
    except FileNotFoundError:
        written = {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadSpec(f"{path} is not TOML: {error}") from error
    defaults = asdict(PeerSettings())
    return {**defaults, **{key: value for key, value in written.items() if key in defaults}}


def _to_toml(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)  # of a flag, a number, a text and a list of texts: the same in TOML


def _known(name: str) -> Setting:
    return KNOWN.get(name, Setting(name=name, meaning=""))
