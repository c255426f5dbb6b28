"""Chooses the devices that a volunteer asked for. After a failure it tells a full memory from a lost device."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from dht.errors import BadInput, DeviceLost, MemoryFull
from peer.node.host.unused_card import find_unused

FULL_SIGNS = ("can't allocate memory", "out of memory", "ALLOC_FAILED")
"""Of main memory; of a driver that is asked without the allocator, also for its context, and of MPS; of cuBLAS and
cuDNN."""

LOST_SIGNS = (
    "uncorrectable", "device-side assert", "unspecified launch failure", "illegal memory access",
    "illegal instruction was encountered", "hardware stack error", "misaligned address", "invalid program counter",
    "launch timed out", "context is destroyed", "driver shutting down", "no CUDA-capable device",
    "busy or unavailable", "CUDA error: unknown error",
    "CUDA driver version is insufficient", "GPU is lost", "CUBLAS_STATUS_EXECUTION_FAILED",
    "CUDNN_STATUS_EXECUTION_FAILED",
)  # fmt: skip
"""Of errors after which every further call in the same process fails, too; the one of a driver that was exchanged
under a running program, the one of NVML; and how libraries tell that a kernel of theirs met such an error."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed, on a GPU or in main memory: not all such errors have a class of their own."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in FULL_SIGNS)


def is_lost(error: BaseException) -> bool:
    """Whether a device has failed for good, as far as this process is concerned."""
    if not isinstance(error, RuntimeError) or is_out_of_memory(error):
        return False
    return any(sign in str(error) for sign in LOST_SIGNS)


def choose_device(wanted: str = "auto") -> torch.device:
    """The device that a volunteer asked for, after it has executed a kernel; `auto` takes CUDA, then MPS, then the
    CPU.

    It is the device that its tensors report: `cuda:0`, which does not equal `cuda`. Raises MemoryFull if other programs
    leave it no memory for that, and BadInput if it does not work. A GPU that is there and does not compute is reported,
    not passed over in silence.
    """
    if wanted == "auto":
        return _usable_device(_best(), wanted, "use cpu")
    return _usable_device(wanted, wanted, "use auto or cpu")


def choose_devices(wanted: Sequence[str] = ("auto",)) -> tuple[torch.device, ...]:
    """As `choose_device`, for each of the named devices, in their order; `auto` takes all GPUs if there are some."""
    if tuple(wanted) != ("auto",):
        return tuple(choose_device(name) for name in wanted)
    first = choose_device("auto")
    count = torch.cuda.device_count() if first.type == "cuda" else 1
    if count <= 1:
        return (first,)
    return tuple(_usable_device(f"cuda:{index}", "auto", "name the others, or use cpu") for index in range(count))


def _usable_device(name: str, wanted: str, otherwise: str) -> torch.device:
    try:
        one = torch.ones(1, device=torch.device(name))
        one.add(1).item()
    except (RuntimeError, AssertionError) as error:
        if is_out_of_memory(error):
            raise MemoryFull(f"{name} has no room for any program more; {MAKE_ROOM}") from error
        card = find_unused(torch.version.cuda) if name.startswith("cuda") and not torch.cuda.is_available() else None
        mend = f"{card.found}: {card.fix}, or {otherwise}" if card is not None else otherwise
        raise BadInput(
            f"settings.devices is {wanted!r}, and {name} does not work here ({first_line(error)}); {mend}"
        ) from error
    return one.device


def assert_index(device: torch.device) -> None:
    """Requires a CUDA device to have its number wherever devices are compared: tensors report `cuda:0`, which does
    not equal `cuda`."""
    assert device.type != "cuda" or device.index is not None, f"{device} has no index; see `choose_device`"


MOST_SPELT = 2
"""GPUs of which a short word has all numbers."""


def short_word(devices: Sequence[str]) -> str:
    """`cpu`, `2 × cpu`, `cuda:0+1`, `4 × cuda`: short enough for a column of a table."""
    if len(devices) == 1:
        return devices[0]
    kind, _, number = devices[0].partition(":")
    if kind == "cpu" or len(devices) > MOST_SPELT:
        return f"{len(devices)} × {kind}"
    return f"{kind}:{'+'.join([number or '0', *(name.partition(':')[2] or '0' for name in devices[1:])])}"


MAKE_ROOM = "close other programs, or join with --devices cpu"


def _best() -> str:
    if torch.cuda.is_available() or _hides_for_want_of_memory():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def _hides_for_want_of_memory() -> bool:
    """Whether CUDA seems to be missing because its driver finds no memory for itself."""
    if torch.version.cuda is None:
        return False
    try:
        torch.ones(1, device="cuda")
    except (RuntimeError, AssertionError) as error:
        return is_out_of_memory(error)
    return True


def first_line(error: BaseException) -> str:
    """The first line of an error's text; its class name if the text is empty."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def free_bytes(device: torch.device) -> int:
    """A GPU's memory that is free or that torch keeps for this process without need; 0 if the device does not tell."""
    if device.type != "cuda":
        return 0
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + kept


def total_bytes(device: torch.device) -> int:
    """All of a GPU's memory; 0 if the device does not tell."""
    return torch.cuda.mem_get_info(device)[1] if device.type == "cuda" else 0


def wait_for(device: torch.device) -> None:
    """Wait until everything that was queued on the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    if device.type == "mps":
        torch.mps.synchronize()


def empty_device_caches() -> None:
    """Give memory that no tensor needs back to the driver, also where CUDA was never used."""
    gc.collect()
    torch.cuda.empty_cache()


@contextmanager
def raising_memory_full(device: torch.device, what: str = "the model") -> Iterator[None]:
    """Raises MemoryFull if `what`, or its optimizer's moments, does not fit on `device`."""
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise MemoryFull(f"the memory of {device} has no room for {what}; {MAKE_ROOM}") from error


@contextmanager
def raising_device_lost(device: torch.device) -> Iterator[None]:
    """Raises DeviceLost if `device` or its driver has failed for good."""
    try:
        yield
    except RuntimeError as error:
        if not is_lost(error):
            raise
        raise DeviceLost(
            f"{device} has failed ({first_line(error)}); restart the machine or its driver, then join again in the "
            "same folder: all up to the newest checkpoint and contribution is on disk"
        ) from error
