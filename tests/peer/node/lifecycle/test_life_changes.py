"""What a handler may set are the fields of a state, each with its type."""

from __future__ import annotations

import pytest

from peer.node.lifecycle.life_changes import AnchorChanges, LifeChanges
from peer.node.lifecycle.state import AnchorState, Life


@pytest.mark.parametrize(("changes", "state"), [(LifeChanges, Life), (AnchorChanges, AnchorState)])
def test_a_life_sets_its_own_fields(changes: type, state: type) -> None:
    assert text_of(changes) == dict(state.__annotations__)


def text_of(changes: type) -> dict[str, str]:
    """The annotations as they are written."""
    return {name: hint.__forward_arg__ for name, hint in changes.__annotations__.items()}
