"""Tests marked `cuda` run where there is such a GPU; elsewhere the end of the report says that they did not.

Not a conftest.py: that is not read by the process that only hands the tests out to others.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import version

import pynvml
import pytest

MARK = "cuda"


@cache
def has_cuda() -> bool:
    """Whether a driver has a GPU and torch was built for one; asked without loading torch."""
    if version("torch").endswith("+cpu"):
        return False
    try:
        pynvml.nvmlInit()
        return bool(pynvml.nvmlDeviceGetCount())
    except pynvml.NVMLError:
        return False


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if has_cuda():
        return
    need_one = [item for item in items if item.get_closest_marker(MARK)]
    config.hook.pytest_deselected(items=need_one)
    items[:] = [item for item in items if not item.get_closest_marker(MARK)]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not has_cuda():
        terminalreporter.write_line("tests that need a CUDA device were not run: there is none here")
