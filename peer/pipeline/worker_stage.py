"""A worker's stage: it computes what comes, in the order in which its lead's step needs it, and decides nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from msgspec.structs import replace
from torch import Tensor

from peer.host.device import is_out_of_memory
from peer.pipeline.activation_codec import BadActivations
from peer.pipeline.flight_messages import (
    AnyFlight,
    AskNorm,
    Backward,
    BadFlight,
    Finished,
    FinishStep,
    Forward,
    GiveUpStep,
    NoRoom,
    NotThere,
    SquareNorm,
    Stand,
    decode_flight,
)
from peer.pipeline.stage import Stage, StagePlace
from peer.spec import RunSpec
from peer.train.backend import InnerStep, MicroBatch, Sequences

POLL_S = 0.05
SILENCE_S = 60.0
"""A step of which nothing has come for so long was given up by a lead that could not say so."""
NOTHING = InnerStep(loss=0.0, tokens=0, learning_rate=0.0)


class WorkerStage(Stage):
    """Implements `peer.train.backend.Backend` of its layers: an inner step is one of the lead's, served."""

    def __init__(
        self, spec: RunSpec, place: StagePlace, batches: Sequences, device: torch.device, folder: Path | None = None
    ) -> None:
        super().__init__(spec, place, batches, device, MicroBatch(1), folder)
        self._step_now = 0
        """The lead's number of the step in hand; 0: none."""
        self._over = 0
        """The newest step that is over: what still comes of it is dropped."""
        self._kept: dict[int, tuple[Forward, Tensor]] = {}
        """Flights in hand, with what entered here."""
        self._heard_at = 0.0
        self.passed_bytes = 0
        """Of hidden values and gradients that were sent on."""

    def step(self, round: int, position: float, stop: Callable[[], bool] = lambda: False) -> InnerStep:
        """Serve one step of the lead, from its first flight to its end. Of 0 tokens if `stop` says so before that."""
        while True:
            found = self._place.port.receive(POLL_S)
            if found is None:
                is_busy = self._step_now or self._local is not None
                if is_busy and time.monotonic() - self._heard_at > SILENCE_S:
                    self._forget()
                    self._stand_back()
                elif not is_busy and stop():
                    return NOTHING
                continue
            made = self._take(*found)
            if made is not None:
                return made

    def loss(self, tokens_BT: Tensor, stop: Callable[[], bool]) -> float:
        raise AssertionError("a lead measures")

    def _take(self, sender: str, frame: bytes) -> InnerStep | None:
        """The step that this has ended. What does not fit is dropped: the lead waits for an answer in vain."""
        try:
            message = decode_flight(frame)
        except BadFlight:
            return None
        lead = self._place.assignment.lead
        if message.epoch != self._place.assignment.epoch or message.step <= self._over:
            return None
        if isinstance(message, Forward):
            expected = self._place.before
        else:
            expected = lead if not isinstance(message, Backward) or self._place.is_last else self._place.behind
        if sender != expected:
            return None
        self._heard_at = time.monotonic()
        try:
            return self._serve(message)
        except BadActivations:
            return None
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
        self._forget()
        self._send(lead, NoRoom(epoch=message.epoch, step=message.step))
        return None

    def _serve(self, message: AnyFlight) -> InnerStep | None:
        lead, where = self._place.assignment.lead, {"epoch": message.epoch, "step": message.step}
        match message:
            case Forward() if message.round != self.anchor.round:
                self._send(lead, NotThere(**where, round=self.anchor.round))
            case Forward():
                if not message.measures:
                    self._begin(message.step)
                self._forward(message)
            case Backward() if message.number in self._kept:
                self._backward(message)
            case AskNorm():
                self._begin(message.step)
                self._send(lead, SquareNorm(**where, square=self._square_norm()))
            case FinishStep():
                return self._finish(message)
            case GiveUpStep():
                self._forget()
                self._over = message.step
            case Stand(where=there):
                self._forget()
                self._stand_at_anchor() if there == "anchor" else self._stand_back()
                self._send(lead, Finished(**where))
            case _:
                pass
        return None

    def _begin(self, step: int) -> None:
        if step != self._step_now:
            self._forget()
            self._step_now = step

    def _forget(self) -> None:
        """Nothing of the step in hand counts."""
        self._drop_gradients()
        self._kept.clear()
        self._step_now = 0

    def _forward(self, flight: Forward) -> None:
        where = {"epoch": flight.epoch, "step": flight.step, "number": flight.number}
        entering = self._entered(flight)
        if not self._place.is_last:
            with torch.no_grad():
                leaving = self._computed(entering)
            if not flight.measures:
                self._kept[flight.number] = flight, entering
            self._pass_on(self._place.behind, replace(flight, hidden=self._encoded(leaving)))
            return
        tokens_BT = tokens_of(flight).to(self._device)
        if flight.measures:
            with torch.no_grad():
                loss = self._summed_loss(self._computed(entering), tokens_BT[:, 1:])
            self._send(self._place.assignment.lead, Backward(**where, loss=loss.item(), gradient=b""))
            return
        leaf = entering.requires_grad_()
        loss = self._summed_loss(self._computed(leaf), tokens_BT[:, 1:]) / (flight.whole * flight.columns)
        torch.autograd.backward(loss)
        assert leaf.grad is not None
        self._pass_on(self._place.before, Backward(**where, loss=loss.item(), gradient=self._encoded(leaf.grad)))

    def _backward(self, message: Backward) -> None:
        flight, entering = self._kept.pop(message.number)
        leaf = entering.requires_grad_()
        leaving = self._computed(leaf)
        torch.autograd.backward(leaving, self._gradient_from(message, leaving))
        assert leaf.grad is not None
        self._pass_on(
            self._place.before,
            Backward(
                epoch=message.epoch, step=message.step, number=flight.number, loss=message.loss,
                gradient=self._encoded(leaf.grad),
            ),
        )  # fmt: skip

    def _pass_on(self, to: str, message: Forward | Backward) -> None:
        self.passed_bytes += len(message.hidden if isinstance(message, Forward) else message.gradient)
        self._send(to, message)

    def _finish(self, message: FinishStep) -> InnerStep | None:
        self._scale_gradients(message.scale)
        if not self._step(message.learning_rate):
            self._forget()
            self._send(self._place.assignment.lead, NoRoom(epoch=message.epoch, step=message.step))
            return None
        self._kept.clear()
        self._step_now, self._over = 0, message.step
        self._send(self._place.assignment.lead, Finished(epoch=message.epoch, step=message.step))
        return InnerStep(loss=message.loss, tokens=message.tokens, learning_rate=message.learning_rate)


def tokens_of(flight: Forward) -> Tensor:
    """(rows, columns + 1), int64. Raises BadActivations."""
    if len(flight.tokens) != 4 * flight.rows * (flight.columns + 1):
        raise BadActivations("tokens of another shape")
    return torch.from_numpy(np.frombuffer(flight.tokens, "<i4").astype(np.int64)).view(flight.rows, -1)
