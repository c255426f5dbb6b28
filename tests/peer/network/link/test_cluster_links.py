"""Links of a cluster: real link processes of a lead and of workers, with these tests in the place of their trainers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from functools import partial
from itertools import pairwise
from pathlib import Path
from queue import Queue
from typing import Any, TypeVar

import pytest

from dht.addresses import LOOPBACK
from dht.errors import BadInvite
from dht.identity import Identity
from dht.invite import issue
from dht.node import NetworkConfig, open_node
from peer.network.link.channel import LinkLost
from peer.network.link.cluster_invite import SECRET_BYTES, ClusterInvite, issue_in, keep_found, parse_cluster, save_line
from peer.network.link.cluster_lead import Offers
from peer.network.link.handle import LinkProcess
from peer.schema import spec as specs
from peer.schema.cluster_messages import OfferWork, pack_offer, unpack_word
from peer.schema.ipc import (
    AnyToTrainer,
    Assignment,
    AssignStages,
    HomeLost,
    HomesExpelled,
    HomesFound,
    HomesMissing,
    HomesOffered,
    SeekWork,
    SpecText,
    StageHolder,
    StagesAssigned,
    Waiting,
)
from peer.schema.settings import PeerSettings
from peer.testing.child_process import BUSY, HANG_S

pytestmark = pytest.mark.swarm

SPEC = specs.load("micro")
TOLD_S = 8.0 * BUSY
"""A home that is lost is known to be within this time."""

M = TypeVar("M")


class Trainer:
    """What a trainer hears of its link, and says to it."""

    def __init__(self, folder: Path, invite: str, **chosen: Any) -> None:
        self.me = Identity.load_or_create(folder / "identity.key").peer_id
        self.said: Queue[AnyToTrainer | Exception] = Queue()
        settings = PeerSettings(name=folder.name, listen=LOOPBACK, **chosen)
        self.link = LinkProcess(invite, folder, settings, self.said.put, self.said.put)
        self._begin()

    def _begin(self) -> None:
        """As a life does; a lead's link makes nothing of what it may offer."""
        self.hear(SpecText)
        self.link.send(SeekWork(8.0, 100.0))

    def hear(self, kind: type[M], wanted: Callable[[M], bool] = lambda message: True) -> M:
        """The next message of this kind that is wanted; what comes before it is dropped."""
        until = time.monotonic() + HANG_S
        while True:
            message = self.said.get(timeout=max(0.0, until - time.monotonic()))
            if isinstance(message, kind) and wanted(message):
                return message

    def hear_flow(self) -> tuple[str, bytes]:
        found = self.link.flow.receive(HANG_S)
        assert found is not None
        return found

    def restart(self) -> None:
        self.link.restart()
        self._begin()

    def close(self) -> None:
        self.link.kill()
        self.link.__exit__(None, None, None)


class Place:
    """A run whose organiser serves its spec, and homes that have its invite."""

    def __init__(self, folder: Path, invite: str, stack: AsyncExitStack) -> None:
        self._folder, self._invite, self._stack = folder, invite, stack

    def lead(self, stages: int = 2) -> Trainer:
        return self._start("lead", stages=stages)

    def worker(self, name: str, line: ClusterInvite, **chosen: Any) -> Trainer:
        save_line(line, self._folder / name)
        return self._start(name, **chosen)

    def finder(self, name: str, found: HomesFound) -> Trainer:
        """A worker that has found its place by itself."""
        (self._folder / name).mkdir()
        keep_found(self._folder / name, found)
        return self._start(name)

    @property
    def line(self) -> ClusterInvite:
        return issue_in(self._folder / "lead")

    def _start(self, name: str, **chosen: Any) -> Trainer:
        home = Trainer(self._folder / name, self._invite, **chosen)
        self._stack.callback(home.close)
        return home


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    organiser = Identity.load_or_create(tmp_path / "b" / "identity.key")
    config = NetworkConfig(
        run=SPEC.digest(), identity_path=tmp_path / "b" / "identity.key", socket_folder=tmp_path / "b" / "run",
        listen=LOOPBACK,
    )  # fmt: skip
    async with open_node(config) as bootstrap, AsyncExitStack() as stack:
        bootstrap.serve("spec", specs.dump(SPEC).encode)
        addrs = await bootstrap.addresses()
        invite = tmp_path / "invite"
        invite.write_text(issue(organiser, run=SPEC.run.name, spec_hash=SPEC.digest(), addrs=addrs))
        yield Place(tmp_path, str(invite), stack)


def dealt(epoch: int, *homes: Trainer) -> Assignment:
    """A layer each."""
    stages = tuple(StageHolder(home.me, layer, layer) for layer, home in enumerate(homes))
    return Assignment(epoch, stages, (), "int8")


def assemble(epoch: int, lead: Trainer, *workers: Trainer) -> Assignment:
    """Once the lead has heard of all workers, each of them hears what it is to do."""
    names = {worker.me for worker in workers}
    said = lead.hear(HomesOffered, lambda said: {home.peer for home in said.homes} == names)
    assert {(home.memory_gb, home.tokens_per_s) for home in said.homes} == {(8.0, 100.0)}
    assignment = dealt(epoch, lead, *workers)
    lead.link.send(AssignStages(assignment))
    for worker in workers:
        assert worker.hear(StagesAssigned).assignment == assignment
    return assignment


async def in_thread(work: Callable[[], None]) -> None:
    """The organiser's node lives in this event loop, which must go on."""
    await asyncio.to_thread(work)


async def test_workers_offer_themselves_and_flights_pass_between_all_trainers(place: Place) -> None:
    """Large and small, also from worker to worker, in order."""

    def story() -> None:
        lead = place.lead(stages=3)
        workers = [place.worker(name, place.line) for name in ("w1", "w2")]
        assemble(1, lead, *workers)
        ring = [lead, *workers, lead]
        for sender, receiver in pairwise(ring):
            frames = [bytes([number]) * size for number, size in enumerate((1, 4 << 20, 0, 70_000))]
            for frame in frames:
                sender.link.flow.send(receiver.me, frame)
            assert [receiver.hear_flow() for _ in frames] == [(sender.me, frame) for frame in frames]

    await in_thread(story)


async def test_an_offer_says_what_the_line_may_carry(place: Place) -> None:
    def story() -> None:
        lead, worker = place.lead(), place.worker("w1", place.line, upload_mbps=3.0)
        homes = lead.hear(HomesOffered, lambda said: len(said.homes) == 1).homes
        assert [(home.peer, home.upload_mbps) for home in homes] == [(worker.me, 3.0)]

    await in_thread(story)


async def test_an_offer_without_a_cap_says_what_was_measured_while_homes_found_each_other(place: Place) -> None:
    """By the link before this one: else the first dealing would take it for a line without any limit."""

    def story() -> None:
        lead, line = place.lead(), place.line
        worker = place.finder("w1", HomesFound(line.lead, (line.lead, "w1"), 100.0, line.text(), 7.0))
        homes = lead.hear(HomesOffered, lambda said: len(said.homes) == 1).homes
        assert [(home.peer, home.upload_mbps) for home in homes] == [(worker.me, 7.0)]

    await in_thread(story)


async def test_a_lost_worker_is_told_and_taken_back(place: Place) -> None:
    """Its link dies; another one of the same home offers itself, and works from the next epoch on."""

    def story() -> None:
        lead, worker = place.lead(), place.worker("w1", place.line)
        assemble(1, lead, worker)
        lead.link.flow.send(worker.me, b"flight")
        assert worker.hear_flow() == (lead.me, b"flight")
        worker.link.kill()
        since = time.monotonic()
        assert lead.hear(HomeLost).peer == worker.me
        assert time.monotonic() - since < TOLD_S
        with pytest.raises(LinkLost):
            worker.hear_flow()
        worker.restart()
        lead.restart()
        assemble(2, lead, worker)
        worker.link.flow.send(lead.me, b"again")
        assert lead.hear_flow() == (worker.me, b"again")

    await in_thread(story)


async def test_a_lost_lead_is_told_and_found_again(place: Place) -> None:
    """Its workers keep their links, and hear of it when it comes back."""

    def story() -> None:
        lead, worker = place.lead(), place.worker("w1", place.line)
        assemble(1, lead, worker)
        lead.link.flow.send(worker.me, b"flight")
        assert worker.hear_flow() == (lead.me, b"flight")
        lead.link.kill()
        since = time.monotonic()
        assert worker.hear(HomeLost).peer == lead.me
        assert time.monotonic() - since < TOLD_S
        lead.restart()
        assemble(2, lead, worker)
        lead.link.flow.send(worker.me, b"again")
        assert worker.hear_flow() == (lead.me, b"again")

    await in_thread(story)


async def test_who_has_another_secret_is_refused_in_one_line(place: Place) -> None:
    """And is no home of the cluster."""

    def story() -> None:
        lead = place.lead()
        wrong = ClusterInvite(lead=place.line.lead, secret=bytes(SECRET_BYTES))
        stranger = place.worker("w1", wrong)
        refused = stranger.hear(Waiting, lambda said: "secret" in said.why)
        assert refused.why == "this cluster's lead knows another secret; ask for a new line"
        worker = place.worker("w2", place.line)
        assemble(1, lead, worker)

    await in_thread(story)


async def test_an_expelled_home_makes_room_and_looks_for_others(place: Place) -> None:
    """It is no longer one of those that came, so that another one may take its place; its trainer is told at once,
    though it has a stage."""

    def story() -> None:
        lead, line = place.lead(), place.line
        worker = place.finder("w1", HomesFound(line.lead, (line.lead, "w1"), 100.0, line.text(), 7.0))
        assemble(1, lead, worker)
        lead.restart()
        lead.hear(HomesOffered, lambda said: len(said.homes) == 1)
        lead.link.send(HomesExpelled((worker.me,)))
        assert lead.hear(HomesOffered).homes == ()
        assert "garbage" in worker.hear(Waiting, lambda said: "lead" in said.why and "found" in said.why).why
        assert worker.hear(HomesMissing).missing == (line.lead,)
        friend = place.worker("w2", line)
        assemble(2, lead, friend)

    await in_thread(story)


class Lead:
    """In the place of a node and of a pipe: what the lead answers, and what it says to its trainer."""

    def __init__(self, folder: Path) -> None:
        self.said: list[Any] = []
        self.line = issue_in(folder)
        self.offers = Offers(self, self, self.line)  # type: ignore[arg-type]

    def answer(self, name: str, answer: Any) -> None:
        self._answer = answer

    def send(self, message: Any) -> None:
        self.said.append(message)

    async def ask(self, peer: str, secret: bytes) -> str | None:
        """Why it was refused; None for no answer at all."""
        packed = await self._answer(peer, pack_offer(OfferWork(secret, "x", 0.0, 0.0, 0.0, 0)))
        return None if packed is None else unpack_word(packed).refused


async def test_wrong_secrets_are_answered_a_few_times(tmp_path: Path) -> None:
    """Whoever tries more gets nothing; those who know it are not in its way."""
    lead = Lead(tmp_path)
    ask = partial(lead.ask, "stranger", bytes(SECRET_BYTES))
    answers = [await ask() for _ in range(20)]
    assert answers[0]
    assert answers[-1] is None
    assert sum(answer is not None for answer in answers) == 8
    assert await lead.ask("friend", lead.line.secret) == ""
    assert [home.peer for home in lead.said[-1].homes] == ["friend"]


TOO_LONG = pack_offer(OfferWork(b"x" * 65, "x", 0.0, 0.0, 0.0, 0))


@pytest.mark.parametrize("packed", [b"", b"\x00", b"\xff" * 100, TOO_LONG])
async def test_what_is_no_offer_is_not_answered(tmp_path: Path, packed: bytes) -> None:
    assert await Lead(tmp_path)._answer("stranger", packed) is None


def test_a_line_says_all_that_a_friend_needs(tmp_path: Path) -> None:
    """The same each time; its secret is for the owner of the folder alone."""
    line = issue_in(tmp_path)
    assert parse_cluster(f" {line.text()}\n") == line == issue_in(tmp_path)
    assert (tmp_path / "cluster.secret").stat().st_mode & 0o777 == 0o600
    assert line.secret.hex() not in repr(line)


def test_all_who_ask_for_a_line_at_once_get_the_same(tmp_path: Path) -> None:
    """The peer makes it as it starts, while its owner asks for it."""
    with ThreadPoolExecutor(8) as pool:
        for run in range(20):
            lines = list(pool.map(lambda folder: issue_in(folder).text(), [tmp_path / f"{run}"] * 8))
            assert len(set(lines)) == 1


@pytest.mark.parametrize("cut", [0, 4, 5, 20, -1])
def test_a_damaged_line_is_refused_in_one_line(tmp_path: Path, cut: int) -> None:
    with pytest.raises(BadInvite) as refused:
        parse_cluster(issue_in(tmp_path).text()[:cut])
    assert "\n" not in str(refused.value)
