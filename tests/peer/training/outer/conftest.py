"""The small trainers of `tests/peer/training/train`."""

from __future__ import annotations

from tests.peer.training.train.conftest import corpus, make, spec

__all__ = ["corpus", "make", "spec"]
