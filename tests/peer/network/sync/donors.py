"""Real donors with real snapshots, and a network between them that only calls functions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch

from dht.errors import Unreachable
from peer.consensus.codec.codec import Codec
from peer.consensus.protocol.block import VOID, Block, Update, Vote
from peer.consensus.protocol.encoding import digest_of
from peer.network.sync.blob_server import BlobServer
from peer.network.sync.chain_status import SnapshotChoice
from peer.node.store import snapshots
from peer.node.store.chain import ChainStore
from peer.node.store.run_directory import ChainBase
from peer.node.store.snapshots import SnapshotManifest
from peer.testing.memory_peer import ModelKeys
from peer.training.outer.outer_state import OuterState
from tests.peer.consensus.rounds.build import HEAD, NAMES, PARTS, update

RUN = b"r" * 32
LAYERS = (500_000, 100_000)
"""Of θ and of m: five chunks, of which the third holds the end of θ and the beginning of m."""
CURSORS = {3: 7, 1: 20}
OPEN: list[BlobServer] = []
"""Donors of this test; whoever uses them closes them."""

Answer = Callable[[str, bytes], Awaitable[bytes | None]]


class AtOnce(Executor):
    """Does everything at once."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # whoever waits gets it
            future.set_exception(error)
        return future


def chain_of(directory: Path, rounds: int, branch: int = 0, voters: tuple[str, ...] = NAMES) -> ChainStore:
    """A chain without bytes, certified by these; another `branch` has other anchors."""
    disk = ChainStore(directory, HEAD, PARTS, Codec("float32"), AtOnce(), lambda call: call(), quota_bytes=0)
    for _ in range(disk.head.round, rounds):
        parent = disk.head
        void = update(
            time=branch, parent=parent.anchor, round=parent.round + 1, parts=(VOID, VOID, VOID),
            weight=parent.weight + 3, state=state_at(parent.round),
        )  # fmt: skip
        certify(disk, void, voters)
    return disk


def certify(disk: ChainStore, made: Update, voters: tuple[str, ...] = ()) -> None:
    """Append an update with the votes of these; without them, of all who decide."""
    head = disk.head
    votes = tuple(
        Vote(name, head.instance, 0, made.digest, b"s" * 64).signed(ModelKeys(name))
        for name in voters or head.electorate
    )
    disk.commit(Block(made, votes), head.after(made), frozenset())


@cache
def state_at(round: int) -> bytes:
    return anchor_at(round).state_digest()


def anchor_at(round: int, seed: int = 0) -> OuterState:
    """Parameters and momentum that differ from element to element and round to round."""
    generator = torch.Generator().manual_seed(100 * round + seed)
    theta, momentum = ([torch.rand(size, generator=generator) for size in LAYERS] for _ in range(2))
    return OuterState(theta, momentum, round, CURSORS)


def write_snapshot(
    directory: Path, disk: ChainStore, round: int, seed: int = 0, layers: range | None = None
) -> SnapshotManifest:
    """As the trainer would at this round of the chain; with another `seed` it has miscomputed. Of these `layers`: as a
    home of a cluster does, whose other homes have the rest."""
    anchor = anchor_at(round, seed)
    base = ChainBase.after(disk.updates_up_to(disk.heads[round - disk.base.head.round].anchor))
    made = snapshots.draft(
        directory, anchor.sizes, anchor.chunks, run=RUN, base=base, cursors=anchor.cursors, layers=layers
    )  # fmt: skip
    chunks = tuple(digest for layer in range(len(LAYERS)) for digest in anchor.chunk_digests(layer))
    return snapshots.read_manifest(made.publish(chunks, anchor.state_digest()))


@dataclass
class Network:
    """`Asker` on the donors of one process."""

    answers: dict[str, dict[str, Answer]] = field(default_factory=dict)
    donors: dict[str, BlobServer] = field(default_factory=dict)
    asked: list[tuple[str, str]] = field(default_factory=list)
    """(who, for what), in order."""
    given_bytes: int = 0
    """What all answers hold."""

    def add(
        self, directory: Path, name: str, rounds: int, *taken: int, seed: int = 0, layers: range | None = None
    ) -> ChainStore:
        """A donor whose chain has so many rounds, with snapshots of some of them, or of these `layers`."""
        disk = chain_of(directory / name, rounds)
        for round in taken:
            write_snapshot(directory / name, disk, round, seed, layers)
        donor = BlobServer(directory / name, AtOnce(), 10**10)
        donor.disk = disk
        self.answers[name], self.donors[name] = {}, donor
        OPEN.append(donor)
        donor.listen(_Ear(self.answers[name]))
        return disk

    async def ask(
        self, peer_id: str, name: str, timeout_s: float, max_bytes: int = 0, request: bytes = b""
    ) -> bytes | None:
        """As `Node.ask`."""
        self.asked.append((peer_id, name))
        if peer_id not in self.answers:  # nor is the organiser's node here
            raise Unreachable(f"cannot reach peer {peer_id}")
        answer = self.answers[peer_id].get(name)
        payload = None if answer is None else await answer("me", request)
        assert payload is None or len(payload) <= max_bytes
        self.given_bytes += len(payload or b"")
        return payload


@dataclass
class _Ear:
    answers: dict[str, Answer]

    def answer(self, name: str, answer: Answer) -> None:
        self.answers[name] = answer


def choice_of(manifest: SnapshotManifest, *donors: str) -> SnapshotChoice:
    """As if the survey had found it with these donors."""
    from peer.network.sync.chain_status import SnapshotOffer

    offer = SnapshotOffer(
        round=manifest.round, anchor=manifest.anchor, manifest=digest_of(manifest.to_bytes()),
        vector_bytes=manifest.vector_bytes,
    )  # fmt: skip
    return SnapshotChoice(offer=offer, donors=donors)


def vectors_of(anchor: OuterState) -> bytes:
    """The bytes that a snapshot of this anchor holds."""
    return b"".join(chunk.tobytes() for layer in range(len(LAYERS)) for chunk in anchor.chunks(layer))


def same(path: Path, manifest: SnapshotManifest, anchor: OuterState) -> bool:
    """Whether θ and m that lie there are those of the anchor, to the bit."""
    layers = (snapshots.read_layer(path, manifest, layer) for layer in range(len(LAYERS)))
    return b"".join(vector.tobytes() for layer in layers for vector in layer) == vectors_of(anchor)
