"""How a run's model generates text: the tokens at which it stops, and how the next token is drawn."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from transformers import GenerationConfig

from dht.errors import BadSpec
from peer.node.store import start_blob
from peer.schema.keys.allowed_values import Flag, Real, Whole
from peer.schema.spec import RunSpec
from peer.schema.spec_fields import START
from peer.schema.toml_tables import shortened
from peer.training.data.tokenizer import Tokenizer

FILE = "generation_config.json"
"""Beside a model, and among the files of a start."""
STOPS, PAD, BEGIN = "eos_token_id", "pad_token_id", "bos_token_id"
DRAWN: Mapping[str, Flag | Real | Whole] = {
    "do_sample": Flag(), "temperature": Real(1e-3, 100), "top_k": Whole(0, 1 << 20), "top_p": Real(0, 1),
    "min_p": Real(0, 1), "typical_p": Real(0, 1),
}  # fmt: skip
"""Keys that say how a token is drawn. Others, some of which name code, are not kept."""
ALWAYS: Mapping[str, Flag | Real | Whole] = {"repetition_penalty": Real(1e-3, 100)}
"""Also where the likeliest token is taken."""


def generation_of(spec: RunSpec, tokenizer: Tokenizer) -> GenerationConfig:
    """The generation settings of the pretrained model, with the tokens that closed answers and texts in training
    among the stop tokens. Raises BadSpec for values with which nothing can be sampled."""
    own, end, closing = _of_start(spec), tokenizer.end_of_text, tokenizer.closing
    tokenizer.rest()
    stops = dict.fromkeys([*own.pop(STOPS, ()), end, *([] if closing is None else [closing])])
    make: Any = GenerationConfig  # not annotated by transformers
    config: GenerationConfig = make(
        **{BEGIN: end, PAD: end, **own, STOPS: [*stops] if len(stops) > 1 else end},
    )
    return config


def values_in(text: bytes) -> dict[str, Any]:
    """The kept values of a generation_config.json, stop tokens as a list. Raises BadSpec."""
    try:
        said = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadSpec(f"{FILE} of the model to start from is no JSON; remove it there") from error
    if not isinstance(said, dict):
        raise BadSpec(f"{FILE} of the model to start from holds {shortened(said)}; it is an object")
    allowed = {**ALWAYS, **(DRAWN if said.get("do_sample") else {})}
    found = {key: said[key] for key in (*allowed, PAD, BEGIN) if said.get(key) is not None}
    for key, value in found.items():
        allowed.get(key, Whole(0, 1 << 31)).check(f"{key} in {FILE} of the model to start from", value)
    stops = said.get(STOPS)
    for token in (listed := stops if isinstance(stops, list) else [] if stops is None else [stops]):
        Whole(0, 1 << 31).check(f"{STOPS} in {FILE} of the model to start from", token)
    return found | {STOPS: listed}


def _of_start(spec: RunSpec) -> dict[str, Any]:
    """Empty if its tokens differ from the run's."""
    if spec.start is None or spec.model.tokenizer != START:
        return {}
    kept = start_blob.read_files(spec.start.digest).get(FILE)
    return {} if kept is None else values_in(kept)
