"""What a rank may gather while an update is applied beside the next step: nothing half written, nothing old.

This prevents the race of ZeRO++'s secondary shards (arXiv:2407.01614); here the writer is a round's outer step.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Protocol

from peer.parallel.fsdp.gather_hooks import Enter
from peer.training.train.buffer_versions import BufferVersions, StaleVersion
from peer.training.train.layerwise import APPLY_S


class Gates(Protocol):
    """The part of `gather_hooks.GatherGates` that the guard needs; tests have their own."""

    def is_gathered(self, layer: int) -> bool:
        """Whether the next pass reads this layer from an earlier copy."""
        ...

    def forget(self) -> None:
        """Drop all such copies."""
        ...


class GatherGuard:
    """Lets one rank's passes gather a layer only once it is applied, and only at the version that they read.

    The thread that computes uses `reading` around each forward pass and its backward pass, also for an evaluation. The
    thread that applies an update calls `begin`, writes this rank's shards and calls `publish`; any threads may do so. A
    pass outside of `reading` is not safe itself, but what it leaves behind is never read.

        guard = GatherGuard(len(flat.layers), partial(GatherGates, model, flat))
    """

    def __init__(self, layers: int, gates: Callable[[Enter], Gates], wait_s: float = APPLY_S) -> None:
        self._versions = BufferVersions(layers)
        self._copied_at = [0] * layers
        """The version at which each layer was last gathered."""
        self._version = 0
        """The version of the layers that the present pass reads."""
        self._wait_s = wait_s
        self._gates = gates(self._enter)

    @property
    def waited_s(self) -> float:
        """Seconds that gathers have waited for layers since the newest `begin`."""
        return self._versions.waited_s

    def begin(self) -> int:
        """From now on no layer is gathered until it is published; returns the new version.

        Call it before a parameter is written. If a thread is `reading`, or the previous update is not complete, it
        raises AssertionError. Gathered copies of the parameters are dropped.
        """
        version = self._versions.begin()  # nobody reads from here on: nothing of it is published
        self._gates.forget()
        return version

    def publish(self, layer: int, version: int) -> None:
        """Declare this rank's shard of the layer as written. Raises StaleVersion.

        On a GPU, first wait for the event at the end of the copy (`Event.synchronize`): FSDP gathers on streams of its
        own, which wait for the copies of other streams only at the start of a forward pass.
        """
        self._versions.publish(layer, version)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """The forward and backward passes inside read one version of the model."""
        with self._versions.reading() as self._version:
            yield

    def _enter(self, layers: Collection[int]) -> None:
        """Called before these layers are gathered. Raises StaleVersion and TimeoutError."""
        for layer in layers:
            self._versions.wait(layer, self._version, self._wait_s)
        for layer in layers:
            self._check_copy(layer)

    def _check_copy(self, layer: int) -> None:
        if not self._gates.is_gathered(layer):
            self._copied_at[layer] = self._version
        elif self._copied_at[layer] != self._version:
            raise StaleVersion(
                f"layer {layer} would be read from a copy of version {self._copied_at[layer]}, not {self._version}"
            )
