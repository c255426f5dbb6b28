"""Decides when blocks move between the homes of a cluster, or a spare steps in, from the seconds that flights take."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median_high

from msgspec.structs import replace

from peer.parallel.pipeline.span_choice import VALUE_BYTES
from peer.parallel.pipeline.step_times import MedianTimes
from peer.planning.placement.block_shares import RECOMPUTED, BlockLayout, StageHome, deal_in_order
from peer.schema.ipc import Assignment, HomeOffer, StageHolder

GAIN = 0.1
"""The share of a step that a move must save."""
BACK = 0.2
"""The same for a cut that the cluster has left before, so that noise does not move blocks to and fro."""
ERRORS = 2.0
"""The standard errors of what was measured by which a move must save more."""
FASTER = 1.5
"""A spare replaces a present home if it is this many times as fast: the moments of the stage are lost."""


@dataclass(frozen=True, kw_only=True)
class Move:
    """Other layers for some homes, and the seconds of a step: as measured, and as forecast."""

    to: Assignment
    step_s: float
    forecast_s: float
    error: float = 0.0
    """The relative error of what was measured."""

    @property
    def likely_gain(self) -> float:
        """The share of a step that it saves."""
        return 1 - self.forecast_s / self.step_s

    @property
    def gain(self) -> float:
        """What it saves at least, as far as errors of measurement go."""
        return self.likely_gain - ERRORS * self.error


def measured_speeds(layout: BlockLayout, now: Assignment, times: MedianTimes) -> dict[str, float]:
    """By peer: the tokens per second at which each home would train the whole model, by what its stage needs."""
    return {
        holder.peer: RECOMPUTED * times.tokens * _share(layout, holder.layers) / seconds
        for holder in now.stages
        if (seconds := times.flight_s.get(holder.peer, 0.0)) > 0
    }


def real_speeds(homes: Sequence[HomeOffer], measured: Mapping[str, float]) -> list[HomeOffer]:
    """The homes with their measured speeds. A home that was not measured has what it offers, times what the others
    reach of their offers: an offer is that of a matrix product."""
    ratios = [measured[home.peer] / home.tokens_per_s for home in homes if home.peer in measured and home.tokens_per_s]
    usual = median_high(ratios) if ratios else 1.0
    return [replace(home, tokens_per_s=measured.get(home.peer, usual * home.tokens_per_s)) for home in homes]


def best_move(layout: BlockLayout, now: Assignment, times: MedianTimes, homes: Sequence[HomeOffer]) -> Move | None:
    """The cut that is fastest by these `homes`' speeds, for the present homes in their order, or with a spare that is
    much faster than the worker in whose place it steps; None if the present one is."""
    offers = {home.peer: home for home in homes}
    peers = [holder.peer for holder in now.stages]
    if any(peer not in offers or not offers[peer].tokens_per_s for peer in peers):
        return None
    spares = [holder.peer for holder in now.spares if holder.peer in offers]
    orders = [peers] + [
        [*peers[:place], spare, *peers[place + 1 :]]
        for place in range(1, len(peers))
        for spare in spares
        if offers[spare].tokens_per_s >= FASTER * offers[peers[place]].tokens_per_s
    ]
    moves = []
    for order in orders:
        in_order = [_stage_home(offers[peer]) for peer in order]
        dealt = deal_in_order(layout, in_order, range(len(order)), VALUE_BYTES[now.wire])
        if dealt is not None:
            ends = (*dealt.starts[1:], len(layout.sizes))
            held = zip(order, dealt.starts, (end - 1 for end in ends), strict=True)
            moves.append(move_to(tuple(StageHolder(*each) for each in held), layout, now, times, homes))
    best = min(filter(None, moves), key=lambda move: move.forecast_s, default=None)
    return None if best is None or best.to.stages == now.stages else best


def move_to(
    stages: tuple[StageHolder, ...],
    layout: BlockLayout,
    now: Assignment,
    times: MedianTimes,
    homes: Sequence[HomeOffer],
) -> Move | None:
    """The move to these stages, by these `homes`' speeds; None if one of theirs is not here any more."""
    offers = {home.peer: home for home in homes}
    if any(holder.peer not in offers for holder in (*stages, *now.stages)):
        return None
    now_s, then_s = (_step_s(layout, each, now.wire, times, offers) for each in (now.stages, stages))
    step_s = max(times.step_s, now_s)  # what else a step pays stays as it is
    return Move(
        to=replace(now, stages=stages, spares=()), step_s=step_s, forecast_s=step_s - now_s + then_s, error=times.error
    )  # fmt: skip


def _step_s(
    layout: BlockLayout, stages: Sequence[StageHolder], wire: str, times: MedianTimes, offers: Mapping[str, HomeOffer]
) -> float:  # fmt: skip
    """T = Σ e + (B − 1) · slowest (AMP, arXiv:2210.07297), for lines that overlap with computing."""
    busy_s = []
    for place, holder in enumerate(stages):
        home = _stage_home(offers[holder.peer])
        neighbours = 2 if 0 < place < len(stages) - 1 else 1
        sent_bits = 8 * neighbours * times.tokens * layout.width * VALUE_BYTES[wire]
        computing_s = RECOMPUTED * times.tokens * _share(layout, holder.layers) / home.tokens_per_s
        busy_s.append(max(computing_s, sent_bits / home.upload_bps if home.upload_bps else 0.0))
    return sum(busy_s) + (times.flights - 1) * max(busy_s)


def _share(layout: BlockLayout, held: range) -> float:
    return sum(layout.work[held.start : held.stop]) / sum(layout.work)


def _stage_home(home: HomeOffer) -> StageHome:
    return StageHome(
        tokens_per_s=home.tokens_per_s, room_bytes=home.memory_gb * 1e9, upload_bps=home.upload_mbps * 1e6
    )  # fmt: skip


class MoveWatch:
    """Lets a move pass whose gain later steps confirm: who chooses the best of many cuts by noisy times finds a gain
    where there is none."""

    def __init__(self) -> None:
        self.wished: tuple[StageHolder, ...] = ()
        """The stages that were best by the steps before; empty if those of now were."""
        self.is_unsure = False
        """Whether only the errors of measurement kept the last look from a move: more steps will tell."""
        self._left: set[tuple[StageHolder, ...]] = set()
        """The cuts that the cluster has had before."""

    def look(
        self, best: Move | None, now: Assignment, again: Callable[[tuple[StageHolder, ...]], Move | None]
    ) -> Move | None:
        """Called after some steps with the best move by these; `again` says what these steps say of other stages.
        If the look is unsure, the next one is to have these steps, too."""
        found = again(self.wished) if self.wished else best
        self.is_unsure = found is not None and found.gain < self._least(found) <= found.likely_gain
        if self.is_unsure:
            return None
        if found is None or found.gain < self._least(found):
            self.wished = ()
            return None
        if not self.wished:
            self.wished = found.to.stages
            return None
        self.wished = ()
        self._left.add(now.stages)
        return found

    def _least(self, move: Move) -> float:
        return BACK if move.to.stages in self._left else GAIN


class HomeSpeeds:
    """What a lead knows of its homes' speeds, for the time of one process."""

    def __init__(self) -> None:
        self.measured: dict[str, float] = {}
        self.watch = MoveWatch()
        self._own: tuple[HomeOffer, ...] = ()
        self._others: tuple[HomeOffer, ...] = ()

    def note_own(self, offer: HomeOffer) -> None:
        """The lead's."""
        self._own = (offer,)

    def note_present(self, homes: Sequence[HomeOffer]) -> None:
        """The other homes that are here now."""
        self._others = tuple(homes)

    @property
    def homes(self) -> list[HomeOffer]:
        """All homes that are here, with their real speeds."""
        return self.real((*self._own, *self._others))

    def real(self, homes: Sequence[HomeOffer]) -> list[HomeOffer]:
        return real_speeds(homes, self.measured)
