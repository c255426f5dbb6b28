"""A dry run on several devices, or on one that streams layers from main memory: real ranks train a few steps on noise
in each way in which they can share the model.

Ways are tried in the order of the forecast without those that cannot fit, and no further one is begun after a time
limit. The model is built once: the ranks of every way begin at its parameters in one arena.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import torch

from dht.errors import DeviceLost, HomefiresError, MemoryFull
from peer.node.host.device import choose_devices, empty_device_caches, free_bytes
from peer.node.host.processes import available_bytes
from peer.parallel.autotune.search import BETTER, Trial, find
from peer.parallel.autotune.trial import LONG_S, TIMED_STEPS, Noise, basis_of, fit, kind_of
from peer.parallel.ranks.rank_group import RankLost
from peer.parallel.ranks.sharded_backend import RankOptions, ShardedBackend
from peer.planning.plan.home_cost import ways_to_try
from peer.planning.plan.model_shape import shape_of
from peer.planning.plan.sharding_strategy import Sharding, ShardingStrategy
from peer.schema.spec import RunSpec
from peer.training.model.build import build_meta
from peer.training.train.autotune_result import SPARE, Tuned, TuneKey
from peer.training.train.backend import uses_bfloat16
from peer.training.train.inner_loop import MicroBatch
from peer.training.train.round_vectors import MEMORY_SHARE

BEGIN_S = 150.0
"""After this time no further strategy is tried: the peer waits to join, and the most promising ones came first."""


def fit_devices(
    spec: RunSpec, wanted: Sequence[str], *, sharding: str, offload: bool, compile: str = "auto", most: int = 0
) -> Tuned:
    """The fastest configuration that fits on these devices and that the owner allows. Raises the errors of
    `peer.parallel.autotune.trial.fit`, and DeviceLost."""
    devices = choose_devices(wanted)
    if len(devices) == 1:
        try:
            return fit(spec, wanted[0], most, offload=offload, compile=compile)
        except MemoryFull:
            if not offload:
                raise
        empty_device_caches()  # outside of `except`: what the error's traceback holds is gone
    around = DryDevices(
        names=tuple(map(str, devices)), kinds=tuple(map(kind_of, devices)), room_bytes=tuple(map(free_bytes, devices))
    )
    ways = ways_to_try(
        shape_of(spec), spec, around.room_bytes, MEMORY_SHARE * available_bytes(),
        kind=None if sharding == "auto" or len(devices) == 1 else Sharding(sharding), offload=offload,
    )  # fmt: skip
    basis = basis_of(spec, wanted, devices, sharding=sharding, offload=offload, compile=compile)
    return fit_ranks(spec, around, ways, basis, most)


@dataclass(frozen=True, kw_only=True)
class DryDevices:
    """The devices on which ranks are tried."""

    names: tuple[str, ...]
    """The devices as torch names them."""
    kinds: tuple[str, ...]
    """The hardware by rank: if it differs, each kind is measured alone."""
    room_bytes: tuple[int, ...]
    """The free memory; 0: not known."""


def fit_ranks(
    spec: RunSpec, devices: DryDevices, ways: Sequence[ShardingStrategy], basis: TuneKey, most: int = 0,
    clock: Callable[[], float] = time.monotonic,
) -> Tuned:  # fmt: skip
    """The fastest of `ways`, which are tried in this order. A way with layers in main memory is tried only if no
    other fits. Raises MemoryFull if none fits, HomefiresError if none can be tried, and DeviceLost."""
    until, whole = clock() + BEGIN_S, spec.inner.sequences * spec.inner.accumulation
    best: tuple[Trial, ShardingStrategy, tuple[int, ...]] | None = None
    with tempfile.TemporaryDirectory(prefix="homefires-ranks-") as folder:
        trials = RankTrials(spec, devices, Path(folder))
        try:
            trials.measure_alone(offload=any(way.offloads for way in ways))
            for way in ways:
                if best is not None and (clock() > until or way.offloads):
                    break
                made = trials.search(way, min(whole, most or whole))
                if made is not None and (best is None or made[0].sequences_per_s > BETTER * best[0].sequences_per_s):
                    best = (made[0], way, made[1])
        finally:
            trials.close()
    if best is None:
        raise trials.failure()
    trial, way, room = best
    step_s = trial.seconds * whole / trial.sequences
    return Tuned(
        basis=basis, sequences=trial.sequences,
        precision="bfloat16" if uses_bfloat16(spec, torch.device(devices.names[0])) else "float32", step_s=step_s,
        tokens_per_s=whole * spec.model.context / step_s, free_bytes=sum(devices.room_bytes),
        sharding=way.kind.value, group=way.group, offloads=way.offloads, speeds=trials.speeds, most=room,
    )  # fmt: skip


class RankTrials:
    """Ranks that try one way after another in a single arena."""

    def __init__(self, spec: RunSpec, devices: DryDevices, folder: Path) -> None:
        self._spec, self._devices, self._folder = spec, devices, folder
        vocabulary = int(build_meta(spec).config.vocab_size)  # type: ignore[union-attr, arg-type]
        self._noise = Noise(spec, vocabulary)
        self._backend: ShardedBackend | None = None
        self.speeds: tuple[float, ...] = ()
        """Relative speeds by rank; empty: all alike."""
        self._peaks: list[tuple[int, ...]] = []
        """The peak memory of each attempt on the device of each rank, in bytes."""
        self._why: HomefiresError | None = None

    def close(self) -> None:
        if self._backend is not None:
            self._backend.close()

    def failure(self) -> HomefiresError:
        """The reason why no way was found."""
        names = " and ".join(self._devices.names)
        return self._why or MemoryFull(f"not even one sequence of {self._spec.run.name} has room on {names}")

    # ---- unlike devices, each alone ----

    def measure_alone(self, *, offload: bool) -> None:
        """Measure the relative speeds of devices that differ, all in the same way: with the whole model on the
        device, or, if it does not fit on one of them and the owner allows it, from main memory. Otherwise the
        devices count as alike."""
        if len(set(self._devices.kinds)) == 1:
            return
        for offloads in (False, True) if offload else (False,):
            by_kind = {kind: self._alone_s(kind, offloads=offloads) for kind in dict.fromkeys(self._devices.kinds)}
            if all(by_kind.values()):
                each = [by_kind[kind] or 1.0 for kind in self._devices.kinds]
                self.speeds = tuple(max(each) / seconds for seconds in each)
                return

    def _alone_s(self, kind: str, *, offloads: bool) -> float | None:
        """Seconds per sequence on a device of this kind; None if a sequence does not fit."""
        device = self._devices.names[self._devices.kinds.index(kind)]
        way = ShardingStrategy(kind=Sharding.FULL, ranks=1, offloads=offloads)
        made = self._attempt(1) if self._lay_out(RankOptions(devices=(device,), strategy=way)) else None
        return made.seconds if made else None

    # ---- a way ----

    def search(self, way: ShardingStrategy, limit: int) -> tuple[Trial, tuple[int, ...]] | None:
        """The fastest micro-batch of at most `limit` sequences, and how many sequences fit on each rank (empty: not
        known). None if not even one fits."""
        if not self._lay_out(RankOptions(devices=self._devices.names, strategy=way)):
            return None
        assert self._backend is not None
        room: tuple[int, ...] = ()
        if all(self._devices.room_bytes):
            self._peaks.clear()
            if self._attempt(way.ranks) is None:
                return None  # where one of each rank has no room nothing has
            room = self._room(way.ranks)
        self._backend.deal_by(self.speeds, room)
        limit = min(limit, sum(room)) if room else limit
        wanted = min(limit, self._spec.inner.sequences * way.ranks)
        found = find(lambda sequences, attention: self._attempt(sequences), wanted, limit, ("",))
        return None if found is None else (found.best, room)

    def _room(self, ranks: int) -> tuple[int, ...]:
        """The number of sequences that fit on each rank, extrapolated linearly from the memory for one and for two
        sequences per rank; empty if ranks do not count their memory."""
        if not all(self._peaks[0]):
            return ()
        if 2 * ranks <= self._spec.inner.sequences * self._spec.inner.accumulation:
            self._attempt(2 * ranks)
        ones, last = self._peaks[0], self._peaks[-1]
        is_line = len(self._peaks) > 1
        return tuple(
            _most(one, (two - one) if is_line else one, room)
            for one, two, room in zip(ones, last, self._devices.room_bytes, strict=True)
        )  # fmt: skip

    def _lay_out(self, options: RankOptions) -> bool:
        """Whether the shards of this way fit on the ranks."""
        try:
            if self._backend is None:
                self._backend = ShardedBackend(self._spec, self._noise, options, _AsAsked(1), self._folder)
            else:
                self._backend.lay_out(options)
        except (MemoryFull, RankLost) as error:
            self._has_failed(error)
            return False
        return True

    def _attempt(self, sequences: int) -> Trial | None:
        """Time some inner steps, after one that does not count. A step has one micro-batch, or two if those of the
        run have several: then the gradient needs memory in addition to the activations."""
        try:
            return self._timed(sequences)
        except (MemoryFull, RankLost) as error:
            self._has_failed(error)
            return None

    def _has_failed(self, error: MemoryFull | RankLost) -> None:
        if isinstance(error, MemoryFull):
            return
        if error.is_device:
            raise DeviceLost(str(error)) from error
        self._why = HomefiresError(str(error))

    def _timed(self, sequences: int) -> Trial | None:
        backend = self._backend
        assert backend is not None
        if not backend.reload():
            return None
        backend.micro.sequences = sequences
        micro_batches = 2 if sequences < self._spec.inner.sequences * self._spec.inner.accumulation else 1
        seconds = _micro_batch_s(backend, micro_batches)
        if seconds < LONG_S:
            seconds = min(_micro_batch_s(backend, micro_batches) for _ in range(TIMED_STEPS))
        self._peaks.append(backend.peak_bytes)
        return Trial(sequences=sequences, attention="", seconds=seconds, peak_bytes=0)


class _AsAsked(MicroBatch):
    """Reports a micro-batch that does not fit instead of halving it: another size is another attempt."""

    def halve(self) -> None:
        raise MemoryFull(f"{self.sequences} sequences have no room")


def _micro_batch_s(backend: ShardedBackend, micro_batches: int) -> float:
    """Seconds per micro-batch in one step of `micro_batches`."""
    done, started = count(1), time.perf_counter()
    backend.step(0, 0, stop=lambda: next(done) >= micro_batches)
    return (time.perf_counter() - started) / micro_batches


def _most(one_bytes: int, each_bytes: int, room_bytes: int) -> int:
    """The number of sequences that fit at a time, at least one, if the first needs `one_bytes` and each further one
    `each_bytes`."""
    return 1 + max(0, int((SPARE * room_bytes - one_bytes) // max(1, each_bytes)))
