"""`homefires plan`: what a run will cost on some peers, and how to set it up. It starts nothing."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from dht.errors import BadInput
from peer.planning.plan.coefficients import Coefficients, read, shipped
from peer.planning.plan.model_shape import ModelShape, shape_of
from peer.planning.plan.peer_set import MAX_PARTS, Machine, by_name
from peer.planning.plan.planning_problem import PlanningProblem
from peer.planning.plan.round_cost import MOST
from peer.planning.plan.strategy import quality, with_deadlines, with_strategy
from peer.planning.plan.strategy_search import (
    NothingFits,
    RankedStrategy,
    SearchOutcome,
    as_it_stands,
    search,
    why_lost,
)
from peer.schema.spec import RunSpec, dump
from tui.folders import writing
from tui.simulation.machines import peers_of
from tui.simulation.model_copies import CopyOptions, options_of
from tui.simulation.plan_options import PlanOptions
from tui.text.units import count


@dataclass(frozen=True, kw_only=True)
class PlanAnswer:
    question: PlanningProblem
    choice: SearchOutcome
    now: RankedStrategy
    """The strategy of the unchanged spec."""
    spec: RunSpec
    """The spec with the best strategy."""

    @property
    def best(self) -> RankedStrategy:
        return self.choice.best


@dataclass(frozen=True, kw_only=True)
class NoPlan:
    """No plan was found: some peer cannot hold the model."""

    question: PlanningProblem
    why: NothingFits
    options: CopyOptions

    def require_way(self) -> None:
        """Raises BadInput if those that cannot hold the model have no other way to train it."""
        if not self.options.others:
            raise BadInput(f"{self.why}; leave that peer out, or train a smaller model")


def answer(plan: PlanOptions) -> PlanAnswer | NoPlan:
    """Search for the best strategy. Raises BadInput for peers and models that do not fit together."""
    spec = plan.choose()
    shape = shape_of(spec, plan.parameters)
    _refuse_parts(shape, spec)
    given, machine = _measured(plan, spec, shape)
    question = PlanningProblem(
        spec=spec, shape=shape, swarm=by_name(peers_of(plan.peers, spec, machine)), given=given,
        worth=lambda chosen, steps: quality(chosen, steps) ** plan.quality, gb_price=plan.gb_price / 100,
    )  # fmt: skip
    try:
        choice = search(question)
    except NothingFits as error:
        return NoPlan(question=question, why=error, options=options_of(question))
    return PlanAnswer(
        question=question, choice=choice, now=as_it_stands(question),
        spec=chosen_spec(question, choice.best),
    )  # fmt: skip


def _refuse_parts(shape: ModelShape, spec: RunSpec) -> None:
    """Raises BadInput for more parts than the protocol allows."""
    parts = sum(-(-size // spec.codec.part_elements) for size in shape.layers)
    if parts > MAX_PARTS:
        raise BadInput(
            f"{shape.parameters:,} parameters are {parts:,} parts and a run has {MAX_PARTS:,} at most; "
            "set codec.part_elements higher, or train a smaller model"
        )


def _measured(plan: PlanOptions, spec: RunSpec, shape: ModelShape) -> tuple[Coefficients, Machine]:
    """Returns (coefficients, the machine of every peer), from measurements on this machine if there are any."""
    if plan.measured is None:
        return shipped(), plan.machine
    if not plan.measured.exists():
        raise BadInput(f"--measured {plan.measured} does not exist; name a peer's folder, or its events.jsonl")
    folder = plan.measured.parent if plan.measured.name.startswith("events.jsonl") else plan.measured
    if not folder.is_dir():
        return read(plan.measured), plan.machine
    from peer.planning.plan.calibration import read_run, rescale, step_for

    sample = read_run(folder)
    about = f"shipped ones, scaled to {sample.timed.rounds} rounds of {plan.measured}; {shipped().measured}"
    step_s = plan.machine.step_s or (0.0 if plan.machine.flops else step_for(spec, shape, sample))
    return rescale(shipped(), sample, about), replace(plan.machine, step_s=step_s)


def chosen_spec(question: PlanningProblem, best: RankedStrategy) -> RunSpec:
    """The spec for a strategy, with deadlines that its rounds can keep.

    It has at most as many founders as there are peers, and with streaming at most as many delayed steps as count.
    """
    cost = best.cost
    spec = with_strategy(question.spec, best.strategy)
    spec = replace(spec, run=replace(spec.run, founders=min(spec.run.founders, len(question.swarm))))
    if spec.round.overlap == "streaming":
        delay = min(spec.round.delay, MOST * spec.round.steps)
        spec = replace(spec, round=replace(spec.round, delay=delay))
    return with_deadlines(
        spec, exchange_s=max(cost.agreement.exchange, cost.agreement.reduce),
        ready_spread_s=cost.waits_s,
    )  # fmt: skip


def to_json(found: PlanAnswer) -> str:
    """One JSON object: the strategies in order with all predictions, the unchanged spec, and the assumptions."""
    question = found.question
    table = {
        "run": question.spec.run.name, "parameters": question.shape.parameters,
        "peers": [asdict(machine) for machine in question.swarm.machines], "assumed": list(question.swarm.assumed),
        "coefficients": question.given.measured, "considered": found.choice.considered, "tried": found.choice.tried,
        "ranked": [_json_of(ranked) for ranked in found.choice.ranked], "now": _json_of(found.now),
        "runner_up": why_lost(found.best, found.choice.ranked[1]) if len(found.choice.ranked) > 1 else "",
        "device_bytes": question.device_bytes(found.best.strategy),
        "sharding": {
            machine.name: str(question.of_devices(found.best.strategy, machine).strategy)
            for machine in question.swarm.machines if machine.devices > 1
        },
        "spec": asdict(found.spec),
    }  # fmt: skip
    return json.dumps(table)


def options_to_json(found: NoPlan) -> str:
    """One JSON object: what peers could do with a model that some of them cannot hold."""
    return json.dumps({"why": str(found.why), "options": asdict(found.options)})


def _json_of(ranked: RankedStrategy) -> dict[str, object]:
    cost = ranked.cost
    return {
        "strategy": asdict(ranked.strategy), "score": ranked.score, "tokens_per_s": cost.tokens_per_s,
        "exposed": cost.exposed, "day_bytes": cost.day_bytes, **asdict(cost),
    }  # fmt: skip


def write(found: PlanAnswer, to: Path) -> str:
    """Write the spec for `bootstrap`. Returns a sentence about it. Raises BadInput."""
    planned = f"# Planned by homefires for {count(len(found.question.swarm), 'peer')}: {found.best.strategy.words()}.\n"
    with writing(to, "--write"), to.open("x", encoding="utf-8") as file:
        file.write(planned + dump(found.spec))
    return f"{to}: a spec for homefires bootstrap"
