"""What `join` looks at beside its start, without loading or starting anything; all the rest it finds out by doing."""

from __future__ import annotations

import os
import time
from pathlib import Path

from peer.doctor.check import Check
from peer.doctor.host import check_descriptors, check_disk, check_memory, free_disk_bytes, held_disk_bytes
from peer.doctor.needs import needs_of
from peer.host.measurements import Tree, available_bytes
from peer.settings import PeerSettings
from peer.spec import RunSpec


def quiet(spec: RunSpec, directory: Path, settings: PeerSettings) -> list[Check]:
    """File descriptors, memory, disk. Raises BadSpec for a model that cannot be counted, BadInput for a device that is
    not there."""
    from peer.train.backend import choose_device  # torch, which a peer has loaded by now

    needs = needs_of(spec, settings.chain_bytes)
    on_cpu = choose_device(settings.device).type == "cpu"
    mine = Tree(os.getpid()).figures(time.monotonic())["memory_bytes"] or 0
    return [
        check_descriptors(), check_memory(needs, available_bytes(), on_cpu=on_cpu, held_bytes=mine),
        check_disk(needs, directory, free_disk_bytes(directory), held_disk_bytes(directory)),
    ]  # fmt: skip
