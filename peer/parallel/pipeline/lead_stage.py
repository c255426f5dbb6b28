"""A lead's stage: it reads the data, sends micro-batches to the other stages, and has all stages make one step
together.

A step is synchronous: it ends when all of its micro-batches are back. Gradients are clipped by the norm over all
stages, so a cluster computes what one process would, except for rounding. Only the lead sends again what was lost.
"""

from __future__ import annotations

import math
import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

from dht.errors import MemoryFull, Unreachable
from peer.node.host.device import is_out_of_memory, wait_for
from peer.parallel.pipeline.activation_codec import BadActivations, encoded_bytes
from peer.parallel.pipeline.flight_check import DESCENT, FINEST, TRIAL_APART, TRIAL_ONE_IN, TRIALS, fault_of_descent
from peer.parallel.pipeline.flight_messages import (
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
from peer.parallel.pipeline.flight_shares import change, fault_in
from peer.parallel.pipeline.home_group import GarbageHome, HomeGone, accused
from peer.parallel.pipeline.home_watch import HomeWatch
from peer.parallel.pipeline.stage import StageDevice, StagePlace
from peer.parallel.pipeline.step_times import StepTimes
from peer.parallel.pipeline.tied_matrix import Rows, exchanged
from peer.planning.placement.block_shares import FLIGHTS_PER_STAGE, FLYING_BYTES
from peer.schema.ipc import Assignment
from peer.schema.spec import RunSpec
from peer.training.data.chat.token_flags import of_predicted, plain, predicted_tokens, step_scale
from peer.training.outer.copy_stream import upload
from peer.training.train.backend import SEQUENCES, Stopped
from peer.training.train.inner_loop import InnerStep, MicroBatch, Sequences

POLL_S = 0.05
SILENCE_S = 60.0
"""A home is lost if nothing comes from it for this long while a step waits for it."""
AGAIN_S = 2.0
"""After this time a home that has not answered is asked again, and lost flights are looked for."""
PATIENCE_S = 1.0
"""After this time a home at another anchor is asked again."""
TIMES_KEPT = 256
"""The number of steps whose timing is remembered."""
TINY = 1e-6
"""The same constant as in torch.nn.utils.clip_grad_norm_."""
M = TypeVar("M", bound=AnyFlight)


@dataclass
class Flight:
    """A micro-batch on its way through the stages."""

    tokens_BT: Tensor
    frame: bytes
    """The frame that was sent, in order to send it again."""
    sweeps: int
    """The number of sweeps that were sent before the frame was last sent."""


class _NotThere(Exception):
    """Some home is at another anchor."""


class LeadStage(StageDevice):
    """Implements `peer.training.train.backend.Backend` for the first layers; other homes hold the rest."""

    def __init__(
        self, spec: RunSpec, place: StagePlace, batches: Sequences, device: torch.device,
        on_halved: Callable[[int], None], require_all: Callable[[], None], folder: Path | None = None,
        silence_s: float = SILENCE_S, again_s: float = AGAIN_S,
    ) -> None:  # fmt: skip
        """`require_all` raises HomeGone if a home is known to be lost."""
        stages, whole = len(place.assignment.stages), spec.inner.sequences * spec.inner.accumulation
        micro = MicroBatch(min(spec.inner.sequences, math.ceil(whole / (FLIGHTS_PER_STAGE * stages))), on_halved)
        super().__init__(spec, place, batches, device, micro, folder)
        self._require_all, self._silence_s, self._again_s = require_all, silence_s, again_s
        self._chance = random.SystemRandom()
        self._tries, self._untried_steps, self._doubts = False, TRIAL_APART, False
        """Whether this step begins with trials; the steps since the last (never); whether a loss was odd since."""
        self._step_now = time.time_ns() // 1_000_000  # later than any of a life before this one
        self._in_hand: dict[int, Flight] = {}
        self._sweeps, self._flights = 0, 0
        self._workers = [holder.peer for holder in place.assignment.workers]
        self._clip, self._busy_s = 1.0, 0.0
        self.flight_seconds: dict[str, float] = {}
        """The seconds that each stage needed for a micro-batch, forward and backward, in the newest step."""
        self.step_s = 0.0
        """The duration of that step."""
        self._recent: deque[StepTimes] = deque(maxlen=TIMES_KEPT)

    def reassign(self, assignment: Assignment) -> None:
        super().reassign(assignment)
        self._workers, self._untried_steps = [holder.peer for holder in assignment.workers], TRIAL_APART
        self._in_hand.clear()

    def step(self, round: int, position: float, stop: Callable[[], bool] = lambda: False) -> InnerStep:
        """Make a step as a single device does, see `SingleDevice.step`. It has 0 tokens if some home is still at
        another anchor.

        Also raises HomeGone. If the step was not made, the sequences read for it are read again for the next one.
        """
        began = time.perf_counter()
        is_due = position == 0 and self._untried_steps >= TRIAL_APART
        self._tries = is_due or self._doubts or not self._chance.randrange(TRIAL_ONE_IN)
        try:
            made = super().step(round, position, stop)
            self.step_s = time.perf_counter() - began
            if made.tokens:
                self._untried_steps = 1 if self._tries else self._untried_steps + 1
                self._recent.append(StepTimes(self.step_s, self._flights, made.tokens, self.flight_seconds))
            return made
        except _NotThere:
            until = time.monotonic() + PATIENCE_S
            while time.monotonic() < until and not stop():
                self._place.port.receive(POLL_S)
            return InnerStep(loss=0.0, tokens=0, learning_rate=0.0)

    def _gradients(self, taken: list[Tensor], stop: Callable[[], bool]) -> Tensor:
        """The loss of all micro-batches through all stages; the gradients of this stage are left clipped."""
        table, done, loss = self._spec.inner, 0, 0.0
        whole, number, has_stopped = table.sequences * table.accumulation, 0, False
        try:
            self._step_now += 1
            self._share_matrix()
            if self._tries:
                self._require_descent(whole)
            self._step_now += 1
            self._in_hand.clear()
            self._busy_s = 0.0
            while self._in_hand or (done < whole and not has_stopped):
                has_stopped = has_stopped or (done > 0 and self._asked_to_stop(stop))
                if done < whole and not has_stopped and len(self._in_hand) < self._slots:
                    tokens_BT = self._reader.next(min(self.micro.sequences, whole - done))
                    taken.append(tokens_BT)
                    self._depart(number, tokens_BT, whole)
                    done, number = done + len(tokens_BT), number + 1
                    continue
                loss += self._land(self._next_back(), whole)
            self._add_matrix_gradient()
            scale = step_scale(taken, whole)
            self._agree_on_norm(scale)
        except BaseException as error:
            self._tell_all(GiveUpStep(epoch=self._epoch, step=self._step_now))
            self._in_hand.clear()
            if isinstance(error, _NotThere | HomeGone):
                self._forget()
                self._reader.put_back(taken)
            if isinstance(error, Unreachable):  # what was read is put back by whoever attempts a step
                self._forget()
            raise
        self._made, self._flights = (loss * scale, done * self._spec.model.context), number
        return torch.tensor(self._made[0])

    def _asked_to_stop(self, stop: Callable[[], bool]) -> bool:
        wait_for(self._device)  # else a pause would begin while the device has work left
        return stop()

    def _require_descent(self, whole: int) -> None:
        """Raises GarbageHome if the loss does not fall when hidden values move down the gradients that come back, for
        the home that is at fault with all texts.

        The sequences read for this are read again.
        """
        self._doubts = False
        read: list[Tensor] = []
        found: GarbageHome | None = None
        try:
            for _ in range(TRIALS):
                before, found = found, self._try(whole, read)
                if found is None or (before is not None and before.peer != found.peer):
                    return
        finally:
            self._reader.put_back(read)
        assert found is not None
        raise found

    @torch.no_grad()
    def _try(self, whole: int, read: list[Tensor]) -> GarbageHome | None:
        """The fault in a gradient, from two flights of a step that is given up, so that nothing of it counts; None if
        there is none."""
        self._step_now += 1
        self._in_hand.clear()
        read.append(self._reader.next(min(self.micro.sequences, whole)))
        try:
            leaving = self._depart(0, read[-1], whole)
            there = self._next_back()
            gradient = self._gradient_back(there, leaving)
            lengths = gradient.float().norm(dim=-1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
            moved = gradient * (DESCENT * leaving.float().norm(dim=-1, keepdim=True) / lengths)
            self._in_hand.clear()
            self._depart(1, read[-1], whole, leaving=leaving - moved)
            loss, promised = self._next_back().loss, float((gradient * moved).float().sum())
            if len(self._workers) == 1:
                fault = fault_of_descent(there.loss, loss, promised)
                return None if fault is None else GarbageHome(self._place.behind, f"returned {fault}")
            if promised < FINEST * there.loss:
                return None
            sent = change(there.gradient, self._encoded(leaving), self._encoded(leaving - moved), self._decoded_row)
            answers = self._ask_all(AskShares(epoch=self._epoch, step=self._step_now), Shares)
            shares = [(peer, answers[peer].promised, answers[peer].passed) for peer in self._workers]
            return fault_in(self._place.me, sent, shares)
        finally:
            self._tell_all(GiveUpStep(epoch=self._epoch, step=self._step_now))

    @property
    def _slots(self) -> int:
        """The number of flights that may be on their way at a time."""
        flight_bytes = encoded_bytes(self.micro.sequences * self._spec.model.context * self._width, self._place.wire)
        workers = len(self._workers)
        return FLIGHTS_PER_STAGE * (workers + 1) + workers * FLYING_BYTES // flight_bytes

    def _depart(
        self, number: int, tokens_BT: Tensor, whole: int, *, measures: bool = False, leaving: Tensor | None = None
    ) -> Tensor:
        """Send a flight. Returns the hidden values that left this stage, which are `leaving` if that is given."""
        began = time.perf_counter()
        tokens_BT = upload(tokens_BT, self._device)
        if leaving is None:
            with torch.no_grad():
                leaving = self._computed(plain(tokens_BT[:, :-1]), tokens_BT, number, measures=measures)
        frame = encode_flight(
            Forward(
                epoch=self._epoch, step=self._step_now, number=number, round=self.anchor.round, rows=len(tokens_BT),
                columns=tokens_BT.shape[1] - 1, whole=whole, tokens=_int32(tokens_BT), hidden=self._encoded(leaving),
                measures=measures,
            )
        )  # fmt: skip
        self._in_hand[number] = Flight(tokens_BT, frame, self._sweeps)
        self._busy_s += time.perf_counter() - began
        self._place.port.send(self._place.behind, frame)
        return leaving

    def _next_back(self) -> FlightBack:
        """The flight that has been away the longest, with a plausible loss. Raises HomeGone, and OutOfMemoryError."""
        first, watch = min(self._in_hand), HomeWatch(self._workers, self._silence_s)

        def fits(sender: str, message: FlightBack) -> bool:
            return sender == self._place.behind and message.number == first

        home, message = self._hear(FlightBack, fits, self._sweep, watch, first)
        if not math.isfinite(message.loss) or message.loss < 0:
            raise GarbageHome(home, f"returned a loss of {message.loss}")
        return message

    def _land(self, message: FlightBack, whole: int) -> float:
        """The flight's share of the loss; its gradient goes back through this stage. Raises GarbageHome."""
        began, history = time.perf_counter(), self._histories[self._place.behind]
        tokens_BT = self._in_hand.pop(message.number).tokens_BT
        leaving = self._computed(plain(tokens_BT[:, :-1]), tokens_BT, message.number)
        gradient = self._gradient_back(message, leaving)
        if (fault := history.fault_of(of_predicted(gradient, tokens_BT))) is not None:
            raise GarbageHome(self._place.behind, f"returned {fault}")
        if predicted_tokens(tokens_BT):
            self._doubts |= history.is_odd_loss(message.loss * step_scale([tokens_BT], whole))
        torch.autograd.backward(leaving, gradient)
        self._busy_s += time.perf_counter() - began
        return message.loss

    def _gradient_back(self, message: FlightBack, leaving: Tensor) -> Tensor:
        """The gradient that came back. Raises GarbageHome."""
        try:
            return self._gradient_from(message, leaving)
        except BadActivations as error:
            raise GarbageHome(self._place.behind, f"returned {error}") from error

    def _agree_on_norm(self, ratio: float) -> None:
        """Scale the gradients of this stage by the factor that all stages will use. `ratio`: see `step_scale`."""
        self._clip = ratio
        if self._spec.inner.clip:
            answers = self._ask_all(AskNorm(epoch=self._epoch, step=self._step_now), SquareNorm)
            norm = ratio * math.sqrt(self._square_norm() + sum(answer.square for answer in answers.values()))
            self._clip = ratio * min(1.0, self._spec.inner.clip / (norm + TINY))
        self._scale_gradients(self._clip)

    def _step(self, rate: float) -> bool:
        """Make the optimizer's step here first: if the memory does not suffice, no home makes it."""
        if not super()._step(rate):
            self._tell_all(GiveUpStep(epoch=self._epoch, step=self._step_now))
            return False
        loss, tokens = self._made
        finish = EndStep(
            epoch=self._epoch, step=self._step_now, scale=self._clip, learning_rate=rate, loss=loss, tokens=tokens
        )
        try:
            answers = self._ask_all(finish, Finished)
        except torch.OutOfMemoryError as error:
            raise HomeGone(str(error), "had no room for a step that others have made") from error
        busy = {self._place.me: self._busy_s} | {peer: answer.busy_s for peer, answer in answers.items()}
        self.flight_seconds = {peer: seconds / self._flights for peer, seconds in busy.items()}
        return True

    def take_times(self) -> tuple[StepTimes, ...]:
        """The timing of the steps since the call before, from any thread; of the newest TIMES_KEPT at most."""
        taken, self._recent = self._recent, deque(maxlen=TIMES_KEPT)
        return tuple(taken)

    def wire_bytes(self, stage: int) -> int:
        """The bytes that a stage sends for a micro-batch: hidden values forward, and a gradient back."""
        values = self.micro.sequences * self._spec.model.context * self._width
        is_last = stage == len(self._workers)
        return encoded_bytes(values, self._place.wire) * (1 if is_last or not stage else 2)

    # ---- the matrix that the first stage and the last have in common ----

    def _share_matrix(self) -> None:
        """The last stage gets the present values of the matrix. Raises as `_hear`."""
        if self._tied is None:
            return
        tied, where = self._tied, {"epoch": self._epoch, "step": self._step_now}
        for _ in self._exchange(
            lambda number: MatrixRows(**where, number=number, values=tied.values(number)), RowsHere
        ):
            pass

    def _add_matrix_gradient(self) -> None:
        """The gradient of the matrix in the last stage is added to that in this one. Raises as `_hear`."""
        if self._tied is None:
            return
        where = {"epoch": self._epoch, "step": self._step_now}
        for answer in self._exchange(lambda number: AskRows(**where, number=number), GradientRows):
            try:
                self._tied.add_gradient(answer.number, answer.values)
            except BadActivations as error:
                raise GarbageHome(self._workers[-1], f"returned {error}") from error

    def _exchange(self, ask: Callable[[int], AnyFlight], kind: type[Rows]) -> Iterator[Rows]:
        """The last stage's answers, one for each piece of the matrix."""
        assert self._tied is not None
        last = self._workers[-1]

        def hear(waiting: Sequence[int]) -> Rows:
            def fits(sender: str, answer: Rows) -> bool:
                return sender == last and answer.number in waiting

            watch = HomeWatch([last], self._silence_s)
            return self._hear(kind, fits, lambda: self._send(last, ask(waiting[0])), watch)[1]

        return exchanged(self._tied.pieces, lambda number: self._send(last, ask(number)), hear)

    # ---- the loss of the anchor ----

    def loss(self, tokens_BT: Tensor, stop: Callable[[], bool]) -> float:
        sequences = min(SEQUENCES, self.micro.sequences)
        while True:
            try:
                return self._summed_by_all(torch.split(tokens_BT, sequences), stop) / predicted_tokens(tokens_BT)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
            # Outside of `except`: what the error's traceback holds is gone, and its memory with it.
            self._return_memory()
            if sequences == 1:
                raise MemoryFull("the memory of this cluster has no room to measure even one sequence")
            sequences = (sequences + 1) // 2

    def _summed_by_all(self, pieces: Sequence[Tensor], stop: Callable[[], bool]) -> float:
        losses: dict[int, float] = {}
        try:
            self._ask_to_stand("anchor")
            self._stand_at_anchor()
            self._share_matrix()
            while len(losses) < len(pieces):
                departed = len(losses) + len(self._in_hand)
                if departed < len(pieces) and len(self._in_hand) < self._slots:
                    self._depart(departed, pieces[departed], 1, measures=True)
                    continue
                message = self._next_back()
                del self._in_hand[message.number]
                losses[message.number] = message.loss
                if stop():
                    raise Stopped
            self._stand_back()
            self._ask_to_stand("own")
        except BaseException as error:
            self._in_hand.clear()
            self._stand_back()
            self._step_now += 1
            self._tell_all(Stand(epoch=self._epoch, step=self._step_now, where="own", round=self.anchor.round))
            if isinstance(error, _NotThere):
                raise Stopped from None
            raise
        return sum(losses.values())

    def _ask_to_stand(self, where: Literal["anchor", "own"]) -> None:
        self._step_now += 1
        self._ask_all(Stand(epoch=self._epoch, step=self._step_now, where=where, round=self.anchor.round), Finished)

    # ---- the others ----

    @property
    def _epoch(self) -> int:
        return self._place.assignment.epoch

    def _tell_all(self, message: AnyFlight) -> None:
        for peer in self._workers:
            self._send(peer, message)

    def _ask_all(self, message: AnyFlight, kind: type[M]) -> dict[str, M]:
        """The answer of each worker. Raises HomeGone, and OutOfMemoryError."""
        answers: dict[str, M] = {}
        missing = list(self._workers)

        def ask() -> None:
            for peer in missing:
                self._send(peer, message)

        ask()
        while missing:
            watch = HomeWatch(missing, self._silence_s)
            sender, answer = self._hear(kind, lambda sender, _: sender in missing, ask, watch)
            answers[sender] = answer
            missing.remove(sender)
        return answers

    def _hear(
        self, kind: type[M], fits: Callable[[str, M], bool], again: Callable[[], None], watch: HomeWatch,
        flight: int = 0,
    ) -> tuple[str, M]:  # fmt: skip
        """The next fitting message of this kind about the present step, and its sender; `again` is called at
        intervals.

        Raises HomeGone, and, if a stage has too little memory, OutOfMemoryError, whose text is the home.
        """
        again_at = time.monotonic() + self._again_s
        while True:
            self._require_all()
            watch.require_alive(flight)
            if time.monotonic() >= again_at:
                again()
                again_at = time.monotonic() + self._again_s
            found = self._place.port.receive(min(POLL_S, self._again_s))
            if found is None or found[0] not in self._workers:
                continue
            sender, frame = found
            try:
                message = decode_flight(frame)
            except BadFlight:
                raise GarbageHome(sender, "sends what is no message") from None
            if message.epoch != self._epoch or message.step != self._step_now:
                continue
            watch.hear(sender, message)
            match message:
                case StageFull():
                    raise torch.OutOfMemoryError(sender)
                case NotThere():
                    raise _NotThere
                case Garbage():
                    raise accused([self._place.me, *self._workers], sender, message.peer, message.why)
                case Swept() if sender == self._place.behind:
                    self._send_lost(message.number, watch)
                case _ if isinstance(message, kind) and fits(sender, message):
                    return sender, message

    def _sweep(self) -> None:
        self._sweeps += 1
        self._send(self._place.behind, Sweep(epoch=self._epoch, step=self._step_now, number=self._sweeps))

    def _send_lost(self, sweep: int, watch: HomeWatch) -> None:
        """Send lost flights again. A sweep has come back, and frames keep their order: flights sent before it, or
        their answers, are lost."""
        lost = [flight for _, flight in sorted(self._in_hand.items()) if flight.sweeps < sweep]
        for flight in lost:
            flight.sweeps = self._sweeps
            self._place.port.send(self._place.behind, flight.frame)
        watch.resends += bool(lost)


def _int32(tokens_BT: Tensor) -> bytes:
    return tokens_BT.cpu().numpy().astype(np.dtype("<i4")).tobytes()
