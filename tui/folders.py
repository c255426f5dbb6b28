"""The folders of peers on this machine, and which one a command means if it names none.

They lie below the data root; a folder that was chosen with `--dir` has a link there, by which it is found.
"""

from __future__ import annotations

import fcntl
import hashlib
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from platformdirs import user_data_path

from dht.atomic_files import raising_disk_full
from dht.errors import BadInput, DiskFull

REPORTED, AGREED = "events.jsonl", "consent.json"
"""A folder belongs to a peer once somebody has agreed to its run there, or the peer has reported something."""

OF_PEERS = frozenset({REPORTED, AGREED, "identity.key", "settings.toml", "desired.json", "genesis", "run"})
"""Names that may be the first in a peer's folder, and do not occur in folders of other things."""


def runs() -> Path:
    """The folder with the folders of peers, and with links to those elsewhere."""
    return data_root() / "runs"


def is_peers(folder: Path) -> bool:
    """Whether this is the folder of a peer, running or not."""
    return (folder / REPORTED).is_file() or (folder / AGREED).is_file()


OF_MODELS = ("genesis", "spec.toml", REPORTED, "HEAD", "state.json", "config.json", "adapter_config.json")
"""One of these is in the folder of a peer or a node, in a checkpoint and in an export."""


def holds_model(folder: Path) -> bool:
    """Whether the folder, or one in it, may hold a run or its model."""
    return any((folder / name).exists() or any(folder.glob(f"*/{name}")) for name in OF_MODELS)


def is_strangers(folder: Path) -> bool:
    """Whether the folder contains other things, or is not a folder at all."""
    if not folder.is_dir():
        return folder.exists()
    inside = {path.name for path in folder.iterdir()}
    return bool(inside) and inside.isdisjoint(OF_PEERS)


def is_at_work(folder: Path) -> bool:
    """Whether a peer runs there, that is, holds the lock."""
    return is_locked(folder / "run" / "lock")


def is_locked(lock: Path) -> bool:
    if not lock.exists():
        return False
    with lock.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def frozen_process(lock: Path) -> int | None:
    """The id of the process that holds this lock, if it was stopped by a signal; otherwise None."""
    try:
        number = int(lock.read_text())
        stands = psutil.Process(number).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
    except (OSError, ValueError, psutil.Error):
        return None
    return number if stands and is_locked(lock) else None


def note_folder(directory: Path) -> None:
    """Register a folder that lies elsewhere, so that commands find it. Raises OSError if no link can be made."""
    directory = directory.resolve()
    if directory.parent == runs().resolve():
        return
    runs().mkdir(mode=0o700, parents=True, exist_ok=True)
    with suppress(FileExistsError):  # of the same path: it was noted before
        _link_to(directory).symlink_to(directory, target_is_directory=True)


def unnote_folder(directory: Path) -> None:
    """Undo `note_folder`."""
    _link_to(directory.resolve()).unlink(missing_ok=True)


def _link_to(directory: Path) -> Path:
    mark = hashlib.blake2b(str(directory).encode(), digest_size=4).hexdigest()
    return runs() / f"{directory.name}-at-{mark}"


def peer_folders() -> list[Path]:
    """All folders of peers, each once. Links to missing folders, as on a disk that is not plugged in, are left out."""
    found = {path.resolve() if path.is_symlink() else path for path in runs().glob("*") if is_peers(path)}
    return sorted(found)


def every_folder() -> list[Path]:
    """The folders for `--all`. Raises BadInput if there is none."""
    if not (folders := peer_folders()):
        raise BadInput(f"no run was joined yet (nothing in {runs()}); name a directory with --dir")
    return folders


def folder_meant(else_: str = "") -> Path:
    """The folder of the running peer; if none runs, of the peer that reported last. Raises BadInput if there is
    none, or if several peers run; then `else_` says what else can be done."""
    folders = every_folder()
    running = [folder for folder in folders if is_at_work(folder)]
    if len(running) > 1:
        named = " or ".join(f"--dir {quoted(folder)}" for folder in running)
        raise BadInput(f"{len(running)} peers run on this machine; name one of them: {named}{else_}")
    return running[0] if running else max(folders, key=_reported_at)


def quoted(directory: Path) -> str:
    return shlex.quote(str(directory))


def _reported_at(folder: Path) -> float:
    path = folder / REPORTED
    return path.stat().st_mtime if path.is_file() else 0.0


ERROR_LOG = "error.log"
"""In `data_root`: the traceback of the last bug in a command."""


def data_root() -> Path:
    """The folder for everything of ours that outlives a process."""
    return user_data_path("homefires", appauthor=False)


@contextmanager
def writing(path: Path, option: str) -> Iterator[None]:
    """Raises BadInput, with the name of the option, for a file that exists already or cannot be written; DiskFull. No
    partial new file is left."""
    was_there = path.exists()
    try:
        with raising_disk_full(path.parent):
            yield
    except FileExistsError as error:
        raise BadInput(f"{path} exists; name another file with {option}") from error
    except DiskFull as error:
        if not was_there:
            path.unlink(missing_ok=True)
        raise DiskFull(f"{error}; name a file on another one with {option}") from error
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}; name another file with {option}") from error


def default_directory(kind: str, run: str, spec_hash: bytes) -> Path:
    """The folder of a run; `kind` is `runs` for a peer, `bootstrap` for the organiser's node."""
    return data_root() / kind / f"{run}-{spec_hash.hex()[:8]}"


def namesakes(directory: Path) -> list[Path]:
    """Folders with a key next to a `default_directory`: those of other runs with the same name."""
    name = directory.name.rpartition("-")[0]
    pattern = re.compile(rf"{re.escape(name)}-[0-9a-f]{{8}}")
    found = directory.parent.iterdir() if directory.parent.is_dir() else ()
    return sorted(
        path
        for path in found
        if path != directory and pattern.fullmatch(path.name) and (path / "identity.key").exists()
    )
