"""What the limits are held against is read when a setting asks for it, and never before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from peer.node.host.gpu import Gpus
from peer.node.limits.sensors import MachineSensors
from peer.schema.settings import PeerSettings
from tests.peer.node.host.files import put

T = 1_800_000_000.0


class NoGpu(Gpus):
    asked = 0

    def figures(self) -> dict[str, Any]:
        self.asked += 1
        return {"temperature_c": 61.0, "power_w": None}


def test_only_what_a_setting_asks_for_is_read(tmp_path: Path) -> None:
    gpu = NoGpu()
    machine = MachineSensors(tmp_path, tmp_path, gpu)
    nothing = machine.read(PeerSettings(on_battery=True), T)
    assert {value for value in vars(nothing).values()} == {None}
    assert gpu.asked == 0
    put(tmp_path / "dev/pts/0", "read")
    asked = PeerSettings(
        idle_min=5, pause_for=("no-such-program",), disk_gb=1, memory_gb=1, max_temperature_c=70, max_power_w=100,
        monthly_gb=1,
    )  # fmt: skip
    everything = machine.read(asked, T)
    assert (everything.temperature_c, everything.power_w) == (61.0, None)
    assert (everything.on_battery, everything.running, everything.idle_s) == (False, (), 0.0)
    assert everything.memory_bytes is not None
    assert everything.memory_bytes > 10 << 20, "of this process"
    assert everything.folder_bytes
