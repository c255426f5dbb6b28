"""A lead's hands: what its workers do of an effect, what it does itself, and what waits for their bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from peer.consensus.delegates.lead_driver import ASK_AGAIN_S, LeadChainPort, LeadEffects
from peer.consensus.delegates.worker_messages import MeanCompared, MeanHeld, ShareMeasured, encode_request
from peer.consensus.delegates.worker_port import WorkerOrders
from peer.consensus.protocol.encoding import digest_of
from peer.consensus.protocol.messages import GetObjects, MeanData, ObjectData
from peer.consensus.protocol.norms import PartNorms, judgement_of
from peer.consensus.rounds import interface
from peer.consensus.rounds.interface import (
    ROW,
    CheckMean,
    CheckRow,
    CommitBlock,
    DelegateHolds,
    Effect,
    Input,
    MeasureOwn,
    ReducePart,
    Send,
    SendMean,
    SendObjects,
    SendParts,
    ShowRow,
)
from peer.consensus.rounds.state import MemberState, Proposal, State
from tests.peer.consensus.rounds.build import HEAD, NAMES, PAYLOADS, block, header, place, rules, state_of, update

ME, WORKER = "p0", "w0"
DELEGATES = ((1, 2, WORKER),)
JUDGEMENT = judgement_of(rules(ME), HEAD, tuple(map(header, NAMES)))
MEANS = tuple(digest_of(payload) for payload in PAYLOADS)


@dataclass
class Hands:
    """A disk with nothing on it, and workers that note what they are asked."""

    asked: list[tuple[Any, ...]] = field(default_factory=list)
    objects: dict[bytes, bytes] = field(default_factory=dict)
    now: float = 0.0

    def load(self, digest: bytes) -> bytes | None:
        return self.objects.get(digest)

    def store(self, digest: bytes, payload: bytes, done: Callable[[], None]) -> None:
        self.objects[digest] = payload
        done()

    def my_path(self, anchor: bytes, part: int) -> tuple[bytes, ...] | None:
        return (b"path %d" % part,)

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *what: self.asked.append((name, *what))


def made() -> tuple[LeadEffects, Hands, State]:
    hands = Hands()
    members = (header(ME, delegates=DELEGATES), *map(header, NAMES[1:]))
    exchange = MemberState(
        place=place(), members=members, reducers=NAMES, received={}, closes_at=9.0, judgement=JUDGEMENT
    )
    known = {update().digest: Proposal(0, update(), b"")}
    state = state_of(ME, exchange=exchange, delegates=DELEGATES, proposals=known, offered=members[0])
    lead = LeadEffects(cast("LeadChainPort", hands), cast("Any", hands), lambda: hands.now)
    return lead, hands, state


def test_my_parts_are_sent_by_whoever_has_them() -> None:
    """Also to me, with their paths."""
    lead, hands, state = made()
    effect = SendParts("p1", place(), (0, 1, 2), attempt=1)
    assert lead.own(effect, state) == (SendParts("p1", place(), (0,), 1),)
    assert hands.asked == [("give_parts", WORKER, "p1", place(), 1, ((1, (b"path 1",)), (2, (b"path 2",))))]
    assert lead.own(SendParts(ME, place(), (1,)), state) == ()
    assert lead.own(SendParts("p1", place(7), (1,)), state) == (SendParts("p1", place(7), (1,)),)  # it is over


def test_my_parts_are_measured_by_whoever_has_them() -> None:
    lead, hands, state = made()
    mine, theirs = (MeasureOwn(HEAD.anchor, part, MEANS[part]) for part in (0, 1))
    assert lead.own(mine, state) == (mine,)
    assert lead.own(theirs, state) == ()
    assert hands.asked == [("measure", WORKER, HEAD.anchor, 1, MEANS[1])]


def test_a_mean_is_compared_by_whoever_keeps_its_layer() -> None:
    """Unless its bytes are here; its worker also shows what we gave, with our path."""
    lead, hands, state = made()
    mine, theirs = (CheckMean(MEANS[part], part, 7, NAMES, (1, 1, 1), (1.0,) * 3, HEAD.anchor) for part in (0, 1))
    assert lead.own(mine, state) == (mine,)
    assert lead.own(theirs, state) == ()
    shows_mine, shows_theirs = (ShowRow(("p1",), place(), part, MEANS[part], 7) for part in (0, 1))
    assert lead.own(shows_mine, state) == (shows_mine,)
    assert lead.own(shows_theirs, state) == ()
    assert hands.asked == [("check", WORKER, theirs), ("show_row", WORKER, shows_theirs, (b"path 1",))]
    hands.objects[MEANS[1]] = PAYLOADS[1]
    assert lead.own(theirs, state) == (theirs,)


def test_what_another_shows_waits_for_the_mean_that_a_worker_keeps() -> None:
    """Anybody may show that a mean misquotes it; a lead judges that as everybody does."""
    lead, hands, state = made()
    performed: list[Effect] = []
    lead.begin(performed.append)
    shown = CheckRow("p1", MEANS[1], 1, 7, 1, b"payload!", 1.0, HEAD.anchor)
    assert lead.own(shown, state) == ()
    assert hands.asked == [("bring", WORKER, MEANS[1])]
    lead.on_message(ObjectData(b"", PAYLOADS[1]))
    assert performed == [shown]
    here = replace(shown, digest=MEANS[0], part=0)
    assert lead.own(here, state) == (here,)


def test_what_needs_the_last_mean_waits_until_its_worker_has_sent_it() -> None:
    """Asked for once, and again when it does not come; other bytes under its name are none."""
    lead, hands, state = made()
    performed: list[Effect] = []
    lead.begin(performed.append)
    measure = MeasureOwn(HEAD.anchor, 0, MEANS[1])
    reduce = ReducePart(place(), 1, 7, NAMES, (1, 1, 1), pull=3, direction=MEANS[1])
    assert lead.own(measure, state) == lead.own(reduce, state) == ()
    assert hands.asked == [("bring", WORKER, MEANS[1])]
    hands.now += ASK_AGAIN_S
    lead.on_tick()
    assert hands.asked == 2 * [("bring", WORKER, MEANS[1])]
    lead.on_message(ObjectData(b"", b"another "))
    assert performed == []
    lead.on_message(ObjectData(b"", PAYLOADS[1]))
    assert performed == [measure, reduce]
    assert lead.own(measure, state) == (measure,)
    plain = replace(reduce, pull=0, direction=MEANS[2])
    assert lead.own(plain, state) == (plain,)
    own = MeasureOwn(HEAD.anchor, 0, MEANS[0])
    assert lead.own(own, state) == (own,)


def test_a_commit_ends_what_waits() -> None:
    lead, hands, state = made()
    performed: list[Effect] = []
    lead.begin(performed.append)
    lead.own(MeasureOwn(HEAD.anchor, 0, MEANS[1]), state)
    commit = CommitBlock(block(), HEAD.after(update()))
    assert lead.own(commit, state) == (commit,)
    lead.on_message(ObjectData(b"", PAYLOADS[1]))
    hands.now += 10.0
    lead.on_tick()
    assert performed == []
    assert len(hands.asked) == 1


def test_means_are_fetched_by_whoever_keeps_them() -> None:
    """What nobody names, and what several layers need and one is mine, I fetch myself."""
    lead, hands, state = made()
    assert lead.own(Send(("p1",), GetObjects((*MEANS, b"?" * 32))), state) == (
        Send(("p1",), GetObjects((MEANS[0], b"?" * 32))),
    )
    assert hands.asked == [("fetch", WORKER, "p1", MEANS[1:])]
    same = update(parts=(MEANS[1], MEANS[1], MEANS[2]))
    both = replace(state, proposals={same.digest: Proposal(0, same, b"")})
    effect = Send(("p1",), GetObjects((MEANS[1],)))
    assert lead.own(effect, both) == (effect,)


def test_who_asks_me_gets_it_from_my_worker() -> None:
    """But for what lies here; a worker that asks is told nothing that it has itself."""
    lead, hands, state = made()
    hands.objects[MEANS[1]] = PAYLOADS[1]
    assert lead.own(SendObjects("p1", MEANS), state) == (SendObjects("p1", MEANS[:2]),)
    assert hands.asked == [("give_objects", WORKER, "p1", (MEANS[2],))]
    assert lead.own(SendObjects(WORKER, MEANS[2:]), state) == ()
    one, other = (
        SendMean(("p1", WORKER), MeanData(place(), 0, part, "p2", 7, MEANS[part], b"")) for part in (1, 2)
    )  # fmt: skip
    assert lead.own(one, state) == (one,)
    assert lead.own(other, state) == ()
    assert hands.asked[1:] == [("give_mean", WORKER, "p1", other.mean)]


def test_answers_become_inputs() -> None:
    """Of a measurement only from whom it was asked, once."""
    heard: list[Input] = []
    sent: list[tuple[str, bytes]] = []
    orders = WorkerOrders(lambda to, frame: sent.append((to, frame)), heard.append, lambda: 3.0)
    orders.on_frame(WORKER, encode_request(MeanHeld(MEANS[1], 8)))
    assert heard == [DelegateHolds(3.0, WORKER, MEANS[1], 8, None)]
    figures = ShareMeasured(HEAD.anchor, 1, 4.0, 2.0, None)
    orders.measure(WORKER, HEAD.anchor, 1, b"")
    with pytest.raises(ValueError, match="no answer"):
        orders.on_frame("w1", encode_request(figures))
    orders.on_frame(WORKER, encode_request(figures))
    assert heard[1:] == [interface.OwnMeasured(3.0, HEAD.anchor, 1, PartNorms(4.0, 2.0))]
    with pytest.raises(ValueError, match="no answer"):
        orders.on_frame(WORKER, encode_request(figures))
    compared = MeanCompared(MEANS[1], 1, 7, ROW, HEAD.anchor)
    orders.check(WORKER, CheckMean(MEANS[1], 1, 7, NAMES, (1, 1, 1), (1.0,) * 3, HEAD.anchor, basis=HEAD.anchor))
    with pytest.raises(ValueError, match="no answer"):
        orders.on_frame("w1", encode_request(compared))
    orders.on_frame(WORKER, encode_request(compared))
    assert heard[2:] == [interface.MeanChecked(3.0, MEANS[1], 1, 7, ROW, HEAD.anchor)]
    with pytest.raises(ValueError, match="no answer"):
        orders.on_frame(WORKER, encode_request(compared))
    orders.bring(WORKER, MEANS[1])
    assert [to for to, _ in sent] == [WORKER] * 3
