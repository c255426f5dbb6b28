"""Inner steps of a private optimizer on this peer's own data, and the held-out loss."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from dht.errors import MemoryFull
from peer.consensus.codec.state_digest import FLOAT32_BYTES
from peer.node.host.device import free_bytes, is_out_of_memory
from peer.node.host.processes import available_bytes
from peer.schema.peak_memory import PLAIN, Rung
from peer.schema.spec import RunSpec
from peer.training.checkpoint.capture import Capture
from peer.training.checkpoint.checkpoint import generator_states, set_generator_states
from peer.training.data.chat.token_flags import predicted_tokens
from peer.training.model.compiled_blocks import compile_blocks, plain_blocks
from peer.training.model.continuation import continued
from peer.training.model.flat_parameters import FlatParameters, Layer, trained
from peer.training.model.footprint import size_of
from peer.training.model.net import Batch, Net, attend_without_looking, recompute_blocks
from peer.training.outer.copy_stream import upload
from peer.training.outer.layer_tensors import LayerTensors
from peer.training.outer.outer_state import OuterState
from peer.training.train.atomic import AtomicSteps
from peer.training.train.autotune_result import Tuned, room_for
from peer.training.train.inner_loop import InnerLoop, InnerStep, MicroBatch, Sequences, StepReader, WholeModel
from peer.training.train.layer_hooks import PROBE_TOKENS, Enter, LayerGates
from peer.training.train.offload import Offload, empty_device_cache
from peer.training.train.optimizers import learning_rate, make_optimizers
from peer.training.train.round_vectors import RoundVectors, VectorSlots, choose_slots


class Backend(Protocol):
    """Where a model and its vectors lie, and how an inner step is computed. Nothing else touches the model."""

    @property
    def layers(self) -> tuple[Layer, ...]: ...

    @property
    def anchor(self) -> OuterState: ...

    @property
    def is_offloaded(self) -> bool: ...

    @property
    def vector_slots(self) -> VectorSlots:
        """Where a round's vectors lie; decided once."""

    def layer(self, number: int) -> LayerTensors:
        """The tensors of one layer where they lie, to be looked at or changed."""

    def step(self, round: int, position: float, stop: Callable[[], bool]) -> InnerStep:
        """One inner step at the learning rate of this position in the round, made completely or not at all. It has
        fewer micro-batches once `stop` says so after one of them. Raises MemoryFull."""

    def loss(self, tokens_BT: Tensor, stop: Callable[[], bool]) -> float:
        """Mean loss of the anchor in nats per token. Raises Stopped once `stop` says so, and MemoryFull."""

    @property
    def measures_in(self) -> str:
        """The precision of `loss`."""

    def continued(
        self, beginnings: Sequence[Sequence[int]], tokens: int, end: int, stop: Callable[[], bool]
    ) -> Sequence[Sequence[int]]:  # fmt: skip
        """Up to `tokens` tokens after each of these texts, until `end`, the likeliest by the anchor; empty if the
        model is not in one place. Raises Stopped once `stop` says so, and MemoryFull."""

    capture: Capture | None
    """The checkpoint that is being written: it is told before anything changes here that it may not have read."""

    def keep_inner(self) -> bool:
        """Called before parameters and `optimizer_of` are read for a checkpoint: whether they are copies, which no
        step changes."""

    def optimizer_of(self, number: int) -> dict[str, Tensor]:
        """The optimizer state of one layer, by stable names."""

    def load_optimizer_of(self, number: int, state: Mapping[str, Tensor]) -> None:
        """The inverse of `optimizer_of`, also before the first step; the layer's parameters are there already.

        AssertionError for other names.
        """

    def rest(self) -> dict[str, Tensor]:
        """A copy of what belongs to no layer."""

    def load_rest(self, tensors: Mapping[str, Tensor]) -> None:
        """The inverse of `rest`."""

    @property
    def can_leave(self) -> bool:
        """Whether there is a device that `offload` gives to others."""

    def offload(self) -> None:
        """Give a device's memory to others until `reload`; the bits stay as they are."""

    def reload(self) -> bool:
        """Whether all is on the device (again); False while others use its memory."""

    def close(self) -> None:
        """Release everything that does not belong to this process."""


class DeviceBackend(ABC):
    """A model, or some of its layers, on one device with its optimizers, whose state lasts across rounds."""

    def __init__(
        self, model: nn.Module, spec: RunSpec, batches: Sequences, device: torch.device,
        micro: MicroBatch | None = None, fit: Tuned | None = None, folder: Path | None = None, rung: Rung | None = None,
    ) -> None:  # fmt: skip
        """`folder` has room for what no memory has. `rung` is that of `fit` if nobody says another."""
        self._rung = rung or (PLAIN if fit is None else fit.rung)
        self._folder = folder
        self._model, self._spec, self._device = model, spec, device
        self._reader, self._fit = StepReader(batches), fit
        self._optimizers = make_optimizers(model, spec, device, self._rung)
        self._parameters = trained(model)
        self._steps = AtomicSteps(self._optimizers, device)
        self.residence = Offload(model, self._optimizers, device, self._beside, self._have_moved)
        self._bfloat16 = uses_bfloat16(spec, device)
        self.micro = micro or MicroBatch(spec.inner.sequences)
        self._loop = InnerLoop(self._reader, self.micro, self._parameters, device, self._gradients, self._step)
        self.capture: Capture | None = None

    @cached_property
    def vectors(self) -> RoundVectors:
        """Made at the first call, at the parameters of that moment: a loop that only trains needs none."""
        return RoundVectors.at(FlatParameters(self._model), self.vector_slots, self._device, self._folder)

    @cached_property
    def vector_slots(self) -> VectorSlots:
        """Where the vectors lie, decided once."""
        parameters = sum(parameter.numel() for parameter in self._parameters)
        spare_bytes = 0
        if self._device.type != "cpu":
            spare_bytes = free_bytes(self._device) - training_bytes(
                self._spec, self._fit, self.micro.sequences, bfloat16=self._bfloat16
            )
        return choose_slots(parameters, self._device, spare_bytes, available_bytes())

    def _beside(self) -> Iterator[Tensor]:
        """Those of the vectors that lie on the device when they are not offloaded."""
        return self.vectors.tensors() if "vectors" in vars(self) else iter(())

    def _have_moved(self) -> None:
        if "vectors" in vars(self):
            self.vectors.have_moved()

    @property
    def layers(self) -> tuple[Layer, ...]:
        return self.vectors.flat.layers

    @property
    def anchor(self) -> OuterState:
        return self.vectors.anchor

    def layer(self, number: int) -> LayerTensors:
        return self.vectors.layer(number)

    def step(self, round: int, position: float, stop: Callable[[], bool] = lambda: False) -> InnerStep:
        """One inner step, at `position` (from 0) of round `round`, as `InnerLoop.step` makes it and fails."""
        assert not self.residence.is_aside, "it is on its device again before it trains"
        rate = learning_rate(self._spec, round, position)
        loss, sequences, predicted = self._loop.step(rate, stop)
        tokens = sequences * self._spec.model.context
        return InnerStep(loss=loss, tokens=tokens, learning_rate=rate, predicted=predicted)

    def newest_loss(self) -> float | None:
        return self._loop.newest_loss()

    @abstractmethod
    def _gradients(self, taken: list[Tensor], stop: Callable[[], bool]) -> Tensor:
        """As `peer.training.train.inner_loop.Gradients`."""

    @abstractmethod
    def gates(self, enter: Enter) -> LayerGates:
        """Hooks that call `enter` before a forward pass reads layers."""

    def _before_step(self) -> None:
        """Called before parameters change, or others take their place."""
        if self.capture is not None:
            self.capture.before_step()

    def _step(self, rate: float) -> bool:
        """Whether the optimizers' step was made; False without memory for it, and then nothing has changed."""
        self._before_step()
        return self._steps.step(rate)

    def keep_inner(self) -> bool:
        return False

    def optimizer_of(self, number: int) -> dict[str, Tensor]:
        return self._optimizers.state_of(self.vectors.flat.members[number])

    def load_optimizer_of(self, number: int, state: Mapping[str, Tensor]) -> None:
        self._optimizers.load_state_of(self.vectors.flat.members[number], state)

    def rest(self) -> dict[str, Tensor]:
        """The states of random generators, and sequences of a step without memory, which nobody else reads."""
        return generator_states(self._device) | self._reader.state()

    def load_rest(self, tensors: Mapping[str, Tensor]) -> None:
        set_generator_states(tensors, self._device)
        self._reader.restore(tensors)

    @property
    def is_offloaded(self) -> bool:
        return self.residence.is_aside

    @property
    def can_leave(self) -> bool:
        return self._device.type == "cuda"

    def close(self) -> None:
        """All memory belongs to this process."""
        return

    def offload(self) -> None:
        if self._device.type != "cuda":
            return
        if self.capture is not None:
            self.capture.before_leaving()
        self.vectors.about_to_leave()
        self.residence.leave()

    def reload(self) -> bool:
        """The micro-batch is fitted to the memory that is free now."""
        if not self.residence.is_aside:
            return True
        has_room = True
        try:
            self.residence.come_back()
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            has_room = False
        if not has_room:
            empty_device_cache(self._device)  # of what had found room
            return False
        if self._fit is not None and self._device.type == "cuda":
            room_bytes = free_bytes(self._device) + torch.cuda.memory_allocated(self._device)
            room_bytes -= sum(vector.nbytes for vector in self._beside() if vector.device.type == "cuda")
            self.micro.sequences = room_for(self._fit, room_bytes)
        return True


class SingleDevice(DeviceBackend):
    """A whole model: inner steps, the held-out loss, and texts that are continued."""

    def __init__(
        self, model: nn.Module, spec: RunSpec, batches: Sequences, device: torch.device,
        micro: MicroBatch | None = None, fit: Tuned | None = None, folder: Path | None = None, rung: Rung | None = None,
    ) -> None:  # fmt: skip
        super().__init__(model, spec, batches, device, micro, fit, folder, rung)
        attend_without_looking(model, spec.model.context)
        if self._rung.recomputes:
            recompute_blocks(model)
        if self._rung.compiled:
            compile_blocks(model)
        self._net = Net(model)
        self._whole = WholeModel(
            self._net, spec, self._reader, self.micro, self._parameters, device, bfloat16=self._bfloat16,
            recomputes=self._rung.recomputes,
        )  # fmt: skip

    def _gradients(self, taken: list[Tensor], stop: Callable[[], bool]) -> Tensor:
        return self._whole.gradients(taken, stop)

    def gates(self, enter: Enter) -> LayerGates:
        probe_BT = torch.zeros((1, PROBE_TOKENS + 1), dtype=torch.int64)
        batch = Batch.of(probe_BT).moved(lambda values: upload(values, self._device))
        return LayerGates(self._model, self.vectors.flat, self._device, enter, lambda: self._net(batch), self._net)

    @property
    def measures_in(self) -> str:
        return "float32"

    def loss(self, tokens_BT: Tensor, stop: Callable[[], bool]) -> float:
        """As many sequences at a time as in training: they fit, and `stop` need not wait for more."""
        with self._at_anchor():
            sequences = min(SEQUENCES, self.micro.sequences)
            return held_out_loss(self._net, tokens_BT, self._device, sequences, stop)

    def continued(
        self, beginnings: Sequence[Sequence[int]], tokens: int, end: int, stop: Callable[[], bool]
    ) -> Sequence[Sequence[int]]:  # fmt: skip
        with self._at_anchor():
            return [self._continued(ids, tokens, end, stop) for ids in beginnings]

    def _continued(self, ids: Sequence[int], tokens: int, end: int, stop: Callable[[], bool]) -> Sequence[int]:
        try:
            found = continued(
                self._model, ids, tokens=tokens, context=self._spec.model.context, end=end, stop=stop
            )  # fmt: skip
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise MemoryFull(f"the memory of {self._device} has no room to continue a text") from error
        if stop():
            raise Stopped
        return found

    @contextlib.contextmanager
    def _at_anchor(self) -> Iterator[None]:
        self._before_step()  # the anchor takes the place of the local parameters
        local = self.vectors.stand_at_anchor()
        try:
            with plain_blocks(self._model):
                yield
        finally:
            self.vectors.stand_back(local)


SEQUENCES = 32
"""At a time, where there is room for them."""


class Stopped(Exception):
    """The caller no longer wants the loss."""


@torch.no_grad()
def held_out_loss(
    model: nn.Module, tokens_BT: Tensor, device: torch.device, sequences: int = SEQUENCES,
    stop: Callable[[], bool] = lambda: False,
) -> float:  # fmt: skip
    """Mean loss of a model, or a `Net`, on `tokens_BT` in main memory, in nats per predicted token, in float32.

    It computes `sequences` at a time, or as many as fit. Raises Stopped once `stop` says so after some of them,
    MemoryFull if not even one fits.
    """
    net = model if isinstance(model, Net) else Net(model)
    was_training = model.training
    net.eval()
    total, done = 0.0, 0
    try:
        while done < len(tokens_BT):
            loss = _summed(net, tokens_BT[done : done + sequences], device)
            if loss is None:
                sequences = _halved(sequences, device)
                continue
            total, done = total + loss, done + sequences
            if stop():
                raise Stopped
    finally:
        net.train(was_training)
    return total / predicted_tokens(tokens_BT)


def _summed(net: Net, tokens_BT: Tensor, device: torch.device) -> float | None:
    """In nats; None without memory for it."""
    try:
        summed, _ = net(Batch.of(tokens_BT).moved(lambda values: upload(values, device)))
        return float(summed.item())
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
    return None


def _halved(sequences: int, device: torch.device) -> int:
    empty_device_cache(device)
    if sequences == 1:
        raise MemoryFull(f"the memory of {device} has no room to measure even one sequence")
    return (sequences + 1) // 2


def training_bytes(spec: RunSpec, fit: Tuned | None, sequences: int, *, bfloat16: bool | None = None) -> int:
    """The memory that training will take on a device that already holds the parameters."""
    size = size_of(spec, sequences, bfloat16=bfloat16, rung=PLAIN if fit is None else fit.rung)
    taken = size.training_bytes + size.activation_bytes
    if fit is not None and fit.sequence_bytes:
        taken = fit.fixed_bytes + sequences * fit.sequence_bytes
    return taken - FLOAT32_BYTES * size.parameters


def use_attention(model: nn.Module, fit: Tuned | None) -> None:
    """Use the attention kernel that a dry run found fastest."""
    if fit is not None and fit.attention:
        choose: Callable[[str], None] = model.set_attn_implementation  # type: ignore[assignment]
        choose(fit.attention)


def uses_bfloat16(spec: RunSpec, device: torch.device) -> bool:
    """Whether inner steps run under bfloat16 autocast on `device`."""
    if spec.inner.precision == "auto":
        # Where it is but emulated, float32 is faster, and what float16 would need is a scale of its gradients.
        return device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return spec.inner.precision == "bfloat16"
