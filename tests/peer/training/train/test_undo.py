"""A fork is healed: the losers stand on the winners' branch, to the bit, and their own work is owed again."""

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

from dht.errors import BadInput
from peer.consensus.protocol.encoding import digest
from peer.node.lifecycle.inputs_effects import Moved
from peer.schema import spec as specs
from peer.training.checkpoint.checkpoint import Checkpoints, newest
from peer.training.outer.outer_state import OuterState
from peer.training.outer.outer_step import advance
from peer.training.train.trainer import LocalTrainer
from tests.decided import DecidedRound, contribution
from tests.stepping import slices, step, submit
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


def agree(trainers: Sequence[LocalTrainer], anchor: bytes) -> DecidedRound:
    """These train, freeze, agree and apply."""
    for trainer in trainers:
        trainer.begin_round([each.me for each in trainers])
        for _ in range(2):
            step(trainer)
        submit(trainer, anchor)
    decided = DecidedRound(trainers, anchor)
    decided.apply_to(*trainers)
    return decided


def after(anchor: OuterState, trainer: LocalTrainer, rounds: Sequence[DecidedRound]) -> OuterState:
    """Where these rounds lead from `anchor`, which moves."""
    for decided in rounds:
        advance(anchor, decided.update, trainer.spec, trainer.parts, decided.objects.__getitem__)
    return anchor


def undo(
    trainer: LocalTrainer, first: OuterState, kept: Sequence[DecidedRound], undone: Sequence[DecidedRound]
) -> Moved:
    """Stand again where the kept rounds lead, by the same outer steps from the first anchor on."""
    return trainer.rewind([decided.update for decided in reversed(undone)], after(first, trainer, kept))


@pytest.mark.slow
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_the_losers_end_with_the_bits_of_the_winners(make: Make, wire: str, optimizer: str) -> None:
    """Parameters, momentum and cursors, after rounds apart; and the next round is made together."""
    loser, winner = make("p0", wire, optimizer), make("p1", wire, optimizer)
    common = [agree([loser, winner], FIRST)]
    lost = [agree([loser], common[-1].next_anchor)]
    lost.append(agree([loser], lost[-1].next_anchor))
    won = agree([winner], common[-1].next_anchor)
    step(loser)
    undone = undo(loser, make("fresh", wire, optimizer).anchor, common, lost)
    assert (loser.anchor.round, loser.status.offered, loser.progress.step, undone) == (
        1,
        False,
        0,
        Moved(returned=2, lost=0),
    )
    assert torch.equal(
        loser._backend.vectors.flat.new(),
        whole(loser.anchor.theta) - whole(loser._backend.vectors.residual),
    )
    won.apply_to(loser)
    assert whole(loser.anchor.momentum).any()
    assert loser.anchor.state_digest() == winner.anchor.state_digest()
    agree([loser, winner], won.next_anchor)
    assert loser.anchor.state_digest() == winner.anchor.state_digest()


def test_what_was_offered_for_an_anchor_is_offered_again(make: Make) -> None:
    """Its bytes are in others' hands; what was learned since waits for the next anchor, with its tokens."""
    trainer = make("p0")
    trainer.begin_round(["p0"])
    step(trainer)
    submit(trainer, FIRST)
    offer, tokens = offered(trainer, FIRST), contribution(trainer, FIRST).effort.tokens
    decided = DecidedRound([trainer], FIRST)
    decided.apply_to(trainer)
    step(trainer)
    undo(trainer, make("fresh").anchor, [], [decided])
    step(trainer)
    submit(trainer, FIRST)
    assert offered(trainer, FIRST) == offer
    assert contribution(trainer, FIRST).effort.tokens == tokens
    decided.apply_to(trainer)
    submit(trainer, decided.next_anchor)
    assert contribution(trainer, decided.next_anchor).effort.tokens == 2 * tokens


def test_damage_changes_nothing(make: Make) -> None:
    """What the others hold cannot be computed from other bytes: the peer stays where it was, and says which file."""
    trainer, fresh = make("p0"), make("fresh")
    rounds = [agree([trainer], FIRST)]
    rounds.append(agree([trainer], rounds[-1].next_anchor))
    path = trainer._folder / f"{FIRST.hex()}.parts"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    state, owed = trainer.anchor.state_digest(), whole(trainer._backend.vectors.residual)
    with pytest.raises(BadInput, match=f"{FIRST.hex()}.parts is damaged"):
        undo(trainer, fresh.anchor, [], rounds)
    assert trainer.anchor.state_digest() == state
    assert torch.equal(whole(trainer._backend.vectors.residual), owed)


def test_work_that_is_not_on_disk_any_more_is_named(make: Make) -> None:
    """It cannot be owed again; the rest can."""
    trainer = make("p0")
    rounds = [agree([trainer], FIRST)]
    rounds.append(agree([trainer], rounds[-1].next_anchor))
    (trainer._folder / f"{FIRST.hex()}.header").unlink()
    assert undo(trainer, make("fresh").anchor, [], rounds) == Moved(returned=1, lost=1)


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
    """Of what was produced: since the last offer, update or change of branches. No update discounts it."""

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

    def undone(self, decided: DecidedRound) -> None:
        offer = self.offers.get(decided.update.parent)
        if offer is not None:
            self.counted = self.counted - offer * self.counts(decided)
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
    """Two peers that go from branch to branch together; the second one is in every round."""

    def __init__(self, make: Make, wire: str, seed: int, fragments: int = 1) -> None:
        self.choose, self.numbers = random.Random(seed), np.random.default_rng(seed)
        self.meanwhile = random.Random(f"{seed} meanwhile")
        self.trainers = [on_grid(make(name, wire, fragments=fragments)) for name in ("p0", "p1")]
        self.first = OuterState.initial([torch.zeros(size) for size in self.trainers[0].layer_sizes])
        self.books = [Books(trainer) for trainer in self.trainers]
        self.chain: list[DecidedRound] = []
        self.left: list[list[DecidedRound]] = []
        """Blocks of branches that were left, each list from the anchor on where it forks off."""

    @property
    def anchor(self) -> bytes:
        return self.chain[-1].next_anchor if self.chain else FIRST

    def act(self) -> None:
        """Something that may happen to a peer."""
        for books in self.books:
            books.produces(self.numbers)
        undoes = len(self.chain) > 1 and self.choose.random() < 0.4
        self.go_back() if undoes else self.go_on()
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

    def go_back(self) -> None:
        """Undo some rounds, and follow a branch that was left there before, if there is one."""
        count = self.choose.randint(1, len(self.chain) - 1)
        undone, self.chain = self.chain[-count:], self.chain[:-count]
        for books in self.books:
            first = OuterState.initial([theta.clone() for theta in self.first.theta])
            result = undo(books.trainer, first, self.chain, undone)
            assert result == Moved(returned=sum(bool(books.counts(each).any()) for each in undone), lost=0)
            for decided in reversed(undone):
                books.undone(decided)
            books.check()
        known = [branch for branch in self.left if branch[0].update.parent == self.anchor]
        self.left.append(undone)
        for decided in self.choose.choice(known) if known else ():
            self.apply(decided)

    def apply(self, decided: DecidedRound) -> None:
        decided.apply_to(*self.trainers)
        for books in self.books:
            books.settled(decided)
        self.chain.append(decided)


@pytest.mark.slow
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("seed", range(3))
def test_from_branch_to_branch_nothing_is_lost_or_counted_twice(make: Make, wire: str, seed: int) -> None:
    """Produced − counted on the chain − discounted = owed, to the last bit, after every action."""
    pair = Pair(make, wire, seed)
    for _ in range(12):
        pair.act()
    first, second = pair.trainers
    assert first.anchor.state_digest() == second.anchor.state_digest()
    assert pair.left
    assert np.any(pair.books[0].counted)


@pytest.mark.slow
@pytest.mark.parametrize("fragments", [2, 3])
@pytest.mark.parametrize("wire", ["float32", "int4"])
@pytest.mark.parametrize("seed", range(3))
def test_the_same_of_every_fragment(make: Make, wire: str, fragments: int, seed: int) -> None:
    """Also where a branch that is left has averaged several of them."""
    pair = Pair(make, wire, seed, fragments)
    for _ in range(12):
        pair.act()
    first, second = pair.trainers
    assert first.anchor.state_digest() == second.anchor.state_digest()
    assert any(len(undone) > 1 for undone in pair.left)


def rounds_of(other: LocalTrainer) -> list[DecidedRound]:
    """Two rounds that somebody else makes alone."""
    numbers, rounds, anchor = np.random.default_rng(2), [], FIRST
    for _ in range(2):
        produce(other, numbers)
        submit(other, anchor)
        rounds.append(DecidedRound([other], anchor))
        rounds[-1].apply_to(other)
        anchor = rounds[-1].next_anchor
    return rounds


class Healing:
    """A peer whose branch loses, action by action; it may be killed after any of them."""

    actions = ("offer", "commit", "offer", "commit", "switch", "undo", "save", "win", "win", "offer")

    def __init__(self, make: Make, folder: Path, won: list[DecidedRound]) -> None:
        self.make: Callable[[], LocalTrainer] = lambda: on_grid(make(folder.name))
        self.trainer = self.make()
        self.checkpoints = Checkpoints(folder / "checkpoints")
        self.numbers = np.random.default_rng(1)
        self.stands = FIRST
        """Where the trainer is, by the chain's name."""
        self.chain: list[DecidedRound] = []
        self.undone: list[DecidedRound] = []
        self.won = won
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
            case "switch":  # the link's HEAD is back at the fork; the trainer has not heard of it
                self.undone, self.chain = self.chain, []
            case "undo":
                self.undo_to_chain()
            case "save":
                self.save()
            case "win":
                self.apply(self.won[len(self.chain)])

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

    def undo_to_chain(self) -> None:
        """From wherever on the lost branch the trainer stands, if it does."""
        made = [decided.next_anchor for decided in self.undone]
        if self.stands in made:
            zeros = [torch.zeros(size) for size in self.trainer.layer_sizes]
            undo(self.trainer, OuterState.initial(zeros), [], self.undone[: made.index(self.stands) + 1])
            self.stands = FIRST

    def die_and_start_again(self) -> None:
        """The link tells a new trainer what is undone from its checkpoint on, what was decided since, where it is."""
        self.trainer = self.make()
        found = newest(self.checkpoints.folder, self.trainer.spec.digest().hex(), self.trainer.me, _fail)
        assert found is not None
        self.stands = found.anchor
        self.trainer.anchor.become(self.stood[self.stands])
        self.trainer.restore(found)
        self.undo_to_chain()
        anchors = [FIRST, *(decided.next_anchor for decided in self.chain)]
        for decided in self.chain[anchors.index(self.stands) :]:
            self.trainer.replay(decided.update, decided.objects.__getitem__)
            self.stands = decided.next_anchor
        self.trainer.resume(self.stands)


def _fail(path: Path, why: str) -> None:
    raise AssertionError(f"{path}: {why}")


@pytest.mark.slow
@pytest.mark.parametrize("wire", ["float32", "int4"])
def test_a_crash_at_any_step_of_a_healing_loses_nothing(make: Make, tmp_path: Path, wire: str) -> None:
    """The same residual and the same offers as of a peer that lived on: what it learned was in a checkpoint."""
    won = rounds_of(on_grid(make("winner", wire=wire)))
    lived = Healing(partial(make, wire=wire), tmp_path / "lived", won)
    for action in Healing.actions:
        lived.perform(action)
    assert whole(lived.trainer._backend.vectors.residual).any()
    for last in range(len(Healing.actions)):
        died = Healing(partial(make, wire=wire), tmp_path / f"died after {last}", won)
        for number, action in enumerate(Healing.actions):
            died.perform(action)
            if number == last:
                died.die_and_start_again()
        assert torch.equal(
            whole(died.trainer._backend.vectors.residual), whole(lived.trainer._backend.vectors.residual)
        ), last
        assert offered(died.trainer, died.stands) == offered(lived.trainer, lived.stands), last
