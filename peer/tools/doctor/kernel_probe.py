"""Executes a kernel on a device in a process of its own: a crash ends nothing else.

It is small until it loads torch, so that it starts and ends fast.
"""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from dht.errors import HomefiresError
from dht.process import die_with_parent

if TYPE_CHECKING:
    import torch

WIDTH = 64

LIST = "list"


def main(wanted: Sequence[str]) -> int:
    """One JSON object on stdout, or one line on stderr and the exit code of `dht.errors`, else 1."""
    die_with_parent()
    try:
        print(json.dumps({"devices": devices()} if tuple(wanted) == (LIST,) else execute(wanted)))
    except (HomefiresError, RuntimeError, AssertionError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        print(f"homefires: {first}", file=sys.stderr)
        return error.exit_code if isinstance(error, HomefiresError) else 1
    return 0


def execute(wanted: Sequence[str]) -> dict[str, Any]:
    """What was found: of the first device, and in `chosen` of each that `settings.devices` means.

    Raises BadInput for a device that is not there, MemoryFull for one that others fill, RuntimeError for one that
    cannot compute.
    """
    import torch

    from peer.node.host.device import choose_devices
    from peer.node.host.unused_card import find_unused

    chosen, found, wants_any = choose_devices(wanted), devices(), tuple(wanted) == ("auto",)
    rows = [_described(str(device), found) | {"kernel_s": _timed(device)} for device in chosen]
    unused = find_unused(torch.version.cuda) if wants_any and all(row["device"] == "cpu" for row in found) else None
    told = None if unused is None else asdict(unused)
    return {**rows[0], "torch": torch.__version__, "devices": found, "chosen": rows, "unused": told}


def _timed(device: torch.device) -> float:
    """Seconds of a kernel, forward and backward."""
    import torch

    from peer.node.host.device import raising_memory_full

    with raising_memory_full(device):
        weights = torch.eye(WIDTH, device=device, requires_grad=True)
        _multiply(weights)  # the first kernel loads the libraries
        started = time.perf_counter()
        value = _multiply(weights)
    kernel_s = time.perf_counter() - started
    if value != WIDTH:
        raise RuntimeError(f"a sum of {WIDTH} ones on {device} came to {value:g}")
    return kernel_s


def _described(device: str, found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    kind = device.partition(":")[0]  # of MPS there is one, which has no number here
    return next((row for row in found if row["device"] in (device, kind)), _cpu())


def _multiply(weights: Any) -> float:
    total = (weights @ weights).sum()
    total.backward()
    return float(total.item())


def devices() -> list[dict[str, Any]]:
    """All that torch can train on here."""
    import torch

    found = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        free, total = torch.cuda.mem_get_info(index)
        found.append(
            {"device": f"cuda:{index}", "name": properties.name, "uuid": f"GPU-{properties.uuid}",
             "free_bytes": free, "total_bytes": total}
        )  # fmt: skip
    if torch.backends.mps.is_available():
        found.append({"device": "mps", "name": "Apple GPU", "uuid": "", "free_bytes": 0, "total_bytes": 0})
    return [*found, _cpu()]


def _cpu() -> dict[str, Any]:
    return {"device": "cpu", "name": platform.machine(), "uuid": "", "free_bytes": 0, "total_bytes": 0}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
