"""How an anchor continues the prompts of its run: from the anchor, as it would alone, and without a trace."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from dht.errors import MemoryFull
from peer.node.lifecycle.inputs_effects import Continuations
from peer.schema.spec import RunSpec
from peer.schema.spec_fields import EvaluateTable
from peer.training.data.tokenizer import ByteTokenizer
from peer.training.model.build import build
from peer.training.model.flat_parameters import FlatParameters
from peer.training.train import backend
from peer.training.train.trainer import LocalTrainer
from tests.decided import DecidedRound
from tests.stepping import step, submit
from tests.vectors import whole

ANCHOR = b"a" * 32


@pytest.fixture
def prompted(spec: RunSpec, tmp_path: Path) -> LocalTrainer:
    """At anchor 1, and two steps further."""
    table = EvaluateTable(prompts=("abc", "\n", "x" * 40), tokens=6)
    spec = dataclasses.replace(spec, evaluate=table)
    trainer = LocalTrainer(spec, "p0", tmp_path / "p0", torch.device("cpu"), data_path=spec.data.path)
    for number in range(3):
        step(trainer)
        if number == 0:
            submit(trainer, ANCHOR)
            DecidedRound([trainer], ANCHOR).apply_to(trainer)
    return trainer


def likeliest(trainer: LocalTrainer, prompt: str) -> str:
    """By the anchor in a model of its own, read anew for each token."""
    model: Any = build(trainer.spec)
    FlatParameters(model).copy_layers(trainer.anchor.theta)
    tokenizer = ByteTokenizer()
    ids, new = tokenizer.encode(prompt).tolist()[-10:], list[int]()
    while len(new) < 6:
        with torch.no_grad():
            token = int(model.eval()(input_ids=torch.tensor([ids + new])).logits[0, -1].argmax())
        if token == tokenizer.end_of_text:
            break
        new.append(token)
    return tokenizer.decode(new)


def test_prompts_are_continued_by_the_anchor_and_nothing_changes(prompted: LocalTrainer) -> None:
    """Neither what is trained nor what chance draws next; a prompt that is too long is read from its end."""
    before = FlatParameters(prompted._backend._model).new()
    chance = torch.get_rng_state()
    found = prompted.continue_prompts()
    assert isinstance(found, Continuations)
    assert list(found.texts) == [likeliest(prompted, prompt) for prompt in ("abc", "\n", "x" * 40)]
    assert torch.equal(FlatParameters(prompted._backend._model).new(), before)
    assert not torch.equal(before, whole(prompted.anchor.theta))
    assert torch.equal(torch.get_rng_state(), chance)
    assert prompted._backend._model.training
    assert prompted.continue_prompts() == found


def test_it_stops_within_a_text(prompted: LocalTrainer) -> None:
    """And leaves the parameters as they were."""
    before, asked = FlatParameters(prompted._backend._model).new(), list[int]()

    def stop() -> bool:
        asked.append(1)
        return len(asked) >= 3

    assert prompted.continue_prompts(stop) is None
    assert len(asked) == 4, "after three tokens, and once more by whoever had begun"
    assert torch.equal(FlatParameters(prompted._backend._model).new(), before)


def test_a_device_without_room_is_told(prompted: LocalTrainer, monkeypatch: pytest.MonkeyPatch) -> None:
    before = FlatParameters(prompted._backend._model).new()

    def full(*args: Any, **kwargs: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(backend, "continued", full)
    with pytest.raises(MemoryFull, match="the memory of cpu has no room to continue a text"):
        prompted.continue_prompts()
    assert torch.equal(FlatParameters(prompted._backend._model).new(), before)
