"""What every stage of a cluster does: some layers on one device, forward, and backward with recomputation."""

from __future__ import annotations

import contextlib
import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from peer.node.host.device import free_bytes
from peer.node.host.processes import available_bytes
from peer.parallel.pipeline.activation_codec import (
    BadActivations,
    decode_activations,
    encode_activations,
    encoded_bytes,
)
from peer.parallel.pipeline.flight_check import ArrivalHistory
from peer.parallel.pipeline.flight_messages import AnyFlight, FlightBack, Forward, encode_flight
from peer.parallel.pipeline.flight_port import FlightPort
from peer.parallel.pipeline.stage_model import LastStage, build_stage, model_layers
from peer.parallel.pipeline.tied_matrix import TiedMatrix
from peer.schema.ipc import Assignment
from peer.schema.spec import RunSpec
from peer.training.data.chat.token_flags import IGNORED, labels
from peer.training.model.build import position_inputs
from peer.training.train.backend import DeviceBackend, training_bytes
from peer.training.train.inner_loop import MicroBatch, Sequences
from peer.training.train.layer_hooks import PROBE_TOKENS, Enter, LayerGates
from peer.training.train.offload import empty_device_cache
from peer.training.train.round_vectors import RoundVectors, VectorSlots, choose_slots


@dataclass(frozen=True, kw_only=True)
class StagePlace:
    """The place of this home in its cluster."""

    assignment: Assignment
    me: str
    port: FlightPort

    @property
    def wire(self) -> str:
        """The encoding of hidden values; one of `peer.schema.settings.ACTIVATIONS`."""
        return self.assignment.wire

    @property
    def held(self) -> range:
        holder = self.assignment.of(self.me)
        assert holder is not None, "an assignment without this home is for others"
        return holder.layers

    @property
    def number(self) -> int:
        """The number of this home's stage; for a spare, that of the stage that it could replace."""
        return next(number for number, holder in enumerate(self.assignment.stages) if holder.layers == self.held)

    @property
    def is_last(self) -> bool:
        return self.number == len(self.assignment.stages) - 1

    @property
    def before(self) -> str:
        """The home that sends flights here."""
        return self.assignment.stages[self.number - 1].peer

    @property
    def behind(self) -> str:
        """The home that gets flights from here."""
        return self.assignment.stages[self.number + 1].peer


class StageDevice(DeviceBackend):
    """Neighbouring layers of a model on one device."""

    def __init__(
        self, spec: RunSpec, place: StagePlace, batches: Sequences, device: torch.device, micro: MicroBatch,
        folder: Path | None = None,
    ) -> None:  # fmt: skip
        model, self._flat = build_stage(spec, place.held)
        super().__init__(model.to(device), spec, batches, device, micro, None, folder)
        self._place = place
        self._last = LastStage(model) if place.is_last else None
        self._width, self._vocabulary, self._has_dropout = model.width, model.vocabulary, model.has_dropout
        self._tied = None if (tied := model.tied) is None else TiedMatrix(tied, place.wire)
        self._histories: defaultdict[str, ArrivalHistory] = defaultdict(ArrivalHistory)
        """The history of what each neighbour sends."""
        self._step_now = 0
        """The lead's number of the present step."""
        self._local: Sequence[tuple[Tensor, Tensor]] | None = None
        """The local parameters, while the anchor's values are in their place."""

    @cached_property
    def vectors(self) -> RoundVectors:
        return RoundVectors.at(self._flat, self.vector_slots, self._device, self._folder)

    @cached_property
    def vector_slots(self) -> VectorSlots:
        parameters = self._flat.size
        spare_bytes = 0
        if self._device.type != "cpu":
            share = parameters / sum(layer.size for layer in model_layers(self._spec))
            taken = share * training_bytes(self._spec, None, self.micro.sequences)
            spare_bytes = free_bytes(self._device) - round(taken)
        return choose_slots(parameters, self._device, spare_bytes, available_bytes())

    def gates(self, enter: Enter) -> LayerGates:
        entering = torch.zeros((1, PROBE_TOKENS), dtype=torch.int64, device=self._device)
        if self._place.number:
            entering = torch.zeros((1, PROBE_TOKENS, self._width), device=self._device)
        unpredicted = torch.full((1, PROBE_TOKENS), IGNORED, device=self._device)

        def probe() -> object:
            return self._model(entering) if self._last is None else self._last(entering, unpredicted)

        return LayerGates(self._model, self.vectors.flat, self._device, enter, probe, self._last)

    def reassign(self, assignment: Assignment) -> None:
        """Continue with other neighbours and the same layers, between two calls.

        Nothing of the present step counts: its lead makes it again, with the same sequences.
        """
        place = replace(self._place, assignment=assignment)
        assert place.held == self._place.held, "a stage of other layers is built anew"
        self._place = place
        self._forget()

    def continued(
        self, beginnings: Sequence[Sequence[int]], tokens: int, end: int, stop: Callable[[], bool]
    ) -> Sequence[Sequence[int]]:  # fmt: skip
        return ()  # it has a part of the model

    # ---- a micro-batch ----

    @property
    def measures_in(self) -> str:
        """Whatever these homes train in; what goes from one to the next is rounded."""
        return "float32" if self._place.wire == "float32" else f"float32, {self._place.wire} between homes"

    def _computed(self, entering: Tensor, tokens_BT: Tensor, number: int, *, measures: bool = False) -> Tensor:
        """The hidden values of a flight with these tokens, in the present step. Repeated calls give the same values."""
        with self._autocast(measures), self._masks(number):
            leaving: Tensor = self._model(entering, **position_inputs(tokens_BT[:, :-1]))
        return leaving

    def _loss_of(self, entering: Tensor, tokens_BT: Tensor, number: int, *, measures: bool = False) -> Tensor:
        """Of the last stage: the loss of a flight in nats, summed over what is predicted."""
        assert self._last is not None
        with self._autocast(measures), self._masks(number):
            loss: Tensor = self._last(entering, labels(tokens_BT), **position_inputs(tokens_BT[:, :-1]))
        return loss

    def _autocast(self, measures: bool) -> contextlib.AbstractContextManager[object]:
        """A measurement is made in float32, as on one device."""
        is_narrow = self._bfloat16 and not measures
        return torch.autocast(self._device.type, torch.bfloat16) if is_narrow else contextlib.nullcontext()

    @contextlib.contextmanager
    def _masks(self, number: int) -> Iterator[None]:
        """Draw a flight's dropout masks from a fixed seed, since the backward pass repeats the forward pass."""
        if not (self._has_dropout and self._model.training):
            yield
            return
        name = f"dropout/{self._spec.run.seed}/{self._step_now}/{number}/{self._place.held.start}"
        seed = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big")
        with torch.random.fork_rng([self._device] if self._device.type == "cuda" else []):
            torch.manual_seed(seed)
            yield

    def _entered(self, flight: Forward) -> Tensor:
        """The hidden values that a flight brings. Raises BadActivations."""
        if flight.columns > self._spec.model.context:
            raise BadActivations(f"sequences of {flight.columns} tokens")
        shape = (flight.rows, flight.columns, self._width)
        return decode_activations(flight.hidden, shape, self._place.wire, self._device)

    def _gradient_from(self, message: FlightBack, leaving: Tensor) -> Tensor:
        """The gradient of what left this stage, in the same number format. Raises BadActivations."""
        decoded = decode_activations(message.gradient, tuple(leaving.shape), self._place.wire, self._device)
        return decoded.to(leaving.dtype)

    def _decoded_row(self, packed: bytes) -> Tensor:
        """Hidden values or gradients of any number of tokens, shape (tokens, width). Raises BadActivations."""
        tokens = len(packed) // encoded_bytes(self._width, self._place.wire)
        return decode_activations(packed, (tokens, self._width), self._place.wire, self._device)

    def _encoded(self, values: Tensor) -> bytes:
        return encode_activations(values, self._place.wire)

    def _send(self, to: str, message: AnyFlight) -> None:
        self._place.port.send(to, encode_flight(message))

    # ---- a step ----

    @torch.no_grad()
    def _square_norm(self) -> float:
        """The squared norm of all gradients, float64."""
        grads = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        if not grads:
            return 0.0
        norms = torch.stack([torch.linalg.vector_norm(grad.float()) for grad in grads])
        return float(norms.cpu().double().square().sum())

    @torch.no_grad()
    def _scale_gradients(self, scale: float) -> None:
        for parameter in self._parameters:
            if parameter.grad is not None:
                parameter.grad.mul_(scale)

    def _forget(self) -> None:
        """Drop everything of the present step."""
        for parameter in self._parameters:
            parameter.grad = None
        if self._tied is not None:
            self._tied.forget()

    def _return_memory(self) -> None:
        empty_device_cache(self._device)

    # ---- the anchor's values ----

    def _stand_at_anchor(self) -> None:
        if self.capture is not None:
            self.capture.before_step()  # the anchor takes the place of the local parameters
        if self._local is None:
            self._local = self.vectors.stand_at_anchor()
        self._model.eval()

    def _stand_back(self) -> None:
        if self._local is not None:
            self.vectors.stand_back(self._local)
            self._local = None
        self._model.train()
