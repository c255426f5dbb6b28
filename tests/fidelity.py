"""The same run twice: by real processes on loopback, and by the simulator. Both must tell the same story.

Peers are paced: what a step takes is declared, not what this machine can do. One peer gives a hundred times too much
once, one is killed for good, so that there is something to agree on besides averages.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

from peer.planning.plan.model_shape import shape_of
from peer.planning.simulate.group import Group
from peer.planning.simulate.scenario import Scenario, ScenarioOptions
from peer.schema.events import EventLine, RoundCommitted
from peer.schema.spec import RunSpec
from peer.testing.faults import Crash, Odd
from peer.testing.process_swarm import RealSwarm

TIMES = 100.0
BEGIN_S, ROUND_S = 300.0, 240.0
SPEC = "micro"
SETS = (
    "round.sync_rounds=0", "round.ramp_rounds=0", "data.eval_every=1000", "aggregation.warmup_rounds=2",
    "aggregation.deviation_floor=1.0", "round.gather_s=8", "round.exchange_s=8", "round.ack_s=3", "round.stagger_s=2",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What happens in the run."""

    peers: int = 4
    steps: int = 20
    step_s: float = 0.25
    upload_mbps: float = 5.0
    download_mbps: float = 20.0
    delay_s: float = 0.02
    rounds: int = 7
    odd: tuple[int, int] = (1, 4)
    """(peer, anchor): it gives `TIMES` too much for that round."""
    dies: tuple[int, int] = (3, 5)
    """(peer, anchor): it is killed when it begins to train from there."""
    seed: int = 1

    def sets(self) -> tuple[str, ...]:
        """Of the spec."""
        return (*SETS, f"round.steps={self.steps}", f"run.seed={self.seed}")


@dataclass(frozen=True, kw_only=True)
class Story:
    """What came of it, as one who stayed to the end tells it."""

    groups: list[list[int]]
    """By round, who was a member."""
    penalties: list[list[tuple[int, str]]]
    """By round, (peer, code)."""
    round_s: list[float]
    """From the commit of each anchor to the next."""
    calm: int | None = None
    """So many of these are over before anybody dies."""

    @property
    def median_s(self) -> float:
        """Of the calm rounds but the first, which begins with the processes. After a loss chance decides who leads
        next, and with it how long the others wait."""
        return median(self.round_s[: self.calm])


def story_of(lines: Sequence[EventLine], ids: Sequence[str], plan: Plan) -> Story:
    """From the lines of one peer."""
    commits = {line.event.round: line for line in lines if isinstance(line.event, RoundCommitted)}
    events = [commits[number].event for number in range(1, plan.rounds + 1)]
    told = [event for event in events if isinstance(event, RoundCommitted)]
    times = [commits[number].t for number in range(1, plan.rounds + 1)]
    return Story(
        groups=[sorted(ids.index(peer) for peer in event.group) for event in told],
        penalties=[sorted((ids.index(row["about"]), row["code"]) for row in event.penalties) for event in told],
        round_s=[later - earlier for earlier, later in pairwise(times)], calm=plan.dies[1] - 1,
    )  # fmt: skip


def in_reality(directory: Path, plan: Plan) -> Story:
    """By processes of this machine."""
    settings = (
        f"min_step_s={plan.step_s}", f"upload_mbps={plan.upload_mbps}", f"download_mbps={plan.download_mbps}"
    )  # fmt: skip
    victim, at = plan.dies
    with closing(
        RealSwarm(
            directory, plan.peers, spec=SPEC, sets=plan.sets(), settings=settings, paced=True, delay_s=plan.delay_s
        )
    ) as swarm:
        swarm.inject(
            Odd(peer=plan.odd[0], round=plan.odd[1], factor=TIMES), Crash(peer=victim, phase="train", round=at)
        )  # fmt: skip
        others = [peer for peer in range(plan.peers) if peer != victim]
        swarm.until_round(plan.rounds, within_s=BEGIN_S + plan.rounds * ROUND_S, by=others)
        swarm.assert_agreement()
        ids = [swarm.id_of(peer) for peer in range(plan.peers)]
        return story_of(swarm.lines(others[0]), ids, plan)


def simulated(spec: RunSpec, plan: Plan) -> Story:
    """By the simulator."""
    lines: list[EventLine] = []
    group = Group(setting_of(spec, plan), sink=lines.append)
    victim, at = plan.dies
    while group.peers[victim].disk.head.round < at:
        group.scheduler.run_until(group.now + 0.05)
    group.peers[victim].crash()
    group.run()
    ids = [peer.name for peer in group.peers]
    return story_of([line for line in lines if line.peer == ids[0]], ids, plan)


def setting_of(spec: RunSpec, plan: Plan) -> Scenario:
    """The same machines, as they are declared."""
    spec = dataclasses.replace(spec, run=dataclasses.replace(spec.run, founders=plan.peers, seed=plan.seed))
    asked = ScenarioOptions(
        spec=spec, shape=shape_of(spec), peers=plan.peers, step_s=plan.step_s, rounds=plan.rounds, seed=plan.seed,
        upload_mbps=plan.upload_mbps, download_mbps=plan.download_mbps,
    )  # fmt: skip
    setting = asked.setting()
    odd, at = plan.odd
    machines = list(setting.machines)
    machines[odd] = dataclasses.replace(machines[odd], attack="times_100", attack_round=at)
    return dataclasses.replace(setting, machines=tuple(machines), delay_s=(plan.delay_s, plan.delay_s + 0.005))
