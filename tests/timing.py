"""Where the time of the tests goes: wall and processor seconds of every test and fixture, and the slowest twenty.

    .venv/bin/pytest --times=times.json && .venv/bin/python -m tests.timing times.json

prints the table by folder that is in tests/benchmarks/results/suite.md. Processor time is that of the worker and of
those processes that it has waited for; so a test that waits for a clock, or for a busy machine,
shows as wall without processor.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

SLOWEST = 20
FIXTURE_S = 0.1
"""What takes less is not told."""
HELP = "write what every test and fixture took into this JSON file (--times=FILE: else pytest looks for tests in it)"
PROPERTY = "seconds"
"""Under which a report carries what its phase took; so it comes from a worker to whoever sums up."""


@dataclass
class Stopwatch:
    """Since it was made."""

    def __post_init__(self) -> None:
        self._wall_s, self._processor_s = time.perf_counter(), processor_s()

    def read(self) -> tuple[float, float]:
        """(wall, processor) seconds."""
        return time.perf_counter() - self._wall_s, processor_s() - self._processor_s


def processor_s() -> float:
    """Of this process and of all its children that have ended."""
    return sum(os.times()[:4])


class Recorder:
    """In each worker: measures phases and fixtures."""

    def __init__(self) -> None:
        self._fixtures: list[tuple[str, float, float]] = []

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """What a test is charged with begins here."""
        self._phase = Stopwatch()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, object, object]:
        """Fixtures that a fixture needs are made before it."""
        watch = Stopwatch()
        made = yield
        wall_s, busy_s = watch.read()
        if wall_s >= FIXTURE_S:
            self._fixtures.append((fixturedef.argname, wall_s, busy_s))
        return made

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """One of three: set up, called, torn down."""
        report = yield
        report.user_properties.append((PROPERTY, [*self._phase.read(), self._fixtures]))
        self._phase, self._fixtures = Stopwatch(), []
        return report


@dataclass
class Spent:
    """On a test, in all its phases."""

    wall_s: float = 0.0
    processor_s: float = 0.0
    fixtures: list[tuple[str, float, float]] | None = None

    def add(self, wall_s: float, processor_s: float, fixtures: list[tuple[str, float, float]]) -> None:
        self.wall_s += wall_s
        self.processor_s += processor_s
        self.fixtures = [*(self.fixtures or []), *fixtures]


class Sum:
    """Where reports arrive: adds them up and prints the slowest."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._tests: defaultdict[str, Spent] = defaultdict(Spent)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Of each phase of each test."""
        for name, value in report.user_properties:
            if name == PROPERTY:
                self._tests[report.nodeid].add(*value)  # type: ignore[misc]
        report.user_properties = [pair for pair in report.user_properties if pair[0] != PROPERTY]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """The slowest, and the file if one was asked for."""
        tests = sorted(self._tests.items(), key=lambda pair: -pair[1].wall_s)
        if len(tests) > SLOWEST:
            terminalreporter.section(f"slowest {SLOWEST} tests: seconds, processor seconds")
            for name, spent in tests[:SLOWEST]:
                terminalreporter.line(f"{spent.wall_s:7.1f} {spent.processor_s:7.1f}  {name[:100]}")
        if self._path is not None:
            rows = {name: [spent.wall_s, spent.processor_s, spent.fixtures] for name, spent in tests}
            self._path.write_text(json.dumps(rows, indent=0) + "\n")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--times=FILE`."""
    parser.addoption("--times", type=Path, help=HELP)


def pytest_configure(config: pytest.Config) -> None:
    """Workers measure; who has workers, or is alone, sums up."""
    if not getattr(config.option, "numprocesses", None):
        config.pluginmanager.register(Recorder())
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Sum(config.option.times))


def table(rows: dict[str, list[Any]]) -> str:
    """By folder, in Markdown: tests, wall and processor seconds, and how much of it fixtures took."""
    folders: defaultdict[str, list[float]] = defaultdict(lambda: [0, 0.0, 0.0, 0.0])
    for name, (wall_s, busy_s, fixtures) in rows.items():
        sums = folders["/".join(Path(name.partition("::")[0]).parent.parts[:3])]
        for place, value in enumerate((1, wall_s, busy_s, sum(wall for _, wall, _ in fixtures or []))):
            sums[place] += value
    lines = ["| folder | tests | seconds | processor | of which fixtures |", "| --- | ---: | ---: | ---: | ---: |"]
    folders["all"] = [sum(column) for column in zip(*folders.values(), strict=True)]
    for name, (tests, wall_s, busy_s, fixtures_s) in folders.items():
        lines.append(f"| {name} | {tests:.0f} | {wall_s:.0f} | {busy_s:.0f} | {fixtures_s:.0f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(json.loads(Path(sys.argv[1]).read_text())))
