"""The fit of a run on this machine: remembered, or found by a dry run in a child."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from dht.errors import DiskFull, HomefiresError, MemoryFull
from peer.fit.fitted import Basis, Fit, from_json, recall, remember
from peer.spec import RunSpec

CHILD_S = 300.0
"""A few steps of the largest micro-batches, and loading torch."""

Start = Callable[[list[str]], "tuple[int, str, str]"]
"""Runs `python` with these words to its end: exit code, stdout, stderr."""


def run_python(words: list[str]) -> tuple[int, str, str]:
    """To its end, or killed after CHILD_S, which is a failure like others. A negative code is a signal's, as of the
    kernel that needs the memory."""
    try:
        run = subprocess.run(
            [sys.executable, *words], capture_output=True, text=True, errors="replace", timeout=CHILD_S, check=False,
            stdin=subprocess.DEVNULL, env=os.environ | {"PYTHONSAFEPATH": "1"},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return HomefiresError.exit_code, "", f"it did not end within {CHILD_S:.0f} s"
    return run.returncode, run.stdout, run.stderr


def find_fit(spec: RunSpec, directory: Path, basis: Basis, start: Start = run_python, free_bytes: int = 0) -> Fit:
    """What is remembered in `directory` for the same device and versions, or what a dry run of its spec.toml finds.

    Raises MemoryFull if not even one sequence has room, HomefiresError if nothing could be tried.
    """
    known = recall(directory, basis, free_bytes)
    if known is not None:
        return known
    fit = try_out(spec, directory / "spec.toml", basis.device, start)
    with suppress(DiskFull):  # then the next start tries again
        remember(directory, fit)
    return fit


def try_out(spec: RunSpec, path: Path, device: str, start: Start = run_python) -> Fit:
    """A dry run; one that is killed is tried again with half the micro-batch."""
    most = spec.inner.sequences * spec.inner.accumulation
    while True:
        code, out, err = start(["-m", "peer.fit.dry", str(path), "--device", device, "--most", str(most)])
        fit = from_json(out) if code == 0 else None
        if fit is not None:
            return fit
        why = (err.strip().splitlines() or [f"exit code {code}"])[-1].removeprefix("homefires: ")
        if code == MemoryFull.exit_code or (code < 0 and most == 1):
            raise MemoryFull(why)
        if code >= 0:
            raise HomefiresError(f"a dry run on {device} failed: {why}")
        most = (min(most, spec.inner.sequences) + 1) // 2
