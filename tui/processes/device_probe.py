"""Where a demo's peers train: on a GPU, if a child process that loads torch finds that it computes."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version

from dht.errors import BadInput, HomefiresError, MemoryFull
from peer.schema.events import printable
from tui.processes.children import python_module
from tui.processes.one_shot import answer

DEVICES = ("auto", "cpu", "cuda", "mps")
PROBE_S = 90.0
"""Loading torch takes seconds; a driver that hangs is not waited for any longer."""


@dataclass(frozen=True, kw_only=True)
class FoundDevice:
    device: str = ""
    """As one of `settings.devices`; empty where there is nothing to choose from."""
    note: str = ""
    """What people should know of the choice."""

    @property
    def is_gpu(self) -> bool:
        return self.device not in ("", "cpu")


def kernel(*wanted: str) -> str:
    """The first device of those on which a child has executed a kernel, as torch names it. Raises BadInput,
    MemoryFull."""
    told = answer("look at the device", python_module("peer.tools.doctor.kernel_probe", *wanted), PROBE_S)
    return str(json.loads(told.splitlines()[-1])["device"])


def require_devices(wanted: Sequence[str], execute: Callable[..., str] = kernel) -> None:
    """Raises BadInput where one of `settings.devices` does not compute. A peer waits for one that is full."""
    if not {"auto", "cpu"}.issuperset(wanted):
        with suppress(MemoryFull):
            execute(*wanted)


def count_gpus() -> int:
    """CUDA devices that torch sees here, as a child tells."""
    told = answer("look at the devices", python_module("peer.tools.doctor.kernel_probe", "list"), PROBE_S)
    return sum(row["device"].startswith("cuda") for row in json.loads(told.splitlines()[-1])["devices"])


def may_train() -> bool:
    """Whether this machine has a GPU, as its driver says, and a torch that was built for one. No child is started where
    it has none."""
    if sys.platform == "darwin":
        return platform.machine() == "arm64"
    if version("torch").endswith("+cpu"):
        return False
    if "+rocm" in version("torch"):
        return True  # AMD's driver tells this library nothing; a child that loads torch finds out
    import pynvml

    try:
        pynvml.nvmlInit()
        return bool(pynvml.nvmlDeviceGetCount())
    except pynvml.NVMLError:
        return False


def usable_cores() -> int:
    """Of this machine, as far as this process may use them."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def find_device(
    wanted: str, may_have_gpu: Callable[[], bool] = may_train, execute: Callable[[str], str] = kernel
) -> FoundDevice:
    """One of DEVICES, found. A GPU that is asked for and full is taken: the peers wait for it, and say so. Raises
    BadInput for one that is asked for and does not compute."""
    if wanted == "cpu":
        return FoundDevice(device="cpu")
    if wanted == "auto":
        return _found(execute) if may_have_gpu() else FoundDevice()
    try:
        execute(wanted)
    except MemoryFull as error:
        return FoundDevice(device=wanted, note=printable(f"the peers wait for room: {error}"))
    return FoundDevice(device=wanted)


def share_devices(
    found: FoundDevice, peers: int, ranks: int, count: Callable[[], int] = count_gpus
) -> tuple[tuple[str, ...], ...]:
    """`settings.devices` of each peer, of so many ranks; empty: it chooses. A rank alone shares a GPU with the others'.
    Raises BadInput where several ranks each would have to share GPUs."""
    if ranks == 1:
        return ((found.device,) if found.device else (),) * peers
    if not found.is_gpu:
        return (("cpu",) * ranks,) * peers
    here, wanted = count() if found.device == "cuda" else 1, peers * ranks
    if here < wanted:
        raise BadInput(
            f"--ranks {ranks} of --peers {peers} take {wanted} GPUs, and {here} can be had: add --devices cpu"
        )
    return tuple(tuple(f"cuda:{peer * ranks + rank}" for rank in range(ranks)) for peer in range(peers))


def _found(execute: Callable[[str], str]) -> FoundDevice:
    try:
        name = execute("auto").partition(":")[0]
    except HomefiresError as error:
        return FoundDevice(device="cpu", note=printable(f"the GPU is not used: {error}"))
    return FoundDevice() if name == "cpu" else FoundDevice(device=name)
