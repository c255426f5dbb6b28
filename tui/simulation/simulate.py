"""`homefires simulate`: simulates a run on a swarm of your choice, in minutes."""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TextIO

from dht.errors import BadInput
from peer.planning.plan.model_shape import shape_of
from peer.planning.plan.peer_set import MAX_MEMBERS, PeerSpecs, refuse_count
from peer.planning.plan.peers_file import read_declared
from peer.planning.plan.strategy_search import seconds
from peer.planning.simulate.group import simulate
from peer.planning.simulate.run_summary import Summary
from peer.planning.simulate.scenario import Churn, ScenarioOptions, read_attackers, read_churn
from peer.schema.byte_text import format_bytes
from peer.schema.events import EventLine, format_line
from tui.folders import writing
from tui.simulation.plan_options import SimulateOptions, SwarmOptions
from tui.spec_choice import choose_spec
from tui.text.units import count

USUAL_ROUNDS = 20
"""The number of rounds for a run without an end."""


def run_simulate(asked: SimulateOptions) -> Summary:
    """Simulate, and write the events if a file was given. Raises BadInput."""
    wanted = scenario_options(asked)
    with ExitStack() as stack:
        file = stack.enter_context(_open(asked, asked.events)) if asked.events else None

        def write(line: EventLine) -> None:
            assert file is not None
            file.write(format_line(line) + "\n")

        stack.enter_context(_rarely_collected())
        return simulate(wanted, sink=write if file else None)


@contextmanager
def _rarely_collected() -> Iterator[None]:
    """Collect cyclic garbage a hundredth as often.

    A simulation leaves few cycles, and holds so many objects that searching for them took a twentieth of its time.
    """
    usual = gc.get_threshold()
    gc.set_threshold(100 * usual[0], *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)


def _open(asked: SwarmOptions, path: Path) -> TextIO:
    for option, source in (("SPEC", asked.spec), ("--peers", asked.peers), ("--churn", asked.churn)):
        if os.path.exists(path) and os.path.exists(source) and path.samefile(source):
            raise BadInput(f"--events {path} is the file that is read as {option}; name another")
    with writing(path, "--events"):
        return path.open("w", encoding="utf-8")


def scenario_options(asked: SwarmOptions) -> ScenarioOptions:
    """The options of the simulator. Raises BadInput."""
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
        declared = read_declared(Path(text), most=MAX_MEMBERS)
        return len(declared.machines), declared
    refuse_count(int(text), "--peers is {}", MAX_MEMBERS)
    return int(text), None


def to_json(figures: Summary) -> str:
    return json.dumps(figures.plain())


def describe(figures: Summary, events: Path | None) -> str:
    if not figures.rounds:
        return f"no round was made: {figures.peers} peers decided nothing in the time they have"
    bounds_s = f"{figures.low_round_s:.1f} to {figures.high_round_s:.1f} s"
    rows: list[tuple[str, str]] = [
        ("peers", f"{figures.peers} in one group, message by message"),
        *(("a cluster", " > ".join(homes)) for homes in figures.clusters),
        *([("no room", f"{', '.join(figures.idle)}: hold no model, and are in no cluster")] if figures.idle else []),
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
        rows.append(("events", f"look at them with: homefires watch {events}"))
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {text}" for name, text in rows)
