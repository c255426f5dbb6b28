"""A worker's stage: it computes what arrives in the order that its lead's step needs, and decides nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import NamedTuple

import numpy as np
import torch
from msgspec.structs import replace
from torch import Tensor

from peer.node.host.device import is_out_of_memory
from peer.parallel.pipeline.activation_codec import BadActivations
from peer.parallel.pipeline.flight_messages import (
    Alive,
    AnyFlight,
    AskNorm,
    AskRows,
    AskShares,
    BadFlight,
    EndStep,
    Finished,
    FlightBack,
    Forward,
    Garbage,
    GiveUpStep,
    GradientRows,
    MatrixRows,
    NotThere,
    RowsHere,
    Shares,
    SquareNorm,
    StageFull,
    Stand,
    Sweep,
    Swept,
    decode_flight,
    encode_flight,
)
from peer.parallel.pipeline.flight_shares import SEEN, SeenFlight, shares_of
from peer.parallel.pipeline.stage import StageDevice, StagePlace
from peer.schema.ipc import Assignment
from peer.schema.spec import RunSpec
from peer.training.data.chat.token_flags import of_predicted, plain_numbers
from peer.training.outer.copy_stream import upload
from peer.training.train.inner_loop import InnerStep, MicroBatch, Sequences

POLL_S = 0.05
SILENCE_S = 60.0
"""If nothing comes for this long during a step, the lead has given it up and could not say so."""
NOTHING = InnerStep(loss=0.0, tokens=0, learning_rate=0.0)


class Hop(NamedTuple):
    """A flight that has gone on to the next stage. Its input is kept as it arrived: encoded values need a quarter of
    the memory."""

    came: Forward
    went: bytes


class WorkerStage(StageDevice):
    """Implements `peer.training.train.backend.Backend` for its layers: each inner step is one of the lead's, which
    it serves."""

    def __init__(
        self, spec: RunSpec, place: StagePlace, batches: Sequences, device: torch.device, folder: Path | None = None,
        silence_s: float = SILENCE_S,
    ) -> None:  # fmt: skip
        super().__init__(spec, place, batches, device, MicroBatch(1), folder)
        self._silence_s = silence_s
        self._over = 0
        """The newest step that is over: later messages about it are dropped."""
        self._finished: Finished | None = None
        self._full = 0
        """The step for which the memory did not suffice."""
        self._stood = 0
        """The newest order to load the anchor's values or restore the local ones."""
        self._forwards, self._backwards, self._busy_s = 0, 0, 0.0
        """For the present step: the number of flights computed forward and backward, and the seconds of computing."""
        self._hops: dict[int, Hop] = {}
        """The flights that have not come back yet."""
        self._answers: dict[int, bytes] = {}
        """The answers to flights that have come back, in case one was lost."""
        self._seen: dict[int, SeenFlight] = {}
        """The first flights of this step: none knows before whether it is a trial."""
        self._heard_at = 0.0
        self._dealt: SimpleQueue[Assignment] = SimpleQueue()
        self.passed_bytes = 0
        """The bytes of hidden values and gradients that were passed on."""

    def _gradients(self, taken: list[Tensor], stop: Callable[[], bool]) -> Tensor:
        raise AssertionError("the lead's step computes them, flight by flight")

    def step(self, round: int, position: float, stop: Callable[[], bool] = lambda: False) -> InnerStep:
        """Serve one step of the lead, from its first flight to its end. It has 0 tokens if `stop` returns True
        before it begins."""
        while True:
            with suppress(Empty):
                self.reassign(self._dealt.get_nowait())
            found = self._place.port.receive(POLL_S)
            if found is not None:
                made = self._take(*found)
                if made is not None:
                    return made
            is_busy = self._step_now or self._local is not None
            if is_busy and time.monotonic() - self._heard_at > self._silence_s:
                self._forget()
                self._stand_back()
            elif not is_busy and stop():
                return NOTHING

    def deal(self, assignment: Assignment) -> None:
        """From any thread: reassign this stage before anything else is served."""
        self._dealt.put(assignment)

    def reassign(self, assignment: Assignment) -> None:
        super().reassign(assignment)
        self._stand_back()

    def loss(self, tokens_BT: Tensor, stop: Callable[[], bool]) -> float:
        raise AssertionError("a lead measures")

    def _take(self, sender: str, frame: bytes) -> InnerStep | None:
        """The step that this frame has ended, if any. Messages that do not fit are dropped: the lead asks again, or
        waits in vain."""
        try:
            message = decode_flight(frame)
        except BadFlight:
            return None
        if message.epoch != self._place.assignment.epoch or sender != self._expected(message):
            return None
        lead = self._place.assignment.lead
        if message.step <= self._over:
            if isinstance(message, EndStep) and self._finished and self._finished.step == message.step:
                self._send(lead, self._finished)
            return None
        self._heard_at = time.monotonic()
        if message.step != self._full:
            try:
                return self._serve(message, sender)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
            # Outside of `except`: what the error's traceback holds is gone, and its memory with it.
            self._give_up(message.step)
        if not isinstance(message, GiveUpStep):
            self._send(lead, StageFull(epoch=message.epoch, step=message.step))
        return None

    def _expected(self, message: AnyFlight) -> str:
        """The home that may send such a message."""
        if isinstance(message, Forward | Sweep):
            return self._place.before
        if isinstance(message, FlightBack | Swept):
            return "" if self._place.is_last else self._place.behind
        return self._place.assignment.lead

    def _serve(self, message: AnyFlight, sender: str) -> InnerStep | None:
        lead, where = self._place.assignment.lead, {"epoch": message.epoch, "step": message.step}
        is_whole = message.step == self._step_now and 0 < self._forwards == self._backwards
        match message:
            case Forward() if message.round != self.anchor.round:
                if message.step > self._step_now:
                    self._forget()
                    self._stand_back()
                self._send(lead, NotThere(**where, round=self.anchor.round))
            case Forward(measures=True):
                self._measure(message)
            case Forward() if message.step >= self._step_now:
                self._begin(message.step)
                self._forward(message, sender)
            case FlightBack() if message.step == self._stood and self._local is not None:
                self._send(self._place.before, message)  # of a measurement
            case FlightBack() if message.step == self._step_now:
                self._backward(message, sender)
            case Sweep():
                self._send(lead, Alive(**where, forwards=self._forwards, backwards=self._backwards))
                turned: AnyFlight = Swept(**where, number=message.number) if self._place.is_last else message
                self._send(self._place.before if self._place.is_last else self._place.behind, turned)
            case Swept():
                self._send(self._place.before, message)
            case AskNorm() if is_whole:
                self._send(lead, SquareNorm(**where, square=self._square_norm()))
            case AskShares() if is_whole and len(self._seen) == SEEN:
                promised, passed = shares_of(self._seen[0], self._seen[1], self._decoded_row)
                self._send(lead, Shares(**where, promised=promised, passed=passed))
            case EndStep() if is_whole:
                return self._finish(message)
            case MatrixRows() if self._place.is_last and self._tied is not None:
                if self._tied.write(message.number, message.values):
                    self._send(lead, RowsHere(**where, number=message.number))
            case AskRows() if is_whole and self._place.is_last and self._tied is not None:
                gradient = self._tied.gradient(message.number)
                self._send(lead, GradientRows(**where, number=message.number, values=gradient))
            case GiveUpStep():
                if message.step >= self._step_now:
                    self._forget()
                self._over = message.step
            case Stand() if message.step >= max(self._stood, self._step_now):
                self._forget()
                self._stood = message.step
                self._stand_at_anchor() if message.where == "anchor" else self._stand_back()
                self._send(lead, Finished(**where))
            case _:
                pass
        return None

    def _begin(self, step: int) -> None:
        if step != self._step_now:
            self._forget()
            self._stand_back()
            self._step_now = step

    def _forget(self) -> None:
        super()._forget()
        self._hops.clear()
        self._answers.clear()
        self._seen.clear()
        self._step_now = self._forwards = self._backwards = 0
        self._busy_s = 0.0

    def _give_up(self, step: int) -> None:
        """Give up a step because of too little memory."""
        self._forget()
        self._return_memory()
        self._full = step

    # ---- flights ----

    def _forward(self, flight: Forward, sender: str) -> None:
        number = flight.number
        if number in self._answers:
            self._pass_on(self._place.before, self._answers[number])
        elif number in self._hops:
            self._pass_on(self._place.behind, self._hops[number].went)
        elif number == self._forwards:  # a later one comes again, behind those that are missing
            self._compute(flight, sender)

    def _compute(self, flight: Forward, sender: str) -> None:
        began = time.perf_counter()
        try:
            entering, tokens_BT = self._entered(flight), self._tokens_of(flight)
        except BadActivations as error:
            self._accuse(flight, sender, str(error))
            return
        fault = self._histories[sender].fault_of(entering)
        if fault is not None:
            self._accuse(flight, sender, fault)
            return
        if flight.number < SEEN:
            self._seen[flight.number] = SeenFlight(flight.hidden)
        if self._place.is_last:
            leaf = entering.requires_grad_()
            loss = self._loss_of(leaf, tokens_BT, flight.number) / (flight.whole * flight.columns)
            torch.autograd.backward(loss)
            self._forwards += 1
            self._answer(flight, loss.item(), leaf)
        else:
            with torch.no_grad():
                leaving = self._computed(entering, tokens_BT, flight.number)
            left = self._encoded(leaving)
            if flight.number in self._seen:
                self._seen[flight.number].left = left
            went = encode_flight(replace(flight, hidden=left))
            self._hops[flight.number] = Hop(flight, went)
            self._forwards += 1
            self._pass_on(self._place.behind, went)
        self._busy_s += time.perf_counter() - began

    def _backward(self, message: FlightBack, sender: str) -> None:
        if message.number != self._backwards or message.number not in self._hops:
            return
        began = time.perf_counter()
        flight = self._hops[message.number].came
        leaf, tokens_BT = self._entered(flight).requires_grad_(), self._tokens_of(flight)
        leaving = self._computed(leaf, tokens_BT, flight.number)
        try:
            gradient = self._gradient_from(message, leaving)
        except BadActivations as error:
            self._accuse(message, sender, str(error))
            return
        fault = self._histories[sender].fault_of(of_predicted(gradient, tokens_BT))
        if fault is not None:
            self._accuse(message, sender, fault)
            return
        if message.number in self._seen:
            self._seen[message.number].gradient = message.gradient
        torch.autograd.backward(leaving, gradient)
        del self._hops[message.number]
        self._answer(flight, message.loss, leaf)
        self._busy_s += time.perf_counter() - began

    def _answer(self, flight: Forward, loss: float, leaf: Tensor) -> None:
        assert leaf.grad is not None
        gradient = self._encoded(leaf.grad)
        if flight.number in self._seen:
            self._seen[flight.number].answer, self._seen[flight.number].loss = gradient, loss
        answer = encode_flight(
            FlightBack(epoch=flight.epoch, step=flight.step, number=flight.number, loss=loss, gradient=gradient)
        )
        self._answers[flight.number] = answer
        self._backwards += 1
        self._pass_on(self._place.before, answer)

    def _pass_on(self, to: str, frame: bytes) -> None:
        self.passed_bytes += len(frame)
        self._place.port.send(to, frame)

    @torch.no_grad()
    def _measure(self, flight: Forward) -> None:
        """Compute a flight of a measurement. If this home no longer has the anchor's values in the model, tell the
        lead."""
        where = {"epoch": flight.epoch, "step": flight.step}
        if flight.step != self._stood or self._local is None:
            self._send(self._place.assignment.lead, NotThere(**where, round=self.anchor.round))
            return
        try:
            entering, tokens_BT = self._entered(flight), self._tokens_of(flight)
        except BadActivations as error:
            self._accuse(flight, self._place.before, str(error))
            return
        if not self._place.is_last:
            leaving = self._computed(entering, tokens_BT, flight.number, measures=True)
            self._send(self._place.behind, replace(flight, hidden=self._encoded(leaving)))
            return
        loss = self._loss_of(entering, tokens_BT, flight.number, measures=True).item()
        self._send(self._place.before, FlightBack(**where, number=flight.number, loss=loss, gradient=b""))

    def _accuse(self, flight: Forward | FlightBack, sender: str, why: str) -> None:
        said = Garbage(epoch=flight.epoch, step=flight.step, peer=sender, why=why[:400])
        self._send(self._place.assignment.lead, said)

    def _tokens_of(self, flight: Forward) -> Tensor:
        """The tokens of shape (rows, columns + 1), int64, on the device. Raises BadActivations."""
        if len(flight.tokens) != 4 * flight.rows * (flight.columns + 1):
            raise BadActivations("tokens of another shape")
        tokens = np.frombuffer(flight.tokens, "<i4").astype(np.int64)
        if tokens.min() < 0 or plain_numbers(tokens).max() >= self._vocabulary:
            raise BadActivations("tokens that are not in the vocabulary")
        return upload(torch.from_numpy(tokens).view(flight.rows, -1), self._device)

    # ---- the end of a step ----

    def _finish(self, message: EndStep) -> InnerStep | None:
        self._scale_gradients(message.scale)
        if not self._step(message.learning_rate):
            self._give_up(message.step)
            self._send(self._place.assignment.lead, StageFull(epoch=message.epoch, step=message.step))
            return None
        self._finished = Finished(epoch=message.epoch, step=message.step, busy_s=self._busy_s)
        self._forget()
        self._over = message.step
        self._send(self._place.assignment.lead, self._finished)
        return InnerStep(loss=message.loss, tokens=message.tokens, learning_rate=message.learning_rate)
