"""The books of a real trainer balance, whatever becomes of its work; and books that miss something do not."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from peer.consensus.protocol.encoding import digest
from peer.schema.spec import load
from peer.testing.ledger_check import FILE, BookedKernels, keep_books
from peer.training.train.trainer import LocalTrainer
from tests.decided import DecidedRound, contribution
from tests.peer.tools.export.run_on_disk import CPU
from tests.stepping import step, submit

NAMES = ("p0", "p1")


def missing(folder: Path) -> float:
    """Largest element of what is neither counted, nor owed, nor discounted, after six rounds of all kinds."""
    spec = load("micro")
    spec = dataclasses.replace(
        spec, round=dataclasses.replace(spec.round, overlap="none", gamma=0.5, max_staleness=1),
        codec=dataclasses.replace(spec.codec, wire="int8"), inner=dataclasses.replace(spec.inner, sequences=1),
    )  # fmt: skip
    steady, booked = (LocalTrainer(spec, name, folder / name, CPU, data_path=spec.data.path) for name in NAMES)
    keep_books(booked, folder)
    anchor, counted = digest("anchor", 0), torch.zeros(booked.parameters)
    for missed, void in ((False, set()), (True, set()), (True, set()), (False, {0}), (False, set()), (True, set())):
        for trainer in (steady, booked):
            trainer.begin_round(NAMES)
            step(trainer)
            submit(trainer, anchor)
        decided = DecidedRound([steady, booked], anchor, left_out={"p1"} if missed else (), void=void)
        mine = contribution(booked, anchor)
        for number, part in enumerate(booked.parts):
            if decided.update.contributed("p1", number):
                decoded = booked._codec.decode(mine.payload(number))[: part.size]
                counted[part.start : part.start + part.size] += torch.from_numpy(decoded)
        decided.apply_to(steady, booked)
        anchor = decided.next_anchor
    booked.checkpoint(anchor)
    books = load_file(folder / FILE)
    assert books["discounted"].any()
    assert books["residual"].any()
    return float((books["produced"] - counted - books["discounted"] - books["residual"]).abs().max())


def test_nothing_is_missing_but_what_rounding_leaves(tmp_path: Path) -> None:
    assert missing(tmp_path) < 1e-6


def test_what_is_not_noted_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the test above can fail."""
    monkeypatch.setattr(BookedKernels, "_produce", lambda *about: None)
    assert missing(tmp_path) > 1e-4
