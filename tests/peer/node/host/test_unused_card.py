"""A card that torch cannot use is seen in the files of the kernel, and its mend is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from peer.node.host.unused_card import find_unused

CARD = {"sys/bus/pci/devices/0/vendor": "0x10de\n", "sys/bus/pci/devices/0/class": "0x030000\n"}
OTHERS = {"sys/bus/pci/devices/0/vendor": "0x10de\n", "sys/bus/pci/devices/0/class": "0x040300\n"}
DRIVER, WSL, LENT = "proc/driver/nvidia/version", "dev/dxg", "usr/lib/wsl/lib/libcuda.so.1"


@pytest.mark.parametrize(
    ("files", "cuda", "found", "fix"),
    [
        (CARD, None, "its driver is not loaded", "driver of your distribution"),
        (CARD | {DRIVER: "535"}, None, "built for the processor alone", "pip install --force-reinstall torch"),
        (CARD | {DRIVER: "470"}, "13.0", "does not serve CUDA 13.0", "a newer driver, or torch for an older CUDA"),
        ({WSL: ""}, None, "this is WSL2, and Windows lends it no NVIDIA card", "driver in Windows, none in Linux"),
        ({WSL: "", LENT: ""}, None, "built for the processor alone", "pip install"),
    ],
)
def test_what_is_missing_is_said_with_its_mend(
    files: dict[str, str], cuda: str | None, found: str, fix: str, tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    card = find_unused(cuda, tmp_path)
    assert card is not None
    assert found in card.found
    assert fix in card.fix


@pytest.mark.parametrize("files", [{}, OTHERS])
def test_without_a_card_nothing_is_missing(files: dict[str, str], tmp_path: Path) -> None:
    """The sound of a card that is gone is none."""
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert find_unused(None, tmp_path) is None
