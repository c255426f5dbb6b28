"""How the tests share the machine. Read before any test imports torch."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling

from peer.testing.children import HANG_S
from tests import warm

pytest_plugins = ["tests.pictures", "tests.devices", "tests.namespaces"]

SWARM = "tests/swarm/"
"""Each of these tests starts several processes that train and keep deadlines: after all others, two at a time."""
PACED = (
    "test_catch_up", "test_chaos", "test_dashboard", "test_fork", "test_join_by_snapshot", "test_limits", "test_split",
)  # fmt: skip
"""Peers that sleep between their steps and wait for those who were struck: another swarm has room beside them."""
HUNG_S = 3 * HANG_S
"""The longest of them takes some minutes, and what hangs in it is told by what waits for it."""

# The tests' models are small: a second thread waits for the first one, and for whatever else the machine does.
os.environ.setdefault("OMP_NUM_THREADS", "1")

warm.install()


class ByFile(LoadScopeScheduling):
    """A worker takes a whole file of tests at a time; those of `SWARM` are as two files."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        if not path.startswith(SWARM):
            return path
        return f"{SWARM} paced" if Path(path).stem in PACED else SWARM


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """A worker for each core. None where single files are named: one of them is seen at work, and can be debugged."""
    if any(".py" in argument for argument in config.args):
        return 0
    return len(os.sched_getaffinity(0))


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> ByFile:
    """Files in the order of collection: without `--no-loadscope-reorder` the longest lists would come first."""
    return ByFile(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Processes start warm, unless the test wants them as a person has them."""
    warm.Popen.cold = item.get_closest_marker("cold") is not None


def pytest_collection_finish() -> None:
    """What is loaded by now stays. A collection of garbage looks through all the rest: 0.3 s for torch and the others."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """The warm parent ends before the worker does. What loads modules from now on may look for who refers to what."""
    gc.unfreeze()
    warm.Popen.parent.close()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The swarms come last, when nothing else keeps the cores busy any more."""
    for item in items:
        if item.nodeid.startswith(SWARM):
            item.add_marker(pytest.mark.timeout(HUNG_S), append=False)
    items.sort(key=lambda item: item.nodeid.startswith(SWARM))
