"""The console script `homefires`. This name is ours alone; the packages behind it have common ones."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

PACKAGES = ("bootstrap", "dht", "peer", "tui")


def main() -> int:
    """Run one command; returns its exit code."""
    for name in PACKAGES:
        if (found := _foreign(name)) is not None:
            fix = "install homefires into an environment of its own, and leave PYTHONPATH empty"
            print(f"homefires: another package {name!r} at {found} hides that of homefires; {fix}", file=sys.stderr)
            return 2
    from tui.cli import main as run

    return run()


def _foreign(name: str) -> Path | None:
    """Where the package of this name lies if it is not the one beside this file."""
    spec = find_spec(name)
    assert spec is not None, f"the package {name} of homefires is missing"
    places = spec.submodule_search_locations or [spec.origin or ""]
    found = Path(next(iter(places)))
    return None if found.resolve() == Path(__file__).resolve().parent / name else found


if __name__ == "__main__":
    sys.exit(main())
