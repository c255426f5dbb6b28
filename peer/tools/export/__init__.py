"""Importing this package forbids transformers to fetch code, before anything loads it."""

import peer.training.data  # noqa: F401
