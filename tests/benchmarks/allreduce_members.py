"""What the peers of each contender do in their processes: gloo's all_reduce, hivemind's averager, a round of ours."""

from __future__ import annotations

import logging
import multiprocessing
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig

from dht.identity import Identity
from peer.consensus.protocol.block import VOID, Block
from peer.network.link.handle import LinkProcess
from peer.node.store.objects import load_object
from peer.schema.ipc import (
    AnyToTrainer,
    BeginAt,
    BlockCommitted,
    Hello,
    InStep,
    OfferContribution,
    ResumeAt,
    SpecText,
    StandsAt,
)
from peer.schema.settings import PeerSettings
from peer.schema.spec import RunSpec, parse
from peer.training.train.inner_loop import InnerStep
from tests.benchmarks.allreduce_crew import Failed, Words
from tests.stepping import step, submit

PATTERN = 1 << 16
"""Values repeat after so many, so that what everybody gave is known everywhere."""
SPREAD = 1e-3
LOOPBACK = "/ip4/127.0.0.1/tcp/0"
WAIT_S = 300.0
TOKENS = 4096


def pattern(number: int, round: int) -> Tensor:
    """What one peer gives in a round, again and again along its vector."""
    return SPREAD * torch.randn(PATTERN, generator=torch.Generator().manual_seed(1000 * round + number))


def fill(values: Tensor, number: int, round: int) -> None:
    """Lay the pattern along a flat vector."""
    repeated = pattern(number, round)
    for start in range(0, values.numel(), PATTERN):
        part = values[start : start + PATTERN]
        part.copy_(repeated[: part.numel()])


def error_of(values: Tensor, peers: int, round: int) -> float:
    """How far a flat vector is from the mean of what all gave, as a share of the spread: the root of the mean square.

    Along the whole of it: a part that was not averaged is far off.
    """
    mean, squares = torch.stack([pattern(number, round) for number in range(peers)]).mean(0), 0.0
    for start in range(0, values.numel(), PATTERN):
        part = values[start : start + PATTERN]
        squares += float((part - mean[: part.numel()]).square().sum())
    return float(np.sqrt(squares / values.numel()) / SPREAD)


# ---- gloo


class Gloo:
    """`torch.distributed` on the CPU."""

    def __init__(self, number: int, met: Words, options: Words) -> None:
        self.met: Words = {}
        self._number, self._peers, self._round, self._options = number, options["peers"], 0, options
        self._values = torch.zeros(options["parameters"])

    def complete(self) -> None:
        """Meet the others."""
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{self._options['folder']}/store", rank=self._number, world_size=self._peers
        )

    def prepare(self) -> None:
        self._round += 1
        fill(self._values, self._number, self._round)
        torch.distributed.barrier()

    def round(self) -> Words:
        torch.distributed.all_reduce(self._values)
        return {}

    def check(self) -> Words:
        """It gives sums."""
        return {"error": error_of(self._values / self._peers, self._peers, self._round)}

    def close(self) -> None:
        torch.distributed.destroy_process_group()


# ---- hivemind


class Numpy24:
    """numpy as hivemind 1.1.12 expects it: `int()` of an array of one number, which numpy 2.4 refuses."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    @staticmethod
    def frombuffer(buffer: Any, **more: Any) -> Any:
        """The number itself where only one is asked for."""
        found = np.frombuffer(buffer, **more)
        return found[0] if more.get("count") == 1 and more.get("dtype") is np.int64 else found


def compression_of(name: str) -> Any:
    """hivemind's codec of this name. Raises Failed for one that cannot be had here."""
    from hivemind import compression

    compression.quantization.np = Numpy24()
    if name == "blockwise8bit":
        try:
            import bitsandbytes  # noqa: F401
        except ImportError as error:
            raise Failed("bitsandbytes is not installed") from error
    return {
        "none": compression.NoCompression, "float16": compression.Float16Compression,
        "uniform8bit": compression.Uniform8BitQuantization, "quantile8bit": compression.Quantile8BitQuantization,
        "blockwise8bit": compression.BlockwiseQuantization,
    }[name]()  # fmt: skip


class Hivemind:
    """hivemind's DecentralizedAverager as it comes, in a group whose size is known before: it waits for nobody else."""

    def __init__(self, number: int, met: Words, options: Words) -> None:
        # hivemind's processes take what they need along; a spawned child would have to pickle it.
        multiprocessing.set_start_method("fork", force=True)
        import hivemind

        self._number, self._peers, self._round = number, options["peers"], 0
        compression = compression_of(options["codec"])
        sizes = options["layers"]
        self._dht = hivemind.DHT(initial_peers=met.get("addresses", []), start=True)
        self._averager = hivemind.DecentralizedAverager(
            [torch.zeros(size) for size in sizes], self._dht, start=True, prefix="allreduce",
            target_group_size=self._peers, min_group_size=self._peers, compression=compression,
            allow_state_sharing=False,
        )  # fmt: skip
        self.met: Words = {"addresses": [str(address) for address in self._dht.get_visible_maddrs()]}

    def prepare(self) -> None:
        self._round += 1
        with self._averager.get_tensors() as tensors:
            for values in tensors:
                fill(values, self._number, self._round)

    def round(self) -> Words:
        group = self._averager.step(timeout=WAIT_S, allow_retries=False)
        if group is None or len(group) != self._peers:
            raise Failed(f"a group of {len(group or ())} was found")
        return {}

    def check(self) -> Words:
        """It leaves a peer's own values in place of what did not come, and says nothing."""
        with self._averager.get_tensors() as tensors:
            return {"error": max(error_of(values, self._peers, self._round) for values in tensors)}

    def close(self) -> None:
        self._averager.shutdown()
        self._dht.shutdown()


# ---- ours


class Weights(nn.Module):
    """Layers of so many parameters, with no computation in them. The product's `Net` asks a model of transformers for
    its configuration and its output matrix."""

    config = PreTrainedConfig()

    def __init__(self, sizes: list[int]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Weight(size) for size in sizes)

    def get_output_embeddings(self) -> nn.Module:
        return self.layers[-1]


class Weight(nn.Module):
    """One layer."""

    bias = None

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))


class Ours:
    """The product's trainer and link; what it learns in the inner steps is made up."""

    def __init__(self, number: int, met: Words, options: Words) -> None:
        logging.basicConfig(level=logging.WARNING)
        self.met: Words = {}
        self._number, self._round = number, 0
        self._spec = parse(options["spec"])
        self._folder = Path(options["folder"]) / f"peer-{number}"
        me = Identity.load_or_create(self._folder / "identity.key").peer_id
        self._trainer = make_trainer(self._spec, me, self._folder, options["layers"])
        settings = PeerSettings(name=f"peer-{number}", listen=(LOOPBACK,))
        self._inbox: Queue[AnyToTrainer | Exception] = Queue()
        self._link = LinkProcess(options["invite"], self._folder, settings, self._inbox.put, self._inbox.put)
        self._in_step, self._is_known = False, False
        self._anchor: bytes = b""
        self._commit: BlockCommitted | None = None

    def complete(self) -> None:
        """Meet the others and stand at the first anchor."""
        self._hear_until(lambda: self._is_known)
        self._link.send(Hello(self._trainer.layer_sizes, self._trainer.anchor.state_digest(), b""))
        self._hear_until(lambda: self._in_step)

    def prepare(self) -> None:
        """What the inner steps of a round would have done."""
        self._round += 1
        trainer = self._trainer
        trainer.begin_round(self._members)
        backend = trainer._backend
        vars(backend)["step"] = MadeUp(backend._model, pattern(self._number, self._round)).step
        step(trainer)
        self._hear_until(lambda: self._in_step)

    def round(self) -> Words:
        """Freeze, agree, apply, as `peer.session` has it."""
        watch, self._commit = Watch(self._link), None
        trainer, link = self._trainer, self._link
        submit(trainer, self._anchor)
        link.send(OfferContribution(self._anchor))
        watch.lap("freeze")
        commit = self._hear_commit()
        watch.lap("agree")
        update = Block.from_bytes(commit.block).update
        trainer.apply(update, partial(load_object, link.directory))
        watch.lap("apply")
        self._anchor, self._members = commit.anchor, update.staying
        state = trainer.anchor.state_digest()
        link.send(StandsAt(commit.anchor, state))
        watch.lap("digest")
        if update.parts.count(VOID) or len(update.members) < self._spec.run.founders:
            raise Failed(f"{update.parts.count(VOID)} void parts, {len(update.members)} members")
        return {
            "phases": watch.laps,
            "sent": commit.bytes_sent,
            "received": commit.bytes_received,
            "state": state.hex(),
        }

    def check(self) -> Words:
        """A round that was not agreed to the bit has failed already."""
        return {}

    def close(self) -> None:
        self._link.kill()

    def _hear_commit(self) -> BlockCommitted:
        self._hear_until(lambda: self._commit is not None)
        assert self._commit is not None
        return self._commit

    def _hear_until(self, reached: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not reached():
            try:
                message = self._inbox.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                raise Failed("the others did not come") from None
            if isinstance(message, Exception):
                raise message
            self._take(message)

    def _take(self, message: AnyToTrainer) -> None:
        match message:
            case SpecText():
                self._is_known = True
            case BeginAt(anchor=anchor, members=members):
                self._anchor, self._members = anchor, members
            case BlockCommitted():
                self._commit = message
            case ResumeAt(anchor=anchor):
                self._trainer.resume(anchor)
                self._link.send(StandsAt(anchor, self._trainer.anchor.state_digest()))
            case InStep(here=here):
                self._in_step = here


def make_trainer(spec: RunSpec, me: str, folder: Path, sizes: list[int]) -> Any:
    """The product's trainer of a model that has parameters and nothing else, on next to no data."""
    from peer.training.train import engine
    from peer.training.train import trainer as trainers

    vars(engine)["build"] = lambda spec: Weights(sizes)
    trainer = trainers.LocalTrainer(spec, me, folder / "contributions", torch.device("cpu"), data_path=spec.data.path)
    for held in (*trainer.anchor.momentum, *trainer._backend.vectors.residual):
        held.fill_(0)  # else the kernel gives their pages when they are first used
    return trainer


@dataclass(frozen=True)
class MadeUp:
    """In place of the inner loop: every step moves all layers by a pattern."""

    model: nn.Module
    moved: Tensor

    @torch.no_grad()
    def step(self, round: int, position: float, stop: Any) -> InnerStep:
        """As `peer.training.train.backend.SingleDevice`."""
        for layer in self.model.parameters():
            for start in range(0, layer.numel(), PATTERN):
                part = layer[start : start + PATTERN]
                part.sub_(self.moved[: part.numel()])
        return InnerStep(loss=0.0, tokens=TOKENS, learning_rate=0.0)


class Watch:
    """Wall and processor time of the steps of a round: of this process, of its link, of the link's daemon."""

    def __init__(self, link: LinkProcess) -> None:
        import psutil

        process = psutil.Process(link._process.pid)
        (daemon,) = process.children()
        self._others = {"link": process, "daemon": daemon}
        self.laps: dict[str, dict[str, float]] = {}
        self._before = self._now()

    def lap(self, name: str) -> None:
        """What went on since the last one was of this step."""
        now, before = self._now(), self._before
        self.laps[name] = {key: round(now[key] - before[key], 4) for key in now}
        self._before = now

    def _now(self) -> dict[str, float]:
        times = {name: process.cpu_times() for name, process in self._others.items()}
        return {"wall": time.monotonic(), "trainer": time.process_time()} | {
            name: one.user + one.system for name, one in times.items()
        }
