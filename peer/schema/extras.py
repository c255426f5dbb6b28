"""Packages that few commands need: the extras of homefires install them."""

from __future__ import annotations

from importlib.util import find_spec

from dht.errors import BadInput

EXTRAS = {"datasets": "hub", "gguf": "gguf", "matplotlib": "report", "pyarrow": "hub", "tensorboard": "tensorboard"}
"""By package, the extra that installs it."""


def require_extra(package: str, what: str) -> None:
    """Raises BadInput, which names the extra, if the package that `what` needs is not installed. It is not loaded."""
    if is_missing(package):
        raise BadInput(f"{what} needs {package}, which is not installed; {fix_for(package)}")


def is_missing(package: str) -> bool:
    return find_spec(package) is None


def fix_for(package: str) -> str:
    return f"install homefires[{EXTRAS[package]}] in place of homefires"
