"""`homefires set`, and `--set` of `join`: what a volunteer allows the peer of this machine.

Only the peer checks and writes settings. If it does not run, a child process of its package does.
"""

from __future__ import annotations

import json
import textwrap
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from dht.errors import BadInput, BadSpec
from peer.node.control.client import ControlClient, name_of, note_of
from peer.schema.events import printable
from peer.schema.settings import KNOWN, RENAMED, PeerSettings, SettingInfo, grouped, in_words, settings_of, to_value
from tui.command_line import Argument
from tui.commands.control import is_kept, not_running, order
from tui.commands.options import AsJson, PeerCommand
from tui.folders import is_at_work
from tui.terminal import columns
from tui.text.event_text import PeerStatus, duty_words, hold_words, next_words, read_status

DEFAULTS: Mapping[str, Any] = asdict(PeerSettings())
NAME, VALUE = 20, 26
"""The cells of the columns of the table."""
WIDE = 132
"""From this number of cells on, a setting and its meaning are on one line."""


@dataclass(frozen=True, kw_only=True)
class SetCommand(PeerCommand):
    assignments: Annotated[tuple[str, ...], Argument("give it this value; without any all are shown", "KEY=VALUE")] = ()
    as_json: AsJson = False

    def run(self) -> int:
        place = self.find()
        said = change(place, self.assignments) if self.assignments else []
        if self.as_json:
            print(to_json(read_table(place)))
        else:
            print(*(said or describe(read_table(place), time.time(), columns(WIDE))), sep="\n")
        return 0


@dataclass(frozen=True, kw_only=True)
class SettingsPage:
    """The settings of a run directory, and which of them hold the peer up now."""

    directory: Path
    running: bool
    settings: Mapping[str, Any]
    status: PeerStatus


def change(directory: Path, assignments: Sequence[str]) -> list[str]:
    """Set `KEY=VALUE` words at the peer. Returns a line for each changed setting. Raises BadInput and Unreachable."""
    present = read_table(directory).settings
    values = _values(assignments, present)
    reply = order(directory, "set", values=values)
    after = read_status(reply.fields).settings or {**present, **values}
    known = [KNOWN.get(key, SettingInfo(name=key, meaning="")) for key in values]
    said = [f"{name_of(reply)}: {each.name} is {in_words(each, after.get(each.name))}" for each in known]
    note = f"{not_running(directory)}; it starts with this" if is_kept(reply) else note_of(reply)
    return [*said, *([note] if note else [])]


def values_for_start(assignments: Sequence[str]) -> dict[str, Any]:
    """The values of `KEY=VALUE` words for a peer that is about to start, checked before anybody is asked or anything
    starts. Raises BadInput."""
    values = _values(assignments, DEFAULTS)
    settings_of(values, "--set")
    return values


def keep_for_start(directory: Path, values: Mapping[str, Any]) -> None:
    """Write the settings of `values_for_start` to the folder of a peer. On a command line they would be set again at
    each start, even after the owner has changed them. Raises BadInput, Unreachable."""
    if values:
        order(directory, "set", values=values)


@contextmanager
def kept_if_taken(directory: Path, values: Mapping[str, Any]) -> Iterator[None]:
    """Like `keep_for_start`, but if the peer that is started in the block refuses the settings, the previous ones
    are restored. Raises BadInput, Unreachable, and the error with which the peer ends."""
    before = read_table(directory).settings if values else {}
    keep_for_start(directory, values)
    try:
        yield
    except BadInput:
        if not is_at_work(directory):
            keep_for_start(directory, {key: before[key] for key in values})
        raise


def read_table(directory: Path) -> SettingsPage:
    """The settings of the peer in a directory; if it does not run, those in its file. Raises BadInput."""
    if not directory.is_dir():
        raise BadInput(f"{directory} is no folder; name that of a peer with --dir")
    running = is_at_work(directory)
    status = read_status(ControlClient(directory).request("status").fields) if running else PeerStatus()
    return SettingsPage(
        directory=directory, running=running, settings=status.settings or _settings_on_disk(directory), status=status
    )


def describe(table: SettingsPage, now: float, width: int = WIDE) -> list[str]:
    """The table for people: settings by group, each with its meaning and whether it holds the peer up. With fewer
    cells than `WIDE` each meaning is on a line of its own."""
    whose = f"{not_running(table.directory)}; it starts with these"
    if table.running:
        whose = f"the peer in {table.directory} runs; what is changed holds at once"
    lines, shown = [whose, *_held(table.status, now)], ""
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


def to_json(table: SettingsPage) -> str:
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


def _held(status: PeerStatus, now: float) -> list[str]:
    """What holds the peer up besides settings, and when it goes on."""
    of_settings = {setting.hold for setting in KNOWN.values()}
    said = [hold_words(hold, now) for hold in status.holds if hold.code not in of_settings]
    return [text for text in (*said, duty_words(status), next_words(status, now)) if text]


def _values(assignments: Sequence[str], present: Mapping[str, Any]) -> dict[str, Any]:
    values = {}
    for assignment in assignments:
        key, separator, text = assignment.partition("=")
        if not separator or not key:
            raise BadInput(f"{assignment!r} is not of the form KEY=VALUE; homefires set alone shows every KEY")
        values[key] = to_value(text, present.get(key, ""), key)
    return values


def _settings_on_disk(directory: Path) -> dict[str, Any]:
    """The settings with which a peer would start there. Raises BadSpec for a file that is not TOML."""
    path = directory / "settings.toml"
    try:
        written = tomllib.loads(path.read_text())
    except FileNotFoundError:
        written = {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadSpec(f"{path} is not TOML: {error}") from error
    named = {RENAMED.get(key, key): value for key, value in written.items()}
    return {**DEFAULTS} | {key: value for key, value in named.items() if key in DEFAULTS}
