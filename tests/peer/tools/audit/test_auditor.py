"""An audit accepts what honest peers left on a disk, and names the first file that is not as it was agreed."""

from __future__ import annotations

import dataclasses
import functools
import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from torch import nn

from dht.errors import BadInput
from dht.identity import Identity, verify
from peer.consensus.codec import rows
from peer.consensus.codec.codec import Codec, weighted_mean
from peer.consensus.protocol import norms
from peer.consensus.protocol.block import WEIGHT_ONE, Block, Restart, Stuck, Update
from peer.consensus.protocol.encoding import digest_of
from peer.consensus.protocol.head import ChainHead
from peer.consensus.rounds.state import Acceptor
from peer.network.link.link import RunKeys
from peer.node.store import snapshots
from peer.node.store.chain import ChainStore
from peer.node.store.contributions import Contribution
from peer.node.store.run_directory import (
    ChainBase,
    base_path,
    block_path,
    genesis_head,
    pointer_bytes,
    read_base_at,
    read_genesis,
)
from peer.schema.events import RoundCommitted, read_events
from peer.testing.child_process import HANG_S
from peer.tools.audit import auditor, run_files
from peer.tools.audit.auditor import audit
from peer.tools.audit.means import FALSE_NORM, FALSE_SUM
from peer.tools.audit.run_files import BadLink
from peer.training.checkpoint.checkpoint import Checkpoints
from peer.training.checkpoint.replay import restore_at
from peer.training.model.build import build
from tests.decided import DecidedRound, contribution
from tests.peer.tools.export.run_on_disk import RunOnDisk, certify, judged, make_run, small_spec, write_corpus

ROUNDS = 5
LEFT = 4
"""HEAD of the full folder is here; the block after it belongs to a commit that did not finish."""
SNAPSHOT = 2


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> RunOnDisk:
    """Rounds of two peers."""
    root = tmp_path_factory.mktemp("run")
    write_corpus(root / "corpus")
    spec = small_spec(root / "corpus", "llama")
    codec = dataclasses.replace(spec.codec, part_elements=4096)
    return make_run(root, dataclasses.replace(spec, codec=codec), rounds=ROUNDS)


@pytest.fixture(scope="module")
def full(made: RunOnDisk, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With all that may lie in a run directory: a snapshot, a block that nothing names, votes, bytes of no block."""
    directory = Path(shutil.copytree(made.directory, tmp_path_factory.mktemp("full") / "peer"))
    with opened(made, directory) as disk:
        write_snapshot(made, directory, disk.heads[SNAPSHOT])
        Checkpoints(directory / "checkpoints").write(made.trainer.checkpoint(disk.head.anchor))
        accepted = disk.blocks[-1].update
        disk.save_object(accepted.digest, accepted.to_bytes())
        before = disk.heads[LEFT]
        disk.save_acceptor(Acceptor(before.anchor, before.instance, 3, accepted=(3, accepted.digest)))
        (directory / "HEAD").write_bytes(pointer_bytes(before, disk.base))
    return directory


@pytest.fixture(scope="module")
def based(made: RunOnDisk, full: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its oldest blocks are dropped: it begins at the snapshot."""
    directory = Path(shutil.copytree(full, tmp_path_factory.mktemp("based") / "peer"))
    with opened(made, directory) as disk:
        head, anchor = disk.head, disk.heads[SNAPSHOT].anchor
    base = read_base_at(directory, disk.heads[0], anchor, SNAPSHOT, 9)
    base_path(directory, anchor).write_bytes(base.to_bytes())
    (directory / "HEAD").write_bytes(pointer_bytes(head, base))
    for round in range(1, SNAPSHOT + 1):
        block_path(directory, round).unlink()
    shutil.rmtree(directory / "checkpoints")
    return directory


@pytest.fixture(scope="module")
def model(made: RunOnDisk) -> nn.Module:
    return build(made.spec)


@pytest.fixture(autouse=True)
def once(monkeypatch: pytest.MonkeyPatch, made: RunOnDisk, model: nn.Module) -> None:
    """What hundreds of audits would find anew: the model, of which they read the first parameters and change nothing,
    and whether a signature is of these very bytes."""
    known = {made.spec.digest(): model}
    monkeypatch.setattr(auditor, "build", lambda spec: known.get(spec.digest()) or build(spec))
    monkeypatch.setattr(run_files, "verify", remembering)


remembering = functools.cache(verify)


class opened:
    """The chain of a directory, as its link has it."""

    def __init__(self, made: RunOnDisk, directory: Path) -> None:
        self.executor = ThreadPoolExecutor(max_workers=1)
        genesis = genesis_head(read_genesis(directory))
        codec = Codec(made.spec.codec.wire)
        self.disk = ChainStore(directory, genesis, made.trainer.parts, codec, self.executor, lambda call: call())

    def __enter__(self) -> ChainStore:
        return self.disk

    def __exit__(self, *_: object) -> None:
        self.executor.shutdown()


def write_snapshot(made: RunOnDisk, directory: Path, head: ChainHead) -> Path:
    anchor = restore_at(directory, made.spec, head.anchor, head.round)
    base = read_base_at(directory, genesis_head(read_genesis(directory)), head.anchor, head.round, 9)
    return snapshots.write(
        directory, anchor.sizes, anchor.chunks, run=made.spec.digest(), base=base,
        cursors=anchor.cursors, state=anchor.state_digest(),
    )  # fmt: skip


def files_of(directory: Path) -> list[Path]:
    """Every file of the chain."""
    found = [directory / name for name in ("spec.toml", "genesis", "HEAD")]
    folders = (directory / "chain", directory / "snapshots")
    return found + sorted(path for folder in folders for path in folder.rglob("*") if path.is_file())


def blamed(directory: Path) -> Path | None:
    """The file that an audit names; None if it accepts all of them."""
    try:
        audit(directory)
    except BadLink as error:
        fault = error
    else:
        return None
    assert str(fault) == f"round {fault.round}: {fault.path}: {fault.why}"
    assert 0 <= fault.round <= ROUNDS
    assert "\n" not in str(fault)
    return fault.path


@pytest.mark.slow
def test_honest_runs_are_accepted_in_one_line(made: RunOnDisk, full: Path, based: Path) -> None:
    """How much was checked, where it ends, and what nobody can check any more."""
    state = made.trainer.anchor.state_digest().hex()[:16]
    head = (made.directory / "HEAD").read_text().split()[1][:16]
    parts = ROUNDS * len(made.trainer.parts)
    assert audit(made.directory).sentence() == (
        f"rounds 0..5 checked: 5 agreed by the voters, 0 restarted, {parts} parts, 2 peers, "
        f"head {head}, state {state}; "
        f"{parts} means checked against their rows and norms (where the objects are here); "
        "5 certified states computed again; rows were checked against contributions by the voters, not here"
    )
    assert audit(full).sentence().startswith("rounds 0..4 checked: 4 agreed by the voters, 0 restarted, ")
    report = audit(based)
    assert report.sentence().startswith("rounds 2..4 checked: 2 agreed by the voters, 0 restarted, ")
    assert "verified" not in report.sentence()
    assert report.means == report.parts == 2 * len(made.trainer.parts)
    assert report.sentence().endswith("; states from the snapshot of round 2 on")
    assert (report.head, report.state) == (audit(full).head, audit(full).state)
    assert report.to_json() | {"sound": True, "firm": 2, "notes": report.notes} == report.to_json()


def test_an_audit_only_reads(full: Path) -> None:
    """The peer may be at work."""
    before = {path: path.read_bytes() for path in full.rglob("*") if path.is_file()}
    audit(full)
    assert {path: path.read_bytes() for path in full.rglob("*") if path.is_file()} == before


EVERY_BYTE = ("HEAD", "genesis", "acceptors")
"""Of the others some bytes are changed."""


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("which", ["full", "based"])
def test_one_flipped_bit_anywhere_is_found_and_named(which: str, request: pytest.FixtureRequest) -> None:
    """In every byte of the smallest files, and in some of each of the others, its first and its last among them."""
    directory: Path = request.getfixturevalue(which)
    choose = random.Random(0)
    flips = 0
    for path in files_of(directory):
        whole = path.read_bytes()
        every = path.name in EVERY_BYTE and which == "full"
        drawn = min(4 if which == "full" else 1, len(whole))
        some = {0, len(whole) - 1, *choose.sample(range(len(whole)), drawn)}
        for at in range(len(whole)) if every else sorted(some):
            flipped = bytes([whole[at] ^ 1 << choose.randrange(8)])
            path.write_bytes(whole[:at] + flipped + whole[at + 1 :])
            assert blamed(directory) == path, f"byte {at} of {path}"
            flips += 1
        path.write_bytes(whole)
    assert flips > (300 if which == "full" else 60)
    assert blamed(directory) is None


@pytest.mark.slow
def test_files_that_are_gone_cut_or_longer_are_named(full: Path, based: Path) -> None:
    """But for those that need not be there: votes that nobody cast, a block behind HEAD, bytes of no block."""
    for directory, cuts in ((full, 2), (based, 1)):
        needed = {directory / "chain" / "objects" / name.hex() for name in means_of(directory)}
        for path in files_of(directory):
            whole = path.read_bytes()
            for damaged in (whole[:-1], whole + b"0")[:cuts]:
                path.write_bytes(damaged)
                assert blamed(directory) == path
            path.unlink()
            optional = path.name == "acceptors" or path.name == f"{ROUNDS:06d}.block"
            optional |= path.parent.name == "objects" and path not in needed
            assert blamed(directory) == (None if optional else path)
            path.write_bytes(whole)


def means_of(directory: Path) -> set[bytes]:
    """What the blocks up to HEAD name."""
    paths = (block_path(directory, round) for round in range(1, LEFT + 1))
    blocks = (Block.from_bytes(path.read_bytes()) for path in paths if path.exists())
    return {part for block in blocks for part in block.update.parts}


# ---- genuine bytes, false content ----


@pytest.fixture
def copied(made: RunOnDisk, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made.directory, tmp_path / "peer"))


Forge = Callable[[Update, ChainHead], Update]


def forge(made: RunOnDisk, directory: Path, change: Forge) -> None:
    """The last block, changed and duly signed by all members: HEAD names it, every digest fits."""
    with opened(made, directory) as disk:
        before, update = disk.heads[-2], disk.blocks[-1].update
    block = certify(change(update, before), before, made.identities, made.spec.digest())
    put(directory, block, before)


def put(directory: Path, block: Block, before: ChainHead) -> None:
    head = before.after(block.update)
    block_path(directory, head.round).write_bytes(block.to_bytes())
    (directory / "HEAD").write_bytes(pointer_bytes(head, ChainBase(head=before)))


def weights(update: Update, head: ChainHead) -> Update:
    first, second = update.weights[0]
    return dataclasses.replace(update, weights=((first + 2, second - 2),))


def contributors(update: Update, head: ChainHead) -> Update:
    return dataclasses.replace(update, contributors=tuple(bits | 4 for bits in update.contributors))


def penalties(update: Update, head: ChainHead) -> Update:
    row = (update.members[0].peer, "LATE", WEIGHT_ONE, update.round + 1, -1, "0 of 9 parts came in time")
    return dataclasses.replace(update, penalties=(row,))


def records(update: Update, head: ChainHead) -> Update:
    first, *others = update.records
    stats = (dataclasses.replace(first.stats[0], mean=2.0), *first.stats[1:])
    return dataclasses.replace(update, records=(dataclasses.replace(first, stats=stats), *others))


FORGERIES: dict[str, Forge] = {
    "its weights are not those that its headers": weights,
    "its voters had state 6e6f7420": lambda update, head: dataclasses.replace(
        update, state=b"not the files' state".ljust(32)
    ),
    "its W is 99": lambda update, head: dataclasses.replace(update, weight=99),
    "its contributors do not fit": contributors,
    "its penalties are not": penalties,
    "its records do not follow": records,
    "its weights are not those": lambda update, head: dataclasses.replace(update, scales=(1, 2)),
    "its electorate does not follow": lambda update, head: dataclasses.replace(update, elect=("a", "b")),
    "it does not follow the block before": lambda update, head: dataclasses.replace(update, parent=bytes(32)),
    "its members are too few": lambda update, head: dataclasses.replace(
        update,
        members=update.members[:1],
        weights=((WEIGHT_ONE,),),
        weight=head.weight + 1,
        coordinator=update.members[0].peer,
        ballot=next(b for b in range(2) if head.leader(b) == update.members[0].peer),
    ),
}


@pytest.mark.parametrize("words", FORGERIES)
def test_a_forged_update_is_refused_though_everybody_signed_it(made: RunOnDisk, copied: Path, words: str) -> None:
    """The rules of the round are evaluated again."""
    forge(made, copied, FORGERIES[words])
    with pytest.raises(BadLink, match=f"round {ROUNDS}: .*{ROUNDS:06d}.block: {words}"):
        audit(copied)


def test_a_certificate_needs_its_votes(made: RunOnDisk, copied: Path) -> None:
    """A missing one, a stranger's, one twice, and one of another ballot."""
    with opened(made, copied) as disk:
        before, good = disk.heads[-2], disk.blocks[-1]
    stranger = Identity.from_seed(b"s" * 32)
    first, second = good.votes
    theirs = dataclasses.replace(first, voter=stranger.peer_id)
    for votes, words in (
        ((first,), "it has 1 votes of 2"),
        ((first, theirs), f"the vote of {stranger.peer_id} is not a voter's genuine one"),
        ((first, first), "its votes are not from different peers"),
        ((first, dataclasses.replace(second, phase=1)), f"the vote of {second.voter} is not a voter's genuine one"),
        ((first, dataclasses.replace(second, ballot=2)), f"the vote of {second.voter} is not a voter's genuine one"),
    ):
        put(copied, dataclasses.replace(good, votes=votes), before)
        with pytest.raises(BadLink, match=words):
            audit(copied)


def test_a_pledge_must_be_its_peers(made: RunOnDisk, copied: Path) -> None:
    """More tokens than it signed for; the votes are genuine."""
    with opened(made, copied) as disk:
        before, update = disk.heads[-2], disk.blocks[-1].update
    more = dataclasses.replace(update.members[1], tokens=update.members[1].tokens + 1)
    forged = dataclasses.replace(update, members=(update.members[0], more))
    put(copied, certify(forged, before, made.identities, made.spec.digest(), sign_pledges=False), before)
    with pytest.raises(BadLink, match=f"the header of {more.peer} cannot be counted: it is not signed by its author"):
        audit(copied)


def test_who_went_on_without_a_quorum_counts_as_restarted(made: RunOnDisk, copied: Path) -> None:
    """One peer of two, as the organiser has signed it."""
    one = made.identities[0]
    with opened(made, copied) as disk:
        before, state = disk.heads[-2], disk.blocks[-1].update.state
    run = made.spec.digest()
    stuck = Stuck(one.peer_id, before.anchor, before.electorate, 1).signed(RunKeys(one, run))
    organiser = RunKeys(Identity.from_seed(b"o" * 32), run)
    restart = Restart(before.anchor, 1, (stuck,), forced=True).signed(organiser)
    alone = SimpleNamespace(
        spec=made.spec, me=one.peer_id, parts=made.trainer.parts, anchor=SimpleNamespace(round=before.round),
        contribution=lambda anchor: contribution(made.trainer, anchor),
    )  # fmt: skip
    decided = DecidedRound([alone], before.anchor, state=state)  # type: ignore[list-item]
    update = dataclasses.replace(
        decided.update, time=before.time, weight=before.weight + 1, elect=(one.peer_id,), roster=before.roster
    )  # fmt: skip
    update = judged(update, before.restarted(restart), made.spec, made.trainer.parts)
    for name, payload in decided.objects.items():
        (copied / "chain" / "objects" / name.hex()).write_bytes(payload)
    (copied / "events.jsonl").unlink()
    block = certify(update, before, made.identities, run, restart)
    put(copied, block, before)
    assert audit(copied).sentence().startswith("rounds 0..5 checked: 4 agreed by the voters, 1 restarted, ")
    put(copied, dataclasses.replace(block, restarts=()), before)
    with pytest.raises(BadLink, match="is not a voter's genuine one"):
        audit(copied)


# ---- false means: every digest fits, everybody has signed ----


def false_mean(made: RunOnDisk, directory: Path, change: Callable[[bytes], bytes]) -> Path:
    """The first mean of the last block is another, and the block names it."""
    with opened(made, directory) as disk:
        payload = disk.load(disk.blocks[-1].update.parts[0])
    assert payload is not None
    changed = change(payload)
    path = directory / "chain" / "objects" / digest_of(changed).hex()
    path.write_bytes(changed)
    forge(made, directory, lambda update, head: dataclasses.replace(
        update, parts=(digest_of(changed), *update.parts[1:])
    ))  # fmt: skip
    (directory / "events.jsonl").unlink()
    return path


@pytest.mark.parametrize("factor", [-1.0, 1.1])
def test_a_mean_that_is_not_the_sum_of_its_rows_is_found(made: RunOnDisk, copied: Path, factor: float) -> None:
    """As a reducer makes it whose rows are true, or a disk that damages a mean and gives it the name of what it is.
    Who made it the chain does not say."""
    codec, part = Codec(made.spec.codec.wire).of_means, made.trainer.parts[0]

    def scaled(whole: bytes) -> bytes:
        mean, rows = whole[: codec.part_bytes(part.size)], whole[codec.part_bytes(part.size) :]
        return codec.encode(codec.decode(mean)[: part.size] * np.float32(factor)) + rows

    path = false_mean(made, copied, scaled)
    with pytest.raises(BadLink) as caught:
        audit(copied)
    assert (caught.value.round, caught.value.path, caught.value.why) == (ROUNDS, path, FALSE_SUM)
    assert not any(peer in str(caught.value) for peer in made.peers)


def test_a_mean_of_more_than_its_givers_declared_is_found(made: RunOnDisk, copied: Path) -> None:
    """The rows come to it, but no giver's bytes to such a row."""
    codec, part = Codec(made.spec.codec.wire), made.trainer.parts[0]
    with opened(made, copied) as disk:
        before, update = disk.heads[-2], disk.blocks[-1].update
    folders = (copied, made.directory.parent / "peer-2")
    found = [Contribution.find(each / "contributions", before.anchor, made.trainer.parts, codec) for each in folders]
    given = [3 * codec.decode(each.payload(0)) for each in found if each is not None]
    weights, declared = update.weights[0], [norms.declared_of_part(member, 0) for member in update.members]

    def larger(whole: bytes) -> bytes:
        mean = codec.of_means.encode(weighted_mean(given, weights, 0)[: part.size])
        values = codec.of_means.decode(mean)
        sketch = rows.Sketch.drawn(before.anchor, 0, mean, values.size)
        shown = (rows.row_of(sketch.of(each), norm) for each, norm in zip(given, declared, strict=True))
        return mean + b"".join(shown)

    path = false_mean(made, copied, larger)
    with pytest.raises(BadLink) as caught:
        audit(copied)
    assert (caught.value.path, caught.value.why) == (path, FALSE_NORM)


# ---- states ----


def test_a_state_that_the_peer_did_not_report_is_named(made: RunOnDisk, copied: Path) -> None:
    """One of the two computed wrongly."""
    reported = [line.event for line in read_events(copied) if isinstance(line.event, RoundCommitted)]
    events = copied / "events.jsonl"
    events.write_text(events.read_text().replace(reported[2].state, "0" * 64))
    with pytest.raises(BadLink, match=r"round 3: .*events.jsonl: it says state 000000000000, where the files make"):
        audit(copied)


def test_a_machine_that_computes_other_initial_parameters_says_so(
    made: RunOnDisk, full: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It checks all but the states; from a snapshot on those, too."""
    other = build(made.spec)
    next(other.parameters()).data.zero_()
    monkeypatch.setattr(auditor, "build", lambda spec: other)
    line = audit(made.directory).sentence()
    assert line.startswith("rounds 0..5 checked: 5 agreed by the voters")
    assert ", state not computed; " in line
    assert line.endswith("; this machine computes other initial parameters than the founders")
    assert audit(full).sentence().endswith("founders; states from the snapshot of round 2 on")


# ---- directories ----


def test_a_peer_at_work_is_read_again(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit between two reads is no fault; damage is one, however often HEAD changes."""
    block, whole = block_path(copied, ROUNDS), block_path(copied, ROUNDS).read_bytes()
    pointer = (copied / "HEAD").read_bytes()

    def commit(round: int, last: int) -> None:
        block.write_bytes(whole)
        (copied / "HEAD").write_bytes(pointer)

    block.write_bytes(b"half a block")
    (copied / "HEAD").write_bytes(pointer.replace(b"5 ", b"7 "))
    assert audit(copied, commit).last_round == ROUNDS
    block.write_bytes(b"half a block")
    with pytest.raises(BadLink):
        audit(copied)


def test_what_is_no_run_is_one_clear_line(made: RunOnDisk, tmp_path: Path) -> None:
    """No folder, and one without a chain."""
    for directory in (tmp_path / "missing", tmp_path):
        with pytest.raises(BadInput, match="holds no chain; name the folder of a peer") as caught:
            audit(directory)
        assert not isinstance(caught.value, BadLink)


@pytest.mark.outside
def test_a_person_asks_for_an_audit(copied: Path) -> None:
    """`homefires audit`: one line and exit code 0, or the first bad link and exit code 9."""

    def homefires(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tui", "audit", str(copied), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)

    told = homefires()
    assert (told.returncode, told.stdout.count("\n")) == (0, 1)
    assert told.stdout.startswith("rounds 0..5 checked: 5 agreed by the voters, 0 restarted, ")
    path = block_path(copied, 3)
    path.write_bytes(path.read_bytes()[:-1])
    told = homefires("--json")
    said = json.loads(told.stdout)
    assert (told.returncode, said["sound"], said["round"], said["file"]) == (9, False, 3, str(path))
    assert told.stderr.splitlines()[-1] == f"homefires: round 3: {path}: {said['why']}"
