"""Whom a link asks for the time, and how many must disagree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from dht import clock
from dht.clock import COMPARE_S, ClockWatch, watch_clock
from dht.errors import ClockOff, Unreachable

pytestmark = pytest.mark.usefixtures("at_once")

LOOKS = 10


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "LOOK_S", 0.0)


class Done(Exception):
    """It was looked often enough."""


class FewLooks(ClockWatch):
    """Ends with Done after `LOOKS` of them."""

    looks = 0

    @property
    def is_due(self) -> bool:
        self.looks += 1
        if self.looks > LOOKS:
            raise Done
        return super().is_due


class Around:
    """A node, its clock, and those around it."""

    def __init__(self, *connected: str, silent: int = 0, is_off: bool = False) -> None:
        self.connected, self.silent, self.is_off = connected, silent, is_off
        self.apart_s = self.steady_s = 0.0
        self.asked: list[tuple[set[str], int]] = []

    async def connections(self) -> dict[str, str]:
        if not self.connected:
            raise Unreachable("the daemon is busy")
        return dict.fromkeys(self.connected, "")

    async def compare_clocks(self, peers: Sequence[str], least: int) -> bool:
        self.asked.append((set(peers), least))
        if self.is_off:
            raise ClockOff("90 s ahead")
        return bool(peers) and len(self.asked) > self.silent

    def others(self) -> Iterator[str]:
        yield from ("me", "bootstrap", "away", *(f"p{number}" for number in range(8)))

    async def keep(self, *, jumps: bool) -> None:
        watch = FewLooks(lambda: self.steady_s + self.apart_s, lambda: self.steady_s)
        self.apart_s, self.steady_s = (90.0, 0.0) if jumps else (0.0, COMPARE_S)
        await watch_clock(self, self.others, watch)  # type: ignore[arg-type]


@pytest.mark.parametrize(("jumps", "least"), [(True, 1), (False, 2)])
async def test_a_clock_that_has_jumped_is_doubted_sooner(jumps: bool, least: int) -> None:
    """Asked are the nodes of the invite and whom rounds need, as far as there is a connection; no stranger."""
    around = Around("bootstrap", "p0", "stranger", is_off=True)
    with pytest.raises(ClockOff):
        await around.keep(jumps=jumps)
    assert around.asked == [({"bootstrap", "p0"}, least)]


async def test_it_asks_until_somebody_tells_and_then_not_again() -> None:
    """The network comes back later than the machine wakes up."""
    around = Around("p0", silent=2)
    with pytest.raises(Done):
        await around.keep(jumps=True)
    assert around.asked == [({"p0"}, 1)] * 3
    lonely = Around()
    with pytest.raises(Done):
        await lonely.keep(jumps=True)
    assert lonely.asked == [(set(), 1)] * LOOKS
