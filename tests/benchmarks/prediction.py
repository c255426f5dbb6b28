"""`prediction`: how well the planner foretells what a round takes on this machine.

Real processes. Every configuration of a fixed grid is measured several times, each time in a run of its own. Some of
them, drawn by the hash of what they are, fit the coefficients; the others are predicted.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import os
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from peer.planning.plan.calibration import MeasuredRun, RoundTiming, time_rounds
from peer.planning.plan.model_shape import shape_of
from peer.planning.plan.peer_set import Machine, uniform_peers
from peer.schema.events import EventLine, InnerProgressed, RoundCommitted
from peer.schema.spec import RunSpec, load
from peer.testing.process_swarm import ENDLESS, RealSwarm
from peer.testing.swarm_contract import changed_spec
from tests.benchmarks import prediction_report
from tests.benchmarks.fitting import calibrate, dump
from tests.benchmarks.jobs import code_digest
from tests.benchmarks.record import commit, machine, say, versions

SPEC = Path(__file__).with_name("prediction_spec.toml")
PLAN = Path(__file__).with_suffix(".toml")
CODE = (
    "dht/**/*.py", "peer/*.py", "peer/schema/*.py", "peer/consensus/codec/*.py", "peer/node/store/*.py",
    "peer/network/sync/*.py", "peer/network/link/*.py",
    "peer/consensus/protocol/*.py", "peer/consensus/rounds/*.py", "peer/consensus/aggregation/*.py",
    "peer/node/lifecycle/*.py", "peer/training/train/*.py",
    "peer/testing/process_swarm.py", "tests/benchmarks/prediction.py", "tests/benchmarks/prediction*.toml",
)  # fmt: skip
"""Whose change makes a row worthless."""
BEGIN_S, ROUND_S = 300.0, 120.0
DOWNLOADS = 5.0
"""Times the upload."""


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """What is measured and predicted."""

    peers: int
    sequences: int
    context: int
    blocks: int
    steps: int
    codec: str
    overlap: str
    upload_mbps: float

    @property
    def name(self) -> str:
        """Short, and another one for every other configuration."""
        line = f"-{self.upload_mbps:g}mbps" if self.upload_mbps else ""
        return (
            f"n{self.peers}-s{self.sequences}-t{self.context}-b{self.blocks}-h{self.steps}-{self.codec}-{self.overlap}"
            f"{line}"
        )

    @property
    def is_held_out(self) -> bool:
        """Whether it is predicted, and fits nothing: by the first bit of its name's hash."""
        return hashlib.blake2b(self.name.encode(), digest_size=1).digest()[0] < 128

    def sets(self, base: str) -> tuple[str, ...]:
        """What differs from the spec in the file `base`."""
        config = dict(load(base).model.config) | {"num_hidden_layers": self.blocks}
        values = ", ".join(f"{key} = {value}" for key, value in config.items())
        return (
            f"inner.sequences={self.sequences}", f"model.context={self.context}", f"model.config={{{values}}}",
            f"round.steps={self.steps}", f'round.overlap="{self.overlap}"', f'codec.wire="{self.codec}"',
        )  # fmt: skip

    def settings(self) -> tuple[str, ...]:
        """Of every peer."""
        if not self.upload_mbps:
            return ("chain_mb=0",)
        return (
            "chain_mb=0", f"upload_mbps={self.upload_mbps}", f"download_mbps={DOWNLOADS * self.upload_mbps}",
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The file beside this one."""

    repeats: int
    warm_rounds: int
    rounds: int
    delay_s: float
    configurations: tuple[Configuration, ...]

    @classmethod
    def read(cls) -> Plan:
        table = tomllib.loads(PLAN.read_text())
        base, rows = table.pop("base"), table.pop("configuration")
        return cls(**table, configurations=tuple(Configuration(**base | row) for row in rows))

    def quick(self) -> Plan:
        """A few configurations, once, with few rounds: shows only that it works."""
        few = [each for each in self.configurations if each.blocks <= 4 and each.overlap == "none"]
        chosen = [next(each for each in few if each.is_held_out == held) for held in (False, True)]
        return dataclasses.replace(self, repeats=1, warm_rounds=1, rounds=2, configurations=tuple(chosen))


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `prediction` and its options to the command line."""
    parser = commands.add_parser("prediction", help=__doc__.splitlines()[0], description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("prediction"), metavar="DIR", help="rows and results")
    parser.add_argument("--quick", action="store_true", help="two configurations, once: shows only that it works")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="only these configurations")
    parser.add_argument("--report", action="store_true", help="measure nothing more: print what the rows say")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure what is not measured yet, fit, predict, print. 0 if all bars are met, or with `--quick` or `--only`."""
    plan = Plan.read().quick() if arguments.quick else Plan.read()
    if arguments.only:
        chosen = tuple(each for each in plan.configurations if each.name in arguments.only)
        plan = dataclasses.replace(plan, configurations=chosen)
    rows = arguments.out / "rows"
    rows.mkdir(parents=True, exist_ok=True)
    for configuration, repeat in list_jobs(plan):
        path = rows / f"{configuration.name}.{repeat}.json"
        if not arguments.report and not is_measured(path):
            measure(path, str(SPEC), plan, configuration)
    return report(arguments.out, str(SPEC), plan, quick=arguments.quick or bool(arguments.only))


def list_jobs(plan: Plan) -> Iterator[tuple[Configuration, int]]:
    """Every configuration once, then every one again: what changes on the machine meanwhile hits all alike."""
    for repeat in range(plan.repeats):
        for configuration in plan.configurations:
            yield configuration, repeat


# ---- measuring ----


def is_measured(path: Path) -> bool:
    """Whether its row is there and this code made it."""
    return path.exists() and json.loads(path.read_text()).get("code") == code_digest(CODE)


def measure(path: Path, spec: str, plan: Plan, configuration: Configuration) -> None:
    """One run of the spec in this file, as the configuration varies it; what it took is written to `path`."""
    last = plan.warm_rounds + plan.rounds
    with tempfile.TemporaryDirectory(prefix="hf-prediction-") as folder:
        swarm = RealSwarm(
            Path(folder) / "swarm", configuration.peers, spec=spec, sets=configuration.sets(spec),
            settings=configuration.settings(), delay_s=plan.delay_s,
        )  # fmt: skip
        with closing(swarm):
            swarm.until_round(last, within_s=BEGIN_S + last * ROUND_S)
            for peer in range(configuration.peers):
                ended_t = next(line.t for line in swarm.lines(peer) if is_commit(line, last))
                swarm.wait_for(peer, lambda line, t=ended_t: is_progress_after(line, t), within_s=ROUND_S)  # type: ignore[misc]
            swarm.assert_agreement()
            lines = [swarm.lines(peer) for peer in range(configuration.peers)]
            timed = time_rounds(lines, swarm.spec, plan.warm_rounds, last)
    say(f"{configuration.name}: rounds of {timed.round_s:.3f} s, steps of {1000 * timed.step_s:.2f} ms")
    row = {"name": configuration.name, "code": code_digest(CODE), "timed": dataclasses.asdict(timed)}
    path.write_text(json.dumps(row) + "\n")


def is_commit(line: EventLine, round: int) -> bool:
    """Whether it tells of the commit of this anchor."""
    return isinstance(line.event, RoundCommitted) and line.event.round == round


def is_progress_after(line: EventLine, t: float) -> bool:
    """Whether it tells of inner steps after a moment."""
    return isinstance(line.event, InnerProgressed) and line.t > t


# ---- judging ----


def read_rows(out: Path, plan: Plan) -> dict[Configuration, list[RoundTiming]]:
    """What was measured of each configuration, by repeat; those of which something is missing are left out."""
    found = {}
    for configuration in plan.configurations:
        paths = [out / "rows" / f"{configuration.name}.{repeat}.json" for repeat in range(plan.repeats)]
        if all(path.exists() for path in paths):
            found[configuration] = [RoundTiming(**json.loads(path.read_text())["timed"]) for path in paths]
    return found


def sample_of(base: str, plan: Plan, configuration: Configuration, timed: Sequence[RoundTiming]) -> MeasuredRun:
    """The planner's view of one configuration, with the medians of what was measured."""
    spec = spec_of(base, configuration)
    caps = {"upload_mbps": configuration.upload_mbps, "download_mbps": DOWNLOADS * configuration.upload_mbps}
    cores = len(os.sched_getaffinity(0))
    swarm = uniform_peers(configuration.peers, Machine(name="peer", **caps), otherwise_s=plan.delay_s, cores=cores)
    return MeasuredRun(spec=spec, shape=shape_of(spec), swarm=swarm, timed=middle(timed))


def spec_of(base: str, configuration: Configuration) -> RunSpec:
    """The spec that a configuration runs."""
    return changed_spec(base, (*ENDLESS, *configuration.sets(base), f"run.founders={configuration.peers}"))


def middle(timed: Sequence[RoundTiming]) -> RoundTiming:
    """The median of each figure over repeats."""
    values: dict[str, Any] = {
        field.name: median(getattr(each, field.name) for each in timed)
        for field in dataclasses.fields(RoundTiming) if field.name not in ("phases", "rounds")
    }  # fmt: skip
    told = [each.phases for each in timed if each.phases]
    phases = {phase: median(each[phase] for each in told) for phase in (told[0] if told else ())}
    return RoundTiming(**values, phases=phases, rounds=sum(each.rounds for each in timed))


def report(out: Path, base: str, plan: Plan, *, quick: bool) -> int:
    """Fit to some configurations, predict the others, print and write what came of it."""
    rows = read_rows(out, plan)
    samples = {each: sample_of(base, plan, each, timed) for each, timed in rows.items()}
    fitted = [sample for each, sample in samples.items() if not each.is_held_out]
    if not fitted or len(fitted) == len(samples):
        print("too little was measured to fit some configurations and to predict others")
        return 0 if quick else 1
    about = machine()
    text = f"{len(fitted)} configurations on {about['cores']} cores of {about['cpu']}, python -m tests.benchmarks"
    found = calibrate(fitted, f"{text} prediction")
    (out / "coefficients.toml").write_text(dump(found))
    predicted = prediction_report.predict_all(samples, rows, found)
    text, bars = prediction_report.tables(predicted), prediction_report.judge(predicted)
    print("\n" + text + "\n" + "".join(f"- {bar}\n" for bar in bars), flush=True)
    (out / "results.md").write_text(text + "\n" + "".join(f"- {bar}\n" for bar in bars))
    result = {
        "commit": commit(), "versions": versions(), "machine": about, "coefficients": dataclasses.asdict(found),
        "bars": [dataclasses.asdict(bar) for bar in bars], "rows": [dataclasses.asdict(each) for each in predicted],
    }  # fmt: skip
    (out / "results.json").write_text(json.dumps(result, indent=1) + "\n")
    return 0 if quick or all(bar.met for bar in bars) else 1
