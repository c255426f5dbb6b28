"""What a volunteer's machine does. `peer.__version__` is that of the installed homefires."""

from __future__ import annotations


def __getattr__(name: str) -> str:
    if name != "__version__":
        raise AttributeError(f"module 'peer' has no attribute {name!r}")
    from importlib.metadata import version  # it costs as much as all of `homefires --help`

    return version("homefires")
