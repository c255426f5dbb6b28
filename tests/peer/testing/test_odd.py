"""An odd contribution is what the fault says, in that round and layer only, and nothing else differs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from dht.errors import BadInput
from peer.consensus.codec.codec import Codec
from peer.node.store.contributions import Contribution
from peer.schema.spec import load
from peer.testing.faults import Odd
from peer.testing.faulty_peer import UNTRAINED, let_be_odd, let_give_noise
from peer.testing.memory_peer import PARTS, decoded
from peer.testing.memory_swarm import LogicalSwarm
from peer.training.train.trainer import LocalTrainer
from tests.stepping import step, submit

ANCHOR = b"a" * 32
LAYER = "model.layers.1"


def frozen(trainer: LocalTrainer) -> dict[str, np.ndarray]:
    """What it offers after one inner step, by layer: float32, decoded."""
    trainer.begin_round(())
    step(trainer)
    submit(trainer, ANCHOR)
    codec = Codec(trainer.spec.codec.wire)
    mine = Contribution.find(trainer._folder, ANCHOR, trainer.parts, codec)
    assert mine is not None
    pieces = [codec.decode(mine.payload(index))[: part.size] for index, part in enumerate(trainer.parts)]
    bounds = np.cumsum(trainer.layer_sizes)[:-1]
    return dict(zip(trainer.layer_names, np.split(np.concatenate(pieces), bounds), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("layer", [LAYER, ""])
def test_a_real_peer_offers_a_multiple_of_one_layer_or_of_all(tmp_path: Path, layer: str) -> None:
    plain, odd = (LocalTrainer(load("micro"), "p", tmp_path / name, torch.device("cpu")) for name in ("plain", "odd"))
    faults = iter([[Odd(peer=0, round=0, factor=8.0, layer=layer)]])
    let_be_odd(odd, lambda: next(faults))
    given, expected = frozen(odd), frozen(plain)
    for name, values in expected.items():
        factor = 8.0 if layer in ("", name) else 1.0
        np.testing.assert_array_equal(given[name], factor * values, err_msg=name)


@pytest.mark.slow
def test_a_real_peer_gives_noise_as_large_as_what_it_learned(tmp_path: Path) -> None:
    """While there is the file, and with nothing of that in it."""
    plain, idle = (LocalTrainer(load("micro"), "p", tmp_path / name, torch.device("cpu")) for name in ("plain", "idle"))
    (tmp_path / UNTRAINED).touch()
    let_give_noise(idle, tmp_path)
    torch.manual_seed(1)
    learned, given = frozen(plain), frozen(idle)
    whole, noise = (np.concatenate([*layers.values()]) for layers in (learned, given))
    # Of 100,000 numbers: a standard deviation of 0.003.
    assert abs(whole @ noise) < 0.05 * np.linalg.norm(whole) * np.linalg.norm(noise)
    for name, values in learned.items():
        assert np.linalg.norm(given[name]) == pytest.approx(np.linalg.norm(values), rel=0.2), name


def test_a_real_peer_refuses_a_layer_that_it_does_not_have(tmp_path: Path) -> None:
    trainer = LocalTrainer(load("micro"), "p", tmp_path / "x", torch.device("cpu"))
    let_be_odd(trainer, lambda: [Odd(peer=0, round=0, factor=8.0, layer="head")])
    with pytest.raises(BadInput, match=r"no such layer; it has model\.embed_tokens, model\.layers\.0"):
        frozen(trainer)


def test_a_logical_peer_gives_it_and_the_books_balance() -> None:
    """In one part or in all; no integer is lost."""
    run = LogicalSwarm(peers=3, seed=4)
    run.inject(Odd(peer=1, round=2, factor=50.0), Odd(peer=2, round=3, factor=50.0, layer="0"))
    run.until_round(6, within_s=120)
    run.assert_agreement()
    largest = [max(given(run, peer, part) for part in parts) for peer, parts in ((1, range(PARTS)), (2, (0,)))]
    others = [given(run, 0, part) for part in range(PARTS)] + [given(run, 2, part) for part in range(1, PARTS)]
    assert min(largest) > 3 * max(others)


def given(run: LogicalSwarm, peer: int, part: int) -> int:
    """The largest that a peer has given of a part, whichever way it went."""
    mine = [payloads for (name, _), payloads in run.world.contributions.items() if name == f"p{peer}"]
    return max(abs(decoded(payloads[part])) for payloads in mine)
