"""What holds in every life, whatever comes in whatever order: its promises, under random inputs.

A lawful link and a lawful trainer are played with everything that may happen to them; after each input the effects and
the state are looked at. That each rule fails without its guard is shown by `tests/mutants.toml`.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dht.errors import ClockOff, DiskFull
from peer.node.lifecycle.inputs_effects import (
    Adopt,
    Apply,
    Began,
    ClockJumped,
    Do,
    Done,
    EmitRound,
    Fail,
    GrantFinish,
    Greet,
    Greeted,
    Interrupt,
    LayersReady,
    LeaveAsked,
    LifeEffect,
    LifeInput,
    LinkEnded,
    Moved,
    OwnerChanged,
    Positioned,
    Reconnect,
    Replay,
    Resume,
    RoundDecided,
    Save,
    Saved,
    Say,
    SnapshotTaken,
    Step,
    Stepped,
    Submit,
    SubmitAsked,
    SyncChanged,
    TakeBack,
    TrainerStatus,
    Woken,
    Work,
    Written,
)
from peer.node.lifecycle.machine import begin, step
from peer.node.lifecycle.state import LINK_LOST_WINDOW_S, LINKS_LOST, Following, Joining, Life, Mode, Open, Writing
from peer.schema.ipc import OfferContribution, PausedAt, StandsAt
from peer.schema.spec import RunSpec
from tests.peer.consensus.rounds.build import NAMES, update
from tests.peer.node.lifecycle.story import PAUSED, QUOTA, STATE, FakeTrainer, spec

MOVING = (Apply, Replay, Adopt, Resume)
RUNS = tuple(
    spec(overlap=overlap, delay=delay, merge="rebase", pace=pace)
    for overlap, delay in (("none", 0), ("layerwise", 0), ("streaming", 2), ("streaming", 1000))
    for pace in ("steps", "speed")
)


def anchor_of(round: int, branch: int = 0) -> bytes:
    return bytes([round, branch]) + bytes(30)


@dataclass
class World:
    """One life, its trainer and its link, and what was seen of them."""

    run: RunSpec
    dice: Random
    now: float = 1000.0
    trainer: FakeTrainer = field(default_factory=lambda: FakeTrainer(TrainerStatus(round=0)))
    work: Work | None = None
    writing: bytes | None = None
    layers: bool = False
    tip: int = 0
    """Round where its link's chain ends."""
    branch: int = 0
    heard: list[LifeInput] = field(default_factory=list)
    """Moves that the present link has said and nobody has made."""
    granted: bool = False
    emitted: Counter[bytes] = field(default_factory=Counter)
    stood: Counter[bytes] = field(default_factory=Counter)
    """Anchors that this link heard of, once each."""
    offered_here: int = 0
    must_save: bool = False
    restarts: list[float] = field(default_factory=list)
    failed: bool = False

    def __post_init__(self) -> None:
        self.trainer.streams = self.run.round.overlap == "streaming"
        self.life = begin(self.run, "p2", self.trainer.status, b"", self.now)
        self.began_at = self.now
        self.feed(Woken(self.now))

    # ---- what may happen now ----

    def choices(self) -> Iterator[Callable[[], None]]:
        """Each as often as it is likely: links end seldom, or no life would come far."""
        life, connection = self.life, self.life.connection
        if self.work is not None:
            yield from [self.finish_work] * 12
        if self.writing is not None:
            yield from [self.finish_writing] * 3
        if self.layers:
            yield from [self.finish_layers] * 3
        yield from [self.pass_time] * 2
        if self.dice.random() < 0.4:
            yield self.change_owner
        match connection:
            case Joining(stage="spec"):
                yield from [lambda: self.feed(Greeted(self.now))] * 6
            case Joining(stage="begin"):
                yield from [self.meet] * 6
            case Following():
                yield from [self.say_more] * 3
        if (not isinstance(connection, Joining) or life.met) and self.dice.random() < 0.1:
            yield self.end_link
        if self.dice.random() < 0.1:
            yield lambda: self.feed(ClockJumped(self.now))

    def pass_time(self) -> None:
        wake_at = self.life.wake_at
        self.now += self.dice.choice([0.1, 5.0, 100.0])
        if wake_at < float("inf") and self.dice.random() < 0.7:
            self.now = max(self.now, wake_at)
        self.feed(Woken(self.now))
        assert self.life.wake_at > self.now, "it would be woken again and again"

    def change_owner(self) -> None:
        holds = self.dice.choice([(), (), (PAUSED,), (QUOTA,)])
        self.granted = False
        self.feed(
            OwnerChanged(self.now, holds, not holds and self.dice.random() < 0.3, self.dice.choice([0.0, 0.0, 3.0]))
        )

    def meet(self) -> None:
        here, self.tip = self.life.round.anchor or anchor_of(0), self.life.trainer.round
        self.feed(Began(self.now, here, NAMES))
        self.move(Positioned(self.now, here))
        if self.dice.random() < 0.8:
            self.feed(SyncChanged(self.now, True))

    def say_more(self) -> None:
        here = self.tip
        match self.dice.randrange(9):
            case 0 | 1 | 2 | 8:
                round = here + 1
                if self.run.run.rounds and round > self.run.run.rounds:
                    return
                decided = update(round=round, ballot=self.branch)
                self.tip = round
                self.move(RoundDecided(self.now, decided, anchor_of(round, self.branch), 1, 1, self.now))
            case 3 | 4:
                self.feed(SyncChanged(self.now, self.dice.random() < 0.85))
            case 5:
                self.feed(SubmitAsked(self.now))
            case 6 | 7 if not self.heard:
                self.branch += 1
                self.tip = round = self.dice.randrange(3)
                self.move(SnapshotTaken(self.now, round, anchor_of(round, self.branch), NAMES))

    def move(self, move: LifeInput) -> None:
        self.heard.append(move)
        self.feed(move)

    def end_link(self) -> None:
        self.heard = [move for move in self.heard[:1] if isinstance(self.work, MOVING)]
        self.stood.clear()
        error = self.dice.choice([OSError(), OSError(), DiskFull("full"), ClockOff("off")])
        self.feed(LinkEnded(self.now, error))

    # ---- what the trainer does ----

    def finish_work(self) -> None:
        work, self.work = self.work, None
        assert work is not None
        self.now += self.dice.choice([0.0, 1.0, 20.0])
        result = self.trainer.result(work)
        if isinstance(work, MOVING):
            assert self.heard, "a move that nobody asked for"
            self.heard.pop(0)
        if isinstance(work, Submit):
            self.writing = work.anchor
        self.layers |= isinstance(work, Apply) and work.beside
        if isinstance(result, Stepped):
            result = replace(result, rest_s=self.dice.choice([0.0, 0.0, 2.0]))
        if isinstance(work, Save):
            self.feed(Saved(self.now, self.trainer.status.round, 0.1, no_room=self.dice.choice(["", "", "full"])))
        self.feed(Done(self.now, result, self.trainer.status))

    def finish_writing(self) -> None:
        anchor, self.writing = self.writing, None
        assert anchor is not None
        no_room = self.dice.choice(["", "", "full"])
        self.feed(Written(self.now, anchor, no_room))
        if not no_room:
            self.offered_here += 1
            assert self.offered_here <= 1, "one contribution to an anchor"

    def finish_layers(self) -> None:
        self.layers = False
        self.feed(LayersReady(self.now, STATE))

    # ---- what is looked at ----

    def feed(self, event: LifeInput) -> None:
        before = self.life
        self.life, effects = step(before, event)
        works = [effect.work for effect in effects if isinstance(effect, Do)]
        assert len(works) <= 1, "one piece of work at a time"
        assert not works or (self.work is None and isinstance(effects[-1], Do)), "and it is asked for last"
        self.look_at_anchor(before, event)
        for effect in effects:
            self.look_at(effect, before)
        self.look_at_times(effects)
        if self.life.work is None and not self.life.leaving:
            self.look_for_an_end()

    def look_at(self, effect: LifeEffect, before: Life) -> None:
        life = self.life
        match effect:
            case Do(work):
                self.look_at_work(work)
                self.work = work
            case Say(OfferContribution(anchor)):
                assert self.writing is None, "its bytes are on disk"
                assert anchor == life.round.anchor
            case Say(PausedAt(anchor)):
                assert self.writing is None, "what is written is told first"
                assert life.owner.holds
                assert anchor == life.round.anchor
            case Say(StandsAt(anchor)):
                self.stood[anchor] += 1
            case EmitRound():
                self.emitted[effect.anchor] += 1
                assert self.emitted[effect.anchor] == 1, "a round is told once"
                assert effect.exposed_s <= effect.round_s + 1e-6
            case GrantFinish():
                self.granted = True
            case Greet(anchor):
                assert not self.heard, "the new link hears where the trainer stays"
                assert self.writing is None
                assert anchor == life.round.anchor
            case Reconnect() if life.links_lost != before.links_lost:
                self.restarts = [at for at in self.restarts if self.now - at < LINK_LOST_WINDOW_S] + [self.now]
                assert len(self.restarts) <= LINKS_LOST
            case Fail():
                self.failed = True
            case Interrupt():
                assert isinstance(before.work, Step) or effect.at_once

    def look_at_work(self, work: Work) -> None:
        life = self.life
        if life.leaving:
            assert isinstance(work, TakeBack) or (isinstance(work, Save) and work.when == "last"), "and then it leaves"
        if self.must_save:
            assert isinstance(work, Save | TakeBack), "an older checkpoint stands where no chain leads on"
            self.must_save = isinstance(work, TakeBack)
        if isinstance(work, MOVING):
            assert self.writing is None, "nothing is on its way"
            assert not self.layers
        if isinstance(work, Submit):
            assert isinstance(life.round.submission, Open)
            assert life.trainer.fresh
            assert not self.layers
        if isinstance(work, Step):
            self.look_at_step()

    def look_at_step(self) -> None:
        life = self.life
        assert not life.owner.holds, "its owner holds it"
        assert life.in_step, "it is behind"
        assert life.stuck is None
        assert life.trainer.on_device
        assert not life.finished
        assert not self.granted
        assert life.at >= life.rests_until - life.owner.min_step_s, "it rests"
        if not isinstance(life.round.submission, Open) and not life.round.released:
            assert life.streams, "it waits for the others"
            assert life.trainer.step < life.run.round.delay

    def look_at_anchor(self, before: Life, event: LifeInput) -> None:
        moved = isinstance(event, Done) and isinstance(event.result, Moved)
        if self.life.round.anchor != before.round.anchor:
            assert moved or isinstance(event, Began), "the anchor's name changes with the trainer's"
        if moved and isinstance(event, Done):
            self.offered_here = 0
            self.must_save = isinstance(before.work, Adopt)

    def look_at_times(self, effects: tuple[LifeEffect, ...]) -> None:
        times = self.life.times
        total_s = times.training_s + times.rested_s + times.paused_s + times.exposed_s
        assert abs(total_s - (self.life.at - self.began_at)) < 1e-6, "every second is one of these"
        assert min(times.training_s, times.rested_s, times.paused_s, times.exposed_s) >= -1e-9

    def look_for_an_end(self) -> None:
        """Whoever waits is woken by time, or by something that is on its way."""
        life = self.life
        if life.mode in (Mode.TRAINING, Mode.AVERAGING, Mode.STUCK) and not life.granted:
            assert life.wake_at < float("inf") or self.writing is not None or self.layers, "it waits for ever"
        if isinstance(life.round.submission, Writing):
            assert self.writing is not None


@settings(max_examples=400, deadline=None)
@given(seed=st.integers(0, 2**32), run=st.sampled_from(RUNS), rounds=st.sampled_from([0, 3]))
def test_the_promises_of_a_life_hold_whatever_comes(seed: int, run: RunSpec, rounds: int) -> None:
    world = World(dataclasses.replace(run, run=dataclasses.replace(run.run, rounds=rounds)), Random(seed))
    for _ in range(120):
        if world.life.mode is Mode.LEFT or world.failed:
            break
        world.dice.choice(list(world.choices()))()
    leave(world)
    assert all(count == 1 for count in world.stood.values())


def leave(world: World) -> None:
    """Politely, from wherever it is: it ends, and begins again where it was."""
    world.feed(LeaveAsked(world.now))
    for _ in range(20):
        if world.life.mode is Mode.LEFT:
            break
        if world.work is not None:
            world.finish_work()
        elif world.writing is not None:
            world.finish_writing()
        elif world.layers:
            world.finish_layers()
    assert world.life.mode is Mode.LEFT, "it leaves"
    before = world.life
    again = begin(before.run, before.me, world.trainer.status, before.round.anchor, world.now)
    assert (again.trainer, again.round.anchor) == (before.trainer, before.round.anchor)
    assert (again.round_in_training, again.finished) == (before.round_in_training, before.finished)
