"""Puts the outer state of a run together from the folders of a cluster's homes, each of which holds some layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dht.errors import BadInput, RunMismatch
from peer.consensus.protocol.head import ChainHead
from peer.node.store.held_layers import read_held
from peer.node.store.run_directory import genesis_head, read_chain_files
from peer.parallel.pipeline.stage_model import initial_span, model_layers
from peer.schema.spec import RunSpec
from peer.training.checkpoint.replay import Chain, RunStart, lead_to, read_chain
from peer.training.outer.outer_state import OuterState


def join_stages(chain: Chain, homes: Sequence[Path], spec: RunSpec) -> tuple[Chain, OuterState]:
    """The newest anchor of `chain` to which the folders of the other `homes` lead as well: the chain up to there, and
    all layers. Raises BadInput where some layer is in none of the folders, RunMismatch for the folder of another run.
    """
    sizes = tuple(layer.size for layer in model_layers(spec))
    folders = (chain.directory, *homes)
    head = _newest_in_common(chain, homes, spec)
    start, spans = RunStart(sizes, chain.genesis.state), list[OuterState]()
    while (first := sum(len(span.theta) for span in spans)) < len(sizes):
        folder, held = _holding(first, folders, len(sizes))
        spans.append(initial_span(spec, held))
        lead_to(spans[-1], folder, spec, head.anchor, head.round, start)
    theta, momentum = ([layer for span in spans for layer in getattr(span, name)] for name in ("theta", "momentum"))
    updates = chain.updates[: head.round - chain.base.round]
    return replace(chain, updates=updates, head=head), OuterState(theta, momentum, head.round, spans[0].cursors)


def _newest_in_common(chain: Chain, homes: Sequence[Path], spec: RunSpec) -> ChainHead:
    shared = _heads(chain)
    for home in homes:
        other = read_chain(home, spec)
        if other.genesis != chain.genesis:
            raise RunMismatch(f"{home} is of another run than {chain.directory}")
        anchors = {head.anchor for head in _heads(other)}
        shared = [head for head in shared if head.anchor in anchors]
    if not shared:
        raise BadInput(f"{chain.directory} and the folders of the other homes have no round in common")
    return shared[-1]


def _heads(chain: Chain) -> Sequence[ChainHead]:
    heads = read_chain_files(chain.directory, genesis_head(chain.genesis)).heads
    return [head for head in heads if head.round <= chain.head.round]


def _holding(layer: int, folders: Sequence[Path], layers: int) -> tuple[Path, range]:
    """A folder that keeps this layer, and the layers from this one on that it keeps."""
    for folder in folders:
        held = read_held(folder)
        kept = range(layers) if held is None else held.layers
        if layer in kept:
            return folder, range(layer, kept.stop)
    raise BadInput(
        f"layer {layer} of {layers} is in none of these folders, which are of homes of a cluster; name those of its "
        "other homes with --homes, or export a folder that an organiser keeps"
    )
