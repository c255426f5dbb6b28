"""A member of the logical swarm that consists of several homes: a lead, and workers that hold the other layers.

Each home is a peer of its own on the network, with a disk, a life, faults, and books of its own layers. Messages
between their trainers (what to write, the digest of the state) are calls here, which a dead, stalled or cut home does
not answer.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dht.streams.base import Streams
from peer.consensus.delegates.delegate_driver import DelegateDriver
from peer.consensus.delegates.lead_driver import LeadEffects
from peer.consensus.delegates.worker_messages import is_order
from peer.consensus.delegates.worker_port import WorkerOrders
from peer.consensus.protocol import merkle
from peer.consensus.protocol.block import ContributionHeader, Delegate
from peer.consensus.protocol.encoding import digest_of
from peer.consensus.rounds.driver import Driver, HomesPort
from peer.consensus.rounds.interface import Applied, DelegatesChanged, Submitted
from peer.node.lifecycle.inputs_effects import Moved, Result, Work
from peer.planning.simulate.swarm_peer import Crashed
from peer.schema.spec import RunSpec
from peer.testing.memory_peer import NOT_HERE, STEP_TOKENS, IntegerDisk, LogicalPeer, LogicalWorld

LOOK_S = 0.5
"""How often a lead looks whether its workers can do what they could not."""


def spans(parts: int, homes: int) -> list[range]:
    """The layers of each home of a cluster, the lead's first."""
    return [range(parts * home // homes, parts * (home + 1) // homes) for home in range(homes)]


@dataclass(kw_only=True)
class HomeDisk(IntegerDisk):
    """The disk of a home: it has the bytes of its own parts, and that of a lead knows the leaves of all."""

    leaves: dict[bytes, list[bytes]] = field(default_factory=dict)

    def my_part(self, anchor: bytes, part: int) -> tuple[tuple[bytes, ...], bytes] | None:
        """(Merkle path, bytes) of a part that is here."""
        payloads = self.offered(anchor)
        if payloads is None or payloads[part] == NOT_HERE:
            return None
        return self.my_path(anchor, part) or (), payloads[part]

    def my_path(self, anchor: bytes, part: int) -> tuple[bytes, ...] | None:
        """Of a part wherever its bytes are."""
        leaves = self.leaves.get(anchor)
        return None if leaves is None else merkle.path(leaves, part)


class LogicalLead(LogicalPeer):
    """The first home of a cluster: the member."""

    disk: HomeDisk
    disk_type = HomeDisk

    def __init__(self, world: LogicalWorld, name: str, workers: int) -> None:
        mine, *theirs = spans(world.parts, workers + 1)
        self.delegates: tuple[Delegate, ...] = tuple(
            (layers.start, layers.stop - 1, f"{name}.{number}") for number, layers in enumerate(theirs)
        )
        super().__init__(world, name, layers=mine)

    def make_homes(self, streams: Streams) -> HomesPort:
        """Its workers."""
        self._orders = WorkerOrders(streams.send, self.deliver, lambda: self.now)
        return LeadEffects(self.disk, self._orders, lambda: self.now)

    def open_link(self) -> None:
        """And say at once who keeps what."""
        super().open_link()
        self.driver.deliver(DelegatesChanged(self.now, self.delegates))

    def on_frame(self, sender: str, frame: bytes) -> None:
        if not is_order(frame):
            super().on_frame(sender, frame)
            return
        try:
            self._orders.on_frame(sender, frame)
        except ValueError:
            self.driver.frames.bad_frames += 1

    # ---- the trainer, with those of its workers ----

    def _workers(self, anchor: bytes) -> list[LogicalWorker] | None:
        """All of them, if all answer and stand where it stands."""
        homes = [home for home in self.world.homes_of(self.name) if isinstance(home, LogicalWorker)]
        answer = [
            home for home in homes
            if home.alive and home.stalled_until <= self.now and home.ledger.anchor == anchor
            and not self.is_cut_off(home.name) and not home.is_cut_off(self.name)
        ]  # fmt: skip
        return homes if len(answer) == len(self.delegates) else None

    def _submit(self, anchor: bytes) -> None:
        """Written by every home, and last by this one."""
        self._offered = True
        if self.disk.header(anchor) is not None:
            return
        workers = self._workers(anchor)
        theirs = [worker.freeze(anchor) for worker in workers or ()]
        if workers is None or any(leaves is None for leaves in theirs):
            self.later(LOOK_S, self._submit_after_all, anchor)
            return
        payloads = self.ledger.encoded_balance()
        leaves = [digest_of(payload) for payload in payloads]
        for of_worker in theirs:
            leaves = [their or mine for their, mine in zip(of_worker or (), leaves, strict=True)]
        steps, self._unoffered = self._unoffered, 0
        header = ContributionHeader(
            self.name, anchor, merkle.root(leaves), tokens=STEP_TOKENS * steps, steps=steps, bandwidth_bps=0,
            leaving=False, delegates=self.delegates,
        ).signed(self.driver.state.rules.keys)  # fmt: skip
        self.disk.leaves[anchor] = leaves
        self.disk.save_contribution(header, payloads)
        self.world.offered(self, anchor, payloads)
        self._save()

    def _submit_after_all(self, anchor: bytes) -> None:
        if self.ledger.anchor != anchor or self.driver.state.head.anchor != anchor or self.disk.header(anchor):
            return
        self._submit(anchor)
        header = self.disk.header(anchor)
        if header is not None:
            self.deliver(Submitted(self.now, header))

    def do(self, work: Work) -> Result:
        """The bits are those of all homes: as long as one does not say its own, they are not known."""
        done = super().do(work)
        if isinstance(done, Moved) and not done.state:
            self.later(LOOK_S, self._tell_state, self.ledger.anchor)
        return done

    def _tell_state(self, anchor: bytes) -> None:
        if self.ledger.anchor != anchor:
            return
        state = self.state_digest()
        if state:
            self.deliver(Applied(self.now, anchor, state))
        else:
            self.later(LOOK_S, self._tell_state, anchor)

    def state_digest(self) -> bytes:
        """H(θ) of all homes; empty if not all stand here."""
        workers = self._workers(self.ledger.anchor)
        if workers is None:
            return b""
        theta = list(self.ledger.theta)
        for worker in workers:
            for layer in worker.layers:
                theta[layer] = worker.ledger.theta[layer]
        return digest_of(repr(theta).encode())


@dataclass(kw_only=True)
class WorkerDisk(HomeDisk):
    """That of a worker, which pledges nothing to anybody but its lead."""

    def header(self, anchor: bytes) -> ContributionHeader | None:
        """None: its machine is never ready."""
        return None


class LogicalWorker(LogicalPeer):
    """Any other home of a cluster."""

    disk: WorkerDisk
    disk_type = WorkerDisk

    def __init__(self, world: LogicalWorld, name: str, lead: LogicalLead, layers: range) -> None:
        super().__init__(world, name, lead.name, layers)

    def begin_life(self, run: RunSpec, *, serves: bool = True) -> None:
        super().begin_life(run, serves=serves)

    def make_driver(self, streams: Streams) -> Driver:
        """And what its lead asks for, beside it."""
        driver = super().make_driver(streams)
        self.delegate = DelegateDriver(
            self.member, state=lambda: driver.state, deliver=self.deliver, clock=lambda: self.now, streams=streams,
            disk=self.disk, arithmetic=self.make_sums(),
        )  # fmt: skip
        return driver

    def on_frame(self, sender: str, frame: bytes) -> None:
        if not self.delegate.on_frame(sender, frame):
            super().on_frame(sender, frame)

    def freeze(self, anchor: bytes) -> list[bytes] | None:
        """Asked by its lead: the leaves of its parts once they are written, empty for others; None if it dies."""
        try:
            return self._freeze(anchor)
        except Crashed:
            self.crash()
            return None

    def _freeze(self, anchor: bytes) -> list[bytes]:
        payloads = self.disk.offered(anchor)
        if payloads is None:
            payloads = self.ledger.encoded_balance()
            self._unoffered = 0
            pledged = ContributionHeader(self.member, anchor, b"", 0, 0, 0, False)
            self.disk.save_contribution(pledged, payloads)
            self.world.offered(self, anchor, payloads)
            self._save()
        return [digest_of(payload) if payload != NOT_HERE else b"" for payload in payloads]

    def _submit(self, anchor: bytes) -> None:
        """Its lead does."""

    def state_digest(self) -> bytes:
        """It compares no bits."""
        return b""
