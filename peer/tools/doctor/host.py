"""Checks of the machine against what a run needs of it: memory, disk, file descriptors, sleep, battery, heat.

Each check is given the readings.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import resource
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from dht.errors import BadInput, DiskFull
from peer.node.host.power import GNOME_POWER, SLEEP_TYPE, Power
from peer.node.store import start_blob
from peer.planning.plan.home_cost import FROM_MAIN_MEMORY, WayToTrain
from peer.planning.plan.run_needs import PROCESS_BYTES, RunNeeds, memory_words
from peer.schema.byte_text import format_bytes
from peer.tools.doctor.check import Check, failed, one_line, passed, unknown, warned

# ---- memory, disk, descriptors ----

LEAST_DESCRIPTORS = 256
"""Streams, sockets of the daemon, parts on disk: below that a peer with a few others fails."""
DESCRIPTORS = 1024
"""What systems give a program; enough for a group of 64."""
TIGHT = 1.25
"""Less room than so many times what is needed is worth a word."""
HOT_C = 85.0
"""A machine that is so hot before it does anything will throttle."""


def check_memory(
    needs: RunNeeds, available_bytes: int, *, on_cpu: bool, held_bytes: int = 0, limit: str = "",
    memory_gb: float = 0.0,
) -> Check:  # fmt: skip
    """Main memory that can be had, which on a CPU holds the model too; a peer at work has `held_bytes` already. `limit`
    is what allows less than the machine has, in words. `memory_gb` is what its owner allows (0: all): a peer to which
    that leaves no room for a model would stand paused for good."""
    wanted = needs.main + (needs.device if on_cpu else 0)
    if not available_bytes and not limit:
        return unknown("memory", "the system does not tell how much memory is free", needed_bytes=wanted)
    free = f"{format_bytes(available_bytes)} of memory free{f' ({limit})' if limit else ''}"
    found = f"{free}, the run needs about {format_bytes(wanted)}"
    found += f" ({memory_words(needs)})" if on_cpu else ""
    found += f", of which its peer has {format_bytes(held_bytes)} already" if held_bytes else ""
    figures = {"available_bytes": available_bytes, "needed_bytes": wanted, "held_bytes": held_bytes}
    if 0 < memory_gb * 1e9 <= PROCESS_BYTES:
        alone = f"memory_gb is {memory_gb:g}, and a peer takes about {format_bytes(PROCESS_BYTES)} with the least model"
        fix = f"allow it {format_bytes(wanted)} or more, as in memory_gb={_gb_above(wanted):g}"
        return failed("memory", alone, fix, BadInput, **figures)
    least = needs.main + (needs.least_device if on_cpu else 0)
    available_bytes += held_bytes
    if available_bytes < least:
        more = "allow it more" if limit else "close other programs, add memory"
        fix = f"{more}, or join a run with a smaller model"
        return failed("memory", found, fix, BadInput, **figures)
    if available_bytes < TIGHT * wanted:
        fix = "allow it more before you join" if limit else "close other programs before you join"
        return warned("memory", found, fix, **figures)
    return passed("memory", found, **figures)


def _gb_above(bytes: int) -> float:
    """A limit that is not met at once: a quarter more, in tenths of a GB."""
    return math.ceil(TIGHT * bytes / 1e8) / 10


def check_device_memory(
    needs: RunNeeds, free_bytes: int, name: str, ways: Sequence[WayToTrain] = (), total_bytes: int = 0
) -> Check:  # fmt: skip
    """Memory of a GPU that nobody uses just now; `ways`: what its owner may do without enough of it;
    `total_bytes`: all that a single GPU has, 0 for several."""
    found = f"{format_bytes(free_bytes)} of {name} free, the run needs about {format_bytes(needs.device)}"
    figures = {"free_bytes": free_bytes, "needed_bytes": needs.device, "least_bytes": needs.least_device}
    aside = next((way for way in ways if way.setting == FROM_MAIN_MEMORY), None)
    if aside is not None and 0 < total_bytes < needs.least_device:
        fix = f"nothing must be done: what has no room is trained with {aside.in_words()} (a forecast)"
        others = [f"--set {way.setting} for {way.in_words()} (a forecast)" for way in ways if way is not aside]
        return warned("device memory", found, "; or ".join([fix, *others]), **figures)
    if free_bytes < needs.least_device:
        fix = "close what else uses the GPU, choose another one with --devices, or join a run with a smaller model"
        forecasts = [f"--set {way.setting} for {way.in_words()} (a forecast)" for way in ways]
        fix = "; or ".join([*forecasts, fix])
        return failed("device memory", found, fix, BadInput, **figures)
    if free_bytes < TIGHT * needs.device:
        fix = "nothing must be done: the micro-batch is made smaller until it fits, which is a little slower"
        return warned("device memory", found, fix, **figures)
    return passed("device memory", found, **figures)


def check_disk(needs: RunNeeds, folder: Path, free_bytes: int, held_bytes: int = 0) -> Check:
    """Room where the run's folder lies; `held_bytes` of what the run takes are there already."""
    found = f"{format_bytes(free_bytes)} free in {folder}, the run takes up to {format_bytes(needs.disk)}"
    found += f", of which {format_bytes(held_bytes)} are there already" if held_bytes else ""
    figures = {"free_bytes": free_bytes, "needed_bytes": needs.disk, "held_bytes": held_bytes}
    missing = needs.least_disk - held_bytes - free_bytes
    if missing > 0:
        fix = f"free {format_bytes(missing)}, or name a folder on a larger disk with --dir"
        return failed("disk", found, fix, DiskFull, **figures)
    if free_bytes + held_bytes < needs.disk:
        fix = "make room, or have the peer keep fewer updates for others: settings.chain_mb"
        return warned("disk", found, fix, **figures)
    return passed("disk", found, **figures)


def check_files(name: str, data_path: str) -> Check:
    """Of a run on files of its volunteers, which it calls `name`: whether there are some here that their owner has
    named."""
    called = one_line(name)
    if not data_path:
        found = f"this run trains on files of yours, which its spec calls {called}, and you have named none"
        return failed("files", found, "name a folder of text: --set data_path=FOLDER", BadInput)
    if not os.path.exists(os.path.expanduser(data_path)):
        found = f"{data_path}, which you have named for {called}, is not on this machine"
        return failed("files", found, "name a folder of text that is: --set data_path=FOLDER", BadInput)
    return passed("files", f"it reads what is text in {data_path}")


def check_start(digest: str) -> Check:
    """Of a run that starts from a model: whether what an earlier peer of this machine left of it is whole."""
    if not start_blob.is_here(digest):
        return passed("start model", "it is loaded when the peer joins")
    folder = start_blob.folder_of(digest)
    try:
        start_blob.require_intact(digest)
    except BadInput as error:
        return failed("start model", one_line(error), f"remove it: rm -r {folder}", BadInput)
    return passed("start model", f"it is in {folder}, whole")


def check_descriptors() -> Check:
    """How many files and sockets a process of ours may have open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return passed("file descriptors", "no limit of open files")
    found = f"{soft} open files allowed, {DESCRIPTORS} are wanted"
    raised = "" if hard == resource.RLIM_INFINITY or hard >= DESCRIPTORS else f" (its hard limit is {hard})"
    fix = f"ulimit -n {DESCRIPTORS}{raised}; in a systemd unit: LimitNOFILE={DESCRIPTORS}"
    if soft < LEAST_DESCRIPTORS:
        return failed("file descriptors", found, fix, BadInput, soft=soft, hard=hard)
    if soft < DESCRIPTORS:
        return warned("file descriptors", found, fix, soft=soft, hard=hard)
    return passed("file descriptors", found, soft=soft, hard=hard)


def check_shared_memory(make: Callable[[], object] = multiprocessing.Lock) -> Check:
    """Whether a lock can be made in it, as hivemind makes four when it is loaded. All else that processes of ours share
    are files of the peer's folder and pipes, so how large it is does not matter."""
    try:
        make()
    except OSError as error:
        found = f"no lock can be made in shared memory (/dev/shm): {error.strerror}"
        fix = "mount it: sudo mount -t tmpfs tmpfs /dev/shm; for a container: --tmpfs /dev/shm"
        return failed("shared memory", found, fix, BadInput)
    return passed("shared memory", "locks can be made in it, and nothing else of ours lies there")


# ---- sleep and battery ----


def check_power(power: Power) -> Check:
    """A machine that sleeps leaves its rounds to the others."""
    if power.on_battery:
        return warned("sleep", "this machine runs on battery", "plug it in: by default a peer pauses on battery")
    if power.sleeps_after_s is None:
        battery = "plugged in; " if power.has_battery else ""
        return unknown("sleep", f"{battery}nothing tells whether this machine goes to sleep when idle")
    if power.sleeps_after_s == 0:
        return passed("sleep", "this machine does not go to sleep by itself", sleeps_after_s=0)
    found = f"this machine goes to sleep after {power.sleeps_after_s / 60:.0f} minutes without its user"
    fix = f"gsettings set {GNOME_POWER} {SLEEP_TYPE} nothing"
    return warned("sleep", found, fix, sleeps_after_s=power.sleeps_after_s)


# ---- heat ----


def check_heat(gpu: Mapping[str, object], cpu_c: float | None) -> Check:
    """Temperature and power before anything is trained. `gpu` is what `peer.node.host.gpu.Gpu` tells, empty without
    one."""
    figures = {"temperature_c": gpu.get("temperature_c"), "power_w": gpu.get("power_w"), "cpu_c": cpu_c}
    known = {key: float(value) for key, value in figures.items() if isinstance(value, int | float)}
    degrees = [known[key] for key in ("temperature_c", "cpu_c") if key in known]
    if not degrees:
        return unknown("heat", "neither processor nor GPU tells its temperature")
    words = {"temperature_c": "GPU {:.0f} degrees", "power_w": "{:.0f} W", "cpu_c": "processor {:.0f} degrees"}
    found = ", ".join(words[key].format(value) for key, value in known.items())
    if max(degrees) >= HOT_C:
        fix = "let it cool, clean the fans, or see what else keeps it busy: it will throttle under load"
        return warned("heat", f"{found} before any training", fix, **known)
    return passed("heat", f"{found} before any training", **known)
