"""Rounds of a cluster beside whole-model peers: one member, the bits of all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from peer.consensus.codec.codec import Codec
from peer.consensus.protocol import merkle
from peer.consensus.protocol.encoding import digest
from peer.training.checkpoint.replay import become_checkpoint
from peer.training.train.trainer import LocalTrainer
from tests.decided import DecidedRound
from tests.peer.parallel.pipeline.cluster_trainers import ClusterTrainers
from tests.peer.parallel.pipeline.stages import small_spec
from tests.saved import everything, same, saved
from tests.stepping import step, submit

CPU = torch.device("cpu")
FIRST = digest("anchor", 0)


@pytest.mark.parametrize(("homes", "tied"), [pytest.param(2, False, marks=pytest.mark.nightly), (3, False), (2, True)])
def test_rounds_beside_a_whole_model_peer(homes: int, tied: bool, tmp_path: Path) -> None:
    """Equal bits after every round; each home writes its layers alone, and the leaves are those of all: of a matrix
    that two homes hold once."""
    spec = small_spec(accumulation=1, config={"tie_word_embeddings": tied})
    with ClusterTrainers(spec, homes, tmp_path) as cluster:
        whole = LocalTrainer(spec, "whole", tmp_path / "whole", CPU)
        anchor, before = FIRST, None
        assert cluster.lead.start == whole.start
        assert cluster.stand_at(anchor) == whole.state_digest(anchor) == whole.start.state
        for _ in range(3):
            cluster.begin_round(("lead", "whole"))
            whole.begin_round(("lead", "whole"))
            for position in range(2):
                cluster.step(position)
                step(whole)
            cluster.submit(anchor)
            submit(whole, anchor)
            mine = cluster.contribution(anchor)
            assert mine.header("lead").root == merkle.root(mine.leaves)
            for piece, trainer in zip(mine._pieces, cluster.trainers, strict=True):
                assert {cluster.parts[part].layer for part in piece.here} == set(trainer.held)
                written = sum(Codec(spec.codec.wire).part_bytes(cluster.parts[part].size) for part in piece.here)
                assert (trainer._folder / f"{anchor.hex()}.parts").stat().st_size == written
            before = DecidedRound([cluster, whole], anchor, before=before)  # type: ignore[list-item]
            before.apply_to(cluster, whole)  # type: ignore[arg-type]
            anchor = before.next_anchor
            assert cluster.state == whole.state_digest(anchor)
            assert torch.equal(cluster.theta(), torch.cat(whole.anchor.theta))


@pytest.mark.parametrize("tied", [False, True])
def test_a_cluster_learns_what_one_device_does(tied: bool, tmp_path: Path) -> None:
    """Three rounds alone, on the same data, with a codec that rounds nothing: the loss is the same to 1e-5."""
    spec = small_spec(accumulation=1, config={"tie_word_embeddings": tied})
    spec = replace(spec, codec=replace(spec.codec, wire="float32"))
    with ClusterTrainers(spec, 2, tmp_path, me="peer") as cluster:
        whole = LocalTrainer(spec, "peer", tmp_path / "whole", CPU)
        here = there = FIRST
        cluster.stand_at(here)
        for _ in range(3):
            for position in range(3):
                assert cluster.step(position).loss == pytest.approx(step(whole).loss, rel=1e-5)
            cluster.submit(here)
            submit(whole, there)
            ours, its = DecidedRound([cluster], here), DecidedRound([whole], there)  # type: ignore[list-item]
            ours.apply_to(cluster)  # type: ignore[arg-type]
            its.apply_to(whole)
            here, there = ours.next_anchor, its.next_anchor
        torch.testing.assert_close(cluster.theta(), torch.cat(whole.anchor.theta), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("tied", [False, True])
def test_homes_go_on_from_their_checkpoints_to_the_bit(tied: bool, tmp_path: Path) -> None:
    """Each has its own layers in it, with θ and m: neither a chain from the beginning nor a snapshot is needed."""
    spec = small_spec(accumulation=1, config={"tie_word_embeddings": tied})
    with ClusterTrainers(spec, 2, tmp_path / "first") as cluster:
        cluster.stand_at(FIRST)
        cluster.begin_round(("lead",))
        cluster.step(0)
        cluster.submit(FIRST)
        decided = DecidedRound([cluster], FIRST)  # type: ignore[list-item]
        decided.apply_to(cluster)  # type: ignore[arg-type]
        anchor = decided.next_anchor
        cluster.begin_round(("lead",))
        cluster.step(0)
        taken = [saved(trainer, anchor, tmp_path / trainer.me) for trainer in cluster.trainers]
        before = [everything(trainer, anchor) for trainer in cluster.trainers]
        loss = cluster.step(1).loss
    with ClusterTrainers(spec, 2, tmp_path / "second") as cluster:
        for trainer, checkpoint in zip(cluster.trainers, taken, strict=True):
            become_checkpoint(trainer.anchor, checkpoint)
            trainer.restore(checkpoint)
        for trainer, there in zip(cluster.trainers, before, strict=True):
            assert same(everything(trainer, anchor), there) == []
        assert cluster.stand_at(anchor) != cluster.lead.start.state
        assert cluster.step(1).loss == loss
