"""What an anchor has learned: its loss on text that nobody trains on, and how it continues the prompts of the run."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from torch import Tensor

from peer.data.open_source import held_out
from peer.data.source import Source
from peer.data.tokenizer import Tokenizer, tokenizer_of
from peer.lifecycle.vocabulary import Continuations, HeldOutLoss
from peer.spec import RunSpec
from peer.train.backend import Backend, Stopped


class AnchorReview:
    """Of the anchor at which `backend` stands."""

    def __init__(self, spec: RunSpec, source: Source, backend: Backend) -> None:
        self._spec, self._source, self._backend = spec, source, backend

    @cached_property
    def held_out(self) -> Tensor:
        """Tokens (B, context + 1)."""
        return held_out(self._source)

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        return tokenizer_of(self._spec)

    def loss(self, stop: Callable[[], bool]) -> HeldOutLoss | None:
        """None if `stop` says so. Raises MemoryFull."""
        try:
            loss = self._backend.loss(self.held_out, stop)
        except Stopped:
            return None
        return HeldOutLoss(loss, self.held_out[:, 1:].numel())

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
