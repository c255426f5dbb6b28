"""What is in the recorded demo, from its events alone. Screens and reports are tested against these facts.

Four peers make 20 rounds, told by `tests/tui/recordings/make.py`, which brings their mishaps about:

    peer-2 is late       its uplink is slow in the round to anchor 7: only some of its 15 parts come in time, and that
                         share is its factor. From the round to anchor 14 on it stands still: ABSENT until it is in no
                         electorate, then LATE with nothing ready, then STALE with what it still had.
    peer-3 is killed     after anchor 8, without a word: ABSENT until it is in no electorate. It starts again, catches
                         up, and counts as before. (A round in which it arrives too late to train would be LATE.)
    peer-4 is odd        for anchor 12 in one of 6 layers (factor 5/6: that layer counts nothing), for anchor 18 in all
                         of them (factor 0). Each of these penalties ends with the next anchor.
    peer-1               nothing happens to it.

`PENALTIES` has the figures. Whoever makes the recording anew puts what this test prints in their place.
"""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path

import pytest

from peer.schema.events import (
    DeviceMeasured,
    Event,
    EventLine,
    NetworkMeasured,
    PeerStarted,
    PeerStateChanged,
    PeerStopped,
    RoundCommitted,
    parse_line,
)

RECORDING = Path(__file__).parent / "recordings" / "demo.jsonl"
ROUNDS = 20
PARTS = 15
LAYERS = 6

PENALTIES = (
    (8, "peer-2", "LATE", "", "7 of 15 parts came in time", 0.4667),
    (10, "peer-3", "ABSENT", "", "did not answer", 0.0),
    (11, "peer-3", "LATE", "", "had nothing ready", 0.0),
    (13, "peer-4", "ANOMALY", "model.layers.2", "norm 7.377 where 0.8757 is usual (z 14.85), in 1 of 6 layers", 0.8333),
    (15, "peer-2", "ABSENT", "", "did not answer", 0.0),
    (16, "peer-2", "ABSENT", "", "did not answer", 0.0),
    (17, "peer-2", "LATE", "", "had nothing ready", 0.0),
    (18, "peer-2", "STALE", "", "3 rounds old", 0.8889),
    (
        19, "peer-4", "ANOMALY", "model.embed_tokens",
        "norm 4.067 where 0.4893 is usual (z 14.63), in 6 of 6 layers", 0.0,
    ),
)  # fmt: skip
"""(until anchor, peer, code, layer, evidence, factor), by rounds and names. Each ends one anchor after its round."""


@pytest.fixture(scope="module")
def lines() -> list[EventLine]:
    read = [parse_line(text) for text in RECORDING.read_text(encoding="utf-8").splitlines()]
    return [line for line in read if line is not None]


@pytest.fixture(scope="module")
def names(lines: list[EventLine]) -> dict[str, str]:
    return {line.peer: line.event.name for line in lines if isinstance(line.event, PeerStarted)}


def of(lines: list[EventLine], names: dict[str, str], name: str, kind: type[Event]) -> list[EventLine]:
    """What one peer said of a kind."""
    return [line for line in lines if names[line.peer] == name and isinstance(line.event, kind)]


def commits(lines: list[EventLine]) -> dict[int, RoundCommitted]:
    """By anchor, as its first reporter told it."""
    found: dict[int, RoundCommitted] = {}
    for line in lines:
        if isinstance(line.event, RoundCommitted):
            found.setdefault(line.event.round, line.event)
    return found


def share(lines: list[EventLine], names: dict[str, str], name: str, round: int) -> float:
    """A member's share of the mean that led to an anchor."""
    weights = {names[peer]: weight for peer, weight in commits(lines)[round].weights.items()}
    return weights[name] / sum(weights.values())


def test_the_file_is_small_and_whole(lines: list[EventLine]) -> None:
    """Every line is an event that this client knows; nothing in it names a place but the demo's own folder."""
    text = RECORDING.read_text(encoding="utf-8")
    assert len(text.encode()) < 1e6
    assert len(lines) == len(text.splitlines())
    assert [line.t for line in lines] == sorted(line.t for line in lines) or max_disorder_s(lines) < 1.0
    paths = set(re.findall(r'"(/(?!ip4/127\.0\.0\.1/)[^"]*)"', text))
    assert paths
    assert {path for path in paths if not path.startswith("/tmp/homefires-demo/")} == set()


def max_disorder_s(lines: list[EventLine]) -> float:
    """By how much a line is older than one before it: four processes write into one file."""
    newest, worst = 0.0, 0.0
    for line in lines:
        newest = max(newest, line.t)
        worst = max(worst, newest - line.t)
    return worst


def test_four_peers_commit_every_round_with_equal_bits(lines: list[EventLine], names: dict[str, str]) -> None:
    assert sorted(names.values()) == ["peer-1", "peer-2", "peer-3", "peer-4"]
    bits: dict[int, set[tuple[str, str]]] = {}
    for line in lines:
        if isinstance(line.event, RoundCommitted):
            bits.setdefault(line.event.round, set()).add((line.event.digest, line.event.state))
    assert sorted(bits) == list(range(1, ROUNDS + 1))
    assert all(len(seen) == 1 for seen in bits.values())
    for name in names.values():
        assert ROUNDS in {line.event.round for line in of(lines, names, name, RoundCommitted)}  # type: ignore[attr-defined]


def test_the_penalties_are_these(lines: list[EventLine], names: dict[str, str]) -> None:
    """Who, for what, with which evidence, how much it counted and until which anchor."""
    found = [
        (row["until_round"], names[row["about"]], row["code"], row["layer"], row["evidence"], row["factor"])
        for _, commit in sorted(commits(lines).items())
        for row in sorted(commit.penalties, key=lambda row: names[row["about"]])
    ]
    assert tuple(found) == PENALTIES, "\n".join(f"    {json.dumps(row)}," for row in found)


def test_the_straggler_is_late_by_what_its_factor_says() -> None:
    """The share of its parts that came in time, in a round without other faults."""
    until, name, code, layer, evidence, factor = PENALTIES[0]
    assert (until, name, code, layer) == (8, "peer-2", "LATE", "")
    came = int(re.fullmatch(rf"(\d+) of {PARTS} parts came in time", evidence)[1])  # type: ignore[index]
    assert 0 < came < PARTS
    assert factor == round(came / PARTS, 4)


def test_one_peer_is_killed_and_comes_back(lines: list[EventLine], names: dict[str, str]) -> None:
    """It starts twice and stops once; between its lives the others call it absent; then it is in the mean again."""
    first, second = of(lines, names, "peer-3", PeerStarted)
    (stopped,) = of(lines, names, "peer-3", PeerStopped)
    assert first.t < second.t < stopped.t
    times = [line.t for line in lines if line.peer == first.peer]
    assert max(later - earlier for earlier, later in pairwise(times)) > 5
    states = [line for line in of(lines, names, "peer-3", PeerStateChanged) if line.t >= second.t]
    assert "SYNCING" in [line.event.state for line in states]  # type: ignore[attr-defined]
    mine = [row for row in PENALTIES if row[1] == "peer-3"]
    assert re.fullmatch("(ABSENT )+(LATE )?", "".join(f"{row[2]} " for row in mine))
    groups = {round: {names[peer] for peer in commit.group} for round, commit in commits(lines).items()}
    again = min(round for round, group in groups.items() if round >= mine[-1][0] and "peer-3" in group)
    assert share(lines, names, "peer-3", again) > 0.15


def test_one_peer_is_odd_in_one_layer_and_later_in_all(lines: list[EventLine], names: dict[str, str]) -> None:
    """The layer is named, the deviation is far above the threshold of 3, and its share of the mean falls."""
    first, second = [row for row in PENALTIES if row[2] == "ANOMALY"]
    assert (*first[:4], first[5]) == (13, "peer-4", "ANOMALY", "model.layers.2", round(1 - 1 / LAYERS, 4))
    assert (second[0], second[1], second[5]) == (19, "peer-4", 0.0)
    for row, layers in ((first, 1), (second, LAYERS)):
        found = re.fullmatch(rf"norm .* is usual \(z ([\d.]+)\), in {layers} of {LAYERS} layers", row[4])
        assert found is not None
        assert float(found[1]) > 3
    before, then, after = (share(lines, names, "peer-4", round) for round in (11, 12, 13))
    assert then < 0.9 * before
    assert share(lines, names, "peer-4", 18) == 0
    assert after > then * 0.9


def test_the_peer_that_stood_still_comes_with_old_work() -> None:
    codes = "".join(f"{row[2]} " for row in PENALTIES if row[1] == "peer-2")
    assert re.fullmatch("LATE (ABSENT )+(LATE )?STALE ", codes)


def test_every_peer_tells_of_its_network_and_its_machine(lines: list[EventLine], names: dict[str, str]) -> None:
    for name in names.values():
        assert of(lines, names, name, NetworkMeasured)
        assert of(lines, names, name, DeviceMeasured)
