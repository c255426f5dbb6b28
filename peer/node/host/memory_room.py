"""Main memory that this process can still have: what the machine has free or, if less, what its control groups leave.

A container and a service are such groups (https://docs.kernel.org/admin-guide/cgroup-v2.html, and on older systems
https://docs.kernel.org/admin-guide/cgroup-v1/memory.html): the kernel ends a program that takes more, however much the
machine has.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import psutil

from peer.schema.byte_text import format_bytes


@dataclass(frozen=True)
class _Version:
    """What a version of control groups calls what it tells. A system has memory in one of them."""

    controller: str
    """In the lines of /proc/self/cgroup; version 2 has one line for all."""
    mount: str
    limits: tuple[str, ...]
    """Above the first the kernel ends programs, above the second it holds them up."""
    used: str
    unused_files: str
    """A row of memory.stat: contents of files that nobody has read lately, in this group and those within."""


VERSIONS = (
    _Version("", "", ("memory.max", "memory.high"), "memory.current", "inactive_file"),
    _Version("memory", "memory", ("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file"),
)


@dataclass(frozen=True)
class MemoryRoom:
    available_bytes: int
    """It can be allocated without swapping out anything else."""
    limit: str = ""
    """In words, what allows less than the machine has free; empty if nothing does."""


def find_memory_room(root: Path = Path("/")) -> MemoryRoom:
    """`root` is where this machine's /proc and /sys are."""
    room = MemoryRoom(psutil.virtual_memory().available)
    for version in VERSIONS:
        for group in _own_groups(root, version):
            for limit_bytes in filter(None, (_read_bytes(group / name) for name in version.limits)):
                left_bytes = max(0, limit_bytes - _used_bytes(group, version))
                if left_bytes < room.available_bytes:
                    room = MemoryRoom(
                        left_bytes, f"its container or service may take {format_bytes(limit_bytes)} in all"
                    )
    return room


def _own_groups(root: Path, version: _Version) -> Iterator[Path]:
    """The folders of the group of this process and of those around it, each of which may have a limit. In a container
    its line names a place outside, and what is mounted is the container's own group."""
    mount, found = root / "sys/fs/cgroup" / version.mount, root / "proc/self/cgroup"
    lines = [line.split(":", 2) for line in found.read_text().splitlines()] if found.exists() else []
    path = next((path for _, controllers, path in lines if version.controller in controllers.split(",")), "")
    inside = PurePosixPath(path.removeprefix("/"))
    if ".." in inside.parts or not (mount / inside).is_dir():
        inside = PurePosixPath()
    yield mount / inside
    yield from (mount / each for each in inside.parents)


def _used_bytes(group: Path, version: _Version) -> int:
    """Without what the kernel gives back when it is asked: file contents that nobody has used lately."""
    path = group / "memory.stat"
    rows = dict(line.split(maxsplit=1) for line in path.read_text().splitlines()) if path.exists() else {}
    return max(0, (_read_bytes(group / version.used) or 0) - int(rows.get(version.unused_files, 0)))


def _read_bytes(path: Path) -> int | None:
    """None where there is no such file, or it says `max`."""
    text = path.read_text().strip() if path.exists() else "max"
    return None if text == "max" else int(text)
