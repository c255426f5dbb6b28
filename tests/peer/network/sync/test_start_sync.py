"""The model from which a run starts, loaded from other peers: whole, checked, whoever lies, and once per machine."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3

from dht.errors import Unreachable
from peer.consensus.codec.state_digest import CHUNK_BYTES
from peer.network.sync import start_sync
from peer.network.sync.blob_server import CHUNK, MANIFEST, BlobServer
from peer.network.sync.start_sync import bring_start
from peer.node.store import start_blob
from peer.node.store.start_blob import StartManifest
from peer.schema.events import AlertRaised, Event
from tests.peer.network.sync.donors import Answer, AtOnce, Network

ELEMENTS = CHUNK_BYTES // 4
FILES = {"tokenizer.json": b"{}", "merges.txt": b"a b"}


class Machine:
    """One without the model; and others that have it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._cache, self._patch = folder, monkeypatch
        monkeypatch.setattr(start_sync, "TRY_AGAIN_S", 0.0)
        self.network, self.told, self.open = Network(), list[Event](), list[BlobServer]()
        self.stand_at("organiser")
        layers = [np.random.default_rng(seed).random(ELEMENTS + seed, dtype=np.float32) for seed in range(3)]
        self.manifest = start_blob.write(layers, FILES)
        self.digest = self.manifest.name
        self.whole = start_blob.folder_of(self.digest).joinpath(start_blob.VECTORS).read_bytes()

    def stand_at(self, name: str) -> None:
        self._patch.setenv(start_blob.CACHE, str(self._cache / name))

    def give(self, name: str) -> None:
        """A peer that has it."""
        path = self._cache / f"{name}.vectors"
        path.write_bytes(self.whole)
        donor = BlobServer(self._cache / name, AtOnce(), 10**10)
        self.open.append(donor)
        donor.keep(path, self.manifest)
        answers = self.network.answers[name] = {}
        donor.listen(type("Ear", (), {"answer": staticmethod(answers.__setitem__)})())

    async def bring(self, *others: str) -> None:
        """To a machine of the name `me`."""
        self.stand_at("me")

        async def read_others() -> Sequence[str]:
            return others

        await bring_start(self.digest, self.network, read_others, AtOnce(), self.told.append)

    def alerts(self) -> list[str]:
        return [event.text for event in self.told if isinstance(event, AlertRaised)]

    def require_whole(self) -> None:
        start_blob.require_intact(self.digest)
        assert start_blob.folder_of(self.digest).joinpath(start_blob.VECTORS).read_bytes() == self.whole
        assert start_blob.read_files(self.digest) == FILES


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    made = Machine(tmp_path, monkeypatch)
    yield made
    for donor in made.open:
        donor.close()


async def test_it_comes_whole_from_several(machine: Machine) -> None:
    machine.give("a")
    machine.give("b")
    await machine.bring("a", "b", "nobody")
    machine.require_whole()
    assert len(machine.whole) < machine.network.given_bytes < 2 * len(machine.whole), (
        "some are asked for twice at the end"
    )
    assert {peer for peer, name in machine.network.asked if name == CHUNK} == {"a", "b"}


async def test_who_gives_other_bytes_is_named_and_left_out(machine: Machine) -> None:
    machine.give("liar")
    machine.network.answers["liar"][CHUNK] = _always(bytes(CHUNK_BYTES))
    machine.give("a")
    await machine.bring("liar", "a")
    machine.require_whole()
    assert [text for text in machine.alerts() if text.startswith("liar gave wrong bytes")]


async def test_a_manifest_of_another_model_is_no_manifest(machine: Machine) -> None:
    machine.give("a")
    other = StartManifest(layers=(1,), files_bytes=0, chunks=(b"d" * 32,))
    machine.network.answers["liar"] = {MANIFEST: _always(other.to_bytes())}
    machine.network.answers["noise"] = {MANIFEST: _always(os.urandom(100))}
    await machine.bring("liar", "noise", "a")
    machine.require_whole()
    assert not [peer for peer, name in machine.network.asked if name == CHUNK and peer != "a"]


async def test_it_waits_for_somebody_who_has_it_and_goes_on_where_it_was(machine: Machine) -> None:
    """The first that gives it goes away in the middle."""
    machine.give("a")
    machine.stand_at("me")
    given = machine.network.answers["a"][CHUNK]
    chunks, looks = list[bytes](), list[int]()

    async def one_chunk_only(peer: str, request: bytes) -> bytes | None:
        if chunks:
            raise Unreachable("gone")
        payload = await given(peer, request)
        chunks.append(payload or b"")
        return payload

    machine.network.answers["a"][CHUNK] = one_chunk_only

    async def read_others() -> Sequence[str]:
        looks.append(len(looks))
        if len(looks) == 3:
            machine.give("b")
        return ("a",) if len(looks) == 1 else ("b",) if len(looks) > 3 else ()

    await bring_start(machine.digest, machine.network, read_others, AtOnce(), machine.told.append)
    machine.require_whole()
    assert len(looks) == 4
    assert machine.network.given_bytes == len(machine.whole) + 2 * len(machine.manifest.to_bytes())


async def test_two_peers_of_one_machine_load_it_once(machine: Machine) -> None:
    machine.give("a")
    await asyncio.gather(machine.bring("a"), machine.bring("a"))
    machine.require_whole()
    assert machine.network.given_bytes == len(machine.whole) + len(machine.manifest.to_bytes())


def test_a_manifest_is_canonical(machine: Machine) -> None:
    packed = machine.manifest.to_bytes()
    assert StartManifest.from_bytes(packed) == machine.manifest
    assert machine.manifest.name == blake3(packed).hexdigest()
    for broken in (packed[:-1], packed + b"\0", b"", b"\x90", packed.replace(b"\x01", b"\x02", 1)):
        with pytest.raises(ValueError, match=r".+"):
            StartManifest.from_bytes(broken)


def test_a_tokenizers_files_stay_in_their_folder(machine: Machine) -> None:
    for name in ("../escape", ".hidden", "a/b"):
        manifest = start_blob.write([np.ones(1, np.float32)], {name: b"x"})
        with pytest.raises(ValueError, match="names that lead elsewhere"):
            start_blob.read_files(manifest.name)


def _always(payload: bytes) -> Answer:
    async def answer(peer: str, request: bytes) -> bytes:
        return payload

    return answer
