"""`python -m peer.testing.faulty_peer INVITE --dir DIR …`: `python -m peer join` with a network that can be broken and
a trainer that can fail.

Faults of the trainer's own phases strike when the event of that phase has been printed.
"""

from __future__ import annotations

import argparse
import io
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import peer.startup
from dht.errors import BadInput, MemoryFull
from peer.__main__ import main
from peer.network.link.handle import LinkProcess
from peer.node.store.contributions import WorkStats
from peer.node.telemetry.reporter import Reporter
from peer.parallel.cluster import home_offer
from peer.planning.plan.model_shape import shape_of
from peer.schema.events import PhaseEntered, RoundStarted, parse_line
from peer.schema.settings import PeerSettings
from peer.schema.spec import RunSpec
from peer.testing.fault_channel import BOOKS, Striker
from peer.testing.faults import Odd
from peer.testing.short_waits import DRAG, FORWARD, drag, hurry, is_paced, slow_down

if TYPE_CHECKING:
    from peer.parallel.cluster.home import ClusterHome
    from peer.parallel.ranks.sharded_backend import RankOptions
    from peer.training.train.autotune_result import Tuned
    from peer.training.train.inner_loop import InnerStep
    from peer.training.train.trainer import LocalTrainer

TRAINER_PHASES = ("submit", "apply")
"""Those that the trainer reports; "train" begins with `RoundStarted`. The rest is the link's."""


DEVICE = "device"
"""In the directory of a peer whose device is out of order there is a file of this name, which holds one of these."""
FULL, GONE = "full", "gone"
UNTRAINED = "untrained"
"""A peer in whose directory there is a file of this name gives noise, as large as what it has learned."""


class WatchedOutput(io.TextIOBase):
    """stdout that is read on its way out: a whole line is printed first, then what is due strikes."""

    def __init__(self, inner: TextIO, directory: Path) -> None:
        self._inner, self._directory = inner, directory
        self._striker = Striker(directory, by_link=False)
        self._text = ""
        self._odd: list[Odd] = []

    def write(self, text: str) -> int:
        self._text += text
        return len(text)

    def flush(self) -> None:
        text, self._text = self._text, ""
        self._inner.write(text)
        self._inner.flush()
        for line in text.splitlines():
            self._look_at(line)

    def _look_at(self, text: str) -> None:
        line = parse_line(text)
        match line.event if line else None:
            case RoundStarted(round=round):
                self._strike("train", round)
            case PhaseEntered(round=round, phase=phase) if phase in TRAINER_PHASES:
                self._strike(phase, round)

    def _strike(self, phase: str, round: int) -> None:
        # What breaks the network is passed on to the link by the swarm, which hears of the strike.
        self._odd += [fault for fault in self._striker.enter(phase, round) if isinstance(fault, Odd)]

    def take_odd(self) -> list[Odd]:
        """What is to be odd in the contribution that is submitted now."""
        odd, self._odd = self._odd, []
        return odd


def let_be_odd(trainer: LocalTrainer, take_odd: Callable[[], list[Odd]]) -> None:
    """Have what this trainer writes down as its contribution pass through here: the trainer believes that it is so."""
    write_contribution = trainer._write_contribution

    def write_odd_contribution(anchor: bytes, effort: WorkStats) -> None:
        for odd in take_odd():
            _distort(trainer, odd)
        write_contribution(anchor, effort)

    vars(trainer)["_write_contribution"] = write_odd_contribution


def let_give_noise(trainer: LocalTrainer, directory: Path) -> None:
    """While there is the file, have nothing of what this trainer learned stand in what it writes down to be given."""
    write_contribution = trainer._write_contribution

    def write_noise(anchor: bytes, effort: WorkStats) -> None:
        if (directory / UNTRAINED).exists():
            for number in range(len(trainer.layer_names)):
                learned = trainer._backend.layer(number).residual
                learned.normal_(std=float(learned.square().mean().sqrt()))
        write_contribution(anchor, effort)

    vars(trainer)["_write_contribution"] = write_noise


RANK = "rank"
"""A peer in whose directory there is a file of this name loses a rank, and the file, which says when (`LOSES_IN`)."""
LOSES_IN = {"train": "step", "submit": "_write_contribution", "apply": "apply", "checkpoint": "checkpoint"}
"""By what a trainer does then. Of a checkpoint what is written beside training follows."""


def let_lose_ranks(trainer: LocalTrainer, directory: Path) -> None:
    """Have the last of the ranks of this trainer killed (SIGKILL) as the file says, if it has ranks."""
    for when, name in LOSES_IN.items():
        vars(trainer)[name] = partial(_lose_rank, trainer, directory / RANK, when, getattr(trainer, name))


def _lose_rank(trainer: LocalTrainer, path: Path, when: str, do: Callable[..., Any], *words: Any, **named: Any) -> Any:
    if not path.exists() or path.read_text() != when:
        return do(*words, **named)
    path.unlink()
    taken = do(*words, **named) if when == "checkpoint" else None
    os.kill(trainer._backend.group.pids[-1], signal.SIGKILL)  # type: ignore[attr-defined]
    return taken or do(*words, **named)


def is_device(directory: Path, fault: str) -> bool:
    path = directory / DEVICE
    return path.exists() and path.read_text() == fault


def let_fail(trainer: LocalTrainer, directory: Path) -> None:
    """Have an inner step of this trainer end as CUDA ends it on a card that is gone."""
    step = trainer.step

    def step_or_fail(position: float, stop: Callable[[], bool]) -> InnerStep:
        if is_device(directory, GONE):
            raise RuntimeError("CUDA error: uncorrectable ECC error encountered")
        return step(position, stop)

    vars(trainer)["step"] = step_or_fail


def _distort(trainer: LocalTrainer, odd: Odd) -> None:
    """Raises BadInput for a layer that the model does not have."""
    if odd.layer and odd.layer not in trainer.layer_names:
        raise BadInput(f"{odd}: the model has no such layer; it has {', '.join(trainer.layer_names)}")
    for number, name in enumerate(trainer.layer_names):
        if odd.layer in ("", name):
            trainer._backend.layer(number).residual.mul_(odd.factor)


def offer_as_dragged(directory: Path) -> None:
    """Have this home offer no more than what it can do with that file."""
    path, measured = directory / DRAG, home_offer._measured

    def slower(spec: RunSpec, settings: PeerSettings) -> tuple[float, float]:
        memory_gb, tokens_per_s = measured(spec, settings)
        if path.exists():
            sequence_s = float(path.read_text()) / FORWARD * shape_of(spec).blocks
            tokens_per_s = min(tokens_per_s, spec.model.context / sequence_s)
        return memory_gb, tokens_per_s

    vars(home_offer)["_measured"] = slower


def run() -> int:
    """Take part; the exit code of `python -m peer join`."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--dir", type=Path, required=True)
    directory = parser.parse_known_args()[0].dir
    hurry(directory)
    offer_as_dragged(directory)
    sys.stdout = watched = WatchedOutput(sys.stdout, directory)
    LinkProcess.module = "peer.testing.faulty_link"
    make_trainer = peer.startup.make_trainer

    def make_faulty_trainer(
        spec: RunSpec, settings: PeerSettings, me: str, directory: Path, fit: Tuned | None, session: Reporter,
        ranks: RankOptions | None = None, cluster: ClusterHome | None = None,
    ) -> LocalTrainer:  # fmt: skip
        if is_device(directory, FULL):
            raise MemoryFull("the memory of cuda has no room for the model")
        trainer = make_trainer(spec, settings, me, directory, fit, session, ranks, cluster)
        let_fail(trainer, directory)
        let_be_odd(trainer, watched.take_odd)
        let_give_noise(trainer, directory)
        let_lose_ranks(trainer, directory)
        if cluster is not None:
            drag(vars(trainer._backend)["_model"], directory)
        if is_paced(directory):
            slow_down(trainer, vars(trainer._backend).get("_model"), settings.min_step_s, spec.inner.accumulation)
        if (directory / BOOKS).exists():
            from peer.testing.ledger_check import keep_books

            keep_books(trainer, directory)
        return trainer

    vars(peer.startup)["make_trainer"] = make_faulty_trainer
    return main(["join", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(run())
