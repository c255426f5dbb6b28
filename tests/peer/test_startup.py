"""What a peer looks at between knowing its run and building its model."""

from __future__ import annotations

import os
import pydoc
import re
import sys
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from dht.errors import BadInput, DeviceLost, DiskFull, HomefiresError, MemoryFull, Unreachable
from dht.identity import Identity
from dht.records import Genesis
from peer import startup
from peer.network.link.handle import LeaveRequested
from peer.node.host import device, processes
from peer.node.limits.desired_state import PAUSED_WHY, Intent
from peer.node.limits.policy import Decision, Hold
from peer.node.store.run_directory import genesis_head
from peer.node.telemetry.reporter import Reporter
from peer.parallel.autotune import cache, trial
from peer.parallel.autotune.cache import remember
from peer.planning.plan.run_needs import needs_of
from peer.schema.byte_text import format_bytes
from peer.schema.events import AlertRaised, Event, PeerStateChanged
from peer.schema.settings import PeerSettings, settings_of
from peer.schema.spec import RunSpec, load
from peer.schema.spec_fields import AdapterTable, AdmissionTable, StartTable
from peer.startup import (
    Prepared,
    _wait_for,
    devices_for,
    fit_for,
    of_fewer,
    prepare,
    ranks_for,
    report_halved,
    require_sound,
    run_doctor,
)
from peer.testing.child_process import BUSY, HANG_S
from peer.tools.doctor.device_room import needs_others, require_room, with_main_memory
from peer.tools.doctor.verdict import quiet
from peer.training.data.source import Source
from peer.training.train import trainer as trainers
from peer.training.train.autotune_result import Tuned, TuneKey
from tests.peer.tools.export.run_on_disk import signed_genesis

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
    run_doctor(spec, tmp_path, PeerSettings(), Reporter(said.append)).join(HANG_S)
    assert said == []


def test_what_fails_is_one_alert_with_the_fix(
    spec: RunSpec, said: list[Event], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full:
        f_bavail, f_frsize = 1, 512

    monkeypatch.setattr(os, "statvfs", lambda folder: Full())
    run_doctor(spec, tmp_path, PeerSettings(), Reporter(said.append)).join(HANG_S)
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
    monkeypatch.setattr("peer.node.host.device.choose_device", lambda wanted: torch.device(kind))
    needs = needs_of(spec, PeerSettings().chain_bytes)
    (found,) = [check for check in quiet(spec, tmp_path, PeerSettings()) if check.name == "memory"]
    assert found.figures["needed_bytes"] == needs.main + (needs.device if kind == "cpu" else 0)


def test_a_gpu_that_others_fill_is_none_the_less_a_gpu(
    spec: RunSpec, said: list[Event], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine is examined all the same, and the model does not count in main memory."""

    def full(wanted: str) -> torch.device:
        raise MemoryFull("cuda has no room")

    monkeypatch.setattr(device, "choose_device", full)
    run_doctor(spec, tmp_path, PeerSettings(), Reporter(said.append)).join(HANG_S)
    assert said == []
    (found,) = [check for check in quiet(spec, tmp_path, PeerSettings()) if check.name == "memory"]
    assert found.figures["needed_bytes"] == needs_of(spec, PeerSettings().chain_bytes).main


def test_a_processor_trains_with_the_specs_own_micro_batch(spec: RunSpec, said: list[Event], tmp_path: Path) -> None:
    """No dry run holds its start up."""
    assert fit_for(spec, PeerSettings(devices=("cpu",)), tmp_path, Reporter(said.append)) is None
    assert said == []


@pytest.mark.parametrize(("compile", "devices"), [("no", ("cpu",)), ("auto", ("cpu",)), ("yes", ("cpu", "cpu"))])
def test_a_long_run_on_one_processor_is_tried_compiled(
    compile: str, devices: tuple[str, ...], spec: RunSpec, said: list[Event], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    fit = replace(FIT, compiled=True, attention="", precision="float32", basis=replace(FIT.basis, name="cpu"))
    monkeypatch.setattr(cache, "find_fit", lambda *about, **named: fit)
    endless = replace(spec, run=replace(spec.run, rounds=0))
    settings = PeerSettings(devices=devices, compile=compile)
    found = fit_for(endless, settings, tmp_path, Reporter(said.append))
    assert found == (fit if compile == "auto" else None)
    if found:
        assert alerts(said)[0].text.endswith("sequences at a time, float32, compiled: 1,234 tokens/s")


@pytest.fixture
def a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peer.node.host.device.choose_device", lambda wanted: torch.device("cuda"))
    monkeypatch.setattr(trial, "basis_of", lambda *about, **named: FIT.basis)
    monkeypatch.setattr(device, "free_bytes", lambda chosen: 0)
    monkeypatch.setattr(device, "total_bytes", lambda chosen: 0)


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
    monkeypatch.setattr(device, "free_bytes", lambda chosen: 5000)
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
    assert time.monotonic() - played_at < 2.0 * BUSY
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


@pytest.mark.usefixtures("a_gpu")
def test_several_gpus_are_fitted_together(
    spec: RunSpec, said: list[Event], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that are there; the way that was found is the way that is taken, and told."""
    shared = replace(FIT, sharding="full", speeds=(2.0, 1.0), most=(4, 2))
    about: list[tuple[object, ...]] = []
    monkeypatch.setattr(trial, "basis_of", lambda *words, **named: about.append((*words, named)) or FIT.basis)
    monkeypatch.setattr(cache, "find_fit", lambda *about, **named: shared)
    two = (torch.device("cuda:0"), torch.device("cuda:2"))
    settings = PeerSettings(devices=("cuda:0", "cuda:1", "cuda:2"))
    assert fit_for(spec, settings, tmp_path, Reporter(said.append), two) == shared
    assert about == [(spec, ("cuda:0", "cuda:2"), two, {"sharding": "auto", "offload": False, "compile": "auto"})]
    assert alerts(said)[0].text.endswith("sdpa attention, full: 1,234 tokens/s")
    options = ranks_for(spec, settings, two, shared)
    assert options is not None
    assert (str(options.strategy), options.speeds, options.most) == ("full", (2.0, 1.0), (4, 2))


def test_an_adapter_is_trained_on_one_device(spec: RunSpec) -> None:
    """The first of those that are found; who has named several is asked for one."""
    start = StartTable(model="a", digest="0" * 64)
    adapted = replace(spec, start=start, adapter=AdapterTable())
    two = (torch.device("cuda:0"), torch.device("cuda:1"))
    assert devices_for(spec, PeerSettings(), two) == two
    assert devices_for(adapted, PeerSettings(), two) == two[:1]
    with pytest.raises(BadInput, match="set devices=cuda:0"):
        devices_for(adapted, PeerSettings(devices=("cuda:0", "cuda:1")), two)
    with pytest.raises(BadInput, match="set offload=no"):
        devices_for(adapted, PeerSettings(offload=True), two)


@pytest.mark.parametrize(("offloads", "is_in_ranks"), [(True, True), (False, False)])
def test_one_device_is_helped_by_main_memory_only_where_a_dry_run_found_it_needed(
    spec: RunSpec, *, offloads: bool, is_in_ranks: bool
) -> None:
    settings, fit = PeerSettings(devices=("cpu",), offload=True), replace(FIT, offloads=offloads)
    assert (ranks_for(spec, settings, (torch.device("cpu"),), fit) is not None) == is_in_ranks
    assert ranks_for(spec, settings, (torch.device("cpu"),), None) is not None, "nothing was tried"


def test_a_peer_takes_layers_from_main_memory_where_its_device_could_never_hold_the_run(
    said: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a plan recommends to the commonest home, and said in one line; not where the device holds it, where main
    memory does not, on a processor, or for an adapter."""
    large, card, main = load("llama-1b"), torch.device("cuda"), [256 * GIB]
    monkeypatch.setattr(processes, "available_bytes", lambda: main[0])
    monkeypatch.setattr(device, "total_bytes", lambda chosen: 8 * GIB)

    def offloads(spec: RunSpec, chosen: torch.device, *, again: bool = False) -> bool:
        settings = with_main_memory(spec, PeerSettings(), chosen, Reporter(said.append), again=again)
        return replace(settings, offload=False) == PeerSettings() and settings.offload

    assert offloads(large, card)
    assert offloads(large, card, again=True)
    (alert,) = alerts(said)
    assert re.fullmatch(
        r"cuda has 8.6 GB and the run needs about 25.2 GB: what it cannot hold is trained with layers from main "
        r"memory: about [\d,]+ tokens/s; or --set stages=4 for a cluster of 4 such homes.* tokens/s",
        alert.text,
    )
    adapted = replace(large, start=StartTable(model="a", digest="0" * 64), adapter=AdapterTable())
    assert not offloads(large, torch.device("cpu"))
    assert not offloads(adapted, card)
    main[0] = 16 * GIB
    assert not offloads(large, card)
    monkeypatch.setattr(device, "total_bytes", lambda chosen: 80 * GIB)
    main[0] = 256 * GIB
    assert not offloads(large, card)


@pytest.mark.parametrize(
    ("gib", "main_gib", "settings", "needs"),
    [
        (8, 16, {}, True),
        (8, 16, {"stages": "auto"}, True),
        (8, 16, {"stages": 1}, False),
        (8, 16, {"stages": 3}, False),
        (8, 16, {"offload": "yes"}, False),
        (8, 256, {}, False),
        (80, 16, {}, False),
        (0, 256, {}, False),
        (0, 8, {}, True),
        (0, 256, {"memory_gb": 8}, True),
        (0, 256, {"memory_gb": 0.6}, False),
    ],
)
def test_a_home_looks_for_others_where_it_holds_the_model_in_no_way(
    monkeypatch: pytest.MonkeyPatch, gib: int, main_gib: int, settings: dict[str, Any], *, needs: bool
) -> None:
    """A device of so much, or a processor (0), with so much main memory. It holds llama-1b in 25 GB, or with layers in
    main memory; a peer without room for anything is left to wait."""
    large, chosen = load("llama-1b"), torch.device("cuda" if gib else "cpu")
    monkeypatch.setattr(processes, "available_bytes", lambda: main_gib * GIB)
    monkeypatch.setattr(device, "total_bytes", lambda chosen: gib * GIB)
    monkeypatch.setattr(device, "choose_devices", lambda wanted: (chosen,))
    assert needs_others(large, settings_of(settings)) == needs


def test_a_home_looks_for_nobody_in_a_run_for_invited_ones_or_with_a_model_that_cannot_be_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    large = load("llama-1b")
    monkeypatch.setattr(processes, "available_bytes", lambda: 8 * GIB)
    monkeypatch.setattr(device, "choose_devices", lambda wanted: (torch.device("cpu"),))
    assert needs_others(large, PeerSettings())
    assert not needs_others(replace(large, admission=AdmissionTable(policy="invited")), PeerSettings())
    assert not needs_others(load("gpt2-small"), replace(PeerSettings(), memory_gb=1.0))


def test_a_dry_run_may_use_main_memory_where_that_is_recommended(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    class Seen(Exception):
        pass

    def fit_for(spec: RunSpec, settings: PeerSettings, *rest: object) -> None:
        raise Seen(settings.offload)

    least = needs_of(start.spec, 0).least_device
    monkeypatch.setattr(startup, "fit_for", fit_for)
    monkeypatch.setattr(device, "choose_devices", lambda wanted: (torch.device("cuda"),))
    for room, offloads in ((round(0.9 * least), True), (least, False)):
        monkeypatch.setattr(device, "total_bytes", lambda chosen, room=room: room)
        monkeypatch.setattr(device, "free_bytes", lambda chosen, room=room: room)
        with pytest.raises(Seen, match=str(offloads)):
            start.prepare()


def test_what_main_memory_would_cost_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the device would never hold it; one that others fill for now is another matter."""
    large, card = load("llama-1b"), torch.device("cuda")
    deep = replace(
        large, model=replace(large.model, context=512, config=large.model.config | {"num_hidden_layers": 46})
    )
    monkeypatch.setattr(processes, "available_bytes", lambda: 256 * GIB)
    monkeypatch.setattr(device, "total_bytes", lambda chosen: 8 * GIB)
    with pytest.raises(BadInput, match=r"or --set offload=yes for layers from main memory: about [\d,]+ tokens/s"):
        require_room(deep, card, again=False)
    monkeypatch.setattr(device, "total_bytes", lambda chosen: 12 * GIB)
    monkeypatch.setattr(device, "free_bytes", lambda chosen: 8 * GIB)
    with pytest.raises(MemoryFull, match=r"others use cuda: .* --set offload=yes for layers from main memory"):
        require_room(large, card, again=True)
    monkeypatch.setattr(device, "total_bytes", lambda chosen: 80 * GIB)
    with pytest.raises(MemoryFull, match=r"or join with --devices cpu$"):
        require_room(large, card, again=True)


def test_devices_that_share_a_model_need_not_hold_it(monkeypatch: pytest.MonkeyPatch) -> None:
    large, card = load("llama-1b"), torch.device("cuda")
    monkeypatch.setattr(device, "total_bytes", lambda chosen: 3 * GIB)
    monkeypatch.setattr(device, "free_bytes", lambda chosen: 3 * GIB)
    require_room(large, card, again=False, shares=2)
    with pytest.raises(BadInput, match="the weights of llama-1b alone take"):
        require_room(large, card, again=False)


def test_a_micro_batch_that_shrank_is_told(spec: RunSpec, said: list[Event]) -> None:
    report_halved(Reporter(said.append), spec, 2)
    (alert,) = alerts(said)
    whole = spec.inner.sequences * spec.inner.accumulation
    assert f"from now on 2 of {whole} sequences at a time; nothing is lost" in alert.text


# ---- a device that others fill ----

GIB = 1 << 30


@dataclass
class Start:
    """A peer that begins on a processor that plays a GPU. Time passes only while it waits."""

    spec: RunSpec
    directory: Path
    events: list[Event]
    session: Reporter
    now: float = 0.0
    waits: list[float] = field(default_factory=list)
    during: Callable[[int], object] = lambda number: None
    """What happens in its n-th wait, from 1."""

    def prepare(self) -> Prepared:
        settings = PeerSettings(devices=("cpu",))
        return prepare(self.spec, settings, "p0", self.directory, self.session, self._wait, lambda: self.now)

    def _wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds
        assert len(self.waits) < 20, "it waits for ever"
        self.during(len(self.waits))

    @property
    def said(self) -> list[tuple[str, str]]:
        return [(event.state, event.why) for event in self.events if isinstance(event, PeerStateChanged)]


@pytest.fixture
def start(spec: RunSpec, said: list[Event], tmp_path: Path) -> Start:
    return Start(spec, tmp_path, said, Reporter(said.append))


def full_until(monkeypatch: pytest.MonkeyPatch, place: str, tries: int) -> list[weakref.ref[object]]:
    """Nothing has room at `place` for so many attempts; returns what was made of each before that."""
    real, made = pydoc.locate(place), list[weakref.ref[object]]()
    assert callable(real)

    def full(*given: Any, **named: Any) -> Any:
        if len(made) == tries:
            return real(*given, **named)
        made.append(weakref.ref(given[0]))
        raise RuntimeError("CUDA error: out of memory")

    owner, name = place.rsplit(".", 1)
    monkeypatch.setattr(pydoc.locate(owner), name, full)
    return made


BUILDING = ("JOINING", "building the model and reading the data")
NO_ROOM = "the memory of cpu has no room for the model; close other programs, or join with --devices cpu"
PLACES = [
    "torch.nn.Module.to",
    "peer.training.train.backend.SingleDevice.__init__",
    "peer.training.train.trainer.LocalTrainer.restore",
]


@pytest.mark.parametrize("place", PLACES)
def test_a_peer_waits_for_a_device_that_others_fill(place: str, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so once, tries every five seconds, keeps nothing of an attempt, and then is as any other."""
    empty = start.prepare()
    genesis = Genesis(
        run=start.spec.digest(), founders=(Identity.from_seed(bytes(32)).peer_id,), state=empty.trainer.start.state
    )
    (start.directory / "genesis").write_bytes(signed_genesis(genesis))
    anchor = genesis_head(genesis).anchor
    checkpoint = empty.trainer.checkpoint(anchor)
    empty.checkpoints.write(checkpoint)
    start.events.clear()
    made = full_until(monkeypatch, place, 3)
    ready = start.prepare()
    assert start.waits == [5.0, 5.0, 5.0]
    assert [each() for each in made] == [None, None, None], "nothing half made keeps memory"
    paused = ("PAUSED", f"{NO_ROOM}; tried every 5 s")
    assert start.said[:3] == [BUILDING, paused, BUILDING]
    assert ready.anchor == anchor
    assert ready.trainer.start == empty.trainer.start
    assert ready.trainer.checkpoint(anchor).state == checkpoint.state


def test_a_peer_waits_for_data_that_cannot_be_reached(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """It pauses with the reason, and begins as soon as they are there."""
    real, tried = trainers.open_source, list[str]()

    def open_later(spec: RunSpec, data_path: str, home: Path) -> Source:
        tried.append(data_path)
        if len(tried) <= 2:
            raise Unreachable("the data set 'a/b' cannot be reached; check the connection")
        return real(spec, data_path)

    monkeypatch.setattr(trainers, "open_source", open_later)
    start.prepare()
    assert start.waits == [5.0, 5.0]
    why = "the data set 'a/b' cannot be reached; check the connection; tried every 5 s"
    assert start.said[1] == ("PAUSED", why)


def test_a_device_without_room_for_a_kernel_is_waited_for(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """People hear of it once, however often it is tried."""
    tried: list[str] = []
    real = device.choose_device

    def choose(wanted: str) -> torch.device:
        tried.append(wanted)
        if len(tried) <= 4:
            raise MemoryFull("cuda has no room for any program more; close other programs")
        return real(wanted)

    monkeypatch.setattr(device, "choose_device", choose)
    start.prepare()
    assert start.waits == [5.0] * 4
    text = "cuda has no room for any program more; close other programs; tried every 5 s"
    assert start.said == [("PAUSED", text), BUILDING]


def test_room_that_is_known_to_be_wanting_is_told_and_nothing_is_built(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights do at first; whoever has failed tries again once there is room to train, or most of a device is free."""
    needed = needs_of(start.spec, 0).least_device
    free = iter([100_000, 2 * needed, needed - 1, needed])
    monkeypatch.setattr(device, "total_bytes", lambda chosen: 24 * GIB)
    monkeypatch.setattr(device, "free_bytes", lambda chosen: next(free))
    made = full_until(monkeypatch, "peer.training.train.trainer.LocalTrainer.__init__", 1)
    start.prepare()
    assert start.waits == [5.0] * 3
    assert len(made) == 1
    why = f"others use cpu: 100.0 kB of 25.8 GB free, about {format_bytes(needed)} needed; close other programs"
    assert [why for state, why in start.said if state == "PAUSED"] == [
        f"{why}, or join with --devices cpu; tried every 5 s"
    ] * 2, "the figures are those of the first time"
    monkeypatch.setattr(device, "total_bytes", lambda chosen: round(needed / 0.75))
    monkeypatch.setattr(device, "free_bytes", lambda chosen: needed)
    require_room(start.spec, torch.device("cpu"), again=True)


def test_a_disk_without_room_for_the_run_is_said_before_anything_is_made(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("peer.node.host.disk.free_disk_bytes", lambda folder: 6_000_000)
    least = format_bytes(needs_of(start.spec, 0).least_disk)
    with pytest.raises(DiskFull, match=rf"has 6\.0 MB free, and the run takes {least} at least; free \S+ .B, or name"):
        start.prepare()
    assert start.waits == []


def test_a_device_that_never_has_room_ends_the_peer(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "total_bytes", lambda chosen: 1 << 16)
    with pytest.raises(BadInput, match=r"^cpu has 65.5 kB, and the weights of micro alone take .* smaller model$"):
        start.prepare()
    assert start.waits == []


@pytest.mark.usefixtures("a_gpu")
def test_a_dry_run_on_a_full_device_is_not_what_the_whole_life_goes_by(
    spec: RunSpec, said: list[Event], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*about: object, **named: object) -> Tuned:
        raise MemoryFull("not even one sequence has room")

    monkeypatch.setattr(cache, "find_fit", fail)
    monkeypatch.setattr(device, "total_bytes", lambda chosen: 24 * GIB)
    with pytest.raises(MemoryFull, match=r"others use cuda: 0 B of 25\.8 GB free"):
        fit_for(spec, PeerSettings(), tmp_path, Reporter(said.append))
    assert alerts(said) == []


def test_a_pause_is_obeyed_while_it_waits(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told at once, nothing is tried in it, and when it ends there is no further wait."""
    made = full_until(monkeypatch, "torch.nn.Module.to", 1)

    def during(number: int) -> None:
        if number == 1:
            start.now -= 3.0  # two seconds of five have passed
            start.session.wishes.wish(Intent.PAUSE)
        elif number == 4:
            assert len(made) == 1
            start.session.wishes.wish(Intent.TRAIN)

    start.during = during
    start.prepare()
    assert start.waits == [5.0, 3.0, 5.0, 5.0]
    assert [state for state, _ in start.said] == ["JOINING", "PAUSED", "PAUSED", "JOINING"]
    assert start.said[2] == ("PAUSED", PAUSED_WHY)


def test_who_is_to_leave_waits_for_no_room(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    full_until(monkeypatch, "torch.nn.Module.to", 99)

    def during(number: int) -> None:
        start.now -= 5.0
        start.session.stopping = True

    start.during = during
    with pytest.raises(LeaveRequested):
        start.prepare()
    assert len(start.waits) == 1


def test_its_owners_word_ends_a_wait(said: list[Event]) -> None:
    """Not its time alone: a pause is told within two seconds."""
    session = Reporter(said.append)
    wait = _wait_for(session)
    session.wishes.wish(Intent.PAUSE)
    began_at = time.monotonic()
    wait(HANG_S)
    assert time.monotonic() - began_at < 2.0 * BUSY


def test_a_device_that_fails_while_a_peer_is_built_is_one_line(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*about: object) -> None:
        raise RuntimeError("CUDA error: uncorrectable ECC error encountered\nand more")

    monkeypatch.setattr(torch.nn.Module, "to", fail)
    with pytest.raises(DeviceLost, match=r"^cpu has failed \(CUDA error: uncorrectable ECC error encountered\)"):
        start.prepare()


@pytest.mark.parametrize(("sharding", "then"), [("full", "full"), ("replicated", "replicated"), ("hybrid", "auto")])
def test_what_is_left_out_is_named_nowhere(sharding: str, then: str) -> None:
    """Three of four devices make no groups."""
    asked = PeerSettings(devices=("cuda:0", "cuda:1", "cuda:2", "cuda:3"), sharding=sharding, nice=5)
    left = of_fewer(asked, [torch.device("cuda", index) for index in (0, 2, 3)])
    assert left == PeerSettings(devices=("cuda:0", "cuda:2", "cuda:3"), sharding=then, nice=5)


def test_files_are_looked_through_once_before_anything_is_built(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that is wrong with them is one error, in seconds; what was found sound is not read again until it changes."""
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.jsonl").write_text('{"text": "a word"}\n{\n7\n')
    spec = replace(start.spec, data=replace(start.spec.data, source="files", path="texts"))
    settings, looked = PeerSettings(devices=("cpu",), data_path=str(folder)), list[int]()
    with pytest.raises(BadInput, match=r"a\.jsonl:2 is no JSON.*a\.jsonl:3 has no text"):
        prepare(spec, settings, "p0", start.directory, start.session)
    assert [text for _, text in start.said] == ["looking through the data"]
    (folder / "a.jsonl").write_text("".join(f'{{"text": "word {number}"}}\n' for number in range(900)))
    monkeypatch.setattr("peer.training.data.inspection._passes", lambda *_: looked.append(1))
    for _ in range(2):
        require_sound(spec, str(folder), start.directory, start.session)
    (folder / "b.txt").write_text("another")
    require_sound(spec, str(folder), start.directory, start.session)
    assert len(looked) == 2
