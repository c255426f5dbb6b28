"""The quality benchmark: every variant gives a row, and what it trains is what the product trains."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from peer.consensus.codec.codec import Codec
from peer.consensus.protocol.block import Update
from peer.consensus.protocol.encoding import digest_of
from peer.consensus.protocol.head import genesis_anchor
from peer.consensus.protocol.messages import BallotId
from peer.consensus.protocol.norms import declared_of_part, row_for
from peer.consensus.rounds.interface import BufferPart, ReducePart
from peer.network.link.reduction import ReductionWorker
from peer.schema.spec import RunSpec
from peer.testing.child_process import HANG_S
from peer.training.data.open_source import open_source
from peer.training.data.sampler import ShardSampler
from peer.training.model.build import build
from peer.training.model.flat_parameters import FlatParameters
from peer.training.train.optimizers import learning_rate
from peer.training.train.trainer import LocalTrainer
from tests.benchmarks import quality, quality_report
from tests.benchmarks.__main__ import main
from tests.benchmarks.variants import VARIANTS, Point, Together, names_of, spec_of, train_diloco, train_synchronously
from tests.decided import DecidedRound, contribution
from tests.stepping import step, steps_in_round, submit


def silent(point: Point) -> None:
    """Progress that nobody reads."""


# ---- the whole command


@pytest.mark.nightly
@pytest.mark.outside
def test_every_variant_gives_a_row_once(
    spec_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows, table and JSON; a second call makes no row again and says the same."""
    monkeypatch.setattr(quality, "code_digest", lambda patterns: "cc")  # somebody may edit a file between the two calls
    words = ["quality", "--spec", str(spec_path), "--peers", "2", "--seeds", "5", "--out", str(tmp_path)]
    first = main(words)
    rows = json.loads((tmp_path / "quality.json").read_text())["rows"]
    assert {row["variant"] for row in rows} == set(VARIANTS)
    assert {row["seed"] for row in rows} == {5}
    assert [point["round"] for point in rows[0]["points"]] == [0, 1, 2]
    assert {row["tokens"] for row in rows if row["peers"] == 2} == {2 * 2 * 3 * 2 * 16}
    assert {row["tokens"] for row in rows if row["peers"] == 1} == {2 * 3 * 2 * 16}
    text = (tmp_path / "quality.md").read_text()
    assert text in capsys.readouterr().out
    assert main(words) == first
    assert "8 runs, 8 of them already there" in capsys.readouterr().out
    assert (tmp_path / "quality.md").read_text() == text


def test_what_the_bars_need_comes_first_seed_by_seed() -> None:
    order = list(quality.in_order(list(VARIANTS), [1, 2]))
    assert order[:4] == [("int4", 1), ("float32", 1), ("one-peer", 1), ("ddp", 1)]
    assert order[4:6] == [("int4", 2), ("float32", 2)]
    assert set(order[8:]) == {(name, seed) for name in ("float16", "int8", "sparse", "adamw") for seed in (1, 2)}


# ---- what is trained


def test_synchronous_training_of_one_peer_is_plain_adamw(base: RunSpec) -> None:
    """Bit for bit, against the loop written out."""
    spec = spec_of("adamw", base, 1, 4)
    outcome = train_synchronously(spec, silent)
    model, (name,) = build(spec), names_of(spec)
    batches = ShardSampler(open_source(spec, spec.data.path), spec, name, (name,), {})
    matrices = [value for value in model.parameters() if value.dim() >= 2]
    vectors = [value for value in model.parameters() if value.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), fused=True)
    for round, at in [(round, at) for round in range(2) for at in range(3)]:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(spec, round, at)
        tokens_BT = batches.next(2)
        logits_BTV = model(input_ids=tokens_BT[:, :-1], use_cache=False).logits
        torch.autograd.backward(F.cross_entropy(logits_BTV.flatten(0, 1), tokens_BT[:, 1:].flatten()))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    assert outcome.state == digest_of(FlatParameters(model).new().numpy().tobytes()).hex()
    assert outcome.points[-1].loss < outcome.points[0].loss


def test_synchronous_training_reads_what_the_peers_of_diloco_read(base: RunSpec) -> None:
    """A batch of each peer in turn, from the shards that it owns in the run."""
    spec = spec_of("ddp", base, 1, 2)
    names, source = names_of(spec), open_source(spec, spec.data.path)
    together = Together([ShardSampler(source, spec, name, names, {}) for name in names])
    alone = [ShardSampler(source, spec, name, (name,), {}) for name in names]
    for batches in alone:
        batches.reassign(names, {})
    for _ in range(3):
        for batches in alone:
            assert torch.equal(together.next(2), batches.next(2))


@pytest.mark.slow
@pytest.mark.parametrize("wire", ["float32", "int4"])
def test_diloco_of_the_benchmark_is_what_real_reducers_compute(wire: str, base: RunSpec, tmp_path: Path) -> None:
    """Trainers that apply the means of the link's own Reducer end with the same bits."""
    spec = spec_of(wire, base, 3, 3)
    names = names_of(spec)
    trainers = [
        LocalTrainer(spec, name, tmp_path / name, torch.device("cpu"), data_path=spec.data.path) for name in names
    ]
    anchor = genesis_anchor(spec.digest(), names, trainers[0].anchor.state_digest())
    decided = None
    for _ in range(spec.run.rounds):
        for trainer in trainers:
            trainer.begin_round(names)
            for _ in range(steps_in_round(trainer)):
                step(trainer)
            submit(trainer, anchor)
        decided = DecidedRound(trainers, anchor, before=decided)
        means = reduced(trainers, decided.update)
        assert set(means) == set(decided.update.parts)
        for trainer in trainers:
            trainer.apply(decided.update, means.__getitem__)
        anchor = decided.next_anchor
    states = {trainer.anchor.state_digest().hex() for trainer in trainers}
    assert states == {train_diloco(spec, silent).state}


def reduced(trainers: list[LocalTrainer], update: Update) -> dict[bytes, bytes]:
    """Means by digest, from a reducer that was given every trainer's parts as the link gives them."""
    objects, calls = Stored(), SimpleQueue[Callable[[], None]]()
    offers = [contribution(trainer, update.parent) for trainer in trainers]
    names, where = tuple(trainer.me for trainer in trainers), BallotId(update.parent, bytes(32), 0)
    with ThreadPoolExecutor(1) as executor:
        reducer = ReductionWorker(Codec(trainers[0].spec.codec.wire), objects, executor, calls.put)
        for part, piece in enumerate(trainers[0].parts):
            for name, offer in zip(names, offers, strict=True):
                reducer.keep(BufferPart(where, name, part, offer.payload(part)))
            weights = row_for(update.weights, piece.layer)
            declared = tuple(declared_of_part(header, part) for header in update.members)
            everybody = (1 << len(names)) - 1
            whole = ReducePart(where, part, everybody, names, weights, rows=names, declared=declared)
            reducer.reduce(whole, lambda digest: None)
            calls.get(timeout=HANG_S)()
    return objects.means


class Stored:
    """A disk that is never slow."""

    def __init__(self) -> None:
        self.means: dict[bytes, bytes] = {}

    def store(self, digest: bytes, payload: bytes, done: Callable[[], None]) -> None:
        self.means[digest] = payload
        done()

    def load(self, digest: bytes) -> bytes | None:
        return self.means.get(digest)


# ---- what is said about it


def row(variant: str, seed: int, loss: float, **values: Any) -> dict[str, Any]:
    plain = {"peers": 4, "tokens": 1000, "parameters": 100, "wire_bytes": 400, "exchanges": 3}
    return {"variant": variant, "seed": seed, "loss": loss, **plain, **values}


def rows_of(**losses: tuple[float, ...]) -> list[dict[str, Any]]:
    named = {name.replace("_", "-"): values for name, values in losses.items()}
    return [row(name, seed, loss) for name, values in named.items() for seed, loss in enumerate(values, 1)]


def met(rows: list[dict[str, Any]]) -> list[bool]:
    return [bar.met for bar in quality_report.judge(rows)]


def test_a_codec_is_lossless_only_with_every_seed() -> None:
    """Paired by seed: one seed beyond 1 % fails, however good the mean is."""
    assert met(rows_of(float32=(2.0, 2.1, 2.2), int4=(2.01, 2.09, 2.2))) == [True]
    assert met(rows_of(float32=(2.0, 2.1, 2.2), int4=(2.03, 2.09, 2.18))) == [False]


def test_all_peers_must_beat_one_by_more_than_the_spread() -> None:
    assert met(rows_of(float32=(2.0, 2.1), one_peer=(2.5, 2.55))) == [True]
    assert met(rows_of(float32=(2.0, 2.1), one_peer=(2.1, 2.15))) == [False]
    assert met(rows_of(float32=(2.0, 2.1), one_peer=(1.5, 1.55))) == [False]


def test_the_table_pairs_by_seed_and_counts_what_is_sent() -> None:
    """100 parameters in 55 bytes, 4 peers: 2 · 3/4 · 0.55 bytes per parameter and exchange."""
    rows = [row("float32", 1, 2.0), row("float32", 2, 4.0), row("int4", 1, 2.2, wire_bytes=55), row("int4", 2, 4.0)]
    text = quality_report.table(rows)
    line = next(line for line in text.splitlines() if line.startswith("| int4"))
    assert line.split(" | ")[1:6] == ["3.1000 ± 1.2728", "2.2000", "4.0000", "+5.00 %", "4"]
    assert "| 0.825 | 3 |" in line
