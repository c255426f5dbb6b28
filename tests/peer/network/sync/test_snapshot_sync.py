"""A peer finds out that its chain leads nowhere, and takes a snapshot that is certified from where it stands."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from dht.errors import RunOver
from peer.consensus.organiser.checkpoints import QUESTION as CHECKPOINT
from peer.consensus.organiser.checkpoints import ChainCheckpoint
from peer.consensus.organiser.light_chain import packed_way, read_question
from peer.consensus.protocol.block import VOID
from peer.consensus.protocol.head import ChainHead
from peer.consensus.protocol.messages import Heartbeat
from peer.network.sync import snapshot_sync
from peer.network.sync.certified_way import Follower
from peer.network.sync.chain_status import ASK_MOST
from peer.network.sync.checkpoint_keeper import CheckpointKeeper
from peer.network.sync.snapshot_sync import SnapshotSync
from peer.node.store import snapshots
from peer.node.store.chain import ChainStore
from peer.node.store.kept_way import KeptWay
from peer.node.store.run_directory import ChainBase
from peer.schema.events import AlertRaised, Event, PeerStateChanged
from peer.testing.child_process import HANG_S
from peer.testing.memory_peer import ModelKeys
from peer.testing.memory_swarm import ORGANISER
from tests.peer.consensus.rounds.build import NAMES, rules, update
from tests.peer.network.sync.donors import (
    LAYERS,
    OPEN,
    RUN,
    AtOnce,
    Network,
    anchor_at,
    certify,
    chain_of,
    same,
    state_at,
    write_snapshot,
)

HERE = "round 5 here"
GOES_ON = "this peer goes on from a snapshot and keeps what it has learned and nobody can have counted"
MODEL_BYTES = 8 * sum(LAYERS)


@pytest.fixture(autouse=True)
def closed_donors() -> Iterator[None]:
    """They hold files open."""
    yield
    while OPEN:
        OPEN.pop().close()


@dataclass
class Node(Network):
    """A network in which everybody can be dialled."""

    peer_id: str = "me"
    met: list[str] = field(default_factory=list)

    async def meet(self, peer: str, addresses: Sequence[str]) -> bool:
        self.met.append(peer)
        return True


@dataclass
class Notices:
    """A board on which these stand."""

    heads: dict[str, Heartbeat | None] = field(default_factory=dict)
    looks: int = 0

    async def read_others(self) -> dict[str, tuple[Heartbeat | None, tuple[str, ...]]]:
        self.looks += 1
        return {peer: (head, ()) for peer, head in self.heads.items()}


class Newcomer:
    """A peer with a chain of its own, and others in a run with pruned chains."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rounds: int = 0) -> None:
        for name in ("LOOK_AGAIN_S", "TRY_AGAIN_S"):
            monkeypatch.setattr(snapshot_sync, name, 0.0)
        self.root, self.directory = tmp_path, tmp_path / "me"
        self.node, self.notices, self.told = Node(), Notices(), list[Event]()
        self.disk = chain_of(self.directory, rounds)
        self.keeper = CheckpointKeeper(self.node, ModelKeys("me"), ORGANISER, None, lambda code, who, why: None)
        self.syncer = self.make(round_bytes=MODEL_BYTES)

    def make(self, round_bytes: int, keep_rounds: int = 3) -> SnapshotSync:
        return SnapshotSync(
            self.node,
            RUN,
            replace(rules("me"), keep_rounds=keep_rounds, organiser=ORGANISER),
            self.notices.read_others,
            self.directory,
            LAYERS,
            round_bytes,
            AtOnce(),  # type: ignore[arg-type]
            self.told.append,
            self.keeper,
        )

    def add(
        self, name: str, rounds: int, *taken: int, seed: int = 0, branch: int = 0, voters: tuple[str, ...] = NAMES
    ) -> ChainStore:
        """Somebody of the run, on the board and with these snapshots."""
        chain_of(self.root / name, rounds, branch, voters)
        disk = self.node.add(self.root, name, rounds, *taken, seed=seed)
        self.stands_at(name, disk.head)
        return disk

    def add_pruned(self, name: str) -> ChainStore:
        """One that has dropped what led to round 6, and stands at round 17."""
        self.add(name, 10, 6, 8)
        disk = self.node.donors[name].disk = chain_of(self.root / name, 17)
        assert disk.base.head.round == 6
        self.stands_at(name, disk.head)
        return disk

    def stands_at(self, name: str, head: ChainHead) -> None:
        self.notices.heads[name] = Heartbeat(head.anchor, head.round, head.weight, b"", True, 0, 0, False)


async def test_whoever_is_cut_off_needs_a_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has what follows its chain any more; near the others the round machine sees to it."""
    me = Newcomer(tmp_path, monkeypatch, rounds=5)
    assert not await me.syncer.find_need(me.disk)
    assert me.notices.looks == 1
    me.add("a", 8)
    assert not await me.syncer.find_need(me.disk), "three rounds are no distance"
    me.add_pruned("a")
    assert await me.syncer.find_need(me.disk) == await me.syncer.find_loss(me.disk)
    assert await me.syncer.find_need(me.disk) == f"the others are at round 17 and no longer have what follows {HERE}"
    assert set(me.node.met) == {"a"}
    me.add("c", 17)
    assert not await me.syncer.find_need(me.disk), "c has what follows"
    assert await me.syncer.find_loss(me.disk), "but did not give it"
    assert not await me.syncer.find_loss(me.disk, is_told=False), "it may be giving it just now"


async def test_nobody_leaves_its_chain_for_what_is_not_certified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of three voters are a quorum; one that makes rounds up with others whom nobody elected is none, however many
    show it, and whatever HEADs say."""
    me = Newcomer(tmp_path, monkeypatch, rounds=5)
    for name in "abcd":
        me.add(name, 40, 36, voters=(NAMES[0],))
    assert not await me.syncer.find_need(me.disk)
    assert not await me.syncer.find_loss(me.disk)
    bringing = asyncio.create_task(me.syncer.bring(me.disk, "cut off"))
    me.add("honest", 20, 16)
    async with asyncio.timeout(HANG_S):
        assert (await bringing).round == 16


def evening(folder: Path, rounds: int, back_at: int, branch: int) -> ChainStore:
    """One voter is left at round 5, and alone decides until the others are back; what it decides is its `branch`."""
    disk = chain_of(folder, 4)
    for round in range(5, rounds + 1):
        before, elect = disk.head, NAMES if round >= back_at else NAMES[:1]
        made = update(
            time=branch * (round > 5), parent=before.anchor, round=round, parts=(VOID,) * 3, weight=3 * round,
            state=state_at(round - 1), elect=elect,
        )  # fmt: skip
        certify(disk, made)
    return disk


async def test_the_key_that_was_left_of_an_evening_leads_nobody_astray(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rounds that it made up alone are certified, too. The organiser has signed where the run was at round 12."""
    me = Newcomer(tmp_path, monkeypatch)
    evening(tmp_path / "forger", 41, back_at=1000, branch=7)
    honest = evening(tmp_path / "honest", 20, back_at=8, branch=0)
    me.add("forger", 41, 36)
    assert (await me.syncer.find_need(me.disk)).startswith("41 updates"), "nobody can know better"
    me.add("honest", 20, 16)
    me.keeper.newest = ChainCheckpoint.of(honest.heads[12]).signed(ModelKeys(ORGANISER))
    assert (await me.syncer.find_need(me.disk)).startswith("20 updates")
    assert (await me.syncer.bring(me.disk, "")).anchor == honest.heads[16].anchor
    assert chain_of(me.directory, 16).way.first == 12


async def test_who_followed_the_key_that_was_left_comes_back_by_the_organisers_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It came without a checkpoint, and heard of one later: rounds that are made up do not count, however many."""
    me = Newcomer(tmp_path, monkeypatch)
    me.disk = evening(me.directory, 41, back_at=1000, branch=7)
    honest = evening(tmp_path / "honest", 20, back_at=8, branch=0)
    me.add("honest", 20, 16)
    assert not await me.syncer.find_need(me.disk)
    me.keeper.newest = ChainCheckpoint.of(honest.heads[12]).signed(ModelKeys(ORGANISER))
    why = await me.syncer.find_need(me.disk)
    assert why == "the organiser has signed another model of round 12 than this chain has"
    assert (await me.syncer.bring(me.disk, why)).anchor == honest.heads[16].anchor
    back = chain_of(me.directory, 16)
    assert back.head.anchor == honest.heads[16].anchor
    assert not await me.syncer.find_need(back)


async def test_a_newcomer_waits_for_the_checkpoint_that_its_invite_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever keeps it from the organiser's node and all others shows it nothing else instead."""
    me = Newcomer(tmp_path, monkeypatch)
    donor = me.add("a", 20, 16)
    signed = ChainCheckpoint.of(donor.heads[12]).signed(ModelKeys(ORGANISER))
    me.keeper.oldest = (signed.round, signed.anchor)
    is_told = asyncio.Event()
    me.syncer.say = lambda event: (me.told.append(event), is_told.set())  # type: ignore[func-returns-value]
    finding = asyncio.create_task(me.syncer.find_need(me.disk))
    async with asyncio.timeout(HANG_S):
        await is_told.wait()
        assert isinstance(me.told[0], PeerStateChanged)
        assert me.told[0].why.startswith("nobody shows the organiser's checkpoint of round 12")
        assert {name for _, name in me.node.asked} == {CHECKPOINT}

        async def given(peer: str, request: bytes) -> bytes | None:
            return signed.to_bytes()

        me.node.answers["a"][CHECKPOINT] = given
        assert await finding


async def test_who_comes_when_all_have_finished_is_told_where_they_stood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The organiser's node alone is there, and has certificates only. Nothing is over while one of the others is left,
    or the last round is not certified."""
    me = Newcomer(tmp_path, monkeypatch, rounds=5)
    me.syncer.rounds = 20
    assert not await me.syncer.find_need(me.disk), "nobody is there"
    me.node.add(tmp_path, ORGANISER, 19)
    assert not await me.syncer.find_loss(me.disk)
    chain_of(tmp_path / ORGANISER, 20)
    me.node.donors[ORGANISER].disk = chain_of(tmp_path / ORGANISER, 20)
    with pytest.raises(RunOver, match="finished the run with round 20 while this peer stood at round 5"):
        await me.syncer.find_need(me.disk)
    with pytest.raises(RunOver):
        await me.syncer.find_loss(me.disk)
    me.add("a", 20)
    assert not await me.syncer.find_need(me.disk)


async def test_records_of_peers_that_have_finished_and_left_hide_no_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They stay on the board for a while; the newcomer is as near as `keep_rounds`."""
    me = Newcomer(tmp_path, monkeypatch, rounds=18)
    me.syncer.rounds = 20
    me.node.add(tmp_path, ORGANISER, 20)
    last = me.node.donors[ORGANISER].disk.head
    me.notices.heads["gone"] = Heartbeat(last.anchor, 19, last.weight, b"", True, 0, 0, False)
    assert not await me.syncer.find_need(me.disk)
    me.notices.heads["gone"] = Heartbeat(last.anchor, 20, last.weight, b"", True, 0, 0, False)
    with pytest.raises(RunOver):
        await me.syncer.find_need(me.disk)


async def test_who_looks_for_a_snapshot_when_the_others_finish_is_told_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    me = Newcomer(tmp_path, monkeypatch, rounds=5)
    me.syncer.rounds = 20
    is_looking = asyncio.Event()
    me.syncer.say = lambda event: is_looking.set()
    bringing = asyncio.create_task(me.syncer.bring(me.disk, "cut off"))
    async with asyncio.timeout(HANG_S):
        await is_looking.wait()
        me.node.add(tmp_path, ORGANISER, 20)
        with pytest.raises(RunOver):
            await bringing


async def test_the_organisers_node_is_asked_however_many_names_are_on_the_board(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    me = Newcomer(tmp_path, monkeypatch, rounds=5)
    me.syncer.rounds = 20
    me.node.add(tmp_path, ORGANISER, 20)
    me.notices.heads = dict.fromkeys(f"stranger{number}" for number in range(128))
    for _ in range(4):
        with pytest.raises(RunOver):
            await me.syncer.find_loss(me.disk, is_told=False)


async def test_names_whose_addresses_swallow_all_hold_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a hundred a few are dialled, and those not for long."""
    me = Newcomer(tmp_path, monkeypatch, rounds=2)
    me.add("honest", 6, 4)
    meet = me.node.meet

    async def hang(peer: str, addresses: Sequence[str]) -> bool:
        await meet(peer, addresses)
        await asyncio.Event().wait()
        return True

    monkeypatch.setattr(me.node, "meet", hang)
    monkeypatch.setattr(snapshot_sync, "MEET_S", 0.0)
    me.notices.heads |= dict.fromkeys(f"stranger{number}" for number in range(128))
    assert ORGANISER not in me.notices.heads
    async with asyncio.timeout(HANG_S):
        assert (await me.syncer.bring(me.disk, "cut off")).round == 4
    assert len(me.node.met) <= ASK_MOST * me.notices.looks


async def test_of_a_way_that_shows_every_block_only_those_are_kept_that_are_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a donor could have this peer keep the whole run, and show newcomers more than one answer holds."""
    me = Newcomer(tmp_path, monkeypatch, rounds=2)
    donor = me.add("a", 20, 16)

    async def every_block(peer: str, request: bytes) -> bytes | None:
        start, end = read_question(request)
        return packed_way(donor.blocks[start : end or None])

    me.node.answers["a"]["way"] = every_block
    await me.syncer.bring(me.disk, "cut off")
    assert chain_of(me.directory, 16).way == KeptWay(first=0)


def wait_for_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer than a test lasts, where the product waits for a minute."""
    monkeypatch.setattr(
        SnapshotSync,
        "_follower",
        property(lambda me: Follower(asker=me.node, keys=me.rules.keys, organiser=ORGANISER, within_s=9 * HANG_S)),
    )


async def test_who_drips_its_way_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It offers the newest snapshot, and begins to show how one comes there. A newer one that is shown is taken."""
    wait_for_ways(monkeypatch)
    me = Newcomer(tmp_path, monkeypatch, rounds=2)
    me.add("honest", 6, 4)
    me.add("drips", 20, 16)
    shows = me.node.answers["drips"]["way"]
    goes_on, is_asked = asyncio.Event(), asyncio.Event()

    async def drip(peer: str, request: bytes) -> bytes | None:
        is_asked.set()
        await goes_on.wait()
        return await shows(peer, request)

    me.node.answers["drips"]["way"] = drip
    monkeypatch.setattr(snapshot_sync, "NEWER_S", 0.0)
    async with asyncio.timeout(HANG_S):
        assert (await me.syncer.bring(me.disk, "cut off")).round == 4
    monkeypatch.setattr(snapshot_sync, "NEWER_S", 9 * HANG_S)
    is_asked.clear()
    bringing = asyncio.create_task(me.syncer.bring(me.disk, "cut off"))
    async with asyncio.timeout(HANG_S):
        await is_asked.wait()
        goes_on.set()
        assert (await bringing).round == 16


async def test_who_is_furthest_shows_ways_to_all_others_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To see whether two chains part: it may take a minute for each."""
    wait_for_ways(monkeypatch)
    me = Newcomer(tmp_path, monkeypatch, rounds=2)
    for name, rounds in {"a": 4, "b": 5, "c": 6, "furthest": 8}.items():
        me.add(name, rounds, 3)
    shows, asked, all_asked = me.node.answers["furthest"]["way"], list[int](), asyncio.Event()

    async def slow(peer: str, request: bytes) -> bytes | None:
        _, end = read_question(request)
        asked.append(end)
        if {4, 5, 6} <= {*asked}:
            all_asked.set()
        if end:
            await all_asked.wait()
        return await shows(peer, request)

    me.node.answers["furthest"]["way"] = slow
    async with asyncio.timeout(HANG_S):
        assert await me.syncer.find_loss(me.disk)


async def test_between_two_certified_chains_a_newcomer_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    me = Newcomer(tmp_path, monkeypatch)
    me.add("a", 40, 36)
    me.add("b", 41, branch=7)
    is_told = asyncio.Event()
    me.syncer.say = lambda event: (me.told.append(event), is_told.set())  # type: ignore[func-returns-value]
    finding = asyncio.create_task(me.syncer.find_need(me.disk))
    async with asyncio.timeout(HANG_S):
        await is_told.wait()
    assert _alerts(me) == [
        "two chains are certified, and part before round 40: this peer follows none of them; ask the organiser for a "
        "new invite"
    ]
    assert not finding.done()
    finding.cancel()
    await asyncio.gather(finding, return_exceptions=True)


async def test_people_are_told_of_a_certified_chain_that_parts_from_this_peers_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the peer keeps to its own: no Restart outranks it."""
    me = Newcomer(tmp_path, monkeypatch, rounds=5)
    me.add("a", 20, 16, branch=7)
    assert not await me.syncer.find_need(me.disk)
    (text,) = _alerts(me)
    assert "a shows one that parts from this one between rounds" in text


async def test_a_newcomer_replays_while_that_is_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve updates against a snapshot and four updates; an old peer replays in any case."""
    me = Newcomer(tmp_path, monkeypatch)
    for name in "ab":
        me.add(name, 12, 8)
    assert not await me.make(round_bytes=MODEL_BYTES // 8).find_need(me.disk)
    assert await me.make(round_bytes=MODEL_BYTES // 8 + 1).find_need(me.disk)
    me.node.met.clear()
    me.node.peer_id = NAMES[0]
    me.notices.heads, heads = {}, me.notices.heads
    me.notices.looks = 0
    assert not await me.syncer.find_need(me.disk)
    assert me.notices.looks == 1, "a founder waits for nobody"
    assert me.node.met == []
    me.notices.heads = heads
    old = chain_of(me.root / "old", 1)
    assert not await me.make(round_bytes=MODEL_BYTES).find_need(old)


async def test_the_chain_begins_at_the_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On disk, with the updates before it and the way that leads there; the people are told what is going on."""
    me = Newcomer(tmp_path, monkeypatch, rounds=2)
    for name in "ab":
        donor = me.add(name, 6, 4)
    manifest = await me.syncer.bring(me.disk, "cut off")
    disk = chain_of(me.directory, 4)
    assert disk.heads == [donor.heads[4]]
    assert disk.way.first == 0
    assert disk.updates_up_to(disk.head.anchor) == donor.updates_up_to(disk.head.anchor)
    path = snapshots.path_of(me.directory, 4, disk.head.anchor)
    assert same(path, manifest, anchor_at(4))
    alerts = [event.text for event in me.told if isinstance(event, AlertRaised)]
    assert alerts == [f"cut off: {GOES_ON}"]
    says = [event.why for event in me.told if isinstance(event, PeerStateChanged)]
    assert says == ["taking the snapshot of round 4 (5 MB) from 2 peers"]


async def test_the_state_is_the_certified_one_however_many_offer_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One honest donor is enough: nothing is loaded of the others but a manifest, and people are told."""
    me = Newcomer(tmp_path, monkeypatch, rounds=2)
    for name in ("w", "wrong", "wronger"):
        me.add(name, 6, 4, seed=1)
    me.add("z", 6, 4)
    manifest = await me.syncer.bring(me.disk, "cut off")
    assert manifest.state == anchor_at(4).state_digest()
    assert {peer for peer, name in me.node.asked if name == "chunk"} == {"z"}
    assert _alerts(me)[1:] == ["the snapshot of round 4 is not of the state that its voters certified: refused"]


async def test_a_snapshot_without_the_updates_that_led_to_it_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its state and anchor are right; whoever began from it would wait and weigh otherwise than the others."""
    me = Newcomer(tmp_path, monkeypatch)
    for name in ("a", "b", "honest"):
        honest = me.add(name, 6, 4)
    for name in ("a", "b"):
        path = snapshots.path_of(tmp_path / name, 4, honest.heads[4].anchor)
        manifest = snapshots.read_manifest(path)
        short = replace(manifest, base=ChainBase.after(manifest.base.before[-1:]))
        (path / snapshots.MANIFEST).write_bytes(short.to_bytes())
    assert len((await me.syncer.bring(me.disk, "")).base.before) == 4
    assert _alerts(me) == ["the snapshot of round 4 leaves updates out that led to it: refused"]


async def test_the_way_of_one_chain_vouches_for_no_snapshot_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A liar shows the honest way, and offers a snapshot of the same tensors after updates of its own."""
    me = Newcomer(tmp_path, monkeypatch)
    honest = me.add("honest", 6, 4)
    for name in ("a", "b"):
        me.add(name, 6, 4, branch=7)
        me.node.answers[name]["way"] = me.node.answers["honest"]["way"]
    manifest = await me.syncer.bring(me.disk, "cut off")
    assert manifest.anchor == honest.heads[4].anchor


async def test_it_tries_until_somebody_gives_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """First nobody is there, then one who has another state, then an honest one."""
    me = Newcomer(tmp_path, monkeypatch, rounds=2)
    bringing = asyncio.create_task(me.syncer.bring(me.disk, "cut off"))
    await asyncio.sleep(0)
    me.add("wrong", 6, 4, seed=1)
    for _ in range(20):
        await asyncio.sleep(0)
    assert not bringing.done()
    me.add("a", 6, 4)
    async with asyncio.timeout(HANG_S):
        manifest = await bringing
    assert manifest.state == anchor_at(4).state_digest()
    assert "looking for peers that give a snapshot" in {
        event.why for event in me.told if isinstance(event, PeerStateChanged)
    }


async def test_a_snapshot_of_another_model_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though two agree on it; the older one will do."""
    me = Newcomer(tmp_path, monkeypatch, rounds=2)
    for name in "ab":
        disk = me.add(name, 9, 4)
        monkeypatch.setattr("tests.peer.network.sync.donors.LAYERS", (6, 4))
        write_snapshot(me.root / name, disk, 8)
        monkeypatch.undo()
    for name in ("LOOK_AGAIN_S", "TRY_AGAIN_S"):
        monkeypatch.setattr(snapshot_sync, name, 0.0)
    manifest = await me.syncer.bring(me.disk, "cut off")
    assert manifest.round == 4
    alerts: list[Any] = [event for event in me.told if isinstance(event, AlertRaised)]
    assert [event.text for event in alerts][1:] == ["the snapshot of round 8 is of another run or model: refused"]


async def test_a_snapshot_of_as_many_parameters_in_other_layers_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their chunks would lie elsewhere."""
    me = Newcomer(tmp_path, monkeypatch, rounds=2)
    for name in "ab":
        disk = me.add(name, 9, 4)
        with monkeypatch.context() as patched:
            patched.setattr("tests.peer.network.sync.donors.LAYERS", LAYERS[::-1])
            write_snapshot(me.root / name, disk, 8)
    assert (await me.syncer.bring(me.disk, "cut off")).round == 4
    assert "the snapshot of round 8 is of another run or model: refused" in _alerts(me)


def _alerts(me: Newcomer) -> list[str]:
    return [event.text for event in me.told if isinstance(event, AlertRaised)]


async def test_a_silent_donor_is_left_out_of_the_next_try(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless nobody else is left."""
    me = Newcomer(tmp_path, monkeypatch, rounds=2)
    me.add("a", 6, 4)
    manifest_answer, calls = me.node.answers["a"]["chunk"], list[int]()

    async def recover(peer: str, request: bytes) -> bytes | None:
        calls.append(1)
        return None if len(calls) <= 2 else await manifest_answer(peer, request)

    me.node.answers["a"]["chunk"] = recover
    async with asyncio.timeout(HANG_S):
        assert (await me.syncer.bring(me.disk, "cut off")).round == 4
    assert len(calls) > 2
