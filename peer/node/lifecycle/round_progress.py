"""What a peer has made, offered and still owes, counted in rounds: the half of a trainer that needs no tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dht.errors import BadSpec
from peer.consensus.protocol.block import PartOutcome, Ranges, Update, part_outcomes
from peer.consensus.protocol.layout import Part
from peer.node.lifecycle.fragments import FragmentSchedule, FragmentWork
from peer.node.store.contributions import WorkStats
from peer.schema.spec import RunSpec


@dataclass(frozen=True, slots=True)
class TooOld:
    """Fragments with owed work beyond the age limit. It would count nothing, and is given up."""

    fragments: tuple[int, ...] = ()
    dropped: tuple[int, ...] = ()
    """Those of which all work is too old, also what came after the submission."""
    everything: bool = False
    """Whether that is the whole model, so that no contribution covers what was read so far."""


@dataclass(frozen=True, slots=True)
class Settled:
    """What an update does to the work of one peer."""

    outcomes: tuple[PartOutcome, ...]
    """By part of the fragment that it averages."""
    too_old: TooOld


@dataclass(frozen=True, slots=True)
class _Offer:
    """The newest contribution, and the state before it."""

    ranges: Ranges
    before: FragmentWork
    step: int


class RoundProgress:
    """The bookkeeping of one peer, whose model is cut into `parts`. Raises BadSpec for more fragments than layers."""

    def __init__(self, spec: RunSpec, me: str, parts: Sequence[Part]) -> None:
        self._spec, self._me = spec, me
        try:
            self.turns = FragmentSchedule(parts, spec.round.fragments)
        except ValueError as error:
            raise BadSpec(f"round.fragments is {spec.round.fragments}: {error}") from error
        self.round = 0
        """Of the anchor where the peer stands."""
        self.step = 0
        """Inner steps made towards the round in training."""
        self.offered: bytes | None = None
        """The anchor that the peer stands at, by its name, once it has a contribution; else None."""
        self.covered: set[bytes] = set()
        """Anchors whose contribution is still on disk, and was counted or is owed."""
        self._newest: _Offer | None = None

    @property
    def streams(self) -> bool:
        """Whether inner steps that follow a contribution belong to the next round."""
        return self._spec.round.overlap == "streaming"

    @property
    def in_training(self) -> int:
        """The number of the anchor to which the present steps will be offered."""
        return self.round + (self.streams and self.offered is not None)

    @property
    def fresh(self) -> bool:
        """Whether inner steps were made that the next contribution would offer for the first time."""
        return self.turns.work(self.round).tokens > 0

    @property
    def is_ahead(self) -> bool:
        """Whether steps of the next round were made for which there is no anchor yet."""
        return self.streams and self.offered is not None and self.step > 0

    # ---- train and submit ----

    def stepped(self, tokens: int, steps: int = 1) -> None:
        """Inner steps were made, of so many tokens in all."""
        self.step += steps
        self.turns.progressed(self.round + (self.offered is not None), tokens, steps)

    def offer(self, anchor: bytes, ranges: Ranges) -> WorkStats:
        """The statistics of the contribution to `anchor`; later work belongs to the next one."""
        assert self.offered is None, "one contribution per anchor"
        before = self.turns.work(self.round).copy()
        effort = self.turns.offer(self.round, ranges)
        self._newest = _Offer(ranges, before, self.step)
        self.offer_again(anchor)
        return effort

    def offer_again(self, anchor: bytes) -> None:
        """What this peer made for `anchor` before is still its contribution."""
        self.offered = anchor
        if self.streams:
            self.step = 0

    def take_back(self) -> Ranges:
        """Undo the offer: later work belongs to the contribution that is still to be made. Returns the ranges of
        data of what was offered."""
        assert self._newest is not None
        assert self.offered is not None
        newest, self._newest, self.offered = self._newest, None, None
        self.turns.take_back(self.round, newest.before)
        if self.streams:
            self.step += newest.step
        return newest.ranges

    # ---- move to another anchor ----

    def settle(self, update: Update, submitted: bool) -> Settled:
        """Stand at the next anchor. `submitted`: whether this peer had a contribution to the update's parent."""
        averaged = self.round
        assert update.round == averaged + 1, f"update {update.round} does not follow round {averaged}"
        outcomes = part_outcomes(update, self._me, submitted)
        work = self.turns.work(averaged)
        owed = outcomes.count(PartOutcome.MISSED) if self._spec.round.gamma > 0 else 0
        if PartOutcome.NOT_SUBMITTED not in outcomes:
            if not owed:
                work.counted()
            work.owed_steps = -(-work.owed_steps * owed // len(outcomes))
        if not self.is_ahead:
            self.step = 0
        self.round, self.offered = update.round, None
        too_old = self.forget_too_old()
        assert set(too_old.fragments) <= {averaged % len(self.turns.everything)}, "none grows older but in its turn"
        return Settled(outcomes, too_old)

    def stand_at(self, round: int) -> None:
        """Stand at another anchor, to which no update led."""
        self.turns.went_back(round)
        self.round, self.offered, self.step = round, None, 0

    def forget_too_old(self) -> TooOld:
        """Work after the submission is younger and stays, unless it was made for an earlier anchor."""
        too_old = self.turns.too_old(self.round, self._spec.round.max_staleness)
        dropped = [fragment for fragment in too_old if not self.turns.drop_offered(fragment, self.round)]
        for fragment in dropped:
            self.turns.drop(fragment)
        return TooOld(tuple(too_old), tuple(dropped), len(dropped) == len(self.turns.everything))
