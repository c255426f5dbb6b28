"""Main memory that this process can still have: what the machine has free or, if less, what its control groups leave.

A container and a service are such groups (cgroup v2, https://docs.kernel.org/admin-guide/cgroup-v2.html): the kernel
ends a program that takes more, however much the machine has.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import psutil

from peer.schema.byte_text import format_bytes

LIMITS = ("memory.max", "memory.high")
"""Above the first the kernel ends programs, above the second it holds them up."""


@dataclass(frozen=True)
class MemoryRoom:
    available_bytes: int
    """It can be allocated without swapping out anything else."""
    limit: str = ""
    """In words, what allows less than the machine has free; empty if nothing does."""


def find_memory_room(root: Path = Path("/")) -> MemoryRoom:
    """`root` is where this machine's /proc and /sys are."""
    room = MemoryRoom(psutil.virtual_memory().available)
    for group in _own_groups(root):
        for limit_bytes in filter(None, (_read_bytes(group / name) for name in LIMITS)):
            left_bytes = max(0, limit_bytes - _used_bytes(group))
            if left_bytes < room.available_bytes:
                room = MemoryRoom(left_bytes, f"its container or service may take {format_bytes(limit_bytes)} in all")
    return room


def _own_groups(root: Path) -> Iterator[Path]:
    """The folders of the group of this process and of those around it, each of which may have a limit. In a container
    the first line names a place outside, and what is mounted is the container's own group."""
    mount, found = root / "sys/fs/cgroup", root / "proc/self/cgroup"
    lines = found.read_text().splitlines() if found.exists() else []
    path = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), "")
    inside = PurePosixPath(path)
    if ".." in inside.parts or not (mount / inside).is_dir():
        inside = PurePosixPath()
    yield mount / inside
    yield from (mount / each for each in inside.parents)


def _used_bytes(group: Path) -> int:
    """Without what the kernel gives back when it is asked: file contents that nobody has used lately."""
    path = group / "memory.stat"
    rows = dict(line.split(maxsplit=1) for line in path.read_text().splitlines()) if path.exists() else {}
    return max(0, (_read_bytes(group / "memory.current") or 0) - int(rows.get("inactive_file", 0)))


def _read_bytes(path: Path) -> int | None:
    """None where there is no such file, or it says `max`."""
    text = path.read_text().strip() if path.exists() else "max"
    return None if text == "max" else int(text)
