"""What a peer does once, between knowing its run and training: look at the machine, fit the run to it, build."""

from __future__ import annotations

import shlex
import threading
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from dht.errors import BadInput, HomefiresError, MemoryFull
from peer.events import AlertRaised, PeerStarted
from peer.settings import PeerSettings
from peer.spec import RunSpec
from peer.telemetry.reporter import Reporter

if TYPE_CHECKING:
    from peer.checkpoint.checkpoint import Checkpoint, Checkpoints
    from peer.train.trainer import LocalTrainer
    from peer.train.tuned import Tuned


def load_libraries() -> None:
    """Seconds, in which the link loads its own, starts the daemon and dials."""
    import peer.train.trainer  # noqa: F401


def look_around(spec: RunSpec, directory: Path, settings: PeerSettings, session: Reporter) -> threading.Thread:
    """Have the doctor look at the machine beside the start, by a thread; what it finds amiss is an alert, once.

    It loads and starts nothing, so that the first step comes no later. What it does not look at (device, daemon,
    clocks, addresses) a peer that starts finds out by itself.
    """

    where = shlex.quote(str(directory))

    def look() -> None:
        from peer.doctor.check import Status
        from peer.doctor.verdict import quiet

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


def fit_for(spec: RunSpec, settings: PeerSettings, directory: Path, session: Reporter) -> Tuned | None:
    """How the run is trained on this device; None on a processor, where the spec's own micro-batch is taken.

    A dry run that fails is told and changes nothing: training finds its micro-batch by halving it. So it does where a
    dry run would use the device of a peer that is paused, or is paused meanwhile: then it is ended.
    """
    from peer.train.backend import choose_device

    device = choose_device(settings.device)
    if device.type == "cpu":
        return None
    from peer.autotune.cache import Unwanted, find_fit, recall, run_python
    from peer.autotune.trial import basis_of
    from peer.train.atomic import free_bytes

    basis = basis_of(spec, settings.device, device)
    if session.wishes.pausing:
        return recall(directory, basis)
    session.say("JOINING", "trying out which micro-batch has room and is fastest; this is done once per device")
    start = partial(run_python, unwanted=lambda: session.wishes.pausing)
    try:
        fit = find_fit(spec, directory, basis, start, free_bytes=free_bytes(device))
    except Unwanted:
        text = "trying out micro-batches was broken off, for this peer is to pause; the next start tries again"
        session.emit(AlertRaised(level="info", code="FIT", text=text))
        return recall(directory, basis)
    except MemoryFull as error:
        session.warn("FIT", f"{error}; it is tried with one sequence at a time")
        return least_fit(spec, settings, device.type)
    except HomefiresError as error:
        session.warn("FIT", f"{error}; the spec's own micro-batch is taken")
        return None
    session.emit(AlertRaised(level="info", code="FIT", text=describe(fit, spec)))
    return fit


def least_fit(spec: RunSpec, settings: PeerSettings, name: str) -> Tuned:
    """The least that a device can be asked for, of which nothing was measured."""
    from peer.train.tuned import Tuned, TuneKey

    basis = TuneKey(run=spec.digest().hex(), device=settings.device, name=name, torch="", homefires="")
    return Tuned(basis=basis, sequences=1, step_s=0.0, tokens_per_s=0.0)


def describe(fit: Tuned, spec: RunSpec) -> str:
    whole = spec.inner.sequences * spec.inner.accumulation
    kernel = f", {fit.attention} attention" if fit.attention else ""
    return f"{fit.sequences} of {whole} sequences at a time, {fit.precision}{kernel}: {fit.tokens_per_s:,.0f} tokens/s"


def say_smaller(session: Reporter, spec: RunSpec, sequences: int) -> None:
    """The device had no room: a micro-batch was halved."""
    whole = spec.inner.sequences * spec.inner.accumulation
    text = f"the device ran out of memory: from now on {sequences} of {whole} sequences at a time; nothing is lost"
    session.warn("MEMORY", text)


def make_trainer(
    spec: RunSpec, settings: PeerSettings, me: str, directory: Path, fit: Tuned | None, session: Reporter
) -> LocalTrainer:
    """Model, optimizer and data of this peer. Raises BadInput, BadSpec, MemoryFull."""
    import torch

    from peer.train.atomic import telling_full_memory
    from peer.train.backend import choose_device
    from peer.train.trainer import LocalTrainer

    if settings.threads:
        torch.set_num_threads(settings.threads)
    device = choose_device(settings.device)
    with telling_full_memory(device):
        return LocalTrainer(spec, me, directory / "contributions", device, fit, partial(say_smaller, session, spec))


def restore(trainer: LocalTrainer, directory: Path, session: Reporter) -> tuple[Checkpoints, bytes]:
    """Be what the newest intact checkpoint says; returns the anchor where the trainer stands, empty without one."""
    from peer.checkpoint.checkpoint import Checkpoints, newest
    from peer.train.atomic import telling_full_memory

    checkpoints = Checkpoints(directory / "checkpoints")

    def set_aside(path: Path, why: str) -> None:
        session.warn("CHECKPOINT", f"checkpoint {path} is not used: {why}")
        checkpoints.set_aside(path)

    found = newest(checkpoints.folder, trainer.spec.digest().hex(), trainer.me, set_aside)
    if found is None:
        return checkpoints, b""
    with telling_full_memory(trainer.device):
        anchor = _take_up(trainer, found, directory, session)
    session.say("JOINING", f"going on from the checkpoint of round {found.round}")
    return checkpoints, anchor


def _take_up(trainer: LocalTrainer, found: Checkpoint, directory: Path, session: Reporter) -> bytes:
    """Stand where the checkpoint was taken.

    Where the way there is not on this disk any more, as in a chain that began anew, stand at the newest snapshot, and
    have its work go along. Raises BadInput if there is none either.
    """
    from peer.checkpoint.replay import lead_to, newest_snapshot

    try:
        lead_to(trainer.anchor, directory, trainer.spec, found.anchor, found.round)
    except BadInput as error:
        snapshot = newest_snapshot(directory)
        if snapshot is None:
            raise
        why = f"the anchor of checkpoint {found.path} cannot be computed any more ({error})"
        session.warn("CHECKPOINT", f"{why}: what it owes goes along to the newest snapshot")
        trainer.restore(found, known=False)
        name, anchor = snapshot
        trainer.adopt(found.anchor, anchor)
        return name
    trainer.restore(found)
    return found.anchor


def started(settings: PeerSettings, me: str, trainer: LocalTrainer, directory: Path) -> PeerStarted:
    """What a peer says of itself, once it is."""
    return PeerStarted(
        name=settings.name or me[-8:], version=version("homefires"), device=str(trainer.device),
        parameters=trainer.parameters, directory=str(directory), rounds=trainer.spec.run.rounds,
        settings=asdict(settings),
    )  # fmt: skip
