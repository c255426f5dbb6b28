"""Nothing but a hash and signatures is spent on an update, a block or a Restart that none of those signed who may."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from peer.consensus.protocol.block import Block, Restart, Stuck, Update
from peer.consensus.protocol.encoding import digest_of, pack
from peer.consensus.protocol.frame_reader import BEHIND_BYTES, LARGE_BYTES, STRANGERS_MOST
from peer.consensus.protocol.head import next_anchor
from peer.consensus.protocol.messages import (
    Blocks,
    GetMeans,
    Heartbeat,
    Message,
    Prepare,
    Propose,
    Restarted,
    encode,
)
from peer.consensus.protocol.refusals import BLOCK, PLACE
from peer.consensus.rounds.driver import Driver
from peer.consensus.rounds.state import State
from peer.schema.events import MessageRefused
from peer.testing.memory_peer import ModelKeys
from tests.peer.consensus.rounds.ballot import LEADER, OTHERS
from tests.peer.consensus.rounds.build import HEAD, NAMES, block, header, owner, place, proposal_signature, state_of
from tests.peer.consensus.rounds.build import update as small_update
from tests.peer.consensus.rounds.test_driver import Hands, make

ORGANISER = "o"
RANGES = tuple((2**40 + index, 2**40, 2**41) for index in range(1024))


def update(**changes: Any) -> Update:
    """One of more than LARGE_BYTES."""
    members = tuple(header(name, ranges=RANGES) for name in NAMES)
    return replace(small_update(), members=members, **changes)


def peer(state: State | None = None, **more: Any) -> tuple[Driver, Hands]:
    hands = Hands()
    state = state_of(OTHERS[0]) if state is None else state
    return make(replace(state, rules=replace(state.rules, organiser=ORGANISER)), hands, **more), hands


def restart(signer: str = ORGANISER) -> Restart:
    stuck = tuple(Stuck(name, HEAD.anchor, NAMES, 1).signed(ModelKeys(name)) for name in NAMES[:2])
    return Restart(HEAD.anchor, 1, stuck, forced=True).signed(ModelKeys(signer))


def unsigned(item: Block) -> Block:
    return replace(item, votes=tuple(replace(vote, signature=b"s" * 64) for vote in item.votes))


def signed_by_one(item: Block) -> Block:
    """By a voter that lies, twice."""
    return replace(item, votes=(item.votes[0], item.votes[0]))


@pytest.fixture
def unpacked(monkeypatch: pytest.MonkeyPatch) -> list[type]:
    """What is unpacked, whole."""
    found = list[type]()
    for kind in (Update, Stuck):
        plain: Callable[[Any], Any] = kind.unpacked

        def note(value: Any, kind: type = kind, plain: Callable[[Any], Any] = plain) -> Any:
            found.append(kind)
            return plain(value)

        monkeypatch.setattr(kind, "unpacked", note)
    return found


def refused(hands: Hands) -> list[tuple[str, str]]:
    events = [what[1] for what in hands.done if what[0] == "report"]
    return [(event.about, event.rule) for event in events if isinstance(event, MessageRefused)]


FORGED: dict[str, tuple[Message, str]] = {
    "a proposal": (Propose(place(), update(), b"s" * 64), PLACE),
    "blocks without votes": (Blocks((replace(block(update()), votes=()),)), BLOCK),
    "blocks with false votes": (Blocks((unsigned(block(update())),)), BLOCK),
    "blocks of one voter": (Blocks((signed_by_one(block(update())),)), BLOCK),
    "a block with false restarts": (Blocks((replace(block(update()), restarts=(restart("p0"),)),)), BLOCK),
    "a restart": (Restarted(restart("p0")), BLOCK),
}


@pytest.mark.parametrize("sender", [LEADER, "stranger"])
@pytest.mark.parametrize("name", FORGED)
def test_what_nobody_has_signed_is_not_unpacked(unpacked: list[type], name: str, sender: str) -> None:
    """It is refused, whoever brings it, be it a voter."""
    message, rule = FORGED[name]
    driver, hands = peer()
    driver.on_frame(sender, encode(message))
    assert unpacked == []
    assert refused(hands) == [(sender, rule)]


def test_behind_the_first_block_without_votes_nothing_is_unpacked(unpacked: list[type]) -> None:
    """What a quorum stands behind counts all the same."""
    first = block(update())
    second = replace(block(update(parent=next_anchor(HEAD.anchor, first.update.digest), round=2)), votes=())
    driver, _ = peer()
    driver.on_frame("stranger", encode(Blocks((first, second, replace(second, update=update())))))
    assert unpacked == [Update]


def test_a_proposal_about_another_head_is_no_reason_to_unpack_it_but_to_ask(unpacked: list[type]) -> None:
    driver, hands = peer()
    elsewhere = replace(place(), anchor=b"e" * 32)
    driver.on_frame(LEADER, encode(Propose(elsewhere, update(), b"s" * 64)))
    assert unpacked == []
    assert refused(hands) == []
    assert [what[1] for what in hands.done if what[0] == "send"] == [LEADER]


def test_blocks_that_follow_nothing_of_mine_are_not_unpacked(unpacked: list[type]) -> None:
    driver, hands = peer()
    driver.on_frame("stranger", encode(Blocks((block(update(parent=b"e" * 32)),))))
    assert unpacked == []
    assert refused(hands) == []


class Desk:
    """Does aside what it is told when it is told."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def __call__(self, work: Callable[[], Any], done: Callable[[Any], None], /) -> None:
        self.waiting.append(lambda: done(work()))


def heads(driver: Driver) -> set[str]:
    return set(driver.state.heard)


BEAT = encode(Heartbeat(HEAD.anchor, 0, 0, b"", False, 0, 0, False))


def test_a_large_proposal_is_opened_aside_and_what_its_sender_says_waits_behind_it(unpacked: list[type]) -> None:
    """What others say does not."""
    desk, item = Desk(), update()
    driver, _ = peer(aside=desk)
    frame = encode(Propose(place(), item, proposal_signature(item)))
    assert len(frame) > LARGE_BYTES
    driver.on_frame(LEADER, frame)
    driver.on_frame(LEADER, BEAT)
    driver.on_frame(OTHERS[1], BEAT)
    assert unpacked == []
    assert heads(driver) == {OTHERS[1]}
    desk.waiting.pop()()
    assert unpacked == [Update]
    assert heads(driver) == {LEADER, OTHERS[1]}


def test_two_large_ones_of_a_peer_are_opened_one_after_the_other() -> None:
    desk, item = Desk(), update()
    driver, _ = peer(aside=desk)
    frame = encode(Propose(place(), item, proposal_signature(item)))
    for said in (frame, frame, BEAT):
        driver.on_frame(LEADER, said)
    for _ in range(2):
        assert heads(driver) == set()
        assert len(desk.waiting) == 1
        desk.waiting.pop()()
    assert heads(driver) == {LEADER}


def test_a_small_proposal_is_opened_at_once(unpacked: list[type]) -> None:
    desk, item = Desk(), small_update()
    driver, _ = peer(aside=desk)
    driver.on_frame(LEADER, encode(Propose(place(), item, proposal_signature(item))))
    assert unpacked == [Update]
    assert item.digest in driver.state.proposals


def test_strangers_have_a_few_large_frames_opened_at_a_time_and_voters_theirs_besides() -> None:
    desk = Desk()
    driver, _ = peer(aside=desk)
    frame = encode(Blocks((unsigned(block(update())),)))
    for index in range(50):
        driver.on_frame(f"s{index}", frame)
    assert len(desk.waiting) == STRANGERS_MOST
    assert driver.bad_frames == 50 - STRANGERS_MOST
    driver.on_frame(LEADER, frame)
    assert len(desk.waiting) == STRANGERS_MOST + 1


def test_behind_a_frame_that_is_opened_so_much_waits_and_no_more() -> None:
    desk = Desk()
    driver, _ = peer(aside=desk)
    driver.on_frame(LEADER, encode(Blocks((unsigned(block(update())),))))
    for _ in range(3):
        driver.on_frame(LEADER, bytes(BEHIND_BYTES // 2))
    assert driver.bad_frames == 1


def test_long_lists_that_only_coordinators_send_are_read_of_voters_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger's are not even unpacked."""
    frame = encode(GetMeans(place(), (1,) * LARGE_BYTES))
    read = list[object]()
    plain = GetMeans.unpacked
    monkeypatch.setattr(GetMeans, "unpacked", lambda value: read.append(value) or plain(value))
    driver, _ = peer()
    driver.on_frame("stranger", frame)
    assert not read
    assert driver.bad_frames == 1
    driver.on_frame(owner(), frame)
    assert len(read) == 1


def test_what_was_opened_against_a_head_that_is_no_more_is_held_against_nobody() -> None:
    """Its sender says it again."""
    desk = Desk()
    driver, hands = peer(aside=desk)
    driver.on_frame(LEADER, encode(Propose(place(), update(), b"s" * 64)))
    driver.state = replace(driver.state, head=replace(HEAD, round=1))
    desk.waiting.pop()()
    assert refused(hands) == []


def test_junk_that_a_leader_has_signed_is_refused_with_it(unpacked: list[type]) -> None:
    """Whoever signs what cannot be read ends nobody."""
    junk = b"\x93\x01\x02\x03"
    signature = ModelKeys(LEADER).sign("propose", pack((place().packed(), digest_of(junk))))
    frame = encode(Prepare(place()))[:1] + bytes((Propose.code,)) + pack((place().packed(), junk, signature, ()))
    driver, hands = peer()
    driver.on_frame(LEADER, frame)
    assert refused(hands) == [(LEADER, PLACE)]
    assert unpacked == [Update]
