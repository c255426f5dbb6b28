"""A cluster's trainers in one process: to a decided round they are one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from peer.consensus.protocol.block import Update
from peer.consensus.protocol.head import next_anchor
from peer.node.store.contributions import Contribution
from peer.parallel.cluster.home import ClusterHome
from peer.parallel.pipeline.span_choice import Wire, choose_spans
from peer.planning.plan.cluster_cost import layout_of
from peer.planning.plan.model_shape import shape_of
from peer.schema.spec import RunSpec
from peer.training.train.inner_loop import InnerStep
from peer.training.train.trainer import LocalTrainer
from tests.decided import contribution
from tests.peer.parallel.pipeline.stages import HOMES, MemoryFlow, unknown

CPU = torch.device("cpu")
WAIT_S = 60.0


class OneContribution:
    """What the homes of a cluster have written for an anchor, as if it lay on one disk."""

    def __init__(self, pieces: list[Contribution]) -> None:
        self._pieces, self.leaves = pieces, pieces[0].leaves
        self.header = pieces[0].header

    def payload(self, part: int) -> bytes:
        return next(piece for piece in self._pieces if part in piece.here).payload(part)


class ClusterTrainers:
    """A lead and its workers, each with a folder below `folder`; use it as a context manager."""

    def __init__(self, spec: RunSpec, homes: int, folder: Path, me: str = "lead", wire: Wire = "float32") -> None:
        names = (me, *(f"{me}-{name}" for name in HOMES[1:homes]))
        self.me, self.spec = me, spec
        self.flow = MemoryFlow(names)
        folder.mkdir(exist_ok=True)
        self.assignment = choose_spans(layout_of(shape_of(spec), spec), unknown(names), homes, 1, wire)
        self.asked = {name: threading.Event() for name in names}
        self.homes = [
            ClusterHome(self.assignment, name, self.flow.port(name), folder / name, self.asked[name].set)
            for name in names
        ]
        self.trainers = [
            LocalTrainer(
                spec, home.me, folder / home.me, CPU, data_path=spec.data.path, reads=home.is_lead,
                make_engine=home.engine(spec, CPU, folder / home.me, lambda sequences: None),
            )
            for home in self.homes
        ]  # fmt: skip
        self.lead, *self.workers = self.trainers
        self.anchor, self.parts, self._codec, self._folder = self.lead.anchor, self.lead.parts, self.lead._codec, folder
        self._threads = [ThreadPoolExecutor(1) for _ in self.workers]

    def __enter__(self) -> ClusterTrainers:
        return self

    def __exit__(self, *exception: object) -> None:
        for thread in self._threads:
            thread.shutdown()
        for trainer in self.trainers:
            trainer.close()
        for home in self.homes:
            home.close()

    @property
    def progress(self) -> Any:
        return self.lead.progress

    def begin_round(self, members: tuple[str, ...]) -> None:
        self.lead.begin_round(members)

    def step(self, position: float) -> InnerStep:
        """One of all homes."""
        served = self._by_workers(lambda worker: worker.step(0.0, lambda: False))
        made = self.lead.step(position, lambda: False)
        assert all(step.result(WAIT_S).tokens == made.tokens for step in served)
        return made

    def stand_at(self, anchor: bytes) -> bytes:
        """H(θ, m) of all of it, whose name is `anchor`."""
        told = self._by_workers(lambda worker: worker.state_digest(anchor))
        state = self.lead.state_digest(anchor)
        assert all(each.result(WAIT_S) == b"" for each in told)
        return state

    def submit(self, anchor: bytes) -> None:
        """The lead asks, the workers submit."""
        for event in self.asked.values():
            event.clear()
        written = self.lead.submit(anchor)
        for worker in self.workers:
            assert self.asked[worker.me].wait(WAIT_S)
            worker.submit(anchor).result(WAIT_S)
        written.result(WAIT_S)

    def contribution(self, anchor: bytes) -> OneContribution:
        return OneContribution([contribution(trainer, anchor) for trainer in self.trainers])

    def apply(self, update: Update, load: Callable[[bytes], bytes]) -> float:
        given_up = [trainer.apply(update, load) for trainer in self.trainers]
        self.state = self.stand_at(next_anchor(update.parent, update.digest))
        return max(given_up)

    def theta(self) -> torch.Tensor:
        return torch.cat([layer for trainer in self.trainers for layer in trainer.anchor.theta])

    def _by_workers(self, work: Callable[[LocalTrainer], Any]) -> list[Future[Any]]:
        return [thread.submit(work, worker) for thread, worker in zip(self._threads, self.workers, strict=True)]
