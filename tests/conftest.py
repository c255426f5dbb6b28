"""How the tests share the machine. Read before any test imports torch."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
from xdist.scheduler import LoadScopeScheduling

from peer.node.host.threads import sleep_while_waiting
from peer.testing.child_process import HANG_S
from tests import warm

pytest_plugins = [
    "peer.testing.pytest_plugin",
    "tests.leftovers",
    "tests.quick",
    "tests.timing",
    "tests.pictures",
    "tests.devices",
    "tests.namespaces",
]

# An example that takes long says that the machine is shared, and nothing of the code: pytest has a time-out of its own.
hypothesis.settings.register_profile("suite", deadline=None)
hypothesis.settings.load_profile("suite")

SWARM = "tests/swarm/"
"""Several processes each, that train, keep deadlines, and wait for most of the time."""
SWARMS_END = 0.8
"""Where in the run the last of them begins, so that nobody waits for it at the end."""
LONGEST = (
    "test_dashboard", "test_limits", "test_two_friends", "test_three_peers", "test_keep", "test_trust", "test_demo",
    "test_clusters", "test_found_clusters", "test_join", "test_join_by_snapshot", "test_kill_each",
)  # fmt: skip
"""Those of them that begin."""
WORKERS_PER_CORE = 2.0
"""Whoever waits leaves room for another."""
HUNG_S = 3 * HANG_S
"""The longest of them takes some minutes, and what hangs in it is told by what waits for it."""

# The tests' models are small: a second thread waits for the first one, and for whatever else the machine does.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Else every worker and each of hundreds of children compiles every module anew; half a minute of processor per worker.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

sleep_while_waiting()
warm.install()


class ByFile(LoadScopeScheduling):
    """A worker takes a whole file of tests at a time."""

    def _split_scope(self, nodeid: str) -> str:
        return nodeid.partition("::")[0]


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """`WORKERS_PER_CORE`, and one where nobody waits. None where single files are named: they are seen at work, and can
    be debugged."""
    if any(".py" in argument for argument in config.args):
        return 0
    waits = config.option.markexpr != "quick"
    return round((WORKERS_PER_CORE if waits else 1) * len(os.sched_getaffinity(0)))


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> ByFile:
    """Files in the order of collection: without `--no-loadscope-reorder` the longest lists would come first."""
    return ByFile(config, log)


@pytest.fixture(scope="session", autouse=True)
def no_user_data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test reads or writes the developer's own runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
        yield


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Processes start warm, unless the test wants them as a person has them."""
    warm.Popen.cold = item.get_closest_marker("cold") is not None


def pytest_collection_finish() -> None:
    """What is loaded by now stays. A collection of garbage looks at the rest alone: 0.3 s for torch and the others."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """The warm parent ends before the worker does. What loads modules from now on may look for who refers to what."""
    gc.unfreeze()
    warm.close()


def pytest_unconfigure() -> None:
    """pytest collects five times now, lest an error in a destructor be lost: what is loaded has none to lose."""
    gc.collect()
    gc.freeze()


def leave_for_the_night(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What is marked `nightly` runs where it is asked for: by `-m`, or by the name of its file."""
    if "nightly" in config.option.markexpr or any(".py" in argument for argument in config.args):
        return
    if later := [item for item in items if item.get_closest_marker("nightly")]:
        config.hook.pytest_deselected(items=later)
        items[:] = [item for item in items if not item.get_closest_marker("nightly")]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Swarms and the rest side by side: who waits leaves the cores to who calculates."""
    leave_for_the_night(config, items)
    files: dict[str, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.nodeid.partition("::")[0], []).append(item)
        if item.nodeid.startswith(SWARM):
            item.add_marker(pytest.mark.timeout(HUNG_S), append=False)
    swarms = sorted((file for file in files if file.startswith(SWARM)), key=longest_first)
    others = [file for file in files if not file.startswith(SWARM)]
    turns = [*spread(swarms, SWARMS_END), *spread(others, 1.0)]
    items[:] = [item for _, file in sorted(turns) for item in files[file]]


def longest_first(file: str) -> int:
    """Those of `LONGEST` before the others, which keep their order."""
    name = Path(file).stem
    return LONGEST.index(name) if name in LONGEST else len(LONGEST)


def spread(files: list[str], end: float) -> list[tuple[float, str]]:
    """(turn, file) evenly from 0 to `end`."""
    return [(end * number / len(files), file) for number, file in enumerate(files)]
