"""A peer with everything around it."""

from __future__ import annotations

import pytest

from tests.peer.node.lifecycle.story import Story, joined


@pytest.fixture
def story() -> Story:
    """A peer that has joined and is in step."""
    return joined()
