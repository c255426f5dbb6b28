"""Ranks that gather layers while an update is applied to them: one schedule of turns, and what was read in it.

Each rank holds a share of every layer, in plain lists. Its passes gather as FSDP does: in the forward pass a group of
layers after the other from all ranks' shares, of which second copies are left; in the backward pass from those. The
guard is the product's. It can be broken in one place.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from enum import StrEnum, auto
from typing import Any

from peer.parallel.fsdp.gather_guard import GatherGuard
from peer.parallel.fsdp.gather_hooks import Enter
from peer.training.train.buffer_versions import BufferVersions, StaleVersion
from tests.schedules import Schedule, Task

VERSIONS = 3
SHARES = ((2, 1, 1, 1), (2, 1, 0, 1))
"""Elements of each layer with each rank; a parameter with fewer rows than ranks leaves one without."""
LAYERS = len(SHARES[0])
ROOT, *BLOCKS = GROUPS = ((0, LAYERS - 1), (1,), (2,))
"""Layers that are gathered at once; those of the root stay gathered until the backward pass."""
CARELESS = 0.08
"""So many of all passes are outside of `reading`."""
APPLIERS = 2

Group = tuple[int, ...]
Key = tuple[int, int]
"""Of a pass: the version that it belongs to, and its number."""


class Pass(StrEnum):
    """What a rank does between two updates."""

    STEP = auto()
    EVALUATION = auto()
    CARELESS = auto()
    """An evaluation outside of `reading`: updates begin in its middle. What it reads itself is not counted."""


class Broken(StrEnum):
    """The guard that is taken out."""

    NO_WAIT = auto()
    NO_VERSION_OF_COPIES = auto()
    COPIES_KEPT = auto()
    GATES_BEHIND = auto()
    READERS_IGNORED = auto()


class Abandoned(Exception):
    """Another rank has left the pass that this one waits in."""


class GatherRace(Schedule):
    """One schedule of all ranks, which are told the same passes and updates."""

    def __init__(self, seed: int, broken: Broken | None = None) -> None:
        super().__init__(seed)
        self.broken = broken
        self.program = [[self._draw() for _ in range(self.random.randint(1, 3))] for _ in range(VERSIONS + 1)]
        self.is_careless = any(Pass.CARELESS in passes for passes in self.program)
        self.sent: dict[tuple[Key, str, Group], dict[int, list[float]]] = {}
        """What the ranks gave to each gather."""
        self.abandoned: set[Key] = set()
        self.seen: list[tuple[int, float]] = []
        """What was read: the version that the reader believed in, and the number."""
        self.refused = False
        """A pass that was `reading` found a version that it may not read."""
        self.tasks += [Rank(self, number).live() for number in range(len(SHARES))]

    def _draw(self) -> Pass:
        if self.random.random() < CARELESS:
            return Pass.CARELESS
        return self.random.choice([Pass.STEP, Pass.EVALUATION])

    def run(self) -> None:
        """Until every rank is through, or refuses to read."""
        try:
            super().run()
        except StaleVersion:
            self.refused = True

    @property
    def mixed(self) -> bool:
        """Whether something else was read than the version that was meant."""
        return any(number != version for version, number in self.seen)

    @property
    def failed(self) -> bool:
        """Whether a mix was read, or a pass was refused though all of them were `reading`."""
        return self.mixed or (self.refused and not self.is_careless)


class Rank:
    """One rank: its share of each layer, what FSDP keeps beside it, and a guard."""

    def __init__(self, race: GatherRace, number: int) -> None:
        self._race, self._number = race, number
        self._shares = [[0.0] * size for size in SHARES[number]]
        self._gathered: dict[Group, list[list[float]]] = {}
        """By rank."""
        self._second: dict[Group, list[float]] = {}
        self._inside: set[Group] = set()
        """What a forward pass is in the middle of."""
        self._begun = 0
        self._enter: Enter
        self.guard = GatherGuard(LAYERS, self._gates, wait_s=0)
        self._break()

    def _break(self) -> None:
        parts: dict[str, Any] = vars(self.guard)
        if self._race.broken is Broken.NO_WAIT:
            vars(parts["_versions"])["wait"] = lambda *_: None
        if self._race.broken is Broken.NO_VERSION_OF_COPIES:
            parts["_check_copy"] = lambda _: None
        if self._race.broken is Broken.READERS_IGNORED:
            parts["_versions"] = ReadersIgnored(LAYERS)

    # ---- what FSDP does ----

    def _gates(self, enter: Enter) -> Rank:
        self._enter = enter
        return self

    def is_gathered(self, layer: int) -> bool:
        return any(layer in group for group in (*self._gathered, *self._second))

    def forget(self) -> None:
        """As `reshard` does: in the middle of a forward pass the root stays, a block becomes a second copy."""
        if self._race.broken is Broken.COPIES_KEPT:
            return
        inside = self._inside
        self._second = {group: own for group, own in self._second.items() if group in inside}
        for group in [group for group in self._gathered if group != ROOT or ROOT not in inside]:
            own = self._gathered.pop(group)[self._number]
            if group in inside:
                self._second[group] = own

    def _gather(self, group: Group, key: Key, way: str) -> Task:
        """From all ranks: of what was gathered, else of second copies, else of the shares."""
        own: list[float] = []
        if group in self._gathered:
            own = self._gathered[group][self._number]
        elif group in self._second:
            own = self._second.pop(group)
        else:
            for layer in group:
                for element in range(len(self._shares[layer])):
                    yield
                    own.append(self._shares[layer][element])
        sent = self._race.sent.setdefault((key, way, group), {})
        sent[self._number] = own
        while len(sent) < len(SHARES):
            if key in self._race.abandoned:
                raise Abandoned
            yield
        self._gathered[group] = [sent[number] for number in range(len(SHARES))]

    def _forward(self, key: Key, note: Callable[[float], None]) -> Task:
        for group in GROUPS:
            gates = self._pass_gate(group)
            if self._race.broken is not Broken.GATES_BEHIND:
                yield from gates
            self._inside.add(group)
            yield from self._gather(group, key, "forward")
            yield from gates
            yield from self._compute(group, note)
            if group != ROOT:
                if group in self._gathered:
                    self._second[group] = self._gathered.pop(group)[self._number]
                self._inside.discard(group)
        yield from self._pass_gate(range(LAYERS))
        self._inside.discard(ROOT)

    def _backward(self, key: Key, note: Callable[[float], None]) -> Task:
        for group in reversed(GROUPS):
            yield from self._gather(group, key, "backward")
            yield from self._compute(group, note)
            del self._gathered[group]

    def _compute(self, group: Group, note: Callable[[float], None]) -> Task:
        for part in self._gathered[group]:
            for number in part:
                note(number)
        yield

    # ---- what a trainer does ----

    def live(self) -> Task:
        """All passes of all versions."""
        for version, passes in enumerate(self._race.program):
            while self._begun < version:
                yield
            for number, kind in enumerate(passes):
                updates = [self._begin()] if number == len(passes) - 1 and version < VERSIONS else []
                yield from self._pass(kind, (version, number), updates)

    def _pass(self, kind: Pass, key: Key, updates: list[Task]) -> Task:
        """In its middle the next update is there, if that is the last pass before it."""
        if kind is Pass.CARELESS:
            self._race.tasks += updates
            with suppress(StaleVersion, Abandoned):
                yield from self._forward(key, lambda _: None)
                return
            self._race.abandoned.add(key)
            self._inside.clear()
            return
        version = key[0]
        with self.guard.reading():
            self._race.tasks += updates
            yield from self._forward(key, lambda number: self._race.seen.append((version, number)))
            if kind is Pass.STEP:
                yield from self._backward(key, lambda number: self._race.seen.append((version, number)))

    def _begin(self) -> Task:
        """As soon as the guard lets it."""
        while True:
            try:
                version = self.guard.begin()
            except AssertionError:
                yield
                continue
            break
        self._race.copies += [self._apply(range(first, LAYERS, APPLIERS), version) for first in range(APPLIERS)]
        self._begun = version

    def _apply(self, layers: Collection[int], version: int) -> Task:
        for layer in layers:
            for element in range(len(self._shares[layer])):
                yield
                self._shares[layer][element] = float(version)
            yield
            self.guard.publish(layer, version)

    def _pass_gate(self, layers: Collection[int]) -> Task:
        while True:
            try:
                return self._enter(layers)
            except TimeoutError:
                yield


class ReadersIgnored(BufferVersions):
    """The next version begins though somebody reads."""

    @property
    def idle(self) -> bool:
        return True
