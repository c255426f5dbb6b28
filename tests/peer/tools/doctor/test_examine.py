"""The whole examination, with a real node of the run on loopback and children that only play."""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from dht.addresses import LOOPBACK
from dht.identity import Identity
from dht.invite import issue
from dht.node import NetworkConfig, open_node
from dht.process import lock_directory
from dht.reach.bandwidth_probe import serve_probes
from peer.node.control.server import Commands, ControlServer
from peer.node.telemetry.reporter import Reporter
from peer.schema.events import EventLine, InnerProgressed, format_line
from peer.schema.settings import PeerSettings
from peer.schema.spec import dump, load
from peer.tools.doctor import examine as examining
from peer.tools.doctor.check import Check, Status, passed
from peer.tools.doctor.credentials import JoinedRun, check_folder
from peer.tools.doctor.examine import Request, examine
from peer.tools.doctor.network import check_bootstrap
from peer.tools.doctor.software import (
    EVENLY,
    ChildResult,
    Device,
    check_devices,
    check_fit,
    check_libraries,
    check_training,
)
from peer.training.train.autotune_result import Tuned, TuneKey

pytestmark = pytest.mark.swarm

BASIS = TuneKey(run="ab", device="cpu", name="cpu", torch="2", homefires="0")
FIT = Tuned(basis=BASIS, sequences=8, step_s=0.5, tokens_per_s=4096.0)


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> None:
    """What children would find."""

    async def devices(wanted: Sequence[str]) -> tuple[Check, tuple[Device, ...]]:
        return passed("device", "cpu computes"), tuple(Device(device=name, name="x86_64") for name in wanted)

    async def fit(*about: object) -> tuple[Check, Tuned]:
        return passed("fit", "8 of 8"), FIT

    async def libraries() -> Check:
        return passed("libraries", "they go together")

    for name, fake in (("check_devices", devices), ("check_fit", fit), ("check_libraries", libraries)):
        monkeypatch.setattr(examining, name, fake)


@pytest.mark.usefixtures("played")
async def test_a_machine_in_order_hears_what_taking_part_would_be_like(tmp_path: Path) -> None:
    """Every check is told once, in one object each, and the verdict rests on what was measured."""
    spec = load("micro")
    organiser = Identity.load_or_create(tmp_path / "identity.key")
    config = NetworkConfig(
        run=spec.digest(), identity_path=tmp_path / "identity.key", socket_folder=tmp_path / "run", listen=LOOPBACK
    )
    told: list[Check] = []
    async with open_node(config) as node:
        node.serve("spec", dump(spec).encode)
        node.serve("time", lambda: struct.pack(">d", time.time()))
        serve_probes(node)
        invite = issue(organiser, run="micro", spec_hash=spec.digest(), addrs=await node.addresses())
        settings = PeerSettings(devices=("cpu",), listen=LOOPBACK, upload_mbps=20, download_mbps=100, chain_mb=1)
        verdict = await examine(Request(invite=invite, directory=tmp_path / "peer", settings=settings), told.append)
    names = [check.name for check in told]
    assert len(names) == len(set(names))
    assert set(names) == {
        "invite", "run", "identity", "file descriptors", "shared memory", "sleep", "device", "libraries", "daemon",
        "bootstrap", "clock", "line", "reach", "heat", "memory", "disk", "fit",
    }  # fmt: skip
    assert [check.name for check in told if check.status is Status.FAIL] == []
    assert all(json.loads(check.to_json())["check"] == check.name for check in told)
    assert verdict.margin is not None
    assert verdict.margin > 0
    assert verdict.sync_s is not None
    assert verdict.tokens_per_day is not None
    assert 0 < verdict.tokens_per_day <= 86400 * spec.inner.sequences * spec.inner.accumulation * 64 / FIT.step_s
    assert "at 20 Mbit/s up" in verdict.sentence  # the owner's cap, not what loopback carries
    assert not (tmp_path / "peer").exists()


@pytest.mark.usefixtures("played")
async def test_a_peer_that_runs_is_examined_by_its_folder_alone(tmp_path: Path) -> None:
    """The run is that of its folder; that it holds its key, its port and its memory is as it should be, and no dry run
    takes its device."""
    spec, directory = load("micro"), tmp_path / "peer"
    organiser = Identity.load_or_create(tmp_path / "identity.key")
    config = NetworkConfig(
        run=spec.digest(), identity_path=tmp_path / "identity.key", socket_folder=tmp_path / "run", listen=LOOPBACK
    )
    told: list[Check] = []
    with lock_directory(directory), socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        (directory / "spec.toml").write_text(dump(spec))
        progress = InnerProgressed(
            round=1, step=1, steps=9, loss=2.0, tokens=1, tokens_per_s=4096.0, learning_rate=1e-3
        )
        line = EventLine(seq=0, t=1.0, run="micro", peer="me", event=progress)
        (directory / "events.jsonl").write_text(f"{format_line(line)}\n")
        commands = Commands(Reporter(lambda event: None), "micro", "me", "al", lambda: None)
        async with open_node(config) as node:
            node.serve("time", lambda: struct.pack(">d", time.time()))
            serve_probes(node)
            addrs = await node.addresses()
            (directory / "invite").write_text(issue(organiser, run="micro", spec_hash=spec.digest(), addrs=addrs))
            settings = PeerSettings(listen=(f"/ip4/127.0.0.1/tcp/{port}",), chain_mb=1)
            with ControlServer(directory, commands):
                verdict = await examine(Request(directory=directory, settings=settings), told.append)
    found = {check.name: check for check in told}
    assert {name for name, check in found.items() if check.status is Status.FAIL} == set()
    for name in ("run", "identity", "daemon", "bootstrap", "clock", "line", "memory", "disk", "fit"):
        assert found[name].status in (Status.PASS, Status.WARN), found[name]
    assert found["memory"].figures["held_bytes"] > 0
    assert found["fit"].figures["tokens_per_s"] == 4096.0
    assert verdict.tokens_per_day is not None


@pytest.mark.usefixtures("played")
@pytest.mark.parametrize(
    ("expires", "says"),
    [
        (1.0, "unknown: the invite is refused; ask the organiser for a new one"),
        (None, "unknown: none of its addresses told what the run is; ask the organiser whether the node runs"),
    ],
)
async def test_the_verdict_on_an_invite_that_leads_nowhere_says_what_to_do(
    expires: float | None, says: str, tmp_path: Path
) -> None:
    organiser = Identity.generate()
    with socket.create_server(("127.0.0.1", 0)) as taken:  # nobody is there any more
        address = f"/ip4/127.0.0.1/tcp/{taken.getsockname()[1]}/p2p/{organiser.peer_id}"
    invite = issue(organiser, run="micro", spec_hash=load("micro").digest(), addrs=(address,), expires=expires)
    settings = PeerSettings(devices=("cpu",), listen=LOOPBACK)
    verdict = await examine(Request(invite=invite, directory=tmp_path, settings=settings), [].append)
    assert verdict.sentence == says


@pytest.mark.usefixtures("played")
async def test_files_that_are_not_here_are_one_finding(tmp_path: Path) -> None:
    """What is in them is not looked for as well."""
    spec = load("micro")
    spec = replace(spec, data=replace(spec.data, source="files", path="poems"))
    (tmp_path / "spec.toml").write_text(dump(spec))
    settings = PeerSettings(devices=("cpu",), listen=LOOPBACK, data_path=str(tmp_path / "moved"))
    told: list[Check] = []
    await examine(Request(directory=tmp_path, settings=settings), told.append)
    assert [check.name for check in told if check.status is Status.FAIL] == ["files"]


async def test_a_folder_that_knows_no_run_says_so(tmp_path: Path) -> None:
    """As of a peer that never met anybody."""
    check, joined = check_folder(tmp_path)
    assert (check.status, joined) == (Status.UNKNOWN, None)
    assert str(tmp_path / "spec.toml") in check.found
    (tmp_path / "spec.toml").write_text(dump(load("micro")))
    check, joined = check_folder(tmp_path)
    assert (check.status, joined) == (Status.PASS, JoinedRun(spec_hash=load("micro").digest(), addrs=()))
    assert check_bootstrap([]).status is Status.UNKNOWN
    check, step_s = check_training(load("micro"), tmp_path)
    assert (check.status, step_s) == (Status.UNKNOWN, None)


@pytest.mark.parametrize(
    ("gib", "found"),
    [
        (24, "2 devices compute: cuda:0 (NVIDIA X, 25.8 GB), cuda:1 (NVIDIA X, 25.8 GB) with torch 2.13"),
        (12, f"2 devices compute: cuda:0 (NVIDIA X, 25.8 GB), cuda:1 (NVIDIA X, 12.9 GB) with torch 2.13; {EVENLY}"),
    ],
)
async def test_several_devices_are_listed_and_the_smallest_card_decides(gib: int, found: str) -> None:
    rows = [
        {"device": f"cuda:{n}", "name": "NVIDIA X", "uuid": f"GPU-{n}", "free_bytes": 1, "total_bytes": whole << 30}
        for n, whole in enumerate((24, gib))
    ]

    async def kernel(*words: str, timeout_s: float = 0.0) -> ChildResult:
        assert words == ("-m", "peer.tools.doctor.kernel_probe", "cuda:0", "cuda:1")
        timed = [row | {"kernel_s": 0.001} for row in rows]
        told = {**timed[0], "torch": "2.13", "devices": rows, "chosen": timed}
        return ChildResult(exit_code=0, out=json.dumps(told), err="")

    check, devices = await check_devices(("cuda:0", "cuda:1"), kernel)
    assert check.found == found
    assert [each.device for each in devices] == ["cuda:0", "cuda:1"]


async def test_a_card_that_torch_cannot_use_is_told_with_its_mend() -> None:
    row = {"device": "cpu", "name": "x86_64", "uuid": "", "free_bytes": 0, "total_bytes": 0, "kernel_s": 0.001}
    card = {"found": "an NVIDIA card is here, and its driver is not loaded", "fix": "install the driver"}

    async def kernel(*words: str, timeout_s: float = 0.0) -> ChildResult:
        told = {**row, "torch": "2.13+cpu", "devices": [row], "chosen": [row], "unused": card}
        return ChildResult(exit_code=0, out=json.dumps(told), err="")

    check, devices = await check_devices(("auto",), kernel)
    assert check.status is Status.WARN
    assert check.found.endswith("with torch 2.13+cpu; an NVIDIA card is here, and its driver is not loaded")
    assert (check.fix, len(devices)) == ("install the driver", 1)


async def test_what_a_child_tells_is_read() -> None:
    """The device with those beside it, and the fit."""
    row = {"device": "cuda:1", "name": "NVIDIA X", "uuid": "GPU-1", "free_bytes": 20 << 30, "total_bytes": 24 << 30}
    other = {**row, "device": "cuda:0", "name": "NVIDIA Y"}

    async def kernel(*words: str, timeout_s: float = 0.0) -> ChildResult:
        assert words == ("-m", "peer.tools.doctor.kernel_probe", "cuda:1")
        told = {
            **row,
            "kernel_s": 0.001,
            "torch": "2.13",
            "devices": [row, other],
            "chosen": [row | {"kernel_s": 0.001}],
        }
        return ChildResult(exit_code=0, out=f"a library is loading\n{json.dumps(told)}\n", err="")

    check, devices = await check_devices(("cuda:1",), kernel)
    assert check.status is Status.PASS
    assert check.found == "cuda:1 computes (NVIDIA X, 25.8 GB) with torch 2.13; also here: cuda:0 (NVIDIA Y, 25.8 GB)"
    assert devices == (Device(**row),)

    async def dry(*words: str, timeout_s: float = 0.0) -> ChildResult:
        return ChildResult(exit_code=0, out=f"warming up\n{FIT.to_json()}\n", err="")

    check, fit = await check_fit(load("micro"), "cpu", dry)
    assert fit == FIT
    assert check.figures["tokens_per_s"] == 4096.0

    async def imported(*words: str, timeout_s: float = 0.0) -> ChildResult:
        return ChildResult(exit_code=0, out="a library says hello\n1.1.12 6.33.0\n", err="")

    assert (await check_libraries(imported)).found == "hivemind 1.1.12 and protobuf 6.33.0 go together"

    async def killed(*words: str, timeout_s: float = 0.0) -> ChildResult:
        return ChildResult(exit_code=-9, out="", err="")

    async def killed_at_first(*words: str, timeout_s: float = 0.0) -> ChildResult:
        tried.append(int(words[-1]))
        return await (dry if len(tried) > 1 else killed)(*words)

    spec, tried = load("micro"), list[int]()
    check, fit = await check_fit(spec, "cpu", killed_at_first)
    assert fit == FIT, "as a join would: half as much may have room"
    assert tried == [spec.inner.sequences * spec.inner.accumulation, (spec.inner.sequences + 1) // 2]

    async def slow(*words: str, timeout_s: float = 0.0) -> ChildResult:
        return ChildResult(exit_code=-9, out="", err=f"it did not end within {timeout_s:.0f} s", timed_out=True)

    check, fit = await check_fit(spec, "cpu", slow)
    assert (check.status, fit) == (Status.UNKNOWN, None), "a join takes its time"
    assert "did not end within 180 s" in check.found

    check, fit = await check_fit(load("micro"), "cpu", killed)
    assert fit is None
    assert (check.status, check.exit_code) == (Status.FAIL, 12)
    assert "--devices" in check.fix
