"""Checkpoints that somebody keeps who takes no part: which, from whom, and what can be made of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from dht.errors import BadInput
from peer.consensus.protocol.head import ChainEntry
from peer.node.store import snapshots
from peer.node.store.chain import ChainStore
from peer.node.store.run_directory import read_chain_files
from peer.schema.events import AlertRaised, CheckpointWritten, Event
from peer.tools.watch.archive import Agreement, Archive, Retention
from tests.peer.consensus.rounds.build import HEAD
from tests.peer.network.sync.donors import LAYERS, OPEN, RUN, Answer, AtOnce, Network, anchor_at, chain_of, same

DONORS = ("a", "b", "c")
AGREED = Agreement(run=RUN, spec=b"the spec", genesis=b"the genesis")


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    while OPEN:
        OPEN.pop().close()


@pytest.fixture
def network(tmp_path: Path) -> Network:
    """Three donors at round 6, with snapshots of rounds 2 and 4."""
    network = Network()
    for name in DONORS:
        network.add(tmp_path, name, 6, 2, 4)
    return network


class Keeping:
    def __init__(self, folder: Path, network: Network, **retention: int) -> None:
        self.folder, self.told = folder, list[Event]()
        self.archive = Archive(
            folder, network, AGREED, HEAD, Retention(**retention), AtOnce(), self.told.append
        )  # fmt: skip

    def look(self, steps: Sequence[ChainEntry], layers: tuple[int, ...] = LAYERS) -> bool:
        return asyncio.run(self.archive.look(steps, layers, DONORS))

    def warnings(self) -> list[str]:
        return [event.text for event in self.told if isinstance(event, AlertRaised)]


def steps_of(disk: ChainStore) -> list[ChainEntry]:
    return [ChainEntry(before, block) for before, block in zip(disk.heads, disk.blocks, strict=False)]


def test_the_newest_snapshot_of_a_checked_round_is_kept_as_a_run_directory(network: Network, tmp_path: Path) -> None:
    """With every certificate that was checked, so that it can be checked again, and exported."""
    keeping, disk = Keeping(tmp_path / "keep", network), chain_of(tmp_path / "other", 6)
    assert keeping.look(steps_of(disk))
    assert keeping.archive.rounds() == [4]
    path = tmp_path / "keep" / "round-00000004"
    found = read_chain_files(path, HEAD)
    assert found.heads[-1] == disk.heads[4]
    assert list(found.blocks) == disk.blocks[:4]
    manifest = snapshots.read_manifest(snapshots.path_of(path, 4, disk.heads[4].anchor))
    assert same(snapshots.path_of(path, 4, disk.heads[4].anchor), manifest, anchor_at(4))
    assert ((path / "spec.toml").read_bytes(), (path / "genesis").read_bytes()) == (b"the spec", b"the genesis")
    assert isinstance(keeping.told[-1], CheckpointWritten)
    assert keeping.told[-1].bytes == 8 * sum(LAYERS)
    assert not keeping.look(steps_of(disk)), "there is no newer one"


def test_fewer_certificates_are_enough(network: Network, tmp_path: Path) -> None:
    """Who began to watch late has those of the last rounds; the kept chain begins there."""
    keeping, disk = Keeping(tmp_path / "keep", network), chain_of(tmp_path / "other", 6)
    assert keeping.look(steps_of(disk)[2:])
    found = read_chain_files(tmp_path / "keep" / "round-00000004", HEAD)
    assert (found.base.head.round, list(found.blocks)) == (2, disk.blocks[2:4])
    assert found.heads[-1] == disk.heads[4]


def test_a_snapshot_of_a_round_that_was_not_checked_is_not_taken(network: Network, tmp_path: Path) -> None:
    keeping = Keeping(tmp_path / "keep", network)
    assert not keeping.look(steps_of(chain_of(tmp_path / "other", 2))), "nothing that was checked follows it"
    assert not keeping.look(steps_of(chain_of(tmp_path / "branch", 6, branch=7))), "nor of another branch"
    assert keeping.archive.rounds() == []


def test_bits_that_no_voter_has_certified_are_refused(tmp_path: Path) -> None:
    """Most donors agree on a snapshot that is not of the state which the next update names; one has that."""
    network = Network()
    for name in DONORS:
        network.add(tmp_path, name, 6, 4, seed=int(name != "c"))
    keeping, steps = Keeping(tmp_path / "keep", network), steps_of(chain_of(tmp_path / "other", 6))
    assert not keeping.look(steps)
    assert "is not the one that its voters certified" in keeping.warnings()[0]
    assert keeping.look(steps), "the other one is not looked at again"
    assert keeping.archive.rounds() == [4]


def test_a_snapshot_of_other_layers_is_refused(network: Network, tmp_path: Path) -> None:
    """Though it has as many parameters."""
    keeping, steps = Keeping(tmp_path / "keep", network), steps_of(chain_of(tmp_path / "other", 6))
    assert not keeping.look(steps, layers=LAYERS[::-1])
    assert "is not the one that its voters certified" in keeping.warnings()[0]


def test_a_donor_that_lies_or_dies_is_left_out(network: Network, tmp_path: Path) -> None:
    async def lie(sender: str, request: bytes) -> bytes:
        return b"not the chunk"

    network.answers["b"]["chunk"] = lie
    keeping = Keeping(tmp_path / "keep", network)
    assert keeping.look(steps_of(chain_of(tmp_path / "other", 6)))
    assert any("gave wrong bytes for chunk" in text for text in keeping.warnings())


def test_nobody_there_is_told_once_and_tried_again(network: Network, tmp_path: Path) -> None:
    keeping, steps = Keeping(tmp_path / "keep", network), steps_of(chain_of(tmp_path / "other", 6))

    async def silent(sender: str, request: bytes) -> None:
        return None

    given = {name: network.answers[name]["manifest"] for name in DONORS}
    for name in DONORS:
        network.answers[name]["manifest"] = silent  # type: ignore[assignment]
    assert not keeping.look(steps)
    assert not keeping.look(steps)
    assert keeping.warnings() == ["no checkpoint was kept: no peer gave the manifest of the snapshot of round 4"]
    for name in DONORS:
        network.answers[name]["manifest"] = given[name]
    assert keeping.look(steps)


def test_a_download_that_was_cut_goes_on(network: Network, tmp_path: Path) -> None:
    """Also in another process; nothing half-made ever has the name of a checkpoint."""
    steps = steps_of(chain_of(tmp_path / "other", 6))
    given = {name: network.answers[name]["chunk"] for name in DONORS}
    left, asked = [2], set[bytes]()

    def cut(name: str) -> Answer:
        async def answer(sender: str, request: bytes) -> bytes | None:
            left[0] -= 1
            asked.add(request)
            return await given[name](sender, request) if left[0] >= 0 else None

        return answer

    for name in DONORS:
        network.answers[name]["chunk"] = cut(name)
    assert not Keeping(tmp_path / "keep", network).look(steps)
    assert [path.name for path in (tmp_path / "keep").iterdir()] == ["next"]
    asked.clear()
    left[0] = 1000
    assert Keeping(tmp_path / "keep", network).look(steps)
    assert len(asked) == 4
    assert [path.name for path in (tmp_path / "keep").iterdir()] == ["round-00000004"]


def test_what_is_kept_no_longer_goes(network: Network, tmp_path: Path) -> None:
    folder = tmp_path / "keep"
    for round in (1, 2, 3):
        (folder / f"round-{round:08d}").mkdir(parents=True)
    keeping = Keeping(folder, network, last=1, every=2)
    assert keeping.look(steps_of(chain_of(tmp_path / "other", 6)))
    assert keeping.archive.rounds() == [1, 2, 4]


@pytest.mark.parametrize(
    ("last", "every", "kept"),
    [(2, 0, {96, 112}), (1, 50, {16, 64, 112}), (1, 1, set(range(16, 113, 16))), (99, 0, set(range(16, 113, 16)))],
)
def test_retention(last: int, every: int, kept: set[int]) -> None:
    assert Retention(last=last, every=every).kept(range(16, 113, 16)) == kept


@pytest.mark.parametrize("values", [{"last": 0}, {"every": -1}])
def test_a_retention_that_keeps_nothing_is_refused(values: dict[str, int]) -> None:
    with pytest.raises(BadInput, match="--keep-"):
        Retention(**values)
