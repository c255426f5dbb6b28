"""How a run is trained on a peer's devices: found once by a dry run, and kept with what it was measured on.

The run fixes how many sequences an inner step reads, and their order. The volunteer's machine decides how many of them
are on the device at a time (the micro-batch), which attention kernel is used, and how several devices share the model:
inner steps are private, so their last bits may differ between devices anyway. The outer step, on which peers agree,
does not depend on it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from dht.atomic_files import write_atomic
from dht.errors import DiskFull, HomefiresError, MemoryFull
from dht.process import parent_env
from peer.schema.spec import RunSpec
from peer.training.train.autotune_result import Tuned, TuneKey, from_json

FILE = "tuned.json"
MORE = 1.25
"""If this many times as much memory is free as at the last dry run, a larger micro-batch may fit: the run is
repeated."""


def recall(directory: Path, basis: TuneKey, free_bytes: int = 0) -> Tuned | None:
    """The result in this folder for the same device, versions and run; None if there is none.

    None also if much more memory is free now than then; `free_bytes` is 0 if that is not known.
    """
    try:
        fit = from_json((directory / FILE).read_text())
    except (OSError, UnicodeDecodeError):
        return None
    if fit is None or fit.basis != basis:
        return None
    return None if fit.free_bytes and free_bytes > MORE * fit.free_bytes else fit


def remember(directory: Path, fit: Tuned) -> None:
    """Replace the result in this folder. Raises DiskFull."""
    write_atomic(directory / FILE, (fit.to_json() + "\n").encode())


CHILD_S = 300.0
"""The maximum for a dry run: loading torch, and a few steps of the largest micro-batches."""

POLL_S = 0.25
"""Seconds between two looks at whether the device is wanted for something else."""

Start = Callable[[list[str]], "tuple[int, str, str]"]
"""Runs `python` with these arguments to its end; returns exit code, stdout and stderr."""


class Unwanted(Exception):
    """A dry run was ended early: the device is wanted for something else."""


def run_python(words: list[str], unwanted: Callable[[], bool] = lambda: False) -> tuple[int, str, str]:
    """Run a child process to its end, or kill it after CHILD_S, which counts as a failure. A negative exit code is
    that of a signal, for example from a kernel that is short of memory.

    Raises Unwanted as soon as `unwanted` returns True; the child is gone then, with everything that it used.
    """
    ends_at = time.monotonic() + CHILD_S
    with (
        tempfile.TemporaryDirectory(prefix="homefires-dry-", ignore_cleanup_errors=True) as folder,  # if it is killed
        subprocess.Popen(
            [sys.executable, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, errors="replace",
            env=os.environ | {"PYTHONSAFEPATH": "1", "TMPDIR": folder} | parent_env(),
        ) as child,
    ):  # fmt: skip
        try:
            while time.monotonic() < ends_at:
                with suppress(subprocess.TimeoutExpired):
                    out, err = child.communicate(timeout=POLL_S)
                    return child.returncode, out, err
                if unwanted():
                    raise Unwanted
            return HomefiresError.exit_code, "", f"it did not end within {CHILD_S:.0f} s"
        finally:
            child.kill()


def find_fit(spec: RunSpec, directory: Path, basis: TuneKey, start: Start, free_bytes: int = 0) -> Tuned:
    """The result remembered in `directory` for the same device and versions, or that of a new dry run of its
    spec.toml.

    Raises MemoryFull if not even one sequence fits, HomefiresError if nothing could be tried, and what `start` raises.
    """
    known = recall(directory, basis, free_bytes)
    if known is not None:
        return known
    fit = try_out(spec, directory / "spec.toml", basis, start)
    with suppress(DiskFull):  # then the next start tries again
        remember(directory, fit)
    return fit


def try_out(spec: RunSpec, path: Path, basis: TuneKey, start: Start) -> Tuned:
    """Make a dry run. If it is killed, try again with half the micro-batch."""
    most = spec.inner.sequences * spec.inner.accumulation
    words = [
        "--devices",
        *basis.device.split(),
        "--sharding",
        basis.sharding,
        *["--offload"] * basis.offload,
        "--compile",
        basis.compile,
    ]
    while True:
        code, out, err = start(["-m", "peer.parallel.autotune", str(path), *words, "--most", str(most)])
        fit = from_json(out) if code == 0 else None
        if fit is not None:
            return fit
        why = (err.strip().splitlines() or [f"exit code {code}"])[-1].removeprefix("homefires: ")
        if code == MemoryFull.exit_code or (code < 0 and most == 1):
            raise MemoryFull(why)
        if code >= 0:
            raise HomefiresError(f"a dry run on {basis.device} failed: {why}")
        most = (min(most, spec.inner.sequences) + 1) // 2
