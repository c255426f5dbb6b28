"""What a peer learned is counted once, discounted or owed, to the bit, whatever becomes of it on the way."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from peer.consensus.protocol.encoding import digest
from peer.schema import spec as specs
from peer.training.checkpoint.checkpoint import Checkpoints, newest
from peer.training.outer.outer_state import OuterState
from peer.training.outer.outer_step import advance
from peer.training.train.trainer import LocalTrainer
from tests.decided import DecidedRound, contribution
from tests.stepping import slices, submit
from tests.vectors import whole

CPU = torch.device("cpu")
FIRST = digest("anchor", 0)
GAMMA = 0.5
SMALL = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
WIRES = ("float32", "float16", "int8", "int4")

Make = Callable[..., LocalTrainer]
Exact = npt.NDArray[np.float64]


@pytest.fixture
def make(corpus: Path, tmp_path: Path) -> Make:
    """A trainer of its own folder; the same name is the same folder."""

    def make_one(me: str, wire: str = "int4", optimizer: str = "adamw", fragments: int = 1) -> LocalTrainer:
        micro = specs.load("micro")
        spec = dataclasses.replace(
            micro,
            model=dataclasses.replace(micro.model, context=16, config=micro.model.config | SMALL),
            data=dataclasses.replace(micro.data, source="files", path=str(corpus), held_out_every=4, eval_sequences=4),
            inner=dataclasses.replace(micro.inner, sequences=2, optimizer=optimizer),  # type: ignore[arg-type]
            codec=dataclasses.replace(micro.codec, wire=wire, part_elements=512),  # type: ignore[arg-type]
            round=dataclasses.replace(micro.round, fragments=fragments),
        )
        (tmp_path / me).mkdir(exist_ok=True)
        return LocalTrainer(spec, me, tmp_path / me / "contributions", CPU, data_path=spec.data.path)

    return make_one


def after(anchor: OuterState, trainer: LocalTrainer, rounds: Sequence[DecidedRound]) -> OuterState:
    """Where these rounds lead from `anchor`, which moves."""
    for decided in rounds:
        advance(anchor, decided.update, trainer.spec, trainer.parts, decided.objects.__getitem__)
    return anchor


# ---- exact books: every number a multiple of a power of two, so that float32 adds and subtracts without rounding ----


def offered(trainer: LocalTrainer, anchor: bytes) -> list[bytes]:
    mine = contribution(trainer, anchor)
    return [mine.payload(part) for part in range(len(mine.leaves))]


def offered_values(trainer: LocalTrainer, anchor: bytes) -> Exact:
    """Zero in what the round does not average."""
    values = np.zeros(trainer.parameters)
    for where, payload in zip(slices(trainer, trainer.anchor.round), offered(trainer, anchor), strict=True):
        values[where] = trainer._codec.decode(payload)[: where.stop - where.start]
    return values


def on_grid(trainer: LocalTrainer) -> LocalTrainer:
    """All parameters zero, and outer steps leave them there; work too old is never given up."""
    spec = trainer.spec
    trainer.spec = dataclasses.replace(
        spec,
        outer=dataclasses.replace(spec.outer, learning_rate=0.0),
        round=dataclasses.replace(spec.round, gamma=GAMMA, max_staleness=64),
    )
    trainer.progress._spec = trainer.spec
    for theta in trainer.anchor.theta:
        theta.zero_()
    trainer._begin_at_anchor(trainer.progress.turns.everything)
    return trainer


def produce(trainer: LocalTrainer, numbers: np.random.Generator) -> Exact:
    """As inner steps would: the parameters move, by eighths."""
    movement = numbers.choice([-3, -2, -1, 1, 2, 3], size=trainer.parameters) / 8
    trainer._keep_starts()
    trainer._backend.vectors.flat.copy_from(trainer._backend.vectors.flat.new() - torch.from_numpy(movement).float())
    for fragment in trainer.progress.turns.everything:
        trainer.progress.turns.work(fragment).tokens += 64
        trainer.progress.turns.work(fragment).steps += 1
    return movement


@dataclass
class Books:
    """What one peer must owe by the protocol's four operations, in float64, where they are exact."""

    trainer: LocalTrainer
    offers: dict[bytes, Exact] = field(default_factory=dict)
    produced: Exact | float = 0.0
    counted: Exact | float = 0.0
    discounted: Exact | float = 0.0
    newest: Exact | float = 0.0
    """Of what was produced: since the last offer, update or snapshot. No update discounts it."""

    @property
    def owed(self) -> Exact:
        return self.produced - self.counted - self.discounted  # type: ignore[return-value]

    def produces(self, numbers: np.random.Generator) -> None:
        movement = produce(self.trainer, numbers)
        self.produced, self.newest = self.produced + movement, self.newest + movement

    def froze(self, anchor: bytes) -> None:
        self.newest = 0.0
        values = offered_values(self.trainer, anchor)
        assert np.array_equal(self.offers.setdefault(anchor, values), values)

    def settled(self, decided: DecidedRound) -> None:
        offer, counts = self.offers.get(decided.update.parent), self.counts(decided)
        if offer is not None:
            old = self.owed - self.newest
            self.counted = self.counted + offer * counts
            self.discounted = self.discounted + old * (1 - GAMMA) * (self.averaged(decided) & ~counts)
        self.newest = 0.0

    def left_behind(self, anchor: bytes) -> None:
        """What was offered there may be counted or not: it is owed no more."""
        self.counted = self.counted + self.offers[anchor]
        self.newest = 0.0

    def counts(self, decided: DecidedRound) -> npt.NDArray[np.bool_]:
        """Per element, whether the update counted this peer."""
        counted = np.zeros(self.trainer.parameters, dtype=np.bool_)
        for at, where in enumerate(slices(self.trainer, decided.update.round - 1)):
            counted[where] = decided.update.contributed(self.trainer.me, at)
        return counted

    def averaged(self, decided: DecidedRound) -> npt.NDArray[np.bool_]:
        """Per element, whether the round averaged it."""
        found = np.zeros(self.trainer.parameters, dtype=np.bool_)
        for where in slices(self.trainer, decided.update.round - 1):
            found[where] = True
        return found

    def check(self) -> None:
        """Nothing was lost, nothing counted twice."""
        assert np.array_equal(whole(self.trainer._backend.vectors.residual).numpy().astype(np.float64), self.owed)


class Pair:
    """Two peers that make rounds, and go on from snapshots, together; the second one is in every round."""

    def __init__(self, make: Make, wire: str, seed: int, fragments: int = 1) -> None:
        self.choose, self.numbers = random.Random(seed), np.random.default_rng(seed)
        self.meanwhile = random.Random(f"{seed} meanwhile")
        self.trainers = [on_grid(make(name, wire, fragments=fragments)) for name in ("p0", "p1")]
        self.first = OuterState.initial([torch.zeros(size) for size in self.trainers[0].layer_sizes])
        self.books = [Books(trainer) for trainer in self.trainers]
        self.chain: list[DecidedRound] = []
        self.jumps = 0

    @property
    def anchor(self) -> bytes:
        return self.chain[-1].next_anchor if self.chain else FIRST

    def act(self) -> None:
        """Something that may happen to a peer."""
        for books in self.books:
            books.produces(self.numbers)
        self.go_over() if self.choose.random() < 0.25 else self.go_on()
        for books in self.books:
            books.check()

    def go_on(self) -> None:
        """A round that takes the first peer in, or not, or in part; or comes before it has frozen."""
        takes_part = self.choose.random() < 0.8
        members = self.trainers[0 if takes_part else 1 :]
        for books in self.books[0 if takes_part else 1 :]:
            submit(books.trainer, self.anchor)
            books.froze(self.anchor)
        parts = len(self.trainers[0].progress.turns.parts(len(self.chain)))
        void = frozenset(self.choose.sample(range(parts), min(parts, self.choose.choice([0, 0, 2]))))
        left_out = frozenset({"p0"} if takes_part and self.choose.random() < 0.3 else ())
        if self.meanwhile.random() < 0.5:  # inner steps while the round is agreed
            for books in self.books:
                books.produces(self.numbers)
        self.apply(DecidedRound(members, self.anchor, left_out=left_out, void=void))

    def go_over(self) -> None:
        """A round is decided whose update they do not get: they go on from a snapshot of its anchor."""
        left = self.anchor
        for books in self.books:
            submit(books.trainer, left)
            books.froze(left)
        self.chain.append(DecidedRound(self.trainers, left))
        for books in self.books:
            first = OuterState.initial([theta.clone() for theta in self.first.theta])
            books.trainer.adopt(left, after(first, books.trainer, self.chain))
            books.left_behind(left)
        self.jumps += 1

    def apply(self, decided: DecidedRound) -> None:
        decided.apply_to(*self.trainers)
        for books in self.books:
            books.settled(decided)
        self.chain.append(decided)


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "wire"), enumerate(WIRES))
def test_nothing_is_lost_or_counted_twice(make: Make, wire: str, seed: int) -> None:
    """Produced − counted − left behind − discounted = owed, to the last bit, after every action."""
    pair = Pair(make, wire, seed)
    for _ in range(12):
        pair.act()
    first, second = pair.trainers
    assert first.anchor.state_digest() == second.anchor.state_digest()
    assert pair.jumps
    assert np.any(pair.books[0].counted)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "wire", "fragments"), [(0, "float32", 2), (1, "int4", 3), (2, "float32", 3), (1, "int4", 2)]
)
def test_the_same_of_every_fragment(make: Make, wire: str, fragments: int, seed: int) -> None:
    """Each is owed for itself."""
    pair = Pair(make, wire, seed, fragments)
    for _ in range(12):
        pair.act()
    first, second = pair.trainers
    assert first.anchor.state_digest() == second.anchor.state_digest()
    assert pair.jumps


class Life:
    """A peer's rounds, action by action; it may be killed after any of them."""

    actions = ("offer", "commit", "offer", "miss", "save", "offer", "commit", "offer")

    def __init__(self, make: Make, folder: Path) -> None:
        self.make: Callable[[], LocalTrainer] = lambda: on_grid(make(folder.name))
        self.trainer = self.make()
        self.checkpoints = Checkpoints(folder / "checkpoints")
        self.numbers = np.random.default_rng(1)
        self.stands = FIRST
        """Where the trainer is, by the chain's name."""
        self.chain: list[DecidedRound] = []
        self.stood: dict[bytes, OuterState] = {}
        """The anchors of its checkpoints, as the chain would give them."""

    def perform(self, action: str) -> None:
        match action:
            case "offer":
                produce(self.trainer, self.numbers)
                submit(self.trainer, self.stands)
                self.save()
            case "commit":
                self.apply(DecidedRound([self.trainer], self.stands))
            case "miss":
                self.apply(DecidedRound([self.trainer], self.stands, left_out={self.trainer.me}))
            case "save":
                self.save()

    def apply(self, decided: DecidedRound) -> None:
        self.chain.append(decided)
        decided.apply_to(self.trainer)
        self.stands = decided.next_anchor

    def save(self) -> None:
        self.checkpoints.write(self.trainer.checkpoint(self.stands))
        here = self.trainer.anchor
        self.stood[self.stands] = OuterState(
            [layer.clone() for layer in here.theta],
            [layer.clone() for layer in here.momentum],
            here.round,
            here.cursors,
        )

    def die_and_start_again(self) -> None:
        """The link tells a new trainer what was decided since its checkpoint, and where it is."""
        self.trainer = self.make()
        found = newest(self.checkpoints.folder, self.trainer.spec.digest().hex(), self.trainer.me, _fail)
        assert found is not None
        self.stands = found.anchor
        self.trainer.anchor.become(self.stood[self.stands])
        self.trainer.restore(found)
        anchors = [FIRST, *(decided.next_anchor for decided in self.chain)]
        for decided in self.chain[anchors.index(self.stands) :]:
            self.trainer.replay(decided.update, decided.objects.__getitem__)
            self.stands = decided.next_anchor
        self.trainer.resume(self.stands)


def _fail(path: Path, why: str) -> None:
    raise AssertionError(f"{path}: {why}")


@pytest.mark.slow
@pytest.mark.parametrize("wire", ["float32", "int4"])
def test_a_crash_at_any_step_loses_nothing(make: Make, tmp_path: Path, wire: str) -> None:
    """The same residual and the same offers as of a peer that lived on: what it learned was in a checkpoint."""
    lived = Life(partial(make, wire=wire), tmp_path / "lived")
    for action in Life.actions:
        lived.perform(action)
    assert whole(lived.trainer._backend.vectors.residual).any()
    for last in range(len(Life.actions)):
        died = Life(partial(make, wire=wire), tmp_path / f"died after {last}")
        for number, action in enumerate(Life.actions):
            died.perform(action)
            if number == last:
                died.die_and_start_again()
        assert torch.equal(
            whole(died.trainer._backend.vectors.residual), whole(lived.trainer._backend.vectors.residual)
        ), last
        assert offered(died.trainer, died.stands) == offered(lived.trainer, lived.stands), last
