"""The settings and the last command of this peer's owner, kept for its next start (both 0600).

DIR/settings.toml    the settings that differ from the defaults
DIR/desired.json     the last of pause, resume, finish and snooze
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from dht.atomic_files import write_atomic
from dht.errors import BadInput, BadSpec
from peer.node.limits.desired_state import Desired, Intent
from peer.schema.settings import PeerSettings, dump_settings, settings_of

FILE, WISH = "settings.toml", "desired.json"
LATEST_S = 1e11
"""No snooze ends after that, in Unix time."""
HEAD = "# What the owner of this peer chose; all else is as homefires has it. Edit it while the peer does not run.\n"


def read_table(directory: Path) -> dict[str, Any]:
    """The settings of a run directory by name; empty if none were ever chosen. Raises BadSpec that names the file."""
    path = directory / FILE
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadSpec(f"{path} is not TOML ({error}); correct it, or remove it to begin with the defaults") from error
    except OSError as error:
        raise BadSpec(f"{path} cannot be read: {error.strerror}") from error
    settings_of(table, str(path))
    return table


def write(directory: Path, settings: PeerSettings) -> None:
    """Keep the settings for the next start. Raises DiskFull, and then the old ones are there."""
    write_atomic(directory / FILE, (HEAD + dump_settings(settings)).encode(), private=True)


def read_wish(directory: Path) -> Desired:
    """The owner's last command; to train, if none is kept. Raises BadInput that names the file."""
    path = directory / WISH
    try:
        row = json.loads(path.read_text(encoding="utf-8"))
        wished = Desired(Intent(row["wish"]), None if row["until"] is None else float(row["until"]))
        if not 0 <= (wished.snoozed_until or 0.0) < LATEST_S:
            raise ValueError("until is no time")
    except FileNotFoundError:
        return Desired()
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, KeyError) as error:
        raise BadInput(f"{path} is damaged; remove it, and the peer trains") from error
    return wished


def write_wish(directory: Path, wished: Desired) -> None:
    """Keep it for the next start. Raises DiskFull, and then the old one is there."""
    row = {"wish": wished.wish.value, "until": wished.snoozed_until}
    write_atomic(directory / WISH, (json.dumps(row) + "\n").encode(), private=True)
