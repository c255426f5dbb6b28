"""Streamed data sets, through the same code path on files of this machine."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import pyarrow
import pyarrow.parquet
import pytest
import torch

from dht.errors import BadSpec
from peer.consensus.protocol.rules import DATA_SHARDS
from peer.schema import spec as specs
from peer.schema.spec import RunSpec
from peer.training.data import hub
from peer.training.data.chat.token_flags import BEGINS, predicted_tokens
from peer.training.data.hub import HubSource
from peer.training.data.open_source import open_source

CONTEXT = 8


NAME = "somebody/set"
own_files_alone = hub.require_own_files


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunSpec:
    """A data set of two parquet files, 600 documents each, that lie in a folder. No other is on the Hub."""
    load = datasets.load_dataset_builder

    def found(name: str, subset: str | None, token: object) -> Any:
        assert token is False
        if name != NAME:
            raise datasets.exceptions.DatasetNotFoundError(f"{name} is not on the Hub")
        return load(str(tmp_path), subset)

    monkeypatch.setattr(datasets, "load_dataset_builder", found)
    monkeypatch.setattr(hub, "require_own_files", lambda builder, name: None)
    for file in range(2):
        rows = [f"document {file}-{number} of the set" for number in range(600)]
        table = {"text": rows, "id": list(range(600))}
        pyarrow.parquet.write_table(pyarrow.table(table), tmp_path / f"train-{file}.parquet")
    return make_spec(NAME)


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
    tokens_BT = source.held_out()
    assert tokens_BT.shape == (16, CONTEXT + 1)
    text = "".join(chr(token) if token < 256 else "\n" for token in tokens_BT[:, 1:].flatten().tolist())
    whole = {line for line in text.split("\n")[1:-1] if line.endswith("the set") and line.startswith("document")}
    read = {line for shard in range(DATA_SHARDS) for line in text_of(source, shard, 60).split("\n")}
    assert whole
    assert not whole & read


def test_conversations_are_streamed_too(spec: RunSpec, tmp_path: Path) -> None:
    """Packed alike wherever reading starts; over the end of a pass, too, each window begins where a slot does."""
    for file in range(2):
        rows = [
            {"messages": [{"role": "user", "content": "q" * (number % 20)}, {"role": "assistant", "content": "yes"}]}
            for number in range(600 * file, 600 * file + 600)
        ]
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / f"train-{file}.parquet")
    model = {"architecture": "llama", "context": 48}
    spec = specs.from_mapping(
        {"run": {"name": "t"}, "model": model, "data": spec.tables()["data"] | {"format": "chat"}}
    )
    walked, jumped = open_hub(spec), open_hub(spec)
    windows = [walked.window(5, at) for at in range(40)]
    assert jumped.window(5, 33).tolist() == windows[33].tolist()
    assert all(window[0] & BEGINS for window in windows)
    assert all(bytes(window[1:][window[1:] < 256].tolist()) in (b"yes" * n for n in range(5)) for window in windows)
    assert predicted_tokens(torch.from_numpy(walked.held_out())) > 0


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"text_field": "body"}, "it has text"),
        ({"text_field": "id"}, "'id', a column of int in somebody/set; name one that holds text"),
        ({"split": "nonsense"}, "nonsense"),
        ({"path": "nowhere/set"}, "nowhere"),
    ],
)
def test_a_wrong_name_is_one_clear_line(spec: RunSpec, data: dict[str, object], message: str) -> None:
    """Column, split and data set."""
    wrong = make_spec(**{"path": spec.data.path, **data})  # type: ignore[arg-type]
    with pytest.raises(BadSpec, match=message) as caught:
        open_source(wrong).held_out()
    assert "\n" not in str(caught.value)


def builder_of(*files: str, kind: str = "parquet") -> Any:
    made = type("Made", (), {"__module__": f"datasets.packaged_modules.{kind}.{kind}"})()
    made.config = SimpleNamespace(data_files={"train": list(files)})
    return made


def test_a_data_set_reads_its_own_files_alone(tmp_path: Path) -> None:
    """Its card may name any: a diary of this machine, another repository, an address."""
    own = f"hf://datasets/{NAME}@0123/train.parquet"
    own_files_alone(builder_of(own, f"gzip://x.json::{own}"), NAME)
    foreign = ("/home/me/diary.txt", "hf://datasets/somebody/settled@0/x.parquet", "http://evil.example/x.json")
    for file in (*foreign, f"zip://{own}::/home/me/a.zip"):
        with pytest.raises(BadSpec, match="names a file elsewhere"):
            own_files_alone(builder_of(own, file), NAME)
    (tmp_path / "diary.txt").write_text("mine")
    with pytest.raises(BadSpec, match="names a file elsewhere"):
        own_files_alone(datasets.load_dataset_builder(str(tmp_path)), NAME)


@pytest.mark.parametrize("kind", ["pandas", "webdataset", "imagefolder", "lance"])
def test_only_tables_of_plain_values_are_read(kind: str) -> None:
    with pytest.raises(BadSpec, match=f"a data set of the kind '{kind}'; use one of arrow, csv, json, parquet, text"):
        own_files_alone(builder_of(kind=kind), NAME)


def test_a_folder_of_the_data_sets_name_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / NAME).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadSpec, match=r"is in the folder .* too"):
        open_source(make_spec(NAME))
