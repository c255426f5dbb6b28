"""The anchor of a round on disk: a snapshot, and the outer steps since then, which are computed again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from dht.atomic_files import raising_damaged
from dht.errors import BadInput, RunMismatch
from dht.records import Genesis
from peer.consensus.protocol.block import Block, Update
from peer.consensus.protocol.head import ChainHead, next_anchor
from peer.consensus.protocol.layout import cut
from peer.node.store import snapshots
from peer.node.store.objects import load_object
from peer.node.store.run_directory import (
    block_path,
    genesis_head,
    read_chain_files,
    read_genesis,
    require_same_start,
)
from peer.schema.spec import RunSpec
from peer.training.checkpoint.checkpoint import Checkpoint
from peer.training.model.build import build
from peer.training.model.flat_parameters import FlatParameters
from peer.training.outer.outer_state import OuterState
from peer.training.outer.outer_step import advance

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunStart:
    """Where a run begins."""

    layers: tuple[int, ...]
    """Elements of each layer of the model."""
    state: bytes
    """Digest of all initial parameters."""

    @classmethod
    def of(cls, initial: OuterState) -> RunStart:
        """`initial` has all layers."""
        return cls(initial.sizes, initial.state_digest())


def first_anchor(spec: RunSpec) -> OuterState:
    """Anchor 0 of a run, all of it."""
    return OuterState.initial(FlatParameters(build(spec)).by_layer())


def restore_at(directory: Path, spec: RunSpec, name: bytes, round: int) -> OuterState:
    """The anchor with this name and round, of all layers. Raises the errors of `lead_to`."""
    anchor = first_anchor(spec)
    lead_to(anchor, directory, spec, name, round, RunStart.of(anchor))
    return anchor


def lead_to(anchor: OuterState, directory: Path, spec: RunSpec, name: bytes, round: int, start: RunStart) -> None:
    """Turn `anchor`, which holds the initial parameters, into the one with this name and round: from the newest
    snapshot on the way to it, or else from where it is. Raises BadInput if files are damaged or missing, or lead
    elsewhere, and then `anchor` may be anywhere; RunMismatch if the run began with other parameters."""
    taken = set(snapshots.names(directory))
    way: list[Update] = []
    while round > 0 and not ((round, name) in taken and _is_at_snapshot(anchor, directory, round, name)):
        way.append(_update_that_made(directory, round, name))
        round, name = round - 1, way[-1].parent
    if round == 0:
        genesis = read_genesis(directory)
        require_same_start(genesis, start.state)
        assert name == genesis_head(genesis).anchor
    layout = cut(start.layers, spec.codec.part_elements)
    for update in reversed(way):
        advance(anchor, update, spec, layout, partial(load_object, directory))


SnapshotOrigin = tuple[int, bytes] | None
"""The snapshot, by round and anchor, from which a way leads; None for the initial parameters."""


def origin_of(directory: Path, name: bytes, round: int, known: Mapping[bytes, SnapshotOrigin]) -> SnapshotOrigin:
    """Where `lead_to` would begin for this anchor; `known` holds the answer for anchors that may be on the way.
    Raises BadInput if no way is on this disk."""
    taken = set(snapshots.names(directory))
    known = {name: origin for name, origin in known.items() if origin is None or origin in taken}
    while round > 0 and (round, name) not in taken and name not in known:
        round, name = round - 1, _update_that_made(directory, round, name).parent
    return (round, name) if (round, name) in taken else known.get(name)


def newest_snapshot(directory: Path) -> tuple[bytes, OuterState] | None:
    """The name and the anchor of the newest intact snapshot on this disk."""
    for round, name in reversed(snapshots.names(directory)):
        try:
            return name, read_anchor(directory, round, name)
        except BadInput as error:
            log.warning("not using a snapshot: %s", error)
    return None


def _update_that_made(directory: Path, round: int, name: bytes) -> Update:
    """The update that led to this anchor. Raises BadInput if its block is not on the chain."""
    path = block_path(directory, round)
    if path.exists():
        with raising_damaged(path):
            update = Block.from_bytes(path.read_bytes()).update
        if next_anchor(update.parent, update.digest) == name:
            return update
    raise BadInput(f"{path} is not the block that led to where this peer stood; join with a new folder")


@dataclass(frozen=True, kw_only=True)
class Chain:
    """A run directory's knowledge of its run: the beginning, and the updates from the base of its chain to its head."""

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
    found = read_chain_files(directory, genesis_head(genesis))
    blocks, heads = found.blocks, found.heads
    updates = tuple(block.update for block in blocks)
    return Chain(directory=directory, genesis=genesis, base=heads[0], updates=updates, head=heads[-1])


def restore_anchor(
    chain: Chain, spec: RunSpec, initial: FlatParameters, told: Callable[[int, int], object] = lambda round, last: None
) -> OuterState:
    """The anchor at the head of `chain`, computed from the newest snapshot by its outer steps. Without a snapshot
    they begin at the run's `initial` parameters. `told` is called for each, and for the last. Raises RunMismatch if
    the run began with others, BadInput if bytes on disk are missing or damaged."""
    anchor = OuterState.initial(initial.by_layer())
    require_same_start(chain.genesis, anchor.state_digest())
    layout = cut([layer.size for layer in initial.layers], spec.codec.part_elements)
    _start_late(anchor, chain)
    if anchor.round < chain.base.round:
        raise BadInput(
            f"the chain in {chain.directory} begins at round {chain.base.round}, and no intact snapshot "
            "lies beside it; take the folder of another peer"
        )
    for update in chain.updates[anchor.round - chain.base.round :]:
        advance(anchor, update, spec, layout, partial(load_object, chain.directory))
        told(anchor.round, chain.head.round)
    return anchor


def _start_late(anchor: OuterState, chain: Chain) -> None:
    """Start at the newest snapshot that is on the chain, if there is any."""
    rounds = {chain.head.anchor: chain.head.round} | {update.parent: update.round - 1 for update in chain.updates}
    for round, name in reversed(snapshots.names(chain.directory)):
        if rounds.get(name) == round and _is_at_snapshot(anchor, chain.directory, round, name):
            return


def _is_at_snapshot(anchor: OuterState, directory: Path, round: int, name: bytes) -> bool:
    """Load this snapshot; False if it is damaged, and then nothing has changed."""
    try:
        become_snapshot(anchor, directory, round, name)
    except BadInput as error:
        log.warning("not using a snapshot: %s", error)
        return False
    return True


@torch.no_grad()
def become_checkpoint(anchor: OuterState, checkpoint: Checkpoint) -> None:
    """Load the anchor from a `checkpoint` of a home of a cluster, with the same layers."""
    for number in range(len(anchor.theta)):
        stored = checkpoint.layer(number)
        for vector, name in zip(anchor.layer(number), ("theta", "momentum"), strict=True):
            vector.copy_(stored[name])
    anchor.round, anchor.cursors = checkpoint.round, {shard: cursor for shard, cursor in checkpoint.state["cursors"]}


def read_anchor(directory: Path, round: int, name: bytes, held: range | None = None) -> OuterState:
    """The anchor in the snapshot of this round and name, or these layers of it. Raises BadInput if that is damaged."""
    path = snapshots.path_of(directory, round, name)
    manifest = snapshots.read_manifest(path)
    held = range(len(manifest.layers)) if held is None else held
    layers = [snapshots.read_layer(path, manifest, layer) for layer in held]
    theta, momentum = zip(*([torch.from_numpy(vector) for vector in layer] for layer in layers), strict=True)
    return OuterState(
        theta, momentum, round, dict(manifest.cursors),
        first_layer=held.start, first_element=sum(manifest.layers[: held.start]),
    )  # fmt: skip


def become_snapshot(anchor: OuterState, directory: Path, round: int, name: bytes) -> None:
    """Load the snapshot of this round and name in place. Raises BadInput if it is damaged, or of another model, and
    then nothing has changed."""
    path = snapshots.path_of(directory, round, name)
    manifest = snapshots.read_manifest(path)
    if manifest.layers[anchor.layers.start : anchor.layers.stop] != anchor.sizes:
        raise BadInput(f"{path} is of another model; remove it")
    with snapshots.opened(path, manifest, anchor.layers) as load:
        for place, layer in enumerate(anchor.layers):
            anchor.fill(place, map(load, manifest.chunks_of(layer)))
    anchor.round, anchor.cursors = round, dict(manifest.cursors)
