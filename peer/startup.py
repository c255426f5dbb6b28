"""What a peer does once between learning its run and training: check the machine, fit the run to it,
build the model.
"""

from __future__ import annotations

import shlex
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from dht.atomic_files import write_atomic
from dht.errors import BadInput, DiskFull, HomefiresError, MemoryFull, Unreachable
from dht.process import loading
from peer.network.link.handle import LeaveRequested
from peer.node.lifecycle.state import RETRY_S
from peer.node.limits.policy import until_of, why_of
from peer.node.store.elsewhere import note
from peer.node.store.held_layers import note_held
from peer.node.store.start_blob import folder_of
from peer.node.telemetry.reporter import Reporter
from peer.parallel.ranks.roster import DeviceRoster
from peer.schema.events import AlertRaised, PeerStarted
from peer.schema.settings import PeerSettings
from peer.schema.spec import RunSpec
from peer.tools.doctor.device_room import other_ways, require_room, with_main_memory

if TYPE_CHECKING:
    import torch

    from peer.parallel.cluster.home import ClusterHome
    from peer.parallel.ranks.sharded_backend import RankOptions
    from peer.training.checkpoint.checkpoint import Checkpoint, Checkpoints
    from peer.training.train.autotune_result import Tuned
    from peer.training.train.trainer import LocalTrainer


def load_libraries() -> None:
    """Seconds, in which the link loads its own, starts the daemon and dials.

    What most models are made of is among it: transformers loads that as late as it can, while nobody waits any more.
    """
    with loading():
        import transformers.models.llama.modeling_llama  # noqa: F401

        import peer.training.model.build
        import peer.training.train.trainer  # noqa: F401


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A peer that is ready for a life."""

    trainer: LocalTrainer
    devices: tuple[str, ...]
    """Of its ranks, as torch names them."""
    sharding: str
    """How they share the model, in words; empty for one device."""
    checkpoints: Checkpoints
    anchor: bytes
    """Where its newest checkpoint was taken; empty without one."""


def prepare(
    spec: RunSpec, settings: PeerSettings, me: str, directory: Path, session: Reporter,
    wait: Callable[[float], object] | None = None, clock: Callable[[], float] = time.monotonic,
    roster: DeviceRoster | None = None, cluster: ClusterHome | None = None,
) -> Prepared:  # fmt: skip
    """Fit, build, restore; then the device is left to others until a step is to be made, which may take hours.

    Where others fill the device, or the data cannot be reached, it says so and tries again every RETRY_S, but not while
    its owner pauses this peer. `wait` is given seconds, and may return sooner. `roster` knows which devices are left
    out. Raises BadInput, BadSpec, DeviceLost, DiskFull, RankLost, and LeaveRequested.
    """
    from peer.training.data.open_source import require_files

    require_disk(spec, directory)
    if cluster is None or cluster.is_lead:
        require_files(spec, settings.data_path)  # before minutes are spent on the device
        require_sound(spec, settings.data_path, directory, session)
    why = ""
    while True:
        chosen = roster or DeviceRoster(clock)
        attempt = _attempt(spec, settings, me, directory, session, chosen, cluster, again=bool(why))
        if isinstance(attempt, Prepared):
            return attempt
        why = why or attempt  # its figures change all the time, and every change would be told
        _wait_for_room(f"{why}; tried every {RETRY_S:.0f} s", session, wait or _wait_for(session), clock)


def require_disk(spec: RunSpec, directory: Path) -> None:
    """Raises DiskFull where the run has no room for what it writes at least, which is known before anything is."""
    from peer.node.host.disk import folder_bytes, free_disk_bytes
    from peer.planning.plan.run_needs import needs_of
    from peer.schema.byte_text import format_bytes

    least, free, held = needs_of(spec, 0).least_disk, free_disk_bytes(directory), folder_bytes(directory) or 0
    if free + held < least:
        raise DiskFull(
            f"{directory} has {format_bytes(free)} free, and the run takes {format_bytes(least)} at least; free "
            f"{format_bytes(least - held - free)}, or name a folder on a larger disk with --dir"
        )


def require_sound(spec: RunSpec, data_path: str, directory: Path, session: Reporter) -> None:
    """Look through the files of a run's owner, once while they stay as they are. Raises BadInput with all faults."""
    from peer.training.data.inspection import fingerprint_of, inspect

    if not spec.data.reads_files:
        return
    note, now = directory / INSPECTED, fingerprint_of(spec, data_path)
    if note.exists() and note.read_bytes() == now:
        return
    session.say("JOINING", "looking through the data")
    for found in inspect(spec, data_path):
        found.require_sound()
    write_atomic(note, now)


INSPECTED = "inspected"
"""In the folder of a peer: as which its files were found sound."""


def _attempt(
    spec: RunSpec, settings: PeerSettings, me: str, directory: Path, session: Reporter, roster: DeviceRoster,
    cluster: ClusterHome | None, *, again: bool,
) -> Prepared | str:  # fmt: skip
    """In words why there is no room, or no data: then nothing of this attempt is on the device any more."""
    from peer.node.host.device import empty_device_caches

    try:
        return _prepared(spec, settings, me, directory, session, roster, cluster, again=again)
    except (MemoryFull, Unreachable) as error:
        why = str(error)
    # Outside of `except`: what the error's traceback holds is gone, and its memory with it.
    empty_device_caches()
    return why


def _prepared(
    spec: RunSpec, settings: PeerSettings, me: str, directory: Path, session: Reporter, roster: DeviceRoster,
    cluster: ClusterHome | None, *, again: bool,
) -> Prepared:  # fmt: skip
    from peer.node.host.device import choose_devices, raising_device_lost, raising_memory_full
    from peer.training.data.tokenizer import require_tokenizer

    if cluster is None or cluster.is_lead:
        if spec.start is not None:
            note(directory, folder_of(spec.start.digest))
        require_tokenizer(spec)  # a name that nobody has is told before the model is built
    devices = roster.present(lambda: devices_for(spec, settings, choose_devices(settings.devices)))
    if not roster.is_whole:
        settings = of_fewer(settings, devices)
    with ExitStack() as begun, raising_device_lost(devices[0]), raising_memory_full(devices[0]):
        fit = ranks = None
        if cluster is None:
            if len(devices) == 1:
                settings = with_main_memory(spec, settings, devices[0], session, again=again)
            if not settings.offload:
                for device in devices:
                    require_room(spec, device, again=again, shares=_shares(settings, len(devices)))
            fit = fit_for(spec, settings, directory, session, devices)
            ranks = ranks_for(spec, settings, devices, fit)
        if cluster is not None:
            cluster.take_over(spec, lambda: session.stopping)
        session.say("JOINING", "building the model and reading the data")
        trainer = make_trainer(spec, settings, me, directory, fit, session, ranks, cluster)
        begun.callback(trainer.close)
        _say_where(trainer, devices, ranks, session)
        checkpoints, anchor = restore(trainer, directory, session)
        if cluster is not None:
            anchor = anchor or _at_snapshot(trainer, directory)
            note_held(directory, trainer.held, trainer.anchor.round)
        trainer.leave_device()
        begun.pop_all()
    return Prepared(
        trainer=trainer, devices=tuple(map(str, devices)), sharding=str(ranks.strategy) if ranks else "",
        checkpoints=checkpoints, anchor=anchor,
    )  # fmt: skip


def devices_for(
    spec: RunSpec, settings: PeerSettings, devices: Sequence[torch.device]
) -> Sequence[torch.device]:  # fmt: skip
    """Those on which this run is trained, of the owner's. Raises BadInput for what no adapter can be trained with."""
    if spec.adapter is None:
        return devices
    if settings.offload:
        raise BadInput("an adapter is trained with its model on the device; set offload=no")
    if len(devices) > 1 and settings.devices != ("auto",):
        raise BadInput(f"an adapter is trained on one device; set devices={settings.devices[0]}")
    return devices[:1]


def of_fewer(settings: PeerSettings, devices: Sequence[torch.device]) -> PeerSettings:
    """The same where only these devices are left: groups of them may not come out even any more."""
    sharding = "auto" if settings.sharding in ("hierarchical", "hybrid") else settings.sharding
    return replace(settings, devices=tuple(map(str, devices)), sharding=sharding)


def _shares(settings: PeerSettings, devices: int) -> int:
    """Among how many devices the model may be divided."""
    return 1 if settings.sharding == "replicated" else devices


def ranks_for(
    spec: RunSpec, settings: PeerSettings, devices: Sequence[torch.device], fit: Tuned | None
) -> RankOptions | None:
    """How the devices share the model; None for one that holds all of it, in this process. Raises BadInput."""
    if len(devices) == 1 and not (fit.offloads if fit else settings.offload):
        return None
    from peer.parallel.ranks.rank_choice import choose_ranks

    return choose_ranks(spec, settings, devices, fit)


def _say_where(
    trainer: LocalTrainer, devices: Sequence[torch.device], ranks: RankOptions | None, session: Reporter
) -> None:
    if ranks is None and devices[0].type == "cpu":
        return
    shared = f", {ranks.strategy}" if ranks is not None else ""
    text = f"model on {' and '.join(map(str, devices))}{shared}, {trainer.vector_slots}"
    if ranks is not None and ranks.strategy.offloads:
        session.emit(AlertRaised(level="info", code="OFFLOAD", text=text))
    else:
        session.emit(AlertRaised(level="info", code="FIT", text=text))


def _wait_for_room(why: str, session: Reporter, wait: Callable[[float], object], clock: Callable[[], float]) -> None:
    """Until it is time for another attempt, and said meanwhile. Raises LeaveRequested."""
    retry_at = clock() + RETRY_S
    while (holds := session.wishes.holds) or clock() < retry_at:
        if session.stopping:
            raise LeaveRequested
        said = why_of(holds) if holds else why
        if (session.state, session.why) != ("PAUSED", said):
            session.say("PAUSED", said, until_of(holds))
        wait(max(0.0, retry_at - clock()) or RETRY_S)


def _wait_for(session: Reporter) -> Callable[[float], object]:
    """Waits for so many seconds, or less if its owner or a limit says something meanwhile."""
    told = threading.Event()
    session.wishes.listen(told.set)

    def wait(seconds: float) -> None:
        told.wait(seconds)
        told.clear()

    return wait


def run_doctor(spec: RunSpec, directory: Path, settings: PeerSettings, session: Reporter) -> threading.Thread:
    """Have the doctor look at the machine beside the start, by a thread; what it finds amiss is an alert, once.

    It loads and starts nothing, so that the first step comes no later. What it does not look at (device, daemon,
    clocks, addresses) a peer that starts finds out by itself.
    """

    where = shlex.quote(str(directory))

    def look() -> None:
        from peer.tools.doctor.check import Status
        from peer.tools.doctor.verdict import quiet

        try:
            checks = quiet(spec, directory, settings)
        except (HomefiresError, OSError) as error:
            session.warn("DOCTOR", f"the machine could not be examined: {error}")
            return
        for check in checks:
            if check.status is Status.FAIL:
                session.warn("DOCTOR", f"{check.found}; {check.fix}; look closer with: homefires doctor --dir {where}")

    thread = threading.Thread(target=look, name="doctor", daemon=True)
    thread.start()
    return thread


def fit_for(
    spec: RunSpec, settings: PeerSettings, directory: Path, session: Reporter,
    devices: Sequence[torch.device] | None = None,
) -> Tuned | None:  # fmt: skip
    """How the run is trained on these devices (None: those that settings name); None on a processor, unless it may
    compile: there the spec's own micro-batch is taken.

    A dry run that fails is told and changes nothing: training finds its micro-batch by halving it. So it does where a
    dry run would use the device of a peer that is paused, or is paused meanwhile: then it is ended. Raises MemoryFull
    where others fill the device: what would be found then holds only until they end.
    """
    from peer.node.host.device import choose_devices, free_bytes, total_bytes

    devices = devices or choose_devices(settings.devices)
    from peer.parallel.autotune.cache import Unwanted, find_fit, recall, run_python
    from peer.parallel.autotune.compile_gain import may_repay
    from peer.parallel.autotune.trial import basis_of

    if devices[0].type == "cpu" and (len(devices) > 1 or not may_repay(spec, settings)):
        return None

    names = settings.devices if len(devices) == len(settings.devices) == 1 else tuple(map(str, devices))
    basis = basis_of(
        spec, names, devices, sharding=settings.sharding, offload=settings.offload, compile=settings.compile
    )
    if session.wishes.pausing:
        return recall(directory, basis)
    what = "micro-batch has" if len(devices) == 1 else "way to share the model, and which micro-batch, have"
    session.say("JOINING", f"trying out which {what} room and is fastest; this is done once per device")
    start = partial(run_python, unwanted=lambda: session.wishes.pausing)
    try:
        fit = find_fit(spec, directory, basis, start, free_bytes=sum(map(free_bytes, devices)))
    except Unwanted:
        text = "trying out micro-batches was broken off, for this peer is to pause; the next start tries again"
        session.emit(AlertRaised(level="info", code="FIT", text=text))
        return recall(directory, basis)
    except MemoryFull as error:
        if not settings.offload:
            for device in devices:
                require_room(spec, device, again=True, shares=_shares(settings, len(devices)))
        aside = "" if settings.offload else other_ways(spec, total_bytes(devices[0]))
        session.warn("FIT", f"{error}{aside}; it is tried with one sequence at a time")
        return least_fit(spec, names, devices, offload=settings.offload)
    except HomefiresError as error:
        session.warn("FIT", f"{error}; the spec's own micro-batch is taken")
        return None
    session.emit(AlertRaised(level="info", code="FIT", text=describe(fit, spec)))
    return fit


def least_fit(spec: RunSpec, names: Sequence[str], devices: Sequence[torch.device], *, offload: bool) -> Tuned:
    """The least that devices can be asked for, of which nothing was measured."""
    from peer.training.train.autotune_result import Tuned, TuneKey

    basis = TuneKey(run=spec.digest().hex(), device=" ".join(names), name=devices[0].type, torch="", homefires="")
    return Tuned(basis=basis, sequences=len(devices), step_s=0.0, tokens_per_s=0.0, offloads=offload)


def describe(fit: Tuned, spec: RunSpec) -> str:
    whole = spec.inner.sequences * spec.inner.accumulation
    kernel = f", {fit.attention} attention" if fit.attention else ""
    kernel += ", blocks computed again for want of memory" if fit.recomputes else ""
    kernel += ", compiled" if fit.compiled else ""
    half = " and gradients in 16" * fit.half_gradients
    kernel += f", moments in 8 bits{half} for want of memory (it learns a little differently)" if fit.eight_bits else ""
    way = f", {fit.sharding}" if fit.sharding else ""
    way += ", from main memory" if fit.offloads else ""
    is_emulated = fit.precision == "float32" and spec.inner.precision == "auto" and fit.basis.name != "cpu"
    precision = fit.precision + ", for it computes bfloat16 no faster" * is_emulated
    return f"{fit.sequences} of {whole} sequences at a time, {precision}{kernel}{way}: {fit.tokens_per_s:,.0f} tokens/s"


def report_halved(session: Reporter, spec: RunSpec, sequences: int) -> None:
    """The device had no room: a micro-batch was halved."""
    whole = spec.inner.sequences * spec.inner.accumulation
    text = f"the device ran out of memory: from now on {sequences} of {whole} sequences at a time; nothing is lost"
    session.warn("MEMORY", text)


def make_trainer(
    spec: RunSpec, settings: PeerSettings, me: str, directory: Path, fit: Tuned | None, session: Reporter,
    ranks: RankOptions | None = None, cluster: ClusterHome | None = None,
) -> LocalTrainer:  # fmt: skip
    """Model, optimizer and data of this peer. Raises BadInput, BadSpec, RankLost, and what torch does without room."""
    import torch

    from peer.node.host.device import choose_devices
    from peer.node.host.threads import threads_for
    from peer.training.train.trainer import LocalTrainer

    told, folder = partial(report_halved, session, spec), directory / "contributions"
    if ranks is not None:
        from peer.parallel.ranks.sharded_backend import sharded

        torch.set_num_threads(1)  # the ranks compute
        engine = sharded(spec, ranks, directory, fit, told)
        return LocalTrainer(spec, me, folder, torch.device("cpu"), data_path=settings.data_path, make_engine=engine)
    device = choose_devices(settings.devices)[0]
    torch.set_num_threads(threads_for(device.type, settings.threads or torch.get_num_threads()).torch)
    if cluster is not None:
        engine = cluster.engine(spec, device, directory, told)
        return LocalTrainer(
            spec, me, folder, device, data_path=settings.data_path, make_engine=engine, reads=cluster.is_lead
        )
    return LocalTrainer(spec, me, folder, device, fit, told, settings.data_path)


def restore(trainer: LocalTrainer, directory: Path, session: Reporter) -> tuple[Checkpoints, bytes]:
    """Be what the newest intact checkpoint says; returns the anchor where the trainer stands, empty without one."""
    from peer.training.checkpoint.checkpoint import Checkpoints, newest

    checkpoints = Checkpoints(directory / "checkpoints")

    def set_aside(path: Path, why: str) -> None:
        session.warn("CHECKPOINT", f"checkpoint {path} is not used: {why}")
        checkpoints.set_aside(path)

    found = newest(checkpoints.folder, trainer.spec.digest().hex(), trainer.me, set_aside, trainer.stored_layers)
    if found is None:
        return checkpoints, b""
    anchor = _take_up(trainer, found, directory, session)
    session.say("JOINING", f"going on from the checkpoint of round {found.round}")
    return checkpoints, anchor


def _take_up(trainer: LocalTrainer, found: Checkpoint, directory: Path, session: Reporter) -> bytes:
    """Stand where the checkpoint was taken.

    Where the way there is not on this disk any more, as in a chain that began anew or is damaged, stand at the newest
    snapshot, or where the run begins, and have its work go along.
    """
    from peer.training.checkpoint.replay import become_checkpoint, first_anchor, lead_to, newest_snapshot

    if trainer.span is not None:
        become_checkpoint(trainer.anchor, found)
        trainer.restore(found)
        return found.anchor
    try:
        lead_to(trainer.anchor, directory, trainer.spec, found.anchor, found.round, trainer.start)
    except BadInput as error:
        snapshot = newest_snapshot(directory)
        where = "the newest snapshot" if snapshot is not None else "where the run begins"
        why = f"the model of checkpoint {found.path} cannot be computed any more ({error})"
        session.warn("CHECKPOINT", f"{why}: what it owes goes along to {where}")
        trainer.restore(found, known=False)
        name, anchor = snapshot or (b"", first_anchor(trainer.spec))
        trainer.adopt(found.anchor, anchor)
        return name
    trainer.restore(found)
    return found.anchor


def _at_snapshot(trainer: LocalTrainer, directory: Path) -> bytes:
    """Have a home of a cluster that has no checkpoint of its layers stand at a snapshot that has them; returns its
    anchor, empty without one."""
    from peer.parallel.cluster.layer_takeover import stands_at
    from peer.training.checkpoint.replay import read_anchor

    found = stands_at(directory, trainer.held)
    if found is None:
        return b""
    trainer.adopt(b"", read_anchor(directory, *found, trainer.held))
    return found[1]


def started(settings: PeerSettings, me: str, ready: Prepared, directory: Path) -> PeerStarted:
    """What a peer says of itself, once it is."""
    from peer.node.host.device import short_word

    trainer = ready.trainer
    return PeerStarted(
        name=settings.name or me[-8:], version=version("homefires"), device=short_word(ready.devices),
        devices=ready.devices, sharding=ready.sharding, parameters=trainer.parameters, directory=str(directory),
        rounds=trainer.spec.run.rounds, settings=asdict(settings), trains=trainer.spec.in_words,
    )  # fmt: skip
