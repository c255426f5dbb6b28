"""How homes that look for others agree on a cluster: what one home does next, from what all say on the board.

Every home asks the same search for the best groups. The lead of a group publishes it, a gathering; the homes that it
names check it and ask for the line of the cluster. The lead gives it as soon as all have asked. Whatever is not
complete in time is dropped, and who did not come is left out for a while. Pure: the clock is passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dht.records import SoughtHomes, short_id
from peer.planning.homes.home_match import Match, Trips
from peer.planning.placement.block_shares import StageHome

MOST_OFFERS = 32
"""A home reads so many offers, in an order by which all read the same ones."""
SETTLE_S = 20.0
"""Offers have not changed for so long before a lead gathers: others may come, and round trips be measured."""
LONGEST_SETTLES = 3
"""It gathers after so many times that, even if homes come all the time."""
GATHER_S = 60.0
"""Until a gathering is complete, or a lead gathers."""
FOLLOW_S = 150.0
"""A lead that answers is followed for so long: it may gather once more, without one that did not come."""
LEFT_OUT_S = 120.0
"""A home that did not come in time is left out for so long, for twice as long the next time, and so on: it may have
waited for somebody else."""
LONGEST_OUT_S = 3600.0
ASKED_S = 10.0
"""A home that has asked is there for so long."""
GIVE_S = 20.0
"""A lead gives its line for so long; then it begins, and who comes later finds it there."""
ENOUGH = 0.8
"""A home accepts a gathering whose speed is at least this share of the best that it finds for itself."""
PATIENT_S = SETTLE_S + GATHER_S
"""After so long it accepts any that holds the model: others may know of a home that does not come."""

Board = Mapping[str, SoughtHomes]
Matches = Callable[[Mapping[str, StageHome], Trips], tuple[Match, ...]]
Rated = Callable[[tuple[str, ...], Mapping[str, StageHome], Trips], float]


@dataclass(frozen=True, kw_only=True)
class Look:
    """Nothing to do but to wait; `why` is for people, empty while there is no group."""

    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Gather:
    """Publish this gathering; `is_complete` once all have asked for the line."""

    match: Match
    is_complete: bool
    is_given: bool = False
    """All have the line, or had time enough to fetch it: begin."""


@dataclass(frozen=True, kw_only=True)
class Follow:
    """Ask this lead for its line."""

    lead: str


Next = Look | Gather | Follow


class HomeSearch:
    """The state of one home's search."""

    def __init__(self, me: str, matches: Matches, rated: Rated, avoid: tuple[str, ...] = (), now: float = 0.0) -> None:
        """`avoid`: homes of a cluster that did not form."""
        self._me, self._matches, self._rated = me, matches, rated
        self._left_out = dict.fromkeys(avoid, now + LONGEST_OUT_S)
        self._times_out: dict[str, int] = {}
        self._homes: dict[str, StageHome] = {}
        self._trips: dict[frozenset[str], float] = {}
        self._found: Match | None = None
        self._changed_at = now
        self._found_since: float | None = None
        """Since when there is a group for this home."""
        self._is_patient = True
        self._gathers: Match | None = None
        self._asked: dict[str, float] = {}
        self._given: set[str] = set()
        self._complete_at: float | None = None
        self._waits_for, self._waits_since = "", now
        """The lead that is awaited, and since when."""

    @property
    def homes(self) -> Mapping[str, StageHome]:
        """The homes that count now, this one included."""
        return self._homes

    def look(self, board: Board, now: float) -> Next:
        """What to do next. `board`: what all say now that look for homes or lead, this home included."""
        self._left_out = {peer: until for peer, until in self._left_out.items() if until > now}
        self._times_out = {peer: times for peer, times in self._times_out.items() if peer in board}
        self._read(board, now)
        if self._found is None:
            self._found_since = None
        elif self._found_since is None:
            self._found_since = now
        self._is_patient = self._found_since is None or now - self._found_since <= PATIENT_S
        if self._gathers is not None:
            going_on = self._go_on_gathering(board, now)
            if going_on is not None:
                return going_on
        leads = self._leads_to_follow(board)
        if leads:
            return self._await(leads[0], now, Follow(lead=leads[0]), FOLLOW_S)
        if self._found is None or self._found_since is None:
            return Look()
        if now - self._changed_at < SETTLE_S and now - self._found_since < LONGEST_SETTLES * SETTLE_S:
            return Look(why="waiting a moment for others that look for a cluster, too")
        lead = self._found.homes[0]
        if lead == self._me:
            self._gathers, self._gathered_at, self._complete_at = self._found, now, None
            self._asked, self._given = {}, set()
            return Gather(match=self._found, is_complete=False)
        why = f"waiting for the lead of {len(self._found.homes)} homes to gather them"
        return self._await(lead, now, Look(why=why), GATHER_S)

    def asks(self, peer: str, now: float) -> bool:
        """Whether a home that asks for the line is named in the gathering."""
        if self._gathers is None or peer not in self._gathers.homes[1:]:
            return False
        self._asked[peer] = now
        return True

    def given(self, peer: str) -> None:
        """This home has been given the line."""
        self._given.add(peer)

    def leave_out(self, peer: str, now: float) -> None:
        """Do not count a home for a while: it does not answer, or did not come."""
        times = self._times_out[peer] = self._times_out.get(peer, -1) + 1
        self._left_out[peer] = now + min(LONGEST_OUT_S, LEFT_OUT_S * 2 ** min(times, 16))
        if peer == self._waits_for:
            self._waits_for = ""

    def _read(self, board: Board, now: float) -> None:
        """Take the offers of the board; if they differ from before, ask for the best groups."""
        looking = [peer for peer, said in board.items() if not said.leads and peer not in self._left_out]
        looking.sort(key=lambda peer: (peer != self._me, short_id(peer)))
        homes = {
            peer: StageHome(
                tokens_per_s=said.tokens_per_s, room_bytes=said.memory_gb * 1e9, upload_bps=said.upload_mbps * 1e6
            )
            for peer in looking[:MOST_OFFERS]
            if (said := board[peer]).memory_gb > 0
        }  # fmt: skip
        trips = _trips_of(board, homes)
        if homes != self._homes:
            self._changed_at = now
        if (homes, trips) == (self._homes, self._trips):
            return
        self._homes, self._trips = homes, trips
        found = self._matches(homes, trips)
        self._found = next((match for match in found if self._me in match.homes), None)

    def _go_on_gathering(self, board: Board, now: float) -> Next | None:
        """None if this home does not gather any more."""
        match = self._gathers
        assert match is not None
        others, here = set(match.homes[1:]), {peer for peer, at in self._asked.items() if now - at <= ASKED_S}
        if self._complete_at is None and here >= others:
            self._complete_at = now
        if self._complete_at is not None:
            is_given = self._given >= others or now - self._complete_at > GIVE_S
            return Gather(match=match, is_complete=True, is_given=is_given)
        mine = self._rank(match.homes)
        better = any(rank < mine for rank, _ in self._gatherings(board))
        if not better and now - self._gathered_at <= GATHER_S:
            return Gather(match=match, is_complete=False)
        self._gathers = None
        if not better:
            for peer in others - here:
                self.leave_out(peer, now)
            self._read(board, now)
        return None

    def _leads_to_follow(self, board: Board) -> list[str]:
        """The leads to follow, the best first: of clusters that lack a home; then of gatherings that name this home and
        suit it; then, if there is no group for this home, of other clusters, as a spare."""
        known = {peer: said for peer, said in board.items() if peer != self._me and peer not in self._left_out}
        lacking = sorted((-said.expects, peer) for peer, said in known.items() if said.leads and said.free)
        whole = sorted((said.expects, peer) for peer, said in known.items() if said.leads and not said.free)
        spare = [peer for _, peer in whole] if self._found is None else []
        return [*(peer for _, peer in lacking), *(lead for _, lead in self._gatherings(board)), *spare]

    def _gatherings(self, board: Board) -> list[tuple[tuple[float, str], str]]:
        """Those of others that name this home and suit it, with their ranks, the best first."""
        others = [peer for peer in board if peer != self._me and not board[peer].leads]
        orders = {lead: self._order_of(board, lead) for lead in others}
        return sorted((self._rank(order), lead) for lead, order in orders.items() if order and self._suits(order))

    def _order_of(self, board: Board, lead: str) -> tuple[str, ...]:
        """The homes that a lead gathers, if this home is one of them, all are known and the lead is first; else
        empty."""
        names = {short_id(peer): peer for peer in self._homes}
        order = tuple(names.get(name, "") for name in board[lead].gathers)
        return order if order and order[0] == lead and self._me in order and "" not in order else ()

    def _suits(self, order: tuple[str, ...]) -> bool:
        best = self._found.tokens_per_s if self._found is not None and self._is_patient else 0.0
        speed = self._rated(order, self._homes, self._trips)
        return speed > 0 and speed >= ENOUGH * best

    def _rank(self, order: tuple[str, ...]) -> tuple[float, str]:
        """The faster a gathering, the smaller; ties by the lead's id."""
        return -self._rated(order, self._homes, self._trips), order[0]

    def _await(self, lead: str, now: float, meanwhile: Next, longest_s: float) -> Next:
        """Wait for this lead, but not for ever."""
        if self._waits_for != lead:
            self._waits_for, self._waits_since = lead, now
        if now - self._waits_since > longest_s:
            self.leave_out(lead, now)
            return Look(why="a lead did not answer in time; looking for other homes without it")
        return meanwhile


def _trips_of(board: Board, homes: Mapping[str, StageHome]) -> dict[frozenset[str], float]:
    """Round trips in seconds between these homes; of two different measurements the longer: neither home can make
    itself a nearer neighbour."""
    names = {short_id(peer): peer for peer in homes}
    trips: dict[frozenset[str], float] = {}
    for peer in homes:
        for name, trip_ms in board[peer].trips_ms:
            other = names.get(name)
            if other is not None and other != peer:
                pair = frozenset((peer, other))
                trips[pair] = max(trips.get(pair, 0.0), trip_ms / 1e3)
    return trips
