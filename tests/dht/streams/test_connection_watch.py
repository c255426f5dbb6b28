"""Whom a node cannot reach: after what, and when it is found again."""

from __future__ import annotations

from itertools import pairwise

from dht.errors import Unreachable
from dht.streams.connection_watch import CLOSED_S, DIALS, REDIAL_S, ConnectionWatch


class Network:
    """Who is wanted, connected and can be dialled, by the clock `now`."""

    def __init__(self, *peers: str) -> None:
        self.now = 100.0
        self.wanted, self.connected, self.answering = list(peers), set(peers), set(peers)
        self.dials: list[tuple[float, str]] = []
        self.is_busy, self.keeps = False, True
        self.watch = ConnectionWatch(lambda: self.wanted, self.connections, self.dial, lambda: self.now)

    async def connections(self) -> set[str]:
        """The daemon's answer."""
        if self.is_busy:
            raise Unreachable("the daemon is busy")
        return self.connected

    async def dial(self, peer: str, timeout_s: float) -> None:
        """Connect, unless nobody answers."""
        self.dials.append((self.now, peer))
        if peer not in self.answering:
            raise Unreachable(peer)
        if self.keeps:
            self.connected.add(peer)

    async def pass_time(self, seconds: float) -> frozenset[str]:
        """Look once a second; who is unreachable then."""
        for _ in range(round(seconds)):
            self.now += 1.0
            await self.watch.look()
        return self.watch.unreachable

    def end(self, peer: str, *, for_good: bool = True) -> None:
        """The connection closes, and nobody answers there if that is for good."""
        self.connected.discard(peer)
        if for_good:
            self.answering.discard(peer)


async def test_a_peer_that_died_is_unreachable_within_seconds() -> None:
    """Dialled at once, in vain; the others stay in reach."""
    network = Network("alice", "bob")
    assert await network.pass_time(5) == frozenset()
    network.end("bob")
    assert await network.pass_time(CLOSED_S) == frozenset()
    assert network.dials == [(106.0, "bob")]
    assert await network.pass_time(1) == {"bob"}


async def test_a_connection_that_comes_back_at_once_was_never_gone() -> None:
    """A router forgot it: the redial finds the peer."""
    network = Network("bob")
    network.end("bob", for_good=False)
    assert await network.pass_time(10 * CLOSED_S) == frozenset()
    assert len(network.dials) == 1


async def test_who_cannot_be_dialled_has_time_to_dial_itself() -> None:
    """A peer without an address of its own connects again a second later."""
    network = Network("bob")
    network.end("bob")
    assert await network.pass_time(CLOSED_S - 1) == frozenset()
    network.connected.add("bob")
    assert await network.pass_time(10) == frozenset()


async def test_who_answers_is_there_though_its_connection_closes_again_and_again() -> None:
    """A closed connection alone says nothing: only a dial that failed does."""
    network = Network("bob")
    network.keeps = False
    network.end("bob", for_good=False)
    assert await network.pass_time(20) == frozenset()


async def test_who_died_is_dialled_now_and_then_and_found_when_it_is_back() -> None:
    """Not with each look."""
    network = Network("bob")
    network.end("bob")
    assert await network.pass_time(20) == {"bob"}
    at = [at for at, _ in network.dials]
    assert [after - before for before, after in pairwise(at)] == [REDIAL_S] * (len(at) - 1)
    network.answering.add("bob")
    assert await network.pass_time(REDIAL_S + 1) == frozenset()


async def test_who_is_heard_is_there() -> None:
    """It opened a connection of its own, which counts before the next look; when that ends, everything begins anew."""
    network = Network("bob")
    network.end("bob")
    assert await network.pass_time(10) == {"bob"}
    network.watch.heard("stranger")
    network.watch.heard("bob")
    assert network.watch.unreachable == frozenset()
    network.connected.add("bob")
    assert await network.pass_time(5) == frozenset()
    network.end("bob")
    assert await network.pass_time(CLOSED_S) == frozenset()
    assert await network.pass_time(REDIAL_S) == {"bob"}


async def test_whom_nobody_wants_any_more_is_forgotten() -> None:
    """Nothing was sent to it for long."""
    network = Network("bob")
    network.end("bob")
    assert await network.pass_time(10) == {"bob"}
    network.wanted.clear()
    assert await network.pass_time(1) == frozenset()


async def test_a_busy_daemon_changes_nothing() -> None:
    """A look without an answer finds neither the dead alive nor the living dead."""
    network = Network("alice", "bob")
    network.end("bob")
    assert await network.pass_time(10) == {"bob"}
    network.is_busy = True
    assert await network.pass_time(10) == {"bob"}


async def test_many_dead_cost_a_few_dials_at_a_time() -> None:
    """The rest is dialled with the next look."""
    names = [f"p{number}" for number in range(DIALS + 30)]
    network = Network(*names)
    for name in names:
        network.end(name)
    await network.pass_time(1)
    assert len(network.dials) == DIALS
    assert await network.pass_time(CLOSED_S + 1) == set(names)
