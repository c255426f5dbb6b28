"""`DIR/settings.toml` (0600): what this peer's owner chose, as far as it is not the default."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from dht.errors import BadSpec
from dht.files import write_whole
from peer.settings import PeerSettings, dump_settings, settings_of

FILE = "settings.toml"
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
    write_whole(directory / FILE, (HEAD + dump_settings(settings)).encode(), private=True)
