"""What people bring, read as it is: names, encodings, packings, rows; and what is no text, as one clear line."""

from __future__ import annotations

import ast
import gzip
import json
import lzma
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.ipc
import pyarrow.parquet
import pytest

from dht.errors import BadInput
from peer.training.data.documents import documents_of
from peer.training.data.reading.data_files import find_files
from peer.training.data.reading.file_rows import MOST_FAULTS, MOST_ROW, Findings, rows_of
from peer.training.data.reading.plain_text import SAMPLE
from tests.closed_folder import close
from tests.night import at_night
from tests.peer.training.data.read_whole import read_conversations, read_files

FRENCH = "Le café est très près de l'hôtel où l'été a été bâti; ça va, à côté de la forêt.\n" * 3
POLISH = "Zażółć gęślą jaźń, dzień dobry wszystkim przyjaciołom. Był sobie król, żyli wśród róż.\n" * 3
CZECH = "Příliš žluťoučký kůň úpěl ďábelské ódy a žádné jiné.\n" * 3
GERMAN = "Die Straße war naß, und die Bäume rauschten über den Häusern. Schöne Grüße, Äpfel und Öl.\n"
PORTUGUESE = "Não há coração que não saiba amar; a manhã é fria, às vezes. Você também não está só, avó.\n"
TURKISH = (
    "Türkçe bir metin; ığüşöç harfleri içinde olan bir yazı ve İstanbul. Bugün hava çok güzel, çocuklar dışarıda.\n" * 3
)
UKRAINIAN = "Це простий український текст, який ми хочемо прочитати без помилок; її їжа.\n" * 3
JAPANESE = "これは日本語の文章です。文字化けしないように読みます。\n" * 3
OF_KOREAN_LOOKS = "".join(
    f"{n}日の朝は寒かったので、私たちは川へ行って船を見た。とても美しい景色だった。\n" for n in range(9)
)
"""In Shift-JIS valid cp949, whose letters are Hangul that nobody writes."""
KOREAN = "나는 고양이다. 이름은 아직 없다. 어디서 태어났는지 도무지 짐작이 가지 않는다.\n" * 3
RUSSIAN = "Это простой русский текст, который мы хотим прочитать без ошибок и потерь.\n" * 3


def texts(folder: Path, field: str = "text") -> dict[str, str]:
    return {document.name: document.text for document in read_files(str(folder), field)}


def packed(suffix: str, payload: bytes) -> bytes:
    if suffix == ".zst":
        compressed: bytes = pyarrow.compress(payload, codec="zstd", asbytes=True)
        return compressed
    return {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}[suffix](payload)


ARROW, STREAM, PARQUET = (pyarrow.BufferOutputStream() for _ in range(3))
TABLE = pyarrow.table({"text": ["one", None, "two"], "id": [1, 2, 3]})
with pyarrow.ipc.new_file(ARROW, TABLE.schema) as writer:
    writer.write_table(TABLE)
with pyarrow.ipc.new_stream(STREAM, TABLE.schema) as writer:
    writer.write_table(TABLE)
pyarrow.parquet.write_table(TABLE, PARQUET)
ROWS = [{"text": "one", "id": 1}, {"text": "two", "id": 2}]
FILES = {
    "a.txt": b"one", "a.MD": b"one", "a.jsonl": b'{"text": "one"}\n{"text": "two"}\n',
    "a.json": json.dumps(ROWS).encode(),
    "a.Json": b'{"text": "one"}\n\n{"text":\n"two"}', "a.csv": b'id,text\n1,one\n2,"two"\n',
    "c.tsv": b'id\ttext\n1\t"o, ""n""\ne"\n',
    "b.csv": 'id;text\n1;"o\nne"\n'.encode("utf-16"), "a.arrow": ARROW.getvalue().to_pybytes(),
    "b.arrow": STREAM.getvalue().to_pybytes(), "a.parquet": PARQUET.getvalue().to_pybytes(),
}  # fmt: skip
EXPECTED = {
    "a.txt": ["one"], "a.MD": ["one"], "b.csv": ["o\nne"], "a.arrow": ["one", "", "two"], "b.arrow": ["one", "", "two"],
    "a.parquet": ["one", "", "two"], "c.tsv": ['o, "n"\ne'],
}  # fmt: skip


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst", ".xz", ".GZ"])
@pytest.mark.parametrize("name", FILES)
def test_each_kind_is_read_plain_and_packed(name: str, suffix: str, tmp_path: Path) -> None:
    (tmp_path / f"{name}{suffix}").write_bytes(packed(suffix.lower(), FILES[name]))
    assert list(texts(tmp_path).values()) == EXPECTED.get(name, ["one", "two"])


@pytest.mark.parametrize(
    ("encoding", "text", "told"),
    [
        ("utf-8", FRENCH, None), ("utf-8-sig", FRENCH, "utf-8-sig"), ("utf-16", FRENCH, "utf-16"),
        ("utf-16-le", "plain words\n" * 9, "utf-16-le"), ("utf-16-be", "plain words\n" * 9, "utf-16-be"),
        ("utf-16-le", RUSSIAN, "utf-16-le"), ("utf-16-be", RUSSIAN, "utf-16-be"), ("utf-16-le", JAPANESE, "utf-16-le"),
        ("utf-16-be", JAPANESE, "utf-16-be"), ("utf-16-le", "نمی\u200cدانم، چرا\n", "utf-16-le"),
        ("utf-32", RUSSIAN, "utf-32"), ("latin-1", FRENCH, "cp1252"), ("latin-1", "hét", "cp1252"),
        ("cp1251", RUSSIAN, "cp1251"), ("koi8_r", RUSSIAN, "koi8_r"), ("cp866", RUSSIAN, "cp866"),
        ("iso8859_2", POLISH, "iso8859_2"), ("cp1250", POLISH, "cp1250"), ("iso8859_2", CZECH, "iso8859_2"),
        ("cp1254", TURKISH, "cp1254"), ("koi8_u", UKRAINIAN, "koi8_u"), ("euc_jp", JAPANESE, "euc_jp"),
        ("cp932", JAPANESE, "cp932"), ("cp932", OF_KOREAN_LOOKS, "cp932"), ("cp949", KOREAN, "cp949"),
        ("iso2022_jp", JAPANESE, "iso2022_jp"), ("mac_roman", FRENCH * 4, "mac_roman"),
        ("mac_roman", GERMAN * 4, "mac_roman"), ("mac_roman", PORTUGUESE * 4, "mac_roman"),
        ("cp850", GERMAN, "cp850"), ("cp1252", GERMAN, "cp1252"), ("cp1252", PORTUGUESE, "cp1252"),
    ],
)  # fmt: skip
def test_texts_are_read_in_their_encoding_and_it_is_told(
    encoding: str, text: str, told: str | None, tmp_path: Path
) -> None:
    """Without its mark, and with line feeds alone."""
    (tmp_path / "A.TXT").write_bytes(text.replace("\n", "\r\n").encode(encoding))
    found = Findings()
    (document,) = documents_of(find_files(str(tmp_path)), "text", found)
    assert document.text == text
    assert found.encodings.get("A.TXT") == told


def test_a_damaged_byte_does_not_make_utf8_another_encoding(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(RUSSIAN.encode() + b"\xff" + RUSSIAN.encode())
    assert list(texts(tmp_path).values()) == [f"{RUSSIAN}\ufffd{RUSSIAN}"]


@pytest.mark.parametrize("whole", [RUSSIAN, "plain words\n" * (SAMPLE // 12) + "naïve"], ids=["short", "long"])
def test_a_text_that_is_cut_within_a_letter_stays_utf8(whole: str, tmp_path: Path) -> None:
    """As a download that broke off, also where its last bytes are read alone."""
    (tmp_path / "a.txt").write_bytes(whole.encode() + "é".encode()[:1])
    found = Findings()
    assert "".join(each.text for each in documents_of(find_files(str(tmp_path)), "text", found)) == f"{whole}\ufffd"
    assert found.encodings == {}


NAMES = """
import sys
from peer.training.data.reading.data_files import find_files
print([ascii(name) for name in find_files(sys.argv[1]).names])
"""


@pytest.mark.outside
@pytest.mark.slow
def test_names_are_the_same_in_every_locale(tmp_path: Path) -> None:
    """They decide which shard a document lies in."""
    for name in ("é.txt", "zoë/a.txt", "z.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    for locale in ({}, plain):
        argv = [sys.executable, "-c", NAMES, str(tmp_path)]
        told = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=True, env=os.environ | locale)
        assert ast.literal_eval(told.stdout) == [ascii(name) for name in ("z.txt", "zoë/a.txt", "é.txt")]


def test_linked_folders_are_followed_once(tmp_path: Path) -> None:
    """One that leads back, one to what is there anyway, one to another place, and one to nowhere."""
    base, other = tmp_path / "base", tmp_path / "other"
    (base / "sub").mkdir(parents=True)
    other.mkdir()
    (base / "sub" / "a.txt").write_text("a")
    (other / "b.txt").write_text("b")
    for link, target in (("a loop", base), ("again", base / "sub"), ("elsewhere", other), ("gone.txt", base / "no")):
        (base / link).symlink_to(target)
    assert texts(base) == {"elsewhere/b.txt": "b", "sub/a.txt": "a"}
    (lost,) = find_files(str(base)).left_out
    assert (lost.name, lost.why) == ("gone.txt", "a link that leads nowhere; remove it")


def test_what_is_left_out_says_how_it_is_converted(tmp_path: Path) -> None:
    for name in ("a.txt", "My Book.EPUB", "b.docx", "c.pdf", "d.tar.gz", "photo.jpg", "e.gz", ".hidden.txt"):
        (tmp_path / name).write_text(name)
    os.mkfifo(tmp_path / "pipe.txt")
    left = {each.name: each.why for each in find_files(str(tmp_path)).left_out}
    assert left == {
        "My Book.EPUB": ".epub is not read; convert it: pandoc 'My Book.EPUB' --to=plain --output='My Book'.txt",
        "b.docx": ".docx is not read; convert it: pandoc b.docx --to=plain --output=b.txt",
        "c.pdf": ".pdf is not read; convert it: pdftotext c.pdf c.txt",
        "d.tar.gz": ".tar is not read; convert it: tar --extract --file d.tar.gz",
        "e.gz": ".gz is not read; rename it to .txt if it is text",
        "photo.jpg": ".jpg is not read; rename it to .txt if it is text",
        "pipe.txt": "no regular file; remove it",
    }
    assert list(texts(tmp_path)) == ["a.txt"]


def test_a_folder_of_books_alone_says_how_they_are_converted(tmp_path: Path) -> None:
    (tmp_path / "a.epub").write_text("x")
    with pytest.raises(BadInput, match=r"no text or parquet file; a\.epub: .*pandoc a\.epub"):
        texts(tmp_path)


def test_half_a_pair_of_surrogates_is_one_character_that_is_no_letter(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a\\ud800b"}\n')
    (tmp_path / "b.jsonl").write_text(
        '{"text": [], "messages": [{"role": "user", "content": "\\udc00"}, {"role": "assistant", "content": "b"}]}\n'
    )
    assert texts(tmp_path / "a.jsonl") == {"a.jsonl:1": "a\ufffdb"}
    (talk,) = read_conversations(str(tmp_path / "b.jsonl"), "text")
    assert json.loads(talk.text)[0]["content"] == "\ufffd"


def test_conversations_beside_a_readme_are_read(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("what this is")
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    (tmp_path / "a.JSONL.gz").write_bytes(gzip.compress(json.dumps({"messages": messages}).encode()))
    assert [talk.name for talk in read_conversations(str(tmp_path), "text")] == ["a.JSONL.gz:1"]


def arrow(compression: str | None = None, **columns: object) -> bytes:
    sink, table = pyarrow.BufferOutputStream(), pyarrow.table(columns)
    options = pyarrow.ipc.IpcWriteOptions(compression=compression)
    with pyarrow.ipc.new_file(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def parquet(**columns: object) -> bytes:
    sink = pyarrow.BufferOutputStream()
    table = pyarrow.table(columns)
    pyarrow.parquet.write_table(table, sink, compression="zstd", use_dictionary=False, write_statistics=False)
    return bytes(sink.getvalue().to_pybytes())


GREEDY = [{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 30}]
BAD: dict[str, tuple[Callable[[], bytes], str]] = {
    "a.jsonl": (lambda: b'{"text": 1}\n', "a.jsonl:1 has no text named 'text'"),
    "long.jsonl": (
        lambda: b'{"text": "' + b"a" * MOST_ROW + b'"}\n',
        "long.jsonl:1 is larger than 8 MiB; cut its text",
    ),
    "long.json": (lambda: b'[{"text": "' + b"a" * 3 * MOST_ROW + b'"}]', "long.json#0 is larger than 8 MiB"),
    "cut.json": (lambda: b'[{"text": "a"}, {"text":', "cut.json#1 is no JSON"),
    "open.json": (lambda: b'[{"text": "a"}, {"text": "b"},\n', "open.json is cut off behind #1"),
    "head.csv": (lambda: b"a,b\n1,2\n3,4\n", "data.text_field is 'text', no column of head.csv; it has a, b"),
    "bomb.arrow": (lambda: arrow("zstd", text=["a" * (1 << 28)]), "bomb.arrow has rows that unpack to 256 MiB at once"),
    "late.txt": (lambda: FRENCH.encode() * 1000 + b"\0", "late.txt has NUL bytes, as no text has"),
    "zeros.txt": (lambda: b"a line\n\0" * 40, "zeros.txt has NUL bytes, as no text has"),
    "bare.csv": (
        lambda: b"id,text\n1,Hello, you\n",
        "bare.csv:2 has 3 cells under 2 titles; put quotation marks around",
    ),
    "other.jsonl": (lambda: b'{"text": ["a"]}\n', "other.jsonl:1 has no text named 'text': it is ['a']; say which"),
    "open.csv": (lambda: b'text\n"' + b"a\n" * MOST_ROW, "open.csv:2 is no CSV from there on"),
    "n.parquet": (
        lambda: parquet(text=[1, 2]),
        "data.text_field is 'text', a column of int64 in n.parquet; name one that",
    ),
    "bomb.parquet": (lambda: parquet(text=["a" * (1 << 28)]), "bomb.parquet has cells that claim 256 MiB"),
    "no.arrow": (lambda: b"no arrow at all", "no.arrow is no arrow file"),
    "bomb.txt.gz": (
        lambda: gzip.compress(bytes(b"a" * (1 << 26))),
        "bomb.txt.gz unpacks to more than 200 times its size",
    ),
    "bomb.txt.zst": (lambda: packed(".zst", b"a" * (1 << 26)), "bomb.txt.zst unpacks to more than 200 times its size"),
    "cut.txt.gz": (lambda: gzip.compress(os.urandom(99))[:-9], "cut.txt.gz cannot be unpacked"),
    "cut.txt.xz": (lambda: lzma.compress(b"text " * 99)[:-30], "cut.txt.xz cannot be unpacked"),
    "no.txt.zst": (lambda: b"none of it", "no.txt.zst cannot be unpacked"),
    "greedy.txt.xz": (lambda: lzma.compress(b"a", filters=GREEDY), "greedy.txt.xz cannot be unpacked"),
    "binary.txt": (lambda: b"\x7fELF\x00\x01\x02" * 9, "binary.txt has NUL bytes, as no text has"),
}  # fmt: skip
"""Written when its test asks for it: every worker collects all tests."""


@pytest.mark.slow
@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_with_a_file_is_one_clear_line(name: str, tmp_path: Path) -> None:
    payload, said = BAD[name]
    (tmp_path / name).write_bytes(payload())
    with pytest.raises(BadInput) as caught:
        texts(tmp_path)
    assert str(caught.value).startswith(said)
    assert str(caught.value).isprintable()


MOST_GROWTH_MB = 75
READ = """
import sys
from pathlib import Path
import pyarrow.parquet
from peer.training.data.reading.data_files import find_files
from peer.training.data.documents import documents_of
from peer.training.data.reading.file_rows import Findings
peak = lambda: int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) >> 10
before, told = peak(), Findings(raises=False)
found = sum(1 for _ in documents_of(find_files(sys.argv[1]), "text", told))
print(peak() - before, found, *told.faults)
"""
READ_ROWS = """
import sys
from pathlib import Path
import pyarrow.parquet
from peer.training.data.reading.data_files import find_files
from peer.training.data.reading.file_rows import Findings, rows_of
peak = lambda: int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) >> 10
(file,), told = find_files(sys.argv[1]).files, Findings(raises=False)
before = peak()
found = sum(1 for _ in rows_of(file, None, told))
print(peak() - before, found, *told.faults)
"""


@pytest.mark.outside
@pytest.mark.slow
@pytest.mark.parametrize("write", [arrow, parquet])
def test_values_that_take_no_bytes_are_counted(write: Callable[..., bytes], tmp_path: Path) -> None:
    """30 million in a row, of which each would be a dict in Python."""
    count, name = 30_000_000, f"a.{write.__name__}"
    flags = pyarrow.StructArray.from_arrays([pyarrow.array(np.zeros(count, bool))], ["is"])
    packing = {"compression": "zstd"} if write is arrow else {}
    (tmp_path / name).write_bytes(write(flags=pyarrow.ListArray.from_arrays([0, count], flags), **packing))
    told = subprocess.run([sys.executable, "-c", READ_ROWS, str(tmp_path)], capture_output=True, text=True, timeout=120)
    grown_mb, found, fault = told.stdout.split(maxsplit=2)
    assert (int(grown_mb) < MOST_GROWTH_MB, found) == (True, "0"), told
    assert fault.startswith((f"{name}#0 is larger than", f"{name} has cells that claim {count:,} values out of"))


@pytest.mark.parametrize("write", [arrow, parquet])
@pytest.mark.parametrize(
    "kind", [pyarrow.map_(pyarrow.string(), pyarrow.list_(pyarrow.int8())), pyarrow.list_view(pyarrow.int8())],
)  # fmt: skip
def test_nested_columns_of_any_kind_are_counted(
    kind: pyarrow.DataType, write: Callable[..., bytes], tmp_path: Path
) -> None:
    """Beside a text that is read alone, and where all of a row is read: nobody else can."""
    values = [[("a", [1, 2]), ("b", [])], None] if pyarrow.types.is_map(kind) else [[1, 2], None]
    (tmp_path / f"a.{write.__name__}").write_bytes(write(text=["a", "b"], also=pyarrow.array(values, kind)))
    assert list(texts(tmp_path).values()) == ["a", "b"]
    (file,) = find_files(str(tmp_path)).files
    assert [row["also"] for _, row in rows_of(file, None, Findings())] == values


def test_text_that_is_no_utf8_in_a_table_is_one_line(tmp_path: Path) -> None:
    column = pyarrow.array([b"caf\xe9"]).view(pyarrow.string())
    pyarrow.parquet.write_table(pyarrow.table({"text": column}), tmp_path / "a.parquet")
    with pytest.raises(BadInput, match=r"a\.parquet#0 holds a text that is no UTF-8"):
        texts(tmp_path)


def test_all_faults_are_found_at_once(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n{\n{"text": "b"}\n7\n')
    (tmp_path / "b.parquet").write_bytes(b"none")
    told = Findings(raises=False)
    assert [each.text for each in documents_of(find_files(str(tmp_path)), "text", told)] == ["a", "b"]
    assert [fault.split()[0] for fault in told.faults] == ["a.jsonl:2", "a.jsonl:4", "b.parquet"]


def test_of_countless_faults_some_are_kept(tmp_path: Path) -> None:
    words = (f"[{'a' * number}\n" for number in range(MOST_FAULTS + 5))
    for number, line in enumerate(words):
        (tmp_path / f"{'b' * (number % 200 + 1)}{'c' * (number // 200)}.jsonl").write_text(line)
    told = Findings(raises=False)
    assert list(documents_of(find_files(str(tmp_path)), "text", told)) == []
    assert (len(told.faults), told.more_faults) == (MOST_FAULTS, 5)


def test_rows_of_one_file_do_not_hide_what_others_have(tmp_path: Path) -> None:
    """An export of which every row is refused, before a file with another fault."""
    (tmp_path / "a.jsonl").write_text('{"prompt": "a"}\n' * 5000)
    (tmp_path / "b.csv").write_text("text,text\na,b\n")
    told = Findings(raises=False)
    assert list(documents_of(find_files(str(tmp_path)), "text", told)) == []
    assert [fault.split(" has ")[0] for fault in told.faults] == ["a.jsonl:1", "a.jsonl:2", "a.jsonl:3", "b.csv"]
    assert told.faults[-1] == "b.csv has several columns named 'text'; give each a name of its own"
    assert told.more_faults == 4997


@pytest.mark.parametrize("write", [arrow, parquet])
def test_a_value_beyond_what_python_counts_is_one_line(write: Callable[..., bytes], tmp_path: Path) -> None:
    (tmp_path / "a.arrow").write_bytes(write(text=["a", "b"], at=pyarrow.array([0, 1 << 40], pyarrow.timestamp("s"))))
    (tmp_path / "a.arrow").rename(tmp_path / f"a.{write.__name__}")
    told, (file,) = Findings(raises=False), find_files(str(tmp_path)).files
    assert [row["text"] for _, row in rows_of(file, None, told)] == ["a"]
    (fault,) = told.faults
    assert fault.startswith(f"{file.name}#1 holds a value that cannot be read (")


@pytest.mark.parametrize("write", [arrow, parquet])
def test_short_texts_of_a_long_dictionary_are_short(write: Callable[..., bytes], tmp_path: Path) -> None:
    words = pyarrow.array([f"{number:05}" * 100 for number in range(MOST_ROW // 400)])
    text = pyarrow.DictionaryArray.from_arrays(pyarrow.array([1, 0], pyarrow.int32()), words)
    (tmp_path / f"a.{write.__name__}").write_bytes(write(text=text))
    assert list(texts(tmp_path).values()) == ["00001" * 100, "00000" * 100]


@pytest.mark.parametrize("compression", ["zstd", "lz4", None])
def test_rows_of_a_packed_arrow_file_are_read(compression: str | None, tmp_path: Path) -> None:
    text = pyarrow.DictionaryArray.from_arrays(pyarrow.array([1, 0] * 99, pyarrow.int32()), ["one " * 99, "two " * 99])
    (tmp_path / "a.arrow").write_bytes(arrow(compression, text=text))
    assert list(texts(tmp_path).values()) == ["two " * 99, "one " * 99] * 99


@pytest.mark.outside
@pytest.mark.slow
@pytest.mark.parametrize(("name", "said"), [("a.txt", ""), ("line.jsonl", "line.jsonl:1 is larger than 8 MiB")])
def test_a_file_is_never_in_memory(name: str, said: str, tmp_path: Path) -> None:
    """150 MB of lines, and a line of 150 MB, by a process that grows by half of that at most."""
    line = b"a line of text, of some length and no more\n" * 25_000
    with (tmp_path / name).open("wb") as file:
        file.write(b'{"text": "' * bool(said))
        for _ in range(140):
            file.write(line.replace(b"\n", b" ") if said else line)
    argv = [sys.executable, "-c", READ, str(tmp_path)]
    told = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=True).stdout
    grown_mb, found, *faults = told.split(maxsplit=2)
    assert int(grown_mb) < MOST_GROWTH_MB
    assert (int(found) > 500, "".join(faults).startswith(said)) == (not said, True)


@pytest.mark.outside
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "write", "said"),
    [("a.parquet", parquet, "has cells that claim 143 MiB"), ("a.arrow", arrow, "has rows that unpack to 143 MiB")],
)
def test_a_cell_that_claims_much_takes_little(
    name: str, write: Callable[..., bytes], said: str, tmp_path: Path
) -> None:
    """150 MB out of a file of some kB."""
    packing = {"compression": "zstd"} if write is arrow else {}
    (tmp_path / name).write_bytes(write(text=["a" * 150_000_000], **packing))
    assert (tmp_path / name).stat().st_size < 100_000
    argv = [sys.executable, "-c", READ, str(tmp_path)]
    told = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=True).stdout
    assert int(told.split()[0]) < MOST_GROWTH_MB
    assert f"{name} {said}" in told


@pytest.mark.outside
@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, *at_night(2)])
def test_damaged_tables_are_a_line_each_and_end_nothing(seed: int, tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "tests.peer.training.data.damaged_tables", str(tmp_path), str(seed), "400"]
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr


def test_a_row_may_end_with_empty_cells_and_a_table_may_have_no_row(tmp_path: Path) -> None:
    """As spreadsheets write them, and those who cut a data set into a fixed number of files."""
    (tmp_path / "a.csv").write_text("text,id\na,1,,\n")
    (tmp_path / "b.parquet").write_bytes(parquet(text=pyarrow.array([], pyarrow.string())))
    assert list(texts(tmp_path).values()) == ["a"]


def test_a_disk_that_fails_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "a.txt").symlink_to("/proc/self/mem")
    with pytest.raises(BadInput, match=r"^a\.txt cannot be read \(Input/output error\); get it again"):
        texts(tmp_path)


def test_a_file_that_nobody_may_look_at_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder of which the names alone are known, or behind a link into one."""
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "b\n.txt").write_text("b")
    is_file = Path.is_file

    def closed(path: Path) -> bool:
        if path.name.startswith("b"):
            raise PermissionError(13, "Permission denied", str(path))
        return is_file(path)

    monkeypatch.setattr(Path, "is_file", closed)
    told = Findings(raises=False)
    assert find_files(str(tmp_path), told.fault).names == ["a.txt"]
    assert told.faults == [r"b\n.txt cannot be read (Permission denied); let this program read it, or move it"]


def test_what_is_neither_a_file_nor_a_folder_is_said_to_be(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.txt")
    with pytest.raises(BadInput, match="which is neither a file nor a folder; name one of them"):
        find_files(str(tmp_path / "a.txt"))


def test_the_reason_why_a_file_is_left_out_is_printable(tmp_path: Path) -> None:
    (tmp_path / "a.\u202egnp").write_text("a")
    (left_out,) = find_files(str(tmp_path)).left_out
    assert left_out.why == r"'.\u202egnp' is not read; rename it to .txt if it is text"


def test_a_folder_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not left out without a word."""
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "closed").mkdir()
    close(tmp_path / "closed", monkeypatch)
    with pytest.raises(BadInput, match=r"closed cannot be read \(Permission denied\)"):
        find_files(str(tmp_path))
