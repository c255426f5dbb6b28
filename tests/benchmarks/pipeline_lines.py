"""Clusters whose homes are processes on lines of their own: how fast they train, beside what binds them."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from peer.schema.spec import dump, from_mapping
from tests.benchmarks.links_plan import machine_share
from tests.benchmarks.placed import identity_of
from tests.benchmarks.rivals.group import RivalGroup, told
from tests.benchmarks.rivals.lines import Lines, Paced, open_lines
from tests.benchmarks.rivals.trainee import Orders
from tests.benchmarks.rows import Bar

BEGIN_S, STEP_S = 120.0, 300.0
STEPS = 2
"""One to get under way, and one that is measured."""
MEGA = 1e6


@dataclass(frozen=True, kw_only=True)
class Step:
    """A step that was measured.

    Attributes:
        frames, packets: bytes per token, of the home that sends most, and of the lead; None: nobody counted.
    """

    tokens_per_s: float
    frames: float
    packets: float | None
    flight_bytes: int


@dataclass(frozen=True, kw_only=True)
class Flown:
    """One cluster. Speeds are in tokens per second.

    Attributes:
        free: without lines, all else alike.
        line: what the busiest uplink would carry of frames, without headers, if it never rested.
        shaped: on lines.
        headers: bytes that left the lead beside its frames, as a share of these; None if nobody counted.
        flight_bytes: a frame of the lead's with hidden values.
        load: of the machine's cores by everything on it, in the last run.
    """

    setting: str
    homes: int
    free: float
    line: float
    shaped: float
    headers: float | None
    flight_bytes: int
    shaper: str
    load: float

    @property
    def is_computing(self) -> bool:
        """Whether it is the stages that bind."""
        return self.free <= self.line

    @property
    def share(self) -> float:
        """Of what binds."""
        return self.shaped / min(self.free, self.line)


def fly(folder: Path, plan: dict[str, Any], setting: str) -> Flown:
    """The cluster of a setting without lines, and then on them."""
    homes = plan["settings"][setting]["homes"]
    free = _trained(folder / "free", plan, setting, Paced(homes, 0.0))
    mbps = [(plan["upload_mbps"], plan["download_mbps"])] * homes
    lines = open_lines(folder / "lines", mbps, plan["delay_s"])
    before = psutil.cpu_times()
    shaped = _trained(folder / "shaped", plan, setting, lines)
    return Flown(
        setting=setting, homes=homes, free=free.tokens_per_s, line=plan["upload_mbps"] * MEGA / 8 / shaped.frames,
        shaped=shaped.tokens_per_s, headers=shaped.packets and shaped.packets / shaped.frames - 1,
        flight_bytes=shaped.flight_bytes, shaper=lines.shaper, load=machine_share(before),
    )  # fmt: skip


def _trained(folder: Path, plan: dict[str, Any], setting: str, lines: Lines) -> Step:
    folder.mkdir(parents=True)
    chosen, table = plan["settings"][setting], plan["spec"]
    context = chosen["context"]
    config = table["model"]["config"] | {"num_hidden_layers": chosen["homes"]}
    spec = from_mapping(
        table | {
            "model": table["model"] | {"context": context, "config": config},
            "inner": table["inner"] | {"accumulation": chosen["flights"]},
        },
        setting,
    )  # fmt: skip
    path = folder / "spec.toml"
    path.write_text(dump(spec))
    names = tuple(identity_of(number).peer_id for number in range(chosen["homes"]))

    def orders(number: int, meet: str) -> Orders:
        return Orders(
            spec=str(path), peers=names, me=names[number], founder=number, step_s=chosen["forward_s"],
            rounds=STEPS, address=lines.places[number].address, device=lines.places[number].device,
            floor_bps=lines.floor_bps, meet=meet,
        )  # fmt: skip

    with closing(lines), RivalGroup("tests.benchmarks.pipeline_stage", folder, lines) as group:
        lead = group.add(orders(0, ""))
        (row,) = group.wait(lambda: list(told(lead, "meet")), "a lead does not say where to meet", within_s=BEGIN_S)
        for number in range(1, len(names)):
            group.add(orders(number, row["where"]))
        group.until_all_told("ready", within_s=BEGIN_S)
        group.go()
        group.until_all_told("step", STEPS, within_s=STEPS * STEP_S)
        last = [list(told(member, "step"))[-1] for member in group.members]
        began, ended, tokens = (last[0][key] for key in ("began", "t", "tokens"))
        packets = lines.sent_bytes(0, began, ended)
    assert tokens == context * chosen["flights"], "a step of all its sequences"
    return Step(
        tokens_per_s=tokens / (ended - began), frames=max(row["sent"] for row in last) / tokens,
        packets=packets and packets / tokens, flight_bytes=last[0]["sent"] // chosen["flights"],
    )  # fmt: skip


def bars_of(plan: dict[str, Any], rows: list[Flown]) -> list[Bar]:
    """One of each cluster."""
    found = []
    for row in rows:
        least = plan["least_of_compute" if row.is_computing else "least_of_line"]
        of = "the stages without a line" if row.is_computing else "the line"
        found.append(
            Bar(
                name=f"{row.setting}: at least {least:g} of {of}", met=row.share >= least,
                figures=f"{row.share:.3f}",
            )
        )  # fmt: skip
    return found


def table_of(rows: list[Flown]) -> list[list[str]]:
    """Titles, and a line of each cluster."""
    titles = ["tokens/s", "homes", "KB a flight", "without lines", "the line", "on lines", "of what binds", "headers"]
    return [titles] + [
        [
            row.setting, str(row.homes), f"{row.flight_bytes / 1e3:.0f}", f"{row.free:,.0f}", f"{row.line:,.0f}",
            f"{row.shaped:,.0f}", f"{row.share:.3f}", "-" if row.headers is None else f"{row.headers:.1%}",
        ]
        for row in rows
    ]  # fmt: skip
