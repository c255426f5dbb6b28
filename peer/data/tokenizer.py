"""Text to token numbers: plain bytes, or a Hugging Face tokenizer (never with remote code)."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dht.errors import BadSpec, Unreachable

Tokens = npt.NDArray[np.int32]


class Tokenizer(Protocol):
    """What the data and the model need to know of a tokenizer."""

    vocabulary: int
    """Token numbers are below this."""
    end_of_text: int
    """The token that separates documents."""

    def encode(self, text: str) -> Tokens:
        """The tokens of `text`, without any special token."""
        ...


class ByteTokenizer:
    """One token per byte of UTF-8, and 256 for end-of-text."""

    vocabulary = 257
    end_of_text = 256

    def encode(self, text: str) -> Tokens:
        """The UTF-8 bytes of `text`; a lone surrogate becomes a question mark."""
        return np.frombuffer(text.encode("utf-8", errors="replace"), dtype=np.uint8).astype(np.int32)


class HubTokenizer:
    """A Hugging Face tokenizer by name or local folder. Raises BadSpec if it ends no text, or Unreachable."""

    def __init__(self, name: str) -> None:
        from huggingface_hub.errors import LocalEntryNotFoundError
        from transformers import AutoTokenizer

        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
        except (OSError, ValueError) as error:
            if isinstance(error.__cause__, LocalEntryNotFoundError):
                raise Unreachable(
                    f"the tokenizer {name!r} cannot be reached and is not on this machine; check the connection"
                ) from error
            reason = str(error).strip().splitlines()[0]
            raise BadSpec(
                f"model.tokenizer is {name!r}, which cannot be loaded ({reason}); "
                "use 'bytes', a public tokenizer's name or a local folder"
            ) from error
        end = self._tokenizer.eos_token_id
        if end is None:
            raise BadSpec(f"model.tokenizer is {name!r}, which has no end-of-text token; choose one that has")
        self.vocabulary = len(self._tokenizer)
        self.end_of_text = int(end)

    def encode(self, text: str) -> Tokens:
        """The tokens of `text`, without any special token."""
        # verbose=False: a document longer than the model's context is cut into windows later, no reason to warn.
        encoded = self._tokenizer(text, add_special_tokens=False, verbose=False)
        return np.asarray(encoded["input_ids"], dtype=np.int32)


def load_tokenizer(name: str) -> Tokenizer:
    """The tokenizer a spec names in `model.tokenizer`. Raises BadSpec or Unreachable."""
    return ByteTokenizer() if name == "bytes" else HubTokenizer(name)
