"""Text and parquet files of this machine."""

from __future__ import annotations

from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from dht.errors import BadInput, BadSpec
from peer.schema import spec as specs
from peer.training.data.documents import PIECE_CHARACTERS, piece_characters
from peer.training.data.open_source import documents_in, files_of, open_source
from peer.training.data.reading.file_rows import Findings
from peer.training.data.tokenizer import tokenizer_of
from tests.peer.training.data.read_whole import read_files


def test_text_files_are_documents_by_relative_path(tmp_path: Path) -> None:
    """Sorted, without hidden files and without files that hold no text."""
    (tmp_path / "sub").mkdir()
    for name in ("b.txt", "sub/a.md", ".hidden.txt", "photo.jpg"):
        (tmp_path / name).write_text(name)
    found = [(document.name, document.text) for document in read_files(str(tmp_path), "text")]
    assert found == [("b.txt", "b.txt"), ("sub/a.md", "sub/a.md")]


def test_one_file_can_be_named(tmp_path: Path) -> None:
    """`path` may be a file."""
    (tmp_path / "book.txt").write_text("once")
    assert [document.name for document in read_files(str(tmp_path / "book.txt"), "text")] == ["book.txt"]


def test_a_long_file_feeds_many_peers(tmp_path: Path) -> None:
    """It is cut at line ends into pieces with names of their own, and nothing is lost."""
    text = "a line of text\n" * (PIECE_CHARACTERS // 5)
    (tmp_path / "book.txt").write_text(text)
    pieces = list(read_files(str(tmp_path), "text"))
    assert 300 < len({piece.name for piece in pieces}) == len(pieces) < 600
    assert "".join(piece.text for piece in pieces) == text
    assert all(piece.text.endswith("\n") for piece in pieces)


def test_pieces_of_much_text_are_long() -> None:
    """So are those of many files; and those of little text are never so short that they are no documents any more."""
    sizes = [piece_characters([size]) for size in (1000, 10**6, 10**7, 10**9)]
    assert sizes == [2048, 2048, 19531, PIECE_CHARACTERS]
    assert piece_characters([10**5] * 200) == PIECE_CHARACTERS


def test_one_text_of_a_megabyte_is_data(tmp_path: Path) -> None:
    """Some of it is held out, and many peers have a shard of it, also where a window is long."""
    (tmp_path / "book.txt").write_text(
        "".join(f"sentence {number} of a book, which is long.\n" for number in range(25_000))
    )
    data = {"source": "files", "path": "a book", "eval_sequences": 4}
    model = {"architecture": "llama", "context": 1024}
    spec = specs.from_mapping({"run": {"name": "t"}, "model": model, "data": data})
    source = open_source(spec, str(tmp_path / "book.txt"))
    assert source.held_out().shape == (4, 1025)
    assert len(source.windows) > 32


def test_lines_of_json_are_documents_without_their_braces(tmp_path: Path) -> None:
    """Each by its line, with the text of the field that the run names; what has none is told how to be read."""
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "one", "id": 1}\n\n{"text": "two"}\n')
    found = [(each.name, each.text) for each in read_files(str(tmp_path), "text")]
    assert found == [("a.jsonl:1", "one"), ("a.jsonl:3", "two")]
    for line, said in (('{"messages": []}', "it has 'messages'"), ("7", "it is no JSON object"), ("{", "is no JSON")):
        path.write_text(f'{{"text": "one"}}\n{line}\n')
        with pytest.raises(BadInput, match=rf"a\.jsonl:2 .*{said}") as caught:
            list(read_files(str(path), "text"))
        assert "data.format = 'chat'" in str(caught.value) or line == "{"


@pytest.mark.slow
def test_rows_of_parquet_files_are_documents(tmp_path: Path) -> None:
    """One per row, from the named column; an empty row is an empty document."""
    pyarrow.parquet.write_table(pyarrow.table({"body": ["one", None, "three"]}), tmp_path / "p.parquet")
    found = [(document.name, document.text) for document in read_files(str(tmp_path), "body")]
    assert found == [("p.parquet#0", "one"), ("p.parquet#1", ""), ("p.parquet#2", "three")]


def test_a_wrong_column_names_the_right_ones(tmp_path: Path) -> None:
    """The message lists what the file has."""
    pyarrow.parquet.write_table(pyarrow.table({"body": ["one"]}), tmp_path / "p.parquet")
    with pytest.raises(BadSpec, match="it has body"):
        list(read_files(str(tmp_path), "text"))


def test_a_broken_parquet_file_is_named(tmp_path: Path) -> None:
    """Not a traceback from the parquet library."""
    (tmp_path / "p.parquet").write_bytes(b"not parquet at all")
    with pytest.raises(BadSpec, match=r"p\.parquet is no parquet file"):
        list(read_files(str(tmp_path), "text"))


@pytest.mark.parametrize("name", ["missing", "."])
def test_nothing_to_read_is_one_clear_line(tmp_path: Path, name: str) -> None:
    """A folder that is not there, and one without text."""
    with pytest.raises(BadInput, match=f"the text is looked for at '{tmp_path / name}', which "):
        list(read_files(str(tmp_path / name), "text"))


def test_a_run_reads_the_files_of_the_setting(tmp_path: Path) -> None:
    """Never those that its spec names; without the setting it says what to do."""
    (tmp_path / "stories").mkdir()
    for number in range(30):
        (tmp_path / "stories" / f"{number}.txt").write_text(f"story {number}\n" * 20)
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "diary.txt").write_text("mine\n" * 1000)
    data = {"source": "files", "path": str(tmp_path / "private"), "held_out_every": 3, "eval_sequences": 4}
    model = {"architecture": "llama", "context": 16}
    spec = specs.from_mapping({"run": {"name": "t"}, "model": model, "data": data})
    with pytest.raises(BadInput, match=r"say which with --set data_path=FOLDER"):
        open_source(spec)
    moved = r"moved', which is not on this machine; say where it is with --set data_path=FOLDER$"
    with pytest.raises(BadInput, match=moved):
        open_source(spec, str(tmp_path / "moved"))
    source = open_source(spec, str(tmp_path / "stories"))
    assert source.held_out().shape == (4, 17)
    shard = next(iter(source.windows))
    assert source.window(shard, 0).shape == (17,)
    assert "story" in tokenizer_of(spec).decode(source.window(shard, 0).tolist())


def by_content(**data: object) -> specs.RunSpec:
    table = {"source": "files", "path": "texts", "held_out_by": "content", "held_out_every": 3, "eval_sequences": 3}
    model = {"architecture": "llama", "context": 16}
    return specs.from_mapping({"run": {"name": "t"}, "model": model, "data": table | data})


def sides(folder: Path, spec: specs.RunSpec) -> dict[str, set[bool]]:
    """By the name of a file, on which sides of what is held out its text is."""
    found: dict[str, set[bool]] = {}
    for document in documents_in(files_of(spec, str(folder), Findings()), spec, Findings()):
        found.setdefault(document.name.partition("#")[0], set()).add(document.is_held_out(spec.data))
    return found


def test_copies_are_on_one_side(tmp_path: Path) -> None:
    """60 of one file, among others: by name a third of them was held out, and the rest trained on."""
    for number in range(60):
        (tmp_path / f"copy {number}.txt").write_text("the same text\n" * 20)
        (tmp_path / f"other {number}.txt").write_text(f"text {number}\n" * 20)
    by = {rule: sides(tmp_path, by_content(held_out_by=rule)) for rule in ("name", "content")}
    copies = {rule: {name: found[name] == {True} for name in found if name[0] == "c"} for rule, found in by.items()}
    assert 10 < sum(copies["name"].values()) < 30
    assert len(set(copies["content"].values())) == 1
    assert 10 < sum(side == {True} for name, side in by["content"].items() if name[0] == "o") < 30


def test_a_long_document_is_on_one_side(tmp_path: Path) -> None:
    """All pieces of it, where there are documents enough; of few, pieces are held out, or nothing would be."""
    for number in range(12):
        (tmp_path / f"{number}.txt").write_text("".join(f"{number}: line {line}\n" for line in range(3000)))
    whole = sides(tmp_path, by_content())
    assert {len(side) for side in whole.values()} == {1}
    assert set.union(*whole.values()) == {True, False}
    (tmp_path / "0.txt").unlink()
    assert {len(side) for side in sides(tmp_path, by_content()).values()} == {2}


def test_a_run_without_the_key_is_the_run_it_was() -> None:
    """Its digest and its order: the key is younger than some runs."""
    spec = by_content(held_out_by="name")
    assert "held_out_by" not in spec.tables()["data"]
    assert by_content().tables()["data"]["held_out_by"] == "content"
    assert by_content().digest() != spec.digest()
