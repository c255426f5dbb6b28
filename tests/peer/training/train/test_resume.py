"""A peer that starts again from a checkpoint goes on as if it had never stopped, bit for bit."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from peer.consensus.protocol.encoding import digest
from peer.schema import spec as specs
from peer.schema.spec import RunSpec
from peer.training.checkpoint.checkpoint import Checkpoints, newest
from peer.training.outer.outer_step import advance
from peer.training.train.autotune_result import Tuned, TuneKey
from peer.training.train.trainer import LocalTrainer
from tests.decided import DecidedRound
from tests.saved import everything, same, words
from tests.stepping import step, submit
from tests.talks import on_talks, on_talks_and_letters
from tests.vectors import starts, whole

CPU = torch.device("cpu")
FIRST = digest("anchor", 0)
STEPS = 3
ROUNDS = 2
SMALL = {
    "llama": {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2},
    # Dropout draws from torch's generator, so that its state matters.
    "gpt2": {"n_embd": 16, "n_layer": 1, "n_head": 2, "resid_pdrop": 0.2, "embd_pdrop": 0.2, "attn_pdrop": 0.2},
}


Make = Callable[..., RunSpec]


@pytest.fixture
def make_spec(corpus: Path) -> Make:
    """The micro spec, shrunk further."""

    def make(architecture: str = "llama", optimizer: str = "adamw", wire: str = "int4", **round: Any) -> RunSpec:
        micro = specs.load("micro")
        return dataclasses.replace(
            micro,
            model=dataclasses.replace(micro.model, architecture=architecture, context=16, config=SMALL[architecture]),
            data=dataclasses.replace(micro.data, source="files", path=str(corpus), held_out_every=4, eval_sequences=4),
            inner=dataclasses.replace(micro.inner, sequences=2, optimizer=optimizer),  # type: ignore[arg-type]
            codec=dataclasses.replace(micro.codec, wire=wire, part_elements=512),  # type: ignore[arg-type]
            round=dataclasses.replace(micro.round, **round),
        )

    return make


class Life:
    """One peer alone, action by action, which may be stopped after any of them."""

    def __init__(self, spec: RunSpec, folder: Path, fit: Tuned | None = None) -> None:
        self.spec, self.folder, self._fit = spec, folder, fit
        folder.mkdir(parents=True, exist_ok=True)
        self.anchor = FIRST
        self.chain: list[DecidedRound] = []
        self.trainer = self._trainer()
        torch.manual_seed(7)

    def _trainer(self) -> LocalTrainer:
        return LocalTrainer(
            self.spec, "p0", self.folder / "contributions", CPU, self._fit, data_path=self.spec.data.path
        )  # fmt: skip

    def actions(self) -> Iterator[str]:
        """Perform the next action each time; its name."""
        for _ in range(ROUNDS):
            for _ in range(STEPS):
                self.step()
                yield "step"
            submit(self.trainer, self.anchor)
            yield "freeze"
            # The round takes long: steps that belong to the next contribution.
            for _ in range(2):
                self.step()
                yield "step meanwhile"
            self.commit()
            yield "commit"

    def step(self) -> None:
        self.trainer.begin_round(("p0",))
        step(self.trainer)

    def commit(self) -> None:
        """The round is decided and applied."""
        decided = DecidedRound([self.trainer], self.anchor)
        decided.apply_to(self.trainer)
        self.chain.append(decided)
        self.anchor = decided.next_anchor

    def checkpoint(self) -> None:
        Checkpoints(self.folder / "checkpoints").write(self.trainer.checkpoint(self.anchor))

    def start_again(self) -> None:
        """A new process: everything comes from the disk; what was decided since the checkpoint is replayed."""
        torch.manual_seed(99)
        self.trainer = self._trainer()
        found = newest(self.folder / "checkpoints", self.spec.digest().hex(), "p0", lambda path, why: pytest.fail(why))
        assert found is not None
        at = found.anchor
        parents = [decided.update.parent for decided in self.chain]
        for decided in self.chain[: parents.index(at) if at in parents else len(parents)]:
            advance(self.trainer.anchor, decided.update, self.spec, self.trainer.parts, decided.objects.__getitem__)
        self.trainer.restore(found)
        for decided in self.chain[parents.index(at) if at in parents else len(parents) :]:
            self.trainer.replay(decided.update, decided.objects.__getitem__)
        self.trainer.resume(self.anchor)

    def everything(self) -> Everything:
        return everything(self.trainer, self.anchor), words(self.trainer, self.anchor)


Everything = tuple[dict[str, Tensor], str]


def expect_equal(one: Everything, other: Everything, after: str) -> None:
    """The same numbers and the same bits."""
    assert one[1] == other[1], after
    assert same(one[0], other[0]) == [], after


Reads = Callable[[RunSpec, Path], RunSpec]


def on_text(spec: RunSpec, folder: Path) -> RunSpec:
    return spec


WAITING: dict[str, Any] = {}
STREAMING = {"overlap": "streaming", "merge": "rebase"}
MERGING = {"overlap": "streaming", "merge": "interpolate", "alpha": 0.25}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "optimizer", "wire", "round", "reads"),
    [
        ("gpt2", "muon", "int8", WAITING, on_text), ("llama", "muon", "float16", MERGING, on_text),
        ("llama", "adamw", "int4", WAITING, on_talks), ("gpt2", "adamw", "int4", STREAMING, on_talks_and_letters),
    ],
)  # fmt: skip
def test_stopping_after_any_action_changes_no_bit(
    make_spec: Make, tmp_path: Path, architecture: str, optimizer: str, wire: str, round: dict[str, Any], reads: Reads
) -> None:
    """Parameters, momentum, residual, inner optimizer, random generators, data: as in the life without a stop."""
    expect_the_same_life(reads(make_spec(architecture, optimizer, wire, **round), tmp_path / "data"), tmp_path)


def test_on_the_lowest_rung_of_memory_neither(make_spec: Make, tmp_path: Path) -> None:
    """With moments of eight bits, and gradients of sixteen."""
    basis = TuneKey(run="", device="cpu", name="cpu", torch="", homefires="")
    fit = Tuned(
        basis=basis, sequences=2, step_s=1.0, tokens_per_s=1.0, recomputes=True, eight_bits=True, half_gradients=True
    )  # fmt: skip
    life = expect_the_same_life(make_spec(), tmp_path, fit)
    backend = life.trainer._backend
    moments = [value for number in range(len(backend.layers)) for value in backend.optimizer_of(number).values()]
    assert torch.uint8 in {value.dtype for value in moments}


def expect_the_same_life(spec: RunSpec, folder: Path, fit: Tuned | None = None) -> Life:
    """Of a peer that stops after any action, which is returned, as of one that never does."""
    whole = Life(spec, folder / "whole", fit)
    expected = [(name, whole.everything()) for name in whole.actions()]
    stopped = Life(spec, folder / "stopped", fit)
    for (name, whole_then), same_name in zip(expected, stopped.actions(), strict=True):
        assert name == same_name
        expect_equal(stopped.everything(), whole_then, name)
        stopped.checkpoint()
        stopped.start_again()
        expect_equal(stopped.everything(), whole_then, f"starting again after {name}")
    return stopped


def test_what_was_read_for_a_step_without_room_is_trained_after_a_stop(
    make_spec: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory ran out, the micro-batch was halved, and its owner paused after the first half: the other half is next."""
    lives = [Life(make_spec(), tmp_path / name) for name in ("whole", "stopped")]
    for life in lives:
        life.trainer.begin_round(("p0",))
        backward, tries = life.trainer._backend._whole._backward, iter(range(1))

        def backward_once(read_BT: Tensor, backward: Any = backward, tries: Iterator[int] = tries) -> Tensor:
            if next(tries, None) is not None:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return backward(read_BT)  # type: ignore[no-any-return]

        monkeypatch.setattr(life.trainer._backend._whole, "_backward", backward_once)
        assert step(life.trainer, lambda: True).tokens == 16
    whole, stopped = lives
    stopped.checkpoint()
    stopped.start_again()
    expect_equal(stopped.everything(), whole.everything(), "the stop")
    for life in lives:
        life.trainer._backend.micro.sequences = 1
        life.step()
    expect_equal(stopped.everything(), whole.everything(), "the next step")


def test_a_crash_in_a_round_begins_that_round_again(make_spec: Make, tmp_path: Path) -> None:
    """The checkpoint of the freeze and the update that was decided since give the state after the commit."""
    spec = make_spec("gpt2")
    whole, crashed = Life(spec, tmp_path / "whole"), Life(spec, tmp_path / "crashed")
    run(whole, STEPS)
    submit(whole.trainer, whole.anchor)
    whole.commit()
    after_commit = whole.everything()
    run(whole, 2)
    two_steps_later = whole.everything()
    torch.manual_seed(7)
    run(crashed, STEPS)
    submit(crashed.trainer, crashed.anchor)
    crashed.checkpoint()
    crashed.commit()
    run(crashed, 2)
    crashed.start_again()
    expect_equal(crashed.everything(), after_commit, "starting again")
    run(crashed, 2)
    expect_equal(crashed.everything(), two_steps_later, "two steps later")


def test_a_crash_with_steps_on_top_of_an_offer_makes_them_again(make_spec: Make, tmp_path: Path) -> None:
    """The checkpoint has one of them, the round is decided without this peer's process: then all are made as before."""
    spec = make_spec("gpt2", **STREAMING)
    whole, crashed = Life(spec, tmp_path / "whole"), Life(spec, tmp_path / "crashed")
    for life in (whole, crashed):
        torch.manual_seed(7)
        run(life, STEPS)
        submit(life.trainer, life.anchor)
        run(life, 1)
        if life is crashed:
            life.checkpoint()
        life.commit()
        if life is crashed:
            run(life, 1)
            life.start_again()
        run(life, 2)
        submit(life.trainer, life.anchor)
    assert whole.trainer.progress.step == 0
    expect_equal(crashed.everything(), whole.everything(), "the next freeze")


def test_an_offer_that_only_the_disk_remembers_is_where_the_next_round_begins(make_spec: Make, tmp_path: Path) -> None:
    """Killed between a contribution and the checkpoint behind it: steps that follow count from the first again."""
    life = Life(make_spec(**STREAMING), tmp_path)
    run(life, 2)
    life.checkpoint()
    submit(life.trainer, life.anchor)
    run(life, 1)
    life.start_again()
    assert life.trainer.status.offered
    assert (life.trainer.progress.in_training, life.trainer.progress.step) == (1, 0)


def test_a_contribution_after_the_checkpoint_is_the_balance(make_spec: Make, tmp_path: Path) -> None:
    """Its bytes may be counted already: the same are offered again, and what they lost in encoding is lost."""
    life = Life(make_spec(), tmp_path)
    run(life, 2)
    life.checkpoint()
    run(life, 1)
    submit(life.trainer, life.anchor)
    life.start_again()
    assert life.trainer.status.offered
    life.commit()
    assert not whole(life.trainer._backend.vectors.residual).any()
    again = Life(make_spec(), tmp_path / "replayed")
    shutil.copytree(tmp_path / "contributions", again.folder / "contributions", dirs_exist_ok=True)
    shutil.copytree(tmp_path / "checkpoints", again.folder / "checkpoints")
    again.chain, again.anchor = life.chain, life.anchor
    again.start_again()
    assert again.trainer.anchor.state_digest() == life.trainer.anchor.state_digest()
    assert not whole(again.trainer._backend.vectors.residual).any()


def test_steps_before_a_round_that_went_on_without_this_peer_are_kept(make_spec: Make, tmp_path: Path) -> None:
    """It had a checkpoint within the round and offered nothing: what it learned stands on the new anchor."""
    life, other = Life(make_spec(), tmp_path / "p0"), Life(make_spec(), tmp_path / "other")
    run(life, 2)
    learned = starts(life.trainer) - life.trainer._backend.vectors.flat.new()
    life.checkpoint()
    run(other, STEPS)
    submit(other.trainer, FIRST)
    other.commit()
    life.chain, life.anchor = other.chain, other.anchor
    life.start_again()
    assert not torch.equal(learned, torch.zeros_like(learned))
    assert torch.equal(whole(life.trainer._backend.vectors.residual), learned)
    assert torch.equal(life.trainer._backend.vectors.flat.new(), whole(life.trainer.anchor.theta) - learned)


def run(life: Life, steps: int) -> None:
    for _ in range(steps):
        life.step()
