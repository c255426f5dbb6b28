"""Clusters hold the model and are alike in speed."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dht.errors import BadInput
from peer.placement.clusters import cluster

FIXED = settings(derandomize=True, deadline=None, max_examples=40)


@FIXED
@given(peers=st.integers(1, 20), share=st.floats(0.05, 1.0), seed=st.integers(0, 99))
def test_every_peer_is_in_one_cluster_and_every_cluster_holds_the_model(peers: int, share: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    memory, speeds = rng.uniform(1, 24, peers), rng.uniform(0.1, 2, peers)
    found = cluster(memory, speeds, memory.sum() * share)
    assert sorted(peer for members in found.members for peer in members) == list(range(peers))
    assert min(found.memory_bytes) >= memory.sum() * share * (1 - 1e-9)
    assert found.spread >= 0


@FIXED
@given(peers=st.integers(2, 7), count=st.integers(1, 3), seed=st.integers(0, 99))
def test_as_even_as_the_best_of_all(peers: int, count: int, seed: int) -> None:
    """All ways to give each peer a cluster, for a few peers."""
    rng = np.random.default_rng(seed)
    memory, speeds = rng.integers(1, 25, peers).astype(float), rng.uniform(0.1, 2, peers)
    model = memory.sum() / count / 2
    spreads = []
    for labels in product(range(count), repeat=peers):
        held, fast = np.bincount(labels, memory, count), np.bincount(labels, speeds, count)
        if held.min() >= model:
            spreads.append(float(fast.max() - fast.min()))
    if not spreads:
        with pytest.raises(BadInput):
            cluster(memory, speeds, model, count=count)
        return
    assert cluster(memory, speeds, model, count=count).spread == pytest.approx(min(spreads))


def test_as_many_clusters_as_memory_allows() -> None:
    assert len(cluster([8, 8, 8, 8, 4, 4], [1] * 6, model_bytes=12).members) == 3
    assert len(cluster([8, 8, 8, 8], [1] * 4, model_bytes=12).members) == 2
    assert len(cluster([8, 8], [1, 1], model_bytes=0).members) == 2


@pytest.mark.parametrize(
    ("memory", "speeds", "model", "count", "said"),
    [
        ([1.0, 2.0], [1.0], 1, None, "memory of 2 peers and speeds of 1"),
        ([], [], 1, None, "memory of 0 peers"),
        ([1.0, 2.0], [1.0, 1.0], 9, None, "do not let any cluster hold a model of 9 bytes"),
        ([4.0, 4.0], [1.0, 1.0], 5, 2, "do not let 2 clusters hold"),
        ([4.0, 4.0], [1.0, 1.0], 1, 3, "3 clusters of 2 peers"),
    ],
)
def test_what_cannot_be(memory: list[float], speeds: list[float], model: float, count: int | None, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        cluster(memory, speeds, model, count=count)
