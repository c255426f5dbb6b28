"""Reads from this machine what the limits are compared with, and only what a setting asks for."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Protocol

from peer.node.host.disk import Spared, folder_bytes
from peer.node.host.gpu import Gpus
from peer.node.host.idle import Idleness
from peer.node.host.power import is_on_battery
from peer.node.host.processes import ProcessTree, running
from peer.node.limits.policy import Readings
from peer.schema.settings import PeerSettings


class Sensors(Protocol):
    """The readings at Unix time `now`, without the traffic; None for what no setting asks for."""

    def read(self, settings: PeerSettings, now: float) -> Readings: ...


class MachineSensors:
    """The sensors of this machine, and of the peer in a run folder. `root` is where its /dev, /proc and /sys are."""

    def __init__(self, directory: Path, root: Path = Path("/"), gpus: Gpus | None = None) -> None:
        self._root = root
        self._idleness, self._gpus = Idleness(root), gpus or Gpus()
        self._tree = ProcessTree(os.getpid())
        self._folder = Spared(lambda: folder_bytes(directory))

    def read(self, settings: PeerSettings, now: float) -> Readings:
        asks_gpu = settings.max_temperature_c or settings.max_power_w
        figures = self._gpus.figures() if asks_gpu else {}
        return Readings(
            idle_s=self._idleness.idle_s(now) if settings.idle_min else None,
            on_battery=None if settings.on_battery else is_on_battery(self._root),
            running=running(settings.pause_for, self._tree.pids()) if settings.pause_for else None,
            folder_bytes=self._folder() if settings.disk_gb else None,
            memory_bytes=self._tree.figures(time.monotonic())["memory_bytes"] if settings.memory_gb else None,
            temperature_c=figures.get("temperature_c"),
            power_w=figures.get("power_w"),
        )
