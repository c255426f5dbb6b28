"""Continues a text with a model, token by token: the likeliest token or one drawn at random."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationConfig, StoppingCriteria
from transformers.generation.streamers import BaseStreamer

GREEDY = {"do_sample": False, "repetition_penalty": 1.0}
AS_IT_IS = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0, "repetition_penalty": 1.0}
"""All of a model's own manner is said otherwise: transformers would take it for what is not said."""


class StopWhen(StoppingCriteria):
    """Ends a continuation after the token at which `stop` says so."""

    def __init__(self, stop: Callable[[], bool]) -> None:
        self._stop = stop

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        return torch.full((len(input_ids),), self._stop(), device=input_ids.device)


@torch.no_grad()
def continued(
    model: nn.Module, ids: Sequence[int], *, tokens: int, context: int, end: int, temperature: float = 0.0,
    stops: Collection[int] = (), stop: Callable[[], bool] = lambda: False, streamer: BaseStreamer | None = None,
) -> list[int]:  # fmt: skip
    """Up to `tokens` tokens after `ids`. It ends before `end`, the end of a text, or one of `stops`. At
    `temperature` 0 it takes the likeliest token each time. `context` is the most that the model reads: of longer
    `ids` the end counts, and empty ones become an end of text. `streamer` gets each token at once."""
    most = min(tokens, context - 1)
    read = list(ids)[most - context :] or [end]
    prompt_BT = torch.tensor([read], device=next(model.parameters()).device)
    drawn: dict[str, Any] = {"do_sample": True, "temperature": temperature, **AS_IT_IS} if temperature else GREEDY
    make: Any = GenerationConfig  # not annotated by transformers
    config = make(max_new_tokens=most, eos_token_id=[end, *stops], pad_token_id=end, use_cache=True, **drawn)
    was_training = model.training
    model.eval()
    try:
        generate: Any = model.generate
        found_BT: Tensor = generate(
            input_ids=prompt_BT, attention_mask=torch.ones_like(prompt_BT), generation_config=config,
            stopping_criteria=[StopWhen(stop)], streamer=streamer,
        )  # fmt: skip
    finally:
        model.train(was_training)
    new = [int(token) for token in found_BT[0, len(read) :]]
    return new[:-1] if new and new[-1] in (end, *stops) else new
