"""`homefires demo` as a person sees it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from peer.schema.events import Evaluated, PeerStarted, PeerStopped, RoundCommitted
from peer.testing.child_process import BUSY, assert_no_orphans
from tests.swarm.conftest import Homefires

pytestmark = pytest.mark.swarm
Start = Callable[..., Homefires]
ROUNDS = 8
STORY = ("--rounds", str(ROUNDS), "--ui", "json", "--set", f"data.eval_every={ROUNDS}")


FIRST_ROUND_S = 20.0
"""From the command to the first committed round of the shipped demo: who tries it waits no longer."""
PARAMETERS = 110_976
"""Of the spec `micro`."""


@pytest.mark.nightly
def test_a_round_costs_what_its_codec_says(homefires: Start) -> None:
    """Of the model in float16, 2 bytes per parameter, each of three peers gives (n−1)/n to those who reduce it, and as
    much in means; little else is said."""
    sets = ("--set", "codec.wire=float16")
    demo = homefires("demo", "--spec", "micro", "--peers", "3", "--rounds", "4", "--ui", "json", *sets)
    assert demo.finish() == 0, demo.err
    commits = [line.event for line in demo.events(RoundCommitted) if isinstance(line.event, RoundCommitted)]
    sizes = [sum(commit.bytes_sent for commit in commits if commit.round == round) / 3 for round in (2, 3)]
    control_bytes = 20_000
    assert all(0 < size - 2 * (3 - 1) / 3 * 2.0 * PARAMETERS < control_bytes for size in sizes), sizes


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Homefires]:
    """The shipped demo with one peer."""
    demo = Homefires(tmp_path_factory.mktemp("alone"), "demo", *STORY, "--peers", "1")
    try:
        assert demo.finish() == 0, demo.err
        yield demo
    finally:
        demo.end()


def test_one_peer_talks_to_nobody(alone: Homefires) -> None:
    """A demo of one is a Lookahead optimizer: rounds commit and no frame is sent."""
    commits = [line.event for line in alone.events(RoundCommitted) if isinstance(line.event, RoundCommitted)]
    assert [commit.round for commit in commits] == list(range(1, ROUNDS + 1))
    assert all(commit.bytes_sent == commit.bytes_received == 0 for commit in commits)


def test_the_demo_learns_more_together_than_alone(homefires: Start, alone: Homefires, tmp_path: Path) -> None:
    """The shipped demo, in its first eight rounds: exit 0; stdout holds nothing but event lines;
    one digest and one state per round; nothing is left behind; the first round is committed in time.

    Held-out loss at most 2.17 nats per byte (2.123 and 2.118 were measured with two seeds), and below one peer's after
    the same number of steps (2.203, 2.208). A round costs each of n peers 2(n−1)/n · 0.53125 bytes per parameter up and
    as much down, which is what int4 takes, and with every message counted at most 0.55.
    """
    began_at = time.time()
    together = homefires("demo", *STORY)
    assert together.finish() == 0, together.err
    assert min(line.t for line in together.events(RoundCommitted)) - began_at <= FIRST_ROUND_S * BUSY
    assert_all_rounds_alike(together)
    assert_no_orphans(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["stderr.txt"]
    assert final_loss(together) <= 2.17
    assert final_loss(together) < final_loss(alone)
    both_ways = 2 * (3 - 1) / 3
    assert both_ways * 0.53125 < min(bytes_per_parameter(together))
    assert max(bytes_per_parameter(together)) <= both_ways * 0.55


def assert_all_rounds_alike(demo: Homefires) -> None:
    """All three peers made all rounds, with equal bits, and said so."""
    assert all("type" in json.loads(text) for text in demo.out)
    rounds: dict[int, set[tuple[str, str]]] = {}
    for line in demo.events(RoundCommitted):
        assert isinstance(line.event, RoundCommitted)
        rounds.setdefault(line.event.round, set()).add((line.event.digest, line.event.state))
        assert len(line.event.group) == 3
        assert line.event.void == 0
    assert sorted(rounds) == list(range(1, ROUNDS + 1))
    assert all(len(seen) == 1 for seen in rounds.values()), rounds
    assert len(demo.events(PeerStopped)) == 3


def bytes_per_parameter(demo: Homefires) -> tuple[float, float]:
    """(sent, received) by the links, on average over peers and rounds."""
    parameters = {line.event.parameters for line in demo.events(PeerStarted) if isinstance(line.event, PeerStarted)}
    commits = [line.event for line in demo.events(RoundCommitted) if isinstance(line.event, RoundCommitted)]
    whole = len(commits) * parameters.pop()
    sent, received = (sum(getattr(commit, name) for commit in commits) for name in ("bytes_sent", "bytes_received"))
    return sent / whole, received / whole


def final_loss(demo: Homefires) -> float:
    """Held-out loss of the last anchor, which every peer measures."""
    losses = [
        line.event.loss
        for line in demo.events(Evaluated)
        if isinstance(line.event, Evaluated) and line.event.round == ROUNDS and line.event.loss is not None
    ]
    assert max(losses) - min(losses) < 1e-3
    return losses[0]
