"""Writes files that must survive a crash. Reports full disks and damaged files as one-line errors."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgpack

from dht.errors import BadInput, DiskFull


def write_atomic(path: Path, payload: bytes, *, private: bool = False) -> None:
    """Replace a small file so that after a crash it holds either the old bytes or the new ones; they are on disk at
    return. Nobody else can ever read a `private` one (0600). Raises DiskFull, and then the old bytes are there."""
    scratch = path.with_name(path.name + ".new")
    with raising_disk_full(path.parent):
        if private:
            scratch.unlink(missing_ok=True)  # whatever its mode is
        try:
            _write(scratch, payload, 0o600 if private else 0o666)
        except OSError:
            scratch.unlink(missing_ok=True)  # on a full disk half a file is room that something else needs
            raise
        scratch.replace(path)
        sync_folder(path.parent)


def write_exclusive(path: Path, payload: bytes) -> None:
    """Write a small file (0600) that must not exist yet: complete and on disk at return, or absent. Raises
    FileExistsError, DiskFull."""
    scratch = path.with_name(f".{path.name}.{secrets.token_hex(4)}")  # in a folder where anything may lie
    try:
        with raising_disk_full(path.parent):
            _write(scratch, payload, 0o600)
            _move_unless_there(scratch, path)
            sync_folder(path.parent)
    finally:
        scratch.unlink(missing_ok=True)


def _write(path: Path, payload: bytes, mode: int) -> None:
    with open(path, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
        file.write(payload)
        file.flush()
        os.fsync(file.fileno())


def _move_unless_there(scratch: Path, path: Path) -> None:
    """Raises FileExistsError."""
    try:
        os.link(scratch, path)  # a rename would replace what is there
    except FileExistsError:
        raise
    except OSError:  # no links, as on a memory stick
        if path.exists():
            raise FileExistsError(f"{path} exists already") from None
        scratch.rename(path)


def sync_folder(folder: Path) -> None:
    """Sync the names in `folder` to disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def file_stamp(path: Path) -> tuple[int, int] | None:
    """A value that changes when `write_atomic` replaces a file, so that readers read it again; None without a file."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_mtime_ns, found.st_ino


@contextmanager
def raising_disk_full(folder: Path) -> Iterator[None]:
    """Raises DiskFull if the system reports a full disk or quota."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise DiskFull(f"the disk that holds {folder.absolute()} is full") from error


@contextmanager
def raising_damaged(path: Path) -> Iterator[None]:
    """Raises BadInput that names `path` if its bytes do not parse or the file is missing."""
    try:
        yield
    except FileNotFoundError as error:
        raise BadInput(f"{path} is gone; bring it back, or join with a new folder") from error
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        reason = str(error) or type(error).__name__
        raise BadInput(f"{path} is damaged ({reason}); bring it back, or join with a new folder") from error
