"""A folder that nobody may look into, also where those who run the tests are allowed everything."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def close(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scan = os.scandir

    def closed(path: str) -> object:
        if Path(path) == folder:
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", closed)
