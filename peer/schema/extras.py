"""Packages that few commands need: the extras of homefires install them."""

from __future__ import annotations

from importlib import import_module

from dht.errors import BadInput

EXTRAS = {"datasets": "hub", "gguf": "gguf", "matplotlib": "report", "pyarrow": "hub", "tensorboard": "tensorboard"}
"""By package, the extra that installs it."""


def require_extra(package: str, what: str) -> None:
    """Raises BadInput, which names the extra, if the package that `what` needs is not installed."""
    try:
        import_module(package)
    except ModuleNotFoundError as error:
        fix = f"install homefires[{EXTRAS[package]}] in place of homefires"
        raise BadInput(f"{what} needs {package}, which is not installed; {fix}") from error
