"""An admission is renewed while its peer runs; where it is not, membership ends with the reason."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgpack
import pytest

from dht.access import RejectionLog
from dht.admission import FOR_EVER, LASTS_S, Admission, issue_admission
from dht.errors import HomefiresError, NotAdmitted, Unreachable
from dht.identity import Identity
from dht.invite import issue, parse
from peer.network.link.gatekeeper import ADMISSION, Membership

ORGANISER, ALICE = (Identity.from_seed(letter * 32) for letter in (b"o", b"a"))
RUN, NOW_S, DAY_S = b"r" * 32, 1_800_000_000.0, 86400.0
ADDRS = (f"/ip4/203.0.113.5/tcp/31337/p2p/{ORGANISER.peer_id}",)
INVITE = parse(issue(ORGANISER, run="tiny", spec_hash=RUN, addrs=ADDRS, token=b"t"), NOW_S)


class Days:
    """Time passes while somebody sleeps, and only then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = NOW_S
        self._sleep = asyncio.sleep
        monkeypatch.setattr(asyncio, "sleep", self.sleep)

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await self._sleep(0)


class Organiser:
    """The organiser's node: gives the next one when a third of the time is over; or refuses, or is away."""

    def __init__(self, days: Days) -> None:
        self.refusals = RejectionLog()
        self.asked: list[float] = []
        self.why = ""
        self.there = (0.0, float("inf"))
        self.stop_s = float("inf")
        self._days = days
        self._given = issue_admission(ORGANISER, RUN, ALICE.peer_id, NOW_S + LASTS_S)

    async def ask(self, peer: str, name: str, timeout_s: float, most: int, request: bytes = b"") -> bytes:
        assert (peer, name, request) == (ORGANISER.peer_id, "admission-request", INVITE.text.encode())
        self.asked.append(self._days())
        if self._days() > self.stop_s:
            raise asyncio.CancelledError
        if not self.there[0] < self._days() < self.there[1]:
            raise Unreachable("nobody answers")
        if self.why:
            return bytes(msgpack.packb([b"", self.why]))
        if self._given.expires - self._days() < LASTS_S * 2 / 3:
            self._given = issue_admission(ORGANISER, RUN, ALICE.peer_id, self._days() + LASTS_S)
        return bytes(msgpack.packb([self._given.to_bytes(), ""]))


@pytest.fixture
def days(monkeypatch: pytest.MonkeyPatch) -> Days:
    return Days(monkeypatch)


@pytest.fixture
def organiser(days: Days) -> Organiser:
    return Organiser(days)


def member(organiser: Any, folder: Path, days: Days, told: list[str], expires: float = NOW_S + LASTS_S) -> Membership:
    admission = issue_admission(ORGANISER, RUN, ALICE.peer_id, expires)
    return Membership(organiser, INVITE, folder, ALICE.peer_id, admission, told.append, days)


async def end_of(membership: Membership) -> HomefiresError:
    with pytest.raises(HomefiresError) as caught:
        await membership.keep()
    return caught.value


@pytest.mark.slow
async def test_it_is_renewed_well_before_it_ends_and_lies_in_the_folder(
    organiser: Organiser, days: Days, tmp_path: Path
) -> None:
    """For months: with what it shows there are always more than two weeks left."""
    organiser.stop_s = NOW_S + 120 * DAY_S
    told: list[str] = []
    membership = member(organiser, tmp_path, days, told)
    with pytest.raises(asyncio.CancelledError):
        await membership.keep()
    expires, _ = msgpack.unpackb(membership.shown)
    assert organiser.stop_s + LASTS_S / 2 < expires <= organiser.stop_s + LASTS_S
    assert (tmp_path / ADMISSION).read_bytes() == membership.shown
    assert told == []
    assert max(later - sooner for sooner, later in zip(organiser.asked, organiser.asked[1:], strict=False)) <= 3600


async def test_a_refusal_is_told_at_once_and_ends_it_when_the_admission_does(
    organiser: Organiser, days: Days, tmp_path: Path
) -> None:
    organiser.why = "the organiser lets it take part no longer: its owner asked us to\x1b[2J"
    told: list[str] = []
    error = await end_of(member(organiser, tmp_path, days, told))
    assert isinstance(error, NotAdmitted)
    assert "its owner asked us to\ufffd[2J" in str(error)
    assert "ended on 2027-02-14" in str(error)
    assert days() - (NOW_S + LASTS_S) < 60
    assert len(told) == 1, "once, not every hour"
    assert "no longer: its owner asked us to" in told[0]
    assert "ends on 2027-02-14" in told[0]


async def test_an_organiser_that_is_away_for_weeks_costs_nobody_the_membership(
    organiser: Organiser, days: Days, tmp_path: Path
) -> None:
    """And one that never comes back does, with another exit code: it can be tried again."""
    organiser.there = (NOW_S + 29 * DAY_S, NOW_S + 40 * DAY_S)
    told: list[str] = []
    error = await end_of(member(organiser, tmp_path, days, told))
    assert isinstance(error, Unreachable)
    assert "nobody answers" in str(error)
    assert "start again" in str(error)
    assert NOW_S + 65 * DAY_S < days() < NOW_S + 71 * DAY_S
    assert told == []


@pytest.mark.slow
async def test_who_slept_past_the_end_is_asked_once_more(organiser: Organiser, days: Days, tmp_path: Path) -> None:
    """The machine was suspended: the organiser admits it again as if it had just started."""
    organiser.stop_s = NOW_S + 2 * LASTS_S
    membership = member(organiser, tmp_path, days, [], expires=NOW_S - 5 * DAY_S)
    with pytest.raises(asyncio.CancelledError):
        await membership.keep()
    assert not Admission(ALICE.peer_id, msgpack.unpackb(membership.shown)[0], b"").is_over(days())


async def test_one_without_an_end_is_left_alone(days: Days, tmp_path: Path) -> None:
    nobody = SimpleNamespace()
    task = asyncio.ensure_future(member(nobody, tmp_path, days, [], FOR_EVER).keep())
    for _ in range(3):
        await days.sleep(DAY_S)
    assert not task.done()
    task.cancel()
