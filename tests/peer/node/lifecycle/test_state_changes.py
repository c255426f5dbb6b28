"""What a handler may set are the fields of a state, each with its type."""

from __future__ import annotations

import dataclasses

import pytest

from peer.consensus.rounds.state import State
from peer.consensus.rounds.state_changes import StateChanges
from peer.node.lifecycle.state import AnchorState, Life
from peer.node.lifecycle.state_changes import AnchorChanges, LifeChanges


@pytest.mark.parametrize(("changes", "state"), [(LifeChanges, Life), (AnchorChanges, AnchorState)])
def test_a_life_sets_its_own_fields(changes: type, state: type) -> None:
    assert text_of(changes) == dict(state.__annotations__)


def test_a_round_sets_its_own_fields() -> None:
    assert text_of(StateChanges) == {field.name: field.type for field in dataclasses.fields(State)}


def text_of(changes: type) -> dict[str, str]:
    """The annotations as they are written."""
    return {name: hint.__forward_arg__ for name, hint in changes.__annotations__.items()}
