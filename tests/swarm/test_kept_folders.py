"""Folders that a release wrote, of a node and its two founders: a later one goes on with them, or says which release
reads them.

`tests/swarm/keep_folders.py` makes them. A release whose folders differ adds its own, and leaves the older ones as they
are.
"""

from __future__ import annotations

import signal
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from dht.protocol_version import PROTOCOL_VERSION, RELEASES
from peer.schema.events import InviteIssued, RoundCommitted
from tests.swarm.conftest import Homefires

pytestmark = pytest.mark.swarm
Start = Callable[..., Homefires]
KEPT = sorted((Path(__file__).parent / "kept").glob("*.tar.xz"))
PEERS = ("p1", "p2")
LOOPBACK = ("--listen", "/ip4/127.0.0.1/tcp/0")
JSON = ("--ui", "json")


def speaks(archive: Path) -> str:
    """The release of `RELEASES` that wrote it."""
    return archive.name.rpartition(".tar")[0].rpartition(".")[0]


def unpacked(archive: Path, directory: Path) -> Path:
    with tarfile.open(archive) as files:
        files.extractall(directory, filter="data")
    return directory


def round_of(folder: Path) -> int:
    return int((folder / "HEAD").read_text().split()[0])


def test_folders_of_this_protocol_version_are_kept() -> None:
    assert RELEASES[PROTOCOL_VERSION] in map(speaks, KEPT)


@pytest.mark.parametrize("archive", KEPT, ids=speaks)
def test_a_run_goes_on_from_its_folders_or_they_are_refused(archive: Path, homefires: Start, tmp_path: Path) -> None:
    folder = unpacked(archive, tmp_path)
    stopped_at = round_of(folder / "p1")
    if speaks(archive) != RELEASES[PROTOCOL_VERSION]:
        refused = homefires("export", str(folder / "p1"))
        assert refused.finish() == 2
        assert f"install homefires {speaks(archive)}" in refused.err
        return
    audit = homefires("audit", str(folder / "p1"))
    assert audit.finish() == 0, audit.err

    node = homefires("bootstrap", str(folder / "node" / "spec.toml"), "--dir", str(folder / "node"), *LOOPBACK, *JSON)
    line = node.wait_for(lambda line: isinstance(line.event, InviteIssued))
    assert isinstance(line.event, InviteIssued)
    words = (line.event.invite, *LOOPBACK, *JSON, "--yes")
    founders = [homefires("join", *words, "--dir", str(folder / name)) for name in PEERS]
    for founder in founders:
        decided = founder.wait_for(lambda line: isinstance(line.event, RoundCommitted)).event
        assert isinstance(decided, RoundCommitted)
        assert decided.round > stopped_at
    for command in (*founders, node):
        command.signal(signal.SIGINT)
        command.finish()
