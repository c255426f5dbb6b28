"""Credit is what the certificates of a chain say, whether its oldest blocks are there or not, and nobody's word."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from dht.errors import BadInput
from peer.__main__ import main
from peer.consensus.codec.codec import Codec
from peer.consensus.credit.tally import Tally, read_tally, total
from peer.consensus.protocol.block import WEIGHT_ONE
from peer.consensus.protocol.head import ChainEntry, ChainHead
from peer.node.store.chain import ChainStore, start_chain_at
from peer.node.store.kept_way import KeptWay
from peer.node.store.run_directory import ChainBase, block_path, genesis_head, pointer_bytes, read_genesis
from peer.schema.events import EventLine, PeerStarted, ReportReceived, format_line
from peer.tools.audit import statement as crediting
from peer.tools.audit.run_files import BadLink
from peer.tools.audit.statement import CHECKED, credit
from peer.tools.watch.verified_chain import commit_events
from tests.peer.tools.export.run_on_disk import RunOnDisk, certify, make_run, small_spec, write_corpus
from tui.swarm.reducer import apply_all
from tui.swarm.snapshot import SwarmState

ROUNDS = 6
SNAPSHOTS = (2, 4)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> RunOnDisk:
    root = tmp_path_factory.mktemp("run")
    write_corpus(root / "corpus")
    return make_run(root, small_spec(root / "corpus", "llama"), rounds=ROUNDS)


@contextmanager
def opened(made: RunOnDisk, directory: Path, **limits: int) -> Iterator[ChainStore]:
    with ThreadPoolExecutor(max_workers=1) as executor:
        yield ChainStore(
            directory, genesis_head(read_genesis(directory)), made.trainer.parts, Codec(made.spec.codec.wire), executor,
            lambda call: call(), tokens_cap=made.spec.tokens_cap, **limits,
        )  # fmt: skip


@pytest.fixture(scope="module")
def pruned(made: RunOnDisk, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same rounds, decided one after the other at a peer that has no room for old ones."""
    directory = tmp_path_factory.mktemp("pruned") / "peer"
    directory.mkdir()
    for name in ("genesis", "spec.toml"):
        shutil.copy(made.directory / name, directory)
    with opened(made, made.directory) as whole, opened(made, directory, keep_rounds=1, quota_bytes=0) as disk:
        for block in whole.blocks:
            disk.commit(block, disk.head.after(block.update), frozenset())
            if disk.head.round in SNAPSHOTS:
                (directory / "snapshots" / f"{disk.head.round:08d}-{disk.head.anchor.hex()}").mkdir(parents=True)
    return directory


@pytest.mark.slow
def test_credit_is_what_the_blocks_say(made: RunOnDisk) -> None:
    statement = credit(made.directory)
    with opened(made, made.directory) as disk:
        headers = [header for block in disk.blocks for header in block.update.members]
    assert (statement.tally.first, statement.tally.last, statement.checked_from) == (1, ROUNDS, 1)
    for peer, found in statement.tally.credits.items():
        mine = [header for header in headers if header.peer == peer]
        assert found.tokens == sum(header.tokens for header in mine)
        assert found.accepted + found.late == ROUNDS
    assert total(statement.tally.credits).weight == pytest.approx(ROUNDS * WEIGHT_ONE, abs=2 * ROUNDS)
    assert statement.page().endswith(f"rounds 1 to {ROUNDS}: {CHECKED}")


@pytest.mark.slow
def test_the_tally_of_dropped_blocks_is_what_they_would_count(made: RunOnDisk, pruned: Path) -> None:
    """Also after a restart, which reads it from disk."""
    whole, short = credit(made.directory), credit(pruned)
    assert short.checked_from == SNAPSHOTS[0] + 1
    assert not block_path(pruned, SNAPSHOTS[0]).exists()
    assert short.tally == whole.tally
    with opened(made, pruned, keep_rounds=1, quota_bytes=0) as disk:
        assert disk.tally.last == SNAPSHOTS[0]
    assert f"those before round {SNAPSHOTS[0] + 1} as this peer counted them" in short.page()


def test_home_shows_what_the_chain_says(made: RunOnDisk) -> None:
    """The figures that the screens fold from the event lines, and those of the certificates."""
    with opened(made, made.directory) as disk:
        steps = [ChainEntry(before, block) for before, block in zip(disk.heads, disk.blocks, strict=False)]
    me = made.peers[0]
    events = [
        event
        for step in steps
        for event in commit_events(step, made.trainer.parts, lambda anchor: b"", 1, made.spec.tokens_cap)
    ]
    swarm = apply_all(
        SwarmState(), (EventLine(seq=n, t=n, run="r", peer=me, event=event) for n, event in enumerate(events))
    )
    for peer, found in credit(made.directory).tally.credits.items():
        shown = swarm.peers[peer]
        assert (shown.tokens, shown.accepted, shown.late, shown.rejected, shown.missed) == (
            found.tokens,
            found.accepted,
            found.late + found.idle,
            found.rejected,
            found.missed,
        )
        assert found.tokens > 0


def test_a_chain_that_begins_at_a_snapshot_says_since_when(made: RunOnDisk, tmp_path: Path) -> None:
    for name in ("genesis", "spec.toml"):
        shutil.copy(made.directory / name, tmp_path)
    with opened(made, made.directory) as whole:
        start_chain_at(tmp_path, ChainBase.after(whole.updates_up_to(whole.heads[3].anchor)), KeptWay(0))
        with opened(made, tmp_path) as disk:
            for block in whole.blocks[3:]:
                disk.commit(block, disk.head.after(block.update), frozenset())
    statement = credit(tmp_path)
    assert (statement.tally.first, statement.checked_from) == (4, 4)
    assert statement.page().endswith(
        f"rounds 4 to {ROUNDS}: {CHECKED}; the chain on this disk knows nothing of those before"
    )


def test_nobody_awards_himself_anything(made: RunOnDisk, tmp_path: Path) -> None:
    """More tokens, or a weight that the votes do not stand for: the block is named, and no table is printed."""
    directory = Path(shutil.copytree(made.directory, tmp_path / "peer"))
    with opened(made, directory) as disk:
        before, update = disk.heads[-2], disk.blocks[-1].update
    path = block_path(directory, ROUNDS)
    member = update.members[0]
    more = dataclasses.replace(member, tokens=member.tokens + 1)
    by_tokens = dataclasses.replace(update, members=(more, *update.members[1:]))
    by_weight = dataclasses.replace(update, weights=((WEIGHT_ONE, 0),))
    for forged, sign in ((by_tokens, False), (by_weight, True)):
        block = certify(forged, before, made.identities, made.spec.digest(), sign_pledges=sign)
        path.write_bytes(block.to_bytes())
        (directory / "HEAD").write_bytes(pointer_bytes(before.after(block.update), ChainBase(head=before)))
        with pytest.raises(BadLink, match=f"round {ROUNDS}"):
            credit(directory)


def test_a_damaged_tally_costs_the_old_figures_and_says_so(pruned: Path, tmp_path: Path) -> None:
    directory = Path(shutil.copytree(pruned, tmp_path / "peer"))
    path = next((directory / "chain").glob("*.tally"))
    path.write_bytes(path.read_bytes()[:-1])
    statement = credit(directory)
    assert statement.tally.first == statement.checked_from == SNAPSHOTS[0] + 1


def test_a_peer_has_the_name_that_it_signed(made: RunOnDisk, tmp_path: Path) -> None:
    """The last one; a peer's own is what it said at its start."""
    directory = Path(shutil.copytree(made.directory, tmp_path / "peer"))
    me, other = made.peers
    said = [ReportReceived(about=other, round=1, ready=False, tokens=0, steps=0, name=name) for name in ("old", "bob")]
    lines = [EventLine(seq=n, t=n, run="r", peer=me, event=event) for n, event in enumerate(said)]
    lines.append(EventLine(seq=9, t=9.0, run="r", peer=me, event=PeerStarted(name="alice", version="0")))
    with (directory / "events.jsonl").open("a") as file:
        file.writelines(f"{format_line(line)}\n" for line in lines)
    table = credit(directory).page().splitlines()
    assert table[0].split()[:3] == ["peer", "id", "tokens"]
    assert {(row.split()[0], row.split()[1]) for row in table[1:3]} == {("alice", me[-8:]), ("bob", other[-8:])}


def test_the_command_prints_a_table_or_one_object(made: RunOnDisk, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["credit", str(made.directory), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["first_round"], said["last_round"], len(said["peers"])) == (1, ROUNDS, 2)
    assert sum(row["weight"] for row in said["peers"]) == pytest.approx(ROUNDS, abs=0.01)
    assert said["peers"][0].keys() == {
        "peer", "name", "tokens", "weight", "accepted", "late", "idle", "rejected", "missed",
    }  # fmt: skip


def test_a_folder_without_a_chain_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="holds no chain; name the folder of a peer"):
        credit(tmp_path)


def test_a_peer_at_work_is_read_again(pruned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It commits and drops blocks while the table is made."""
    directory = Path(shutil.copytree(pruned, tmp_path / "peer"))
    pointer, path = (directory / "HEAD").read_bytes(), block_path(directory, ROUNDS)
    whole = path.read_bytes()
    path.unlink()
    (directory / "HEAD").write_bytes(pointer.replace(f"{ROUNDS} ".encode(), f"{ROUNDS + 1} ".encode()))

    def commit_meanwhile(directory: Path, base: ChainHead) -> Tally:
        path.write_bytes(whole)
        (directory / "HEAD").write_bytes(pointer)
        return read_tally(directory, base)

    monkeypatch.setattr(crediting, "read_tally", commit_meanwhile)
    assert credit(directory).tally.last == ROUNDS
