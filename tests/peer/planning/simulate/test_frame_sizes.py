"""What messages are said to take is what they take, encoded, within a fifth."""

from __future__ import annotations

import pytest

from peer.consensus.protocol.messages import Message, encode
from peer.planning.simulate.group import Group
from peer.planning.simulate.memory_store import TOKEN_BYTES
from peer.planning.simulate.virtual_network import Sizes
from tests.peer.planning.simulate.scenarios import setting

PEER_ID = 52
"""Characters of a libp2p peer id."""


def test_sizes_are_those_of_the_wire(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each type of a run, with names as long as real ones and parts as short as tokens."""
    monkeypatch.setattr(Group, "name_of", lambda group, number: f"{number:0{PEER_ID}d}")
    said: dict[str, list[tuple[int, int]]] = {}
    measure = Sizes.of

    def of(sizes: Sizes, message: Message) -> int:
        tokens = Sizes([TOKEN_BYTES] * 64, [TOKEN_BYTES] * 64, TOKEN_BYTES, 0)
        said.setdefault(type(message).__name__, []).append((measure(tokens, message), len(encode(message))))
        return measure(sizes, message)

    monkeypatch.setattr(Sizes, "of", of)
    Group(setting(peers=5, rounds=2)).run()
    assert {"Heartbeat", "Promise", "Start", "PartData", "MeanData", "Propose", "VoteCast"} <= set(said)
    for kind, pairs in said.items():
        ours, real = (sum(pair[side] for pair in pairs) for side in (0, 1))
        assert ours == pytest.approx(real, rel=0.2), f"{kind}: {ours} said, {real} are sent"
