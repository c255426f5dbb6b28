"""The peers on which a command counts: what `--peers` means, a number, a file, or the folder of a peer of a run."""

from __future__ import annotations

import re
from pathlib import Path

from dht.errors import BadInput
from peer.planning.placement.pairwise_network import Distances
from peer.planning.plan.model_shape import shape_of
from peer.planning.plan.peer_set import (
    MAX_MEMBERS,
    Machine,
    PeerSet,
    claimed_mbps,
    claimed_step_s,
    refuse_count,
    swarm_of,
    uniform_peers,
)
from peer.planning.plan.peers_file import read_peers
from peer.planning.plan.round_cost import step_tokens
from peer.schema.events import event_files, read_events
from peer.schema.spec import RunSpec, load
from tui.swarm.reducer import apply_all
from tui.swarm.snapshot import PeerView, labels_of
from tui.swarm.snapshot import SwarmState as Seen


def peers_of(text: str, spec: RunSpec, machine: Machine) -> PeerSet:
    """The peers that `--peers` describes: a number of peers like `machine`, those in a file, those that a peer of a
    run knows, or by default as many as found the run. Raises BadInput."""
    if text and not re.fullmatch(r"-?[0-9]{1,18}", text):
        path = Path(text)
        return _seen_from(path, spec, machine) if path.is_dir() else read_peers(path, most=MAX_MEMBERS)
    count = int(text or spec.run.founders)
    refuse_count(count, "--peers is {}", MAX_MEMBERS)
    return uniform_peers(count, machine)


def _seen_from(directory: Path, spec: RunSpec, otherwise: Machine) -> PeerSet:
    """The peers of a run as one of them knows them: the speeds, lines and memory that they state, and the round
    trips that they measured. Values that nobody states are those of `otherwise`."""
    if not event_files(directory):
        raise BadInput(
            f"{directory} holds no events; name the folder of a peer, a file of [[peer]] tables, or a number"
        )
    seen = apply_all(Seen(), read_events(directory))
    labels, tokens = labels_of(seen), _tokens_as_dear(directory, spec)
    there = [view for view in seen.peers.values() if view.reports or view.state != "GONE"]  # mine may be stopped
    refuse_count(len(there), f"{directory} knows {{}} peers", MAX_MEMBERS)
    machines = [
        Machine(
            name=labels[view.peer], region=view.peer,
            step_s=claimed_step_s(tokens, view.tokens_per_s) or otherwise.step_s, flops=otherwise.flops,
            upload_mbps=claimed_mbps(view.upload_bps) or otherwise.upload_mbps,
            download_mbps=otherwise.download_mbps, memory_gb=_memory_gb(view) or otherwise.memory_gb,
        )
        for view in there
    ]  # fmt: skip
    distances = Distances()
    for view in seen.peers.values():
        rows = view.network.peers if view.reports and view.network is not None else ()
        distances.tell(view.peer, {row["peer"]: row["rtt_s"] for row in rows} | dict(view.distances))
    return swarm_of(machines, delays=distances.one_way_s())


def _tokens_as_dear(directory: Path, spec: RunSpec) -> int:
    """The number of tokens of the run in a peer's folder that need as many operations as an inner step of `spec`."""
    path, tokens = directory / "spec.toml", step_tokens(spec)
    theirs = load(str(path)) if path.is_file() else spec
    if theirs.model == spec.model:
        return tokens
    mine, other = (shape_of(each).flops_per_token(each.model.context) for each in (spec, theirs))
    return max(1, round(tokens * mine / other))


def _memory_gb(view: PeerView) -> float:
    """The memory of its GPU: measured for a reporting peer, as stated by others; 0: not known."""
    figures = view.device_figures if view.reports else None
    return (figures.vram_bytes or 0) / 1e9 if figures is not None else view.device_gb
