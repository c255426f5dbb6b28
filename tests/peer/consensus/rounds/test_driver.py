"""The driver performs what the machine asks for: in its order, and nothing for bad frames."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, get_args

import pytest

from dht.streams.base import MakeFrame
from peer.consensus.protocol.block import Block, ContributionHeader, Restart, Stuck
from peer.consensus.protocol.encoding import digest_of
from peer.consensus.protocol.head import ChainHead
from peer.consensus.protocol.messages import (
    FETCH_BYTES,
    BallotId,
    Blocks,
    GetBlocks,
    GetObjects,
    Heartbeat,
    MeanData,
    Message,
    ObjectData,
    PartData,
    Prepare,
    Promise,
    RowDispute,
    decode,
    encode,
)
from peer.consensus.protocol.norms import PartNorms, judgement_of
from peer.consensus.rounds import driver as drivers
from peer.consensus.rounds.driver import Driver, trainer_input
from peer.consensus.rounds.interface import (
    ROW,
    Applied,
    AskOrganiser,
    BufferPart,
    CheckMean,
    CheckRow,
    CommitBlock,
    Effect,
    Input,
    MeanChecked,
    MeasureOwn,
    MeasurePart,
    ObjectStored,
    OrganiserAnswered,
    OwnMeasured,
    PartMeasured,
    PartReduced,
    Paused,
    PersistAcceptor,
    ReducePart,
    RequestSubmit,
    Resumed,
    RowChecked,
    Send,
    SendBlocks,
    SendMean,
    SendObjects,
    SendParts,
    ShowRow,
    StoreObject,
    Submitted,
    Tell,
    Tick,
    TrainingProgress,
)
from peer.consensus.rounds.state import Acceptor, MemberState, State
from peer.consensus.rounds.transition import Transition
from peer.schema.events import AlertRaised
from peer.schema.events import Event as Reported
from peer.schema.ipc import (
    AnyToLink,
    Assignment,
    AssignStages,
    ChangeLimits,
    Hello,
    HomesExpelled,
    LayersHeld,
    Leave,
    LinkLimits,
    LookForHomes,
    LossMeasured,
    OfferContribution,
    OpenLink,
    PausedAt,
    ReportProgress,
    SeekWork,
    StageHolder,
    StandsAt,
    StartLooked,
    StepsGoOn,
)
from tests.peer.consensus.rounds.build import HEAD, NAMES, block, header, owner, place, rules, state_of, update

HEARD = Transition(state_of("p0"), 0.0).my_head()

MINE = b"mine"
FOUND = PartNorms(1.0, 2.0, 3.0)
JUDGEMENT = judgement_of(rules("p0"), HEAD, tuple(map(header, NAMES)))
STUCK = Stuck("p0", HEAD.anchor, NAMES, 1, None)
MEAN = MeanData(place(), 0, 0, "p0", 7, digest_of(b"mean"), b"s" * 64)


@dataclass
class Hands:
    """Disk, streams, arithmetic and trainer in one, which write down what happens to them."""

    done: list[tuple[Any, ...]] = field(default_factory=list)
    objects: dict[bytes, bytes] = field(default_factory=dict)
    later: list[Callable[[], None]] = field(default_factory=list)
    reducing: list[Callable[[bytes], None]] = field(default_factory=list)
    measuring: list[Callable[[PartNorms], None]] = field(default_factory=list)
    has_part: bool = True
    unreachable: frozenset[str] = frozenset()
    blocks: tuple[Block, ...] = field(default_factory=lambda: (block(),))

    def note(self, *what: Any) -> None:
        self.done.append(what)

    def save_acceptor(self, acceptor: Acceptor) -> None:
        self.note("acceptor", acceptor)

    def save_object(self, digest: bytes, payload: bytes) -> None:
        self.note("object", digest)
        self.objects[digest] = payload

    def store(self, digest: bytes, payload: bytes, done: Callable[[], None]) -> None:
        self.note("store", digest)
        self.objects[digest] = payload
        self.later.append(done)

    def load(self, digest: bytes) -> bytes | None:
        return self.objects.get(digest)

    def commit(self, item: Block, head: ChainHead, awaited: frozenset[bytes]) -> None:
        self.note("commit", head)

    def blocks_after(self, anchor: bytes) -> tuple[Block, ...]:
        return self.blocks

    def my_part(self, anchor: bytes, part: int) -> tuple[tuple[bytes, ...], bytes] | None:
        return ((), MINE) if self.has_part else None

    def keep(self, effect: BufferPart) -> None:
        self.note("keep", effect.sender, effect.part)

    def kept(self, where: BallotId, giver: str, part: int) -> tuple[tuple[bytes, ...], bytes] | None:
        return ((), MINE) if giver != "stranger" else None

    def measure(self, payload: bytes, direction: bytes, done: Callable[[PartNorms], None]) -> None:
        self.note("measure", payload, direction)
        self.measuring.append(done)

    def reduce(self, effect: ReducePart, done: Callable[[bytes], None]) -> None:
        self.note("reduce", effect.part)
        self.reducing.append(done)

    def check(self, effect: CheckMean, me: str, whole: bytes, mine: bytes | None, done: Callable[[str], None]) -> None:
        self.note("check", effect.part, me, whole, mine)
        self.later.append(lambda: done(ROW))

    def check_row(self, effect: CheckRow, whole: bytes, done: Callable[[bool], None]) -> None:
        self.note("check row", effect.giver, whole)
        self.later.append(lambda: done(False))

    def ask(self, stuck: Stuck | None, answered: Callable[[Restart | None], None]) -> None:
        self.note("ask", stuck)
        self.later.append(lambda: answered(None))

    def forget(self) -> None:
        self.note("forget")

    def committed(self, item: Block, head: ChainHead) -> None:
        self.note("committed", head)

    def request_submit(self) -> None:
        self.note("request_submit")

    def send_bulk(self, to: str, make_frame: MakeFrame) -> None:
        frame = make_frame()
        if frame is not None:
            self.send(to, frame)

    def send(self, to: str, frame: bytes) -> None:
        self.note("send", to, decode(frame))

    def listen(self, on_frame: Callable[[str, bytes], None]) -> None:
        raise AssertionError("whoever owns the streams listens")


def make(state: State, hands: Hands, **more: Any) -> Driver:
    return Driver(
        state, clock=lambda: 7.0, streams=hands, disk=hands, arithmetic=hands, trainer=hands,
        report=lambda event: hands.note("report", event), **more,
    )  # fmt: skip


def perform(monkeypatch: pytest.MonkeyPatch, hands: Hands, *effects: Effect, ballot: int = 0) -> list[Input]:
    """Let the machine ask for `effects` once, in the exchange of `ballot`; the events that come back."""
    asked, events = list(effects), []
    exchange = MemberState(
        place=place(ballot), members=(), reducers=(), received={}, closes_at=9.0, judgement=JUDGEMENT
    )  # fmt: skip
    state = state_of("p0", exchange=exchange)

    def step(_: State, event: Input) -> tuple[State, tuple[Effect, ...]]:
        events.append(event)
        now, asked[:] = tuple(asked), []
        return state, now

    monkeypatch.setattr(drivers, "step", step)
    make(state, hands, organiser=hands).deliver(Tick(0.0))
    while hands.later or hands.reducing or hands.measuring:
        if hands.later:
            hands.later.pop(0)()
        elif hands.measuring:
            hands.measuring.pop(0)(FOUND)
        else:
            hands.reducing.pop(0)(digest_of(b"mean"))
    return events[1:]


def test_frames_that_are_no_messages_are_counted() -> None:
    """And reach nobody."""
    hands = Hands()
    peer = make(state_of("p0"), hands)
    for frame in (b"", b"\x00", b"\x63junk", b"\x01\xc1", encode(Prepare(place()))[:-1]):
        peer.on_frame("p1", frame)
    assert peer.bad_frames == 5
    assert hands.done == []


def test_a_promise_is_on_disk_before_it_is_sent() -> None:
    """The write-ahead rule, seen from outside."""
    hands = Hands()
    leader = owner(0)
    voter = next(name for name in NAMES if name != leader)
    make(state_of(voter), hands).on_frame(leader, encode(Prepare(place())))
    kinds = [what for what, *_ in hands.done if what in ("acceptor", "send")]
    assert kinds == ["acceptor", "send"]
    assert isinstance(hands.done[-1][2], Promise)


def test_an_accepted_update_is_written_before_the_acceptor_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """And both before whatever follows."""
    hands, acceptor = Hands(), Acceptor(HEAD.anchor, HEAD.instance, 0, (0, update().digest))
    perform(monkeypatch, hands, PersistAcceptor(acceptor, update()), Send(("p1",), GetBlocks((HEAD.anchor,))))
    assert [what for what, *_ in hands.done] == ["object", "acceptor", "send"]
    assert hands.objects[update().digest] == update().to_bytes()


def test_a_commit_is_on_disk_before_the_trainer_hears_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kept parts are forgotten with it."""
    hands, head = Hands(), HEAD.after(update())
    perform(monkeypatch, hands, CommitBlock(block(), head), RequestSubmit())
    assert hands.done == [("commit", head), ("forget",), ("committed", head), ("request_submit",)]


def test_the_machine_hears_what_a_trainer_says() -> None:
    """What it offers with the header of what is on disk; the rest of what it says is for others."""
    anchor, state, limits = b"a" * 32, b"s" * 32, LinkLimits(1, 0.0, 0.0, 0.0, 0.0)
    header, nothing = (ContributionHeader("p0", anchor, root, 0, 0, 0, False) for root in (b"r" * 32, b""))
    heard = {
        ReportProgress(0.5, 1.0, 2.0, None): TrainingProgress(7.0, 0.5),
        OfferContribution(anchor): Submitted(7.0, header),
        PausedAt(anchor): Paused(7.0, header),
        StepsGoOn(): Resumed(7.0),
        StandsAt(anchor, state): Applied(7.0, anchor, state),
        AssignStages(Assignment(1, (StageHolder("a", 0, 0), StageHolder("b", 1, 1)), (), "int8")): None,
        HomesExpelled(("a",)): None,
        LayersHeld(0, 1): None,
        StartLooked(True): None,
        SeekWork(8.0, 100.0): None,
        LookForHomes(8.0, 100.0, ()): None,
        OpenLink("", "", (), limits, 1, ""): None,
        ChangeLimits(limits): None,
        Hello((1,), state, b""): None,
        LossMeasured(1, 2.0): None,
        Leave(True): None,
    }
    assert {type(message) for message in heard} == set(get_args(AnyToLink))
    assert {message: trainer_input(message, 7.0, {anchor: header}.__getitem__) for message in heard} == heard
    assert trainer_input(PausedAt(anchor), 7.0, {anchor: nothing}.__getitem__) == Paused(7.0, nothing)
    assert trainer_input(OfferContribution(anchor), 7.0, {anchor: nothing}.__getitem__) is None


def test_a_report_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unchanged."""
    hands, event = Hands(), AlertRaised(level="info", code="X", text="y")
    perform(monkeypatch, hands, Tell(event))
    assert hands.done == [("report", event)]
    assert isinstance(event, Reported)


def test_what_is_stored_and_reduced_comes_back_as_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the size of what is held and the place of what was reduced."""
    hands = Hands()
    reduce = ReducePart(place(), 2, 0b11, ("p0", "p1"), (1, 1))
    events = perform(monkeypatch, hands, StoreObject(digest_of(b"mean"), b"mean"), reduce)
    assert events == [ObjectStored(7.0, digest_of(b"mean"), 4), PartReduced(7.0, place(), 2, 0b11, digest_of(b"mean"))]


def test_second_attempts_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes back from the arithmetic, and what goes out."""
    hands, digest = Hands(), digest_of(b"mean")
    events = perform(
        monkeypatch,
        hands,
        ReducePart(place(), 2, 1, ("p0",), (1,), attempt=1),
        SendParts("p1", place(), (0,), attempt=1),
    )
    assert events == [PartReduced(7.0, place(), 2, 1, digest, attempt=1)]
    assert ("send", "p1", PartData(place(), 1, 0, (), MINE)) in hands.done


def test_a_part_is_measured_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of another's the bytes that came; of mine those on disk, and nothing if they are gone."""
    hands = Hands()
    asked = (
        MeasurePart(place(), "p1", 2, b"theirs"),
        MeasurePart(place(), "p0", 0, b""),
        MeasureOwn(HEAD.anchor, 1, digest_of(b"last")),
    )
    assert perform(monkeypatch, hands, *asked) == [
        PartMeasured(7.0, place(), "p1", 2, FOUND.square),
        PartMeasured(7.0, place(), "p0", 0, FOUND.square),
        OwnMeasured(7.0, HEAD.anchor, 1, FOUND),
    ]
    assert hands.done == [
        ("measure", b"theirs", b""),
        ("measure", MINE, b""),
        ("measure", MINE, digest_of(b"last")),
    ]
    assert perform(monkeypatch, Hands(has_part=False), *asked[1:]) == []


def test_a_mean_is_compared_with_what_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """And with what I gave, if I am behind it; a mean that is not here with nothing."""
    digest = digest_of(b"mean")
    hands = Hands(objects={digest: b"mean"})
    about = CheckMean(digest, 2, 3, ("p0", "p1"), (1, 1), (1.0, 1.0), HEAD.anchor)
    without = replace(about, part=1, names=("p1", "p2"))
    gone = replace(about, digest=digest_of(b"gone"))
    shown = CheckRow("p1", digest, 2, 3, 1, b"theirs", 1.0, HEAD.anchor)
    assert perform(
        monkeypatch, hands, about, without, gone, shown, replace(shown, digest=digest_of(b"gone"))
    ) == [
        MeanChecked(7.0, digest, 2, 3, ROW),
        MeanChecked(7.0, digest, 1, 3, ROW),
        RowChecked(7.0, "p1", digest, 2, 3, right=False),
    ]  # fmt: skip
    assert hands.done == [
        ("check", 2, "p0", b"mean", MINE),
        ("check", 1, "p0", b"mean", None),
        ("check row", "p1", b"mean"),
    ]


def test_what_i_gave_is_shown_with_its_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as it is here."""
    effect = ShowRow(("p1", "p2"), place(), 2, MEAN.digest, 7)
    hands = Hands()
    perform(monkeypatch, hands, effect)
    shown = RowDispute(place(), 2, MEAN.digest, 7, (), MINE)
    assert hands.done == [("send", "p1", shown), ("send", "p2", shown)]
    without = Hands(has_part=False)
    perform(monkeypatch, without, effect)
    assert without.done == []


def test_the_organisers_answer_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is stuck is shown to its node."""
    hands = Hands()
    assert perform(monkeypatch, hands, AskOrganiser(STUCK)) == [OrganiserAnswered(7.0, None)]
    assert hands.done == [("ask", STUCK)]


def test_parts_go_to_their_reducer_and_mine_stay_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """What I reduce myself takes no network; nothing is sent for a ballot that is over, or without a contribution."""
    hands = Hands()
    perform(monkeypatch, hands, SendParts("p1", place(), (0, 2)), SendParts("p0", place(), (1,)))
    assert hands.done == [
        ("send", "p1", PartData(place(), 0, 0, (), MINE)),
        ("send", "p1", PartData(place(), 0, 2, (), MINE)),
        ("keep", "p0", 1),
    ]
    over = Hands()
    perform(monkeypatch, over, SendParts("p1", place(), (0, 2)), ballot=1)
    assert over.done == []
    nothing = Hands(has_part=False)
    perform(monkeypatch, nothing, SendParts("p1", place(), (0, 2)))
    assert nothing.done == []


def test_a_mean_travels_with_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which the machine does not hold."""
    hands = Hands(objects={MEAN.digest: b"mean"})
    perform(monkeypatch, hands, SendMean(("p1", "p2"), MEAN))
    assert [(to, message.payload) for _, to, message in hands.done] == [("p1", b"mean"), ("p2", b"mean")]


def test_a_fetch_is_answered_with_what_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each digest once, unknown ones not at all."""
    hands = Hands(objects={digest_of(b"a"): b"a", digest_of(b"b"): b"b"})
    perform(monkeypatch, hands, SendObjects("p1", tuple(digest_of(name) for name in (b"a", b"x", b"b", b"a"))))
    assert [message.payload for _, _, message in hands.done] == [b"a", b"b"]


def test_a_fetch_costs_no_more_than_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small frame is not answered with a whole model."""
    half = FETCH_BYTES // 2
    large = [bytes((number,)) * half for number in range(4)]
    hands = Hands(objects={digest_of(payload): payload for payload in large})
    perform(monkeypatch, hands, SendObjects("p1", tuple(hands.objects)))
    assert [message.payload for _, _, message in hands.done] == large[:2]


def test_the_chain_is_read_from_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the anchor the other one has."""
    hands = Hands()
    perform(monkeypatch, hands, SendBlocks("p1", HEAD.anchor, HEARD))
    assert hands.done == [("send", "p1", Blocks((block(),)))]


def test_blocks_that_were_pruned_are_answered_with_head_and_no_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the other one knows that this peer is further and cannot show how it got there."""
    hands = Hands(blocks=())
    perform(monkeypatch, hands, SendBlocks("p1", digest_of(b"long ago"), HEARD))
    assert [message for _, _, message in hands.done] == [HEARD, Blocks(())]


def test_heads_are_published_also_when_nobody_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The board hears of them."""
    hands, published = Hands(), []
    peer = make(state_of("p0"), hands, publish=published.append)
    peer.deliver(Submitted(7.0, header("p0")))
    while hands.measuring:
        hands.measuring.pop(0)(FOUND)
    heads = [message for what, *_, message in hands.done if what == "send" and isinstance(message, Heartbeat)]
    assert heads[0].ready
    assert published == heads[:1]
    alone: list[Message] = []
    monkeypatch.setattr(drivers, "step", lambda state, event: (state, (Send((), heads[0]),)))
    make(state_of("p0"), hands, publish=alone.append).deliver(Tick(0.0))
    assert alone == heads[:1]


def test_events_wait_until_the_effects_before_them_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """An effect that delivers at once does not overtake those that follow it."""
    hands, order = Hands(), []
    peer = make(state_of("p0"), hands)

    def step(state: State, event: Input) -> tuple[State, tuple[Effect, ...]]:
        order.append(event.now)
        return state, (RequestSubmit(), RequestSubmit()) if event.now == 0.0 else ()

    def request_submit() -> None:
        order.append(-1.0)
        peer.deliver(Tick(1.0))

    monkeypatch.setattr(drivers, "step", step)
    monkeypatch.setattr(hands, "request_submit", request_submit)
    peer.deliver(Tick(0.0))
    assert order == [0.0, -1.0, -1.0, 1.0, 1.0]


def test_a_question_from_the_net_to_the_disk_and_back() -> None:
    """FETCH in, BYTES out, with the real machine."""
    hands = Hands(objects={digest_of(b"a"): b"a"})
    make(state_of("p0"), hands).on_frame("p1", encode(GetObjects((digest_of(b"a"),))))
    assert hands.done == [("send", "p1", ObjectData(b"", b"a"))]
