"""Streamed data sets, through the same code path on files of this machine."""

from __future__ import annotations

from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from dht.errors import BadSpec
from peer import spec as specs
from peer.data.data_shards import DATA_SHARDS
from peer.data.hub import HubSource
from peer.data.open_source import held_out, open_source
from peer.spec import RunSpec

CONTEXT = 8


@pytest.fixture
def spec(tmp_path: Path) -> RunSpec:
    """A data set of two parquet files, 600 documents each."""
    for file in range(2):
        rows = [f"document {file}-{number} of the set" for number in range(600)]
        pyarrow.parquet.write_table(pyarrow.table({"text": rows}), tmp_path / f"train-{file}.parquet")
    return make_spec(str(tmp_path))


def make_spec(path: str, **data: object) -> RunSpec:
    table = {"source": "hub", "path": path, "held_out_every": 10, "eval_sequences": 16, **data}
    model = {"architecture": "llama", "context": CONTEXT}
    return specs.from_mapping({"run": {"name": "t"}, "model": model, "data": table})


def text_of(source: HubSource, shard: int, windows: int) -> str:
    tokens = [token for at in range(windows) for token in source.window(shard, at)[1:].tolist()]
    return "".join(chr(token) if token < 256 else "\n" for token in tokens)


def open_hub(spec: RunSpec) -> HubSource:
    source = open_source(spec)
    assert isinstance(source, HubSource)
    return source


@pytest.mark.slow
def test_shards_hold_different_documents(spec: RunSpec) -> None:
    """No line of one shard is in another, though there are fewer files than shards."""
    source = open_hub(spec)
    lines = [set(text_of(source, shard, 20).split("\n")[1:-1]) for shard in (0, 1, 2, 63)]
    assert all(lines)
    assert len(set.union(*lines)) == sum(map(len, lines))


def test_reading_can_start_anywhere(spec: RunSpec) -> None:
    """A joiner at a cursor reads what a peer there from the start would, and one can go back."""
    walked, jumped = open_hub(spec), open_hub(spec)
    expected = [walked.window(5, at).tolist() for at in range(12)]
    assert jumped.window(5, 9).tolist() == expected[9]
    assert jumped.window(5, 2).tolist() == expected[2]


def test_a_shard_begins_again_at_its_end(spec: RunSpec) -> None:
    """Reading never stops: far beyond one pass there is still text of that shard."""
    source = open_hub(spec)
    once = text_of(source, 7, 400)
    assert once.count("document 1-3 of the set") > 1


@pytest.mark.slow
def test_held_out_documents_are_not_in_the_shards(spec: RunSpec) -> None:
    """The evaluation set is by content, a tenth of the documents, and no shard has it."""
    source = open_hub(spec)
    tokens_BT = held_out(source)
    assert tokens_BT.shape == (16, CONTEXT + 1)
    text = "".join(chr(token) if token < 256 else "\n" for token in tokens_BT[:, 1:].flatten().tolist())
    whole = {line for line in text.split("\n")[1:-1] if line.endswith("the set") and line.startswith("document")}
    read = {line for shard in range(DATA_SHARDS) for line in text_of(source, shard, 60).split("\n")}
    assert whole
    assert not whole & read


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"text_field": "body"}, "it has text"),
        ({"split": "nonsense"}, "nonsense"),
        ({"path": "/nowhere/set"}, "nowhere"),
    ],
)
def test_a_wrong_name_is_one_clear_line(spec: RunSpec, data: dict[str, object], message: str) -> None:
    """Column, split and data set."""
    wrong = make_spec(**{"path": spec.data.path, **data})  # type: ignore[arg-type]
    with pytest.raises(BadSpec, match=message) as caught:
        open_source(wrong).held_out()
    assert "\n" not in str(caught.value)
