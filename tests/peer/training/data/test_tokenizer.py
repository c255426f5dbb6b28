"""Bytes, or a Hugging Face tokenizer, here from files that lie there already."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from dht.errors import BadSpec, Unreachable
from peer.training.data import document_tokens
from peer.training.data.data_shards import Document
from peer.training.data.document_tokens import TextEncoder
from peer.training.data.tokenizer import END_OF_TEXT, ByteTokenizer, HubTokenizer, load_tokenizer

PLANTED = "open('HERE', 'w')"


def save_word_tokenizer(folder: Path, **special: str) -> None:
    words = Tokenizer(models.WordLevel({"<end>": 0, "a": 1, "b": 2, "?": 3}, unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, **special).save_pretrained(folder)


def test_bytes_are_tokens() -> None:
    """UTF-8 as it is; 256 ends a text."""
    tokenizer = load_tokenizer("bytes")
    assert tokenizer.encode("aé").tolist() == [97, 195, 169]
    assert (tokenizer.vocabulary, tokenizer.end_of_text) == (257, 256)


def test_text_that_is_no_unicode_still_encodes() -> None:
    """A lone surrogate, as from a file read with surrogateescape."""
    assert load_tokenizer("bytes").encode("\udc80").tolist() == [ord("?")]


def test_a_local_tokenizer_is_used_without_special_tokens(tmp_path: Path) -> None:
    """Documents are closed by us, so the tokenizer must add nothing."""
    save_word_tokenizer(tmp_path, eos_token="<end>", unk_token="?")
    tokenizer = HubTokenizer("a/b", tmp_path)
    assert tokenizer.encode("b a z").tolist() == [2, 1, 3]
    assert (tokenizer.vocabulary, tokenizer.end_of_text) == (4, 0)


def test_texts_at_once_have_the_tokens_that_each_has_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In their order, however many are given to the tokenizer at a time; none is cut or filled up to the others."""
    save_word_tokenizer(tmp_path, eos_token="<end>", unk_token="?")
    names = [Document(f"{number}", "a b " * number) for number in range(9)]
    for tokenizer in (HubTokenizer("a/b", tmp_path), ByteTokenizer()):
        encoder = TextEncoder(tokenizer)
        alone = [encoder.encode(each.text, each.name).tolist() for each in names]
        for at_once in (1, 40, 1000):
            monkeypatch.setattr(document_tokens, "AT_ONCE", at_once)
            found = list(encoder.encoded(names))
            assert [each for each, _ in found] == names
            assert [tokens.tolist() for _, tokens in found] == alone


def test_a_tokenizer_without_an_end_is_refused(tmp_path: Path) -> None:
    """Documents must be told apart."""
    save_word_tokenizer(tmp_path, unk_token="?")
    with pytest.raises(BadSpec, match="no end-of-text"):
        HubTokenizer("a/b", tmp_path)


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"tokenizer.json": "no JSON"},
        {"tokenizer_config.json": '{"auto_map": {"AutoTokenizer": ["evil.Evil", null]}}', "evil.py": PLANTED},
    ],
)
def test_what_is_no_tokenizer_is_one_clear_line(tmp_path: Path, files: dict[str, str]) -> None:
    """What, which value, what to do; and code that lies beside it does not run."""
    for name, text in files.items():
        (tmp_path / name).write_text(text.replace("HERE", str(tmp_path / "ran")))
    with pytest.raises(BadSpec, match=r"model\.tokenizer is 'a/b', which cannot be loaded .*name another") as caught:
        HubTokenizer("a/b", tmp_path)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "ran").exists()


def test_a_folder_of_the_tokenizers_name_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where somebody happens to stand is nobody's choice."""
    save_word_tokenizer(tmp_path / "a" / "b", eos_token="<end>", unk_token="?")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(Unreachable, match="not on this machine"):
        load_tokenizer("a/b")


def test_a_tokenizer_that_cannot_be_downloaded_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Offline is not the spec's fault; also, no test of ours looks at the network."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(Unreachable, match="check the connection"):
        load_tokenizer("homefires/no-such-tokenizer")


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The byte tokenizer as a person loads it from an exported model."""
    folder = tmp_path_factory.mktemp("tokenizer")
    load_tokenizer("bytes").for_transformers(64).save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)


@given(text=st.text())
@example(text="")
@example(text="  two spaces first,\r\n\ta tab, and a zero \0")
@example(text="Grüße, 日本語, 🙂, e\u0301 and \u00e9 apart, \ufeff first")
@example(text=f"a text may well say {END_OF_TEXT}{END_OF_TEXT} in its middle")
@pytest.mark.outside
def test_the_exported_byte_tokenizer_is_the_runs(exported: Any, text: str) -> None:
    """The same numbers for every text, alone or in a batch, and back to the same text."""
    ids = load_tokenizer("bytes").encode(text).tolist()
    assert exported(text)["input_ids"] == exported.encode(text) == ids
    assert exported(["x", text])["input_ids"] == [[120], ids]
    assert exported.decode(ids) == text
    assert exported.decode([*ids, 256], skip_special_tokens=True) == text


def test_the_exported_byte_tokenizer_knows_its_sizes(exported: Any) -> None:
    """256 bytes and the end of a text, which is a token of its own for those who ask for it."""
    assert (len(exported), exported.vocab_size, exported.eos_token_id, exported.model_max_length) == (257, 256, 256, 64)
    assert exported.decode([97, 256]) == f"a{END_OF_TEXT}"
    assert exported.convert_tokens_to_ids(END_OF_TEXT) == 256


def test_a_local_tokenizer_is_exported_as_it_is(tmp_path: Path) -> None:
    """But for the longest text, which is the model's context; the one in use is not changed."""
    save_word_tokenizer(tmp_path / "words", eos_token="<end>", unk_token="?")
    tokenizer = HubTokenizer("a/b", tmp_path / "words")
    tokenizer.for_transformers(32).save_pretrained(tmp_path / "out")
    again = HubTokenizer("a/b", tmp_path / "out")
    assert again.encode("b a z").tolist() == tokenizer.encode("b a z").tolist() == [2, 1, 3]
    made: Any = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert made.model_max_length == 32
    assert tokenizer.for_transformers(64).model_max_length == 64
