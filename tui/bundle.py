"""`homefires bundle`: collects what helps to find a bug in one zip file, without anything private.

Nothing is sent anywhere. The useful text files of a run directory go through `tui.redact`; keys, checkpoints, the chain
and all binary files stay where they are.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any, BinaryIO

from dht.errors import BadInput
from peer.schema.events import event_files
from tui.folders import ERROR_LOG, data_root, writing
from tui.redact import Private, Redactor

EVENT_BYTES = 8 << 20
"""The size limit for the newest events."""
LOG_BYTES = 1 << 20
"""The size limit for the end of each log."""
TEXTS = ("spec.toml", "settings.toml", "doctor.json", "doctor.txt")
"""Files that are copied if they are in the folder."""
LOGS = ("peer.log", "peer.log.1", "bootstrap.log", "bootstrap.log.1", "watch.log")
SEED = slice(4, 36)
"""The private key's bytes in `identity.key`."""

README = """\
What this is: the newest events and logs of a homefires peer, its settings, its spec, and the versions of what it uses.
What was taken out: keys, tokens, invites, IP and network card addresses, host names, user names, mail addresses.
Still in it: peer ids and the names that volunteers gave their peers, which everybody in the run sees.
Please look through it before you attach it to a bug report. Nothing has been sent anywhere.
"""


def write_bundle(directory: Path, to: Path | None) -> str:
    """Write the zip file. Returns a sentence with its path. Raises BadInput for a folder without a peer."""
    if not (directory / "spec.toml").exists() and not event_files(directory):
        raise BadInput(f"{directory} holds no peer; name the folder of one, as homefires status shows it")
    target = to or Path.cwd() / time.strftime("homefires-bundle-%Y%m%d-%H%M%S.zip")
    with _create(target) as file:
        try:
            with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as bundle:
                for name, text in contents(directory, Redactor(Private.of_this_machine(_keys(directory)))):
                    bundle.writestr(name, text)
        except BaseException:
            target.unlink(missing_ok=True)  # a part of a bundle is none
            raise
    return f"{target} ({target.stat().st_size:,} bytes): look through it, then attach it to your report"


def _create(target: Path) -> BinaryIO:
    """A new file that only its owner may read. Raises BadInput."""
    with writing(target, "--to"):
        return open(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


def contents(directory: Path, redactor: Redactor) -> Iterator[tuple[str, str]]:
    yield "README.txt", README
    yield "versions.json", _json(redactor, versions())
    yield "files.json", _json(redactor, list(files_of(directory)))
    for name in TEXTS:
        if (directory / name).exists():
            yield name, redactor.text((directory / name).read_text(errors="replace"))
    yield "events.jsonl", "".join(f"{redactor.line(line)}\n" for line in newest_events(directory))
    for path in (*(directory / name for name in LOGS), data_root() / ERROR_LOG):
        if path.exists():
            yield path.name, redactor.text(tail(path, LOG_BYTES))


def versions() -> dict[str, Any]:
    """The versions of homefires, its requirements and Python, and the operating system."""
    known = {}
    for requirement in ("homefires", *(requires("homefires") or ())):
        name = re.split(r"[^\w.-]", requirement, maxsplit=1)[0]
        with suppress(PackageNotFoundError):
            known[name] = version(name)
    system = {"system": platform.system(), "release": platform.release(), "machine": platform.machine()}
    return {"python": sys.version, **system, "packages": known}


def files_of(directory: Path) -> Iterator[dict[str, Any]]:
    """The files in the folder: name, size in bytes, and time of the last change (Unix seconds)."""
    for path in sorted(directory.rglob("*")):
        with suppress(OSError):  # the peer may be at work, and a file go
            if path.is_file():
                found = path.stat()
                yield {"name": str(path.relative_to(directory)), "bytes": found.st_size, "t": round(found.st_mtime, 1)}


def newest_events(directory: Path) -> Iterator[str]:
    """The last lines of the event files, the oldest first, at most `EVENT_BYTES` in total."""
    left, chosen = EVENT_BYTES, list[str]()
    for path in reversed(event_files(directory)):
        if left <= 0:
            break
        text = tail(path, left)
        left -= len(text.encode())
        chosen.append(text)
    for text in reversed(chosen):
        yield from text.splitlines()


def tail(path: Path, most_bytes: int) -> str:
    """The end of a file in whole lines."""
    with path.open("rb") as file:
        size_bytes = file.seek(0, 2)
        file.seek(max(0, size_bytes - most_bytes))
        content = file.read(most_bytes)
    if size_bytes > most_bytes:
        content = content.partition(b"\n")[2]
    return content.decode(errors="replace")


def _json(redactor: Redactor, value: Any) -> str:
    return json.dumps(redactor.value(value), indent=1, ensure_ascii=False) + "\n"


def _keys(directory: Path) -> Iterator[bytes]:
    """The private keys of this folder, so that no form of them gets into the bundle."""
    path = directory / "identity.key"
    if path.exists():
        content = path.read_bytes()
        yield content
        yield content[SEED]
