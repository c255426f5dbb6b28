"""A round on several ranks is a round on one device, to the bit; and checkpoints go from any number of them to any."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from peer.consensus.protocol.encoding import digest
from peer.schema.spec import RunSpec
from peer.training.model.build import build_meta
from peer.training.model.flat_parameters import FlatParameters
from peer.training.train.trainer import LocalTrainer
from tests.decided import DecidedRound, contribution
from tests.peer.parallel.ranks.conftest import MakeOn
from tests.saved import everything, same, saved
from tests.stepping import step, submit

pytestmark = pytest.mark.outside

ANCHORS = [digest("anchor", number) for number in range(4)]
WAYS_AND_WIRES = [
    ("offload", "int8"), ("full 2", "int8"), ("replicated 2", "sparse"), ("hierarchical 4", "int8"),
    pytest.param("hybrid 4", "sparse", marks=pytest.mark.nightly),
]  # fmt: skip


def train(trainer: LocalTrainer, steps: int = 2) -> None:
    trainer.begin_round(("p0", "p1"))
    for _ in range(steps):
        step(trainer)


def offered(trainer: LocalTrainer, anchor: bytes) -> list[bytes]:
    mine = contribution(trainer, anchor)
    return [mine.payload(part) for part in range(len(trainer.progress.turns.parts(trainer.anchor.round)))]


@pytest.mark.parametrize(("way", "wire"), WAYS_AND_WIRES)
def test_a_round_has_the_bits_of_one_device(
    way: str, wire: str, make_on: MakeOn, spec: RunSpec, tmp_path: Path
) -> None:
    """From one state on: what is offered, what is owed, θ, momentum, parameters, after a round that counts, one that is
    missed, one whose first part is void."""
    changed = dataclasses.replace(spec, codec=dataclasses.replace(spec.codec, wire=wire))
    one, several = make_on("one device", changed), make_on(way, changed)
    train(one)
    several.restore(saved(one, b"", tmp_path / "saved"))
    assert same(everything(one, b""), everything(several, b"")) == []
    for anchor, left_out, void in zip(ANCHORS, ((), ("p0",), ()), ((), (), {0}), strict=False):
        for trainer in (one, several):
            submit(trainer, anchor)
        assert offered(several, anchor) == offered(one, anchor)
        update = DecidedRound([one], anchor, left_out=left_out, void=void)
        update.apply_to(one, several)
        assert several.anchor.state_digest() == one.anchor.state_digest()
        assert same(everything(one, b""), everything(several, b"")) == []


def test_from_a_snapshot_ranks_go_on_as_one_device(make_on: MakeOn, tmp_path: Path) -> None:
    """An anchor to which no way is known, with what was offered and is not decided: the bits of one device."""
    one, several = make_on("one device"), make_on("replicated 2")
    train(one)
    several.restore(saved(one, b"", tmp_path / "saved"))
    before = one.anchor.__class__(
        [each.clone() for each in one.anchor.theta], [each.clone() for each in one.anchor.momentum], 0, {}
    )
    for trainer in (one, several):
        submit(trainer, ANCHORS[0])
    for trainer in (one, several):
        trainer.resume(ANCHORS[0])
        trainer.adopt(ANCHORS[0], before)
    assert same(everything(one, b""), everything(several, b"")) == []


@pytest.mark.parametrize("way", ["full 2", "offload"])
def test_a_peer_whose_ranks_have_left_their_devices_keeps_up(way: str, make_on: MakeOn, tmp_path: Path) -> None:
    """As while its owner plays: updates are applied to the copies, and the ranks take them up when they are back."""
    one, several = make_on("one device"), make_on(way)
    train(one)
    several.restore(saved(one, b"", tmp_path / "saved"))
    for trainer in (one, several):
        submit(trainer, ANCHORS[0])
    before = everything(several, b"")
    several._backend._leave()  # type: ignore[attr-defined]
    assert several._backend.is_offloaded
    assert same(before, everything(several, b"")) == []
    DecidedRound([one], ANCHORS[0]).apply_to(one, several)
    assert several.take_device()
    assert same(everything(one, b""), everything(several, b"")) == []
    train(several)


def test_a_checkpoint_goes_from_any_number_of_ranks_to_any(make_on: MakeOn, tmp_path: Path) -> None:
    """Parameters, optimizer, what is owed, and which sequences are read next."""
    source = make_on("one device")
    train(source)
    taken, expected = saved(source, b"", tmp_path / "first"), everything(source, b"")
    following = source._batches.next(2).tolist()
    trainers = {way: make_on(way) for way in ("one device", "full 2", "full 4")}
    for first, holder in trainers.items():
        holder.restore(taken)
        again = saved(holder, b"", tmp_path / f"{first}")
        for second, other in trainers.items():
            train(other, steps=1)  # to be another one than it is to become
            assert same(expected, everything(other, b"")) != []
            other.restore(again)
            assert same(expected, everything(other, b"")) == [], f"{first} to {second}"
            assert other._batches.next(2).tolist() == following


@pytest.mark.parametrize("way", ["full 2", "replicated 2"])
def test_each_rank_touches_its_share_of_the_bytes(way: str, make_on: MakeOn) -> None:
    """What is offered is read and written once by all ranks together, but for the blocks that two of them share."""
    several = make_on(way)
    train(several)
    submit(several, ANCHORS[0])
    kernels = several._kernels_now()
    whole = sum(map(len, offered(several, ANCHORS[0])))
    octets = dict(kernels.octets)  # type: ignore[attr-defined]
    assert sum(octets.values()) == whole
    assert max(octets.values()) <= 0.55 * whole
    DecidedRound([several], ANCHORS[0]).apply_to(several)
    read = [kernels.octets[rank] - octets[rank] for rank in octets]  # type: ignore[attr-defined]
    # Of a mean and a contribution, two ranks read the block in which a run of one ends and one of the other begins.
    ends = 2 * sum(len(members) for members in FlatParameters(build_meta(several.spec)).members)
    assert sum(read) <= 2 * (whole + ends * sum(several._codec.sections))
    assert max(read) <= 0.6 * 2 * whole
