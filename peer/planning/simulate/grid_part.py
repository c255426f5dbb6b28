"""Groups along the sides of a grid, message by message, in this process or in another one."""

from __future__ import annotations

import dataclasses
import math
import pickle
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dht.errors import BadInput
from peer.planning.simulate.group import Group, Sink
from peer.planning.simulate.scenario import Churn, ChurnEvent, PeerProfile, Scenario
from peer.planning.simulate.simulated_peer import SimulatedPeer
from peer.schema.spec import RunSpec

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
    """To another process of ours."""

    def send_bytes(self, buf: bytes) -> None: ...
    def recv_bytes(self) -> bytes: ...


def send(connection: Connection, what: Any) -> None:
    """Pickled by ourselves: what `Connection.send` pickles into may die in a cycle, which ends CPython 3.12.1."""
    connection.send_bytes(pickle.dumps(what))


def receive(connection: Connection) -> Any:
    """What the other has sent."""
    return pickle.loads(connection.recv_bytes())


class FarPart:
    """A part in another process, which runs `serve`. All of it raises BadInput if that process was ended."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def begin(self, side: int, times: Times) -> None:
        with _there():
            send(self._connection, (side, times))

    def end(self) -> Agreed:
        with _there():
            found: Agreed = receive(self._connection)
        return found

    def sums(self) -> list[Sums]:
        """The last that is asked of it."""
        with _there():
            send(self._connection, None)
            found: list[Sums] = receive(self._connection)
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
        return self.ready, self.stopped, self.decided, self.trained_s, self.tokens


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
        groups = list(self.groups.values())
        for group in groups:
            group.finish()
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


class GridPart:
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
    part = GridPart(setting, sides, changes, chosen)
    try:
        while (asked := receive(connection)) is not None:
            part.begin(*asked)
            send(connection, part.end())
        send(connection, part.sums())
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
    return Group(own, sink=sink, name="" if side == 0 and number == 0 else f"{side}.{number}.", gates=True)


def _machine(machine: PeerProfile, side: int) -> PeerProfile:
    """Whoever passes on what a group agreed on has it encoded already."""
    if side == 0:
        return machine
    return dataclasses.replace(machine, step_s=NO_STEP_S, submit_s=0.0, apply_s=0.0, attack="")


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
            found.ready[place] = holder.planned_at + holder.machine.submit_s
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


Seats = NDArray[np.int64]


def groups_along(sides: tuple[int, ...], side: int) -> Seats:
    """Shape (groups, members): the seats of each group along a side. Seats are numbered in row-major order."""
    seats = np.arange(math.prod(sides)).reshape(sides)
    return np.moveaxis(seats, side, -1).reshape(-1, sides[side])
