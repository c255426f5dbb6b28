"""`pipeline_homes`: real homes in network namespaces find each other, lose one, and outgrow a slow one.

Every home is a `homefires join` in a namespace with a line of its own, and is given no line of a cluster by hand. Its
blocks take as long as a file says (`peer.testing.short_waits.DRAG`), so that two cores can be six homes of three
speeds. All that is waited for has the product's own times. What is best, and what is random, is said by the product's
own cost (`peer.planning.homes.home_match`) for the speeds and lines that are there, not for those that were offered.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import combinations, permutations, product
from math import inf
from pathlib import Path
from statistics import fmean
from typing import TypeVar

from peer.planning.homes.home_match import HomeMatching
from peer.planning.placement.block_shares import Dealing, StageHome
from peer.planning.plan.cluster_cost import forecast_of, layout_of
from peer.planning.plan.model_shape import shape_of
from peer.schema.events import ClusterFormed, InnerProgressed, RoundCommitted, RoundStarted
from peer.schema.spec import RunSpec
from peer.testing.short_waits import DRAG, FORWARD
from peer.testing.swarm_contract import changed_spec
from tests.benchmarks.placed import PlacedSwarm
from tests.benchmarks.record import say
from tests.benchmarks.rivals.lines import Namespaces
from tests.benchmarks.rows import Bar, markdown

T = TypeVar("T")
STAGES, BLOCKS, MOST_BLOCKS = 3, 9, 4
"""A home holds at most four of nine blocks: three homes hold the model, and cuts can move."""
FAST_S, MIDDLE_S, SLOW_S = 0.02, 0.08, 0.24
"""Of a block, forward, for a flight."""
WIDE_MBPS, NARROW_MBPS = 20.0, 0.5
"""Of an uplink. A flight is small beside those of a model that needs three homes, and so are these."""
DOWN_MBPS = 100.0
DELAY_S = 0.02
"""One way."""
SIX = tuple(product((FAST_S, MIDDLE_S, SLOW_S), (WIDE_MBPS, NARROW_MBPS)))
WITH_SPARE = tuple(product((FAST_S, MIDDLE_S), (WIDE_MBPS, NARROW_MBPS)))
ALIKE = ((FAST_S, WIDE_MBPS),) * STAGES
SETS = (
    "model.context=256", "model.config={hidden_size=64, intermediate_size=96, num_hidden_layers=9, "
    "num_attention_heads=2}", "inner.sequences=1", "inner.accumulation=6", "data.eval_sequences=4",
    "data.eval_every=1000", 'round.pace="time"', "round.sync_rounds=1", "round.ramp_rounds=0", "round.steps=100",
    "round.snapshot_rounds=2", "round.keep_rounds=2", "round.max_staleness=8",
)  # fmt: skip
SLOWER = 4.0
SHARE, GAIN, BACK_S, ROUNDS = 0.85, 2.5, 60.0, 2
"""The bars: of the best, as a multiple of random, until a cluster trains again, until the cuts have moved."""
FIND_S, STEP_S = 300.0, 180.0
FOUND_ROUND_S = 90
"""Of a round of homes that found each other. What a round sends over the narrow lines, and a trial of gradients, delay
a step or two in each; between people a round has a hundred steps."""
SEEN_ROUNDS = 4
"""Of which all steps are measured."""
MEMORY_GB = 2.0

Homes = Sequence[tuple[float, float]]
"""Seconds of a block and Mbit/s up, of each."""


@dataclass(frozen=True)
class Costs:
    """What layouts of these homes would reach, by the product's own cost."""

    spec: RunSpec
    homes: Mapping[str, StageHome]

    @classmethod
    def of(cls, spec: RunSpec, homes: Homes, names: Sequence[str]) -> Costs:
        return cls(spec, {name: _home(spec, *kind) for name, kind in zip(names, homes, strict=True)})

    def rated(self, order: Sequence[str]) -> float:
        """Tokens per second of these stages, with the best cut."""
        trips = {frozenset(pair): 2 * DELAY_S for pair in combinations(order, 2)}
        return HomeMatching(shape_of(self.spec), self.spec).rated(order, self.homes, trips)

    def best(self) -> float:
        """Of all ways to make one cluster, or two."""
        speeds = {
            frozenset(some): max(map(self.rated, permutations(some)))
            for size in range(STAGES, len(self.homes) + 1)
            for some in combinations(self.homes, size)
        }  # fmt: skip
        return max(
            speeds[one] + max((speeds[other] for other in speeds if not one & other), default=0.0) for one in speeds
        )

    def random(self) -> float:
        """The mean over all ways to cut the homes, in any order, into clusters of three with three blocks each."""
        layout = layout_of(shape_of(self.spec), self.spec)
        starts = (0, *(layout.blocks[stage * BLOCKS // STAGES] for stage in range(1, STAGES)))

        def speed(order: Sequence[str]) -> float:
            dealt = Dealing(order=tuple(range(STAGES)), starts=starts, tokens_per_s=0.0)
            homes = [self.homes[name] for name in order]
            return forecast_of(shape_of(self.spec), self.spec, homes, dealt, lambda *_: DELAY_S).tokens_per_s

        return len(self.homes) // STAGES * fmean(map(speed, permutations(self.homes, STAGES)))


def _home(spec: RunSpec, block_s: float, mbps: float) -> StageHome:
    """With the speed at which a block takes so long: what is outside of blocks is work, too."""
    layout = layout_of(shape_of(spec), spec)
    in_blocks = sum(layout.work) / layout.work[layout.blocks[0]]
    speed = spec.model.context * FORWARD / (block_s * in_blocks)
    return StageHome(tokens_per_s=speed, room_bytes=room_bytes(spec), upload_bps=1e6 * mbps)


def room_bytes(spec: RunSpec) -> float:
    """Of each home: for any four blocks that are neighbours, and no fifth."""
    layout = layout_of(shape_of(spec), spec)
    ends = range(MOST_BLOCKS + layout.blocks[0]), range(layout.blocks[-MOST_BLOCKS], len(layout.sizes))
    return 1.01 * max(map(layout.needed_bytes, ends))


@contextmanager
def running(folder: Path, homes: Homes, sets: Sequence[str]) -> Iterator[PlacedSwarm]:
    """The homes, each on its line, and a bootstrap node on a good one."""
    spec = changed_spec("micro", (*SETS, *sets))
    beside = MEMORY_GB * 1e9 - 2 * room_bytes(spec)  # in main memory a round needs as much again
    hurry = dict.fromkeys(
        ("peer.parallel.cluster.home_offer.PROCESS_BYTES", "peer.planning.plan.run_needs.PROCESS_BYTES"), beside
    )
    for number, (block_s, _) in enumerate(homes):
        (folder / "swarm" / f"peer-{number}").mkdir(mode=0o700, parents=True)
        (folder / "swarm" / f"peer-{number}" / DRAG).write_text(str(block_s))
    mbps = [(up, DOWN_MBPS) for _, up in homes] + [(DOWN_MBPS, DOWN_MBPS)]
    with closing(Namespaces(folder / "lines", mbps, DELAY_S)) as lines, closing(
        PlacedSwarm(
            folder / "swarm", len(homes), "micro", (*SETS, *sets), (f"memory_gb={MEMORY_GB:g}",), own={},
            places=lines.places, paced=False, hurry=hurry,
        )
    ) as run:  # fmt: skip
        yield run


def events(run: PlacedSwarm, peer: int, kind: type[T]) -> list[tuple[float, T]]:
    """Those of a kind that this peer has told, with their Unix times."""
    return [(line.t, line.event) for line in run.lines(peer) if isinstance(line.event, kind)]


def leads_of(run: PlacedSwarm) -> list[int]:
    """The leads that have said that their clusters train."""
    told = {peer: events(run, peer, ClusterFormed) for peer in range(run.size)}
    return [peer for peer in told if any(event.lead == run.id_of(peer) for _, event in told[peer])]


def stages_of(run: PlacedSwarm, lead: int) -> list[tuple[int, int]]:
    """Home and number of layers of each stage now."""
    rows = events(run, lead, ClusterFormed)[-1][1].stages
    numbers = {run.id_of(peer): peer for peer in range(run.size)}
    return [(numbers[row["peer"]], row["last"] - row["first"] + 1) for row in rows]


def trained(run: PlacedSwarm, lead: int, since: float, before: float = inf) -> list[tuple[int, float]]:
    """Of each round that this lead began and committed between two Unix times: its steps, and the seconds from its
    beginning to the last of them."""
    ends = {event.round - 1 for at, event in events(run, lead, RoundCommitted) if at < before}
    began = {event.round: at for at, event in events(run, lead, RoundStarted) if at > since}
    last = {event.round: (event.step, at) for at, event in events(run, lead, InnerProgressed)}
    return [(last[round][0], last[round][1] - began[round]) for round in sorted(ends & began.keys() & last.keys())]


def rate(run: PlacedSwarm, rounds: Sequence[tuple[int, float]]) -> float:
    """Tokens per second over all steps of these rounds, the first ones included."""
    steps, seconds = (sum(each) for each in zip(*rounds, strict=True))
    return run.spec.inner.accumulation * run.spec.model.context * steps / seconds


def await_trained(run: PlacedSwarm, lead: int, since: float, rounds: int = SEEN_ROUNDS) -> float:
    """Tokens per second over all steps of so many rounds that this lead began after `since`, a Unix time."""
    run.until(
        lambda: len(trained(run, lead, since)) >= rounds, f"lead {lead} makes no rounds", within_s=rounds * STEP_S
    )  # fmt: skip
    return rate(run, trained(run, lead, since))


def in_words(run: PlacedSwarm, homes: Homes, leads: Sequence[int]) -> str:
    """The stages of clusters: seconds of a block, Mbit/s, and layers."""
    clusters = [stages_of(run, lead) for lead in leads]
    words = [", ".join(f"{homes[peer][0]:g}-{homes[peer][1]:g}: {count}" for peer, count in each) for each in clusters]
    return " ; ".join(words)


def find(folder: Path) -> tuple[list[list[str]], list[Bar]]:
    """Six homes of three speeds on two kinds of lines, beside the best layout and random ones."""
    with running(folder, SIX, ("run.founders=2", f"round.max_train_s={FOUND_ROUND_S}")) as run:
        began = time.time()
        run.until(lambda: len(leads_of(run)) == 2, "no two clusters were formed", within_s=FIND_S)
        leads, found_s = leads_of(run), time.time() - began
        say(in_words(run, SIX, leads))
        made = sum(await_trained(run, lead, began) for lead in leads)
        words = in_words(run, SIX, leads)
        names = list(map(str, range(len(SIX))))
        costs = Costs.of(run.spec, SIX, names)
        chosen = sum(costs.rated([str(peer) for peer, _ in stages_of(run, lead)]) for lead in leads)
    best, drawn = costs.best(), costs.random()
    rows = [["six homes", "tokens/s", "of the best", "× random"]]
    for name, speed in (("found, measured", made), ("found, by cost", chosen), ("best", best), ("random", drawn)):
        rows.append([name, f"{speed:,.0f}", f"{speed / best:.2f}", f"{speed / drawn:.2f}"])
    say(f"found within {found_s:.0f} s of their start: {words}")
    return rows, [
        Bar(name=f"found at least {SHARE:g} of the best", met=made >= SHARE * best, figures=f"{made / best:.2f}"),
        Bar(name=f"found at least {GAIN:g} × random", met=made >= GAIN * drawn, figures=f"{made / drawn:.2f} ×"),
    ]


def replace(folder: Path) -> tuple[list[list[str]], list[Bar]]:
    """`kill -9` of the last worker of three homes, while a fourth is its spare."""
    with running(folder, WITH_SPARE, ("run.founders=1", "round.max_train_s=10")) as run:
        run.until(lambda: leads_of(run), "no cluster was formed", within_s=FIND_S)
        (lead,) = leads_of(run)
        spare = next(peer for peer in range(run.size) if peer not in dict(stages_of(run, lead)))
        run.until(lambda: events(run, spare, ClusterFormed), "the fourth home is no spare", within_s=FIND_S)
        await_trained(run, lead, time.time(), 1)
        worker = stages_of(run, lead)[-1][0]
        say(f"{in_words(run, WITH_SPARE, [lead])}; peer {worker} is killed")
        run.kill(worker)
        struck = time.time()

        def since(kind: type[InnerProgressed | RoundCommitted | ClusterFormed]) -> list[float]:
            return [at - struck for at, _ in events(run, lead, kind) if at > struck]

        run.until(lambda: since(ClusterFormed), "it is not dealt anew", within_s=STEP_S)
        formed_s = since(ClusterFormed)[0]
        run.until(
            lambda: [at for at in since(InnerProgressed) if at > formed_s], "it trains no more", within_s=STEP_S
        )  # fmt: skip
        trains_s = next(at for at in since(InnerProgressed) if at > formed_s)
        run.until(lambda: [at for at in since(RoundCommitted) if at > trains_s], "no round", within_s=STEP_S)
        commits_s = next(at for at in since(RoundCommitted) if at > trains_s)
        took = stages_of(run, lead)[-1][0] == spare
    rows = [
        ["after kill -9", "dealt anew", "first step", "first round"],
        ["seconds", f"{formed_s:.1f}", f"{trains_s:.1f}", f"{commits_s:.1f}"],
    ]
    bar = Bar(
        name=f"a spare trains within {BACK_S:g} s", met=took and trains_s <= BACK_S, figures=f"{trains_s:.1f} s"
    )  # fmt: skip
    return rows, [bar]


def move(folder: Path) -> tuple[list[list[str]], list[Bar]]:
    """A worker of three equal homes becomes slower."""
    with running(folder, ALIKE, ("run.founders=1", "round.max_train_s=30")) as run:
        run.until(lambda: leads_of(run), "no cluster was formed", within_s=FIND_S)
        (lead,) = leads_of(run)
        before_s = await_trained(run, lead, time.time())
        before, words = stages_of(run, lead), in_words(run, ALIKE, [lead])
        worker = before[-1][0]
        seen = len(run.committed(lead))
        run.until(lambda: len(run.committed(lead)) > seen, "no round", within_s=STEP_S)
        (run.directory_of(worker) / DRAG).write_text(str(SLOWER * FAST_S))
        struck = time.time()
        run.until(lambda: stages_of(run, lead) != before, "the cut does not move", within_s=2 * STEP_S)
        moved_at = events(run, lead, ClusterFormed)[-1][0]
        rounds = sum(struck < at < moved_at for at, _ in events(run, lead, RoundCommitted))
        slow_s = rate(run, trained(run, lead, struck, moved_at))
        after_s = await_trained(run, lead, moved_at)
        homes = [(SLOWER * block_s if peer == worker else block_s, up) for peer, (block_s, up) in enumerate(ALIKE)]
        say(f"{words} → {in_words(run, homes, [lead])} after {moved_at - struck:.0f} s")
        costs = Costs.of(run.spec, homes, ["0", "1", "2"])
    best = costs.best()
    rows = [["one home 4 × slower", "tokens/s", "of the new best"]]
    for name, speed in (("before", before_s), ("slower", slow_s), ("moved", after_s), ("new best", best)):
        rows.append([name, f"{speed:,.0f}", f"{speed / best:.2f}"])
    return rows, [
        Bar(name=f"cuts have moved after {ROUNDS} rounds", met=rounds <= ROUNDS, figures=f"{rounds}"),
        Bar(name=f"at least {SHARE:g} of the new best", met=after_s >= SHARE * best, figures=f"{after_s / best:.2f}"),
    ]


PARTS = {"find": find, "replace": replace, "move": move}


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `pipeline_homes` and its options to the command line."""
    parser = commands.add_parser("pipeline_homes", help=__doc__.splitlines()[0], description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="only these")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave the folders of all homes there")
    parser.set_defaults(run=run_parts)


def run_parts(arguments: argparse.Namespace) -> int:
    """Measure, print the tables and a line per bar. 0 if all bars are met."""
    bars: list[Bar] = []
    for name in arguments.parts:
        with tempfile.TemporaryDirectory(prefix="hf-") as folder:
            table, told = PARTS[name](arguments.keep / name if arguments.keep else Path(folder) / name)
        bars += told
        print("\n" + markdown(table) + "\n" + "".join(f"- {bar}\n" for bar in told), flush=True)
    return 0 if all(bar.met for bar in bars) else 1
