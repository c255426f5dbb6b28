"""Checks of the software: a device that computes, and libraries that fit together. Each runs in a child, which may
crash.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dht.errors import BadInput, HomefiresError, MemoryFull
from dht.process import parent_env
from peer.planning.plan.strategy_search import seconds
from peer.schema.byte_text import format_bytes
from peer.schema.events import InnerProgressed, read_lines
from peer.schema.spec import RunSpec, dump
from peer.tools.doctor.check import Check, failed, one_line, passed, unknown, warned
from peer.training.train.autotune_result import Tuned, from_json

CHILD_S = 90.0
"""Loading torch takes seconds; a driver that hangs is not waited for any longer."""

DRY_S = 180.0
"""A dry run of the micro-batch; one of a join may take longer (`peer.parallel.autotune.cache`)."""

LIBRARIES = """
from dht.process import die_with_parent
die_with_parent()
import google.protobuf, hivemind
from hivemind.proto import dht_pb2, p2pd_pb2
sent = dht_pb2.PingResponse(dht_time=1.5)
assert dht_pb2.PingResponse.FromString(sent.SerializeToString()).dht_time == 1.5
print(hivemind.__version__, google.protobuf.__version__)
"""


@dataclass(frozen=True, kw_only=True)
class ChildResult:
    exit_code: int
    out: str
    err: str
    timed_out: bool = False

    @property
    def answer(self) -> str:
        """The last line that it printed: a library may have printed something before."""
        lines = self.out.strip().splitlines()
        return lines[-1] if lines else ""

    @property
    def last_words(self) -> str:
        lines = self.err.strip().splitlines()
        said = lines[-1].removeprefix("homefires: ") if lines else f"it ended with exit code {self.exit_code}"
        return one_line(said)[:300]


Start = Callable[..., Awaitable[ChildResult]]
"""Runs `python` with these words to its end."""


@dataclass(frozen=True, kw_only=True)
class Device:
    """The device on which a kernel was executed."""

    device: str
    name: str
    uuid: str = ""
    free_bytes: int = 0
    """0 for a CPU."""
    total_bytes: int = 0
    """Likewise."""


async def run_python(*words: str, timeout_s: float = CHILD_S) -> ChildResult:
    """To its end, or killed after `timeout_s`."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, *words, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | {"PYTHONSAFEPATH": "1", "GOLOG_LOG_LEVEL": "error"} | parent_env(),
    )  # fmt: skip
    try:
        async with asyncio.timeout(timeout_s):
            out, err = await child.communicate()
    except TimeoutError:
        return ChildResult(exit_code=-9, out="", err=f"it did not end within {timeout_s:.0f} s", timed_out=True)
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    assert child.returncode is not None
    return ChildResult(exit_code=child.returncode, out=out.decode(errors="replace"), err=err.decode(errors="replace"))


EVENLY = "FSDP divides evenly: the smallest card decides"


async def check_devices(wanted: Sequence[str], start: Start = run_python) -> tuple[Check, tuple[Device, ...]]:
    """Have a kernel executed on each device that `--devices` means, forward and backward; none where one fails."""
    ended, named = await start("-m", "peer.tools.doctor.kernel_probe", *wanted), ", ".join(wanted)
    if ended.exit_code == MemoryFull.exit_code:
        fix = "close what else uses it, or join with --devices cpu; a peer that joins waits until there is room"
        return failed("device", f"device {named} is full: {ended.last_words}", fix, MemoryFull), ()
    if ended.exit_code != 0:
        found = f"device {named} does not compute: {ended.last_words}"
        fix = "install a driver and a torch build that fit this device, or join with --devices cpu"
        return failed("device", found, fix, BadInput), ()
    told = json.loads(ended.answer)
    rows = told["chosen"]
    devices = tuple(Device(**{each.name: row[each.name] for each in dataclasses.fields(Device)}) for row in rows)
    others = [row for row in told["devices"] if row["device"] not in {each.device for each in devices}]
    listed = "; also here: " + ", ".join(f"{row['device']} ({_describe(row)})" for row in others) if others else ""
    uneven = f"; {EVENLY}" if len({row["total_bytes"] for row in rows}) > 1 else ""
    found = f"{_computes(rows)} with torch {told['torch']}{uneven}{listed}"
    if unused := told.get("unused"):
        return warned("device", one_line(f"{found}; {unused['found']}"), unused["fix"]), devices
    return passed("device", one_line(found), kernel_s=max(row["kernel_s"] for row in rows)), devices


def _computes(rows: Sequence[dict[str, Any]]) -> str:
    first = rows[0]
    if len(rows) == 1:
        return f"{first['device']} computes ({_describe(first)})"
    if first["device"] == "cpu":
        return f"{len(rows)} ranks compute on cpu ({_describe(first)})"
    listed = ", ".join(f"{row['device']} ({_describe(row)})" for row in rows)
    return f"{len(rows)} devices compute: {listed}"


def _describe(row: dict[str, Any]) -> str:
    total = row.get("total_bytes")
    return f"{row['name']}, {format_bytes(total)}" if isinstance(total, int) and total else str(row["name"])


async def check_libraries(start: Start = run_python) -> Check:
    """Whether hivemind's generated messages and the installed protobuf go together."""
    ended = await start("-c", LIBRARIES)
    if ended.exit_code != 0:
        found = f"hivemind cannot be used: {ended.last_words}"
        fix = "make a fresh environment where its code lies: python3 -m venv .venv && .venv/bin/pip install -e ."
        return failed("libraries", found, fix, HomefiresError)
    hivemind, protobuf = ended.answer.split()
    return passed("libraries", f"hivemind {hivemind} and protobuf {protobuf} go together")


async def _dry_run(spec: RunSpec, path: Path, device: str, start: Start) -> ChildResult:
    """As a join does it: one that the system kills, for it took too much memory, is tried with half the micro-batch."""
    most = spec.inner.sequences * spec.inner.accumulation
    while True:
        ended = await start(
            "-m", "peer.parallel.autotune", str(path), "--devices", device, "--most", str(most), timeout_s=DRY_S
        )  # fmt: skip
        if ended.exit_code >= 0 or ended.timed_out or most == 1:
            return ended
        most = (min(most, spec.inner.sequences) + 1) // 2


async def check_fit(spec: RunSpec, device: str, start: Start = run_python) -> tuple[Check, Tuned | None]:
    """A dry run of the real micro-batch: how fast this machine trains, and whether there is room."""
    with tempfile.TemporaryDirectory(prefix="hf-") as folder:
        path = Path(folder) / "spec.toml"
        path.write_text(dump(spec))
        ended = await _dry_run(spec, path, device, start)
    if ended.timed_out:
        found = f"a dry run of {spec.run.name}: {ended.last_words}; a join waits longer for it"
        return unknown("fit", found, "join a run with a smaller model, or choose another device with --devices"), None
    fit = from_json(ended.answer) if ended.exit_code == 0 else None
    if fit is None:
        full = ended.exit_code == MemoryFull.exit_code or ended.exit_code < 0
        fix = "close other programs, choose another device with --devices, or join a run with a smaller model"
        if not full:
            fix = "run homefires doctor with --debug to see why, or join with --devices cpu"
        found = f"a dry run of {spec.run.name} fails: {ended.last_words}"
        return failed("fit", found, fix, MemoryFull if full else HomefiresError), None
    whole = spec.inner.sequences * spec.inner.accumulation
    kernel = f", {fit.attention} attention" if fit.attention else ""
    speed = f"a step of {seconds(fit.step_s)}, {fit.tokens_per_s:,.0f} tokens/s"
    found = f"{fit.sequences} of {whole} sequences at a time, {fit.precision}{kernel}: {speed}"
    figures = {"sequences": fit.sequences, "step_s": fit.step_s, "tokens_per_s": fit.tokens_per_s}
    return passed("fit", found, **figures), fit


def check_training(spec: RunSpec, directory: Path) -> tuple[Check, float | None]:
    """Seconds of an inner step of a peer that is at work, by its own log: a dry run beside it would take its device."""
    log = directory / "events.jsonl"
    speeds = [
        line.event.tokens_per_s
        for line in (read_lines(log) if log.exists() else ())
        if line is not None and isinstance(line.event, InnerProgressed) and line.event.tokens_per_s > 0
    ]
    if not speeds:
        return unknown("fit", "no dry run beside its peer, which has told no speed yet; see: homefires status"), None
    step_s = spec.inner.sequences * spec.inner.accumulation * spec.model.context / speeds[-1]
    found = f"its peer made a step in {seconds(step_s)} when it trained last, {speeds[-1]:,.0f} tokens/s"
    return passed("fit", found, step_s=step_s, tokens_per_s=speeds[-1]), step_s
