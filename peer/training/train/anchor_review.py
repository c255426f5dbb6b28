"""Evaluates an anchor: its held-out loss, and its continuations of the run's prompts."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from peer.node.lifecycle.inputs_effects import Continuations, HeldOutLoss
from peer.schema.spec import RunSpec
from peer.training.data.mixed_source import HeldOutSets
from peer.training.data.source import Source
from peer.training.data.tokenizer import Tokenizer, tokenizer_of
from peer.training.train.backend import Backend, Stopped


class AnchorReview:
    """Evaluates the anchor at which `backend` stands."""

    def __init__(self, spec: RunSpec, source: Source, backend: Backend) -> None:
        self._spec, self._source, self._backend = spec, source, backend

    @cached_property
    def held_out(self) -> HeldOutSets:
        """Nobody trains on them."""
        return HeldOutSets.of(self._source)

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        return tokenizer_of(self._spec)

    def loss(self, stop: Callable[[], bool]) -> HeldOutLoss | None:
        """None if `stop` says so. Raises MemoryFull."""
        sets = self.held_out
        try:
            losses = [self._backend.loss(tokens_BT, stop) for tokens_BT in sets.tokens]
        except Stopped:
            return None
        return HeldOutLoss(sets.mean(losses), sets.predicted, sets.by_source(losses), self._backend.measures_in)

    def continuations(self, stop: Callable[[], bool]) -> Continuations | None:
        """None if `stop` says so. Raises MemoryFull."""
        table, tokenizer = self._spec.evaluate, self._tokenizer
        assert table is not None, "a run without prompts asks for none"
        prompts = [tokenizer.encode(prompt).tolist() for prompt in table.prompts]
        try:
            found = self._backend.continued(prompts, table.tokens, tokenizer.end_of_text, stop)
        except Stopped:
            return None
        return Continuations(tuple(map(tokenizer.decode, found)))
