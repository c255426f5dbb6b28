"""`homefires plan`: what a run will cost on some peers, and how to set it up. It starts nothing."""

from __future__ import annotations

import json
import re
import textwrap
from argparse import Namespace
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from dht.errors import BadInput
from peer.plan.coefficients import Coefficients, read, shipped
from peer.plan.explain import seconds, why_lost
from peer.plan.machines import MAX_MEMBERS, MAX_PARTS, Machine, Swarm, alike, refuse_count
from peer.plan.peers_file import read_peers
from peer.plan.round import MOST, RoundCost
from peer.plan.search import Choice, Question, Ranked, as_it_stands, device_bytes, search
from peer.plan.shape import Shape, memory_of, shape_of
from peer.plan.strategy import quality, with_deadlines, with_strategy
from peer.spec import RunSpec, dump
from tui.progress import count, format_bytes

SHOWN = 5
"""Strategies in the table."""
PEERS_SHOWN = 12
WIDTH = 80
LATE = 0.1
"""Share of a round's steps that an average may come later before the report says that this was hardly measured."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What the command line asked for."""

    spec: RunSpec
    peers: str = ""
    """A number, or a file of [[peer]] tables; empty: as many as found the run."""
    machine: Machine
    """What every peer is, if `peers` is a number."""
    parameters: int = 0
    quality: float = 1.0
    """How much the quality of tokens counts; 0: only how many there are."""
    measured: Path | None = None
    """What rounds took: a peer's folder or the events.jsonl in it, or what an earlier fit wrote; None: what is
    shipped."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What was found."""

    plan: Plan
    question: Question
    choice: Choice
    now: Ranked
    """The spec as it stands."""
    spec: RunSpec
    """With what was chosen."""

    @property
    def best(self) -> Ranked:
        return self.choice.best


def answer(plan: Plan) -> Answer:
    """Search. Raises BadInput for peers, models and memory that do not fit together."""
    if not 0 <= plan.quality <= 10:
        raise BadInput(f"--quality is {plan.quality:g}; it must be between 0 and 10")
    shape = shape_of(plan.spec, plan.parameters)
    _refuse_parts(shape, plan.spec)
    given, machine = _measured(plan, shape)
    question = Question(
        spec=plan.spec, shape=shape, swarm=peers_of(plan.peers, plan.spec, machine), given=given,
        worth=lambda chosen, steps: quality(chosen, steps) ** plan.quality,
    )  # fmt: skip
    choice = search(question)
    return Answer(
        plan=plan, question=question, choice=choice, now=as_it_stands(question),
        spec=chosen_spec(question, choice.best),
    )  # fmt: skip


def _refuse_parts(shape: Shape, spec: RunSpec) -> None:
    """The protocol moves no more parts than that."""
    parts = sum(-(-size // spec.codec.part_elements) for size in shape.layers)
    if parts > MAX_PARTS:
        raise BadInput(
            f"{shape.parameters:,} parameters are {parts:,} parts and a run has {MAX_PARTS:,} at most; "
            "set codec.part_elements higher, or train a smaller model"
        )


def _measured(plan: Plan, shape: Shape) -> tuple[Coefficients, Machine]:
    """(coefficients, what every peer is), from what was measured on this machine if anything was."""
    if plan.measured is None:
        return shipped(), plan.machine
    if not plan.measured.exists():
        raise BadInput(f"--measured {plan.measured} does not exist; name a peer's folder, or its events.jsonl")
    folder = plan.measured.parent if plan.measured.name.startswith("events.jsonl") else plan.measured
    if not folder.is_dir():
        return read(plan.measured), plan.machine
    from peer.plan.calibrate import rescale
    from peer.plan.measured import read_run, step_for

    sample = read_run(folder)
    about = f"shipped ones, scaled to {sample.timed.rounds} rounds of {plan.measured}; {shipped().measured}"
    step_s = plan.machine.step_s or (0.0 if plan.machine.flops else step_for(plan.spec, shape, sample))
    return rescale(shipped(), sample, about), replace(plan.machine, step_s=step_s)


def machine_of(options: Namespace) -> Machine:
    """What the command line says of every peer. Raises BadInput."""
    return Machine(
        name="every peer", step_s=options.step_s, flops=options.flops, memory_gb=options.memory,
        upload_mbps=options.upload, download_mbps=options.download,
    )  # fmt: skip


def peers_of(text: str, spec: RunSpec, machine: Machine) -> Swarm:
    """What `--peers` means: so many like `machine`, those of a file, or as many as found the run. Raises BadInput."""
    if text and not re.fullmatch(r"-?[0-9]{1,18}", text):
        return read_peers(Path(text), most=MAX_MEMBERS)
    count = int(text or spec.run.founders)
    refuse_count(count, "--peers is {}", MAX_MEMBERS)
    return alike(count, machine)


def chosen_spec(question: Question, best: Ranked) -> RunSpec:
    """The spec that a strategy means, with deadlines that its rounds can keep.

    One of a strategy that cannot be run yet is that of the peers as they are. No more peers found it than there are,
    and who streams makes no more steps than count.
    """
    cost = best.cost
    spec = with_strategy(question.spec, best.strategy)
    spec = replace(spec, run=replace(spec.run, founders=min(spec.run.founders, len(question.swarm))))
    if spec.round.overlap == "streaming":
        delay = min(spec.round.delay, MOST * spec.round.steps)
        spec = replace(spec, round=replace(spec.round, delay=delay))
    return with_deadlines(
        spec, exchange_s=max(cost.agreement.send, cost.agreement.reduce),
        ready_spread_s=cost.waits_s,
    )  # fmt: skip


# ---- for people ----


def describe(found: Answer) -> str:
    """A page of at most 80 columns."""
    return "\n".join([*_head(found), "", *_table(found), "", *_details(found)])


def _head(found: Answer) -> list[str]:
    spec, question, choice = found.plan.spec, found.question, found.choice
    tokens = spec.inner.sequences * spec.inner.accumulation * spec.model.context
    lines = [
        f"{spec.run.name}: {as_short(question.shape.parameters)} parameters, {count(len(question.swarm), 'peer')}, "
        f"{tokens:,} tokens per inner step of each",
        f"{choice.considered} strategies, {choice.tried} predicted"
        + (f", {choice.too_large} too large for a peer's memory" if choice.too_large else ""),
    ]
    return lines + assumptions(question.swarm)


def assumptions(swarm: Swarm) -> list[str]:
    """What nobody measured or said, as lines."""
    return [line for text in swarm.assumed for line in wrapped(f"assumed for {text}")]


def _table(found: Answer) -> list[str]:
    """A line per strategy, the best first, and one for the spec as it stands."""
    titles = f"{'':2}{'H':>5} {'overlap':<10}{'frag':>4} {'codec':<8}{'micro':>7}{'round':>9}{'exposed':>8}{'MB up':>8}"
    lines = [f"{titles}{'tokens/s':>9}{'quality':>8}"]
    shown = list(found.choice.ranked[:SHOWN])
    lines += [_row(str(place), ranked) for place, ranked in enumerate(shown, start=1)]
    return [*lines, _row("=", found.now), "= is the spec as it stands; ranked by tokens/s times quality"]


def _row(mark: str, ranked: Ranked) -> str:
    chosen, cost = ranked.strategy, ranked.cost
    micro, up_mb = f"{chosen.accumulation}×{chosen.sequences}", cost.traffic.up_bytes / 1e6
    up = f"{up_mb:.1f}" if up_mb < 1e5 else f"{up_mb:.1e}"
    return (
        f"{mark:<2}{chosen.steps:>5} {chosen.overlap:<10}{chosen.fragments:>4} {chosen.wire:<8}{micro:>7}"
        f"{seconds(cost.round_s):>9}{cost.exposed:>8.1%}{up:>8}{as_short(cost.tokens_per_s):>9}"
        f"{ranked.score / cost.tokens_per_s:>8.3f}"
    )


def _details(found: Answer) -> list[str]:
    best, choice, cost = found.best, found.choice, found.best.cost
    facts = [_interval(cost), _phases(cost), *_caveats(found), *_traffic(found), *_peers(found)]
    lines = wrapped(f"1 is best: {best.strategy.words()}")
    lines += [line for fact in facts for line in wrapped(fact, indent="  ")]
    if len(choice.ranked) > 1:
        lines += wrapped(f"2 lost: {why_lost(best, choice.ranked[1])}")
    if found.now.strategy != best.strategy:
        lines += wrapped(f"= lost (the spec as it stands): {why_lost(best, found.now)}")
    if not best.strategy.runs():
        lines += wrapped("no run of today can be set up so: a replica is one process on one device")
    return [*lines, *wrapped(f"coefficients: {found.question.given.measured}")]


def _interval(cost: RoundCost) -> str:
    text = f"a round of {seconds(cost.round_s)}, nine in ten between {seconds(cost.low_s)} and {seconds(cost.high_s)}"
    return f"{text}; {as_short(cost.tokens_per_s)} tokens/s"


def _phases(cost: RoundCost) -> str:
    talk = cost.agreement
    return (
        f"train {seconds(cost.train_s)}, freeze {seconds(talk.freeze)}, send {seconds(talk.send)}, means "
        f"{seconds(talk.reduce)}, apply {seconds(talk.apply)}"
    )


def _caveats(found: Answer) -> list[str]:
    """What of the best strategy, or of its spec, nobody would expect."""
    cost, chosen, before, after = found.best.cost, found.best.strategy, found.plan.spec.run, found.spec.run
    lines = []
    if cost.uncounted_s:
        lines.append(
            f"{seconds(cost.uncounted_s)} of each round count nothing: a peer's tokens beyond {MOST} × H steps do not"
        )
    delay = min(MOST * chosen.steps, (cost.agreement.freeze + cost.agreement.talking) / min(cost.step_s))
    if chosen.overlap == "streaming" and delay > LATE * chosen.steps:
        lines.append(
            f"the average comes {delay:.0f} steps late, of {chosen.steps}: half a per cent of quality is assumed for "
            "streaming whatever the delay (measured on micro: no loss up to a quarter of a round)"
        )
    if after.founders != before.founders:
        lines.append(f"run.founders is {after.founders} instead of {before.founders}, or the run could never start")
    return lines


def _traffic(found: Answer) -> list[str]:
    cost = found.best.cost
    if not cost.traffic.up_bytes:
        return []
    per_day = cost.traffic.up_bytes * 86400 / cost.round_s
    return [
        f"each peer sends and takes in {format_bytes(round(cost.traffic.up_bytes))} per round, "
        f"{format_bytes(round(per_day))} a day"
    ]


def _peers(found: Answer) -> list[str]:
    """What each peer has to do with it; of many alike only the first."""
    question, cost, chosen = found.question, found.best.cost, found.best.strategy
    needed = device_bytes(question, chosen) / 1e9
    memory = memory_of(question.shape, found.spec)
    lines, seen = [], set[Machine]()
    for at, machine in enumerate(question.swarm.machines[: len(cost.steps)]):
        if machine.kind in seen or len(seen) >= PEERS_SHOWN or chosen.stages > 1:
            continue
        seen.add(machine.kind)
        held = f"{needed:.2f} GB" + (f" of {machine.memory_gb:g}" if machine.memory_gb else "")
        lines.append(
            f"{machine.name}: {cost.steps[at]:.0f} steps of {seconds(cost.step_s[at])}, waits "
            f"{seconds(cost.exposed_s[at])} per round, {held} to train"
        )
    lines.append(f"and {(memory.anchor + memory.encoded) / 1e9:.2f} GB of main memory each")
    return lines


def as_short(number: float) -> str:
    """870 k, 1.1 B."""
    for limit, unit in ((1e9, " B"), (1e6, " M"), (1e3, " k")):
        if number >= limit:
            return f"{number / limit:.3g}{unit}"
    return f"{number:.3g}"


def wrapped(text: str, indent: str = "") -> list[str]:
    """Lines of at most 80 columns."""
    return textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=f"{indent}  ")


# ---- for programs ----


def to_json(found: Answer) -> str:
    """One object: strategies in order with all that was predicted, the spec as it stands, and what was assumed."""
    question = found.question
    table = {
        "run": found.plan.spec.run.name, "parameters": question.shape.parameters,
        "peers": [asdict(machine) for machine in question.swarm.machines], "assumed": list(question.swarm.assumed),
        "coefficients": question.given.measured, "considered": found.choice.considered, "tried": found.choice.tried,
        "ranked": [_json_of(ranked) for ranked in found.choice.ranked], "now": _json_of(found.now),
        "runner_up": why_lost(found.best, found.choice.ranked[1]) if len(found.choice.ranked) > 1 else "",
        "device_bytes": device_bytes(question, found.best.strategy), "spec": asdict(found.spec),
    }  # fmt: skip
    return json.dumps(table)


def _json_of(ranked: Ranked) -> dict[str, object]:
    cost = ranked.cost
    return {
        "strategy": asdict(ranked.strategy), "score": ranked.score, "tokens_per_s": cost.tokens_per_s,
        "exposed": cost.exposed, **asdict(cost),
    }  # fmt: skip


def write(found: Answer, to: Path) -> str:
    """Write the spec that `bootstrap` takes; what was done, in a sentence. Raises BadInput."""
    if not found.best.strategy.runs():
        raise BadInput("the best strategy cannot be run yet, since a replica is one process on one device")
    best = found.best
    header = f"# Planned by homefires for {count(len(found.question.swarm), 'peer')}: {best.strategy.words()}.\n"
    try:
        with to.open("x", encoding="utf-8") as file:
            file.write(header + dump(found.spec))
    except FileExistsError as error:
        raise BadInput(f"--write {to} is there already; name a new file") from error
    except OSError as error:
        raise BadInput(f"{to}: {error.strerror}; name another file with --write") from error
    return f"{to}: a spec for homefires bootstrap"
