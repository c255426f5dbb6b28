"""The anchor at the head of a run directory, of a peer that is stopped or at work: everything here only reads."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dht.errors import BadInput, RunMismatch
from dht.records import Genesis
from peer.model.flat import FlatParameters
from peer.protocol.block import Update
from peer.protocol.layout import cut
from peer.rounds.state import ChainHead
from peer.spec import RunSpec
from peer.store.objects import load_object
from peer.store.run_directory import genesis_head, read_blocks, read_genesis, require_same_start
from peer.store.snapshots import names
from peer.train.checkpoint import newest
from peer.train.outer_state import OuterState, advance
from peer.train.snapshot_writer import become_snapshot

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Chain:
    """What a run directory knows of its run: the beginning, and the updates from the base of its chain to its head."""

    directory: Path
    genesis: Genesis
    base: ChainHead
    """Of round 0, unless what came before is not on this disk."""
    updates: tuple[Update, ...]
    head: ChainHead


def read_chain(directory: Path, spec: RunSpec) -> Chain:
    """The chain on disk. Raises BadInput if there is none or it is damaged, RunMismatch if it is another run's."""
    genesis = read_genesis(directory)
    if genesis.run != spec.digest():
        raise RunMismatch(f"{directory / 'spec.toml'} is not the spec of the run whose chain lies beside it")
    blocks, heads = read_blocks(directory, genesis_head(genesis))
    updates = tuple(block.update for block in blocks)
    return Chain(directory=directory, genesis=genesis, base=heads[0], updates=updates, head=heads[-1])


def restore_anchor(chain: Chain, spec: RunSpec, initial: FlatParameters) -> OuterState:
    """The anchor at the head of `chain`, by making the outer steps since the newest checkpoint or snapshot again.

    Without one they are made from the run's `initial` parameters on.

    Raises RunMismatch if the run began with others, BadInput if bytes on disk are missing or damaged.
    """
    anchor = OuterState.initial(initial.new())
    require_same_start(chain.genesis, anchor.state_digest())
    layout = cut([layer.size for layer in initial.layers], spec.codec.part_elements)
    _start_late(anchor, chain)
    if anchor.round < chain.base.round:
        raise BadInput(
            f"the chain in {chain.directory} begins at round {chain.base.round}, and no intact checkpoint or snapshot "
            "lies beside it; take the folder of another peer"
        )
    for update in chain.updates[anchor.round - chain.base.round :]:
        advance(anchor, update, spec, layout, partial(load_object, chain.directory))
    return anchor


def _start_late(anchor: OuterState, chain: Chain) -> None:
    """Be at the newest checkpoint or snapshot that is on the chain, if there is any."""
    rounds = {chain.head.anchor: chain.head.round} | {update.parent: update.round - 1 for update in chain.updates}
    found = newest(chain.directory / "checkpoints", chain.genesis.run.hex(), None, _log_unused)
    if found is not None and found.anchor in rounds:
        anchor.become(**found.tensors["anchor"], round=found.state["round"], cursors=found.state["cursors"])
    for round, name in reversed(names(chain.directory)):
        if rounds.get(name) != round or round <= anchor.round:
            continue
        try:
            become_snapshot(anchor, chain.directory, round, name)
        except BadInput as error:
            log.warning("not using a snapshot: %s", error)
        else:
            return


def _log_unused(path: Path, why: str) -> None:
    log.warning("not using checkpoint %s: %s", path, why)
