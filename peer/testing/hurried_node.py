"""`python -m peer.testing.hurried_node`: an organiser's node with the constants that its folder's `hurry.json` says."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from peer.testing.short_waits import hurry

if __name__ == "__main__":
    hurry(Path(sys.argv[sys.argv.index("--dir") + 1]))
    runpy.run_module("bootstrap", run_name="__main__", alter_sys=True)
