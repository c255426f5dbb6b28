"""Packs: what memory would hold, read where it lies."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dht.errors import BadInput
from peer.node.store import elsewhere, start_blob
from peer.schema import spec as specs
from peer.schema.spec import RunSpec
from peer.testing.child_process import BUSY
from peer.training.data import packs
from peer.training.data.chat.token_flags import HIDDEN
from peer.training.data.data_shards import Document
from peer.training.data.document_tokens import ChatEncoder, TextEncoder
from peer.training.data.hub_packs import ShardPack
from peer.training.data.open_source import open_source
from peer.training.data.packs import Pack, PackSource, fingerprint, packed
from peer.training.data.reading.data_files import find_files
from peer.training.data.source import MemorySource
from peer.training.data.tokenizer import ByteTokenizer
from tests.peer.training.data.read_whole import read_conversations, read_files
from tests.talks import on_talks

CONTEXT = 4


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(start_blob.CACHE, str(tmp_path / "cache"))
    return tmp_path / "cache" / "packs"


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(60):
        (folder / f"{number}.txt").write_text(f"text number {number} " * 30)
    return folder


def make_spec(**data: object) -> RunSpec:
    table = {"source": "files", "path": "texts", "held_out_every": 3, "eval_sequences": 3, **data}
    model = {"architecture": "llama", "context": CONTEXT}
    return specs.from_mapping({"run": {"name": "t", "seed": 3}, "model": model, "data": table})


def names(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir() if path.name != "of")


def test_a_pack_gives_what_memory_does(texts: Path) -> None:
    """To the bit: windows over two passes, and the held-out set."""
    spec = make_spec()
    packed_source, held = open_source(spec, str(texts)), MemorySource(read_files(str(texts), ""), ByteTokenizer(), spec)
    assert isinstance(packed_source, PackSource)
    assert dict(packed_source.windows) == dict(held.windows)
    for shard, windows in held.windows.items():
        for at in range(0, 2 * windows, 7):
            mine, other = packed_source.window(shard, at), held.window(shard, at)
            assert (mine.tolist(), mine.dtype) == (other.tolist(), other.dtype)
    assert (packed_source.held_out() == held.held_out()).all()


class Reads:
    """Counts the documents that were read."""

    def __init__(self, folder: Path, spec: RunSpec) -> None:
        self.folder, self.spec, self.read = folder, spec, list[str]()

    def pack(self) -> Pack:
        found = find_files(str(self.folder))
        files = fingerprint(found.base, found.names)
        return packed(str(self.folder), files, self.documents, TextEncoder(ByteTokenizer()), self.spec)

    def documents(self) -> Iterator[Document]:
        for document in read_files(str(self.folder), ""):
            self.read.append(document.name)
            yield document


def test_no_document_is_read_twice(texts: Path) -> None:
    """Neither at the next start nor by another peer of the machine."""
    reads = Reads(texts, make_spec())
    assert reads.pack().manifest == reads.pack().manifest
    assert sorted(reads.read) == sorted(f"{number}.txt" for number in range(60))


@pytest.mark.parametrize(("move", "where"), [("rename", "packs"), ("replace", "of")])
def test_peers_of_a_machine_that_pack_at_once_make_one_pack(
    move: str, where: str, texts: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one is done just before this one moves what it has written to its place: the pack, or what names it."""
    reads, moved, others = Reads(texts, make_spec()), getattr(Path, move), ["the other one"]

    def after_another(path: Path, target: Path) -> Path:
        if others and target.parent.name == where:
            others.clear()
            with monkeypatch.context() as patch:
                patch.setattr(os, "getpid", lambda: 1)
                reads.pack()
        done: Path = moved(path, target)
        return done

    monkeypatch.setattr(Path, move, after_another)
    pack = reads.pack()
    assert names(cache) == [pack.manifest.name]
    assert len(reads.read) == 120


def test_changed_documents_are_packed_anew_and_the_old_pack_goes(texts: Path, cache: Path) -> None:
    reads = Reads(texts, make_spec())
    before = reads.pack()
    (texts / "1.txt").write_text("another text, and longer than that which was here before")
    after = reads.pack()
    assert names(cache) == [after.manifest.name] != [before.manifest.name]
    assert len(reads.read) == 120
    assert before.read(packs.HELD_OUT, 0, 3).size == 3  # whoever has it open reads on


def test_what_is_damaged_is_packed_anew(texts: Path, cache: Path) -> None:
    """A byte that has changed is seen when it is read; nothing of it is trained on."""
    reads = Reads(texts, make_spec())
    source = PackSource(reads.spec, reads.pack)
    tokens = cache / names(cache)[0] / "tokens"
    expected, shard = source.held_out().tolist(), min(source.windows)
    first = source.window(shard, 0).tolist()
    reads.read.clear()
    fresh = PackSource(reads.spec, reads.pack)
    tokens.write_bytes(bytes(byte ^ 1 for byte in tokens.read_bytes()))
    assert fresh.window(shard, 0).tolist() == first
    assert fresh.held_out().tolist() == expected
    assert len(reads.read) == 60


def test_damage_after_a_change_is_one_clear_line(texts: Path, cache: Path) -> None:
    """Cursors count windows of the old text."""
    reads = Reads(texts, make_spec())
    source = PackSource(reads.spec, reads.pack)
    tokens = cache / names(cache)[0] / "tokens"
    tokens.write_bytes(bytes(byte ^ 1 for byte in tokens.read_bytes()))
    (texts / "1.txt").write_text("another text")
    with pytest.raises(BadInput, match="documents have changed since"):
        source.held_out()


@pytest.mark.parametrize("part", [packs.TOKENS, packs.MANIFEST])
def test_a_pack_that_is_cut_is_written_anew(texts: Path, cache: Path, part: str) -> None:
    reads = Reads(texts, make_spec())
    expected = reads.pack().manifest
    path = cache / expected.name / part
    path.write_bytes(path.read_bytes()[:-1])
    assert reads.pack().manifest == expected
    assert len(reads.read) == 120


def test_without_a_cache_tokens_are_in_memory(texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine where this program may write nowhere else than into its run."""

    def refused(*_: object) -> Pack:
        raise PermissionError("not here")

    monkeypatch.setattr("peer.training.data.open_source.packed", refused)
    assert isinstance(open_source(make_spec(), str(texts)), MemorySource)


@pytest.mark.outside
@pytest.mark.slow
def test_a_corpus_is_never_in_memory() -> None:
    """128 MB of text, half of it one file, by a process that grows by half of it at most; how fast it is, a quiet
    machine says."""
    command = [sys.executable, "-m", "tests.peer.training.data.large_pack", "128", "64", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_cursor_is_a_seek(texts: Path) -> None:
    """Also far ahead, where this pass has a permutation that nothing has asked for."""
    source = open_source(make_spec(), str(texts))
    began = time.monotonic()
    source.window(min(source.windows), 10_000_000)
    assert time.monotonic() - began < 1 * BUSY


@pytest.mark.parametrize("context", [40, 64])
def test_conversations_in_a_pack_are_those_in_memory(context: int, tmp_path: Path) -> None:
    """In slots of their context, so that another context has another pack."""
    spec = on_talks(make_spec(), tmp_path / "talks")
    spec = replace(spec, model=replace(spec.model, context=context))
    folder = str(tmp_path / "talks")
    in_pack = open_source(spec, folder)
    held = MemorySource(read_conversations(folder, spec.data.text_field), ByteTokenizer(), spec)
    assert isinstance(in_pack, PackSource)
    assert dict(in_pack.windows) == dict(held.windows)
    for shard, windows in held.windows.items():
        assert all(in_pack.window(shard, at).tolist() == held.window(shard, at).tolist() for at in range(2 * windows))
    assert (in_pack.held_out() == held.held_out()).all()


def test_a_stream_of_conversations_cuts_none_that_fits(tmp_path: Path) -> None:
    """Also behind the end of a pass, and where a peer begins anew in the middle of one."""
    encoder, context = ChatEncoder(ByteTokenizer(), 40), 40
    talks = [np.arange(1, 1 + length, dtype=np.int32) for length in (7, 30, 12, 39, 3, 21)]

    class Rows:
        num_shards = 1

        def shard(self, num_shards: int, index: int) -> list[dict[str, int]]:
            return [{"talk": number} for number in range(len(talks))]

    def opened(name: str) -> ShardPack:
        return ShardPack(tmp_path / name, "<i4", Rows(), "a set", lambda _, row: talks[row["talk"]], encoder.filler)

    whole = opened("whole")
    once = [whole.read(at * context, context).tolist() for at in range(12)]
    found = [[token for token in window if token < HIDDEN] for window in once]
    assert found[:4] == [[*range(1, 8), *range(1, 31)], [*range(1, 13)], [*range(1, 40)], [*range(1, 4), *range(1, 22)]]
    assert found[4:8] == found[:4]
    early = opened("early")
    early.read(context, context)
    del early
    assert [opened("early").read(at * context, context).tolist() for at in range(12)] == once


def modes(folder: Path) -> set[int]:
    """Of files below it."""
    return {stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*") if path.is_file()}


def folder_modes(folder: Path) -> set[int]:
    """Of folders below it."""
    return {stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*") if path.is_dir()}


def test_tokens_of_private_data_lie_with_their_peer(texts: Path, cache: Path, tmp_path: Path) -> None:
    """For nobody else on the machine to read; who deletes the folder has deleted them."""
    home = tmp_path / "peer"
    home.mkdir()
    source = open_source(make_spec(private=True), str(texts), home)
    assert modes(home) == {0o600}
    assert folder_modes(home) == {0o700}
    assert not cache.exists()
    assert elsewhere.noted(home) == []
    shared = open_source(make_spec(), str(texts), home)
    assert (source.held_out() == shared.held_out()).all()
    assert elsewhere.noted(home) == [f"packs/{name}" for name in names(cache)]
    assert modes(cache) == {0o600}
    assert folder_modes(cache) == {0o700}
