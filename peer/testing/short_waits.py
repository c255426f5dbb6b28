"""Waits of the product that nobody is there to sit through: constants of modules that are smaller in a test's peers."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from pathlib import Path

HURRY = "hurry.json"
"""In the directory of a peer that is to be quick there is a file of this name."""


def write_hurry(directory: Path, constants: Mapping[str, float]) -> None:
    """Have the peer of this directory take these values, as `peer.session.CLOCK_RETRY_S`, from its next start on."""
    (directory / HURRY).write_text(json.dumps(dict(constants)))


def hurry(directory: Path) -> None:
    """In a process of such a peer: set what its file says. AssertionError for a constant that there is not."""
    path = directory / HURRY
    if not path.exists():
        return
    for name, value in json.loads(path.read_text()).items():
        module, _, constant = name.rpartition(".")
        owner = importlib.import_module(module)
        assert isinstance(getattr(owner, constant, None), float), f"no such constant: {name}"
        setattr(owner, constant, value)
