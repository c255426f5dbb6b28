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
    """Whether an allocation failed, of a GPU or of main memory: not all that do have a class of their own."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in FULL_SIGNS)


def is_lost(error: BaseException) -> bool:
    """Whether a device has failed for good, as far as this process goes."""
    if not isinstance(error, RuntimeError) or is_out_of_memory(error):
        return False
    return any(sign in str(error) for sign in LOST_SIGNS)


def choose_device(wanted: str = "auto") -> torch.device:
    """The device a volunteer asked for, after it has executed a kernel; `auto` takes CUDA, then MPS, then the CPU.

    It is the one that tensors there say they are on: `cuda:0`, to which `cuda` is not equal.

    Raises MemoryFull where others leave it no room for that, and BadInput for what does not work. A GPU that is there
    and does not compute is told, and not passed over in silence.
    """
    if wanted == "auto":
        return _usable_device(_best(), wanted, "use cpu")
    return _usable_device(wanted, wanted, "use auto or cpu")


def choose_devices(wanted: Sequence[str] = ("auto",)) -> tuple[torch.device, ...]:
    """As `choose_device`, each of those that were named, in their order; `auto` takes all GPUs where there are some."""
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
    """A CUDA device has its number wherever devices are compared: tensors say `cuda:0`, and `cuda` is not equal."""
    assert device.type != "cuda" or device.index is not None, f"{device} has no index; see `choose_device`"


MOST_SPELT = 2
"""GPUs of which a short word has all numbers."""


def short_word(devices: Sequence[str]) -> str:
    """`cpu`, `2 × cpu`, `cuda:0+1`, `4 × cuda`: what fits into a column of a table."""
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
    """Whether CUDA looks as if it was not there, because its driver finds no memory for itself."""
    if torch.version.cuda is None:
        return False
    try:
        torch.ones(1, device="cuda")
    except (RuntimeError, AssertionError) as error:
        return is_out_of_memory(error)
    return True


def first_line(error: BaseException) -> str:
    """Of what it says; its name if that is nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def free_bytes(device: torch.device) -> int:
    """Of a GPU's memory, what nobody uses, and what torch keeps for this process without need; 0 where it does not
    tell."""
    if device.type != "cuda":
        return 0
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + kept


def total_bytes(device: torch.device) -> int:
    """Of a GPU's memory, all there is; 0 where it does not tell."""
    return torch.cuda.mem_get_info(device)[1] if device.type == "cuda" else 0


def wait_for(device: torch.device) -> None:
    """Until all is done that was queued there."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    if device.type == "mps":
        torch.mps.synchronize()


def empty_device_caches() -> None:
    """Give back to the driver what no tensor needs, also where CUDA has never begun."""
    gc.collect()
    torch.cuda.empty_cache()


@contextmanager
def raising_memory_full(device: torch.device, what: str = "the model") -> Iterator[None]:
    """Raises MemoryFull where `what`, or what its optimizer remembers, finds no room on `device`."""
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise MemoryFull(f"the memory of {device} has no room for {what}; {MAKE_ROOM}") from error


@contextmanager
def raising_device_lost(device: torch.device) -> Iterator[None]:
    """Raises DeviceLost where `device` or its driver has failed for good."""
    try:
        yield
    except RuntimeError as error:
        if not is_lost(error):
            raise
        raise DeviceLost(
            f"{device} has failed ({first_line(error)}); restart the machine or its driver, then join again in the "
            "same folder: all up to the newest checkpoint and contribution is on disk"
        ) from error
