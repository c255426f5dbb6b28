"""How much main memory there is for this process, where a control group allows less than the machine has."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from peer.node.host import memory_room, processes
from peer.node.host.memory_room import MemoryRoom, find_memory_room
from tests.peer.node.host.files import put

GB = 10**9


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """One with 16 GB free."""
    monkeypatch.setattr(memory_room.psutil, "virtual_memory", lambda: SimpleNamespace(available=16 * GB))


def group(
    root: Path, path: str, *, most: int | str = "max", used: int = 0, files: int = 0, high: int | str = "max"
) -> Path:  # fmt: skip
    folder = root / "sys/fs/cgroup" / path
    put(folder / "memory.max", f"{most}\n")
    put(folder / "memory.high", f"{high}\n")
    put(folder / "memory.current", f"{used}\n")
    put(folder / "memory.stat", f"anon {used - files}\ninactive_file {files}\n")
    return root


def inside(root: Path, path: str) -> Path:
    put(root / "proc/self/cgroup", f"9:name=systemd:/\n0::/{path}\n")
    return root


def test_without_a_limit_it_is_what_the_machine_has_free(tmp_path: Path) -> None:
    assert find_memory_room(tmp_path) == MemoryRoom(16 * GB)
    assert find_memory_room(inside(group(tmp_path, "a"), "a")) == MemoryRoom(16 * GB)
    assert find_memory_room(group(tmp_path, "a", most=64 * GB, used=GB)) == MemoryRoom(16 * GB)


def test_in_a_container_it_is_what_the_container_leaves(tmp_path: Path) -> None:
    """Its own group is all that is mounted, whatever name it has outside; file contents are given back."""
    group(tmp_path, "", most=1_500_000_000, used=700_000_000, files=200_000_000)
    expected = MemoryRoom(1_000_000_000, "its container or service may take 1.5 GB in all")
    for name in ("", "../../system.slice/docker-1", "system.slice/docker-1"):
        assert find_memory_room(inside(tmp_path, name)) == expected


def test_the_tightest_of_the_groups_around_it_counts(tmp_path: Path) -> None:
    group(tmp_path, "user.slice", most=4 * GB, used=3 * GB)
    group(tmp_path, "user.slice/a.service", most=8 * GB, used=GB)
    assert find_memory_room(inside(tmp_path, "user.slice/a.service")).available_bytes == GB
    group(tmp_path, "user.slice/a.service", most=8 * GB, used=GB, high=int(1.5 * GB))
    assert find_memory_room(inside(tmp_path, "user.slice/a.service")).available_bytes == GB // 2


def test_an_older_system_has_other_names_for_it(tmp_path: Path) -> None:
    """Version 1, where a group without a limit has one that no machine reaches."""
    put(tmp_path / "proc/self/cgroup", "4:memory:/docker/a\n3:cpuset:/docker/b\n0::/\n")
    for path, most in (("docker/a", 1_500_000_000), ("docker", 2**63 - 4096)):
        folder = tmp_path / "sys/fs/cgroup/memory" / path
        put(folder / "memory.limit_in_bytes", f"{most}\n")
        put(folder / "memory.usage_in_bytes", "700000000\n")
        put(folder / "memory.stat", "inactive_file 0\ntotal_inactive_file 200000000\n")
    assert find_memory_room(tmp_path) == MemoryRoom(1_000_000_000, "its container or service may take 1.5 GB in all")


def test_who_is_over_its_limit_has_nothing_left(tmp_path: Path) -> None:
    assert find_memory_room(group(tmp_path, "", most=GB, used=2 * GB)).available_bytes == 0


def test_everybody_who_asks_for_memory_hears_of_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "find_memory_room", lambda: MemoryRoom(5, "a limit"))
    assert processes.available_bytes() == 5
