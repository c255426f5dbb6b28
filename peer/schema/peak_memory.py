"""The most memory that training takes on one device, by formula. It is an estimate; on a card a dry run has the truth.

A block keeps for each token, in bytes, of a width D, keys of K values and an inner width F:

    plain         32 D + 8 K + 16 F in float32, 24 D + 4 K + 8 F under bfloat16 autocast
    compiled      20 D + 8 K + 8 F,             12 D + 4 K + 4 F
    recomputed    4 D, and one block as above

Some blocks keep more (`extra`), of 4 bytes each: so does an attention that no kernel of torch computes.

That is what autograd saves of the blocks of a llama, counted in float32 and compared under bfloat16 with the peaks of
an H100. `extra` counts norms of queries and keys, queries of another width than D, what is given to experts, masks of
blocks whose windows are shorter than the text, and what LFM2, Qwen3.5, gpt-oss, Phi 3 and Gemma 4 keep. GPT-2's
activation, which is not one kernel, adds two fifths, and is not counted; nor is dropout (a byte for each value that it
looks at on a card), nor the masks of windows with several documents.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

FLOAT32_BYTES, BFLOAT16_BYTES = 4, 2
CHUNK_TOKENS = 512
"""Tokens whose logits exist at a time, where those of all tokens would be large."""
WHOLE_BYTES = 1 << 26
"""Logits that take no more than this, as float32, are computed at once."""
GROUP = 64
"""Values of a frozen matrix that have one scale, where it has 8 or 4 bits."""
BASE_BYTES = {"float32": 4.0, "bfloat16": 2.0, "int8": 1 + FLOAT32_BYTES / GROUP, "nf4": 0.5 + FLOAT32_BYTES / GROUP}
"""The bytes of a value in the frozen matrices of blocks, by `adapter.base`."""
REST_BYTES = {"float32": 4, "bfloat16": 2, "int8": 2, "nf4": 2}
"""Of any other frozen parameter."""


class SizedBlocks(Protocol):
    """A model of blocks that are equal but in what they keep beside."""

    @property
    def blocks(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def key_width(self) -> int: ...
    @property
    def inner_width(self) -> int: ...
    @property
    def vocabulary(self) -> int: ...
    @property
    def extra(self) -> tuple[int, ...]: ...


@dataclass(frozen=True, kw_only=True)
class Rung:
    """What a device does, and to what end: to be faster, or to need less memory."""

    compiled: bool = False
    recomputes: bool = False
    eight_bits: bool = False
    """AdamW's moments take a byte each."""
    half_gradients: bool = False
    """And the gradients of the same parameters two."""


PLAIN = Rung()


@dataclass(frozen=True, kw_only=True)
class Peak:
    """In bytes, on the device."""

    states: int
    """Parameters, gradients and moments."""
    copies: int
    """What autocast keeps of the parameters, in 16 bit; where blocks are recomputed, of one block, which is not
    counted."""
    blocks: int
    """What blocks keep for the backward pass."""
    logits: int
    """What the loss takes beside."""


def peak(
    sizes: SizedBlocks, tokens: int, *, parameters: int, one_moment: int = 0, bfloat16: bool = False, rung: Rung = PLAIN
) -> Peak:
    """Of micro-batches of `tokens`, where `parameters` are trained, `one_moment` of them with one moment (Muon)."""
    wide, keys, inner = sizes.width, sizes.key_width, sizes.inner_width
    moments = 2 + 8 / 256 if rung.eight_bits else 2 * FLOAT32_BYTES  # bytes, with a scale for 256
    saved = BFLOAT16_BYTES * rung.half_gradients
    if rung.compiled:
        block = 12 * wide + 4 * keys + 4 * inner if bfloat16 else 20 * wide + 8 * keys + 8 * inner
    else:
        block = 24 * wide + 4 * keys + 8 * inner if bfloat16 else 32 * wide + 8 * keys + 16 * inner
    blocks = sizes.blocks * block + FLOAT32_BYTES * sum(sizes.extra)
    if rung.recomputes:
        blocks = sizes.blocks * 4 * wide + block + FLOAT32_BYTES * max(sizes.extra, default=0)
    return Peak(
        states=FLOAT32_BYTES * (2 * parameters + one_moment) + round((moments - saved) * (parameters - one_moment)),
        copies=BFLOAT16_BYTES * parameters * (bfloat16 and not rung.recomputes),
        blocks=tokens * blocks,
        logits=_logits_bytes(sizes, tokens, bfloat16=bfloat16),
    )


def frozen_bytes(base: str, parameters: int, in_blocks: int) -> int:
    """Of the model beside an adapter, of whose parameters so many lie in matrices of blocks."""
    return round(BASE_BYTES[base] * in_blocks) + REST_BYTES[base] * (parameters - in_blocks)


def in_chunks(tokens: int, vocabulary: int) -> bool:
    """Whether the logits of so many tokens are computed in chunks."""
    return tokens > CHUNK_TOKENS and FLOAT32_BYTES * tokens * vocabulary > WHOLE_BYTES


def _logits_bytes(sizes: SizedBlocks, tokens: int, *, bfloat16: bool) -> int:
    """Logits, their softmax and their gradient in float32; in chunks also the gradient of the matrix."""
    each = 3 * FLOAT32_BYTES + BFLOAT16_BYTES * bfloat16
    if not in_chunks(tokens, sizes.vocabulary):
        return each * tokens * sizes.vocabulary
    return each * CHUNK_TOKENS * sizes.vocabulary + FLOAT32_BYTES * sizes.vocabulary * sizes.width
