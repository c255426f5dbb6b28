"""The organiser's node follows certificates, and shows the way to whoever comes when all others are gone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
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
from peer.consensus.protocol.block import Block, Roster
from peer.consensus.rounds.interface import RosterHeard
from peer.network.sync.certified_way import YIELDS_TO
from peer.network.sync.chain_status import ChainStatus
from peer.node.store.kept_way import FILE
from peer.schema.events import AlertRaised, Event
from peer.testing.memory_peer import ModelKeys
from peer.testing.memory_swarm import ORGANISER, World
from tests.peer.consensus.organiser.test_light_chain import made

RUN = b"r" * 32


@cache
def outranked() -> tuple[int, tuple[Block, ...]]:
    """The round at whose anchor the organiser let two of the four of `made` go on, and a chain that goes on from there
    without a Restart: all four are there."""
    (restarted,) = [block for block in made()[1] if block.restarts]
    world = World(5, 4, restart_s=10.0)
    known = Roster(3, ("p0", "p1", "p2")).signed(ModelKeys(ORGANISER))
    world.desk.roster = known
    world.peers[0].driver.deliver(RosterHeard(world.now, known))
    world.scheduler.run_until(400.0)
    blocks = tuple(world.peers[0].disk.blocks)
    assert restarted.update.parent in [block.update.parent for block in blocks]
    assert restarted.update.digest not in [block.update.digest for block in blocks]
    return restarted.update.round - 1, blocks


class Keys(ModelKeys):
    """Those of the world's organiser."""

    identity = SimpleNamespace(peer_id=ORGANISER)


class Peer:
    """Stands at some round of a chain, and shows the way there."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        self.blocks = blocks
        self.round, self.asked = 0, list[int]()
        self.others: dict[str, int] = {}
        """What others say, who show nothing."""

    async def ask(self, peer: str, name: str, timeout_s: float, most: int, request: bytes = b"") -> bytes | None:
        start, end = read_question(request)
        self.asked.append(start)
        if peer in self.others:
            raise Unreachable(peer)
        before, _ = made()
        for block in self.blocks[:start]:
            before = before.after(block.update)
        if start >= self.round or end > self.round:
            raise Unreachable(peer)
        return packed_way(way_of(self.blocks[start : end or self.round], before))

    async def heads(self) -> dict[str, Any]:
        said = {"p0": self.round, **self.others}
        return {peer: SimpleNamespace(round=round) for peer, round in said.items()}


class Followed:
    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, rounds: int = 0) -> None:
        monkeypatch.setattr(chain_follower, "genesis_head", lambda genesis: made()[0])
        self.peer, self.events = Peer(made()[1]), list[Event]()
        self.follower = ChainFollower(folder, cast(Any, Keys(ORGANISER)), rounds, self.events.append)

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
    assert followed.peer.asked == [0, 3, 0]


async def test_rounds_that_nobody_has_made_make_no_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each who is asked in vain takes five seconds, in which the node does nothing else. So before the end a voter who
    claims it is asked once, a stranger not; and no run has a round after its last."""
    _, blocks = made()
    last = len(blocks)
    followed = Followed(tmp_path, monkeypatch, rounds=last)
    assert await followed.at(3) == 3
    followed.peer.others = {"p1": last, "stranger": last, "another": last}
    assert [await followed.at(4) for _ in range(9)] == [3] * 9
    assert followed.peer.asked == [0, 3, 0]
    assert await followed.at(last) == last
    asked = len(followed.peer.asked)
    followed.peer.others = {"p1": last + 1, "stranger": last + 1}
    monkeypatch.setattr(chain_follower, "LOOK_S", 0.0)
    assert [await followed.at(last) for _ in range(9)] == [last] * 9
    assert len(followed.peer.asked) == asked


async def test_who_shows_nothing_is_not_asked_again_before_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of those who are known each is asked once, however many strangers claim to be further."""
    monkeypatch.setattr(chain_follower, "LOOK_S", 0.0)
    followed = Followed(tmp_path, monkeypatch)
    followed.peer.others = {f"stranger{number}": 99 for number in range(99)} | {"p1": 99, "p2": 99}
    for _ in range(3):
        await followed.at(5)
    assert followed.follower.head is not None
    assert followed.follower.head.round == 5


async def test_a_run_without_end_has_no_last_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody says that it stands at round 0: the node looks no more often for that."""
    followed = Followed(tmp_path, monkeypatch)

    followed.peer.others = {"young": 0}
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


@pytest.mark.parametrize("starts_again", [False, True])
async def test_it_goes_over_to_a_restart_that_outranks_what_it_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, starts_again: bool
) -> None:
    """As all peers do; it tells that, shows the new way alone, and does not come back."""
    monkeypatch.setattr(chain_follower, "LOOK_S", 0.0)
    genesis, right = made()
    anchor_round, wrong = outranked()
    followed = Followed(tmp_path, monkeypatch)
    followed.peer.blocks = wrong
    for round in (3, anchor_round, anchor_round + 2):
        assert await followed.at(round) == round
    if starts_again:
        followed = Followed(tmp_path, monkeypatch)
    followed.peer.blocks = right
    assert await followed.at(anchor_round + 4) == anchor_round + 4
    assert [event.code for event in followed.events if isinstance(event, AlertRaised)] == ["OUTRANKED"]
    given = await followed.follower.answer_way("somebody", packed_question(0))
    assert given is not None
    assert follow(ModelKeys("me"), ORGANISER, genesis, read_way(given)) == followed.follower.head
    followed.peer.blocks = wrong
    assert await followed.at(anchor_round + 6) == anchor_round + 4, "nothing on that chain outranks a Restart"


async def test_a_restart_outranks_few_rounds_and_what_is_settled_is_never_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The organiser's checkpoints are of settled heads."""
    monkeypatch.setattr(chain_follower, "LOOK_S", 0.0)
    _, right = made()
    anchor_round, wrong = outranked()
    followed = Followed(tmp_path, monkeypatch)
    followed.peer.blocks = wrong
    for round in range(1, anchor_round + YIELDS_TO + 2):
        assert await followed.at(round) == round
        assert followed.follower.settled is not None
        assert followed.follower.settled.round == max(0, round - YIELDS_TO)
    followed.peer.blocks = right
    assert await followed.at(len(right)) == anchor_round + YIELDS_TO + 1
    assert followed.events == []


def forked(blocks: Sequence[Block], after: int) -> tuple[Block, ...]:
    """The same chain, whose voters have decided otherwise after a round."""
    head, found = made()[0], list[Block]()
    for block in blocks:
        if head.round >= after:
            update = replace(block.update, parent=head.anchor, time=block.update.time + 1)
            votes = [replace(vote, instance=head.instance, update=update.digest) for vote in block.votes]
            block = Block(update, tuple(vote.signed(ModelKeys(vote.voter)) for vote in votes))
        found.append(block)
        head = head.after(block.update)
    return tuple(found)


async def test_it_tells_of_a_certified_chain_that_parts_from_its_own_without_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, and keeps to its own. Who only shows nothing is not blamed."""
    monkeypatch.setattr(chain_follower, "LOOK_S", 0.0)
    _, blocks = outranked()
    followed = Followed(tmp_path, monkeypatch)
    followed.peer.blocks = blocks
    assert [await followed.at(round) for round in (3, 6)] == [3, 6]
    followed.peer.others = {"p1": 99}
    followed.peer.round = 0
    assert await followed.at(6) == 6
    assert followed.events == []
    followed.peer.others, followed.peer.blocks = {}, forked(blocks, 4)
    for _ in range(2):
        assert await followed.at(8) == 6
    (event,) = followed.events
    assert isinstance(event, AlertRaised)
    assert (event.code, "p0 shows one that parts" in event.text) == ("TWO_CHAINS", True)


async def test_it_knows_also_of_anchors_long_ago_who_has_what_a_restart_would_pass_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those who ask say themselves where they stand; one that says too much has the other against it."""
    monkeypatch.setattr(chain_follower, "LOOK_S", 0.0)
    (restart,) = next(block.restarts for block in made()[1] if block.restarts)
    anchor_round, wrong = outranked()
    followed = Followed(tmp_path, monkeypatch)
    followed.peer.blocks = wrong
    for round in range(1, anchor_round + YIELDS_TO + 3):
        assert await followed.at(round) == round
    followed.peer.others = {"p1": anchor_round, "p3": 99, "stranger": 99}
    followed.peer.round = 99
    await followed.follower.look(cast(Node, followed.peer), cast(Any, None), followed.peer.heads)
    assert followed.follower.holders(restart) == ["p3"]
    followed.peer.others = {"p1": 99, "p3": 99}
    await followed.follower.look(cast(Node, followed.peer), cast(Any, None), followed.peer.heads)
    assert followed.follower.holders(restart) == []


async def test_it_knows_who_has_what_a_restart_would_pass_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of voters and those who are known who is here and further, and does not ask itself; strangers can hold nobody up,
    nor can who is away."""
    monkeypatch.setattr(chain_follower, "LOOK_S", 0.0)
    (restart,) = next(block.restarts for block in made()[1] if block.restarts)
    anchor_round, wrong = outranked()
    followed = Followed(tmp_path, monkeypatch)
    holders = followed.follower.holders
    assert holders(restart) == []
    followed.peer.blocks = wrong
    await followed.at(anchor_round)
    followed.peer.others = {"p1": 99, "p2": anchor_round, "p3": anchor_round + 1, "stranger": 99}
    assert holders(restart) == [], "nothing follows that anchor yet"
    while await followed.at(anchor_round + 1) == anchor_round:
        pass  # of the three each is asked once
    assert restart.electorate == ("p0", "p1")
    assert holders(restart) == ["p3"]
    decided = wrong[anchor_round]
    shown = replace(restart.stuck[0], accepted=(0, decided.update.digest))
    assert holders(replace(restart, stuck=(shown, *restart.stuck[1:]))) == [], "it is what they go on with"
    other = replace(restart.stuck[0], accepted=(0, wrong[0].update.digest))
    assert holders(replace(restart, stuck=(other, *restart.stuck[1:]))) == ["p3"]
    followed.peer.others = {}
    await followed.at(anchor_round + 2)
    assert holders(restart) == []
