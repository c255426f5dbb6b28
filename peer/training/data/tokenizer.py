"""Text to token numbers: plain bytes, or a Hugging Face tokenizer, loaded from its tables alone: no
code and no pickle.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from dht.errors import BadSpec
from peer.consensus.protocol.encoding import digest_of, pack
from peer.node.store import start_blob
from peer.schema.spec import RunSpec
from peer.schema.spec_fields import START, USUAL_DATE
from peer.training.data.chat.chat_template import EncodedTalk, TemplateEncoder, flagged, tokens_of
from peer.training.data.chat.talk_text import Talk, left_out
from peer.training.data.chat.token_flags import NUMBER
from peer.training.data.chat.training_templates import template_of
from peer.training.data.hub_access import cannot_load, fetch_files, reason_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

KEY = "model.tokenizer"
"""In a spec."""
END_OF_TEXT = "<|endoftext|>"
"""What the token that is no byte is called in an exported tokenizer."""

Tokens = npt.NDArray[np.int32]


class Tokenizer(Protocol):
    """The tokenizer as data and model need it."""

    vocabulary: int
    """Token numbers are below this."""
    end_of_text: int
    """The token that separates documents."""
    identity: str
    """Changes with everything that may change the tokens of a text."""

    def encode(self, text: str) -> Tokens:
        """The tokens of `text`, without any special token."""
        ...

    def encode_all(self, texts: Sequence[str]) -> Iterable[Tokens]:
        """Those of each text."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens, without special tokens; invalid UTF-8 becomes U+FFFD."""
        ...

    def encode_talk(self, talk: Talk) -> EncodedTalk:
        """A conversation; everything except learned answers is hidden. Raises BadInput for messages that the chat
        template refuses, BadSpec if there is no template, or one that does not separate answers."""
        ...

    @property
    def closing(self) -> int | None:
        """The token that ends an answer; None if conversations have no such token."""
        ...

    def name_of(self, token: int) -> str:
        """What a special token is called."""
        ...

    def rest(self) -> None:
        """No conversation is encoded for a while: free memory."""
        ...

    def for_transformers(self, context: int) -> PreTrainedTokenizerBase:
        """The same tokenizer as transformers loads it, to be saved with a model of this context."""
        ...


class ByteTokenizer:
    """One token per byte of UTF-8, and 256 for end-of-text."""

    vocabulary = 257
    end_of_text = 256
    identity = "bytes"

    def encode(self, text: str) -> Tokens:
        """The UTF-8 bytes of `text`; a lone surrogate becomes a question mark."""
        return np.frombuffer(text.encode("utf-8", errors="replace"), dtype=np.uint8).astype(np.int32)

    def encode_all(self, texts: Sequence[str]) -> Iterable[Tokens]:
        return map(self.encode, texts)

    def decode(self, tokens: Sequence[int]) -> str:
        return bytes(token for token in tokens if token < self.end_of_text).decode("utf-8", errors="replace")

    closing = end_of_text

    def encode_talk(self, talk: Talk) -> EncodedTalk:
        """Each message as its role, a line break, its text and calls, and end-of-text; before them the tools."""
        tokens = flagged(self._pieces(talk))
        return EncodedTalk(tokens, tuple(left_out(talk, self.decode((tokens & NUMBER).tolist()))))

    def _pieces(self, talk: Talk) -> Iterator[tuple[Tokens, bool]]:
        if talk.tools:
            yield self._closed(f"tools\n{_as_json(talk.tools)}"), False
        for message, is_learned in zip(talk.messages, talk.learned, strict=True):
            calls = message.get("tool_calls")
            yield self.encode(f"{message['role']}\n"), False
            yield self._closed(f"{message.get('content', '')}{_as_json(calls) if calls else ''}"), is_learned

    def name_of(self, token: int) -> str:
        return END_OF_TEXT

    def rest(self) -> None: ...

    def _closed(self, text: str) -> Tokens:
        return np.append(self.encode(text), np.int32(self.end_of_text))

    def for_transformers(self, context: int) -> PreTrainedTokenizerBase:
        """Byte-level BPE without merges, in which the token of a byte is its value."""
        from tokenizers import Tokenizer as Backend
        from tokenizers import decoders, models, pre_tokenizers
        from transformers import PreTrainedTokenizerFast
        from transformers.convert_slow_tokenizer import bytes_to_unicode

        # Not annotated by transformers.
        letters: Any = bytes_to_unicode
        make: Any = PreTrainedTokenizerFast
        backend = Backend(models.BPE(vocab={letter: byte for byte, letter in letters().items()}, merges=[]))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        backend.decoder = decoders.ByteLevel()
        tokenizer: PreTrainedTokenizerBase = make(
            tokenizer_object=backend,
            bos_token=END_OF_TEXT,
            eos_token=END_OF_TEXT,
            # A text that happens to hold the name of the token is text.
            split_special_tokens=True,
            clean_up_tokenization_spaces=False,
            model_max_length=context,
        )
        return tokenizer


class HubTokenizer:
    """A Hugging Face tokenizer whose files lie in a folder. Raises BadSpec if they are none, or have no end of text."""

    def __init__(self, name: str, folder: Path, template: str = "", date: str = USUAL_DATE) -> None:
        """`template` is `data.template`, and `date` `data.date` of a spec."""
        from transformers import AutoTokenizer

        self._date = date
        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
        except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
            raise cannot_load(KEY, name, reason_of(error)) from error
        end = self._tokenizer.eos_token_id
        if end is None:
            raise BadSpec(f"model.tokenizer is {name!r}, which has no end-of-text token; choose one that has")
        self.vocabulary = len(self._tokenizer)
        self.end_of_text = int(end)
        files = sorted((file.name, file.read_bytes()) for file in folder.iterdir() if file.is_file())
        self._template = template_of(template, folder)
        of_talks = (self._template, date) if template or date != USUAL_DATE else ()
        self.identity = digest_of(pack((version("tokenizers"), files, *of_talks))).hex()

    def encode(self, text: str) -> Tokens:
        return tokens_of(self._tokenizer, text)

    def encode_all(self, texts: Sequence[str]) -> Iterable[Tokens]:
        """On all cores."""
        told = self._tokenizer(list(texts), add_special_tokens=False, verbose=False, return_attention_mask=False)
        return (np.asarray(ids, np.int32) for ids in told["input_ids"])

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))

    def encode_talk(self, talk: Talk) -> EncodedTalk:
        return self._talks.encode(talk)

    @property
    def closing(self) -> int | None:
        has_template = self._template or self._tokenizer.chat_template
        return self._talks.closing if has_template else None

    def name_of(self, token: int) -> str:
        return str(self._tokenizer.convert_ids_to_tokens(token))

    def rest(self) -> None:
        if "_talks" in vars(self):
            self._talks.rest()

    @cached_property
    def _talks(self) -> TemplateEncoder:
        """Raises BadSpec if nothing says how conversations are written."""
        return TemplateEncoder(self._tokenizer, self._template, self._date)

    def for_transformers(self, context: int) -> PreTrainedTokenizerBase:
        """As it was loaded, except for the length of a text that the model takes, and the template where the run names
        one: the model answers what it was asked in training."""
        tokenizer: PreTrainedTokenizerBase = copy.copy(self._tokenizer)
        tokenizer.model_max_length = context
        tokenizer.chat_template = self._template or tokenizer.chat_template
        return tokenizer


def tokenizer_of(spec: RunSpec) -> Tokenizer:
    """The tokenizer of a run. Raises the errors of `load_tokenizer`, BadSpec if it has tokens that the model does not
    know, and BadInput if it came with a pretrained model that is not in the cache."""
    told, name = (spec.data.template, spec.data.date), spec.model.tokenizer
    if name != START:
        found = load_tokenizer(name, *told)
    else:
        assert spec.start is not None
        found = HubTokenizer(START, start_blob.tokenizer_folder(spec.start.digest), *told)
    embedded = spec.model.config.get("vocab_size")
    if isinstance(embedded, int) and embedded < found.vocabulary:
        raise BadSpec(
            f"model.config.vocab_size is {embedded}; the tokenizer {name!r} has {found.vocabulary} tokens, so it must "
            "be at least that"
        )
    return found


def load_tokenizer(name: str, template: str = "", date: str = USUAL_DATE) -> Tokenizer:
    """Bytes, or one of huggingface.co. Raises BadSpec or Unreachable."""
    return ByteTokenizer() if name == "bytes" else HubTokenizer(name, download(name), template, date)


def _as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


TABLES = ("*.json", "*.txt", "*.model", "*.jinja")
"""Of a repository, what a tokenizer is made of; neither Python nor pickles are among them."""


def require_tokenizer(spec: RunSpec) -> None:
    """Download the tokenizer of a run to this machine, if it is one of huggingface.co. Raises BadSpec, Unreachable."""
    if spec.model.tokenizer not in ("bytes", START):
        download(spec.model.tokenizer)


def download(name: str) -> Path:
    """The folder with the files of the Hub's tokenizer OWNER/NAME. Raises BadSpec or Unreachable. A folder of that
    name in the current directory is ignored."""
    return fetch_files(KEY, name, TABLES, token=False)
