"""A grid of groups: rows average, then columns average what rows agreed on (`README.md` beside this file)."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise, takewhile
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dht.errors import BadInput
from peer.codec.codec import Codec
from peer.lifecycle.pace import MOST, reference, steps_at
from peer.protocol.block import MAX_MEMBERS
from peer.rounds.timeouts import KNOWN
from peer.rounds.transition import FETCH_RETRY_S
from peer.simulate.group import Group, Sink
from peer.simulate.run_summary import Summary, nine_in_ten
from peer.simulate.scenario import Churn, ChurnEvent, PeerProfile, Scenario, changes_of
from peer.simulate.simulated_peer import SimulatedPeer
from peer.spec import RunSpec

Chosen = Sequence[Sequence[int]]
"""Of each side the numbers of some of its groups."""


Times = NDArray[np.float64]
"""Shape (seats,): virtual seconds; NaN for a seat without a peer, or one that has nothing."""


@dataclass
class Sums:
    """What came of the groups along one side, summed up."""

    groups: int = 0
    commits: int = 0
    bytes_sent: int = 0
    aborts: int = 0
    later_ballots: int = 0
    void: int = 0
    parts: int = 0
    messages: int = 0
    penalties: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By attack of the peer that has it, empty of an honest one, and code."""
    attackers: Counter[str] = field(default_factory=Counter)
    """Founders among them, by attack."""

    def add(self, other: Sums) -> None:
        """Others along the same side."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


class Connection(Protocol):
    """To another process."""

    def send(self, what: Any) -> None:
        """Pickled."""

    def recv(self) -> Any:
        """What the other has sent."""


class FarPart:
    """A part in another process, which runs `serve`. All of it raises BadInput if that process was ended."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def begin(self, side: int, times: Times) -> None:
        """It goes on while others do."""
        with _there():
            self._connection.send((side, times))

    def end(self) -> Agreed:
        """Wait for it."""
        with _there():
            found: Agreed = self._connection.recv()
        return found

    def sums(self) -> list[Sums]:
        """The last that is asked of it."""
        with _there():
            self._connection.send(None)
            found: list[Sums] = self._connection.recv()
        return found


@contextmanager
def _there() -> Iterator[None]:
    try:
        yield
    except (EOFError, ConnectionError) as error:
        why = "a process of the simulation was ended, most likely for lack of memory"
        raise BadInput(f"{why}; give fewer --peers or --processes") from error


@dataclass(frozen=True)
class Agreed:
    """One round of one group."""

    ready: Times
    """When each member has its whole part to give, or would have had it; NaN for one that was not there."""
    stopped: Times
    """When each was asked for what it had by then, or went on to the next round; NaN for one that made its whole
    part."""
    decided: Times
    """When each had what its group decided; NaN for one that has nothing in time."""
    trained_s: Times
    """Seconds of training behind it, where members train."""
    tokens: NDArray[np.float64]
    """Shape (seats,): what each gives was learned from so many; NaN as in `ready`."""

    def fields(self) -> tuple[NDArray[np.float64], ...]:
        """All five."""
        return self.ready, self.stopped, self.decided, self.trained_s, self.tokens


Spread = Callable[[Scenario, tuple[int, ...], Sequence[ChurnEvent], Chosen], tuple[list[FarPart], Chosen]]
"""Starts parts in other processes; and says what is left for this one."""


def alone(
    setting: Scenario, sides: tuple[int, ...], changes: Sequence[ChurnEvent], chosen: Chosen
) -> tuple[list[FarPart], Chosen]:
    """All in this process."""
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
        self.mine = Part(setting, sides, self.changes, mine, sink)
        self.parts: list[Part | FarPart] = [*others, self.mine]
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
        """All rounds."""
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
        """In words, whose events are told."""
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
    """Of the whole model, encoded."""
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


LOOK_S = 0.1
NO_STEP_S = 1e-7
"""Of a step of those who only pass on what their group agreed on."""


class Side:
    """All groups along one side of the grid, or those that are `chosen`: the first of them tells its events."""

    def __init__(
        self, setting: Scenario, sides: tuple[int, ...], side: int, changes: Sequence[ChurnEvent], sink: Sink | None,
        chosen: Sequence[int],
    ) -> None:  # fmt: skip
        self.seats = groups_along(sides, side)
        self.groups: dict[int, Group] = {}
        for number in chosen:
            members = [int(seat) for seat in self.seats[number] if seat < len(setting.machines)]
            if members:
                heard = sink if side == 0 and number == chosen[0] else None
                self.groups[number] = _group(setting, sides, side, number, members, changes, heard)

    def round(self, released: Times) -> Agreed:
        """Let every group agree once; by seats, NaN for those of groups that are not simulated."""
        found = nothing(len(released))
        for number, group in self.groups.items():
            seats = self.seats[number][self.seats[number] < len(released)]
            for into, what in zip(found.fields(), agree(group, released[seats]).fields(), strict=True):
                into[seats] = what
        return found

    def sums(self) -> Sums:
        """What came of them."""
        groups = list(self.groups.values())
        rounds = [found for group in groups for found in group.tally.rounds.values()]
        machines = [machine for group in groups for machine in group.setting.machines]
        return Sums(
            groups=len(groups), commits=sum(group.tally.commits for group in groups),
            bytes_sent=sum(group.tally.bytes_sent for group in groups),
            aborts=sum(len(group.tally.aborts) for group in groups),
            later_ballots=sum(found.ballot > 0 for found in rounds), void=sum(found.void for found in rounds),
            parts=sum(found.parts for found in rounds), messages=sum(group.network.messages for group in groups),
            penalties=sum((group.penalties() for group in groups), Counter()),
            attackers=Counter(machine.attack for machine in machines if machine.attack),
        )  # fmt: skip


class Part:
    """Some groups along every side, in this process. `chosen`: of each side the numbers of its groups."""

    def __init__(
        self, setting: Scenario, sides: tuple[int, ...], changes: Sequence[ChurnEvent], chosen: Sequence[Sequence[int]],
        sink: Sink | None = None,
    ) -> None:  # fmt: skip
        self.sides = [Side(setting, sides, side, changes, sink, chosen[side]) for side in range(len(sides))]
        self._agreed: Agreed | None = None

    def begin(self, side: int, times: Times) -> None:
        """Let every group along a side agree once."""
        self._agreed = self.sides[side].round(times)

    def end(self) -> Agreed:
        """What came of it."""
        assert self._agreed is not None, "a round begins before it ends"
        return self._agreed

    def sums(self) -> list[Sums]:
        """What came of all rounds, by sides."""
        return [side.sums() for side in self.sides]


def serve(
    connection: Connection, setting: Scenario, sides: tuple[int, ...], changes: Sequence[ChurnEvent],
    chosen: Sequence[Sequence[int]],
) -> None:  # fmt: skip
    """Be a part for another process, until it asks for the sums or is gone."""
    part = Part(setting, sides, changes, chosen)
    try:
        while (asked := connection.recv()) is not None:
            part.begin(*asked)
            connection.send(part.end())
        connection.send(part.sums())
    except (EOFError, ConnectionError):
        return  # nobody is left to tell


def _group(
    setting: Scenario, sides: tuple[int, ...], side: int, number: int, members: Sequence[int],
    changes: Sequence[ChurnEvent], sink: Sink | None,
) -> Group:  # fmt: skip
    """One group along a side: its part of the model is what the sides before have left to it.

    One part for each reducer: a message stands for the run of parts that one member reduces.
    """
    elements = math.ceil(sum(setting.layer_sizes) / math.prod(sides[:side]))
    inside = {seat: place for place, seat in enumerate(members)}
    theirs = tuple(dataclasses.replace(change, peer=inside[change.peer]) for change in changes if change.peer in inside)
    own = dataclasses.replace(
        setting, layer_sizes=(elements,), machines=tuple(_machine(setting.machines[seat], side) for seat in members),
        places=tuple(setting.places[seat] for seat in members if setting.places), churn=Churn(schedule=theirs),
        spec=_spec(setting, side), part_elements=math.ceil(elements / len(members)), most_s=float("inf"),
        seed=setting.seed * 1_000_003 + side * 10_007 + number,
    )  # fmt: skip
    group = Group(own, sink=sink, name="" if side == 0 and number == 0 else f"{side}.{number}.")
    group.gate()
    return group


def _machine(machine: PeerProfile, side: int) -> PeerProfile:
    """Whoever passes on what a group agreed on has it encoded already."""
    if side == 0:
        return machine
    return dataclasses.replace(machine, step_s=NO_STEP_S, freeze_s=0.0, apply_s=0.0, attack="")


def _spec(setting: Scenario, side: int) -> RunSpec:
    """What rows agreed on was judged; columns weigh it by its tokens alone."""
    spec = setting.spec
    aggregation = spec.aggregation if side == 0 else dataclasses.replace(spec.aggregation, rule="mean")
    round = dataclasses.replace(spec.round, fragments=1, min_round_s=0, audit=0.0 if side else spec.round.audit)
    return dataclasses.replace(spec, aggregation=aggregation, round=round)


def nothing(seats: int) -> Agreed:
    """Of nobody: NaN everywhere."""
    return Agreed(*(np.full(seats, np.nan) for _ in range(5)))


def agree(group: Group, released: Times) -> Agreed:
    """One round of a group whose members may begin at these times."""
    holders = {place: holder for place in range(len(released)) if (holder := group.holder(place)) is not None}
    there = {place: holder for place, holder in holders.items() if not math.isnan(released[place])}
    round = max((holder.disk.head.round for holder in holders.values()), default=0)
    for place, holder in there.items():
        group.scheduler.call_at(float(released[place]), holder.release, round)
    if there:
        _run(group, list(there.values()), round, max(float(released[place]) for place in there))
    found = nothing(len(released))
    for place, holder in there.items():
        if holder.planned_for == round:
            found.ready[place] = holder.planned_at + holder.machine.freeze_s
        if holder.made_at >= released[place]:
            if holder.made_at < holder.planned_at:
                found.stopped[place] = holder.made_at
            found.trained_s[place], found.tokens[place] = holder.trained_in_s, holder.made_tokens
        if holder.alive and holder.disk.head.round > round:
            found.decided[place] = max(holder.agreed_at, released[place])
    return found


def _run(group: Group, holders: Sequence[SimulatedPeer], round: int, last_s: float) -> None:
    """Until all have what is decided, or those who are late have had `late_s`, or nothing is decided at all."""
    decided_at, latest_s = math.inf, last_s + _longest_s(group)
    while True:
        group.run_until(max(group.now + LOOK_S, group.scheduler.next_at))
        there = [holder for holder in holders if holder.alive]
        waiting = [holder for holder in there if holder.disk.head.round <= round]
        if len(waiting) < len(there) and math.isinf(decided_at):
            decided_at = group.now
        if not waiting or group.now > min(decided_at + group.late_s, latest_s):
            return


def _longest_s(group: Group) -> float:
    """A group that decides nothing for so long after its members may begin gives nothing in this round."""
    table = group.spec.round
    slowest_s = max(machine.step_s for machine in group.setting.machines) * table.steps
    return min(2 * slowest_s, table.max_train_s) + table.gather_s + 3 * (table.silence_s + table.exchange_s)


BEST = 16
"""Members of a group at most, where the simulator chooses: votes are n² messages, and a larger group saves no bytes."""

Seats = NDArray[np.int64]


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


def groups_along(sides: tuple[int, ...], side: int) -> Seats:
    """Shape (groups, members): the seats of each group along a side. Seats are numbered in row-major order."""
    seats = np.arange(math.prod(sides)).reshape(sides)
    return np.moveaxis(seats, side, -1).reshape(-1, sides[side])


CALM = 3
"""Rounds after which a loss is past: whoever is gone counts in the electorate for two."""


@dataclass(frozen=True)
class Past:
    """One round of one group that was simulated."""

    waited: bool
    """Whether the last of its members was ready, or would have been, before half of the group had what it decided."""
    delay_s: float
    """Until half of the group had it: from when the last was ready, or half of them if it is not waited for. NaN if
    nothing was decided."""
    offsets_s: Times
    """Shape (members,): how much later than half of the group each had it, in the order in which they are ready. NaN
    for one that had nothing in time."""
    stops_s: Times
    """Shape (members,): likewise how much later than that each stopped for it. NaN for one that made its whole part."""


@dataclass(frozen=True)
class Drawn:
    """What a group does, by members."""

    decided: Times
    """When each has what is decided; NaN for one that has nothing."""
    stopped: Times
    """When each stops short of its whole part; NaN for one that makes it."""


class Library:
    """What groups along one side did, by the rounds since they lost a member. A full one has so many `members`."""

    def __init__(self, members: int) -> None:
        self._members = members
        self._pasts: list[list[Past]] = [[] for _ in range(CALM + 1)]
        self._lateness_s: list[list[Times]] = [[] for _ in range(CALM + 1)]
        """Of each of them, shape (members,): how much later than half of them each was ready, in that order."""

    def add(self, ready: Times, stopped: Times, decided: Times, since: int) -> None:
        """One more round of a group: when its members were ready or would have been, stopped before that, and had what
        was decided."""
        there = np.flatnonzero(~np.isnan(ready))
        if not len(there):
            return
        order = there[np.argsort(ready[there], kind="stable")]
        half, last = float(np.median(ready[there])), float(ready[there].max())
        middle = math.nan if np.isnan(decided[order]).all() else float(np.nanmedian(decided[order]))
        waited = middle >= last
        delay_s = middle - (last if waited else half)
        self._pasts[since].append(Past(waited, delay_s, decided[order] - middle, stopped[order] - middle))
        self._lateness_s[since].append(_as_many(ready[order] - half, self._members))

    def draw(self, ready: Times, since: int, dice: np.random.Generator) -> Drawn:
        """What a group does whose members would be ready at these times; NaN for who is not there.

        Drawn from the nearest neighbours in how late all were, as many as the root of how many rounds are known (Lall
        and Sharma, A nearest neighbor bootstrap for resampling hydrologic time series, 1996).
        """
        there = np.flatnonzero(~np.isnan(ready))
        # Of what never happened the next quieter thing is taken, or else the next one that is less quiet.
        known = next((of for of in (*range(since, CALM + 1), *range(since)[::-1]) if self._pasts[of]), None)
        drawn = Drawn(np.full(len(ready), np.nan), np.full(len(ready), np.nan))
        if known is None or not len(there):
            return drawn
        order = there[np.argsort(ready[there], kind="stable")]
        half, last = float(np.median(ready[there])), float(ready[order[-1]])
        nearest = _nearest(np.array(self._lateness_s[known]), _as_many(ready[order] - half, self._members))
        past = self._pasts[known][nearest[_rank(len(nearest), dice)]]
        middle = (last if past.waited else half) + past.delay_s
        drawn.decided[order] = middle + _as_many(past.offsets_s, len(order))
        drawn.stopped[order] = middle + _as_many(past.stops_s, len(order))
        return drawn


def _as_many(of_members: Times, number: int) -> Times:
    """Shape (number,): who is late matters, so the last stay; of early members that are too few, the first stands."""
    return of_members[np.maximum(np.arange(number) - number + len(of_members), 0)]


def _nearest(known_s: NDArray[np.float64], lateness_s: Times) -> NDArray[np.intp]:
    """Of rounds, shape (rounds, members), the root of their number that come nearest to one, nearest first."""
    number = math.isqrt(len(known_s))
    away_s = np.abs(known_s - lateness_s).sum(axis=1)
    nearest = np.argpartition(away_s, number - 1)[:number]
    found: NDArray[np.intp] = nearest[np.argsort(away_s[nearest], kind="stable")]
    return found


def _rank(number: int, dice: np.random.Generator) -> int:
    """Of so many neighbours the j-th with a probability of 1/j over what that comes to for all."""
    up_to = np.cumsum(1 / np.arange(1, number + 1))
    return int(np.searchsorted(up_to, dice.random() * up_to[-1], side="right"))


SAMPLES = 16
"""Groups along each side that are simulated."""
CALIBRATED = 60
"""Rounds for which they are."""
LOSSES = ("crash", "leave")


class Estimate(Grid):
    """A grid of which only some groups are simulated."""

    def __init__(
        self, setting: Scenario, sides: tuple[int, ...], sink: Sink | None = None, far: Spread = alone
    ) -> None:
        super().__init__(setting, sides, sink, far)
        self._dice = np.random.Generator(np.random.PCG64([setting.seed, 0xA99]))
        self._libraries = [Library(side) for side in sides]
        self._step_s = np.array([machine.step_s for machine in setting.machines])
        self._spread = np.array([machine.spread for machine in setting.machines])
        self._speeds = [round(1000 * setting.step_tokens / machine.step_s) for machine in setting.machines]
        """Declared, in thousandths of a token per second."""
        self._freeze_s = np.array([machine.freeze_s for machine in setting.machines])
        self._ahead = deque(self.changes)
        self._gone_at = np.full(len(setting.machines), np.inf)
        """When whoever has a seat is gone; infinity while somebody is there."""
        self._lost_in = np.full(math.prod(sides), -CALM)
        """The round in which a seat lost its peer last."""
        self._since: list[Seats] = []
        """Of each side, for each group, how many rounds ago it lost a member, `CALM` at most."""

    def chosen(self, side: int) -> Sequence[int]:
        """Along each side those to which most happens, and others evenly over the grid; a row for each attack."""
        groups = groups_along(self.sides, side)
        happens = Counter(change.peer for change in self.changes if change.what in LOSSES)
        busy = sorted(range(len(groups)), key=lambda number: -sum(happens[int(seat)] for seat in groups[number]))
        step = max(1, len(groups) // (SAMPLES // 2))
        attacked = list(self.attacked().values())[: SAMPLES // 2] if side == 0 else []
        found = dict.fromkeys([*attacked, *busy[: SAMPLES // 2], *range(step // 2, len(groups), step), *busy])
        numbers = sorted(list(found)[:SAMPLES])
        return self.told_first(numbers) if side == 0 else numbers

    def side_round(self, side: int, times: Times) -> Agreed:
        """Simulate some, learn from them, draw the others."""
        if side == 0:
            if len(self.trained_s) == KNOWN:  # until then groups wait as long as the spec allows
                self._libraries = [Library(side) for side in self.sides]
            self._look_at_churn(times)
            times = np.where(self._gone_at <= times, np.nan, times)
        if len(self.trained_s) - (side > 0) >= CALIBRATED:
            return self._drawn(side, times)
        exact = super().side_round(side, times)
        along = groups_along(self.sides, side)
        # Whoever passes on what a group agreed on is ready when it has that.
        ready, stopped = (exact.ready, exact.stopped) if side == 0 else (times, np.full_like(times, np.nan))
        for number in self.simulated[side]:
            seats, since = along[number][along[number] < len(times)], int(self._since[side][number])
            self._libraries[side].add(ready[seats], stopped[seats], exact.decided[seats], since)
        drawn = self._drawn(side, times)
        known = np.isin(np.arange(len(times)), along[list(self.simulated[side])])
        return Agreed(*(np.where(known, one, other) for one, other in zip(exact.fields(), drawn.fields(), strict=True)))

    def told(self) -> str:
        """In words, whose events are told, and until when."""
        who, rounds = super().told(), self.setting.rounds
        return who if rounds <= CALIBRATED else f"{who}, for the first {CALIBRATED} of {rounds} rounds"

    def scale(self, attack: str = "") -> float:
        """Groups for each that is simulated, and rounds for each in which it is; of an attack, attackers for each."""
        rounds = self.setting.rounds / min(self.setting.rounds, CALIBRATED)
        if attack:
            attackers = sum(machine.attack == attack for machine in self.setting.machines)
            return rounds * attackers / self.sums()[0].attackers[attack]
        groups = sum(math.prod(self.sides) // side for side in self.sides)
        return rounds * groups / max(1, sum(found.groups for found in self.sums()))

    def _look_at_churn(self, times: Times) -> None:
        """Who is gone, or will be before this round is over, if it takes as long as the one before.

        Whoever comes while a round goes on takes part in the next.
        """
        now, number = float(np.nanmedian(times)), len(self.began) - 1
        first_s = float(self._step_s.max()) * self.setting.spec.steps_in(0)
        usual_s = now - float(np.nanmedian(self.began[-2])) if number else first_s
        while self._ahead and self._ahead[0].at_s <= now:
            change = self._ahead.popleft()
            if change.what in LOSSES:
                self._loses(change, number)
            else:
                self._gone_at[change.peer] = np.inf
        for change in takewhile(lambda change: change.at_s <= now + usual_s, self._ahead):
            if change.what in LOSSES:
                self._loses(change, number)
        since = np.clip(number - self._lost_in, 0, CALM)
        self._since = [since[groups_along(self.sides, side)].min(axis=1) for side in range(len(self.sides))]

    def _loses(self, change: ChurnEvent, round: int) -> None:
        if np.isinf(self._gone_at[change.peer]):
            self._gone_at[change.peer], self._lost_in[change.peer] = change.at_s, round

    def _drawn(self, side: int, times: Times) -> Agreed:
        """Every group along a side, by what is known of such groups."""
        if side:
            drawn = self._draw(side, np.where(self._gone_at <= times, np.nan, times))
            return Agreed(times, drawn.stopped, np.maximum(drawn.decided, times), times * 0, times * 0)
        step_s = self._step_s * np.exp(self._spread * self._dice.standard_normal(len(times)))
        in_time = self.setting.spec.round.max_train_s // step_s
        part_s = np.maximum(1, np.minimum(in_time, self._steps(len(self.began) - 1))) * step_s
        ready = times + part_s + self._freeze_s
        drawn = self._draw(side, np.where(self._gone_at <= ready, np.nan, ready))
        decided = np.maximum(drawn.decided, times)
        # Whoever goes on to the next round makes no more steps for this one.
        trained_s = np.fmin(part_s, np.fmin(drawn.stopped, decided) - times)
        trained_s = np.where(trained_s > 0, trained_s, np.nan)
        steps = np.maximum(1, np.floor(trained_s / step_s + 1e-6))
        return Agreed(ready, drawn.stopped, decided, trained_s, steps * self.setting.step_tokens)

    def _draw(self, side: int, ready: Times) -> Drawn:
        """Shape (seats,): of every group along a side, whose members are ready at these times."""
        found = Drawn(np.full_like(ready, np.nan), np.full_like(ready, np.nan))
        for members, since in zip(groups_along(self.sides, side), self._since[side], strict=True):
            taken = members[members < len(ready)]
            drawn = self._libraries[side].draw(ready[taken], int(since), self._dice)
            found.decided[taken], found.stopped[taken] = drawn.decided, drawn.stopped
        return found

    def _steps(self, round: int) -> NDArray[np.int64]:
        """Shape (seats,): what part of the round from anchor `round` is each seat's, by its pace and declared speed."""
        whole, pace = self.setting.spec.steps_in(round), self.setting.spec.round.pace
        if pace != "speed":
            return np.full(len(self._speeds), MOST * whole if pace == "time" else whole)
        found = np.zeros(len(self._speeds), dtype=np.int64)
        for members in groups_along(self.sides, 0):
            seats = members[members < len(found)]
            fastest = reference([self._speeds[seat] for seat in seats])
            found[seats] = [steps_at(self._speeds[seat], fastest, whole) for seat in seats]
        return found
