"""The whole examination of a machine, check by check. Read `examine` first.

Checks that load libraries run in child processes beside those that use the network, so that the whole takes as long as
the slower of the two.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dht.errors import BadInput, BadSpec, HomefiresError, Unfit
from peer.node.host.disk import folder_bytes, free_disk_bytes
from peer.node.host.gpu import Gpus
from peer.node.host.memory_room import find_memory_room
from peer.node.host.power import cpu_temperature_c, read_power
from peer.node.host.processes import ProcessTree
from peer.planning.plan.home_cost import UPLOAD_BPS, ways_without_room
from peer.planning.plan.model_shape import shape_of
from peer.planning.plan.run_needs import RunNeeds, needs_of
from peer.schema import spec as specs
from peer.schema.settings import PeerSettings
from peer.schema.spec import RunSpec
from peer.tools.doctor.check import Check, Status, failed, one_line, unknown
from peer.tools.doctor.credentials import (
    KnownRun,
    check_folder,
    check_identity,
    check_invite,
    check_run_of_folder,
    peer_at_work,
)
from peer.tools.doctor.data_check import check_data
from peer.tools.doctor.host import (
    check_descriptors,
    check_device_memory,
    check_disk,
    check_files,
    check_heat,
    check_memory,
    check_power,
    check_shared_memory,
    check_start,
)
from peer.tools.doctor.hub_names import check_hub, repositories_of
from peer.tools.doctor.network import NetworkFindings, best, examine_network
from peer.tools.doctor.software import Device, check_devices, check_fit, check_libraries, check_training
from peer.tools.doctor.verdict import Measured, Verdict, judge
from peer.training.data.inspection import inspect
from peer.training.data.open_source import folders

Tell = Callable[[Check], None]


@dataclass(frozen=True, kw_only=True)
class Request:
    invite: str = ""
    directory: Path | None = None
    """Where the peer lives, or would live; None: it is not known, and only the disk of the home folder is looked at."""
    settings: PeerSettings


async def examine(asked: Request, tell: Tell) -> Verdict:
    """Tell each check as it is done, and say at last what taking part would be like."""
    at_work = None if asked.directory is None else peer_at_work(asked.directory)
    run, refused = _papers(asked, tell)
    tell(check_descriptors())
    tell(check_shared_memory())
    tell(await asyncio.to_thread(lambda: check_power(read_power())))
    devices, met, _ = await asyncio.gather(
        _devices(asked, tell),
        examine_network(run, asked.settings.listen, tell, beside_peer=at_work is not None),
        _libraries(tell),
    )
    tell(check_heat(await asyncio.to_thread(_gpu_figures, devices), cpu_temperature_c()))
    spec, why = _spec(run, asked.directory, met)
    if spec is None:
        if why:
            fix = "tell the organiser, or upgrade homefires if the run is newer than it"
            tell(failed("spec", why, fix, BadSpec))
        tell(unknown("needs", "what a run needs is known once its invite is given and its spec was fetched"))
        return Verdict(sentence=f"unknown: {_unread(run, refused, why)}")
    files = [check_files(called, folder) for called, folder in folders(spec, asked.settings.data_path).items()]
    for check in files:
        tell(check)
    if files and all(check.status is Status.PASS for check in files):
        await asyncio.to_thread(_data, spec, asked, tell)
    if spec.uses_hub:
        tell(await asyncio.to_thread(check_hub, repositories_of(spec)))
    if spec.start is not None:
        tell(await asyncio.to_thread(check_start, spec.start.digest))
    needs = _needs(spec, asked, tell)
    if needs is not None:
        _rooms(spec, needs, asked, devices, at_work, tell)
    step_s = await _step_s(spec, asked, devices, at_work, tell)
    return judge(spec, _measured(asked, met, step_s))


def _papers(asked: Request, tell: Tell) -> tuple[KnownRun | None, str]:
    """The run that is asked about: that of the invite, else that of the folder; and what to do about an invite that
    is refused."""
    run: KnownRun | None = None
    refused = ""
    if asked.invite:
        check, invite = check_invite(asked.invite, time.time(), asked.directory)
        tell(check)
        refused = "" if invite is not None else check.fix
        if invite is not None and asked.directory is not None:
            tell(check_run_of_folder(invite, asked.directory))
        run = invite
    elif asked.directory is not None:
        check, run = check_folder(asked.directory)
        tell(check)
    if asked.directory is not None:
        tell(check_identity(asked.directory))
    return run, refused


def _unread(run: KnownRun | None, refused: str, why: str) -> str:
    """Why nothing is known of what the run needs, and what to do."""
    if refused:
        return f"the invite is refused; {refused}"
    if why:
        return "what the run is cannot be read here"
    if run is not None:
        return "none of its addresses told what the run is; ask the organiser whether the node runs"
    return "name an invite"


async def _devices(asked: Request, tell: Tell) -> tuple[Device, ...]:
    check, devices = await check_devices(asked.settings.devices)
    tell(check)
    return devices


async def _libraries(tell: Tell) -> None:
    tell(await check_libraries())


def _gpu_figures(devices: Sequence[Device]) -> dict[str, object]:
    return Gpus(lambda: {each.device: each.uuid for each in devices if each.uuid}).figures()


def _spec(run: KnownRun | None, directory: Path | None, met: NetworkFindings | None) -> tuple[RunSpec | None, str]:
    """As a node of the run gave it, or as it lies in the folder; None if neither is that of its hash, and why, where
    one is refused."""
    why = ""
    if run is None:
        return None, why
    texts = [met.spec.decode(errors="replace")] if met is not None and met.spec else []
    if directory is not None and (directory / "spec.toml").exists():
        texts.append((directory / "spec.toml").read_text(errors="replace"))
    for text in texts:
        try:
            spec = specs.parse(text, "the run's spec")
        except BadSpec as error:
            why = one_line(error)
            continue
        if spec.digest() == run.spec_hash:
            return spec, ""
    return None, why


def _data(spec: RunSpec, asked: Request, tell: Tell) -> None:
    """What lies in the files that the owner has named."""
    try:
        for found in inspect(spec, asked.settings.data_path):
            tell(check_data(found))
    except BadInput as error:
        tell(failed("data", one_line(error), "name a folder of text that is: --set data_path=FOLDER", BadInput))


def _needs(spec: RunSpec, asked: Request, tell: Tell) -> RunNeeds | None:
    try:
        return needs_of(spec, asked.settings.chain_bytes)
    except HomefiresError as error:
        fix = "upgrade homefires, or tell the organiser that this model cannot be built here"
        tell(failed("needs", one_line(error), fix, type(error)))
        return None


def _rooms(
    spec: RunSpec, needs: RunNeeds, asked: Request, devices: Sequence[Device], at_work: int | None, tell: Tell
) -> None:  # fmt: skip
    in_main = asked.settings.offload or not any(each.uuid for each in devices)
    mine = 0 if at_work is None else ProcessTree(at_work).figures(time.monotonic())["memory_bytes"] or 0
    room = find_memory_room()
    allowed_gb = asked.settings.memory_gb
    tell(
        check_memory(
            needs, room.available_bytes, on_cpu=in_main, held_bytes=mine, limit=room.limit, memory_gb=allowed_gb
        )
    )
    if (smallest := min((each.free_bytes for each in devices), default=0)) and at_work is None and not in_main:
        shares = 1 if asked.settings.sharding == "replicated" else len(devices)
        name = devices[0].name if shares == 1 else f"{shares} GPUs together"
        upload_bps = asked.settings.upload_mbps * 1e6 or UPLOAD_BPS
        ways = ways_without_room(shape_of(spec), spec, smallest, room.available_bytes - needs.main, upload_bps)
        total_bytes = devices[0].total_bytes if len(devices) == 1 else 0
        tell(check_device_memory(needs, shares * smallest, name, ways, total_bytes))
    folder, held_bytes = asked.directory or Path.home(), 0
    if asked.directory is not None:
        held_bytes = folder_bytes(asked.directory) or 0
    tell(check_disk(needs, folder, free_disk_bytes(folder), held_bytes))


async def _step_s(
    spec: RunSpec, asked: Request, devices: Sequence[Device], at_work: int | None, tell: Tell
) -> float | None:  # fmt: skip
    if at_work is not None:
        assert asked.directory is not None
        check, step_s = check_training(spec, asked.directory)
        tell(check)
        return step_s
    if not devices:
        return None
    if len(devices) > 1 or asked.settings.offload:
        what = "several devices train together" if len(devices) > 1 else "layers come from main memory"
        tell(unknown("fit", f"no dry run where {what}: its peer tells how fast it is; see: homefires status"))
        return None
    check, fit = await check_fit(spec, asked.settings.devices[0])
    tell(check)
    return fit.step_s if fit else None


def _measured(asked: Request, met: NetworkFindings | None, step_s: float | None) -> Measured:
    line = best(met.speeds if met else [])
    trips = list(met.answered.values()) if met else []
    return Measured(
        step_s=step_s,
        upload_mbps=_capped(line.upload_mbps, asked.settings.upload_mbps),
        download_mbps=_capped(line.download_mbps, asked.settings.download_mbps),
        round_trip_s=max(trips, default=None), peers=met.peers if met else 0,
    )  # fmt: skip


def _capped(measured: float | None, cap: float) -> float | None:
    return measured if measured is None or not cap else min(measured, cap)


def run(asked: Request) -> int:
    """Print each check as one JSON object, the verdict last; 0, or the exit code of Unfit where one failed."""
    import uvloop

    told: list[Check] = []

    def tell(check: Check) -> None:
        told.append(check)
        print(check.to_json(), flush=True)

    verdict = uvloop.run(examine(asked, tell))
    print(verdict.to_json(), flush=True)
    return Unfit.exit_code if any(check.status is Status.FAIL for check in told) else 0
