"""Stages of one model in threads of this process, and the port between them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue

import torch

from peer.parallel.pipeline.lead_stage import LeadStage
from peer.parallel.pipeline.span_choice import Wire, choose_spans
from peer.parallel.pipeline.stage import StagePlace
from peer.parallel.pipeline.worker_stage import WorkerStage
from peer.planning.plan.cluster_cost import layout_of
from peer.planning.plan.model_shape import shape_of
from peer.schema.ipc import Assignment, HomeOffer
from peer.schema.spec import RunSpec, from_mapping
from peer.training.data.open_source import open_source
from peer.training.data.sampler import IdleSampler, ShardSampler
from peer.training.model.build import build
from peer.training.train.backend import SingleDevice
from peer.training.train.inner_loop import InnerStep, MicroBatch

CPU = torch.device("cpu")
HOMES = ("lead", "second", "third", "fourth")


def small_spec(
    *, blocks: int = 3, architecture: str = "llama", config: Mapping[str, object] | None = None, **inner: object
) -> RunSpec:
    """A llama of a few blocks whose first and last layer are no one thing."""
    return from_mapping(
        {
            "run": {"name": "cut", "seed": 3, "founders": 1, "rounds": 4},
            "model": {
                "architecture": architecture, "context": 32, "tokenizer": "bytes",
                "config": {
                    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": blocks, "num_attention_heads": 2,
                    "tie_word_embeddings": False, **(config or {}),
                },
            },
            "data": {"source": "stdlib", "held_out_every": 20, "eval_sequences": 8},
            "inner": {"learning_rate": 3e-3, "warmup_steps": 4, "sequences": 8, "accumulation": 2} | inner,
            "round": {"steps": 10},
            "codec": {"wire": "int8", "part_elements": 4096},
        },
        "a test",
    )  # fmt: skip


def unknown(names: Sequence[str]) -> list[HomeOffer]:
    """Homes of which nothing is known."""
    return [HomeOffer(name, name, 0.0, 0.0, 0.0) for name in names]


class MemoryFlow:
    """Frames between homes of one process, in order; `lose` says of each whether it gets lost."""

    def __init__(self, homes: tuple[str, ...]) -> None:
        self._boxes: dict[str, SimpleQueue[tuple[str, bytes]]] = {home: SimpleQueue() for home in homes}
        self.change: Callable[[str, str, bytes], bytes | None] = lambda sender, to, frame: frame
        """What becomes of a frame; None: it is lost."""

    def port(self, me: str) -> MemoryPort:
        return MemoryPort(self, me)

    def put(self, sender: str, to: str, frame: bytes) -> None:
        changed = self.change(sender, to, frame)
        if changed is not None:
            self._boxes[to].put((sender, changed))

    def get(self, me: str, timeout_s: float) -> tuple[str, bytes] | None:
        try:
            return self._boxes[me].get(timeout=timeout_s)
        except Empty:
            return None


class MemoryPort:
    def __init__(self, flow: MemoryFlow, me: str) -> None:
        self._flow, self._me = flow, me

    def send(self, to: str, frame: bytes) -> None:
        self._flow.put(self._me, to, frame)

    def receive(self, timeout_s: float) -> tuple[str, bytes] | None:
        return self._flow.get(self._me, timeout_s)


class Cluster:
    """A lead in this thread, workers in threads of their own."""

    def __init__(
        self, spec: RunSpec, homes: int, wire: Wire, folder: Path, silence_s: float = 20.0, again_s: float = 2.0,
        flow: MemoryFlow | None = None,
    ) -> None:  # fmt: skip
        names = HOMES[:homes]
        self.spec, self.flow = spec, flow or MemoryFlow(names)
        self.assignment: Assignment = choose_spans(layout_of(shape_of(spec), spec), unknown(names), homes, 1, wire)
        self.batches = ShardSampler(open_source(spec, spec.data.path), spec, "lead", ("lead",), {})
        self.smaller: list[int] = []
        self.lead = LeadStage(
            spec, self._place("lead"), self.batches, CPU, self.smaller.append, lambda: None, folder, silence_s,
            again_s,
        )  # fmt: skip
        self.workers = [
            WorkerStage(spec, self._place(name), IdleSampler(), CPU, folder, silence_s + 5.0) for name in names[1:]
        ]
        self.served: dict[str, list[InnerStep]] = {name: [] for name in names[1:]}
        self.failures: list[BaseException] = []
        self._stop = threading.Event()

    def _place(self, me: str) -> StagePlace:
        return StagePlace(assignment=self.assignment, me=me, port=self.flow.port(me))

    @property
    def stages(self) -> list[LeadStage | WorkerStage]:
        return [self.lead, *self.workers]

    def replace_worker(self, number: int, worker: WorkerStage) -> None:
        self.workers[number] = worker
        self.served[worker._place.me] = []

    @contextmanager
    def at_work(self) -> Iterator[None]:
        self._stop.clear()
        threads = [threading.Thread(target=self._serve, args=(worker,)) for worker in self.workers]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()
        assert not self.failures, self.failures

    def _serve(self, worker: WorkerStage) -> None:
        try:
            while not self._stop.is_set():
                made = worker.step(0, 0.0, self._stop.is_set)
                if made.tokens:
                    self.served[worker._place.me].append(made)
        except BaseException as error:
            self.failures.append(error)

    def parameters(self) -> torch.Tensor:
        return torch.cat([stage.vectors.flat.new() for stage in self.stages])


def alone(spec: RunSpec) -> SingleDevice:
    """The same model on one device."""
    batches = ShardSampler(open_source(spec, spec.data.path), spec, "lead", ("lead",), {})
    return SingleDevice(build(spec), spec, batches, CPU, MicroBatch(8))
