"""Derives the rules of the round machine, and of those who check its decisions later, from a run's spec."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from peer.consensus.aggregation.evidence import AggregationRules
from peer.consensus.codec.codec import Codec
from peer.consensus.codec.rows import ROW_BYTES
from peer.consensus.protocol.encoding import Keys
from peer.consensus.protocol.layout import Part
from peer.consensus.protocol.rules import DATA_SHARDS, Rules
from peer.schema.spec import RunSpec


def rules_of(
    spec: RunSpec,
    parts: Sequence[Part],
    keys: Keys,
    *,
    me: str = "",
    name: str = "",
    organiser: str = "",
    wall_offset_s: float = 0.0,
) -> Rules:
    """The rules of a run whose model is cut into `parts`, for the peer `me`.

    Raises ValueError if these are fewer layers than `round.fragments`.
    """
    table, codec = spec.round, Codec(spec.codec.wire)
    return Rules(
        me=me, name=name, keys=keys, parts=tuple(parts),
        part_bytes=tuple(codec.part_bytes(part.size) for part in parts),
        mean_bytes=tuple(codec.of_means.part_bytes(part.size) for part in parts), fragments=table.fragments,
        gather_s=table.gather_s, ack_s=table.ack_s, exchange_s=table.exchange_s, patience=table.patience,
        stagger_s=table.stagger_s, min_steps=table.min_steps, restart_s=table.restart_s,
        min_round_s=table.min_round_s, row_bytes=ROW_BYTES, organiser=organiser,
        keep_rounds=table.keep_rounds, max_staleness=table.max_staleness,
        aggregation=AggregationRules(**dataclasses.asdict(spec.aggregation)),
        finite=codec.of_means.is_finite, tokens_cap=spec.tokens_cap,
        steps_cap=spec.steps_cap, step_tokens=spec.step_tokens, context=spec.model.context,
        shards=DATA_SHARDS, wall_offset_s=wall_offset_s,
    )  # fmt: skip
