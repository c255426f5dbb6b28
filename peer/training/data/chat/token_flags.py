"""Two flag bits above a token's number, in windows of conversations: the token is not predicted; a document begins
here.

Windows of plain text have no flags, and everything computed from them is as if flags did not exist.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

# B = sequences, T = context + 1 tokens, V = vocabulary

HIDDEN = 1 << 30
"""The token is read, and never predicted."""
BEGINS = 1 << 29
"""A document begins here: nothing before it is seen from here on."""
NUMBER = BEGINS - 1
"""The bits of the token itself."""
IGNORED = -100
"""The label of what is not predicted, as torch has it."""


def is_flagged(tokens_BT: Tensor) -> bool:
    """Whether any token has a flag."""
    return bool((tokens_BT > NUMBER).any())


def plain(tokens_BT: Tensor) -> Tensor:
    """The tokens themselves."""
    return tokens_BT & NUMBER


def plain_numbers(tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The same of an array."""
    return tokens & NUMBER


def labels(tokens_BT: Tensor) -> Tensor:
    """(B, T − 1): every token but the first, and IGNORED for tokens that are not predicted. The first token of a
    document is not predicted, since nothing precedes it."""
    later_BT = tokens_BT[:, 1:]
    return torch.where(later_BT > NUMBER, IGNORED, later_BT)


def positions(tokens_BT: Tensor) -> Tensor | None:
    """Position (B, T) of each token in its document, from 0; None if no token has a flag. A window begins a
    document.

    transformers recognises several documents in a window by positions that begin anew, and keeps attention inside each
    of them (`masking_utils.find_packed_sequence_indices`) if it is given no mask.
    """
    if not is_flagged(tokens_BT):
        return None
    places_T = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
    begins_BT = torch.where(tokens_BT & BEGINS != 0, places_T, 0)
    return places_T - begins_BT.cummax(dim=1).values


def of_predicted(values_BTH: Tensor, tokens_BT: Tensor) -> Tensor:
    """Those of `values_BTH` from which a token is predicted (…, H). The gradients of others may be 0."""
    return values_BTH[tokens_BT[:, 1:] <= NUMBER] if is_flagged(tokens_BT) else values_BTH


def predicted_tokens(tokens_BT: Tensor) -> int:
    """The number of predicted tokens."""
    return int((tokens_BT[:, 1:] <= NUMBER).sum())


def step_scale(taken: list[Tensor], whole: int) -> float:
    """The factor that makes a step's loss and gradient means over its predicted tokens: the sum over these was divided
    by all tokens, except the first of each, of `whole` sequences, and the step was made of those that were `taken`,
    which are fewer if it was stopped. That denominator is known before a step's last micro-batch is read, and is the
    same however a step is cut into micro-batches, ranks and stages.

    1 for a whole step of plain text. A step that predicts nothing has no gradient, whatever the factor.
    """
    predicted = sum(map(predicted_tokens, taken))
    return whole * (taken[0].shape[1] - 1) / max(1, predicted)
