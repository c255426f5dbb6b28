"""Text to token numbers: plain bytes, or a Hugging Face tokenizer: its tables alone, no code and no pickle."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from dht.errors import BadSpec
from peer.consensus.protocol.encoding import digest_of, pack
from peer.node.store import start_blob
from peer.schema.spec import RunSpec
from peer.schema.spec_fields import START
from peer.training.data.chat.chat_template import ASSISTANT, MARKED, Message, by_marks, by_prefixes, flagged
from peer.training.data.hub_access import cannot_load, fetch_files, reason_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

KEY = "model.tokenizer"
"""In a spec."""
END_OF_TEXT = "<|endoftext|>"
"""What the token that is no byte is called in an exported tokenizer."""

Tokens = npt.NDArray[np.int32]


class Tokenizer(Protocol):
    """What the data and the model need to know of a tokenizer."""

    vocabulary: int
    """Token numbers are below this."""
    end_of_text: int
    """The token that separates documents."""
    identity: str
    """Changes with whatever may change what a text becomes."""

    def encode(self, text: str) -> Tokens:
        """The tokens of `text`, without any special token."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """Their text, without special tokens; what is no text in it becomes U+FFFD."""
        ...

    def encode_chat(self, messages: Sequence[Message]) -> Tokens:
        """A conversation with the flags of `token_flags`: what is no answer of the assistant's is hidden.

        Raises BadInput for messages that the tokenizer's chat template does not take, BadSpec where it has none, or one
        by which answers cannot be found.
        """
        ...

    def for_transformers(self, context: int) -> PreTrainedTokenizerBase:
        """The same tokenizer as transformers loads it, to be saved beside a model of this context."""
        ...


class ByteTokenizer:
    """One token per byte of UTF-8, and 256 for end-of-text."""

    vocabulary = 257
    end_of_text = 256
    identity = "bytes"

    def encode(self, text: str) -> Tokens:
        """The UTF-8 bytes of `text`; a lone surrogate becomes a question mark."""
        return np.frombuffer(text.encode("utf-8", errors="replace"), dtype=np.uint8).astype(np.int32)

    def decode(self, tokens: Sequence[int]) -> str:
        return bytes(token for token in tokens if token < self.end_of_text).decode("utf-8", errors="replace")

    def encode_chat(self, messages: Sequence[Message]) -> Tokens:
        """Each message as its role, a line break, its content and end-of-text; an answer is content and end-of-text."""
        return flagged(piece for message in messages for piece in self._pieces(message))

    def _pieces(self, message: Message) -> Iterator[tuple[Tokens, bool]]:
        yield self.encode(f"{message['role']}\n"), False
        content = np.append(self.encode(message["content"]), np.int32(self.end_of_text))
        yield content, message["role"] == ASSISTANT

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
    """A Hugging Face tokenizer whose files lie in a folder. Raises BadSpec if it is none, or ends no text."""

    def __init__(self, name: str, folder: Path) -> None:
        from transformers import AutoTokenizer

        self._name = name
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
        self.identity = digest_of(pack((version("tokenizers"), files))).hex()

    def encode(self, text: str) -> Tokens:
        # verbose=False: a document longer than the model's context is cut into windows later, no reason to warn.
        encoded = self._tokenizer(text, add_special_tokens=False, verbose=False)
        return np.asarray(encoded["input_ids"], dtype=np.int32)

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))

    def encode_chat(self, messages: Sequence[Message]) -> Tokens:
        if not self._tokenizer.chat_template:
            raise BadSpec(f"the tokenizer {self._name!r} has no chat template; choose that of a model that was tuned")
        if MARKED.search(self._tokenizer.get_chat_template()):
            return by_marks(self._tokenizer, messages)
        pieces = by_prefixes(self._tokenizer, messages)
        return flagged((self.encode(text), is_answer) for text, is_answer in pieces)

    def for_transformers(self, context: int) -> PreTrainedTokenizerBase:
        """As it was loaded, but for the length of a text that the model takes."""
        tokenizer: PreTrainedTokenizerBase = copy.copy(self._tokenizer)
        tokenizer.model_max_length = context
        return tokenizer


def tokenizer_of(spec: RunSpec) -> Tokenizer:
    """That of a run. Raises what `load_tokenizer` does, and BadInput where it came with a start that is not in the
    cache."""
    if spec.model.tokenizer != START:
        return load_tokenizer(spec.model.tokenizer)
    assert spec.start is not None
    return HubTokenizer(START, start_blob.tokenizer_folder(spec.start.digest))


def load_tokenizer(name: str) -> Tokenizer:
    """Bytes, or one of huggingface.co. Raises BadSpec or Unreachable."""
    return ByteTokenizer() if name == "bytes" else HubTokenizer(name, download(name))


TABLES = ("*.json", "*.txt", "*.model", "*.jinja")
"""Of a repository, what a tokenizer is made of; neither Python nor pickles are among them."""


def require_tokenizer(spec: RunSpec) -> None:
    """Have the tokenizer of a run on this machine, where it is one of huggingface.co. Raises BadSpec, Unreachable."""
    if spec.model.tokenizer not in ("bytes", START):
        download(spec.model.tokenizer)


def download(name: str) -> Path:
    """Where the files of the Hub's tokenizer OWNER/NAME lie, once they do. Raises BadSpec or Unreachable.

    A folder of that name where this program happens to stand is not looked at.
    """
    return fetch_files(KEY, name, TABLES, token=False)
