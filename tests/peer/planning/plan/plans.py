"""Small things to plan with."""

from __future__ import annotations

from typing import Any

from peer.planning.plan.coefficients import PHASES, Coefficients
from peer.planning.plan.peer_set import Machine, PeerSet, uniform_peers
from peer.schema.spec import RunSpec, from_mapping

FREE = Coefficients(
    steps={"step": 0.0, "block": 0.0, "flop": 0.0, "update": 0.0},
    phases={phase: {term: float(term == "wire") for term in terms} for phase, terms in PHASES.items()},
    residual=0.0, measured="nowhere: only lines and delays take time",
)  # fmt: skip


def spec(*, config: dict[str, Any] | None = None, **tables: dict[str, Any]) -> RunSpec:
    """A model of four blocks of width 128, with these tables of the spec on top."""
    model = {
        "architecture": "llama", "context": 64,
        "config": {"hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 4, "num_attention_heads": 4}
        | (config or {}),
    }  # fmt: skip
    given = {"round": {"min_round_s": 0, "steps": 10} | tables.pop("round", {}), **tables}
    return from_mapping({"run": {"name": "x"}, "model": model | given.pop("model", {}), **given})


def peers(count: int, *, step_s: float = 1.0, upload: float = 8.0, download: float = 80.0, **more: Any) -> PeerSet:
    """So many alike, 10 ms apart."""
    between = {key: more.pop(key) for key in ("otherwise_s", "cores") if key in more}
    machine = Machine(name="peer", step_s=step_s, upload_mbps=upload, download_mbps=download, **more)
    return uniform_peers(count, machine, **{"otherwise_s": 0.01, **between})
