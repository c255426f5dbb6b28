"""The organiser's node follows certificates, and shows the way to whoever comes when all others are gone."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bootstrap import chain_follower
from bootstrap.chain_follower import FOLLOWED_FILE, ChainFollower
from dht.errors import Unreachable
from dht.node import Node
from peer.consensus.organiser.light_chain import (
    changes_in,
    follow,
    packed_question,
    packed_way,
    read_question,
    read_way,
    way_of,
)
from peer.network.sync.chain_status import ChainStatus
from peer.node.store.kept_way import FILE
from peer.testing.memory_peer import ModelKeys
from peer.testing.memory_swarm import ORGANISER
from tests.peer.consensus.organiser.test_light_chain import made

RUN = b"r" * 32


class Keys(ModelKeys):
    """Those of the world's organiser."""

    identity = SimpleNamespace(peer_id=ORGANISER)


class Peer:
    """Stands at some round of the chain, and shows the way there."""

    def __init__(self) -> None:
        self.round, self.asked = 0, list[int]()

    async def ask(self, peer: str, name: str, timeout_s: float, most: int, request: bytes = b"") -> bytes | None:
        start, _ = read_question(request)
        self.asked.append(start)
        genesis, blocks = made()
        before = genesis
        for block in blocks[:start]:
            before = before.after(block.update)
        if start >= self.round:
            raise Unreachable(peer)
        return packed_way(way_of(blocks[start : self.round], before))

    async def heads(self) -> dict[str, Any]:
        return {"somebody": SimpleNamespace(round=self.round)}


class Followed:
    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, rounds: int = 0) -> None:
        monkeypatch.setattr(chain_follower, "genesis_head", lambda genesis: made()[0])
        self.peer = Peer()
        self.follower = ChainFollower(folder, cast(Any, Keys(ORGANISER)), rounds)

    async def at(self, round: int) -> int:
        self.peer.round = round
        await self.follower.look(cast(Node, self.peer), cast(Any, None), self.peer.heads)
        assert self.follower.head is not None
        return self.follower.head.round


async def test_it_shows_the_way_that_it_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after a start, and to nothing in between; it has no blocks and no snapshots."""
    monkeypatch.setattr(chain_follower, "LOOK_S", 0.0)
    genesis, blocks = made()
    followed, last = Followed(tmp_path, monkeypatch), len(blocks)
    assert [await followed.at(round) for round in (3, 9, last)] == [3, 9, last]
    for each in (followed.follower, Followed(tmp_path, monkeypatch).follower):
        if each.head is None:
            await each.look(cast(Node, followed.peer), cast(Any, None), followed.peer.heads)
        given = await each.answer_way("somebody", packed_question(0))
        assert given is not None
        assert follow(ModelKeys("me"), ORGANISER, genesis, read_way(given)) == each.head
        assert await each.answer_way("somebody", packed_question(0, 9)) is None
        assert await each.answer_way("somebody", packed_question(last)) is None
        assert await each.answer_way("somebody", b"nonsense") is None
        status = await each.answer_status("somebody", b"")
        assert status == ChainStatus(round=last, shared=-1, offers=()).to_bytes()


async def test_the_last_round_is_looked_for_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others stay some seconds only."""
    _, blocks = made()
    followed = Followed(tmp_path, monkeypatch, rounds=len(blocks))
    assert [await followed.at(round) for round in (3, 9, len(blocks))] == [3, 3, len(blocks)]
    assert followed.peer.asked == [0, 3]


async def test_a_run_without_end_has_no_last_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody says that it stands at round 0: the node looks no more often for that."""
    followed = Followed(tmp_path, monkeypatch)

    async def heads() -> dict[str, Any]:
        return {"young": SimpleNamespace(round=0), "somebody": SimpleNamespace(round=followed.peer.round)}

    followed.peer.heads = heads  # type: ignore[method-assign]
    assert [await followed.at(round) for round in (3, 9)] == [3, 3]


async def test_a_newest_block_that_changes_who_decides_is_shown_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by a node that has started again."""
    genesis, blocks = made()
    change = changes_in(blocks, genesis)[-1].update.round
    assert await Followed(tmp_path, monkeypatch).at(change) == change
    again = Followed(tmp_path, monkeypatch)
    assert await again.at(change) == change
    given = await again.follower.answer_way("somebody", packed_question(0))
    assert given is not None
    assert follow(ModelKeys("me"), ORGANISER, genesis, read_way(given)).round == change


async def test_strangers_cannot_use_the_nodes_line_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A question of some bytes brings up to two megabytes. Voters have them whenever they ask."""
    monkeypatch.setattr(chain_follower, "MAX_WAY_BYTES", 1)
    followed = Followed(tmp_path, monkeypatch)
    await followed.at(5)
    assert followed.follower.head is not None
    voter = followed.follower.head.electorate[0]
    for peer, answers in {"stranger": [True, False], voter: [True, True], "another": [True, False]}.items():
        given = [await followed.follower.answer_way(peer, packed_question(0)) for _ in range(2)]
        assert [packed is not None for packed in given] == answers


async def test_a_damaged_block_is_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await Followed(tmp_path, monkeypatch).at(3) == 3
    for name in (FILE, FOLLOWED_FILE):
        (tmp_path / name).write_bytes(b"nonsense")
        assert await Followed(tmp_path, monkeypatch).at(5) == 5
