"""The benchmark of honest peers: shards that are unlike, and what is said of judging's price."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from peer.schema.spec import RunSpec
from peer.training.data.data_shards import Document, is_held_out, shard_of, shards_of
from peer.training.data.open_source import open_source
from tests.benchmarks import honest, honest_report, jobs
from tests.benchmarks.__main__ import main
from tests.benchmarks.unlike import dealt, documents_of, renamed
from tests.benchmarks.variants import names_of
from tests.peer.training.data.read_whole import read_files

NAMES = ("a", "b", "c")

# ---- shards that are unlike


def test_each_peer_reads_neighbouring_documents() -> None:
    """In order of their names, as many characters for each; and what was held out stays so."""
    documents = [Document(f"{number:03}.txt", "x" * 10) for number in range(300)]
    new = list(renamed(documents, NAMES, 4))
    assert [document.text for document in new] == [document.text for document in documents]
    assert new == sorted(new, key=lambda document: document.name)
    kept_out = [is_held_out(document.name, 4) for document in documents]
    assert [is_held_out(document.name, 4) for document in new] == kept_out
    for number, document in enumerate(new):
        reader = number // 100
        assert kept_out[number] or shard_of(document.name) in shards_of(NAMES[reader], NAMES)


def test_a_long_document_is_one_readers(tmp_path: Path) -> None:
    """However the product cuts long files: all its pieces are read by the same peer, and no text is lost."""
    long = Document("long.py", "".join(f"{number}\n" for number in range(100_000)))
    new = list(renamed([long, Document("short.py", "x" * len(long.text))], ("a", "b"), 1 << 30))
    pieces = [document for document in new if document.name.endswith("long.py.txt")]
    assert "".join(document.text for document in pieces) == long.text
    assert {shard_of(document.name) in shards_of("a", ("a", "b")) for document in pieces} == {True}
    for document in new:
        (tmp_path / document.name).parent.mkdir(parents=True)
        (tmp_path / document.name).write_text(document.text)
    assert [document.name for document in read_files(str(tmp_path), "text")] == [document.name for document in new]


def test_the_dealt_text_is_the_same_text(base: RunSpec, tmp_path: Path) -> None:
    """On disk, read again by the product: every document once, the same windows held out."""
    spec = dealt(base, NAMES, tmp_path)
    before, after = documents_of(base), documents_of(spec)
    assert sorted(document.text for document in after) == sorted(document.text for document in before)
    assert (open_source(spec, spec.data.path).held_out() == open_source(base, base.data.path).held_out()).all()


def test_the_runs_of_a_seed_differ_in_the_reducer_alone(base: RunSpec) -> None:
    ours, plain = honest.spec_of("edit iid", base, 7, 3), honest.spec_of("mean non-iid", base, 7, 3)
    assert names_of(ours) == names_of(plain)
    assert (ours.aggregation.rule, plain.aggregation.rule) == ("edit", "mean")
    assert ours.run == plain.run


# ---- the whole command


@pytest.mark.outside
@pytest.mark.usefixtures("in_this_process")
def test_every_variant_gives_a_row_once(
    spec_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows, table and JSON, and the exit code is the bars'; a second call makes no row again."""
    monkeypatch.setattr(jobs, "code_digest", lambda patterns: "cc")  # somebody may edit a file between the two calls
    monkeypatch.setattr(honest, "SEQUENCES", 16)
    words = ["honest", "--spec", str(spec_path), "--rounds", "2", "--peers", "3", "--seeds", "5"]
    words += ["--out", str(tmp_path)]
    first = main(words)
    result = json.loads((tmp_path / "honest.json").read_text())
    assert [row["variant"] for row in result["rows"]] == ["edit iid", "mean iid", "edit non-iid", "mean non-iid"]
    assert len({row["loss"] for row in result["rows"]}) == 4
    assert first == (0 if all(bar["met"] for bar in result["bars"]) else 1)
    assert (tmp_path / "honest.md").read_text() in capsys.readouterr().out
    assert main(words) == first
    assert "4 runs, 4 of them already there" in capsys.readouterr().out


# ---- what is said about it


def row(variant: str, seed: int, loss: float, **values: Any) -> dict[str, Any]:
    times = {"rounds_s": 40.0, "measuring_s": 0.2, "judging_s": 0.01}
    plain = {"peers": 4, "exchanges": 10, "findings": [], **times}
    return {"variant": variant, "seed": seed, "loss": loss, **plain, **values}


def rows_of(differences: list[float], shards: str = "iid") -> list[dict[str, Any]]:
    pairs = [(row(f"edit {shards}", seed, 2.0 + value), row(f"mean {shards}", seed, 2.0))
             for seed, value in enumerate(differences, 1)]  # fmt: skip
    return [one for pair in pairs for one in pair]


def test_no_worse_is_a_mean_difference_within_its_standard_error() -> None:
    met = [honest_report.judge(rows_of(values), "edit")[0].met for values in ([0.01, -0.02], [0.03, -0.02, 0.0])]
    assert met == [True, True]
    assert not honest_report.judge(rows_of([0.02, 0.03, 0.01]), "edit")[0].met
    assert not honest_report.judge(rows_of([0.001]), "edit")[0].met


def test_each_kind_of_shards_has_its_bar() -> None:
    bars = honest_report.judge([*rows_of([-0.1, -0.2]), *rows_of([0.1, 0.2], "non-iid")], "edit")
    assert [bar.met for bar in bars] == [True, False, True]


def test_the_price_counts_everything_that_a_peer_does_for_it() -> None:
    """A round of 10 s per peer: twice its share of the measuring, 0.1 s, and three judgements of 0.01 s."""
    assert honest_report.cost(row("edit iid", 1, 2.0)) == pytest.approx((2 * 0.05 + 3 * 0.01) / 10)
    slow = row("edit iid", 1, 2.0, judging_s=0.1)
    assert [bar.met for bar in honest_report.judge([slow, row("mean iid", 1, 2.0, judging_s=9.0)], "edit")] == [
        True,
        False,
    ]


def test_the_table_counts_false_alarms() -> None:
    found = [[3, "p", "CLIPPED", 0, 9, "…"], [4, "p", "ANOMALY", 0, 0, "…"], [5, "q", "CLIPPED", 0, 9, "…"]]
    text = honest_report.table([row("edit iid", 1, 2.5, findings=found), row("mean iid", 1, 2.0)], "edit")
    assert "| iid, edit | 2.5000 | 2.5000 | +0.5000 ± 0.0000 | 1.300% | 1 ANOMALY, 2 CLIPPED of 40 |" in text
    assert "| iid, mean | 2.0000 | 2.0000 | – | 1.300% | none of 40 |" in text
