"""The anchor at the head of a run directory, of a peer that is stopped or at work: everything here only reads."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dht.errors import RunMismatch
from dht.records import Genesis
from peer.averaging.chain import first_head, load_object, read_blocks, read_genesis, require_same_start
from peer.model.flat import FlatParameters
from peer.rounds.layout import cut
from peer.rounds.state import Head
from peer.rounds.update import Update
from peer.spec import RunSpec
from peer.train.anchor import Anchor, advance
from peer.train.checkpoint import newest

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Chain:
    """What a run directory knows of its run: the beginning, and every update up to its head."""

    directory: Path
    genesis: Genesis
    updates: tuple[Update, ...]
    head: Head


def read_chain(directory: Path, spec: RunSpec) -> Chain:
    """The chain on disk. Raises BadInput if there is none or it is damaged, RunMismatch if it is another run's."""
    genesis = read_genesis(directory)
    if genesis.run != spec.digest():
        raise RunMismatch(f"{directory / 'spec.toml'} is not the spec of the run whose chain lies beside it")
    blocks, heads = read_blocks(directory, first_head(genesis))
    return Chain(directory=directory, genesis=genesis, updates=tuple(block.update for block in blocks), head=heads[-1])


def restore_anchor(chain: Chain, spec: RunSpec, initial: FlatParameters) -> Anchor:
    """The anchor at the head of `chain`, by making the outer steps since the newest checkpoint again.

    Without a checkpoint they are made from the run's `initial` parameters on.

    Raises RunMismatch if the run began with others, BadInput if bytes on disk are missing or damaged.
    """
    anchor = Anchor.initial(initial.new())
    require_same_start(chain.genesis, anchor.state_digest())
    layout = cut([layer.size for layer in initial.layers], spec.codec.part_elements)
    for update in chain.updates[_restore_checkpoint(anchor, chain) :]:
        advance(anchor, update, spec, layout, partial(load_object, chain.directory))
    return anchor


def _restore_checkpoint(anchor: Anchor, chain: Chain) -> int:
    """Be at the anchor of the newest checkpoint, if that is on the chain; returns the round."""
    found = newest(chain.directory / "checkpoints", chain.genesis.run.hex(), None, _log_unused)
    anchors = [update.parent for update in chain.updates] + [chain.head.anchor]
    if found is None or found.anchor not in anchors:
        return 0
    anchor.become(**found.tensors["anchor"], round=found.state["round"], cursors=found.state["cursors"])
    return anchors.index(found.anchor)


def _log_unused(path: Path, why: str) -> None:
    log.warning("not using checkpoint %s: %s", path, why)
