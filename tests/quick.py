"""The quick part, `pytest -m quick`: everything that starts no process, opens no socket, and has not long to calculate.

A test is quick unless it, its class or its file says otherwise, with one of the markers `NOT_QUICK`. Nobody has to
remember that: in this part whoever starts a process or opens a socket fails. (Elsewhere nobody looks: auditors are
called for much else, too, and that takes its time.)
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from typing import Any

import pytest

QUICK = "quick"
NOT_QUICK = ("chaos", "cold", "cuda", "namespaces", "nightly", "outside", "slow", "swarm")
FORBIDDEN = {
    "os.fork": "forks",
    "os.forkpty": "forks",
    "os.posix_spawn": "starts a process",
    "socket.bind": "opens a socket",
    "socket.connect": "opens a socket",
    "subprocess.Popen": "starts a process",
}
"""Events that Python reports to its auditors, and what they come to."""


class Guard:
    """Looks at what this process does while a quick test runs."""

    quick = False

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Fixtures that several tests share are looked at, too."""
        self.quick = item.get_closest_marker(QUICK) is not None
        try:
            return (yield)
        finally:
            self.quick = False

    def audit(self, event: str, args: tuple[Any, ...]) -> None:
        """Whatever is about to happen does not, if it is forbidden now."""
        if self.quick and event in FORBIDDEN:
            raise AssertionError(f"a quick test {FORBIDDEN[event]}; mark it as `outside` (tests/quick.py)")


def pytest_configure(config: pytest.Config) -> None:
    """In every process that runs tests, if it runs these alone."""
    if config.option.markexpr == QUICK and not getattr(config.option, "numprocesses", None):
        guard = Guard()
        config.pluginmanager.register(guard)
        sys.addaudithook(guard.audit)  # for as long as the process lives


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Before `-m` chooses."""
    for item in items:
        if not any(item.get_closest_marker(name) for name in NOT_QUICK):
            item.add_marker(QUICK)
