"""How peers come and go: rates, recorded schedules, and what is no schedule."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from dht.errors import BadInput
from peer.planning.simulate.scenario import Churn, ChurnEvent, changes_of, read_attackers, read_churn


def test_rates_are_kept() -> None:
    """Two hundred peers for ten hours: about a crash, half a leave and a join per peer and two hours."""
    churn = Churn(crashes=0.5, leaves=0.25, joins=0.5, back_s=360.0)
    found = changes_of(churn, 200, 1, 36_000.0)
    counts = Counter(change.what for change in found)
    assert counts["join"] == pytest.approx(1000, rel=0.15)
    assert counts["crash"] == pytest.approx(2 * counts["leave"], rel=0.2)
    assert counts["return"] == counts["crash"]
    assert [change.at_s for change in found] == sorted(change.at_s for change in found)
    assert found == changes_of(churn, 200, 1, 36_000.0)


def test_words_and_files_are_read(tmp_path: Path) -> None:
    """Per hour and seconds; or lines of JSON in any order."""
    assert read_churn("crash=0.1, leave=0.05,join=0.2,back=600") == Churn(
        crashes=0.1, leaves=0.05, joins=0.2, back_s=600.0
    )
    recorded = tmp_path / "churn.jsonl"
    recorded.write_text('{"t": 9, "peer": 1, "do": "return"}\n{"t": 2.5, "peer": 1, "do": "crash"}\n')
    assert read_churn(str(recorded)).schedule == (
        ChurnEvent(at_s=2.5, peer=1, what="crash"), ChurnEvent(at_s=9.0, peer=1, what="return"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("crash=x", "'x' is no number"),
        ("fall=1", "'fall' is no rate"),
        ("crash=-1", "must be 0 or more"),
        ("nowhere", "No such"),
    ],
)
def test_what_is_no_churn_is_refused(text: str, says: str) -> None:
    """In one line."""
    with pytest.raises(BadInput, match=says):
        read_churn(text)


@pytest.mark.parametrize("line", ['{"t": 1}', '{"t": 1, "peer": 0, "do": "dance"}', "[1]", "{"])
def test_a_recorded_line_that_is_no_change_is_refused(tmp_path: Path, line: str) -> None:
    """With its number."""
    path = tmp_path / "churn.jsonl"
    path.write_text(line)
    with pytest.raises(BadInput):
        read_churn(str(path))


def test_attackers_are_named() -> None:
    """So many of each kind."""
    assert read_attackers("nan=2,zeros") == ("nan", "nan", "zeros")
    with pytest.raises(BadInput, match="'bribe' is no attack"):
        read_attackers("bribe=1")
