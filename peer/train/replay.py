"""An earlier anchor, for a peer whose branch was left: outer steps cannot be taken back, so they are made again."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path

from dht.errors import BadInput
from peer.model.build import build
from peer.model.flat import FlatParameters
from peer.protocol.block import Block, Update
from peer.protocol.electorate import next_anchor
from peer.protocol.layout import cut
from peer.spec import RunSpec
from peer.store.objects import load_object
from peer.store.run_directory import block_path, genesis_head, read_genesis, require_same_start, undone_path
from peer.store.snapshots import names
from peer.train.outer_state import OuterState, advance
from peer.train.snapshot_writer import become_snapshot

log = logging.getLogger(__name__)


def restore_at(directory: Path, spec: RunSpec, name: bytes, round: int) -> OuterState:
    """The anchor of this name and round, from the newest snapshot on the way to it or else the initial parameters.

    It may be on the chain on disk, or on a branch that was left meanwhile: the link goes on while this reads.
    Raises BadInput if files are damaged or gone, RunMismatch if the run began with other parameters.
    """
    taken = set(names(directory))
    flat = FlatParameters(build(spec))
    anchor = OuterState.initial(flat.new())
    way: list[Update] = []
    while round > 0 and not ((round, name) in taken and _is_at_snapshot(anchor, directory, round, name)):
        way.append(_update_that_made(directory, round, name))
        round, name = round - 1, way[-1].parent
    if round == 0:
        genesis = read_genesis(directory)
        require_same_start(genesis, anchor.state_digest())
        assert name == genesis_head(genesis).anchor
    layout = cut([layer.size for layer in flat.layers], spec.codec.part_elements)
    for update in reversed(way):
        advance(anchor, update, spec, layout, partial(load_object, directory))
    return anchor


def _is_at_snapshot(anchor: OuterState, directory: Path, round: int, name: bytes) -> bool:
    """Take over what this snapshot holds; False if it is damaged, and then nothing changed."""
    try:
        become_snapshot(anchor, directory, round, name)
    except BadInput as error:
        log.warning("%s", error)
        return False
    return True


def _update_that_made(directory: Path, round: int, name: bytes) -> Update:
    """The update that led to this anchor. Raises BadInput if its block is neither on the chain nor beside it."""
    on_chain, undone = block_path(directory, round), undone_path(directory, round, name)
    # Twice: the link may move it from one place to the other, and writes it there before it removes it here.
    for path in (on_chain, undone, on_chain):
        if path.exists():
            update = Block.from_bytes(path.read_bytes()).update
            if next_anchor(update.parent, update.digest) == name:
                return update
    raise BadInput(f"{on_chain} is not the block that led to where this peer stood; join with a new folder")
