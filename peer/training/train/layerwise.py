"""Overlap: applies an update layer by layer beside the next inner step, which waits for each layer when it needs it.

As in EDiT (arXiv:2412.07210), the decision is taken once for the whole model. Each layer's pre-forward hook waits for
that layer alone while threads prepare the next ones, in model order.

This hides the application, not the transfer: an update is committed only when all its bytes are here. Every byte is
checked before the first layer is touched, so that damaged bytes change nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from peer.node.host.device import assert_index, raising_memory_full
from peer.node.host.threads import threads_for
from peer.training.train.backend import DeviceBackend
from peer.training.train.buffer_versions import BufferVersions

HALF_DONE = "what this peer was at, which is half done: joined again, it goes on from what is on its disk"
"""Of what memory had no room for."""
APPLY_S = 600.0
"""An update that is not applied by then never will be."""


class Layerwise:
    """Applies updates in threads, and keeps every layer's modules from running before the layer is ready."""

    def __init__(self, backend: DeviceBackend, device: torch.device) -> None:
        self._device = device
        self._layers = range(len(backend.layers))
        self.guard = BufferVersions(len(self._layers))
        self._copies = _Copies(device)
        self._version = 0
        """Of the layers that the present forward pass reads."""
        workers = threads_for(device.type, torch.get_num_threads()).layers
        self._executor = ThreadPoolExecutor(max_workers=workers, thread_name_prefix="apply")
        self.gates = backend.gates(self._enter)

    @property
    def waited_s(self) -> float:
        """Seconds that inner steps have waited for layers since the newest `begin`."""
        return self.guard.waited_s

    def begin(self, apply_layer: Callable[[int], object], finish: Callable[[], bytes]) -> Future[bytes]:
        """Call `apply_layer` for each layer in order, then `finish`, beside whatever the caller does next.

        The future ends as `finish` does, or with an error of either, or TimeoutError. Code that looks at more than one
        layer waits for it; before its end no other update begins.
        """
        version = self.guard.begin()
        self._copies.begin()
        layers = [self._executor.submit(self._apply, layer, version, apply_layer) for layer in self._layers]
        running = self._executor.submit(self._finish, layers, finish)
        running.add_done_callback(self._note_failure)
        for layer in layers:
            layer.add_done_callback(self._note_failure)
        if self._device.type not in ("cpu", "cuda"):
            running.result(APPLY_S)  # such a device has one queue for all threads
        return running

    def close(self) -> None:
        """Returns once the present update has ended."""
        self._executor.shutdown()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Forward and backward passes inside read one version of the model."""
        with self.guard.reading() as self._version:
            yield

    def _apply(self, layer: int, version: int, apply_layer: Callable[[int], object]) -> None:
        # A step that waits for the layer would take torch's own error for one of its own, and halve its micro-batch.
        with raising_memory_full(self._device, HALF_DONE), self._copies.aside():
            apply_layer(layer)
            self._copies.note(layer)
        self.guard.publish(layer, version)

    def _finish(self, layers: Sequence[Future[None]], finish: Callable[[], bytes]) -> bytes:
        for layer in layers:  # the queue is in order: each has ended or is at work
            layer.result(APPLY_S)
        self._copies.end()
        return finish()

    def _note_failure(self, running: Future[Any]) -> None:
        error = running.exception()
        if error is not None:
            self.guard.fail(error)

    def _enter(self, layers: Collection[int]) -> None:
        """A module that reads these layers is about to run."""
        for layer in sorted(layers):
            self.guard.wait(layer, self._version, APPLY_S)
            self._copies.meet(layer)


class _Copies:
    """Copies to a GPU have a stream of their own, and an event at their end; on the CPU they end before they return."""

    def __init__(self, device: torch.device) -> None:
        assert_index(device)
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._ends: dict[int, torch.cuda.Event] = {}

    def begin(self) -> None:
        """What the present stream does with the parameters comes first."""
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._device))

    def aside(self) -> AbstractContextManager[object]:
        """The context of the copying thread."""
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def note(self, layer: int) -> None:
        """The copies of this layer are under way."""
        if self._stream is not None:
            self._ends[layer] = self._stream.record_event()

    def meet(self, layer: int) -> None:
        """What the present stream does next comes after the copies of this layer."""
        end = self._ends.get(layer)
        if end is not None:
            torch.cuda.current_stream(self._device).wait_event(end)

    def end(self) -> None:
        if self._stream is not None:
            self._stream.synchronize()
            self._ends.clear()
