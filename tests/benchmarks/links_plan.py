"""What the links benchmark measures, as its files say."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

SPEC = Path(__file__).with_name("links.toml")
PLAN = Path(__file__).with_name("links_plan.toml")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """See `links_plan.toml`."""

    step_s: float
    slower: tuple[float, ...]
    upload_mbps: float
    download_mbps: float
    delay_s: float
    rounds: int
    extra_rounds: int
    warm_rounds: int
    ddp_steps: int
    ddp_most_steps: int
    ddp_every: int
    systems: dict[str, dict[str, Any]]
    sets: tuple[str, ...] = ()

    @classmethod
    def read(cls, quick: bool, chosen: list[str] | None = None) -> Plan:
        """From the file; some of its systems, if they are `chosen`."""
        table = tomllib.loads(PLAN.read_text())
        short = table.pop("quick")
        quick_ones = short.pop("chosen")
        if quick:
            table |= short
            chosen = chosen or quick_ones
        if chosen:
            table["systems"] = {name: table["systems"][name] for name in chosen}
        return cls(**table | {"slower": tuple(table["slower"]), "sets": tuple(table.get("sets", ()))})

    @property
    def mbps(self) -> list[tuple[float, float]]:
        """(up, down) of every peer's line, and a free one at which they meet."""
        return [(self.upload_mbps, self.download_mbps)] * len(self.slower) + [(0.0, 0.0)]

    @property
    def caps(self) -> tuple[str, ...]:
        """The same as settings of our own peers."""
        return (f"upload_mbps={self.upload_mbps}", f"download_mbps={self.download_mbps}")

    @property
    def paces(self) -> dict[int, tuple[str, ...]]:
        """The setting that makes each of our own peers as slow as it is declared."""
        return {peer: (f"min_step_s={self.step_s * times}",) for peer, times in enumerate(self.slower)}


def machine_share(before: Any) -> float:
    """Processor time of everything on this machine since `before` (psutil.cpu_times), as a share of all cores."""
    now = psutil.cpu_times()
    idle = now.idle + now.iowait - before.idle - before.iowait
    return 1 - idle / (sum(now) - sum(before))
