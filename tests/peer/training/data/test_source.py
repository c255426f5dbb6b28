"""Text in memory: shards, windows, passes and the held-out set."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dht.errors import BadSpec
from peer.schema import spec as specs
from peer.schema.spec import RunSpec
from peer.training.data.data_shards import Document, is_held_out, shard_of
from peer.training.data.documents import standard_library
from peer.training.data.open_source import open_source
from peer.training.data.source import MemorySource, permutation, spread
from peer.training.data.tokenizer import ByteTokenizer

CONTEXT = 4


def make_spec(**data: object) -> RunSpec:
    table = {"held_out_every": 2, "eval_sequences": 3, **data}
    model = {"architecture": "llama", "context": CONTEXT}
    return specs.from_mapping({"run": {"name": "t", "seed": 3}, "model": model, "data": table})


def documents(count: int = 40) -> list[Document]:
    return [Document(f"file{number}", f"text number {number} " * 3) for number in range(count)]


def test_a_pass_reads_every_window_once() -> None:
    """Each token of a shard but the first is a label exactly once per pass."""
    source = MemorySource(documents(), ByteTokenizer(), make_spec())
    for shard, windows in source.windows.items():
        mine = [d for d in documents() if shard_of(d.name) == shard and not is_held_out(d.name, 2)]
        text = b"".join(d.text.encode() + b"\0" for d in mine)
        labels = [source.window(shard, at)[1:] for at in range(windows)]
        expected = [256 if byte == 0 else byte for byte in text[1 : windows * CONTEXT + 1]]
        assert sorted(np.concatenate(labels).tolist()) == sorted(expected)


def test_passes_differ_in_order_alone() -> None:
    """The second pass holds the windows of the first, elsewhere."""
    source = MemorySource(documents(), ByteTokenizer(), make_spec())
    shard, windows = max(source.windows.items(), key=lambda item: item[1])
    first = [source.window(shard, at).tolist() for at in range(windows)]
    second = [source.window(shard, windows + at).tolist() for at in range(windows)]
    assert first != second
    assert sorted(first) == sorted(second)


def test_the_order_is_the_same_on_every_machine() -> None:
    """A golden value."""
    assert permutation(1, 2, 3, 8).tolist() == GOLDEN_PERMUTATION


def test_held_out_text_is_never_trained_on() -> None:
    """A document marked by its content appears on one side only."""
    letters = [Document(f"file{number}", chr(65 + number) * 50) for number in range(40)]
    source = MemorySource(letters, ByteTokenizer(), make_spec())
    trained = {int(t) for shard, n in source.windows.items() for at in range(n) for t in source.window(shard, at)}
    held_out = set(source.held_out().flatten().tolist())
    assert trained & held_out <= {256}
    assert {65 + n for n in range(40) if is_held_out(f"file{n}", 2)} >= held_out - {256}


def test_evaluation_windows_are_spread_and_do_not_overlap() -> None:
    """Even distances, from the beginning on."""
    windows = spread(np.arange(41, dtype=np.int32), 5, CONTEXT)
    assert windows[:, 0].tolist() == [0, 8, 16, 24, 32]
    assert windows.shape == (5, CONTEXT + 1)


def test_short_held_out_text_gives_what_it_has() -> None:
    """Fewer windows than asked for, each once."""
    assert spread(np.arange(10, dtype=np.int32), 5, CONTEXT)[:, 0].tolist() == [0, 4]


@pytest.mark.parametrize(("count", "every"), [(0, 2), (1, 1_000_000)])
def test_too_little_text_is_one_clear_line(count: int, every: int) -> None:
    """Neither an empty folder nor a missing held-out set passes silently."""
    with pytest.raises(BadSpec, match="tokens"):
        MemorySource(documents(count), ByteTokenizer(), make_spec(held_out_every=every))


def test_the_standard_library_is_read_without_its_tests(tmp_path: Path) -> None:
    """Names are relative paths, in order, and tests and installed packages are left out."""
    for name in ("b.py", "a/x.py", "test/t.py", "a/tests/t.py", "site-packages/p.py", "c.txt"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {name}\n")
    assert [document.name for document in standard_library(tmp_path)] == ["a/x.py", "b.py"]


def test_this_machine_has_the_embedded_default() -> None:
    """The shipped micro run finds megabytes of text, and the evaluation set that its spec asks for."""
    spec = specs.load("micro")
    source = open_source(spec)
    assert sum(source.windows.values()) * spec.model.context > 5_000_000
    assert source.held_out().shape == (spec.data.eval_sequences, spec.model.context + 1)


def test_a_vocabulary_smaller_than_the_tokenizer_is_refused() -> None:
    """Otherwise the first rare token would crash the embedding."""
    model = {"architecture": "llama", "context": 8, "config": {"vocab_size": 100}}
    with pytest.raises(BadSpec, match="vocab_size is 100"):
        open_source(specs.from_mapping({"run": {"name": "t"}, "model": model}))


GOLDEN_PERMUTATION = [7, 1, 6, 5, 4, 2, 3, 0]
