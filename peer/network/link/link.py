"""The link process: it finds other peers, runs the round machine, and talks to the trainer. It loads no CUDA.

    python -m peer.network.link.link --fd N

The first message on the channel says which run to join, and how. Read `story` first.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import logging
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager, closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from dht.access import AccessList
from dht.addresses import are_loopback, can_be_dialled, listened_on, peer_id_in
from dht.admission import QuarantineList
from dht.clock import ClockWatch, watch_clock
from dht.dht_board import Rank
from dht.errors import HomefiresError
from dht.identity import Identity, RunKeys
from dht.invite import Invite, parse_for, read_text
from dht.node import NetworkConfig, Node, open_node
from dht.process import die_with_parent
from dht.reach.bandwidth_probe import serve_probes
from dht.reach.dial_back import serve_dial_back
from dht.records import MAX_ADDRESS_CHARS, MAX_ADDRESSES, Genesis
from peer.consensus.codec.codec import Codec
from peer.consensus.codec.run_rules import rules_of
from peer.consensus.organiser import checkpoints
from peer.consensus.protocol.encoding import pack
from peer.consensus.protocol.head import ChainHead
from peer.consensus.protocol.layout import Part, cut, layer_sizes
from peer.consensus.protocol.messages import Heartbeat
from peer.consensus.protocol.rules import Rules
from peer.network.link.channel import LinkEnd, LinkLost
from peer.network.link.cluster_invite import found_in, issue_in, parse_cluster
from peer.network.link.cluster_match import HomeMatcher
from peer.network.link.cluster_role import ClusterRole, MakeRole, leading, working
from peer.network.link.discovery import Announcer
from peer.network.link.flow_channel import FlowLinkEnd
from peer.network.link.gatekeeper import ADMISSION, Gatekeeper, Membership, find_admission, quarantine_alerts
from peer.network.link.participation import Participation, resume_from, unless_left
from peer.network.sync.blob_server import BlobServer
from peer.network.sync.checkpoint_keeper import CheckpointKeeper
from peer.network.sync.run_discovery import LAYERS, around, find_genesis, find_spec
from peer.network.sync.snapshot_sync import SnapshotSync
from peer.network.sync.start_sync import bring_start
from peer.node.store import start_blob
from peer.node.store.chain import ChainStore
from peer.node.store.run_directory import genesis_head
from peer.schema import spec as specs
from peer.schema.events import AlertRaised
from peer.schema.ipc import (
    AdoptSnapshot,
    Hello,
    LinkFailed,
    LookForHomes,
    OpenLink,
    ResumeAt,
    SpecText,
    StartBrought,
    StartLooked,
    Waiting,
)
from peer.schema.live_settings import LiveSettings
from peer.schema.settings import PeerSettings
from peer.schema.spec import RunSpec
from peer.schema.spec_fields import AdmissionTable

log = logging.getLogger(__name__)

FLUSH_S = 1.0
"""The trainer gets this long to read what was said to it last."""

Story = Callable[[Node, LinkEnd, Path, Invite, Announcer, LiveSettings, MakeRole | None], Awaitable[None]]


async def story(
    node: Node, pipe: LinkEnd, directory: Path, invite: Invite, notices: Announcer, chosen: LiveSettings,
    make_role: MakeRole | None = None,
) -> None:  # fmt: skip
    """Everything a link does: learn the run, learn the model's layers, find the founders, take part."""
    text = await find_spec(node, invite, directory)
    node.serve("spec", text.encode)
    spec = specs.parse(text)
    notices, membership = await _stand_guard(node, pipe, directory, invite, notices, spec.admission)
    async with (
        _meanwhile(
            watch_clock(node, partial(_whose_time_counts, invite, notices), ClockWatch(node.clock, time.monotonic))
        ),
        nullcontext() if membership is None else _meanwhile(membership.keep()),
        nullcontext() if make_role is None else make_role(node, pipe, notices) as role,
    ):
        await _take_part(node, pipe, directory, invite, notices, chosen, spec, text, role)


def _whose_time_counts(invite: Invite, notices: Announcer) -> Iterator[str]:
    yield from map(peer_id_in, invite.addrs)
    assert notices.guard is not None
    yield from notices.guard.roster.needed()


async def _take_part(
    node: Node, pipe: LinkEnd, directory: Path, invite: Invite, notices: Announcer, chosen: LiveSettings, spec: RunSpec,
    text: str, role: ClusterRole | None,
) -> None:  # fmt: skip
    pipe.send(SpecText(text))
    with (
        ThreadPoolExecutor(max_workers=2, thread_name_prefix="bytes") as executor,
        closing(BlobServer(directory, executor, 0)) as donor,
    ):
        chosen.listen(lambda settings: donor.allow(_newcomers_bps(settings)))
        donor.listen(node)
        if spec.start is not None:
            await _have_start(node, pipe, invite, notices, spec.start.digest, donor, executor)
        hello = await (pipe.receive() if role is None else role.until_hello())
        if isinstance(hello, LookForHomes):
            matcher = HomeMatcher(node, notices, spec, hello, issue_in(directory), lambda why: pipe.send(Waiting(why)))
            pipe.send(await unless_left(pipe, matcher.find()))
            hello = await pipe.receive()  # it ends this link: the next one has a place in the cluster
        if not isinstance(hello, Hello):
            raise LinkLost
        genesis = await _meet_founders(node, pipe, directory, invite, notices, hello, role, spec)
        parts = cut(hello.layer_sizes, spec.codec.part_elements)
        chains = Chains(directory, genesis_head(genesis), parts, spec, executor, chosen)
        serve_probes(node, lambda: donor.is_exchanging())  # a round needs the line more
        serve_dial_back(node)
        rules = _rules(spec, parts, notices)
        rules = rules if role is None else role.rules(rules)
        keeper = CheckpointKeeper(
            node, rules.keys, invite.organiser, directory, node.refusals, invite.checkpoint or (0, b"")
        )
        node.answer(checkpoints.QUESTION, keeper.answer)
        async with _meanwhile(keeper.follow(node.connections)):
            await _follow_chain(node, pipe, notices, chains, donor, rules, keeper, hello.anchor, role)


async def _have_start(
    node: Node, pipe: LinkEnd, invite: Invite, notices: Announcer, digest: str, donor: BlobServer, executor: Executor
) -> None:
    """Get the pretrained model onto this machine, and give it to others. Raises LinkLost, DiskFull."""

    async def read_others() -> Sequence[str]:
        others = await notices.read_others()
        await asyncio.gather(*(node.meet(peer, ways) for peer, (_, ways) in others.items()))
        return await around(node, [*map(peer_id_in, invite.addrs), *others])

    if not start_blob.is_here(digest):
        looked = await pipe.receive()
        if not isinstance(looked, StartLooked):
            raise LinkLost
        if not looked.is_here:
            await unless_left(pipe, bring_start(digest, node, read_others, executor, pipe.report))
            pipe.send(StartBrought())
    donor.keep(start_blob.folder_of(digest) / start_blob.VECTORS, start_blob.read_manifest(digest))


async def _meet_founders(
    node: Node, pipe: LinkEnd, directory: Path, invite: Invite, notices: Announcer, hello: Hello,
    role: ClusterRole | None, spec: RunSpec,
) -> Genesis:  # fmt: skip
    node.serve(LAYERS, lambda: pack(hello.layer_sizes))
    is_member = role is None or role.takes_part
    here = Heartbeat(b"", -1, 0, hello.first_state if is_member else b"", is_member, 0, 0, False)
    finding = find_genesis(
        node, invite.spec_hash, invite.organiser, directory, hello.first_state, count=spec.run.founders,
        offer=lambda: notices.publish(here), wait=lambda why: pipe.send(Waiting(why)),
    )  # fmt: skip
    genesis = await unless_left(pipe, finding)
    node.serve("genesis", (directory / "genesis").read_bytes)
    return genesis


async def _stand_guard(
    node: Node, pipe: LinkEnd, directory: Path, invite: Invite, notices: Announcer, table: AdmissionTable
) -> tuple[Announcer, Membership | None]:
    """From now on serve only peers that the organiser lets in, and show them my own admission. Raises NotAdmitted,
    or Unreachable if only the organiser's node could admit me and it does not answer."""
    run, organiser, asks = invite.spec_hash, invite.organiser, table.policy == "invited"
    roster = AccessList(run, organiser, asks_admission=asks)
    guard = Gatekeeper(node, roster, directory, run, organiser)
    membership = await _become_member(node, pipe, directory, invite) if asks else None
    guard.changed = lambda orders, before: _tell_orders(pipe, orders, before, node.peer_id)
    guard.stand()
    node.rank_by(partial(_rank_before_rounds, organiser, roster), guard.look)
    _tell_orders(pipe, roster.orders, QuarantineList(), node.peer_id)
    await guard.hear()
    notices = dataclasses.replace(notices, guard=guard)
    if membership is not None:
        notices = dataclasses.replace(notices, admission=lambda: membership.shown)
    return notices, membership


def _rank_before_rounds(organiser: str, roster: AccessList, peer: str) -> Rank:
    if peer == organiser:
        return Rank.VOTER
    return Rank.ADMITTED if roster.has_admitted(peer) else Rank.STRANGER


async def _become_member(node: Node, pipe: LinkEnd, directory: Path, invite: Invite) -> Membership:
    """Raises NotAdmitted, Unreachable."""

    def tell(text: str) -> None:
        pipe.report(AlertRaised(level="warning", code="ADMISSION", text=text))

    admission = await find_admission(node, invite, directory, node.peer_id, pipe)
    membership = Membership(node, invite, directory, node.peer_id, admission, tell)
    node.serve(ADMISSION, lambda: membership.shown)
    return membership


@asynccontextmanager
async def _meanwhile(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run this until the block ends; its error ends the block."""
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(work)
        try:
            yield
        finally:
            task.cancel()


def _tell_orders(pipe: LinkEnd, orders: QuarantineList, before: QuarantineList, me: str) -> None:
    for alert in quarantine_alerts(orders, before, me):
        pipe.report(alert)


async def _follow_chain(
    node: Node, pipe: LinkEnd, notices: Announcer, chains: Chains, donor: BlobServer, rules: Rules,
    keeper: CheckpointKeeper, at: bytes, role: ClusterRole | None,
) -> None:  # fmt: skip
    """Take part from where the chain on this disk ends; if that does not lead to the others', from a snapshot."""
    syncer = SnapshotSync(
        node, notices.run, rules, notices.read_others, chains.directory, layer_sizes(rules.parts),
        sum(rules.bytes_of_means) // rules.fragments, chains.executor, pipe.report, keeper, chains.spec.run.rounds,
        held=None if role is None else role.held,
    )  # fmt: skip
    disk = chains.open()
    why = "" if resume_from(pipe, disk, chains.directory, chains.genesis, at) else "no snapshot is on this disk"
    while True:
        why = why or await unless_left(pipe, syncer.find_need(disk))
        if why:
            manifest = await unless_left(pipe, syncer.bring(disk, why))
            disk = chains.open()
            pipe.send(AdoptSnapshot(manifest.round, manifest.anchor, disk.head.members))
        pipe.send(ResumeAt(disk.head.anchor))
        if keeper.newest is not None:
            rules = dataclasses.replace(rules, checkpoint=(keeper.newest.round, keeper.newest.anchor))
        link = Participation(node, pipe, notices, disk, rules, chains.executor, chains.directory, role)
        donor.disk, donor.is_exchanging = disk, link.is_exchanging
        donor.may_have, donor.is_known = link.may_have, link.knows
        with chains.within_quota(disk):
            why = await link.take_part(partial(syncer.find_loss, disk))
        donor.disk = None
        if not why:
            return


@dataclasses.dataclass(frozen=True)
class Chains:
    """Opens the chain of a run directory, once more after it has begun elsewhere."""

    directory: Path
    genesis: ChainHead
    parts: tuple[Part, ...]
    spec: RunSpec
    executor: Executor
    chosen: LiveSettings

    @contextmanager
    def within_quota(self, disk: ChainStore) -> Iterator[None]:
        """While it is used, keep its size within the owner's present quota."""

        def take(settings: PeerSettings) -> None:
            disk.quota_bytes = settings.chain_bytes

        self.chosen.listen(take)
        try:
            yield
        finally:
            self.chosen.forget(take)

    def open(self) -> ChainStore:
        """Raises BadInput for damaged files."""
        return ChainStore(
            self.directory, self.genesis, self.parts, Codec(self.spec.codec.wire), self.executor,
            asyncio.get_running_loop().call_soon_threadsafe, fragments=self.spec.round.fragments,
            keep_rounds=self.spec.round.keep_rounds, quota_bytes=self.chosen.settings.chain_bytes,
            tokens_cap=self.spec.tokens_cap,
        )  # fmt: skip


def _newcomers_bps(settings: PeerSettings) -> int:
    """The bandwidth for newcomers, no more than the line may carry: a newcomer that is told to come again later
    loses less than one in a long queue."""
    return round(1e6 * min(settings.newcomers_mbps, settings.upload_mbps or settings.newcomers_mbps))


def _rules(spec: RunSpec, parts: Sequence[Part], notices: Announcer) -> Rules:
    return rules_of(
        spec, parts, RunKeys(notices.identity, notices.run), me=notices.identity.peer_id, name=notices.name,
        organiser=notices.organiser,
        wall_offset_s=time.time() - time.monotonic(),
    )  # fmt: skip


async def _run(fd: int, flow_fd: int | None, directory: Path, tell: Story) -> int:
    pipe = await LinkEnd.open(socket.socket(fileno=fd))
    code = 0
    try:
        with _ended_by_failed_callbacks():
            opening = await pipe.receive()
            if not isinstance(opening, OpenLink):
                raise LinkLost
            await _join(opening, directory, pipe, tell, _role_of(opening, directory, flow_fd))
    except* LinkLost:
        log.info("the trainer has ended")
    except* HomefiresError as errors:
        error = _first(errors)
        pipe.send(LinkFailed(type(error).__name__, str(error)))
        code = error.exit_code
    await pipe.close(FLUSH_S)
    return code


def _role_of(opening: OpenLink, directory: Path, flow_fd: int | None) -> MakeRole | None:
    """What this link does in a cluster. Raises BadInvite, DiskFull."""
    if flow_fd is None:
        return None
    end, found = FlowLinkEnd(socket.socket(fileno=flow_fd)), found_in(directory)
    if opening.stages > 1:
        return partial(leading, invite=issue_in(directory), end=end, found=found)
    return partial(working, invite=parse_cluster(opening.cluster), end=end, name=opening.name, found=found)


async def _join(
    opening: OpenLink, directory: Path, pipe: LinkEnd, tell: Story, make_role: MakeRole | None = None
) -> None:
    limits = opening.limits
    invite = parse_for(directory, read_text(opening.invite), time.time())
    identity = Identity.load_or_create(directory / "identity.key")
    listen = listened_on(opening.listen)
    is_public = not are_loopback(listen or invite.addrs)
    config = NetworkConfig(
        run=invite.spec_hash, identity_path=directory / "identity.key", socket_folder=directory / "run",
        listen=listen, bootstrap=invite.addrs, public=is_public, client_mode=not listen,
        wants_relays=is_public or not listen,
        remember=directory / "peers.json",
        upload_bps=1e6 * limits.upload_mbps, download_bps=1e6 * limits.download_mbps,
    )  # fmt: skip
    async with open_node(config) as node:
        notices = Announcer(
            node.board, identity, invite.spec_hash, opening.name, invite.organiser,
            addrs=lambda: _dialable(node.addresses_of), relays=lambda: node.relays,
        )  # fmt: skip
        node.refusals.hear = lambda code, who, why: pipe.report(
            AlertRaised(level="warning", code=code, text=f"refused {who}: {why}")
        )
        chosen = LiveSettings(PeerSettings(name=opening.name, **msgspec.structs.asdict(limits)))
        chosen.listen(lambda settings: node.allow(1e6 * settings.upload_mbps, 1e6 * settings.download_mbps))
        pipe.on_limits = lambda limits: chosen.change(msgspec.structs.asdict(limits))
        await tell(node, pipe, directory, invite, notices, chosen, make_role)


def _first(errors: BaseExceptionGroup[HomefiresError]) -> HomefiresError:
    error = errors.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error


def _dialable(mine: Iterable[str]) -> tuple[str, ...]:
    """My addresses that others may try; those of loopback only if there are no others. A circuit is none of them: it
    is too long for a HEAD, which nobody would then believe."""
    addresses = [address for address in mine if can_be_dialled(address) and len(address) <= MAX_ADDRESS_CHARS]
    beyond = [address for address in addresses if not are_loopback([address])]
    return tuple((beyond or addresses)[:MAX_ADDRESSES])


@contextmanager
def _ended_by_failed_callbacks() -> Iterator[None]:
    """A frame or a write that failed in a callback must not leave a link running without it: raise it here."""
    loop, story = asyncio.get_running_loop(), asyncio.current_task()
    assert story is not None
    failures: list[BaseException] = []

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        loop.default_exception_handler(context)
        if "handle" in context:
            failures.append(context["exception"])
            story.cancel()

    loop.set_exception_handler(handle)
    try:
        yield
    except asyncio.CancelledError:
        if not failures:
            raise
        raise failures[0] from None


def main(tell: Story = story) -> int:
    parser = argparse.ArgumentParser(prog="python -m peer.network.link.link")
    parser.add_argument("--fd", type=int, required=True, help="of the socket to the trainer, which says all else")
    parser.add_argument("--dir", type=Path, required=True, help="run directory, by which people know the process")
    text = "of the socket for frames to and from the other homes of a cluster"
    parser.add_argument("--flow-fd", type=int, default=None, help=text)
    die_with_parent()
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s link %(name)s %(message)s")
    # Ctrl-C on a terminal goes to every process of the group; the trainer decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    import uvloop

    arguments = parser.parse_args()
    return uvloop.run(_run(arguments.fd, arguments.flow_fd, arguments.dir, tell))


if __name__ == "__main__":
    sys.exit(main())
