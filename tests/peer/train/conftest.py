"""What trainers of a test read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some files of text."""
    folder = tmp_path_factory.mktemp("corpus")
    letters = np.random.default_rng(0).integers(97, 123, size=(40, 3000), dtype=np.uint8)
    for number, row in enumerate(letters):
        (folder / f"{number}.txt").write_bytes(row.tobytes())
    return folder
