"""A lead's stage: it reads the data, sends micro-batches on their way, and has all stages make one step together.

A step is synchronous: it ends when all of its micro-batches are back. Gradients are clipped by the norm over all
stages, so that a cluster computes what one process would, but for rounding.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

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
from peer.pipeline.home_group import HomeGone
from peer.pipeline.stage import Stage, StagePlace
from peer.spec import RunSpec
from peer.train.backend import InnerStep, MicroBatch, Sequences, Stopped

POLL_S = 0.05
SILENCE_S = 60.0
"""A cluster of which nothing comes for so long while a step waits for it does not go on."""
PATIENCE_S = 1.0
"""A home that stands at another anchor is asked again after this."""
FLIGHTS_PER_STAGE = 2
"""Micro-batches that are on their way at a time: enough to keep every stage and the lines between them busy."""
TINY = 1e-6
"""As torch.nn.utils.clip_grad_norm_ has it."""
M = TypeVar("M", bound=AnyFlight)


class _NotThere(Exception):
    """Some home stands at another anchor."""


class LeadStage(Stage):
    """Implements `peer.train.backend.Backend` of the first layers; other homes hold the rest."""

    def __init__(
        self, spec: RunSpec, place: StagePlace, batches: Sequences, device: torch.device,
        told_smaller: Callable[[int], None], require_all: Callable[[], None], folder: Path | None = None,
        silence_s: float = SILENCE_S,
    ) -> None:  # fmt: skip
        """`require_all` raises HomeGone where a home is known to be lost."""
        stages, whole = len(place.assignment.stages), spec.inner.sequences * spec.inner.accumulation
        micro = MicroBatch(min(spec.inner.sequences, math.ceil(whole / (FLIGHTS_PER_STAGE * stages))), told_smaller)
        super().__init__(spec, place, batches, device, micro, folder)
        self._require_all, self._silence_s = require_all, silence_s
        self._slots = FLIGHTS_PER_STAGE * stages
        self._step_now = time.time_ns() // 1_000_000  # later than any of a life before this one
        self._in_hand: dict[int, Tensor] = {}
        """Tokens of the flights that are on their way."""
        self._workers = [holder.peer for holder in place.assignment.workers]
        self._clip = 1.0

    def step(self, round: int, position: float, stop: Callable[[], bool] = lambda: False) -> InnerStep:
        """As of one device, see `SingleDevice.step`; of 0 tokens where some home stands at another anchor still."""
        try:
            return super().step(round, position, stop)
        except _NotThere:
            until = time.monotonic() + PATIENCE_S
            while time.monotonic() < until and not stop():
                self._place.port.receive(POLL_S)
            return InnerStep(loss=0.0, tokens=0, learning_rate=0.0)

    def _attempt(self, rate: float, stop: Callable[[], bool]) -> tuple[Tensor, int] | None:
        try:
            return super()._attempt(rate, stop)
        except _NotThere:
            self._drop_gradients()
            self._reader.put_back(self._taken)
            raise

    def _gradient(self, taken: list[Tensor], stop: Callable[[], bool]) -> Tensor:
        """Of all micro-batches on all stages; here they are clipped already."""
        table, done, loss = self._spec.inner, 0, 0.0
        whole, number, has_stopped = table.sequences * table.accumulation, 0, False
        self._taken = taken
        self._step_now += 1
        self._in_hand.clear()
        try:
            while self._in_hand or (done < whole and not has_stopped):
                has_stopped = has_stopped or (done > 0 and self._ends(stop))
                if done < whole and not has_stopped and len(self._in_hand) < self._slots:
                    tokens_BT = self._reader.next(min(self.micro.sequences, whole - done))
                    taken.append(tokens_BT)
                    self._depart(number, tokens_BT, whole)
                    done, number = done + len(tokens_BT), number + 1
                    continue
                loss += self._land(self._hear(Backward))
            self._agree_on_norm(whole / done)
        except BaseException:
            self._tell_all(GiveUpStep(epoch=self._epoch, step=self._step_now))
            self._in_hand.clear()
            raise
        self._made = loss * whole / done, done * self._spec.model.context
        return torch.tensor(self._made[0])

    def _depart(self, number: int, tokens_BT: Tensor, whole: int, *, measures: bool = False) -> None:
        tokens_BT = tokens_BT.to(self._device)
        with torch.no_grad():
            leaving = self._computed(tokens_BT[:, :-1])
        self._in_hand[number] = tokens_BT
        self._send(
            self._place.behind,
            Forward(
                epoch=self._epoch, step=self._step_now, number=number, round=self.anchor.round, rows=len(tokens_BT),
                columns=tokens_BT.shape[1] - 1, whole=whole, tokens=_int32(tokens_BT), hidden=self._encoded(leaving),
                measures=measures,
            ),
        )  # fmt: skip

    def _land(self, message: Backward) -> float:
        """Its share of the loss; the gradient goes through this stage."""
        tokens_BT = self._in_hand.pop(message.number, None)
        if tokens_BT is None or not math.isfinite(message.loss):
            raise HomeGone(self._place.behind, "returned a loss that is no number, or a flight twice")
        leaving = self._computed(tokens_BT[:, :-1])
        try:
            gradient = self._gradient_from(message, leaving)
        except BadActivations as error:
            raise HomeGone(self._place.behind, f"returned no gradient: {error}") from error
        torch.autograd.backward(leaving, gradient)
        return message.loss

    def _agree_on_norm(self, ratio: float) -> None:
        """Scale what is here as all are going to scale theirs. `ratio`: of the sequences of a whole step to those that
        were made."""
        self._clip = ratio
        if self._spec.inner.clip:
            squares = self._ask_all(AskNorm(epoch=self._epoch, step=self._step_now), SquareNorm)
            norm = ratio * math.sqrt(self._square_norm() + sum(answer.square for answer in squares))
            self._clip = ratio * min(1.0, self._spec.inner.clip / (norm + TINY))
        self._scale_gradients(self._clip)

    def _step(self, rate: float) -> bool:
        """Here first: where there is no room, nobody makes the step."""
        if not super()._step(rate):
            self._tell_all(GiveUpStep(epoch=self._epoch, step=self._step_now))
            return False
        loss, tokens = self._made
        finish = FinishStep(
            epoch=self._epoch, step=self._step_now, scale=self._clip, learning_rate=rate, loss=loss, tokens=tokens
        )
        try:
            self._ask_all(finish, Finished)
        except torch.OutOfMemoryError as error:
            raise HomeGone(self._workers[0], "had no room for a step that others have made") from error
        return True

    # ---- the loss of the anchor ----

    def loss(self, tokens_BT: Tensor, stop: Callable[[], bool]) -> float:
        self._step_now += 1
        pieces = list(torch.split(tokens_BT, self.micro.sequences))
        total, landed = 0.0, 0
        stand = Stand(epoch=self._epoch, step=self._step_now, where="anchor", round=self.anchor.round)
        self._ask_all(stand, Finished)
        try:
            self._stand_at_anchor()
            self._in_hand.clear()
            while landed < len(pieces):
                departed = landed + len(self._in_hand)
                if departed < len(pieces) and len(self._in_hand) < self._slots:
                    self._depart(departed, pieces[departed], 1, measures=True)
                    continue
                message = self._hear(Backward)
                if self._in_hand.pop(message.number, None) is not None:
                    total, landed = total + message.loss, landed + 1
                if stop():
                    raise Stopped
        except _NotThere:
            raise Stopped from None
        finally:
            self._in_hand.clear()
            self._stand_back()
            self._step_now += 1
            back = Stand(epoch=self._epoch, step=self._step_now, where="own", round=self.anchor.round)
            self._tell_all(back)
        return total / tokens_BT[:, 1:].numel()

    # ---- the others ----

    @property
    def _epoch(self) -> int:
        return self._place.assignment.epoch

    def _tell_all(self, message: AnyFlight) -> None:
        for peer in self._workers:
            self._send(peer, message)

    def _ask_all(self, message: AnyFlight, kind: type[M]) -> list[M]:
        """What each of them answers."""
        self._tell_all(message)
        return [self._hear(kind) for _ in self._workers]

    def _hear(self, kind: type[M]) -> M:
        """The next message of this kind about the step in hand. Raises HomeGone, and OutOfMemoryError if a stage has no
        room."""
        until = time.monotonic() + self._silence_s
        while True:
            self._require_all()
            found = self._place.port.receive(POLL_S)
            if found is None:
                if time.monotonic() > until:
                    raise HomeGone(self._place.behind, f"or one behind it sent nothing for {self._silence_s:.0f} s")
                continue
            sender, frame = found
            try:
                message = decode_flight(frame)
            except BadFlight:
                raise HomeGone(sender, "sends what is no message") from None
            if message.epoch != self._epoch or message.step != self._step_now:
                continue
            match message:
                case NoRoom():
                    raise torch.OutOfMemoryError("a home of the cluster has no room")
                case NotThere():
                    raise _NotThere
                case _ if isinstance(message, kind):
                    return message


def _int32(tokens_BT: Tensor) -> bytes:
    return tokens_BT.cpu().numpy().astype(np.dtype("<i4")).tobytes()
