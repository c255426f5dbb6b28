"""The organiser's node lets those go on who are left of a run: whom, when, and never two groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from dht.errors import DiskFull
from dht.identity import Identity, RunKeys
from dht.streams.rpc import MAX_REQUEST_BYTES
from peer.consensus.organiser.restart_desk import (
    MAX_RESTART_BYTES,
    RESTARTS_EACH,
    RESTARTS_MOST,
    STRANGERS_MOST,
    RestartDesk,
    packed_question,
    read_question,
    read_restart,
)
from peer.consensus.protocol.block import MAX_RESTARTS, Restart, Roster, Stuck, Vote
from peer.consensus.protocol.electorate import instance_of, quorum
from peer.consensus.protocol.encoding import digest, pack
from peer.consensus.protocol.head import ChainHead
from peer.consensus.protocol.validation import fault_of_restart
from peer.testing.memory_peer import ModelKeys

ORGANISER, ANCHOR, WAIT_S = "organiser", digest("anchor"), 45.0
FOUR = ("a", "b", "c", "d")


class Disk:
    """Keeps Restarts, or has no room."""

    def __init__(self) -> None:
        self.kept: list[Restart] = []
        self.is_full = False

    def save(self, restart: Restart) -> None:
        if self.is_full:
            raise DiskFull("no space is left")
        self.kept.append(restart)


def desk_of(disk: Disk, known: Sequence[str] = FOUR) -> RestartDesk:
    desk = RestartDesk(ModelKeys(ORGANISER), disk.save, disk.kept, wait_s=WAIT_S)
    desk.roster = Roster(1, tuple(sorted(known)))
    return desk


def stuck(voter: str, electorate: Sequence[str] = FOUR, number: int = 1, anchor: bytes = ANCHOR) -> Stuck:
    return Stuck(voter, anchor, tuple(electorate), number).signed(ModelKeys(voter))


def votes(update: bytes, voters: Sequence[str], electorate: Sequence[str] = FOUR, phase: int = 1) -> tuple[Vote, ...]:
    instance = instance_of(ANCHOR, electorate)
    return tuple(Vote(peer, instance, 0, update, bytes(64), phase=phase).signed(ModelKeys(peer)) for peer in voters)


def head_of(electorate: Sequence[str], known: Sequence[str]) -> ChainHead:
    roster = Roster(1, tuple(known))
    return ChainHead(
        anchor=ANCHOR, round=0, weight=0, electorate=tuple(electorate), members=(), roster=roster, number=0
    )


def test_all_of_the_named_go_on_at_once_and_half_of_them_after_a_while() -> None:
    disk = Disk()
    desk = desk_of(disk, ("a", "b"))
    assert desk.show(stuck("a", ("a", "b")), 0.0) is None
    at_once = desk.show(stuck("b", ("a", "b")), 1.0)
    assert at_once is not None
    assert at_once.electorate == ("a", "b")

    desk = desk_of(Disk())
    assert desk.show(stuck("a"), 0.0) is None
    assert desk.show(stuck("b"), 10.0) is None
    assert desk.show(stuck("b"), WAIT_S - 0.1) is None, "c or d may still come"
    restart = desk.show(stuck("b"), WAIT_S)
    assert restart is not None
    assert restart.electorate == ("a", "b")
    assert not restart.forced
    assert fault_of_restart(ModelKeys("a"), ORGANISER, head_of(FOUR, FOUR), restart) == ""


@pytest.mark.parametrize(("count", "enough"), [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3), (16, 8)])
def test_half_of_the_named_are_enough_and_fewer_never(count: int, enough: int) -> None:
    names = tuple(sorted(f"p{index:02}" for index in range(count)))
    desk = desk_of(Disk(), names)
    for name in names[: enough - 1]:
        assert desk.show(stuck(name, names), 0.0) is None
        assert desk.show(stuck(name, names), 10 * WAIT_S) is None
    last = names[enough - 1]
    desk.show(stuck(last, names), 9 * WAIT_S)
    assert desk.show(stuck(last, names), 10 * WAIT_S) is not None


def test_strangers_come_back_as_guests_and_make_nobody_enough() -> None:
    """Three voters whom the organiser knows and one whom it does not: one of the three with the stranger is too few,
    and with two of the three the stranger is no voter."""
    desk = desk_of(Disk(), ("a", "b", "c"))
    assert desk.show(stuck("a"), 0.0) is None
    assert desk.show(stuck("d"), 10 * WAIT_S) is None
    restart = desk.show(stuck("b"), 10 * WAIT_S)
    assert restart is not None
    assert restart.electorate == ("a", "b")


def test_a_person_lets_fewer_go_on_strangers_too() -> None:
    desk = desk_of(Disk(), ("a", "b", "c"))
    about = stuck("d").about
    assert desk.force(about) is None, "nobody has come"
    desk.show(stuck("d"), 0.0)
    (standing,) = desk.standing(1.0)
    assert (standing.about, standing.came, standing.missing) == (about, ("d",), ("a", "b", "c"))
    restart = desk.force(about)
    assert restart is not None
    assert (restart.electorate, restart.forced) == (("d",), True)
    assert fault_of_restart(ModelKeys("a"), ORGANISER, head_of(FOUR, ("a", "b", "c")), restart) == ""
    assert desk.standing(1.0) == []


def test_there_is_one_for_an_agreement_whoever_comes_later_and_after_a_restart_of_the_node() -> None:
    disk = Disk()
    desk = desk_of(disk)
    desk.show(stuck("a"), 0.0)
    first = desk.show(stuck("b"), WAIT_S)
    assert first is not None
    for later in (desk, desk_of(disk)):
        assert later.show(stuck("c"), 100.0) == first
        assert later.show(stuck("d"), 200.0) == first
        assert later.force(stuck("c").about) is None
    assert disk.kept == [first]
    again = desk.show(replace(stuck("a", ("a", "b"), number=2)), 300.0)
    assert again is None, "the next agreement is another"


def test_who_is_kept_out_does_not_go_on_and_is_not_waited_for() -> None:
    """By itself, and where a person lets those go on who are left."""
    desk = desk_of(Disk())
    desk.roster = Roster(2, FOUR, ("a",))
    for name in ("a", "b", "c"):
        assert desk.show(stuck(name), 0.0) is None
    restart = desk.show(stuck("d"), 1.0)
    assert restart is not None
    assert restart.electorate == ("b", "c", "d")

    desk.show(stuck("a", ("a", "b"), number=2), 0.0)
    assert desk.force(stuck("a", ("a", "b"), number=2).about) is None
    desk.show(stuck("b", ("a", "b"), number=2), 0.0)
    forced = desk.force(stuck("a", ("a", "b"), number=2).about)
    assert forced is not None
    assert forced.electorate == ("b",)


def test_one_of_two_does_not_use_all_restarts_up_by_sealing_each_at_once() -> None:
    """The next takes twice as long: there is time for a person to keep that one out."""
    desk, two, now = desk_of(Disk(), ("a", "b")), ("a", "b"), 0.0
    took_s = []
    for number in range(1, MAX_RESTARTS + 1):
        began, restart = now, None
        while restart is None:
            restart = [desk.show(stuck(name, two, number), now) for name in two][-1]
            now += WAIT_S
        took_s.append(now - began - WAIT_S)
    assert took_s[:4] == [0.0, WAIT_S, 2 * WAIT_S, 4 * WAIT_S]
    assert sum(took_s) > 24 * 3600


def test_what_is_not_on_disk_is_not_told() -> None:
    disk = Disk()
    desk = desk_of(disk)
    desk.show(stuck("a"), 0.0)
    disk.is_full = True
    with pytest.raises(DiskFull):
        desk.show(stuck("b"), WAIT_S)
    disk.is_full = False
    restart = desk.show(stuck("b"), WAIT_S + 1)
    assert restart is not None
    assert disk.kept == [restart]


def test_the_newest_that_anybody_accepted_is_decided() -> None:
    update = digest("update")
    keys = ModelKeys("a")
    plain = Stuck("a", ANCHOR, FOUR, 1, (0, update), votes(update, FOUR[: quorum(FOUR)]))
    desk = desk_of(Disk())
    desk.show(plain.signed(keys), 0.0)
    restart = desk.show(stuck("b"), WAIT_S)
    assert restart is not None
    assert restart.value == (0, update)


@pytest.mark.parametrize(
    "certificate",
    [
        votes(digest("update"), FOUR[:2]),
        votes(digest("other"), FOUR[:3]),
        votes(digest("update"), FOUR[:3], phase=0),
        votes(digest("update"), FOUR[:3], FOUR[:3]),
        (),
    ],
    ids=["too few", "for another update", "of another phase", "of another electorate", "none"],
)
def test_an_acceptance_without_a_quorums_votes_is_refused(certificate: tuple[Vote, ...]) -> None:
    lie = Stuck("a", ANCHOR, FOUR, 1, (0, digest("update")), certificate).signed(ModelKeys("a"))
    desk = desk_of(Disk())
    with pytest.raises(ValueError, match="vote"):
        desk.show(lie, 0.0)
    assert desk.standing(0.0) == []


def test_who_signs_for_another_or_votes_elsewhere_is_refused() -> None:
    desk = desk_of(Disk())
    with pytest.raises(ValueError, match="not signed"):
        desk.show(replace(stuck("a"), voter="b"), 0.0)
    with pytest.raises(ValueError, match="elsewhere"):
        desk.show(stuck("e"), 0.0)


def test_strangers_fill_no_memory_and_a_voter_is_stuck_in_one_place() -> None:
    """Keys cost nothing: who makes up electorates of its own pushes out no voter whom the organiser knows."""
    desk = desk_of(Disk())
    desk.show(stuck("a"), 0.0)
    for index in range(3 * STRANGERS_MOST):
        name = f"s{index}"
        assert desk.show(stuck(name, (name,)), 0.0) is None
    assert len(desk.standing(0.0)) == STRANGERS_MOST + 1
    for index in range(10):
        assert desk.show(stuck("c", anchor=digest("made up", index)), 0.0) is None
    assert len(desk.standing(0.0)) == STRANGERS_MOST + 2
    assert desk.show(stuck("b"), WAIT_S) is not None


def test_who_has_gone_on_is_not_told_to_wait() -> None:
    desk = desk_of(Disk())
    desk.show(stuck("a"), 0.0)
    assert desk.standing(20.0)
    assert desk.standing(100.0) == []


def test_what_travels_is_as_long_as_its_limits_say_for_the_most_voters() -> None:
    run = b"r" * 32
    voters = {
        identity.peer_id: identity for identity in (Identity.from_seed(bytes([index]) * 32) for index in range(64))
    }
    names, update = tuple(sorted(voters)), digest("update")
    instance = instance_of(ANCHOR, names)
    certificate = tuple(
        Vote(name, instance, 1 << 30, update, bytes(64), phase=1).signed(RunKeys(voters[name], run)) for name in names
    )
    one = Stuck(names[0], ANCHOR, names, 16, (1 << 30, update), certificate).signed(RunKeys(voters[names[0]], run))
    roster = Roster(1 << 40, names, names, bytes(64))
    packed = packed_question(one, roster)
    assert len(packed) <= MAX_REQUEST_BYTES
    assert read_question(packed) == (one, roster)
    restart = Restart(ANCHOR, 16, (one,) * 64, True, bytes(64))
    packed = pack(restart.packed())
    assert len(packed) <= MAX_RESTART_BYTES
    assert read_restart(packed) == restart
    assert packed_question(None, roster) == b""


def test_the_list_of_their_chain_counts_and_not_a_newer_one() -> None:
    """Since a quorum was lost the organiser has promoted d: their peers do not know that yet, and would refuse what is
    right by the newer list alone."""
    desk = desk_of(Disk(), FOUR)
    chain = Roster(1, ("a", "b", "c"))
    assert desk.show(stuck("a"), 0.0, chain) is None
    assert desk.show(stuck("d"), 10 * WAIT_S, chain) is None
    restart = desk.show(stuck("b"), 10 * WAIT_S, chain)
    assert restart is not None
    assert restart.electorate == ("a", "b")
    assert fault_of_restart(ModelKeys("a"), ORGANISER, head_of(FOUR, ("a", "b", "c")), restart) == ""


def test_a_word_of_an_older_list_makes_nothing_possible() -> None:
    """Two of the three that a liar says are known would be enough; by the list of the others they are two of five."""
    five = ("a", "b", "c", "d", "e")
    desk = desk_of(Disk(), five)
    assert desk.show(stuck("a", five), 0.0, Roster(1, ("a", "b", "c"))) is None
    assert desk.show(stuck("b", five), 10 * WAIT_S, Roster(2, five)) is None


def test_two_friends_part_more_often_than_anybody_makes_agreements_up() -> None:
    """Restarts by which the chain went on do not count, also in the next life of the node."""
    disk, two = Disk(), ("a", "b")
    for first in (0, RESTARTS_EACH):
        desk = RestartDesk(ModelKeys(ORGANISER), disk.save, disk.kept, wait_s=WAIT_S, in_chain=lambda: disk.kept)
        desk.roster = Roster(1, two)
        for evening in range(first, first + RESTARTS_EACH):
            desk.show(stuck("a", two, anchor=digest("evening", evening)), 0.0)
            assert desk.show(stuck("a", two, anchor=digest("evening", evening)), WAIT_S) is not None
    assert len(disk.kept) == 2 * RESTARTS_EACH


def test_a_known_liar_that_makes_agreements_up_uses_its_own_share_of_restarts_up() -> None:
    """Also over the lives of the node. Who waits with others is let go on all the same, and with the liar, too."""
    disk = Disk()
    for first in (0, RESTARTS_EACH):
        desk = desk_of(disk)
        for number in range(first, first + RESTARTS_EACH):
            desk.show(stuck("a", ("a",), anchor=digest(number)), 0.0)
    assert len(disk.kept) == RESTARTS_EACH < RESTARTS_MOST / 4
    desk.show(stuck("a"), 0.0)
    restart = desk.show(stuck("b"), WAIT_S)
    assert restart is not None
    assert restart.electorate == ("a", "b")
