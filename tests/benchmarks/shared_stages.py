"""`shared_stages`: whether two homes should hold one stage of a cluster and share its flights.

They compute faster together, and each line carries a part of what flies. But in every step they must send each other
the gradients of the whole stage. Drawn clusters, by the product's own cost: the fastest layout in which each stage has
one holder, beside the fastest one in which a stage has two.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations
from random import Random
from statistics import median

from peer.planning.placement.block_shares import BlockLayout, Dealing, StageHome, deal_in_order
from peer.planning.plan.cluster_cost import HALF_BYTES, ONE_WAY_S, forecast_of, layout_of, room_of_stage
from peer.planning.plan.model_shape import ModelShape, shape_of
from peer.schema.spec import RunSpec, load
from tests.benchmarks.rows import markdown

HOMES = (3, 6)
MOST_STAGES = 5
FLOPS = (10e12, 20e12, 40e12, 80e12)
ROOMS = (0.5, 0.7, 1.0, 1.3)
"""The memory of a home, as a multiple of what a half or a third of the model takes."""
LINES_BPS = {
    "20 Mbit/s to 1 Gbit/s": (20e6, 50e6, 100e6, 1e9), "100 Mbit/s": (1e8,), "1 Gbit/s": (1e9,), "10 Gbit/s": (1e10,)
}  # fmt: skip
SPECS = ("llama-1b", "continue-1b")
GAIN = 1.1
"""What a change of a cluster must gain to be made."""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("shared_stages", help=__doc__.splitlines()[0] + " 4 minutes", description=__doc__)
    parser.add_argument("--drawn", type=int, default=60, help="clusters for each kind of line")
    parser.add_argument("--seed", type=int, default=0)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print how much two holders gain. It has no bar: it says whether the mechanism should exist."""
    rows = [["lines", "clusters", "gain a tenth", "gain at all", "most", "median"]]
    for name, lines_bps in LINES_BPS.items():
        drawn = Random(options.seed)
        found = [gain for _ in range(options.drawn) if (gain := _gain(drawn, lines_bps)) is not None]
        gained = [sum(gain > least for gain in found) for least in (GAIN, 1.0)]
        rows.append([name, f"{len(found)}", *map(str, gained), f"{max(found):.2f} ×", f"{median(found):.2f} ×"])
    print(markdown(rows))
    return 0


@dataclass(frozen=True, kw_only=True)
class _Model:
    spec: RunSpec
    shape: ModelShape
    layout: BlockLayout

    def layouts(self, homes: Sequence[StageHome]) -> Iterator[tuple[tuple[int, ...], Dealing, float]]:
        """Each order in which some of the homes hold the model, with the best cut, and seconds of a step."""
        tokens = self.spec.inner.sequences * self.spec.inner.accumulation * self.spec.model.context
        for stages in range(2, min(len(homes), MOST_STAGES) + 1):
            for order in permutations(range(len(homes)), stages):
                placed = [homes[number] for number in order]
                dealt = deal_in_order(self.layout, placed, range(stages))
                if dealt is not None:
                    forecast = forecast_of(self.shape, self.spec, placed, dealt, lambda *_: ONE_WAY_S)
                    yield order, dealt, tokens / forecast.tokens_per_s


def _gain(drawn: Random, lines_bps: Sequence[float]) -> float | None:
    """How many times as fast a drawn cluster is with a stage of two holders; None if its homes do not hold the model
    with one holder for each stage."""
    spec = load(drawn.choice(SPECS))
    shape = shape_of(spec)
    model = _Model(spec=spec, shape=shape, layout=layout_of(shape, spec))
    room_bytes = room_of_stage(shape, spec, drawn.choice([2, 3]))
    homes = [
        StageHome(
            tokens_per_s=drawn.choice(FLOPS) / shape.flops_per_token(spec.model.context),
            room_bytes=room_bytes * drawn.choice(ROOMS), upload_bps=drawn.choice(lines_bps),
        )
        for _ in range(drawn.randint(*HOMES))
    ]  # fmt: skip
    one_s = min((step_s for _, _, step_s in model.layouts(homes)), default=None)
    if one_s is None:
        return None
    return one_s / min((_with_two(model, homes, pair) for pair in combinations(homes, 2)), default=float("inf"))


def _with_two(model: _Model, homes: Sequence[StageHome], pair: tuple[StageHome, StageHome]) -> float:
    """The seconds of a step in the fastest layout in which these two hold one stage, which is not the lead's."""
    one, other = pair
    both = StageHome(
        tokens_per_s=one.tokens_per_s + other.tokens_per_s, room_bytes=min(one.room_bytes, other.room_bytes),
        upload_bps=one.upload_bps + other.upload_bps,
    )  # fmt: skip
    rest = [home for home in homes if home is not one and home is not other]
    slower_bps, sizes = min(one.upload_bps, other.upload_bps), model.layout.sizes

    def summed_s(order: Sequence[int], dealt: Dealing) -> float:
        """In which each sends the other its gradients, in 16 bit."""
        first, end = dealt.starts[order.index(len(rest))], (*dealt.starts, len(sizes))[order.index(len(rest)) + 1]
        return 8 * HALF_BYTES * sum(sizes[first:end]) / slower_bps

    return min(
        (
            step_s + summed_s(order, dealt) for order, dealt, step_s in model.layouts([*rest, both])
            if len(rest) in order[1:]
        ),
        default=float("inf"),
    )  # fmt: skip
