"""`penalties`: how often an honest peer is penalised, and how often a norm of twice the usual is not.

Each seed draws a run of four to six honest peers: newcomers, peers of a third of the others' speed, pauses of up to
three rounds, contributions that come too late, unlike texts, and two optimizers. Trainers, contributions and judgement
are the product's (`tests/decided.py`). In every round the norms of one known peer are doubled on paper, and the round
is judged again.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import struct
import tempfile
from collections import Counter
from concurrent.futures import as_completed
from dataclasses import dataclass, field
from pathlib import Path

from peer.consensus.aggregation.aggregate import aggregate
from peer.consensus.aggregation.evidence import AggregationRules, Contributor, LayerNorms
from peer.consensus.protocol import norms
from peer.consensus.protocol.block import ContributionHeader
from peer.consensus.protocol.head import genesis_anchor
from peer.schema.spec import RunSpec, load
from peer.training.train.trainer import LocalTrainer
from tests.benchmarks.jobs import pool_of
from tests.benchmarks.record import commit, machine, versions
from tests.benchmarks.rows import Bar
from tests.benchmarks.unlike import dealt
from tests.benchmarks.variants import names_of, plain
from tests.decided import DecidedRound
from tests.stepping import never, steps_in_round, submit

ROUNDS, STEPS = 24, 24
MOST_PENALISED, LEAST_REFUSED, MOST_WEIGHT = 1e-3, 0.9, 0.6
CURVE = (1.0, 1.2, 1.4, 1.6, 1.8, 2.0, 2.5, 3.0, 4.0)


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `penalties` and its options to the command line."""
    parser = commands.add_parser("penalties", help=__doc__.splitlines()[0], description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="drawn runs")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--out", type=Path, default=Path("penalties"), help="folder for the results")
    parser.add_argument("--jobs", type=int, default=1, help="processes of one thread each")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Play the runs, then write penalties.md and penalties.json. 0 if all bars are met."""
    counts = Counts()
    with pool_of(arguments.jobs) as pool:
        seeds = range(arguments.first, arguments.first + arguments.seeds)
        for number, done in enumerate(as_completed([pool.submit(play, seed) for seed in seeds]), 1):
            counts.add(done.result())
            print(f"{number} of {len(seeds)}: {counts.line()}", *done.result().evidence, sep="\n  ", flush=True)
    text = counts.line() + "\n\n" + curve() + "\n" + "".join(f"- {bar}\n" for bar in counts.bars())
    print("\n" + text, flush=True)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "penalties.md").write_text(text)
    told = {"commit": commit(), "versions": versions(), "machine": machine(), **dataclasses.asdict(counts)}
    (arguments.out / "penalties.json").write_text(json.dumps(told, indent=1) + "\n")
    return 0 if all(bar.met for bar in counts.bars()) else 1


@dataclass
class Counts:
    """What the judge made of honest contributions, and of the doubled ones."""

    contributions: int = 0
    findings: Counter[str] = field(default_factory=Counter)
    """By code; none of them is for being late or away."""
    evidence: list[str] = field(default_factory=list)
    doubled: int = 0
    refused: int = 0

    def add(self, other: Counts) -> None:
        self.contributions += other.contributions
        self.findings += other.findings
        self.evidence += other.evidence
        self.doubled += other.doubled
        self.refused += other.refused

    def line(self) -> str:
        return (
            f"{sum(self.findings.values())} penalties of {self.contributions:,} honest contributions "
            f"({dict(self.findings)}); {self.refused} of {self.doubled:,} doubled norms refused"
        )

    def bars(self) -> list[Bar]:
        penalised = sum(self.findings.values()) / max(1, self.contributions)
        refused = self.refused / max(1, self.doubled)
        return [
            Bar(
                name="at most 1 honest contribution of 1,000 is penalised",
                met=penalised <= MOST_PENALISED, figures=f"{penalised:.5f}",
            ),
            Bar(name="a doubled norm is refused in 90 %", met=refused >= LEAST_REFUSED, figures=f"{refused:.3f}"),
            Bar(
                name="where it is not, it weighs at most 0.6 of its share",
                met=weight_of(2.0) <= MOST_WEIGHT, figures=f"{weight_of(2.0):.3f}",
            ),
        ]  # fmt: skip


def weight_of(ratio: float, members: int = 4) -> float:
    """Of a member without a history, whose norm is `ratio` times the others': its weight over an equal share."""
    claims = [Contributor(f"p{index}", 1, 1, bytes([index]) * 32) for index in range(members)]
    layer = LayerNorms((1.0,) * (members - 1) + (ratio,), (None,) * members, None, 1)
    (row,) = aggregate(AggregationRules(), 1, (), claims, (layer,)).weights
    return row[-1] * members / sum(row)


def curve() -> str:
    """The weight of one norm among four, by how many times the usual one it is."""
    cells = [[f"{ratio:g} ×" for ratio in CURVE], ["---:"] * len(CURVE), [f"{weight_of(each):.2f}" for each in CURVE]]
    return "".join("| " + " | ".join(row) + " |\n" for row in cells)


# ---- one drawn run ----


@dataclass
class DrawnPeer:
    """One honest peer, and what happens to it."""

    trainer: LocalTrainer
    speed: float
    joins: int
    """The round in which it comes."""
    away: int = 0
    """Rounds that it is still paused."""

    @property
    def name(self) -> str:
        return self.trainer.me


def drawn_spec(seed: int, rng: random.Random) -> RunSpec:
    base = load("micro")
    return dataclasses.replace(
        base,
        run=dataclasses.replace(base.run, seed=seed, founders=rng.choice((4, 5, 6)), rounds=ROUNDS),
        data=dataclasses.replace(base.data, eval_sequences=32, eval_every=ROUNDS),
        inner=dataclasses.replace(base.inner, optimizer=rng.choice(("adamw", "adamw", "muon"))),
        round=dataclasses.replace(base.round, steps=STEPS, pace=rng.choice(("time", "steps"))),
    )


def play(seed: int) -> Counts:
    """One run, and what was found in it."""
    rng = random.Random(seed)
    spec = drawn_spec(seed, rng)
    names = names_of(spec)
    with tempfile.TemporaryDirectory(prefix="homefires-") as place:
        folder = Path(place)
        if rng.random() < 0.5:
            spec = dealt(spec, names, folder / "text")
        joins = [0 if index < 3 or rng.random() < 0.4 else rng.randint(3, 16) for index in range(len(names))]
        peers = [
            DrawnPeer(plain(spec, name, folder / name), 1.0 if not index else rng.choice((1.0, 1.0, 0.6, 0.33)), join)
            for index, (name, join) in enumerate(zip(names, joins, strict=True))
        ]
        return Run(spec, rng, peers).play()


class Run:
    """The rounds of drawn peers, of whom each sometimes pauses, or comes too late."""

    def __init__(self, spec: RunSpec, rng: random.Random, peers: list[DrawnPeer]) -> None:
        self._spec, self._rng, self._peers, self._counts = spec, rng, peers, Counts()
        self._voters = {peer.name for peer in peers if not peer.joins}

    def play(self) -> Counts:
        first = self._peers[0].trainer
        names = tuple(peer.name for peer in self._peers)
        anchor = genesis_anchor(self._spec.digest(), names, first.anchor.state_digest())
        last: DecidedRound | None = None
        for round in range(ROUNDS):
            there = [peer for peer in self._peers if peer.joins <= round]
            giving = [peer for peer in there if self._trains(peer, there, round)]
            if len(giving) < 2:  # a round of one has nobody to judge by: the rest come back
                giving = [peer for peer in there if peer.trainer.progress.step][:3]
            for peer in giving:
                submit(peer.trainer, anchor)
            late = [peer.name for peer in giving if len(giving) > 3 and self._rng.random() < 0.03]
            last = DecidedRound(
                [peer.trainer for peer in giving], anchor, left_out=late, before=last, voters=self._voters
            )
            self._judge(last)
            last.apply_to(*(peer.trainer for peer in self._peers))
            anchor = last.next_anchor
            self._voters |= {peer.name for peer in giving}
        return self._counts

    def _trains(self, peer: DrawnPeer, there: list[DrawnPeer], round: int) -> bool:
        """Make its steps of the round; whether it then offers a contribution."""
        rng, trainer = self._rng, peer.trainer
        trainer.begin_round(tuple(each.name for each in there))
        whole = steps_in_round(trainer)
        by_time = self._spec.round.pace == "time"
        share, gives = peer.speed if by_time else 1.0, True
        if peer.joins == round and round:
            share *= rng.uniform(0.1, 1.0)
        if peer.away:
            peer.away -= 1
            share = 0.0 if peer.away else rng.random()
            gives = share > 0.15
        elif rng.random() < 0.08:
            peer.away = rng.randint(1, 3)
            share, gives = share * rng.random(), rng.random() < 0.5
        elif not by_time and peer.speed < 1 and rng.random() < 0.3:
            share *= peer.speed
        steps = int(whole * share + 0.5)
        for index in range(steps):
            trainer.step(min(whole - 1, index * whole / steps if by_time else trainer.progress.step), never)
        return gives and trainer.progress.step > 0

    def _judge(self, decided: DecidedRound) -> None:
        """Count the findings, and whether a known peer's contribution is refused when its norms are doubled."""
        counts, rules, head, members = self._counts, decided.rules, decided.head, decided.update.members
        counts.contributions += len(members)
        counts.findings.update(finding.code for finding in decided.judgement.findings)
        counts.evidence += [
            f"seed {self._spec.run.seed}, round {head.round}, {finding.peer}: {finding.code}, {finding.evidence}"
            for finding in decided.judgement.findings
        ]
        warm = rules.aggregation.warmup_rounds
        ripe = {each.peer for each in head.records if max(stat.count for stat in each.stats) >= warm}
        known = [index for index, member in enumerate(members) if member.peer in ripe]
        if len(members) < 3 or not known:
            return
        index = self._rng.choice(known)
        twice = doubled(members[index], len(rules.fragment(head.round).parts))
        spiked = (*members[:index], twice, *members[index + 1 :])
        counts.doubled += 1
        counts.refused += not any(row[index] for row in norms.judgement_of(rules, head, spiked).weights)


def doubled(header: ContributionHeader, parts: int) -> ContributionHeader:
    """As if the contribution were twice as large. A header has the square of the norm of each part, then of each layer
    the inner product with the last mean, and the square of that."""
    squares, directions = struct.iter_unpack(">f", header.norms[: 4 * parts]), header.norms[4 * parts :]
    declared = [struct.pack(">f", 4 * square) for (square,) in squares]
    declared += [struct.pack(">ff", 2 * dot, last) for dot, last in struct.iter_unpack(">ff", directions)]
    return dataclasses.replace(header, norms=b"".join(declared))
