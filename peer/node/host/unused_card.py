"""A graphics card that is in this machine and that torch cannot use: what is missing, and how to get it.

It is found in files of the kernel: neither a driver nor a program has to work for that.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

NVIDIA, DISPLAY = "0x10de", "0x03"
"""The maker's number of a PCI device, and how the class of those that draw begins."""
TORCH_FOR_CUDA = ".venv/bin/pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cu126"


@dataclass(frozen=True, kw_only=True)
class UnusedCard:
    found: str
    fix: str


def find_unused(cuda: str | None, root: Path = Path("/")) -> UnusedCard | None:
    """Why torch, which is built for this version of CUDA or for none, sees no card; None where there is none to see."""
    if (root / "dev" / "dxg").exists():
        if not (root / "usr" / "lib" / "wsl" / "lib" / "libcuda.so.1").exists():
            fix = "if there is one, install its NVIDIA driver in Windows, none in Linux, and run wsl --shutdown there"
            return UnusedCard(found="this is WSL2, and Windows lends it no NVIDIA card", fix=fix)
    elif not any(map(_is_nvidia, (root / "sys" / "bus" / "pci" / "devices").glob("*"))):
        return None
    elif not (root / "proc" / "driver" / "nvidia" / "version").exists():
        fix = "install the NVIDIA driver of your distribution, and restart the machine"
        return UnusedCard(found="an NVIDIA card is here, and its driver is not loaded", fix=fix)
    if cuda is None:
        found = "an NVIDIA card is here, and this torch is built for the processor alone"
        return UnusedCard(found=found, fix=f"install torch for CUDA: {TORCH_FOR_CUDA}")
    found = f"an NVIDIA card is here, and its driver does not serve CUDA {cuda}, for which torch is built"
    return UnusedCard(found=found, fix=f"install a newer driver, or torch for an older CUDA: {TORCH_FOR_CUDA}")


def _is_nvidia(device: Path) -> bool:
    with suppress(OSError):  # a device may go while it is looked at
        maker, kind = ((device / name).read_text().strip() for name in ("vendor", "class"))
        return maker == NVIDIA and kind.startswith(DISPLAY)
    return False
