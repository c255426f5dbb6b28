"""The anchor at the head of a run directory, of a peer that is stopped or at work: everything here only reads."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from dht.errors import BadInput, RunMismatch
from dht.records import Genesis
from peer.averaging.chain import first_head, read_blocks, require_same_start
from peer.model.flat import FlatParameters
from peer.rounds.layout import cut
from peer.rounds.names import digest_of
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
    try:
        # First, since a peer at work may move it on.
        pointer = (directory / "HEAD").read_text().split()[1] if (directory / "HEAD").exists() else None
        genesis = Genesis.unpack((directory / "genesis").read_bytes())
        updates = tuple(block.update for block in read_blocks(directory))
    except FileNotFoundError as error:
        raise BadInput(f"{error.filename} is missing; the chain of the run cannot be read") from error
    except ValueError as error:
        raise BadInput(f"the chain in {directory} is damaged: {error}") from error
    if genesis.run != spec.digest():
        raise RunMismatch(f"{directory / 'spec.toml'} is not the spec of the run whose chain lies beside it")
    head = first_head(genesis)
    anchors: set[str | None] = {None}
    for update in updates:
        if (update.parent, update.round) != (head.anchor, head.round + 1):
            raise BadInput(f"the chain in {directory} is damaged: round {update.round} does not follow the one before")
        head = head.after(update)
        anchors.add(head.anchor.hex())
    if pointer not in anchors:
        raise BadInput(f"the chain in {directory} is damaged: it does not lead to the anchor that HEAD names")
    return Chain(directory=directory, genesis=genesis, updates=updates, head=head)


def restore_anchor(chain: Chain, spec: RunSpec, initial: FlatParameters) -> Anchor:
    """The anchor at the head of `chain`, by making the outer steps since the newest checkpoint again.

    Without a checkpoint they are made from the run's `initial` parameters on.

    Raises RunMismatch if the run began with others, BadInput if bytes on disk are missing or damaged.
    """
    anchor = Anchor.initial(initial.new())
    require_same_start(chain.genesis, anchor.state_digest())
    layout = cut([layer.size for layer in initial.layers], spec.codec.part_elements)
    objects = chain.directory / "chain" / "objects"
    for update in chain.updates[_restore_checkpoint(anchor, chain) :]:
        advance(anchor, update, spec, layout, lambda name: _load(objects / name.hex(), name))
    return anchor


def _restore_checkpoint(anchor: Anchor, chain: Chain) -> int:
    """Be at the anchor of the newest checkpoint, if that is on the chain; returns the round."""
    found = newest(chain.directory / "checkpoints", chain.genesis.run.hex(), None, log.warning)
    anchors = [update.parent for update in chain.updates] + [chain.head.anchor]
    if found is None or found.anchor not in anchors:
        return 0
    anchor.become(**found.tensors["anchor"], round=found.state["round"], cursors=found.state["cursors"])
    return anchors.index(found.anchor)


def _load(path: Path, name: bytes) -> bytes:
    try:
        payload = path.read_bytes()
    except FileNotFoundError as error:
        raise BadInput(f"{path} is missing; the chain cannot be replayed") from error
    if digest_of(payload) != name:
        raise BadInput(f"{path} is damaged: its bytes are not those that were agreed")
    return payload
