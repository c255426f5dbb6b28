"""The typed fields of a peer's state are those of its state."""

from __future__ import annotations

import dataclasses

from peer.consensus.rounds.state import State
from peer.consensus.rounds.state_changes import StateChanges


def test_each_field_has_its_type() -> None:
    """mypy finds a misspelt field, or one of another type, in what a step changes."""
    assert StateChanges.__annotations__.keys() == {field.name for field in dataclasses.fields(State)}
    for field in dataclasses.fields(State):
        assert StateChanges.__annotations__[field.name].__forward_arg__ == field.type
