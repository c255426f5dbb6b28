"""The small trainers of `tests/peer/train`."""

from __future__ import annotations

from tests.peer.train.conftest import corpus, make, spec

__all__ = ["corpus", "make", "spec"]
