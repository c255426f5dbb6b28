"""Buffers that an asynchronous copier fills: who asks the guard never reads a mix, who does not soon does.

The schedules are drawn from a seed: in each, a copier moves one element at a time, its copies end in any order, and a
reader passes forward and backward through the buffers, as a model with recomputed activations does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from math import nan

import pytest

from peer.training.train.buffer_versions import BufferVersions, StaleVersion
from tests.schedules import Schedule, Task

SCHEDULES = 1_000
VERSIONS = 3
SIZES = (3, 0, 2, 1)
"""Elements of each buffer; a layer may have none."""


class Race(Schedule):
    """One schedule: a producer, a copier, and a reader of the kind that `read` says."""

    def __init__(self, seed: int, read: Callable[[Race], Task]) -> None:
        super().__init__(seed)
        self.guard = BufferVersions(len(SIZES))
        self.buffers = [[0.0] * size for size in SIZES]
        self.seen: list[tuple[int, float]] = []
        """What was read: the version that the reader believed in, and the number."""
        self.tasks += [self._produce(), read(self)]
        self.passes = 0
        """Versions that the reader has done with."""
        self.refused = 0
        """How often it was told that its version is gone."""

    @property
    def mixed(self) -> bool:
        """Whether something else was read than the version that was meant."""
        return any(number != version for version, number in self.seen)

    def _produce(self) -> Task:
        for _ in range(VERSIONS):
            while self.copies or not self.guard.idle or self.passes < self.guard.version:
                yield
            version = self.guard.begin()
            for number, buffer in enumerate(self.buffers):
                buffer[:] = [nan] * len(buffer)  # torch.empty may hold anything
                self.copies.append(self._copy(number, version))
                yield

    def _copy(self, number: int, version: int) -> Task:
        buffer = self.buffers[number]
        for element in range(len(buffer)):
            yield
            buffer[element] = float(version)
        yield
        self.guard.publish(number, version)

    def there_and_back(self) -> Iterator[int]:
        """Forward, and the other way in the backward pass."""
        return iter([*range(len(SIZES)), *reversed(range(len(SIZES)))])

    def read(self, number: int, version: int) -> Task:
        """One element after the other; other tasks run in between."""
        for element in range(SIZES[number]):
            self.seen.append((version, self.buffers[number][element]))
            yield

    def next_version(self) -> Task:
        """Until the producer has begun another one."""
        while self.guard.version == self.passes:
            yield


def guarded(race: Race) -> Task:
    """Enters, and asks before each read."""
    while race.passes < VERSIONS:
        yield from race.next_version()
        with race.guard.reading() as version:
            for number in race.there_and_back():
                while not race.guard.is_ready(number, version):
                    yield
                yield from race.read(number, version)
        race.passes = version


def asking_nobody(race: Race) -> Task:
    """Reads what is there: garbage that a copy has not reached yet."""
    while race.passes < VERSIONS:
        yield from race.next_version()
        version = race.guard.version
        for number in race.there_and_back():
            yield
            yield from race.read(number, version)
        race.passes = version


def asking_only_once(race: Race) -> Task:
    """Takes a buffer that was ever filled for filled: it may be about to become the next version."""
    filled: set[int] = set()
    while race.passes < VERSIONS:
        yield from race.next_version()
        version = race.guard.version
        for number in race.there_and_back():
            while number not in filled and not race.guard.is_ready(number, version):
                yield
            filled.add(number)
            yield from race.read(number, version)
        race.passes = version


def leaving_before_the_backward_pass(race: Race) -> Task:
    """Recomputes at whatever version there is by then."""
    while race.passes < VERSIONS:
        yield from race.next_version()
        with race.guard.reading() as version:
            for number in range(len(SIZES)):
                while not race.guard.is_ready(number, version):
                    yield
                yield from race.read(number, version)
        race.passes = version
        for number in reversed(range(len(SIZES))):
            yield
            yield from race.read(number, version)


def outside_but_asking(race: Race) -> Task:
    """The same, but it asks: it is told that its version is gone."""
    while race.passes < VERSIONS:
        yield from race.next_version()
        with race.guard.reading() as version:
            for number in range(len(SIZES)):
                while not race.guard.is_ready(number, version):
                    yield
                yield from race.read(number, version)
        race.passes = version
        yield
        try:
            for number in reversed(range(len(SIZES))):
                while not race.guard.is_ready(number, version):
                    yield
                race.seen.extend((version, value) for value in race.buffers[number])
                yield
        except StaleVersion:
            race.refused += 1


def run_all(read: Callable[[Race], Task], kind: type[Race] = Race) -> list[Race]:
    """The races of all schedules, each at its end."""
    races = [kind(seed, read) for seed in range(SCHEDULES)]
    for race in races:
        race.run()
        assert race.passes == VERSIONS
    return races


def mixes(races: list[Race]) -> int:
    """In how many schedules a mix was read."""
    return sum(race.mixed for race in races)


def test_a_guarded_reader_never_reads_a_mix() -> None:
    assert mixes(run_all(guarded)) == 0


@pytest.mark.slow
def test_a_reader_whose_version_is_gone_is_told_so_before_it_reads() -> None:
    """It recomputes outside: either nothing has changed, or StaleVersion."""
    races = run_all(outside_but_asking)
    assert mixes(races) == 0
    assert 0 < sum(race.refused for race in races) < SCHEDULES * VERSIONS


@pytest.mark.slow
@pytest.mark.parametrize("read", [asking_nobody, asking_only_once, leaving_before_the_backward_pass])
def test_a_careless_reader_reads_a_mix_in_most_schedules(read: Callable[[Race], Task]) -> None:
    """So that the schedules are hard enough for the careful one's result to mean something."""
    assert mixes(run_all(read)) > SCHEDULES / 2


def test_a_copy_that_is_published_before_it_ends_is_read_before_it_ends() -> None:
    """The race of ZeRO++: the guard is only as good as what its producer says."""

    class TooSoon(Race):
        def _copy(self, number: int, version: int) -> Task:
            self.guard.publish(number, version)
            for element in range(len(self.buffers[number])):
                yield
                self.buffers[number][element] = float(version)

    assert mixes(run_all(guarded, TooSoon)) > SCHEDULES / 2


def test_the_same_seed_is_the_same_schedule() -> None:
    """A schedule that fails can be looked at."""

    def seen(seed: int) -> str:
        race = Race(seed, asking_nobody)
        race.run()
        return repr(race.seen)

    assert seen(5) == seen(5)
    assert len({seen(seed) for seed in range(20)}) > 10


# ---- with threads ----


def test_a_reader_sleeps_until_its_buffer_is_published() -> None:
    """The other buffers do not wake it for good."""
    guard = BufferVersions(2)
    version = guard.begin()
    entered, read = threading.Event(), threading.Event()

    def wait() -> None:
        with guard.reading():
            entered.set()
            guard.wait(1, version, 60)
            read.set()

    reader = threading.Thread(target=wait)
    reader.start()
    assert entered.wait(60)
    guard.publish(0, version)
    assert not read.is_set()
    guard.publish(1, version)
    reader.join(60)
    assert read.is_set()


def test_what_readers_waited_is_counted_for_each_version() -> None:
    """By the clock that is given; who need not wait costs nothing."""
    times = iter([10.0, 13.0])
    guard = BufferVersions(1, clock=lambda: next(times))
    version = guard.begin()
    with pytest.raises(TimeoutError, match="buffer 0 is not at version 1"):
        guard.wait(0, version, 0)
    guard.publish(0, version)
    guard.wait(0, version, 0)
    assert guard.waited_s == 3.0
    guard.begin()
    assert guard.waited_s == 0.0


def test_what_the_producer_failed_with_reaches_the_reader() -> None:
    """One that waits, and every later one."""
    guard = BufferVersions(1)
    version = guard.begin()
    threading.Thread(target=guard.fail, args=[ZeroDivisionError("by zero")]).start()
    for _ in range(2):
        with pytest.raises(ZeroDivisionError, match="by zero"):
            guard.wait(0, version, 60)
    with pytest.raises(AssertionError, match="not whole"):
        guard.begin()


def test_the_next_version_begins_when_nobody_reads_and_the_one_before_is_whole() -> None:
    guard = BufferVersions(2)
    with guard.reading(), pytest.raises(AssertionError, match="somebody reads"):
        guard.begin()
    version = guard.begin()
    guard.publish(1, version)
    with pytest.raises(AssertionError, match="not whole"):
        guard.begin()
    guard.publish(0, version)
    assert guard.begin() == version + 1


def test_a_producer_that_is_too_late_is_refused() -> None:
    """What it copied is of a version that is gone."""
    guard = BufferVersions(1)
    first = guard.begin()
    guard.publish(0, first)
    second = guard.begin()
    with pytest.raises(StaleVersion, match="version 1 is asked for; the buffers are at 2"):
        guard.publish(0, first)
    assert not guard.is_ready(0, second)
