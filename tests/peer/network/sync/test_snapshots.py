"""Snapshots on disk, and how they come from several donors at once, some of which are not what they should be."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgpack
import pytest

from dht.errors import BadInput, DiskFull, Unreachable
from peer.network.sync import blob_download, blob_server
from peer.network.sync.blob_download import BlobDownload, fetch_manifest, snapshot_shelf
from peer.network.sync.blob_server import BUSY, CHUNK, MANIFEST, BlobServer
from peer.network.sync.chain_status import query_status
from peer.network.sync.snapshot_sync import offered
from peer.node.store import snapshots
from peer.node.store.chunked_file import damaged_chunks, read_chunk
from peer.node.store.run_directory import ChainBase
from peer.node.store.snapshots import CHUNK_BYTES, SnapshotManifest
from peer.schema.events import AlertRaised, Event, TransferProgressed
from peer.testing.child_process import HANG_S
from tests.peer.network.sync.donors import (
    CURSORS,
    LAYERS,
    OPEN,
    RUN,
    AtOnce,
    Network,
    anchor_at,
    chain_of,
    choice_of,
    same,
    write_snapshot,
)

CHUNKS = 6


@pytest.fixture(autouse=True)
def closed_donors() -> Iterator[None]:
    """They hold files open."""
    yield
    while OPEN:
        OPEN.pop().close()


# ---- on disk ----


def test_a_snapshot_is_read_as_it_was_written(tmp_path: Path) -> None:
    """θ and m to the bit, the cursors, the state's digest, and the head with the updates that led there."""
    disk = chain_of(tmp_path, 12)
    manifest = write_snapshot(tmp_path, disk, 11)
    path = snapshots.path_of(tmp_path, 11, disk.heads[11].anchor)
    assert snapshots.read_manifest(path) == manifest
    assert SnapshotManifest.from_bytes(manifest.to_bytes()) == manifest
    assert same(path, manifest, anchor_at(11))
    assert manifest.base.head == disk.heads[11]
    assert [update.round for update in manifest.base.before] == list(range(3, 12))
    assert dict(manifest.cursors) == CURSORS
    assert manifest.state == anchor_at(11).state_digest()
    assert len(manifest.chunks) == CHUNKS
    assert manifest.chunk_bytes(CHUNKS - 1) == 4 * LAYERS[1]


def test_all_peers_write_the_same_bytes(tmp_path: Path) -> None:
    """Also one that has pruned its chain meanwhile, and one that joined by a snapshot."""
    manifests = []
    for name in "ab":
        disk = chain_of(tmp_path / name, 12)
        manifests.append(write_snapshot(tmp_path / name, disk, 12).to_bytes())
    assert manifests[0] == manifests[1]


def test_the_two_newest_are_kept(tmp_path: Path) -> None:
    """And nothing that a crash left half-written."""
    disk = chain_of(tmp_path, 12)
    (tmp_path / "snapshots").mkdir()
    (tmp_path / "snapshots" / "00000001-junk.new").mkdir()
    for round in (4, 8, 12):
        write_snapshot(tmp_path, disk, round)
    assert [round for round, _ in snapshots.names(tmp_path)] == [8, 12]
    assert len(list((tmp_path / "snapshots").iterdir())) == 2


def test_the_newest_is_kept_also_where_another_chain_had_more_rounds(tmp_path: Path) -> None:
    """A peer whose chain a restart went past takes the snapshot of a lower round."""
    disk = chain_of(tmp_path, 12)
    for round in (10, 12, 8):
        write_snapshot(tmp_path, disk, round)
    assert [round for round, _ in snapshots.names(tmp_path)] == [8, 12]


def test_damage_is_named(tmp_path: Path) -> None:
    """Of the vectors or of the manifest: each byte counts."""
    disk = chain_of(tmp_path, 2)
    manifest = write_snapshot(tmp_path, disk, 2)
    path = snapshots.path_of(tmp_path, 2, disk.head.anchor)
    vectors = (path / "vectors").read_bytes()
    (path / "vectors").write_bytes(vectors[:-1] + bytes([vectors[-1] ^ 1]))
    assert read_chunk(path / "vectors", manifest, CHUNKS - 1) is None
    assert read_chunk(path / "vectors", manifest, 0) == vectors[:CHUNK_BYTES]
    with pytest.raises(BadInput, match=f"{path / 'vectors'} is damaged"):
        snapshots.read_layer(path, manifest, 1)
    (path / "vectors").unlink()
    assert read_chunk(path / "vectors", manifest, 0) is None
    (path / "manifest").write_bytes((path / "manifest").read_bytes()[:-1])
    with pytest.raises(BadInput, match=f"{path / 'manifest'} is damaged"):
        snapshots.read_manifest(path)


@pytest.mark.parametrize(
    "changed",
    [
        {0: 1}, {1: b"short"}, {2: b""}, {2: b"\x90"}, {3: ((1, 1), (0, 1))}, {3: ((0, -1),)}, {3: ((0, "x"),)},
        {4: b"s" * 32}, {5: b""}, {5: ()}, {5: (LAYERS[0],)}, {5: (*LAYERS, 0)}, {5: (-1, 1)}, {5: (1.5, 1)},
        {6: 7}, {7: (b"x",) * CHUNKS}, {7: (b"x" * 32,) * CHUNKS}, {7: None},
    ],
)  # fmt: skip
def test_a_manifest_is_checked_before_anything_is_allocated(tmp_path: Path, changed: dict[int, Any]) -> None:
    """Whoever sends it may be anybody."""
    packed = write_snapshot(tmp_path, chain_of(tmp_path, 2), 2).to_bytes()
    fields = list(msgpack.unpackb(packed, use_list=False))
    for index, value in changed.items():
        fields[index] = value
    with pytest.raises(ValueError, match=r"."):
        SnapshotManifest.from_bytes(msgpack.packb(fields))
    with pytest.raises(ValueError, match=r"."):
        SnapshotManifest.from_bytes(packed + b"\x00")


def test_a_full_disk_leaves_nothing_of_a_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says how much room is needed; the one before stays."""
    disk = chain_of(tmp_path, 4)
    write_snapshot(tmp_path, disk, 2)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: FREE_MB)
    with pytest.raises(DiskFull, match="no room for a snapshot: it takes 5 MB, 1 MB are free"):
        write_snapshot(tmp_path, disk, 4)
    assert [round for round, _ in snapshots.names(tmp_path)] == [2]
    assert len(list((tmp_path / "snapshots").iterdir())) == 1


class Usage(NamedTuple):
    free: int


FREE_MB = Usage(free=10**6)


# ---- from donors ----


class Taking:
    """A newcomer in `tmp_path/new` and donors that all have the snapshot of round 4."""

    def __init__(self, tmp_path: Path, *donors: str) -> None:
        self.directory, self.network, self.told = tmp_path / "new", Network(), list[Event]()
        self.donors = donors
        for donor in donors:
            disk = self.network.add(tmp_path, donor, 6, 4)
        self.manifest = snapshots.read_manifest(snapshots.path_of(tmp_path / donors[0], 4, disk.heads[4].anchor))

    async def run(self, layers: range | None = None, **spans: range) -> Path:
        """Take it, or these layers of it, from donors that have `spans` of it, or all."""
        await self.survey()
        choice = replace(choice_of(self.manifest, *self.donors), spans=spans)
        download = BlobDownload(
            snapshot_shelf(self.directory, self.manifest), self.network, self.manifest,
            layers or range(len(self.manifest.layers)), choice, AtOnce(), self.told.append,
        )  # fmt: skip
        return await download.run()

    async def survey(self) -> None:
        """Donors give what they have been asked for before."""
        for donor in self.donors:
            await self.network.answers[donor]["chain-status"]("me", msgpack.packb(()))

    @property
    def alerts(self) -> list[str]:
        return [event.text for event in self.told if isinstance(event, AlertRaised)]

    def whole(self, path: Path) -> bool:
        """Whether the snapshot is there, and nothing else."""
        return same(path, snapshots.read_manifest(path), anchor_at(4)) and [path] == list(
            (self.directory / "snapshots").iterdir()
        )

    def chunks_of(self, donor: str) -> int:
        """How many chunks a donor was asked for."""
        return self.network.asked.count((donor, CHUNK))


async def test_chunks_come_from_all_donors(tmp_path: Path) -> None:
    """The folder gets its name when the whole is there; the people hear how far it is."""
    taking = Taking(tmp_path, "a", "b", "c")
    path = await taking.run()
    assert taking.whole(path)
    assert all(taking.chunks_of(donor) > 0 for donor in "abc")
    assert taking.alerts == []
    progress = [event for event in taking.told if isinstance(event, TransferProgressed)]
    assert progress[-1].bytes_done == progress[-1].bytes_total == 8 * sum(LAYERS)
    assert len(progress) <= 3, "not one for each chunk"


async def test_a_donor_that_dies_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    """After its first chunk nobody reaches it any more."""
    taking = Taking(tmp_path, "a", "b")
    honest = taking.network.answers["b"][CHUNK]

    async def die(peer: str, request: bytes) -> bytes | None:
        del taking.network.answers["b"]
        return await honest(peer, request)

    taking.network.answers["b"][CHUNK] = die
    assert taking.whole(await taking.run())
    assert len(taking.alerts) == 1
    assert taking.alerts[0].startswith("b stopped giving the snapshot (cannot reach peer b)")


async def test_a_donor_that_lies_about_a_chunk_is_named_and_left_out(tmp_path: Path) -> None:
    """Its bytes are not written; it is asked for nothing more."""
    taking = Taking(tmp_path, "liar", "honest")
    give = taking.network.answers["liar"][CHUNK]

    async def lie(peer: str, request: bytes) -> bytes | None:
        payload = await give(peer, request)
        assert payload is not None
        return payload[:-1] + bytes([payload[-1] ^ 1])

    taking.network.answers["liar"][CHUNK] = lie
    assert taking.whole(await taking.run())
    assert len(taking.alerts) == 1
    assert "liar gave wrong bytes for chunk" in taking.alerts[0]
    assert taking.chunks_of("liar") <= blob_download.LANES


async def test_a_donor_that_is_silent_holds_nobody_up(tmp_path: Path) -> None:
    """At the end what it was asked for is asked of another, too."""
    taking = Taking(tmp_path, "silent", "honest")
    asked = asyncio.Event()

    async def hang(peer: str, request: bytes) -> bytes | None:
        asked.set()
        await asyncio.Event().wait()
        return None

    taking.network.answers["silent"][CHUNK] = hang
    async with asyncio.timeout(HANG_S):
        assert taking.whole(await taking.run())
    assert asked.is_set()


async def test_a_busy_donor_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own round goes first; that is no fault."""
    monkeypatch.setattr(blob_download, "BUSY_S", 0.0)
    taking = Taking(tmp_path, "a")
    give, calls = taking.network.answers["a"][CHUNK], list[bytes]()

    async def now_and_then(peer: str, request: bytes) -> bytes | None:
        calls.append(request)
        return BUSY if len(calls) % 2 else await give(peer, request)

    taking.network.answers["a"][CHUNK] = now_and_then
    assert taking.whole(await taking.run())
    assert taking.alerts == []
    assert len(calls) >= 2 * CHUNKS


async def test_four_busy_donors_of_twelve_leave_their_slots_to_the_eight_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long they stay busy, and none is left out for that."""
    monkeypatch.setattr(blob_download, "BUSY_S", 0.0)
    taking = Taking(tmp_path, *"abcdefghijkl")

    async def busy(peer: str, request: bytes) -> bytes | None:
        return BUSY

    for donor in "abcd":
        taking.network.answers[donor][CHUNK] = busy
    async with asyncio.timeout(HANG_S):
        assert taking.whole(await taking.run())
    assert sum(taking.chunks_of(donor) for donor in "efghijkl") >= CHUNKS
    assert all(taking.chunks_of(donor) <= 2 * blob_download.LANES for donor in "abcd")
    assert taking.alerts == []


async def test_a_donor_that_is_busy_for_ever_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody else has it, too: the newcomer hears why, and looks for others."""
    monkeypatch.setattr(blob_download, "BUSY_S", 0.0)
    taking = Taking(tmp_path, "a")

    async def busy(peer: str, request: bytes) -> bytes | None:
        return BUSY

    taking.network.answers["a"][CHUNK] = busy
    async with asyncio.timeout(HANG_S):
        with pytest.raises(Unreachable, match="nobody is left who gives the snapshot"):
            await taking.run()
    assert taking.chunks_of("a") <= blob_download.BUSY_MOST + blob_download.LANES
    assert taking.alerts == ["a was too busy for long to give the snapshot: others are asked"]


class Taker:
    """Asks one donor whether it is taken on."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(blob_server, "time", SimpleNamespace(monotonic=lambda: self.now))
        self.donor = BlobServer(tmp_path, AtOnce(), 10**6)

    def takes(self, peer: str) -> bool:
        return self.donor._takes_on(peer)


def test_four_strangers_that_ask_on_and_on_keep_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has its turn; whom the run knows finds room at once."""
    taker, turns = Taker(tmp_path, monkeypatch), 0
    taker.donor.is_known = lambda peer: peer == "known"
    for _ in range(600):
        for peer in ("s1", "s2", "s3", "s4"):
            taker.takes(peer)
        turns += taker.takes("honest")
        assert taker.takes("known")
        taker.now += 0.5
    assert turns >= 200, "of 600, where five share four places"


def test_who_takes_long_is_not_put_off_while_nobody_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taker = Taker(tmp_path, monkeypatch)
    for _ in range(600):
        assert all(taker.takes(peer) for peer in ("s1", "s2", "s3", "s4"))
        taker.now += 0.5


async def test_a_download_that_was_cut_goes_on_where_it_was(tmp_path: Path) -> None:
    """All donors are gone after three chunks; the next life asks for the rest alone, and not for what is damaged."""
    taking = Taking(tmp_path, "a")
    answers, given = taking.network.answers["a"], list[int]()
    give = answers[CHUNK]

    async def three(peer: str, request: bytes) -> bytes | None:
        given.append(1)
        if len(given) > 3:
            raise Unreachable("gone")
        return await give(peer, request)

    answers[CHUNK] = three
    with pytest.raises(Unreachable, match="nobody is left who gives the snapshot"):
        await taking.run()
    assert snapshots.names(taking.directory) == []
    (part,) = (taking.directory / "snapshots").iterdir()
    with (part / "vectors").open("r+b") as file:  # one of the three was not on disk when the power went
        file.write(bytes(100))
    answers[CHUNK] = give
    taking.network.asked.clear()
    assert taking.whole(await taking.run())
    assert taking.chunks_of("a") == CHUNKS - 3 + 1


async def test_what_is_there_already_is_not_asked_for(tmp_path: Path) -> None:
    """The whole had come before the power went; if it was damaged since, only that comes again."""
    taking = Taking(tmp_path, "a")
    path = await taking.run()
    taking.network.asked.clear()
    assert taking.whole(await taking.run())
    assert taking.chunks_of("a") == 0
    with (path / "vectors").open("r+b") as file:
        file.write(bytes(100))
    assert taking.whole(await taking.run())
    assert taking.chunks_of("a") == 1


# ---- some layers ----

TWELVE = (300_000,) * 12
"""Two chunks for each vector."""
ANSWERS_BYTES = 10_000
"""All that is not chunks takes less."""


@pytest.fixture
def _twelve_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.peer.network.sync.donors.LAYERS", TWELVE)


@pytest.mark.usefixtures("_twelve_layers")
async def test_some_layers_cost_their_share_and_the_rest_can_follow(tmp_path: Path) -> None:
    """Three of twelve: a quarter of the bytes. The folder says what it holds.

    From one donor, as of two the last chunks may come twice.
    """
    taking = Taking(tmp_path, "a")
    await taking.survey()
    taking.network.given_bytes = 0
    path = await taking.run(range(4, 7))
    vectors_bytes = 8 * sum(TWELVE)
    told = [event for event in taking.told if isinstance(event, TransferProgressed)][-1]
    assert told.bytes_done == told.bytes_total == vectors_bytes / 4
    assert vectors_bytes / 4 <= taking.network.given_bytes < 1.001 * vectors_bytes / 4
    anchor = anchor_at(4)
    for layer in range(4, 7):
        theta, momentum = snapshots.read_layer(path, taking.manifest, layer)
        assert theta.tobytes() + momentum.tobytes() == b"".join(anchor.chunks(layer))
    with pytest.raises(BadInput, match="damaged"):
        snapshots.read_layer(path, taking.manifest, 0)
    assert snapshots.layers_in(path, taking.manifest) == range(4, 7)

    assert await taking.run(range(4, 8)) == path
    assert snapshots.layers_in(path, taking.manifest) == range(4, 8)
    assert taking.network.given_bytes < 1.01 * vectors_bytes / 3
    assert await taking.run() == path
    assert same(path, taking.manifest, anchor)
    assert [file.name for file in sorted(path.iterdir())] == ["manifest", "vectors"]
    assert taking.network.given_bytes < 1.001 * vectors_bytes
    assert await taking.run(range(1)) == path
    assert snapshots.layers_in(path, taking.manifest) == range(12), "the whole holds that layer too"
    assert taking.network.given_bytes < 1.001 * vectors_bytes
    assert taking.alerts == []


STAGES = {"lead": range(5), "worker": range(5, 9), "last": range(9, 12)}


def homes(tmp_path: Path, *names: str) -> Taking:
    """Donors that are homes of one cluster, beside a donor that has gone since all of them wrote the snapshot."""
    taking = Taking(tmp_path, "gone")
    for name in names:
        taking.network.add(tmp_path, name, 6, 4, layers=STAGES[name])
    taking.donors = names
    del taking.network.answers["gone"]
    return taking


@pytest.mark.usefixtures("_twelve_layers")
@pytest.mark.parametrize("wanted", [None, range(3, 7), range(9, 12)])
async def test_homes_of_a_cluster_together_give_what_none_of_them_has(tmp_path: Path, wanted: range | None) -> None:
    """The survey says who has what; nobody is asked for what it has not. All have one manifest."""
    taking = homes(tmp_path, *STAGES)
    standings = await query_status(taking.network, STAGES, (taking.manifest.anchor,))
    assert {peer: said.offers[-1].layers for peer, said in standings.items()} == STAGES
    (choice,) = offered(standings, wanted or range(12))
    assert choice.spans == STAGES
    assert await fetch_manifest(taking.network, choice) == taking.manifest
    path = await taking.run(wanted, **STAGES)
    for layer in wanted or range(12):
        theta, momentum = snapshots.read_layer(path, taking.manifest, layer)
        assert theta.tobytes() + momentum.tobytes() == b"".join(anchor_at(4).chunks(layer))
    assert taking.alerts == []


@pytest.mark.usefixtures("_twelve_layers")
async def test_what_no_home_has_is_not_waited_for(tmp_path: Path) -> None:
    """Its layers are chosen by nobody, and a home that goes away meanwhile ends the download."""
    taking = homes(tmp_path, "lead", "last")
    standings = await query_status(taking.network, ("lead", "last"), (taking.manifest.anchor,))
    assert not offered(standings, range(12))
    assert offered(standings, range(5))
    taking.donors = ("lead", "worker", "last")
    taking.network.answers["worker"] = {}
    with pytest.raises(Unreachable, match="nobody is left"):
        async with asyncio.timeout(HANG_S):
            await BlobDownload(
                snapshot_shelf(taking.directory, taking.manifest), taking.network, taking.manifest, range(12),
                replace(choice_of(taking.manifest, "lead", "last"), spans=STAGES), AtOnce(), taking.told.append,
            ).run()  # fmt: skip


def test_a_home_refuses_chunks_of_another_state(tmp_path: Path) -> None:
    """Of its own layers, or of all: nothing is left of the draft."""
    disk = chain_of(tmp_path, 4)
    anchor, base = anchor_at(4), ChainBase.after(disk.updates_up_to(disk.head.anchor))
    chunks = tuple(digest for layer in range(len(LAYERS)) for digest in anchor.chunk_digests(layer))
    for wrong, state in (((bytes(32), *chunks[1:]), b""), ((*chunks[:-1], bytes(32)), anchor.state_digest())):
        made = snapshots.draft(
            tmp_path, anchor.sizes, anchor.chunks, run=RUN, base=base, cursors=anchor.cursors, layers=range(1)
        )
        with pytest.raises(ValueError, match="not the chunks of the state of round 4"):
            made.publish(wrong, state)
        assert list((tmp_path / "snapshots").iterdir()) == []


@pytest.mark.usefixtures("_twelve_layers")
@pytest.mark.parametrize(("layer", "place"), [(layer, -(layer % 2)) for layer in range(len(TWELVE))])
async def test_a_flipped_byte_in_any_layer_is_found_and_the_chunk_fetched_elsewhere(
    tmp_path: Path, layer: int, place: int
) -> None:
    """On the way, and then on this disk."""
    taking = Taking(tmp_path, "flips", "honest")
    chunk = taking.manifest.chunks_of(layer)[place]
    answers, asked = taking.network.answers, asyncio.Event()
    flips, gives = answers["flips"][CHUNK], answers["honest"][CHUNK]

    async def flip(peer: str, request: bytes) -> bytes | None:
        payload = await flips(peer, request)
        if payload is None or msgpack.unpackb(request)[1] != chunk:
            return payload
        asked.set()
        return bytes([payload[0] ^ 1]) + payload[1:]

    async def give_after_it(peer: str, request: bytes) -> bytes | None:
        await asked.wait()
        return await gives(peer, request)

    answers["flips"][CHUNK], answers["honest"][CHUNK] = flip, give_after_it
    async with asyncio.timeout(HANG_S):
        part = await taking.run(range(layer, layer + 1))
    expected = b"".join(anchor_at(4).chunks(layer))
    assert b"".join(each.tobytes() for each in snapshots.read_layer(part, taking.manifest, layer)) == expected
    assert taking.alerts == [f"flips gave wrong bytes for chunk {chunk} of the snapshot: others are asked"]

    with (part / "vectors").open("r+b") as file:
        file.seek(taking.manifest.offset_bytes(chunk))
        file.write(b"flipped")
    assert damaged_chunks(part / "vectors", taking.manifest, taking.manifest.chunks_of(layer)) == [chunk]
    taking.network.given_bytes = 0
    async with asyncio.timeout(HANG_S):
        await taking.run(range(layer, layer + 1))
    assert b"".join(each.tobytes() for each in snapshots.read_layer(part, taking.manifest, layer)) == expected
    assert taking.network.given_bytes <= 2 * taking.manifest.chunk_bytes(chunk) + ANSWERS_BYTES, "only that comes again"


async def test_what_is_left_of_another_download_goes(tmp_path: Path) -> None:
    """Its snapshot is not offered any more."""
    taking = Taking(tmp_path, "a")
    (taking.directory / "snapshots" / f"00000002-{'0' * 64}.part").mkdir(parents=True)
    assert taking.whole(await taking.run())


async def test_a_donor_gives_to_the_end_what_it_has_begun_to_give(tmp_path: Path) -> None:
    """Though it has written two newer ones meanwhile; when nobody takes it any more the room is free again."""
    taking = Taking(tmp_path, "a")
    await taking.survey()
    choice = choice_of(taking.manifest, "a")
    assert await fetch_manifest(taking.network, choice) == taking.manifest
    shutil.rmtree(tmp_path / "a" / "snapshots")
    assert taking.whole(await taking.run())
    donor = taking.network.donors["a"]
    donor._let_go(choice.offer.manifest)
    assert await fetch_manifest(taking.network, choice) == taking.manifest, "it was asked for just now"
    donor._held[choice.offer.manifest].asked_at -= blob_server.HOLD_S
    donor._let_go(choice.offer.manifest)
    with pytest.raises(Unreachable):
        await fetch_manifest(taking.network, choice)


async def test_a_donor_without_the_snapshot_is_left_out(tmp_path: Path) -> None:
    """It has written two newer ones before anybody took it."""
    taking = Taking(tmp_path, "a", "b")
    await taking.survey()
    shutil.rmtree(tmp_path / "b" / "snapshots")
    assert taking.whole(await taking.run())
    assert taking.alerts == ["b no longer has the snapshot: others are asked"]


async def test_a_full_disk_is_said_before_anything_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what is there already needs no room."""
    taking = Taking(tmp_path, "a")
    await taking.survey()
    monkeypatch.setattr(shutil, "disk_usage", lambda path: FREE_MB)
    with pytest.raises(DiskFull, match="no room for the snapshot: 5 MB, 1 MB are free"):
        await taking.run()
    assert taking.chunks_of("a") == 0


async def test_the_manifest_is_taken_from_whoever_has_it(tmp_path: Path) -> None:
    """Bytes of another digest count for nothing."""
    taking = Taking(tmp_path, "liar", "honest")
    await taking.survey()

    async def lie(peer: str, request: bytes) -> bytes | None:
        return replace(taking.manifest, cursors=()).to_bytes()

    taking.network.answers["liar"][MANIFEST] = lie
    assert await fetch_manifest(taking.network, choice_of(taking.manifest, "gone", "liar", "honest")) == taking.manifest
    with pytest.raises(Unreachable, match="no peer gave the manifest"):
        await fetch_manifest(taking.network, choice_of(taking.manifest, "gone", "liar"))


async def dawdle(peer: str, request: bytes) -> bytes | None:
    """An answer that never comes to its end."""
    await asyncio.Event().wait()
    return None


async def test_a_donor_that_dawdles_does_not_keep_the_manifest_of_another_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one is asked meanwhile, and who is still at it is left alone."""
    taking = Taking(tmp_path, "slow", "honest")
    await taking.survey()
    taking.network.answers["slow"][MANIFEST] = dawdle
    monkeypatch.setattr(blob_download, "MANIFEST_NEXT_S", 0.01)
    others = asyncio.all_tasks()
    assert await fetch_manifest(taking.network, choice_of(taking.manifest, "slow", "honest")) == taking.manifest
    assert asyncio.all_tasks() == others


async def test_nobody_waits_long_for_a_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many donors dawdle, it is two minutes for all of them."""
    assert blob_download.MANIFEST_TIMEOUT_S <= 120.0
    names = [f"slow-{number}" for number in range(5)]
    taking = Taking(tmp_path, *names)
    await taking.survey()
    for name in names:
        taking.network.answers[name][MANIFEST] = dawdle
    monkeypatch.setattr(blob_download, "MANIFEST_NEXT_S", 0.01)
    monkeypatch.setattr(blob_download, "MANIFEST_TIMEOUT_S", 1.0)
    async with asyncio.timeout(HANG_S):
        with pytest.raises(Unreachable, match="no peer gave the manifest"):
            await fetch_manifest(taking.network, choice_of(taking.manifest, *names))
    assert taking.network.asked.count(("slow-4", MANIFEST)) == 1, "all were asked"
