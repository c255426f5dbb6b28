"""Bytes, or a Hugging Face tokenizer from a local folder."""

from __future__ import annotations

from pathlib import Path

import huggingface_hub.constants
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from dht.errors import BadSpec, Unreachable
from peer.data.tokenizer import load_tokenizer


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
    tokenizer = load_tokenizer(str(tmp_path))
    assert tokenizer.encode("b a z").tolist() == [2, 1, 3]
    assert (tokenizer.vocabulary, tokenizer.end_of_text) == (4, 0)


def test_a_tokenizer_without_an_end_is_refused(tmp_path: Path) -> None:
    """Documents must be told apart."""
    save_word_tokenizer(tmp_path, unk_token="?")
    with pytest.raises(BadSpec, match="no end-of-text"):
        load_tokenizer(str(tmp_path))


def test_an_unknown_tokenizer_is_one_clear_line(tmp_path: Path) -> None:
    """What, which value, what to do."""
    with pytest.raises(BadSpec, match=r"model\.tokenizer is .*local folder") as caught:
        load_tokenizer(str(tmp_path / "missing"))
    assert "\n" not in str(caught.value)


def test_a_tokenizer_that_cannot_be_downloaded_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Offline is not the spec's fault; also, no test of ours looks at the network."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(Unreachable, match="check the connection"):
        load_tokenizer("homefires/no-such-tokenizer")
