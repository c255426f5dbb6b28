"""`homefires simulate`: a run on a swarm that nobody has, in the time of a coffee."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from pathlib import Path
from typing import TextIO

from dht.errors import BadInput
from peer.planning.plan.model_shape import shape_of
from peer.planning.plan.peer_set import PeerSpecs
from peer.planning.plan.peers_file import read_declared
from peer.planning.plan.strategy_search import seconds
from peer.planning.simulate.scenario import Churn, ScenarioOptions, read_attackers, read_churn
from peer.planning.simulate.simulation import Outcome, simulate
from peer.schema.events import EventLine, format_line
from tui.folders import writing
from tui.processes.device_probe import usable_cores
from tui.simulation.plan_options import MOST, SimulateOptions, SwarmOptions
from tui.simulation.workers import rarely_collected, spread_over
from tui.spec_choice import choose_spec
from tui.text.units import count, format_bytes

MOST_PEERS = 10_000
USUAL_ROUNDS = 20
"""Of a run without an end."""


def run_simulate(asked: SimulateOptions) -> Outcome:
    """Simulate, and write events if somebody wants them. Raises BadInput."""
    wanted = scenario_options(asked)
    with ExitStack() as stack:
        file = stack.enter_context(_open(asked, asked.events)) if asked.events else None

        def write(line: EventLine) -> None:
            assert file is not None
            file.write(format_line(line) + "\n")

        stack.enter_context(rarely_collected())
        return simulate(
            wanted, grid=read_grid(asked.grid), aggregate=asked.aggregate, sink=write if file else None,
            far=spread_over(asked.processes or min(MOST, usable_cores())),
        )  # fmt: skip


def _open(asked: SwarmOptions, path: Path) -> TextIO:
    for option, source in (("SPEC", asked.spec), ("--peers", asked.peers), ("--churn", asked.churn)):
        if os.path.exists(path) and os.path.exists(source) and path.samefile(source):
            raise BadInput(f"--events {path} is the file that is read as {option}; name another")
    with writing(path, "--events"):
        return path.open("w", encoding="utf-8")


def scenario_options(asked: SwarmOptions) -> ScenarioOptions:
    """What the simulator takes. Raises BadInput."""
    spec = choose_spec(asked.spec, sets=asked.sets)
    rounds = (spec.run.rounds or USUAL_ROUNDS) if asked.rounds is None else asked.rounds
    peers, declared = _peers(asked.peers)
    return ScenarioOptions(
        spec=spec, shape=shape_of(spec), declared=declared, peers=peers, step_s=asked.step_s, spread=asked.spread,
        upload_mbps=asked.upload, download_mbps=asked.download, rounds=rounds, preset=asked.preset,
        churn=read_churn(asked.churn) if asked.churn else Churn(),
        attackers=read_attackers(asked.attackers) if asked.attackers else (), skew_s=asked.skew, seed=asked.seed,
    )  # fmt: skip


def _peers(text: str) -> tuple[int, PeerSpecs | None]:
    if not text.removeprefix("-").isdecimal():
        declared = read_declared(Path(text))
        return len(declared.machines), declared
    if not 1 <= int(text) <= MOST_PEERS:
        raise BadInput(f"--peers is {text}; simulate 1 to {MOST_PEERS}")
    return int(text), None


def read_grid(text: str) -> tuple[int, ...]:
    """`8x8x8` → (8, 8, 8); nothing means that the simulator chooses. Raises BadInput."""
    if not text:
        return ()
    sides = text.lower().split("x")
    if not all(side.isdecimal() and int(side) >= 2 for side in sides):
        raise BadInput(f"--grid is {text!r}; write the sizes of its sides, 2 or more each, as in 8x8x8")
    return tuple(map(int, sides))


def to_json(outcome: Outcome) -> str:
    return json.dumps(outcome.plain())


def describe(outcome: Outcome, events: Path | None) -> str:
    figures = outcome.figures
    if not figures.rounds:
        return f"no round was made: {figures.peers} peers {outcome.how}, decided nothing in the time they have"
    bounds_s = f"{figures.low_round_s:.1f} to {figures.high_round_s:.1f} s"
    rows: list[tuple[str, str]] = [
        ("peers", f"{figures.peers} {outcome.how}"),
        ("rounds", f"{figures.rounds} in {seconds(figures.seconds)}, {figures.rounds_per_hour:.1f} per hour"),
        ("a round", f"{figures.median_round_s:.1f} s ({bounds_s} nine in ten), {figures.members:.1f} members"),
        ("training", f"{figures.tokens_per_s:,.0f} tokens/s; a peer waits {figures.exposed_share:.1%} of its time"),
        ("each peer sends", f"{format_bytes(figures.bytes_sent)} per round"),
        ("ballots", f"{count(figures.aborts, 'abort')}, {count(figures.later_ballots, 'later ballot')}"),
        ("void parts", f"{figures.void_share:.2%}"),
        ("penalties", ", ".join(f"{code} {times}" for code, times in figures.penalties.items()) or "none"),
        ("messages", f"{figures.messages:,}"),
    ]
    if events is not None:
        rows.append(("events", f"of {outcome.told}; look at them with: homefires watch {events}"))
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {text}" for name, text in rows)
