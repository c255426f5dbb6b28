"""What a peer looks at between knowing its run and building its model."""

from __future__ import annotations

import os
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch

from dht.errors import HomefiresError, MemoryFull
from peer.autotune import cache, trial
from peer.autotune.cache import remember
from peer.doctor.host import needs_of
from peer.doctor.verdict import quiet
from peer.events import AlertRaised, Event
from peer.limits.desired_state import Intent
from peer.limits.policy import Decision, Hold
from peer.settings import PeerSettings
from peer.spec import RunSpec, load
from peer.startup import fit_for, look_around, say_smaller
from peer.telemetry.reporter import Reporter
from peer.testing.child_process import HANG_S
from peer.train import atomic
from peer.train.tuned import Tuned, TuneKey

FIT = Tuned(
    basis=TuneKey(run="ab", device="auto", name="a GPU", torch="2", homefires="0"),
    sequences=4, attention="sdpa", precision="bfloat16", step_s=0.5, tokens_per_s=1234.0,
)  # fmt: skip


@pytest.fixture
def spec() -> RunSpec:
    return load("micro")


@pytest.fixture
def said() -> list[Event]:
    return []


def alerts(said: list[Event]) -> list[AlertRaised]:
    return [event for event in said if isinstance(event, AlertRaised)]


def test_a_machine_in_order_is_not_talked_about(spec: RunSpec, said: list[Event], tmp_path: Path) -> None:
    look_around(spec, tmp_path, PeerSettings(), Reporter(said.append)).join(HANG_S)
    assert said == []


def test_what_fails_is_one_alert_with_the_fix(
    spec: RunSpec, said: list[Event], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full:
        f_bavail, f_frsize = 1, 512

    monkeypatch.setattr(os, "statvfs", lambda folder: Full())
    look_around(spec, tmp_path, PeerSettings(), Reporter(said.append)).join(HANG_S)
    (alert,) = alerts(said)
    assert (alert.level, alert.code) == ("warning", "DOCTOR")
    assert "512 B free" in alert.text
    assert "--dir" in alert.text
    assert alert.text.endswith(f"look closer with: homefires doctor --dir {tmp_path}")


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_the_model_counts_where_the_device_is_the_processor(
    kind: str, spec: RunSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever `auto` comes to on this machine."""
    monkeypatch.setattr("peer.train.backend.choose_device", lambda wanted: torch.device(kind))
    needs = needs_of(spec, PeerSettings().chain_bytes)
    (found,) = [check for check in quiet(spec, tmp_path, PeerSettings()) if check.name == "memory"]
    assert found.figures["needed_bytes"] == needs.main + (needs.device if kind == "cpu" else 0)


def test_a_processor_trains_with_the_specs_own_micro_batch(spec: RunSpec, said: list[Event], tmp_path: Path) -> None:
    """No dry run holds its start up."""
    assert fit_for(spec, PeerSettings(device="cpu"), tmp_path, Reporter(said.append)) is None
    assert said == []


@pytest.fixture
def a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peer.train.backend.choose_device", lambda wanted: torch.device("cuda"))
    monkeypatch.setattr(trial, "basis_of", lambda *about: FIT.basis)
    monkeypatch.setattr(atomic, "free_bytes", lambda device: 0)


@pytest.mark.usefixtures("a_gpu")
def test_a_gpu_is_fitted_and_told(
    spec: RunSpec, said: list[Event], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "find_fit", lambda *about, **named: FIT)
    assert fit_for(spec, PeerSettings(), tmp_path, Reporter(said.append)) == FIT
    whole = spec.inner.sequences * spec.inner.accumulation
    (alert,) = alerts(said)
    assert alert.text == f"4 of {whole} sequences at a time, bfloat16, sdpa attention: 1,234 tokens/s"
    assert alert.level == "info"


@pytest.mark.usefixtures("a_gpu")
def test_a_paused_peer_tries_nothing_out_on_a_gpu(
    spec: RunSpec, said: list[Event], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is known is taken; what is not is found by halving, or at a later start."""

    def find(*about: object) -> Tuned:
        raise AssertionError("a dry run takes all of the GPU")

    monkeypatch.setattr(cache, "find_fit", find)
    session = Reporter(said.append)
    session.wishes.wish(Intent.PAUSE)
    assert fit_for(spec, PeerSettings(), tmp_path, session) is None
    remember(tmp_path, FIT)
    assert fit_for(spec, PeerSettings(), tmp_path, session) == FIT
    assert said == []


@pytest.mark.outside
@pytest.mark.usefixtures("a_gpu")
@pytest.mark.parametrize("known", [None, replace(FIT, free_bytes=1000)])
def test_a_dry_run_gives_way_to_a_game_that_starts_meanwhile(
    known: Tuned | None, spec: RunSpec, said: list[Event], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was known before is taken then: here it is tried anew because more memory is free."""
    begun, program = tmp_path / "begun", tmp_path / "python"
    os.mkfifo(begun)
    program.write_text(f"#!/bin/sh\necho $$ > {begun}\nexec sleep {HANG_S:.0f}\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setattr(atomic, "free_bytes", lambda device: 5000)
    if known is not None:
        remember(tmp_path, known)
    session = Reporter(said.append)
    played: list[tuple[int, float]] = []

    def play() -> None:
        pid = int(begun.read_text())
        played.append((pid, time.monotonic()))
        session.wishes.judge(Decision(holds=(Hold("PROGRAM", "steam runs"),)))

    game = threading.Thread(target=play, daemon=True)
    game.start()
    assert fit_for(spec, PeerSettings(), tmp_path, session) == known
    game.join(HANG_S)
    ((pid, played_at),) = played
    assert time.monotonic() - played_at < 2.0
    assert not psutil.pid_exists(pid)
    (alert,) = alerts(said)
    assert (alert.level, alert.code) == ("info", "FIT")
    assert "the next start tries again" in alert.text


@pytest.mark.usefixtures("a_gpu")
@pytest.mark.parametrize(("error", "sequences"), [(MemoryFull("no room"), 1), (HomefiresError("a crash"), None)])
def test_a_dry_run_that_fails_keeps_nobody_from_training(
    error: HomefiresError, sequences: int | None, spec: RunSpec, said: list[Event], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def fail(*about: object, **named: object) -> Tuned:
        raise error

    monkeypatch.setattr(cache, "find_fit", fail)
    fit = fit_for(spec, PeerSettings(), tmp_path, Reporter(said.append))
    assert (fit.sequences if fit else None) == sequences
    (alert,) = alerts(said)
    assert (alert.code, alert.level) == ("FIT", "warning")
    assert str(error) in alert.text


def test_a_micro_batch_that_shrank_is_told(spec: RunSpec, said: list[Event]) -> None:
    say_smaller(Reporter(said.append), spec, 2)
    (alert,) = alerts(said)
    whole = spec.inner.sequences * spec.inner.accumulation
    assert f"from now on 2 of {whole} sequences at a time; nothing is lost" in alert.text
