"""A grid of groups: rows average, then columns average what rows agreed on (`README.md` beside this file)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from dht.errors import BadInput
from peer.consensus.codec.codec import Codec
from peer.consensus.protocol.block import MAX_MEMBERS
from peer.consensus.rounds.transition import FETCH_RETRY_S
from peer.planning.simulate.grid_part import Agreed, FarPart, GridPart, Sums, Times, groups_along
from peer.planning.simulate.group import Sink
from peer.planning.simulate.run_summary import Summary, nine_in_ten
from peer.planning.simulate.scenario import ChurnEvent, Scenario, changes_of

Chosen = Sequence[Sequence[int]]
"""Of each side the numbers of some of its groups."""


Spread = Callable[[Scenario, tuple[int, ...], Sequence[ChurnEvent], Chosen], tuple[list[FarPart], Chosen]]
"""Starts parts in other processes; and says what is left for this one."""


def alone(
    setting: Scenario, sides: tuple[int, ...], changes: Sequence[ChurnEvent], chosen: Chosen
) -> tuple[list[FarPart], Chosen]:
    return [], chosen


def shares(chosen: Chosen, processes: int) -> list[Chosen]:
    """The groups of each side dealt out to so many processes."""
    return [[numbers[first::processes] for numbers in chosen] for first in range(processes)]


def together(parts: Sequence[Agreed]) -> Agreed:
    """Of parts that have no group in common."""
    whole = parts[0]
    for part in parts[1:]:
        whole = Agreed(
            *(np.where(np.isnan(one), other, one) for one, other in zip(whole.fields(), part.fields(), strict=True))
        )
    return whole


class Grid:
    """Seats of a grid with a peer each; `run` makes the rounds."""

    def __init__(
        self, setting: Scenario, sides: tuple[int, ...], sink: Sink | None = None, far: Spread = alone
    ) -> None:
        self.setting, self.sides = setting, sides
        self.changes = seated(setting)
        self.apply_s = np.array([machine.apply_s for machine in setting.machines])
        self.began: list[Times] = [np.zeros(len(setting.machines))]
        """When each seat began to train towards each round, and last when it would have begun the next."""
        self.trained_s: list[Times] = []
        """Of each round the seconds that each seat trained; NaN for one of which nothing came."""
        self.tokens: list[NDArray[np.float64]] = []
        """Likewise the tokens that it trained on."""
        self.simulated: Chosen = [self.chosen(side) for side in range(len(sides))]
        others, mine = far(setting, sides, self.changes, self.simulated)
        self.mine = GridPart(setting, sides, self.changes, mine, sink)
        self.parts: list[GridPart | FarPart] = [*others, self.mine]
        self._sums: list[Sums] = []

    def chosen(self, side: int) -> Sequence[int]:
        """The groups along a side that are simulated message by message: all. The first row tells its events."""
        numbers = range(math.prod(self.sides) // self.sides[side])
        return self.told_first(numbers) if side == 0 else numbers

    def attacked(self) -> dict[str, int]:
        """Of each kind of attack a row in which it happens."""
        rows = math.prod(self.sides) // self.sides[0]
        return {machine.attack: seat % rows for seat, machine in enumerate(self.setting.machines) if machine.attack}

    def told_first(self, rows: Sequence[int]) -> list[int]:
        """In another order: a row with an attacker comes first, if there is one."""
        first = next(iter(self.attacked().values()), rows[0])
        return [first, *(row for row in rows if row != first)]

    def run(self) -> None:
        for _ in range(self.setting.rounds):
            times = self.began[-1]
            for side in range(len(self.sides)):
                agreed = self.side_round(side, times)
                if side == 0:
                    lost = np.isnan(agreed.decided)
                    self.trained_s.append(np.where(lost, np.nan, agreed.trained_s))
                    self.tokens.append(np.where(lost, np.nan, agreed.tokens))
                times = agreed.decided
            self.began.append(self.gathered(times))

    def side_round(self, side: int, times: Times) -> Agreed:
        """Let every group along a side agree once."""
        for part in self.parts:
            part.begin(side, times)
        return together([part.end() for part in self.parts])

    def gathered(self, decided: Times) -> Times:
        """When each seat has every shard, and has applied it: those of its mates along the last side but one first."""
        times = decided
        for side in range(len(self.sides) - 2, -1, -1):
            times = gather(self.setting, self.sides, side, times)
        usual = float(np.nanmedian(times)) if not np.isnan(times).all() else float(np.nanmax(self.began[-1]))
        # Whoever has missed this round goes on with its mates: it gives what it has in the next one.
        now = np.where(np.isnan(times), usual, times) + self.apply_s
        begins: Times = np.maximum(now, self.began[-1])
        return begins

    # ---- what came of it ----

    def told(self) -> str:
        rows = groups_along(self.sides, 0)
        seats = [int(seat) for seat in rows[self.simulated[0][0]] if seat < len(self.setting.machines)]
        attacks = sorted({self.setting.machines[seat].attack for seat in seats} - {""})
        named = f"{', '.join(map(str, seats[:-1]))} and {seats[-1]}"
        who = f"the {len(seats)} peers of one row of {len(rows)}, in seats {named}"
        if len(seats) == 1:
            who = f"the one peer of one row of {len(rows)}, in seat {seats[0]}"
        return f"{who} ({', '.join(attacks)} among them)" if attacks else who

    def figures(self) -> Summary:
        """In the same numbers as of one group."""
        ends = np.array([float(np.median(times)) for times in self.began])
        gave = np.array([int((~np.isnan(trained)).sum()) for trained in self.trained_s])
        seconds, rounds = float(ends[-1]), int((gave > 0).sum())
        low_s, high_s = nine_in_ten(np.diff(ends).tolist())
        tokens = float(np.nansum(self.tokens))
        gaps = [later - earlier for earlier, later in pairwise(self.began)]
        shares = zip(self.trained_s, gaps, strict=True)
        exposed = [1 - share for share in (_busy(trained, gap) for trained, gap in shares) if share is not None]
        along = self.sums()
        scale = self.scale()
        penalties: dict[str, float] = {}
        for (attack, code), times in along[0].penalties.items():
            penalties[code] = penalties.get(code, 0.0) + times * self.scale(attack)
        return Summary(
            peers=len(self.setting.machines),
            rounds=rounds,
            seconds=seconds,
            rounds_per_hour=3600 * rounds / seconds,
            tokens_per_s=tokens / seconds,
            exposed_share=float(np.mean(exposed or [0.0])),
            median_round_s=float(np.median(np.diff(ends))),
            low_round_s=low_s,
            high_round_s=high_s,
            members=float(gave.mean()),
            aborts=round(scale * sum(found.aborts for found in along)),
            later_ballots=round(scale * sum(found.later_ballots for found in along)),
            void_share=sum(found.void for found in along) / max(1, sum(found.parts for found in along)),
            penalties={code: round(times) for code, times in sorted(penalties.items())},
            bytes_sent=self.sent_bytes(),
            messages=round(scale * sum(found.messages for found in along)),
        )

    def sums(self) -> list[Sums]:
        """Of all parts, by sides."""
        if not self._sums:
            self._sums = [Sums() for _ in self.sides]
            for part in self.parts:
                for total, found in zip(self._sums, part.sums(), strict=True):
                    total.add(found)
        return self._sums

    def scale(self, attack: str = "") -> float:
        """How often what was simulated happens in all; of an attack, what was simulated of those who attack so."""
        return 1.0

    def sent_bytes(self) -> int:
        """By each peer in a round: along each side, and when shards are gathered."""
        total = sum(found.bytes_sent / max(1, found.commits) for found in self.sums())
        for side in range(len(self.sides) - 1):
            total += wire_bytes(self.setting) / math.prod(self.sides[: side + 1]) * (self.sides[side] - 1)
        return round(total)


def _busy(trained_s: Times, gap_s: Times) -> float | None:
    """The share of a round in which seats that gave something trained, on average; None if nobody did."""
    gave = ~np.isnan(trained_s) & (gap_s > 0)
    return float(np.mean(np.minimum(1.0, trained_s[gave] / gap_s[gave]))) if gave.any() else None


def gather(setting: Scenario, sides: tuple[int, ...], side: int, decided: Times) -> Times:
    """When each seat has what all its mates along a side hold: shards of one size, from each its own.

    A mate sends from when it has its shard, at the rate of the pair or at its share of its own line; all of it passes
    the receiver's line. In the place of a mate that is gone another seat is asked that holds the same, after the usual
    silence.
    """
    seats_GM, peers = groups_along(sides, side), len(decided)
    taken_GM = seats_GM < peers
    known_GM = np.minimum(seats_GM, peers - 1)
    has_GM = np.where(taken_GM, decided[known_GM], np.nan)
    shard_bits = 8 * wire_bytes(setting) / math.prod(sides[: side + 1])
    all_bits_G1 = shard_bits * (taken_GM.sum(axis=1, keepdims=True) - 1)
    up_GM, down_GM = (all_bits_G1 / bps[known_GM] for bps in lines_of(setting))
    delay_GMM, pair_bps_GMM = setting.between(known_GM)
    at_GM = np.where(np.isnan(has_GM), -np.inf, has_GM)
    latest_G1 = at_GM.max(axis=1, keepdims=True)
    gives_GM = np.where(np.isnan(has_GM) & taken_GM, latest_G1 + FETCH_RETRY_S, at_GM)
    arrives_GMM = gives_GM[:, :, None] + delay_GMM + np.maximum(shard_bits / pair_bps_GMM, up_GM[:, :, None])
    own = np.arange(seats_GM.shape[1])
    arrives_GMM[:, own, own] = at_GM
    have: Times = np.full(math.prod(sides), np.nan)
    have[seats_GM] = np.maximum(arrives_GMM.max(axis=1), has_GM + down_GM)  # NaN for whoever has nothing
    return have[:peers]


def lines_of(setting: Scenario) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Up and down, in bits per second; infinite where there is no cap."""
    up = [machine.upload_bps or np.inf for machine in setting.machines]
    down = [machine.download_bps or np.inf for machine in setting.machines]
    return np.array(up), np.array(down)


def wire_bytes(setting: Scenario) -> int:
    return Codec(setting.spec.codec.wire).part_bytes(sum(setting.layer_sizes))


def seated(setting: Scenario) -> tuple[ChurnEvent, ...]:
    """Changes by seat: whoever joins takes the seat that has been empty for the longest time; without one it stays
    away, and so does whoever comes back to a seat that somebody else has."""
    seats, empty, found, joined = len(setting.machines), list[int](), list[ChurnEvent](), 0
    seat_of, holder = ({seat: seat for seat in range(seats)} for _ in range(2))
    for change in changes_of(setting.churn, seats, setting.seed, horizon_s(setting)):
        peer = change.peer
        if change.what == "join":
            peer, joined = seats + joined, joined + 1
            if not empty:
                continue
            seat_of[peer] = empty[0]
            holder[empty[0]] = peer
        seat = seat_of.get(peer)
        comes = change.what in ("join", "return")
        if seat is None or holder[seat] != peer or comes != (seat in empty):
            continue
        if comes:
            empty.remove(seat)
        else:
            empty.append(seat)
        found.append(ChurnEvent(at_s=change.at_s, peer=seat, what=change.what))
    return tuple(found)


def horizon_s(setting: Scenario) -> float:
    """Longer than the rounds will take, if each peer sends and receives the model several times in one."""
    slowest_s = max(machine.step_s for machine in setting.machines)
    train_s = min(setting.spec.round.max_train_s, slowest_s * setting.spec.round.steps)
    line_bps = min(float(line.min()) for line in lines_of(setting))
    return 3 * setting.rounds * (train_s + 60.0 + 8 * 4 * wire_bytes(setting) / line_bps)


BEST = 16
"""Members of a group at most, where the simulator chooses: votes are n² messages, and a larger group saves no bytes."""


def sides_for(peers: int) -> tuple[int, ...]:
    """Sides of nearly one length, as few as there can be with groups of `BEST` at most, and seats for all peers."""
    if peers <= MAX_MEMBERS:
        return (peers,)
    dimensions = math.ceil(math.log(peers) / math.log(BEST) - 1e-9)
    sides: list[int] = []
    left = peers
    for dimension in range(dimensions, 0, -1):
        side = math.ceil(left ** (1 / dimension) - 1e-9)
        sides.append(side)
        left = math.ceil(left / side)
    return tuple(sides)


def check_sides(sides: tuple[int, ...], peers: int) -> None:
    """Raises BadInput for a grid that has too few seats, or groups that are too large."""
    text = "x".join(map(str, sides))
    if math.prod(sides) < peers:
        raise BadInput(f"--grid {text} has {math.prod(sides)} seats for {peers} peers; make a side longer")
    if max(sides) > MAX_MEMBERS:
        raise BadInput(f"--grid {text} has groups of {max(sides)}; a group has at most {MAX_MEMBERS} members")
    if math.prod(sides) >= 2 * peers:
        raise BadInput(f"--grid {text} has {math.prod(sides)} seats for {peers} peers; most would be empty")
