"""Pictures of the screens are taken, and compared, on one Python version only.

Not a conftest.py beside them: that is not read by the process that only hands the tests out to others.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pytest

PICTURES_ON = (3, 11)
OTHER = sys.version_info[:2] != PICTURES_ON


def pytest_configure(config: pytest.Config) -> None:
    # What differs is drawn side by side in a page; by default it would lie in the folder one stands in.
    if config.option.snapshot_report == "snapshot_report.html":
        config.option.snapshot_report = str(Path(tempfile.gettempdir()) / "homefires-pictures.html")
    if OTHER and config.getoption("--snapshot-update"):
        raise pytest.UsageError(f"pictures are taken on {_name(PICTURES_ON)}; this is {_name(sys.version_info[:2])}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if OTHER:
        this = _name(sys.version_info[:2])
        terminalreporter.write_line(f"pictures of the dashboard are compared on {_name(PICTURES_ON)}, not on {this}")


def _name(version: tuple[int, int]) -> str:
    return f"Python {version[0]}.{version[1]}"
