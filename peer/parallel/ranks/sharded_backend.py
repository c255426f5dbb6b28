"""The lead of several ranks: one model and one identity, whatever the number of devices.

The lead decides everything that must be common, once, and tells the ranks: which sequences each rank reads, when a step
ends, the size of a micro-batch, what happens to which layer. It computes nothing itself and touches no device. θ,
momentum, residual and start lie in memory that it shares with the ranks; so do copies of what inner steps change, when
a checkpoint or the ranks' successors need them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dht.errors import MemoryFull, Unreachable
from peer.consensus.codec.codec import Codec
from peer.consensus.codec.state_digest import FLOAT32_BYTES
from peer.consensus.protocol.layout import cut
from peer.node.host.processes import available_bytes
from peer.parallel.fsdp.rank_messages import (
    Backward,
    BeginVersion,
    Command,
    CopyLayer,
    FinishStep,
    LoadLayer,
    MeasureLoss,
    Moment,
    RankAnswer,
    RankSetup,
    StandAtAnchor,
    StandBack,
)
from peer.parallel.fsdp.shared_parameters import Arena
from peer.parallel.ranks.rank_group import ANSWER_S, NoRoomInRank, RankGroup
from peer.parallel.ranks.sharded_kernels import ShardedKernels
from peer.parallel.ranks.sharded_layerwise import ShardedLayerwise
from peer.planning.plan.sharding_cost import deal
from peer.planning.plan.sharding_strategy import ShardingStrategy
from peer.schema.spec import RunSpec, dump
from peer.training.checkpoint.capture import Capture
from peer.training.checkpoint.checkpoint import generator_states, set_generator_states
from peer.training.data.chat.token_flags import predicted_tokens, step_scale
from peer.training.model.build import build, build_meta
from peer.training.model.flat_parameters import FlatParameters, Layer
from peer.training.outer.kernels import TorchKernels
from peer.training.outer.layer_tensors import LayerTensors
from peer.training.outer.outer_state import OuterState
from peer.training.train.autotune_result import Tuned
from peer.training.train.backend import SEQUENCES, Stopped
from peer.training.train.engine import Engine, MakeEngine
from peer.training.train.inner_loop import InnerStep, MicroBatch, Sequences, StepReader
from peer.training.train.optimizers import NO_STATE, learning_rate
from peer.training.train.round_vectors import MEMORY_SHARE, Place, VectorSlots

CPU = torch.device("cpu")


def sharded(
    spec: RunSpec, options: RankOptions, folder: Path, fit: Tuned | None = None,
    on_halved: Callable[[int], None] = lambda sequences: None,
) -> MakeEngine:  # fmt: skip
    """A trainer's engine on the devices of `options`; `folder` holds what does not fit in memory."""

    def make(batches: Sequences) -> Engine:
        micro = MicroBatch(fit.sequences if fit else spec.inner.sequences, on_halved)
        backend, codec = ShardedBackend(spec, batches, options, micro, folder), Codec(spec.codec.wire)
        copies = options.strategy.ranks // options.strategy.shares
        told = ShardedKernels(backend.ask_round, backend.payload, codec, copies=copies)
        here = TorchKernels(codec)  # for copies in the arena, while the ranks have left their devices to others
        beside = None if spec.round.overlap == "none" else ShardedLayerwise(backend)
        return Engine(backend=backend, kernels=lambda: here if backend.is_offloaded else told, beside=beside)

    return make


@dataclass(frozen=True, kw_only=True)
class RankOptions:
    """The layout of one peer's ranks."""

    devices: tuple[str, ...]
    strategy: ShardingStrategy
    threads: int = 1
    """The number of threads per rank."""
    speeds: tuple[float, ...] = ()
    """Relative speeds by rank; empty: all alike."""
    most: tuple[int, ...] = ()
    """The sequences of a micro-batch that fit on each rank; empty: not known."""


class ShardedBackend:
    """Implements `peer.training.train.backend.Backend` on ranks, each a process with its own device."""

    def __init__(
        self, spec: RunSpec, batches: Sequences, options: RankOptions, micro: MicroBatch, folder: Path
    ) -> None:
        """`folder` is the peer's, and holds what does not fit in memory. Raises RankLost and MemoryFull; then
        nothing of it is left."""
        self._spec, self._options, self.micro, self._folder = spec, options, micro, folder
        self._reader = StepReader(batches)
        self._flat = FlatParameters(build_meta(spec))
        self.layers: tuple[Layer, ...] = self._flat.layers
        sizes = tuple(layer.size for layer in self.layers)
        self.vector_slots = _slots_for(sum(sizes))
        payload_bytes = _payload_bytes(sizes, spec)
        self._arena = arena = Arena.create(
            sizes, payload_bytes, folder if self.vector_slots.outer is Place.FILE else None
        )
        FlatParameters(first := build(spec)).into(arena.theta)
        del first
        self.anchor = OuterState(arena.theta, arena.momentum, 0, {})
        self._layers = [arena.layer(number, layer.start) for number, layer in enumerate(self.layers)]
        self.capture: Capture | None = None
        self._memory: dict[int, tuple[Moment, ...]] = {}
        """The optimizer state in the arena, by layer."""
        self.waited_s = 0.0
        """Seconds that inner steps have waited for layers since the newest version began."""
        self.peak_bytes: tuple[int, ...] = ()
        """The peak memory of the newest inner step on the device of each rank; 0 if it is not counted."""
        self._has_ended = threading.Event()
        """Set while no version is being made during inner steps."""
        self._has_ended.set()
        self._group: RankGroup | None = None
        try:
            self._start(begins=True)
        except BaseException:
            self._arena.close()
            raise

    def lay_out(self, options: RankOptions) -> None:
        """Replace the ranks by others, which begin at θ: the changes of inner steps are lost. This is for a dry run,
        and saves building the model and its arena again. Raises RankLost and MemoryFull; then there are no ranks."""
        if self._group is not None:
            self._group.stop()
            self._group = None
        self._options = options
        self._start(begins=True)

    def deal_by(self, speeds: tuple[float, ...], most: tuple[int, ...]) -> None:
        """From now on divide micro-batches among the ranks by these values, as in RankOptions."""
        self._options = replace(self._options, speeds=speeds, most=most)

    def counts(self, sequences: int) -> tuple[int, ...]:
        """The number of sequences of a micro-batch that each rank gets. Raises BadInput if they do not fit."""
        options, ranks = self._options, len(self._options.devices)
        return deal(sequences, options.speeds or (1.0,) * ranks, options.most or (sequences,) * ranks)

    def _start(self, *, begins: bool) -> None:
        """Start the ranks. Raises RankLost and MemoryFull."""
        options, strategy = self._options, self._options.strategy
        setups = [
            RankSetup(
                spec=dump(self._spec), rank=rank, ranks=strategy.ranks, device=device, sharding=strategy.kind,
                group=strategy.group, offloads=strategy.offloads, rendezvous="", sizes=self._arena.layout.sizes,
                payload_bytes=self._arena.layout.payload_bytes, threads=options.threads,
                begins=begins,
            )
            for rank, device in enumerate(options.devices)
        ]  # fmt: skip
        with _raising_memory_full("its share of the model"):
            self._group = RankGroup(setups, self._arena.file, self._folder)

    @property
    def group(self) -> RankGroup:
        assert self._group is not None, "the ranks have left their devices"
        return self._group

    @property
    def payload(self) -> Tensor:
        """Encoded parts on their way to the ranks and back, uint8."""
        return self._arena.payload

    def ask_round(self, command: Command) -> list[RankAnswer]:
        """Give all ranks the same work of a round."""
        return self.group.round(command)

    def begin_version(self) -> int | None:
        """From now on inner steps wait for each layer until it is published at the returned version.

        None if there are no ranks that could wait.
        """
        self.waited_s = 0.0
        if self._group is None:
            return None
        self._has_ended.clear()
        versions = {answer.version for answer in self.group.step(BeginVersion())}
        (version,) = versions
        return version

    def end_version(self) -> None:
        """All layers of the newest version are published."""
        self._has_ended.set()

    def layer(self, number: int) -> LayerTensors:
        return self._layers[number]

    # ---- inner steps ----

    def step(self, round: int, position: float, stop: Callable[[], bool] = lambda: False) -> InnerStep:
        """One inner step; see `peer.training.train.backend.SingleDevice.step`. Either all ranks make it, or none."""
        rate, seed = learning_rate(self._spec, round, position), int(torch.randint(1 << 62, ()))
        while (made := self._attempt(rate, seed, stop)) is None:
            self._make_smaller()
        loss, taken = made
        tokens = sum(map(len, taken)) * self._spec.model.context
        return InnerStep(loss=loss, tokens=tokens, learning_rate=rate, predicted=sum(map(predicted_tokens, taken)))

    def _attempt(self, rate: float, seed: int, stop: Callable[[], bool]) -> tuple[float, list[Tensor]] | None:
        """A step: its loss, and its sequences; None if a micro-batch did not fit on a rank.

        In that case parameters and optimizers are unchanged, and the sequences read for it are read again next.
        """
        table, taken, loss = self._spec.inner, list[Tensor](), 0.0
        whole, done = table.sequences * table.accumulation, 0
        try:
            while done < whole and not (done and stop()):
                taken.append(self._reader.next(min(self.micro.sequences, whole - done)))
                before, done = done, done + len(taken[-1])
                shares = self._shares(taken[-1], whole, None if before else seed, is_last=done == whole)
                loss += sum(answer.value for answer in self.group.step(*shares))
            if done < whole:  # it was asked to stop: gradients are added up behind a row that does not count
                self.group.step(*self._shares(taken[-1][:0], whole, None, is_last=True, idle_BT=taken[-1][:1]))
        except NoRoomInRank:
            self._reader.put_back(taken)
            return None
        except Unreachable:
            self._reader.put_back(taken)
            raise
        self._about_to_change_inner()
        scale = step_scale(taken, whole)
        self._finish_step(FinishStep(learning_rate=rate, scale=scale))
        return loss * scale, taken

    def _finish_step(self, command: FinishStep) -> None:
        """Raises RankLost if a rank has too little memory for the end of a step that others have made: then they no
        longer agree."""
        try:
            answers = self.group.step(command)
        except NoRoomInRank as error:
            raise self.group.give_up(error.rank, f"had no room for the end of a step: {error}") from error
        self.waited_s = max(answer.waited_s for answer in answers)
        self.peak_bytes = tuple(answer.peak_bytes for answer in answers)
        for rank, answer in enumerate(answers):
            if not answer.value:
                raise self.group.give_up(rank, "had no room for its optimizer's step, which others have made")

    def _about_to_change_inner(self) -> None:
        """If a checkpoint reads the memory that inner steps change, and not a copy, wait until it has been read."""
        if self.capture is not None:
            self.capture.before_step()

    def _shares(
        self, tokens_BT: Tensor, whole: int, seed: int | None, *, is_last: bool, idle_BT: Tensor | None = None
    ) -> list[Backward]:
        """What each rank reads of a micro-batch. A rank that gets no row computes one that does not count, so that
        it gathers together with the others."""
        pieces, idle_BT = self._dealt(tokens_BT), tokens_BT[:1] if idle_BT is None else idle_BT
        return [
            Backward(
                tokens=_octets(rows_BT if len(rows_BT) else idle_BT), rows=max(1, len(rows_BT)),
                scale=len(rows_BT) / whole, seed=seed, is_last=is_last,
            )
            for rows_BT in pieces
        ]  # fmt: skip

    def _dealt(self, tokens_BT: Tensor) -> list[Tensor]:
        """The rows of each rank, in order."""
        return list(torch.split(tokens_BT, list(self.counts(len(tokens_BT)))))

    def _make_smaller(self) -> None:
        """Start again with ranks that are in step, and half the micro-batch. Raises MemoryFull; then the ranks are
        in step, too, or there are none and everything is in main memory."""
        self._leave()
        is_least = max(self.counts(self.micro.sequences)) == 1  # a rank that gets nothing computes a row as well
        if not is_least:
            self.micro.halve()
        self._come_back()
        if is_least:
            raise MemoryFull("the memory of a device has no room for even one sequence")

    @property
    def measures_in(self) -> str:
        return "float32"

    def loss(self, tokens_BT: Tensor, stop: Callable[[], bool]) -> float:
        while (found := self._measured(tokens_BT, stop)) is None:
            self._make_smaller()
        return found

    def continued(
        self, beginnings: Sequence[Sequence[int]], tokens: int, end: int, stop: Callable[[], bool]
    ) -> Sequence[Sequence[int]]:  # fmt: skip
        return ()  # it has a part of the model

    def _measured(self, tokens_BT: Tensor, stop: Callable[[], bool]) -> float | None:
        """The loss; None if the memory of a rank did not suffice: its parameters are unchanged, on some ranks put
        aside. Raises Stopped."""
        try:
            self._about_to_change_inner()
            self.group.step(StandAtAnchor())
            total = self._total(torch.split(tokens_BT, min(SEQUENCES, self.micro.sequences)), stop)
            self.group.step(StandBack())
        except NoRoomInRank:
            return None
        if total is None:
            raise Stopped
        return total / predicted_tokens(tokens_BT)

    def _total(self, pieces: Sequence[Tensor], stop: Callable[[], bool]) -> float | None:
        """The sum in nats; None as soon as `stop` returns True."""
        total = 0.0
        for piece_BT in pieces:
            total += self._summed(piece_BT)
            if stop():
                return None
        return total

    def _summed(self, tokens_BT: Tensor) -> float:
        commands = [
            MeasureLoss(
                tokens=_octets(rows_BT if len(rows_BT) else tokens_BT[:1]), rows=max(1, len(rows_BT)),
                counts=len(rows_BT) > 0,
            )
            for rows_BT in self._dealt(tokens_BT)
        ]  # fmt: skip
        return sum(answer.value for answer in self.group.step(*commands))

    # ---- copies of what inner steps change ----

    def keep_inner(self) -> bool:
        if self._group is None:
            return False  # what lies in the arena is no copy
        is_copy = not self._options.strategy.uses_arena
        if is_copy and self.capture is not None:
            self.capture.before_copies_change()
        for number in range(len(self.layers)):
            self._memory[number] = self._group.round(CopyLayer(layer=number))[0].memory
        return is_copy

    def optimizer_of(self, number: int) -> dict[str, Tensor]:
        return {moment.name: self._value(number, moment) for moment in self._memory[number]}

    def _value(self, number: int, moment: Moment) -> Tensor:
        """The value in the arena."""
        if not moment.slot:
            return torch.empty(0) if moment.value is None else torch.tensor(moment.value)
        position = int(moment.name.split(".")[1])
        vector: Tensor = getattr(self._arena, moment.slot)[number]
        return vector[self._flat.layer_slices(number)[position]].view(self._flat.members[number][position].shape)

    def load_optimizer_of(self, number: int, state: Mapping[str, Tensor]) -> None:
        memory = _named(state)
        for moment in memory:
            if moment.slot:
                self._value(number, moment).copy_(state[moment.name])
        self._memory[number] = memory
        self._have_loaded(number)

    def _have_loaded(self, number: int) -> None:
        with _raising_memory_full("its optimizers"):
            self.group.step(LoadLayer(layer=number, memory=self._memory[number]))

    def rest(self) -> dict[str, Tensor]:
        """The state of the generator that seeds those of the ranks in every step, and the sequences read for a step
        that did not fit."""
        return generator_states(CPU) | self._reader.state()

    def load_rest(self, tensors: Mapping[str, Tensor]) -> None:
        set_generator_states(tensors, CPU)
        self._reader.restore(tensors)

    # ---- on the devices, or not ----

    @property
    def can_leave(self) -> bool:
        return any(not device.startswith("cpu") for device in self._options.devices)

    @property
    def is_offloaded(self) -> bool:
        return self._group is None

    def offload(self) -> None:
        if self.can_leave:
            self._leave()

    def reload(self) -> bool:
        if self._group is None:
            try:
                self._come_back()
            except MemoryFull:
                return False
        return True

    def _leave(self) -> None:
        """Copy everything from the ranks to main memory, and end them."""
        if self._group is None:
            return
        # What is made beside inner steps goes on where a step has had no room: no rank is asked for half of it.
        self._has_ended.wait(ANSWER_S)
        self.keep_inner()
        self._group.stop()
        self._group = None

    def _come_back(self) -> None:
        """Start the ranks again. Raises RankLost, and MemoryFull; then everything is as before, in main memory only."""
        self._start(begins=False)
        try:
            for number in range(len(self.layers)):
                self._have_loaded(number)
        except MemoryFull:
            self.group.stop()
            self._group = None
            raise

    def abandon(self) -> None:
        """End the ranks at once: threads that wait for one of them get RankLost."""
        self._has_ended.set()
        if self._group is not None:
            self._group.end()

    def close(self) -> None:
        if self._group is not None:
            self._group.stop()
            self._group = None
        self._arena.close()


@contextmanager
def _raising_memory_full(what: str) -> Iterator[None]:
    try:
        yield
    except NoRoomInRank as error:
        raise MemoryFull(f"the memory of a device has no room for {what}: {error}") from error


def _octets(tokens_BT: Tensor) -> bytes:
    return tokens_BT.numpy().astype(np.int32).tobytes()


def _slots_for(parameters: int) -> VectorSlots:
    """Main memory, if half of what is available holds all four vectors and three copies; otherwise a file."""
    fits = MEMORY_SHARE * available_bytes() >= 7 * FLOAT32_BYTES * parameters
    place = Place.MEMORY if fits else Place.FILE
    return VectorSlots(outer=place, own=place)


def _payload_bytes(sizes: Sequence[int], spec: RunSpec) -> int:
    """The size for the layer with the largest encoded parts: a mean and a contribution for each part."""
    codec, taken = Codec(spec.codec.wire), [0] * len(sizes)
    for part in cut(sizes, spec.codec.part_elements):
        taken[part.layer] += codec.part_bytes(part.size) + codec.of_means.part_bytes(part.size)
    return max(taken)


def _named(state: Mapping[str, Tensor]) -> tuple[Moment, ...]:
    """A layer's optimizer state in a checkpoint, with its place in the arena."""
    slots: dict[str, int] = {}
    found = []
    for name, value in state.items():
        parameter, _, key = name.rpartition(".")
        if key == NO_STATE or key == "step":
            found.append(Moment(name=name, slot="", value=float(value) if value.numel() else None))
            continue
        found.append(Moment(name=name, slot=("first", "second")[slots.setdefault(parameter, 0)]))
        slots[parameter] += 1
    return tuple(found)
