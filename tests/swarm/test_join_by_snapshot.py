"""A newcomer of a run whose beginning nobody has any more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from peer.schema.events import AlertRaised, EventLine, PeerStateChanged, TransferProgressed
from peer.testing.faulty_link import LIES
from peer.testing.process_swarm import RealSwarm

pytestmark = pytest.mark.swarm

SNAPSHOT_ROUNDS, KEEP_ROUNDS = 4, 2
SETS = (
    f"round.snapshot_rounds={SNAPSHOT_ROUNDS}", f"round.keep_rounds={KEEP_ROUNDS}", "round.steps=4",
    "round.sync_rounds=0", "round.ramp_rounds=0",
    "round.max_train_s=20", "round.gather_s=6", "round.exchange_s=6", "round.ack_s=3", "data.eval_every=1000",
    "inner.sequences=1", "data.eval_sequences=8",
    "model.config={hidden_size=128, intermediate_size=320, num_hidden_layers=2, num_attention_heads=2, "
    "tie_word_embeddings=true}",
)  # fmt: skip
SETTINGS = ("chain_mb=0", "newcomers_mbps=4", "min_step_s=0.4")
"""Nothing is kept longer than it must be, and 3 MB take some seconds."""
LIAR, VICTIM = 1, 2


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealSwarm]:
    """Three peers in the first rounds. The second test leaves one of them dead."""
    with closing(RealSwarm(tmp_path_factory.mktemp("run"), 3, sets=SETS, settings=SETTINGS)) as run:
        run.until_round(2)
        yield run


def test_a_peer_that_was_away_too_long_says_so_and_goes_on_from_a_snapshot(run: RealSwarm) -> None:
    """Nobody has any more what follows its chain, and those who are asked for it are not troubled by that."""
    away = 2
    assert run.stop(away) == 0
    stood_at = run.committed(away)[-1].round
    run.until(lambda: all(first_block(run, peer) > stood_at + 1 for peer in (0, 1)), "both prune")
    run.restart(away)
    line = run.wait_for(away, lambda line: bool(text_of(line, "RESYNC")))
    assert f"no longer have what follows round {stood_at} here" in text_of(line, "RESYNC")
    until_in_group(run, away)
    run.assert_agreement()
    assert not any(text_of(line, "LINK") for peer in range(3) for line in run.lines(peer))
    assert sum("no longer have" in text_of(line, "RESYNC") for line in run.lines(away)) == 1


def test_a_newcomer_takes_a_snapshot_though_one_donor_dies_and_one_lies(run: RealSwarm) -> None:
    """It is told who lied and who stopped, is in step with the rest, and what it gives counts."""
    run.until_round((run.committed(0)[-1].round // SNAPSHOT_ROUNDS + 1) * SNAPSHOT_ROUNDS + KEEP_ROUNDS)
    run.until(lambda: all(first_block(run, founder) > 1 for founder in range(3)), "all prune")
    (run.directory_of(LIAR) / LIES).touch()
    late = run.join()
    run.wait_for(late, is_transfer)
    run.kill(VICTIM)
    run.wait_for(late, is_ready)
    newest = run.committed(0)[-1].round
    run.until_round(newest + 3, by=(0, LIAR, late))
    assert any(late in run.group(round) for round in range(newest + 1, newest + 4))
    assert run.committed(late)[0].round > SNAPSHOT_ROUNDS, "it did not replay from the beginning"
    run.assert_agreement()
    told = [text for line in run.lines(late) if (text := text_of(line, "DONOR"))]
    assert any(run.id_of(LIAR) in text and "wrong bytes" in text for text in told)
    assert all(run.id_of(0) not in text for text in told)
    assert not any(text_of(line, "LINK") for peer in (0, LIAR, late) for line in run.lines(peer))


def until_in_group(run: RealSwarm, peer: int) -> None:
    """Wait until the group of a round that is not committed yet has this peer in it."""
    newest = run.committed(0)[-1].round
    run.until(
        lambda: any(peer in commit.group for commit in run.committed(0) if commit.round > newest), "not in the group"
    )


def first_block(run: RealSwarm, peer: int) -> int:
    """Number of the oldest block on a peer's disk."""
    return min(int(path.stem) for path in (run.directory_of(peer) / "chain").glob("*.block"))


def is_transfer(line: EventLine) -> bool:
    return isinstance(line.event, TransferProgressed) and line.event.what == "snapshot"


def is_ready(line: EventLine) -> bool:
    return isinstance(line.event, PeerStateChanged) and line.event.state == "READY"


def text_of(line: EventLine, code: str) -> str:
    """What an alert of this code says; nothing for other lines."""
    return line.event.text if isinstance(line.event, AlertRaised) and line.event.code == code else ""
