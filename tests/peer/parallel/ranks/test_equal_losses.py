"""The same tokens give the same losses in every way that devices share a model, and the same bits where the order of
additions is the same."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from dht.errors import Unreachable
from peer.schema.spec import RunSpec
from peer.training.train.trainer import LocalTrainer
from tests.night import at_night
from tests.peer.parallel.ranks.conftest import WAYS, MakeOn
from tests.saved import everything, same
from tests.stepping import step
from tests.talks import on_talks

pytestmark = pytest.mark.outside

STEPS = 10
UNBALANCED = {"router_aux_loss_coef": 0.0}


def losses(trainer: LocalTrainer, steps: int = STEPS) -> list[float]:
    trainer.begin_round(("p0", "p1"))
    return [step(trainer).loss for _ in range(steps)]


@pytest.fixture(scope="module")
def expected() -> list[float]:
    """Of one device, made once."""
    return []


@pytest.mark.parametrize("way", [way for way in WAYS if way not in ("one device", "one rank", "offload", "full 4")])
def test_every_way_learns_as_one_device_does(way: str, make_on: MakeOn, expected: list[float]) -> None:
    """Each step, in float32, from the same sequences: however many ranks read them."""
    if not expected:
        expected += losses(make_on("one device"))
    assert losses(make_on(way)) == pytest.approx(expected, rel=1e-6)
    assert expected[-1] < 0.97 * expected[0], "it learns"


@pytest.mark.parametrize("way", ["one rank", "hybrid 4"])
def test_conversations_are_learned_alike(way: str, make_on: MakeOn, spec: RunSpec, tmp_path: Path) -> None:
    """Whichever rank has the answers: some of them read rows in which nothing is predicted."""
    talks = on_talks(spec, tmp_path / "talks")
    one, ranks = make_on("one device", talks), make_on(way, talks)
    assert losses(ranks, 5) == pytest.approx(losses(one, 5), rel=1e-5)
    measured, expected = ranks.evaluate(), one.evaluate()
    assert measured is not None
    assert expected is not None
    assert measured.loss == pytest.approx(expected.loss, rel=1e-5)
    assert (measured.tokens, measured.precision) == (expected.tokens, "float32")
    assert ranks._backend.continued([[1]], 4, 0, lambda: False) == (), "no rank has all of the model"


def test_experts_are_balanced_alike(make_on: MakeOn, spec: RunSpec) -> None:
    """With a balance that counts: the losses of ranks that left it out would part from those of one device."""
    shape = {
        "intermediate_size": 36,
        "num_local_experts": 3,
        "num_experts_per_tok": 1,
        "initializer_range": 0.2,
        "router_aux_loss_coef": 1.0,
    }
    config = {**spec.model.config, **shape}
    experts = dataclasses.replace(spec, model=dataclasses.replace(spec.model, architecture="mixtral", config=config))
    alone = dataclasses.replace(spec, model=dataclasses.replace(experts.model, config=config | UNBALANCED))
    balanced = losses(make_on("one device", experts), 5)
    assert losses(make_on("full 2", experts), 5) == pytest.approx(balanced, rel=1e-5)
    assert losses(make_on("one device", alone), 5) != pytest.approx(balanced, rel=1e-5)


@pytest.mark.parametrize("way", [*at_night("replicated 2", "full 2"), "hybrid 4"])
def test_a_step_of_several_micro_batches_is_that_of_one_device(way: str, make_on: MakeOn, spec: RunSpec) -> None:
    """Also one that was asked to stop after the first, and one that is made again since its data had not come."""
    several = dataclasses.replace(spec, inner=dataclasses.replace(spec.inner, accumulation=3))
    found = []
    for trainer in (make_on("one device", several), make_on(way, several)):
        trainer.begin_round(("p0", "p1"))
        made = [step(trainer), step(trainer, lambda: True)]
        fail_once(trainer, after=1)
        with pytest.raises(Unreachable):
            step(trainer)
        found.append([each.loss for each in (*made, step(trainer), step(trainer))])
    assert found[1] == pytest.approx(found[0], rel=1e-6)


def fail_once(trainer: LocalTrainer, after: int) -> None:
    """The data of a step's second micro-batch does not come."""
    reader: Any = trainer._backend._reader
    read, left = reader.next, iter(range(after))

    def next_or_none(sequences: int) -> Tensor:
        if next(left, None) is not None:
            return read(sequences)  # type: ignore[no-any-return]
        reader.next = read
        raise Unreachable("no data")

    reader.next = next_or_none


@pytest.mark.parametrize("way", ["one rank", "offload"])
def test_one_rank_has_the_bits_of_one_device(way: str, make_on: MakeOn, expected: list[float]) -> None:
    """Wherever its shares lie."""
    one, rank = make_on("one device"), make_on(way)
    assert losses(rank) == losses(one)
    assert differing(one, rank) == []


def differing(one: LocalTrainer, other: LocalTrainer) -> list[str]:
    """But for the generator, which has given ranks their seeds."""
    return [name for name in same(everything(one, b""), everything(other, b"")) if not name.startswith("rest.")]
