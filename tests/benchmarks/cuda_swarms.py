"""CUDA bars that take real processes: peers on one device, one beside a processor, and a peer of 1.1 B parameters."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from peer.schema.events import RoundCommitted
from peer.schema.spec import RunSpec, dump
from peer.testing.process_swarm import RealSwarm
from tests.benchmarks.cuda_models import spec_of

if TYPE_CHECKING:
    from tests.benchmarks.cuda_bars import Say, Setting

WARM_ROUNDS = 1
"""The first one has a checkpoint, and kernels that are loaded."""
DEMO_S = 60.0
WAITS = {
    "max_train_s": 120, "gather_s": 30, "exchange_s": 60, "ack_s": 10, "stagger_s": 5, "min_round_s": 0,
    "keep_rounds": 2, "snapshot_rounds": 2,
}  # fmt: skip


def demo(setting: Setting, say: Say) -> None:
    """As a person who has just installed it: what does not begin on this device, or hangs, is found before all else."""
    words = ["demo", "--devices", setting.device.type, "--spec", "micro", "--peers", "2", "--ui", "none"]
    words += ["--rounds", "2"] if setting.smoke else []
    words += ["--dir", str(setting.folder / "demo")]
    command = [sys.executable, "-m", "tui", *words]
    say("demo", subprocess.run(command, stdin=subprocess.DEVNULL, stdout=sys.stderr, timeout=DEMO_S).returncode)


def two_on_one_device(setting: Setting, say: Say) -> None:
    """134 M, streaming, int4."""
    made = _run(setting, _spec("134 M", setting, steps=60, accumulation=4), peers=2, rounds=4)
    say("two bits", _unlike(made))
    say("two exposed", 100 * _exposed(made))
    say("seconds of a round", _round_s(made))


def beside_a_processor(setting: Setting, say: Say) -> None:
    """A tiny model, so that a processor keeps up."""
    spec = _spec("134 M", setting, steps=20, accumulation=1, tiny=True)
    made = _run(setting, spec, peers=2, rounds=3, own={1: ("devices=cpu",)})
    say("mixed bits", _unlike(made))


def rounds_of_a_billion(setting: Setting, say: Say) -> None:
    """A peer alone on its device, as at home. It decides its rounds with nobody else, by the same code."""
    made = _run(setting, _spec("1.1 B", setting, steps=40, accumulation=4), peers=1, rounds=3)
    say("1.1 B exposed", 100 * _exposed(made))
    say("seconds of a round", _round_s(made))


def _spec(model: str, setting: Setting, *, steps: int, accumulation: int, tiny: bool = False) -> RunSpec:
    table: dict[str, Any] = WAITS | {"steps": 4 if setting.smoke else steps, "overlap": "streaming"}
    inner = {"accumulation": 1 if setting.smoke else accumulation}
    return spec_of(model, tiny=tiny or setting.smoke, round=table, inner=inner, run={"name": "cuda", "rounds": 0})


def _run(
    setting: Setting, spec: RunSpec, *, peers: int, rounds: int, own: Mapping[int, Sequence[str]] | None = None
) -> list[list[RoundCommitted]]:
    """What each peer has committed."""
    path = setting.folder / "spec.toml"
    path.write_text(dump(spec))
    last = WARM_ROUNDS + 1 if setting.smoke else rounds
    devices = (f"devices={setting.device}",)
    with closing(RealSwarm(setting.folder / "swarm", peers, str(path), settings=devices, own=own)) as swarm:
        swarm.until_round(last)
        return [_committed(swarm, peer, last) for peer in range(peers)]


def _committed(swarm: RealSwarm, peer: int, last: int) -> list[RoundCommitted]:
    events = (line.event for line in swarm.lines(peer))
    return [event for event in events if isinstance(event, RoundCommitted) and event.round <= last]


def _unlike(made: list[list[RoundCommitted]]) -> int:
    """Rounds in which a peer has other bits than another, or that one has not made."""
    states = [{event.round: (event.digest, event.state) for event in events} for events in made]
    return sum(len({each.get(round) for each in states}) != 1 for round in set().union(*states))


def _exposed(made: list[list[RoundCommitted]]) -> float:
    """Of the peer that waited most."""
    return max(
        _sum(events, lambda event: event.exposed_s) / _sum(events, lambda event: event.round_s) for events in made
    )


def _round_s(made: list[list[RoundCommitted]]) -> float:
    return _sum(made[0], lambda event: event.round_s) / sum(event.round > WARM_ROUNDS for event in made[0])


def _sum(events: list[RoundCommitted], of: Callable[[RoundCommitted], float]) -> float:
    return sum(of(event) for event in events if event.round > WARM_ROUNDS)
