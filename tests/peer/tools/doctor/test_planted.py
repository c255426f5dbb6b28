"""Ten problems, planted one by one: the doctor finds each of them and names the fix."""

from __future__ import annotations

import asyncio
import errno
import json
import math
import os
import resource
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from dht.addresses import LOOPBACK
from dht.clock import MOST_S
from dht.errors import (
    BadInput,
    BadInvite,
    BadSpec,
    ClockOff,
    DirectoryBusy,
    DiskFull,
    HomefiresError,
    MemoryFull,
    RunMismatch,
    Unreachable,
)
from dht.identity import Identity
from dht.invite import issue, parse, save_in
from dht.process import lock_directory
from dht.reach.bandwidth_probe import Bandwidth
from peer.node.control.server import Commands, ControlServer
from peer.node.host.disk import free_disk_bytes
from peer.node.telemetry.reporter import Reporter
from peer.planning.plan.home_cost import WayToTrain
from peer.planning.plan.run_needs import RunNeeds, needs_of
from peer.schema.spec import load
from peer.testing.child_process import HANG_S
from peer.tools.doctor.check import Check, Status
from peer.tools.doctor.credentials import check_identity, check_invite, check_run_of_folder
from peer.tools.doctor.host import (
    check_device_memory,
    check_disk,
    check_memory,
    check_shared_memory,
)
from peer.tools.doctor.hub_names import check_hub, repositories_of
from peer.tools.doctor.network import check_clock, check_line, examine_network, measure_skew_s
from peer.tools.doctor.software import ChildResult, check_devices, check_libraries
from tests.hub_server import HubServer, serving

GIB = 1 << 30


@pytest.fixture
def needs() -> RunNeeds:
    return needs_of(load("gpt2-small"), chain_bytes=2**30)


def assert_fails(check: Check, kind: type[HomefiresError], found: str, fix: str) -> None:
    """It failed for this reason, with the exit code of its branch, and names this fix."""
    assert check.status is Status.FAIL
    assert check.exit_code == kind.exit_code
    assert found in check.found
    assert fix in check.fix


# 1
async def test_a_clock_that_is_off_by_ten_seconds() -> None:
    """The nodes' time is ten seconds ahead of ours; one of them does not tell, and one talks nonsense."""

    class Ahead:
        async def ask(
            self, peer_id: str, name: str, timeout_s: float, max_bytes: int = 0, request: bytes = b""
        ) -> bytes | None:
            assert name == "time"
            if peer_id == "silent":
                raise Unreachable("no answer")
            return {"older": None, "odd": struct.pack(">d", math.nan)}.get(peer_id, struct.pack(">d", 1010.0))

    def clock() -> float:
        return 1000.0

    skew_s = await measure_skew_s(Ahead(), ["one", "silent", "older", "odd", "two"], clock)
    assert skew_s == pytest.approx(-10.0, abs=0.1)
    assert_fails(check_clock(skew_s), ClockOff, "10.0 s behind the others'", "timedatectl set-ntp true")
    assert check_clock(MOST_S + 0.1).status is Status.FAIL
    assert check_clock(0.4).status is Status.PASS
    assert check_clock(await measure_skew_s(Ahead(), ["silent", "older", "odd"], clock)).status is Status.UNKNOWN


# 2 and 3
async def examined(addresses: Sequence[str]) -> dict[str, Check]:
    """What the network's checks found, by name, with an invite of these addresses."""
    organiser = Identity.generate()
    addrs = tuple(f"{address}/p2p/{organiser.peer_id}" for address in addresses)
    invite = parse(issue(organiser, run="planted", spec_hash=b"h" * 32, addrs=addrs), time.time())
    found: dict[str, Check] = {}
    await asyncio.wait_for(examine_network(invite, LOOPBACK, lambda check: found.update({check.name: check})), HANG_S)
    return found


@pytest.mark.outside
async def test_a_bootstrap_address_where_nobody_is(closed_port: int) -> None:
    """Its port was ours, and is closed. What it has to do with the network beyond is not claimed to be well."""
    found = await examined([f"/ip4/127.0.0.1/tcp/{closed_port}"])
    assert found["daemon"].status is Status.PASS
    assert_fails(found["bootstrap"], Unreachable, "Connection refused", "ask the organiser")
    assert str(closed_port) in found["bootstrap"].found
    assert {found[name].status for name in ("clock", "line", "reach")} == {Status.UNKNOWN}


@pytest.mark.outside
async def test_a_daemon_that_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its program is there, and is not one."""
    from hivemind.p2p import p2p_daemon

    broken = tmp_path / "p2pd"
    broken.write_bytes(b"\x7fELF of another machine")
    broken.chmod(0o700)
    monkeypatch.setattr(p2p_daemon, "P2PD_FILENAME", str(broken))
    found = await examined(["/ip4/127.0.0.1/tcp/1"])
    assert_fails(found["daemon"], Unreachable, "(p2pd) does not start", "reinstall hivemind")
    assert list(found) == ["daemon"]


# 4
def test_an_invite_that_expired() -> None:
    organiser = Identity.generate()
    address = f"/ip4/127.0.0.1/tcp/4001/p2p/{organiser.peer_id}"
    text = issue(organiser, run="old", spec_hash=b"h" * 32, addrs=(address,), expires=1000.0)
    check, invite = check_invite(text, 1000.0 + 2 * 3600)
    assert invite is None
    assert_fails(check, BadInvite, "expired 2.0 hours ago", "ask the organiser for a new one")
    assert check_invite(text, 900.0)[0].status is Status.WARN
    assert check_invite(text, 1000.0 - 48 * 3600)[0].status is Status.PASS


def test_an_invite_that_is_over_is_no_matter_to_who_has_taken_part(tmp_path: Path) -> None:
    """`join` takes it, too."""
    organiser = Identity.generate()
    address = f"/ip4/127.0.0.1/tcp/4001/p2p/{organiser.peer_id}"
    text = issue(organiser, run="old", spec_hash=b"h" * 32, addrs=(address,), expires=1000.0)
    assert check_invite(text, 9000.0, tmp_path)[0].status is Status.FAIL
    (tmp_path / "genesis").touch()
    check, invite = check_invite(text, 9000.0, tmp_path)
    assert (check.status, invite is not None) == (Status.PASS, True)
    assert "no matter to a peer that has taken part" in check.found


# 5
async def test_a_device_that_executes_no_kernel() -> None:
    """As torch says it of a GPU for which it was not built."""

    async def start(*words: str, timeout_s: float = 0.0) -> ChildResult:
        said = "CUDA error: no kernel image is available for execution on the device"
        return ChildResult(exit_code=1, out="", err=f"a warning\nhomefires: {said}\n")

    check, devices = await check_devices(("cuda",), start)
    assert devices == ()
    assert_fails(check, BadInput, "no kernel image is available", "--devices cpu")


async def test_a_device_that_others_fill() -> None:
    """It works: a peer that joins waits for it."""

    async def start(*words: str, timeout_s: float = 0.0) -> ChildResult:
        return ChildResult(exit_code=12, out="", err="homefires: cuda has no room for any program more\n")

    check, devices = await check_devices(("cuda",), start)
    assert devices == ()
    assert_fails(check, MemoryFull, "device cuda is full: cuda has no room", "waits until there is room")


@pytest.mark.outside
async def test_a_device_that_is_not_there_is_found_by_the_real_probe() -> None:
    check, devices = await check_devices(("cpu", "cuda:99"))
    assert devices == ()
    assert_fails(check, BadInput, "cuda:99", "--devices cpu")


# 6
def test_a_limit_of_memory_that_no_peer_can_keep(needs: RunNeeds) -> None:
    """It would stand paused from its first second on, whatever is free, and what is advised would not."""
    check = check_memory(needs, 256 * GIB, on_cpu=True, memory_gb=0.5)
    assert_fails(check, BadInput, "memory_gb is 0.5", "allow it ")
    advised_gb = float(check.fix.rpartition("=")[2])
    assert advised_gb * 1e9 > needs.main + needs.device
    assert check_memory(needs, 256 * GIB, on_cpu=True, memory_gb=advised_gb).status is Status.PASS


def test_too_little_memory(needs: RunNeeds) -> None:
    """On a CPU the model is in main memory too; a small GPU is found as well."""
    assert_fails(check_memory(needs, GIB, on_cpu=True), BadInput, "1.1 GB of memory free", "smaller model")
    assert_fails(check_device_memory(needs, GIB // 4, "a GPU"), BadInput, "268.4 MB of a GPU free", "--devices")
    assert check_memory(needs, 256 * GIB, on_cpu=True).status is Status.PASS
    assert "offload" not in check_device_memory(needs, GIB // 4, "a GPU").fix
    ways = [
        WayToTrain(setting="offload=yes", words="layers from main memory", tokens_per_s=1234.4),
        WayToTrain(setting="stages=2", words="a cluster", tokens_per_s=600.0),
    ]
    fix = check_device_memory(needs, GIB // 4, "a GPU", ways).fix
    assert fix.startswith("--set offload=yes for layers from main memory: about 1,234 tokens/s (a forecast); or")
    assert "; or --set stages=2 for a cluster: about 600 tokens/s (a forecast); or close what else" in fix
    assert check_device_memory(needs, 256 * GIB, "a GPU", ways).status is Status.PASS
    alone = check_device_memory(needs, GIB // 4, "a GPU", ways, total_bytes=GIB // 4)
    assert alone.status is Status.WARN, "its peer takes layers from main memory by itself"
    assert alone.fix.startswith("nothing must be done: what has no room is trained with layers from main memory")
    filled = check_device_memory(needs, GIB // 4, "a GPU", ways, total_bytes=256 * GIB)
    assert filled.status is Status.FAIL, "it is others who fill it"
    assert check_memory(needs, 0, on_cpu=True).status is Status.UNKNOWN


def test_a_container_that_allows_too_little_is_named(needs: RunNeeds) -> None:
    """Closing programs would not help; with nothing left it is known how much there is."""
    for left in (GIB, 0):
        check = check_memory(needs, left, on_cpu=True, limit="its container or service may take 1.5 GB in all")
        assert_fails(check, BadInput, "(its container or service may take 1.5 GB in all)", "allow it more")


# 7
@pytest.mark.outside
def test_a_low_limit_of_open_files() -> None:
    """Set for real, in a child: it cannot be raised again."""
    program = "from peer.tools.doctor.host import check_descriptors; print(check_descriptors().to_json())"
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=HANG_S, check=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)),
    )  # fmt: skip
    told = json.loads(run.stdout)
    assert told["status"] == "FAIL"
    assert told["exit_code"] == BadInput.exit_code
    assert "64 open files" in told["found"]
    assert "ulimit -n 1024 (its hard limit is 64)" in told["fix"]


# 8
@pytest.mark.outside
def test_an_identity_that_is_in_use(tmp_path: Path) -> None:
    """By a process that holds the lock of the folder, as a peer does."""
    with lock_directory(tmp_path):
        assert_fails(
            check_identity(tmp_path), DirectoryBusy, f"in use by process {os.getpid()}", f"end process {os.getpid()}"
        )
        with ControlServer(tmp_path, Commands(Reporter(lambda event: None), "run", "me", "al", lambda: None)):
            mine = check_identity(tmp_path)
    assert (mine.status, mine.found) == (
        Status.PASS, f"the key in {tmp_path} is in use by its own peer, process {os.getpid()}"
    )  # fmt: skip
    assert check_identity(tmp_path).status is Status.PASS
    assert check_identity(tmp_path / "new").status is Status.PASS


# 9
def test_a_disk_without_room(needs: RunNeeds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As statvfs tells it; of a folder that is still to be made, the one above it counts."""

    class Full:
        f_bavail, f_frsize = 1000, 4096

    monkeypatch.setattr(os, "statvfs", lambda folder: Full() if folder == tmp_path else pytest.fail(str(folder)))
    folder = tmp_path / "new" / "run"
    check = check_disk(needs, folder, free_disk_bytes(folder))
    assert_fails(check, DiskFull, "4.1 MB free", "--dir")
    assert check_disk(needs, folder, needs.disk - 1).status is Status.WARN
    assert check_disk(needs, folder, needs.disk).status is Status.PASS
    assert check_disk(needs, folder, GIB, needs.disk - GIB).status is Status.PASS


# 10
def test_a_slow_line() -> None:
    slow = [Bandwidth(upload_mbps=0.2, download_mbps=30.0), Bandwidth(upload_mbps=None, download_mbps=8.0)]
    assert_fails(check_line(slow), Unreachable, "0.2 Mbit/s up, 30 Mbit/s down", "stop what else uses the line")
    assert check_line([Bandwidth(upload_mbps=2.0, download_mbps=30.0)]).status is Status.WARN
    assert check_line([Bandwidth(upload_mbps=20.0, download_mbps=100.0)]).status is Status.PASS
    assert check_line([Bandwidth(upload_mbps=None, download_mbps=None)]).status is Status.UNKNOWN


# and one more
async def test_libraries_that_do_not_go_together() -> None:
    async def start(*words: str, timeout_s: float = 0.0) -> ChildResult:
        said = "VersionError: Detected incompatible Protobuf Gencode/Runtime versions"
        return ChildResult(exit_code=1, out="", err=f"Traceback\ngoogle.protobuf.runtime_version.{said}")

    assert_fails(await check_libraries(start), HomefiresError, "incompatible Protobuf", "fresh environment")


def test_a_machine_without_shared_memory() -> None:
    """As a container that was given none."""

    def make() -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    assert_fails(check_shared_memory(make), BadInput, "Function not implemented", "tmpfs /dev/shm")
    assert check_shared_memory().status is Status.PASS


def test_an_extra_that_the_run_needs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anybody at huggingface.co is asked."""
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert_fails(
        check_hub(repositories_of(load("gpt2-small"))), BadInput, "datasets is not installed", "homefires[hub]"
    )


@pytest.mark.outside
def test_a_name_that_the_hub_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer would end, or wait, once it looks for its data."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    asked = repositories_of(load("gpt2-small"))
    assert [each.key for each in asked] == ["data.path", "model.tokenizer"]
    names = {f"{each.kind}s/{each.name}": {"a.txt": b"a"} for each in asked}
    with serving(HubServer(dict(names))) as hub:
        assert check_hub(asked, hub.address).status is Status.PASS
        del hub.repositories[f"models/{asked[1].name}"]
        assert_fails(check_hub(asked, hub.address), BadSpec, "no public repository", "tell the organiser")
        hub.away = True
        assert_fails(check_hub(asked, hub.address), Unreachable, "does not answer", "check the connection")


def test_a_folder_of_another_run(tmp_path: Path) -> None:
    """`join` refuses it; one that keeps an invite to the same run is as it should be."""
    organiser = Identity.generate()
    address = f"/ip4/127.0.0.1/tcp/1/p2p/{organiser.peer_id}"
    mine, other = (
        parse(issue(organiser, run="micro", spec_hash=bytes([number]) * 32, addrs=(address,)), time.time())
        for number in range(2)
    )
    assert check_run_of_folder(mine, tmp_path / "new").status is Status.PASS
    save_in(mine, tmp_path)
    assert check_run_of_folder(mine, tmp_path).status is Status.PASS
    assert_fails(check_run_of_folder(other, tmp_path), RunMismatch, "belongs to another run", "--dir")
