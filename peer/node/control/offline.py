"""`python -m peer.node.control.offline DIR '{"cmd":"pause"}'`: a command for a peer that does not run.

It is kept for the peer's next start, after the checks of a running peer and under the folder's lock. Commands are those
of the control socket (`peer.node.control.server`): pause, resume, finish, snooze with `minutes`, set with `values`. The
answer is one JSON object: `kept`, and for `set` the name and the settings.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from dht.errors import BadInput, HomefiresError
from dht.process import die_with_parent, lock_directory
from peer.node.control import saved_settings
from peer.node.control.server import settings_asked, snooze_s
from peer.node.limits.desired_state import Desired, Intent
from peer.schema.live_settings import LiveSettings
from peer.schema.settings import settings_of


def keep(directory: Path, cmd: str, fields: Mapping[str, Any], now: float) -> Mapping[str, Any]:
    """The fields of the answer; `now` is Unix time. Raises BadInput for a bad value, DirectoryBusy if a peer runs
    there, DiskFull; then nothing has changed."""
    if cmd not in ("pause", "resume", "finish", "snooze", "set"):
        raise BadInput(f"no peer runs in {directory}, so that there is nothing to {cmd}")
    settings_of({})  # what reads them is made now: a peer that starts waits a quarter of a second for its folder
    with lock_directory(directory):
        if cmd == "set":
            chosen = LiveSettings(
                settings_of(saved_settings.read_table(directory)), partial(saved_settings.write, directory)
            )
            chosen.change(settings_asked(fields.get("values")))
            return {"kept": True, "name": chosen.settings.name, "settings": asdict(chosen.settings)}
        until = now + snooze_s(fields.get("minutes")) if cmd == "snooze" else None
        saved_settings.write_wish(directory, Desired(Intent.TRAIN if cmd == "snooze" else Intent(cmd), until))
        return {"kept": True}


def main(words: Sequence[str]) -> int:
    """Print the answer; the exit code of `dht.errors`."""
    die_with_parent()
    directory, request = Path(words[0]), json.loads(words[1])
    try:
        answer = keep(directory, request.pop("cmd"), request, time.time())
    except HomefiresError as error:
        print(f"homefires: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"homefires: {error.filename}: {error.strerror}", file=sys.stderr)
        return BadInput.exit_code
    print(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
