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
"""The time limit for a probe: loading torch needs seconds, and a driver may hang."""


@dataclass(frozen=True, kw_only=True)
class FoundDevice:
    device: str = ""
    """A value of `settings.devices`; empty if there is no choice."""
    note: str = ""
    """What people should know about the choice."""

    @property
    def is_gpu(self) -> bool:
        return self.device not in ("", "cpu")


def kernel(*wanted: str) -> str:
    """The first of these devices on which a child process could execute a kernel, as torch names it. Raises
    BadInput, MemoryFull."""
    told = answer("look at the device", python_module("peer.tools.doctor.kernel_probe", *wanted), PROBE_S)
    return str(json.loads(told.splitlines()[-1])["device"])


def require_devices(wanted: Sequence[str], execute: Callable[..., str] = kernel) -> None:
    """Raises BadInput if one of these values of `settings.devices` does not compute. A full device is allowed, since
    a peer waits for it."""
    if not {"auto", "cpu"}.issuperset(wanted):
        with suppress(MemoryFull):
            execute(*wanted)


def count_gpus() -> int:
    """The number of CUDA devices that torch sees here, as a child process reports it."""
    told = answer("look at the devices", python_module("peer.tools.doctor.kernel_probe", "list"), PROBE_S)
    return sum(row["device"].startswith("cuda") for row in json.loads(told.splitlines()[-1])["devices"])


def may_train() -> bool:
    """Whether this machine has a GPU, according to its driver, and a torch that was built for one. If it has none,
    no child process is needed."""
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
    """The cores of this machine that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def find_device(
    wanted: str, may_have_gpu: Callable[[], bool] = may_train, execute: Callable[[str], str] = kernel
) -> FoundDevice:
    """Find one of DEVICES. If a GPU was asked for and is full, it is still chosen, with a note that the peers wait
    for it. Raises BadInput if the device does not compute."""
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
    """`settings.devices` for each peer with `ranks` ranks; empty: the peer chooses. Peers with a single rank may
    share a GPU. Raises BadInput if peers with several ranks would have to share GPUs."""
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
