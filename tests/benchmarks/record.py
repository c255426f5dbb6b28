"""What a training benchmark leaves: NAME.md with the table and the bars, NAME.json with all that is behind them."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import subprocess
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from peer.schema.spec import RunSpec
from tests.benchmarks.jobs import ROOT
from tests.benchmarks.rows import Bar, Row


def write_results(path: Path, base: RunSpec, table: str, bars: Sequence[Bar], rows: Sequence[Row], **more: Any) -> int:
    """Print the table and the bars; write them and `more` to `path` with `.md` and `.json`. 0 if all bars are met."""
    text = table + "\n" + "".join(f"- {bar}\n" for bar in bars)
    print("\n" + text, flush=True)
    path.with_suffix(".md").write_text(text)
    result = {
        "spec": {"name": base.run.name, "digest": base.digest().hex(), **dataclasses.asdict(base)},
        **more, "commit": commit(), "versions": versions(), "machine": machine(),
        "bars": [dataclasses.asdict(bar) for bar in bars], "rows": list(rows),
    }  # fmt: skip
    path.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    return 0 if all(bar.met for bar in bars) else 1


def say(text: str) -> None:
    """Print a line of progress with the time of day."""
    print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)


def commit() -> str:
    """The commit of the working tree, `-dirty` if files differ from it; empty outside a repository."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
    return told.stdout.strip()


def versions() -> dict[str, str]:
    """Versions of what computes."""
    return {"python": platform.python_version()} | {name: version(name) for name in ("torch", "numpy", "transformers")}


def machine() -> dict[str, str | int]:
    """The processor, by kind and not by name."""
    names = [platform.processor() or platform.machine()]
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text().splitlines()
        names += [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {"cpu": names[-1], "cores": os.cpu_count() or 1, "system": platform.system()}
