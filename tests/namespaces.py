"""Tests marked `namespaces` lay networks of their own; where that is not allowed, the end of the report says so.

Not a conftest.py, as `tests/devices.py` says.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache

import pytest

MARK = "namespaces"
WAIT_S = 20.0


@cache
def may_lay_networks() -> bool:
    """Whether this user may make networks, and lines between them (iproute2 and util-linux, Linux alone)."""
    try:
        made = subprocess.run(
            ["unshare", "-rn", "ip", "link", "add", "near", "type", "veth", "peer", "name", "far"],
            capture_output=True, timeout=WAIT_S, check=False,
        )  # fmt: skip
    except OSError:
        return False
    return made.returncode == 0


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if all(item.get_closest_marker(MARK) is None for item in items) or may_lay_networks():
        return
    need = [item for item in items if item.get_closest_marker(MARK)]
    config.hook.pytest_deselected(items=need)
    items[:] = [item for item in items if not item.get_closest_marker(MARK)]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not may_lay_networks():
        terminalreporter.write_line("tests that lay networks (unshare, ip) were not run: that is not allowed here")


class Namespace:
    """A network of its own. It is there as long as a process in it, which ends with us."""

    def __init__(self, *outer: str) -> None:
        flag = "-n" if outer else "-rn"  # whoever is inside another one is its root already
        live = "ip link set lo up && echo up && exec cat"
        self._keeper = subprocess.Popen(
            [*outer, "unshare", flag, "sh", "-c", live], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pid = self._keeper.pid
        assert self._keeper.stdout is not None
        assert self._keeper.stdout.readline() == "up\n"

    @property
    def words(self) -> tuple[str, ...]:
        """Before a command that is to run in it."""
        return ("nsenter", "--preserve-credentials", "-U", "-n", "-t", str(self.pid), "--")

    def ip(self, words: str) -> None:
        """`ip` in it, with these words."""
        subprocess.run([*self.words, "ip", *words.split()], check=True, timeout=WAIT_S)

    def close(self) -> None:
        self._keeper.communicate(timeout=WAIT_S)


@dataclass(frozen=True)
class Homes:
    """Two networks that reach the middle, and not each other: it passes nothing on."""

    middle: Namespace
    homes: tuple[Namespace, Namespace]


@pytest.fixture
def homes() -> Iterator[Homes]:
    """10.1.0.2 and 10.2.0.2, with 10.1.0.1 and 10.2.0.1 in the middle."""
    with ExitStack() as stack:
        middle = Namespace()
        stack.callback(middle.close)
        found = []
        for number in (1, 2):
            home = Namespace(*middle.words)
            stack.callback(home.close)
            middle.ip(f"link add near{number} type veth peer name far")
            middle.ip(f"link set far netns {home.pid}")
            middle.ip(f"addr add 10.{number}.0.1/24 dev near{number}")
            middle.ip(f"link set near{number} up")
            home.ip(f"addr add 10.{number}.0.2/24 dev far")
            home.ip("link set far up")
            home.ip(f"route add default via 10.{number}.0.1")
            found.append(home)
        yield Homes(middle, (found[0], found[1]))
