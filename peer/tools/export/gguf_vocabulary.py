"""A tokenizer as a GGUF file holds it, where llama.cpp applies it as it was applied in training; any other is refused.

llama.cpp knows two kinds that merge. Of byte-level BPE the file has the merges, and a name for the way in which text is
split before. Of SentencePiece's BPE it has a score for each token, and merges whatever two neighbours are a token
together, the best score first: that is a list of merges which has every pair of each token, token after token.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from dht.errors import BadInput

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_BY_BYTES = {"type": "ByteLevel", "use_regex": True}


def _split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


_BYTES = {"type": "ByteLevel", "use_regex": False}
PRE_TOKENIZERS: Mapping[str, list[dict[str, Any]]] = {
    "gpt-2": [_BY_BYTES],
    "smollm": [{"type": "Digits", "individual_digits": True}, _BY_BYTES],
    "llama-bpe": [_split(rf"{_ENDINGS}|{_WORD}|\p{{N}}{{1,3}}|{_REST}"), _BYTES],
    "qwen2": [_split(rf"{_ENDINGS}|{_WORD}|\p{{N}}|{_REST}"), _BYTES],
}
"""By llama.cpp's name, the steps in a tokenizer.json that split text alike (`llama_vocab` in its llama-vocab.cpp)."""
WHOLE_WORDS = ("llama-bpe",)
"""Where a piece that is a token needs no merges: `ignore_merges` in a tokenizer.json."""
SPACE = "▁"
"""What SentencePiece writes for a space."""
_SPACES = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
_BEGINNING = {"type": "Prepend", "prepend": SPACE}
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
"""Types of tokens."""


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """What the file says."""

    kind: Literal["gpt2", "llama"]
    """llama.cpp's names: byte-level BPE, and SentencePiece's."""
    pre_tokenizer: str
    tokens: list[str]
    types: list[int]
    merges: list[str]
    """Of `gpt2`."""
    scores: list[float]
    """Of `llama`, for each token."""
    begins: bool
    """Whether a text begins with the token that begins texts."""
    space_first: bool
    """Whether a space is put before a text, and behind each token that is never text."""


def vocabulary_of(tokenizer: PreTrainedTokenizerBase, size: int) -> Vocabulary:
    """With `size` tokens, of which those without a text are called so. Raises BadInput for a tokenizer that llama.cpp
    would not apply as it was in training."""
    backend: Any = tokenizer
    told = json.loads(backend.backend_tokenizer.to_str())
    model = told["model"]
    if model["type"] != "BPE" or not model["merges"]:
        raise BadInput(
            "--gguf needs a tokenizer that merges bytes or characters (BPE); that of this run is another kind; "
            "export without it"
        )
    halves = (pair.split(" ", 1) if isinstance(pair, str) else pair for pair in model["merges"])
    pairs = [(str(left), str(right)) for left, right in halves]
    added = {row["id"]: row for row in told["added_tokens"]}
    texts = {number: text for text, number in model["vocab"].items()}
    texts |= {number: row["content"] for number, row in added.items()}
    is_pieces = bool(model.get("byte_fallback"))
    scores = _scores(model["vocab"], pairs, {row["content"] for row in added.values()}) if is_pieces else {}
    return Vocabulary(
        kind="llama" if is_pieces else "gpt2",
        pre_tokenizer="default" if is_pieces else _pre_tokenizer_of(told),
        tokens=[texts.get(number, f"[PAD{number}]") for number in range(size)],
        types=[_type_of(number, texts, added, model.get("unk_token") if is_pieces else None) for number in range(size)],
        merges=[] if is_pieces else [" ".join(pair) for pair in pairs],
        scores=[scores.get(texts.get(number, ""), 0.0) for number in range(size)] if is_pieces else [],
        begins=tokenizer.bos_token_id is not None and backend("a").input_ids[:1] == [tokenizer.bos_token_id],
        space_first=is_pieces and _puts_space_first(told),
    )


def _type_of(
    number: int, texts: Mapping[int, str], added: Mapping[int, Mapping[str, Any]], unknown: str | None
) -> int:  # fmt: skip
    if number not in texts:
        return UNUSED
    if unknown is not None and texts[number] == unknown:
        return UNKNOWN
    if unknown is not None and texts[number] in BYTES:
        return BYTE
    if number not in added:
        return NORMAL
    return CONTROL if added[number]["special"] else USER_DEFINED


# ---- SentencePiece's ----

BYTES = frozenset(f"<0x{value:02X}>" for value in range(256))
"""Tokens for the bytes of characters that are no tokens."""


def _puts_space_first(told: Mapping[str, Any]) -> bool:
    """Raises BadInput where llama.cpp would put spaces elsewhere."""
    normalizer = told["normalizer"] or {}
    steps = normalizer.get("normalizers", [normalizer])
    pre = told["pre_tokenizer"]
    # What Gemma's has in front of its merges finds no space any more.
    is_known_pre = pre is None or (pre["type"] == "Split" and pre["pattern"] == {"String": " "})
    is_plain = not any(row["lstrip"] or row["rstrip"] or row["single_word"] for row in told["added_tokens"])
    if steps not in ([_SPACES], [_BEGINNING, _SPACES]) or not is_known_pre or not is_plain:
        raise BadInput(
            "--gguf does not know where the tokenizer of this run puts spaces; of SentencePiece's it knows those that "
            f"write {SPACE} for a space, and before a text (Prepend) or not"
        )
    return len(steps) == 2


def _scores(vocab: Mapping[str, int], pairs: list[tuple[str, str]], added: set[str]) -> dict[str, float]:
    """By which the same two neighbours are merged first as in a list of pairs. Raises BadInput where no scores do
    that: a token must have all its pairs in the list, one after another."""
    ranks: dict[str, list[int]] = {}
    for rank, (left, right) in enumerate(pairs):
        ranks.setdefault(left + right, []).append(rank)
    listed = set(pairs)
    missing = (
        text for text in vocab
        if text not in added
        for at in range(1, len(text))
        if text[:at] in vocab and text[at:] in vocab and (text[:at], text[at:]) not in listed
    )  # fmt: skip
    parted = (text for text, found in ranks.items() if found[-1] - found[0] >= len(found))
    odd = next(missing, None) or next(parted, None)
    if odd is not None or not vocab.keys() >= BYTES:
        what = "bytes that are no tokens" if odd is None else f"merges that no scores of tokens give, such as {odd!r}"
        raise BadInput(f"--gguf does not know a tokenizer of this kind: it has {what}; export without it")
    return {text: -float(found[0]) for text, found in ranks.items()}


# ---- byte-level BPE ----


def _pre_tokenizer_of(told: Mapping[str, Any]) -> str:
    """Its name. Raises BadInput."""
    model, pre = told["model"], told["pre_tokenizer"] or {}
    if (told["normalizer"] or {"type": "NFC"})["type"] != "NFC":
        raise BadInput(f"--gguf knows no tokenizer that normalises text by {told['normalizer']['type']}")
    steps = pre.get("pretokenizers", [pre])
    asked = [{key: step.get(key, True) for key in known} for step, known in zip(steps, map(_keys, steps), strict=True)]
    for name, known in PRE_TOKENIZERS.items():
        if asked == known and bool(model.get("ignore_merges")) == (name in WHOLE_WORDS):
            return name
    raise BadInput(
        "--gguf does not know how the tokenizer of this run splits text before it merges; "
        f"it knows {', '.join(PRE_TOKENIZERS)}"
    )


def _keys(step: Mapping[str, Any]) -> tuple[str, ...]:
    """Of a pre-tokenizer's step, those that decide where text is split."""
    steps = {known["type"]: tuple(known) for name in PRE_TOKENIZERS for known in PRE_TOKENIZERS[name]}
    return steps.get(step.get("type", ""), ("type",))
