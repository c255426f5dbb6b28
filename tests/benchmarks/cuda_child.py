"""`python -m tests.benchmarks.cuda_child JOB DEVICE FOLDER [smoke]`: does one job of `cuda`, and prints its figures.

A JSON object a line: a name and a figure. Then it is gone at once, whatever still runs in it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from types import FrameType

import torch

from peer.node.host.device import choose_device
from tests.benchmarks.cuda_bars import JOBS, Setting


def main() -> None:
    name, device, folder, *more = sys.argv[1:]
    signal.signal(signal.SIGTERM, _end)
    torch.manual_seed(0)
    job = next(job for job in JOBS if job.name == name)
    job.do(Setting(device=choose_device(device), folder=Path(folder), smoke="smoke" in more), _say)


def _say(name: str, figure: float) -> None:
    print(json.dumps({"name": name, "figure": figure}), flush=True)


def _end(number: int, frame: FrameType | None) -> None:
    """As an interrupt: a swarm's processes end with it."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    main()
    os._exit(0)
