"""Applies an update layer by layer on several ranks, beside their next inner steps.

The lead takes one layer after the other to all ranks, and publishes a layer when all ranks have written what they own.
The ranks' own guards keep a gather from a layer that is not published yet.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from peer.parallel.fsdp.rank_messages import Command, PublishLayer, RankAnswer
from peer.training.model.flat_parameters import Layer


class Lead(Protocol):
    """Gives the ranks their commands."""

    @property
    def layers(self) -> tuple[Layer, ...]: ...

    @property
    def waited_s(self) -> float: ...

    def begin_version(self) -> int | None: ...

    def end_version(self) -> None: ...

    def ask_round(self, command: Command) -> list[RankAnswer]: ...

    def abandon(self) -> None: ...


class ShardedLayerwise:
    """Implements `peer.training.train.engine.UpdateBeside` on ranks."""

    def __init__(self, lead: Lead) -> None:
        self._lead = lead
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="apply")
        self._order = sorted(range(len(lead.layers)), key=lambda number: lead.layers[number].is_block)
        """Layers outside of blocks come first, since they are gathered first."""

    @property
    def waited_s(self) -> float:
        return self._lead.waited_s

    def begin(self, apply_layer: Callable[[int], object], finish: Callable[[], bytes]) -> Future[bytes]:
        """See `peer.training.train.layerwise.Layerwise.begin`."""
        running: Future[bytes] = Future()
        self._executor.submit(self._apply, running, self._lead.begin_version(), apply_layer, finish)
        return running

    def close(self) -> None:
        """Wait until the update in progress has ended, successfully or not."""
        self._executor.shutdown()

    def reading(self) -> AbstractContextManager[None]:
        """Does nothing: every rank reads within its own guard."""
        return nullcontext()

    def _apply(
        self,
        running: Future[bytes],
        version: int | None,
        apply_layer: Callable[[int], object],
        finish: Callable[[], bytes],
    ) -> None:
        try:
            for layer in self._order:
                apply_layer(layer)
                if version is not None:
                    self._lead.ask_round(PublishLayer(layer=layer, version=version))
            self._lead.end_version()
            state = finish()
        except BaseException as error:
            running.set_exception(error)  # before the step that loses its ranks by this says that they were lost
            self._lead.abandon()  # it would wait for a layer that does not come
        else:
            running.set_result(state)
