"""What a folder holds for a run: all of it in one table, and refused for what nobody sees later."""

from __future__ import annotations

import gzip
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from dht.errors import BadInput
from peer.schema import spec as specs
from peer.schema.spec import RunSpec
from peer.training.data.inspection import DataInspection, inspect
from peer.training.data.open_source import open_source
from tests.closed_folder import close
from tests.talks import on_talks_and_letters

CONTEXT = 64


def make_spec(**data: object) -> RunSpec:
    table = {"source": "files", "path": "texts", "held_out_by": "content", "held_out_every": 3, **data}
    run = {"name": "t", "rounds": 5, "founders": 2}
    model = {"architecture": "llama", "context": CONTEXT}
    inner, round = {"sequences": 2, "accumulation": 3}, {"steps": 10}
    return specs.from_mapping({"run": run, "model": model, "data": table, "inner": inner, "round": round})


def inspected(folder: Path, **data: object) -> DataInspection:
    (found,) = inspect(make_spec(**data), str(folder))
    return found


def write_corpus(folder: Path) -> None:
    """40 files: 20 short texts, of which 4 are copies; 5 long ones; and of each kind that people bring a few."""
    for number in range(16):
        (folder / f"{number:02}.txt").write_text(f"text {number:02}\n" * 5)  # 40 characters
    for number in range(4):
        (folder / f"copy {number}.TXT").write_text("text 03\n" * 5)
    for number in range(5):
        (folder / f"long {number}.md").write_text(f"{number}" + "x" * 99)
    (folder / "latin.txt").write_bytes("hét\n".encode("latin-1"))
    (folder / "marked.txt").write_bytes("one\n".encode("utf-8-sig"))
    (folder / "wide.txt").write_bytes("two\n".encode("utf-16"))
    rows = [{"text": f"row {number}"} for number in range(3)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "again.jsonl.gz").write_bytes(gzip.compress((folder / "rows.jsonl").read_bytes(), mtime=0))
    (folder / "array.json").write_text(json.dumps([{"text": "an element"}]))
    (folder / "table.csv").write_text("text,n\na cell,1\n")
    for name in ("a.epub", "b.docx", "c.jpg"):
        (folder / name).write_bytes(b"\0" * 10)
    (folder / ".hidden").write_bytes(b"\0" * 10**6)
    for number in range(4):
        (folder / f"{number}.py").write_text(f"# {number}\n")
    (folder / "sub").mkdir()
    (folder / "sub" / "a.rst").write_text("below")
    (folder / "linked").symlink_to(folder / "sub")


def test_a_corpus_is_what_a_list_by_hand_says(tmp_path: Path) -> None:
    write_corpus(tmp_path)
    found = inspected(tmp_path)
    read = 16 + 4 + 5 + 3 + 2 + 1 + 1 + 4 + 1
    assert len(found.files) + len(found.left_out) == read + 3 == 40
    documents = 16 + 4 + 5 + 3 + 6 + 1 + 1 + 4 + 1
    characters = 20 * 40 + 5 * 100 + 3 * 4 + 6 * 5 + 10 + 6 + 4 * 4 + 5
    tokens = characters + 1 + documents  # the é has two bytes, and each document an end
    assert found == replace(
        found, called="texts", folder=str(tmp_path), converted=(
            ("latin.txt", "cp1252"), ("marked.txt", "utf-8-sig"), ("wide.txt", "utf-16"),
        ), characters=characters, replaced=0, documents=documents, duplicates=4 + 3, long=5, tokens=tokens,
        held_out=found.held_out, is_counted=True, holds_out_pieces=False, faults=(),
        passes=2 * 5 * 10 * 2 * 3 * CONTEXT / tokens,
    )  # fmt: skip
    assert [(each.name, each.size_bytes) for each in found.left_out] == [("a.epub", 10), ("b.docx", 10), ("c.jpg", 10)]
    assert found.refusals == ()
    assert found.table() == [
        ("read", f"37 files, {found.bytes_read / 1e3:.1f} kB (23 .txt, 5 .md, 4 .py, 1 .jsonl.gz, 1 .json, 1 .jsonl)"),
        ("left out", "3 files, 0.0 kB"),
        ("left out", "a.epub, 0.0 kB: .epub is not read; convert it: pandoc a.epub --to=plain --output=a.txt"),
        ("left out", "b.docx, 0.0 kB: .docx is not read; convert it: pandoc b.docx --to=plain --output=b.txt"),
        ("left out", "c.jpg, 0.0 kB: .jpg is not read; rename it to .txt if it is text"),
        ("converted", "latin.txt, from cp1252"),
        ("converted", "marked.txt, from utf-8-sig"),
        ("converted", "wide.txt, from utf-16"),
        ("characters", f"{characters:,}, of which 0 are replaced"),
        ("documents", f"{documents}, of which 7 are copies of others; 5 longer than the context of 64 tokens"),
        ("tokens", f"{tokens:,}"),
        ("passes", f"the run reads all of it about {found.passes:.0f} times; after some four a model learns little "
         "from it: add text, or have fewer rounds"),
        ("held out", "one document in 3, by the hash of its text; nobody trains on that"),
    ]  # fmt: skip


def test_pages_of_the_web_are_learned_with_their_tags_and_the_table_says_so(tmp_path: Path) -> None:
    for number in range(9):
        (tmp_path / f"{number}.HTML").write_text(f"<p class='a'>page {number}</p>\n" * 20)
    (tmp_path / "feed.xml.gz").write_bytes(gzip.compress(b"<a/>"))
    assert dict(inspected(tmp_path).table())["as it is"] == (
        "10 files of HTML or XML, whose tags and scripts are learned, too; for the text alone: pandoc FILE --to=plain "
        "--output=FILE.txt"
    )


def test_all_faults_of_a_folder_are_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n{\n7\n')
    (tmp_path / "b.parquet").write_bytes(b"none")
    (tmp_path / "c.txt").write_bytes(b"\0\1\2")
    found = inspected(tmp_path)
    assert [fault.split()[0] for fault in found.faults] == ["a.jsonl:2", "a.jsonl:3", "b.parquet", "c.txt"]
    with pytest.raises(BadInput) as caught:
        found.require_sound()
    assert all(fault in str(caught.value) for fault in found.faults)


def test_names_and_folders_that_cannot_be_read_are_faults_among_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / os.fsdecode(b"caf\xe9.txt")).write_text("a")
    (tmp_path / "a.jsonl").write_text("{\n")
    (tmp_path / "b.txt").write_text("b")
    (tmp_path / "closed").mkdir()
    close(tmp_path / "closed", monkeypatch)
    found = inspected(tmp_path)
    assert [name for name, _ in found.files] == ["a.jsonl", "b.txt"]
    closed, named, broken = found.faults
    assert (
        closed == f"the folder {tmp_path}/closed cannot be read (Permission denied); let this program read it, or "
        "move it"
    )
    assert named.endswith("a name that is UTF-8 text")
    assert "give 'caf\\udce9.txt' in " in named
    assert broken.startswith("a.jsonl:1 is no JSON")


def test_a_folder_of_which_nothing_is_read_is_shown(tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / f"{number}.epub").write_text("x")
    found = inspected(tmp_path)
    assert [text.split(",")[0] for name, text in found.table() if name == "left out"][1:] == [
        f"{number}.epub" for number in range(5)
    ]
    assert "which holds no text or parquet file; 0.epub: .epub is not read" in found.refused()[0]


def test_faults_that_are_not_said_are_counted(tmp_path: Path) -> None:
    """And of those that are alike three are said."""
    (tmp_path / "a.jsonl").write_text("{\n" * 5000)
    found = inspected(tmp_path)
    assert found.refused(1) == (found.faults[0], "and 4,999 more")
    assert found.table()[-1] == ("fault", "and 4,997 more")
    with pytest.raises(BadInput, match=r"; and 4,997 more$"):
        found.require_sound()


def test_text_in_a_wrong_encoding_is_refused(tmp_path: Path) -> None:
    """Somebody has lost its letters before; one in two thousand is borne."""
    (tmp_path / "a.txt").write_text("h\ufffdt " * 100)
    (refusal,) = inspected(tmp_path).refusals
    assert refusal.startswith(
        "100 of 400 characters are none that anybody wrote, and at most 0.1% may be (see a.txt); save"
    )
    (tmp_path / "a.txt").write_text("\ufffd" + "".join(f"letter {number} " for number in range(2000)))
    assert inspected(tmp_path).refusals == ()


def test_files_in_a_wrong_encoding_are_named(tmp_path: Path) -> None:
    """Among many that are as they should be."""
    for number in range(20):
        (tmp_path / f"{number}.txt").write_text("letters\n" * 4)
    (tmp_path / "lost.txt").write_text("h\ufffdt\n" * 4)
    (tmp_path / "rows.jsonl").write_text(json.dumps({"text": "fine"}) + "\n" + json.dumps({"text": "\0"}))
    (refusal,) = inspected(tmp_path).refusals
    assert "5 of 661 characters" in refusal
    assert "(see lost.txt, rows.jsonl:2)" in refusal


def test_zeros_in_rows_are_no_characters(tmp_path: Path) -> None:
    """JSON and tables can hold them, as they come from scanned books; as bytes of a text they are a fault."""
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "ab\0" * 100}))
    (refusal,) = inspected(tmp_path).refusals
    assert refusal.startswith("100 of 300 characters are none that anybody wrote")


def test_most_of_it_left_out_is_refused(tmp_path: Path) -> None:
    """As of a data set in a format that is not read, beside its README."""
    (tmp_path / "README.md").write_text("what this is " * 100)
    (tmp_path / "books.epub").write_bytes(b"\0" * 10_000)
    (refusal,) = inspected(tmp_path).refusals
    assert refusal.startswith("10.0 kB are left out and 1.3 kB read; convert what is left out")


def test_less_than_a_window_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("few")
    (refusal,) = inspected(tmp_path).refusals
    assert refusal == "all of it is 4 tokens, and a window has 65; add text, or lower model.context"


def test_that_none_of_a_few_documents_is_held_out_is_said_before_anybody_agrees(tmp_path: Path) -> None:
    """A peer could not begin: it has nothing to evaluate with."""
    rows = "".join(json.dumps({"text": f"{name} " * 500}) + "\n" for name in ("one book", "another book"))
    (tmp_path / "books.jsonl").write_text(rows)
    (refusal,) = inspected(tmp_path, held_out_every=1000).refusals
    assert refusal == (
        "0 tokens of it are held out, and a window has 65; add documents, or lower data.held_out_every, which is 1000"
    )
    with pytest.raises(BadInput, match="the data hold 0 held-out tokens"):
        open_source(make_spec(held_out_every=1000), str(tmp_path))


def test_conversations_are_inspected_as_such(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "a" * 100}, {"role": "assistant", "content": "b"}]
    lines = [{"messages": messages}, {"messages": messages}, {"messages": messages[:1]}, {"messages": messages[1:]}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "README.md").write_text("of what")
    found = inspected(tmp_path, format="chat")
    assert (found.documents, found.duplicates, found.long) == (2, 1, 2)
    assert [each.name for each in found.left_out] == ["README.md"]
    assert [fault.split()[0] for fault in found.faults] == ["a.jsonl:3", "a.jsonl:4"]


def test_each_source_of_a_mix_is_inspected(tmp_path: Path) -> None:
    spec = on_talks_and_letters(specs.load("micro"), tmp_path)
    talks, letters = inspect(spec, str(tmp_path))
    assert (talks.called, talks.documents, letters.called, letters.documents) == ("talks", 400, "letters", 40)
    assert talks.passes is not None
    assert letters.passes is not None
    assert 2 * talks.passes * talks.tokens == pytest.approx(letters.passes * letters.tokens)


def test_all_missing_folders_of_a_mix_are_named(tmp_path: Path) -> None:
    spec = on_talks_and_letters(specs.load("micro"), tmp_path)
    with pytest.raises(BadInput, match=r"none/talks' and '.*none/letters', which is not on this machine"):
        inspect(spec, str(tmp_path / "none"))


def test_a_run_without_files_has_nothing_to_look_at() -> None:
    assert inspect(specs.load("micro"), "") == ()


def test_much_text_is_estimated(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a line of text\n" * 400_000)
    found = inspected(tmp_path)
    assert not found.is_counted
    assert found.tokens == pytest.approx(6_000_000, rel=0.01)
    assert dict(found.table())["tokens"] == f"about {found.tokens:,}"
    assert found.holds_out_pieces
