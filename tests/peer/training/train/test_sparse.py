"""Rounds with the sparse codec: peers begin again at the anchor, and what was not sent stays owed."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from peer.consensus.codec.codec import Codec
from peer.consensus.codec.rows import ROW_BYTES
from peer.consensus.protocol.block import VOID
from peer.node.store.objects import load_object
from peer.schema.spec import RunSpec
from peer.training.train.trainer import LocalTrainer
from tests.decided import DecidedRound, contribution
from tests.peer.training.train.conftest import Make
from tests.stepping import step, submit
from tests.training_swarm import TrainingSwarm
from tests.vectors import starts, whole

ANCHORS = (b"a" * 32, b"b" * 32)


@pytest.fixture
def make_sparse(make: Make) -> Make:
    def make_one(me: str, **round: Any) -> LocalTrainer:
        first = make(me, **round)
        codec = dataclasses.replace(first.spec.codec, wire="sparse", part_elements=8192)
        return LocalTrainer(
            dataclasses.replace(first.spec, codec=codec),
            me,
            first._folder,
            torch.device("cpu"),
            data_path=first.spec.data.path,
        )

    return make_one


def train(trainer: LocalTrainer) -> None:
    trainer.begin_round(("p0", "p1"))
    for _ in range(3):
        step(trainer)


def local(trainer: LocalTrainer) -> torch.Tensor:
    return trainer._backend.vectors.flat.new()


def test_what_is_not_sent_is_owed_and_not_trained_on(make_sparse: Make) -> None:
    """Produced is what was counted and what is owed, over two rounds; the parameters are the anchor's, to the bit."""
    peers = [make_sparse("p0"), make_sparse("p1")]
    produced, counted, last = torch.zeros(peers[0].parameters), torch.zeros(peers[0].parameters), None
    anchor = ANCHORS[0]
    for _ in range(2):
        for peer in peers:
            train(peer)
        produced += starts(peers[0]) - local(peers[0])
        for peer in peers:
            submit(peer, anchor)
        sent = contribution(peers[0], anchor)
        decoded = [peers[0]._codec.decode(sent.payload(number)) for number in range(len(peers[0].parts))]
        counted += torch.from_numpy(
            np.concatenate([part[: piece.size] for part, piece in zip(decoded, peers[0].parts, strict=True)])
        )
        last = DecidedRound(peers, anchor, before=last)
        last.apply_to(*peers)
        anchor = last.next_anchor
    assert peers[0].anchor.state_digest() == peers[1].anchor.state_digest()
    for peer in peers:
        assert torch.equal(local(peer), whole(peer.anchor.theta))
        assert torch.equal(starts(peer), whole(peer.anchor.theta))
    owed = whole(peers[0]._backend.vectors.residual)
    assert float((produced - counted - owed).abs().max()) < 1e-5 * float(produced.abs().max())
    assert 0 < int(counted.count_nonzero()) < 0.2 * counted.numel()
    assert float(owed.norm()) > 0.5 * float(produced.norm()), "most waits"


def test_whoever_streams_owes_all_that_was_not_sent(make_sparse: Make) -> None:
    """Interpolation would drop a part of it in every round."""
    peer = make_sparse("p0", overlap="streaming", merge="interpolate")
    train(peer)
    produced = starts(peer) - local(peer)
    submit(peer, ANCHORS[0])
    sent = whole(peer._backend.vectors.residual)
    train(peer)
    produced += starts(peer) - local(peer)
    decided = DecidedRound([peer], ANCHORS[0])
    decided.apply_to(peer)
    decoded = [peer._codec.decode(contribution(peer, ANCHORS[0]).payload(at)) for at in range(len(peer.parts))]
    counted = torch.from_numpy(
        np.concatenate([part[: piece.size] for part, piece in zip(decoded, peer.parts, strict=True)])
    )
    assert counted.any()
    assert not torch.equal(sent, counted)
    assert float((produced - counted - whole(peer._backend.vectors.residual)).abs().max()) < 1e-5 * float(
        produced.abs().max()
    )


def test_a_mean_of_two_has_what_either_sent(make_sparse: Make) -> None:
    """Where neither sent anything the anchor does not move."""
    peers = [make_sparse("p0"), make_sparse("p1")]
    before = whole(peers[0].anchor.theta)
    sent = torch.zeros(peers[0].parameters, dtype=torch.bool)
    for peer in peers:
        train(peer)
        submit(peer, ANCHORS[0])
        mine = contribution(peer, ANCHORS[0])
        for number, piece in enumerate(peer.parts):
            decoded = torch.from_numpy(peer._codec.decode(mine.payload(number))[: piece.size])
            sent[piece.start : piece.start + piece.size] |= decoded != 0
    DecidedRound(peers, ANCHORS[0]).apply_to(*peers)
    moved = whole(peers[0].anchor.theta) != before
    assert not bool((moved & ~sent).any())
    assert int(moved.sum()) > 0.9 * int(sent.sum())


@pytest.mark.slow
@pytest.mark.parametrize("reducer", ["edit", "centered-clip"])
def test_rounds_of_real_machines_commit(spec: RunSpec, tmp_path: Path, reducer: str) -> None:
    """Parts of one size, means of another, through frames, disks and votes; every mean is checked, none is void."""
    swarm = TrainingSwarm(
        dataclasses.replace(
            spec,
            run=dataclasses.replace(spec.run, founders=3, rounds=3),
            round=dataclasses.replace(spec.round, steps=2),
            codec=dataclasses.replace(spec.codec, wire="sparse", part_elements=8192),
            aggregation=dataclasses.replace(spec.aggregation, rule=reducer),  # type: ignore[arg-type]
        ),
        tmp_path,
    )
    swarm.until_round(3)
    assert swarm.differing() == []
    codec = Codec("sparse").of_means
    for update in swarm.peers[0].updates:
        assert VOID not in update.parts
        assert len(update.members) == 3
        for name, piece in zip(update.parts, swarm.peers[0].trainer.parts, strict=True):
            whole = load_object(tmp_path / swarm.peers[0].name, name)
            assert len(whole) == codec.part_bytes(piece.size) + 3 * ROW_BYTES
    assert all(peer.alerts == [] and peer.penalties == [] for peer in swarm.peers)
