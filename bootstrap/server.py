"""The bootstrap node, which newcomers dial first. It serves the spec, names the founders, and introduces peers.

Once the run has begun its peers do not need the node. Newcomers still find them through it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, closing, contextmanager, nullcontext, suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path

from bootstrap.chain_follower import LINE_BPS, ChainFollower
from bootstrap.checkpoints import CheckpointBook
from bootstrap.config import BootstrapConfig
from bootstrap.founders import FounderPool, GenesisFile, look, restore
from bootstrap.invites import InviteIssuer
from bootstrap.members import AdmissionBook, load_table
from bootstrap.organiser import OrdersFile
from bootstrap.peer_monitor import PeerMonitor, is_relayed
from bootstrap.promotion import Promoter
from bootstrap.public_page import PublicPage
from bootstrap.restarts import RestartBook
from bootstrap.roster import RosterFile
from bootstrap.status_page import Health
from dht.access import AccessList, RejectCode
from dht.addresses import are_loopback
from dht.atomic_files import write_atomic
from dht.dht_board import Rank
from dht.errors import BadInput, DiskFull, PortInUse, Unreachable
from dht.identity import Identity, RunKeys, fingerprint_words
from dht.node import NetworkConfig, Node, open_node
from dht.process import bounding, lock_directory
from dht.reach.bandwidth_probe import serve_probes
from dht.reach.dial_back import serve_dial_back
from dht.records import GENESIS, GENESIS_TTL_S, Genesis, Malformed, pack
from dht.streams.outbound import StreamLimits
from peer.consensus.organiser import checkpoints, light_chain, restart_desk, rosters
from peer.consensus.protocol.block import Block
from peer.network.sync.chain_status import CHAIN_STATUS
from peer.node.telemetry.event_log import EventPrinter
from peer.node.telemetry.http import serving
from peer.schema import spec as specs
from peer.schema.events import AlertRaised, Event, PeerStarted, PeerStopped

LOOK_S = 1.0
"""Pause between two looks at the board while founders are missing, and between two at the orders."""
GIVES_BPS = 10**9
"""Of the model from which a run starts, without a limit of the organiser's; what its line carries is less."""
REPUBLISH_S = GENESIS_TTL_S / 10

Report = Callable[[Event], None]

log = logging.getLogger(__name__)


async def serve(config: BootstrapConfig, report: EventPrinter, stop: asyncio.Event) -> None:
    """Run until `stop` is set. Raises the errors of `open_node`, DirectoryBusy, RunMismatch."""
    with lock_directory(config.directory):
        identity = Identity.load_or_create(config.directory / "identity.key")
        report.run, report.peer = config.run.hex()[:16], identity.peer_id
        health = Health(config.spec.run, config.directory, time.time(), report)
        report.listener = health.note
        report(
            PeerStarted(
                name="bootstrap",
                version=version("homefires"),
                directory=str(config.directory),
                rounds=config.spec.run.rounds,
            )
        )
        file = GenesisFile(config.directory / "genesis", identity, config.run)
        orders = OrdersFile(config.directory, config.run, identity.peer_id, report)
        follower = ChainFollower(
            config.directory, RunKeys(identity, config.run), config.spec.run.rounds, report,
            line_bps=config.upload_bps or LINE_BPS,
        )  # fmt: skip
        restarts = RestartBook(config.directory, identity, config.run, report, follower.holders, follower.restarts)
        roster = RosterFile(config.directory, identity, config.run, report)
        signed = CheckpointBook(config.directory, identity, config.run, config.spec.round.snapshot_rounds)
        promoter = Promoter(config.directory, config.promote_s, report)
        book = AdmissionBook(config.directory, identity, config.run, config.member_s) if config.terms.admits else None
        page = None if config.page is None else PublicPage(config.page, config.directory, config.spec, identity.peer_id)
        words = fingerprint_words(identity.peer_id)
        text = f"who joins is shown these words for you; tell them to people by another way: {words}"
        report(AlertRaised(level="info", code="FINGERPRINT", text=text))
        pages = serving(config.health_port, health.pages()) if config.health_port else nullcontext()
        with _forgiving_when(stop), pages, bounding(config.directory / "bootstrap.log"):
            async with _open(config, report) as node, _giving_start(config, node):
                _answer(config, node, file, orders, book, report)
                node.rank_by(partial(_rank, node.peer_id, file, book, roster, promoter, follower))
                _answer_stuck(node, orders, restarts)
                node.answer(rosters.QUESTION, roster.answer)
                node.answer(checkpoints.QUESTION, signed.answer)
                node.answer(light_chain.QUESTION, follower.answer_way)
                node.answer(CHAIN_STATUS, follower.answer_status)
                issuer = InviteIssuer(config, identity, node, report)
                await issuer.issue()
                around = PeerMonitor(node, config.directory, book, orders, health)
                await around.meet_again()
                await _found(config, node, file, report, stop, around, issuer, page)
                if file.genesis is not None:
                    health.begin(follower.load(file.genesis).round)
                await _stay(
                    node, file, stop, orders, around, issuer, restarts, roster, promoter, signed, follower, page
                )  # fmt: skip
        report(PeerStopped(why="asked to stop"))


@asynccontextmanager
async def _open(config: BootstrapConfig, report: Report) -> AsyncIterator[Node]:
    """The node, at the ports of its earlier life, which its invites name. Raises the errors of `open_node`."""
    listen = restore_ports(config.directory, config.listen)
    async with AsyncExitStack() as stack:
        try:
            node = await stack.enter_async_context(open_node(_network(config, listen)))
        except PortInUse:
            if listen == config.listen:
                raise
            text = (
                f"another program listens at {', '.join(set(listen) - set(config.listen))}, which the invites name: "
                "this node takes another port this time, and nobody comes in by those invites; end that program and "
                f"start again, or print new invites with homefires invite {config.directory}"
            )
            log.warning("%s", text)  # of a service nobody sees the events
            report(AlertRaised(level="error", code="ADDRESS", text=text))
            node = await stack.enter_async_context(open_node(_network(config, config.listen)))
        save_ports(config.directory, config.listen, await node.addresses())
        yield node


@asynccontextmanager
async def _giving_start(config: BootstrapConfig, node: Node) -> AsyncIterator[None]:
    """Newcomers download the pretrained model from here if they get it nowhere else."""
    if config.spec.start is None:
        yield
        return
    from peer.network.sync.blob_server import BlobServer
    from peer.node.store import start_blob

    digest, gives_bps = config.spec.start.digest, round(config.upload_bps) or GIVES_BPS
    manifest = start_blob.read_manifest(digest)
    with ThreadPoolExecutor(1) as executor, closing(BlobServer(config.directory, executor, gives_bps)) as donor:
        donor.keep(start_blob.folder_of(digest) / start_blob.VECTORS, manifest)
        donor.listen(node)
        yield


def _rank(
    me: str, file: GenesisFile, book: AdmissionBook | None, roster: RosterFile, promoter: Promoter,
    follower: ChainFollower, peer: str,
) -> Rank:  # fmt: skip
    """The order in which peers get a place on this node's board."""
    founders = () if file.genesis is None else file.genesis.founders
    if peer == me or follower.has_elected(peer):
        return Rank.VOTER
    is_admitted = book is not None and book.has_admitted(peer, time.time())
    if is_admitted or peer in roster.newest.known or peer in founders:
        return Rank.ADMITTED
    return Rank.EARNED if promoter.watches(peer) else Rank.STRANGER


def _answer(
    config: BootstrapConfig,
    node: Node,
    file: GenesisFile,
    orders: OrdersFile,
    book: AdmissionBook | None,
    report: Report,
) -> None:
    node.refusals.hear = lambda code, who, why: report(
        AlertRaised(level="warning", code=code, text=f"refused {who}: {why}")
    )
    node.serve("spec", specs.dump(config.spec).encode)
    node.serve("genesis", lambda: _packed_genesis(file))
    serve_probes(node)
    serve_dial_back(node)
    node.answer("quarantine", orders.answer)
    guests = AccessList(config.run, node.peer_id, asks_admission=True)
    node.relay_for(lambda peer: is_relayed(peer, book, orders, guests, time.time()))
    if book is not None:
        _admit_who_asks(node, book, orders, report)
        _take_in_guests(node, guests)


def _admit_who_asks(node: Node, book: AdmissionBook, orders: OrdersFile, report: Report) -> None:
    async def answer(peer: str, request: bytes) -> bytes | None:
        try:
            answered = book.answer(peer, request.decode(errors="replace"), orders.look(), time.time())
        except DiskFull as error:
            report(AlertRaised(level="error", code="DISK", text=f"{peer} waits for its admission: {error}"))
            return None
        except BadInput as error:
            report(AlertRaised(level="error", code=RejectCode.TOKEN, text=f"{peer} waits for its admission: {error}"))
            return None
        if answered.admission is None:
            node.refusals(RejectCode.TOKEN, peer, f"it is not admitted: {answered.why}")
        elif answered.is_new:
            text = f"{peer} is admitted, one of {len(book.members(time.time()))} members"
            report(AlertRaised(level="info", code="ADMITTED", text=text))
        return answered.to_bytes()

    node.answer("admission-request", answer)


def _answer_stuck(node: Node, orders: OrdersFile, restarts: RestartBook) -> None:
    async def answer(peer: str, request: bytes) -> bytes | None:
        kept_out = peer in orders.look().quarantined
        return None if kept_out else restarts.answer(peer, request, node.refusals)

    node.answer(restart_desk.QUESTION, answer)


def _take_in_guests(node: Node, guests: AccessList) -> None:
    """Relay also for peers that show an admission which is in no book, such as the organiser's own watcher."""

    async def answer(peer: str, request: bytes) -> bytes | None:
        try:
            guests.learn(peer, request)
        except Malformed as error:
            node.refusals(RejectCode.STRANGER, peer, f"what it shows is no admission: {error}")
            return None
        return b""

    node.answer("visitor", answer)


async def _found(
    config: BootstrapConfig, node: Node, file: GenesisFile, report: Report, stop: asyncio.Event, around: PeerMonitor,
    issuer: InviteIssuer, page: PublicPage | None,
) -> None:  # fmt: skip
    """Wait until enough peers agree on the initial state, then decide the founders."""
    last: FounderPool | None = None
    arrived: dict[str, None] = {}
    while file.genesis is None and not stop.is_set():
        heads = await around.heads()
        let_in = around.let_in(heads)
        arrived |= dict.fromkeys(sorted(let_in.keys() - arrived.keys()))
        seen = look(let_in, config.founders)
        around.health.found(len(seen.agreed))
        if page is not None and page.is_due:
            page.write(let_in, None)
        if await restore(node, file, heads):
            text = "the run has begun: a peer gave its genesis back, which was not in this folder any more"
            report(AlertRaised(level="warning", code="GENESIS", text=text))
            return
        if seen != last:
            _say_who_waits(seen, config.spec.run.founders, report)
            last = seen
        founders = seen.founders(config.spec.run.founders, tuple(arrived))
        if founders is None:
            await around.look()
            await issuer.look()
            await _pause(stop, LOOK_S)
            continue
        file.decide(Genesis(run=config.run, founders=founders, state=seen.state), time.time())
        text = f"the run begins with {len(founders)} founders: {', '.join(founders)}"
        report(AlertRaised(level="info", code="GENESIS", text=text))


def _say_who_waits(seen: FounderPool, count: int, report: Report) -> None:
    if seen.odd:
        text = (
            f"these peers start from other initial parameters than the {len(seen.agreed)} others: {', '.join(seen.odd)}"
        )
        report(AlertRaised(level="error", code="STATE_DIFFERS", text=text))
    if seen.training:
        text = (
            f"these peers say that they train in this run already, but its genesis is not in this folder: "
            f"{', '.join(seen.training)}; restore it from a copy, or put who says so wrongly in quarantine"
        )
        report(AlertRaised(level="error", code="GENESIS_LOST", text=text))
        return
    text = f"{len(seen.agreed)} of {count} founders are here"
    report(AlertRaised(level="info", code="FOUNDERS", text=text))


async def _stay(
    node: Node, file: GenesisFile, stop: asyncio.Event, orders: OrdersFile, around: PeerMonitor, issuer: InviteIssuer,
    restarts: RestartBook, roster: RosterFile, promoter: Promoter, signed: CheckpointBook,
    follower: ChainFollower, page: PublicPage | None,
) -> None:  # fmt: skip
    """The run has begun: publish its founders, obey the organiser's orders, and watch which peers are there."""
    due_at = 0.0
    while not stop.is_set():
        assert file.genesis is not None
        founders = file.genesis.founders
        newest = roster.look(founders, around.members(), orders.look().quarantined)
        restarts.know(founders, newest)
        restarts.look()
        blocks = await _followed(follower, node, file.genesis, around)
        await promoter.look(node, blocks, newest.known)
        if page is not None:
            page.note(blocks)
            if page.is_due:
                page.write(await around.heads_let_in(), follower.head)
        signed.look(follower.settled)
        if time.monotonic() >= due_at:
            record = file.record(time.time() + GENESIS_TTL_S)
            assert record is not None
            stored = await node.board.publish(GENESIS, record, GENESIS_TTL_S)
            due_at = time.monotonic() + (REPUBLISH_S if stored else LOOK_S)
        await around.look()
        await issuer.look()
        await _pause(stop, LOOK_S)


async def _followed(
    follower: ChainFollower, node: Node, genesis: Genesis, around: PeerMonitor
) -> tuple[Block, ...]:  # fmt: skip
    try:
        return await follower.look(node, genesis, around.heads_let_in)
    except DiskFull as error:
        log.warning("how the chain goes on is not on disk: %s", error)
        return ()


def _packed_genesis(file: GenesisFile) -> bytes | None:
    record = file.record(time.time() + GENESIS_TTL_S)
    return None if record is None else pack(record)


def _network(config: BootstrapConfig, listen: tuple[str, ...]) -> NetworkConfig:
    return NetworkConfig(
        run=config.run,
        identity_path=config.directory / "identity.key",
        socket_folder=config.directory / "run",
        listen=listen,
        announce=config.announce,
        public=not are_loopback(listen),
        upload_bps=config.upload_bps,
        download_bps=config.download_bps,
        limits=StreamLimits(incoming_streams=0),  # it takes no part in rounds: frames would only fill its memory
    )


async def _pause(stop: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.wait()


@contextmanager
def _forgiving_when(stop: asyncio.Event) -> Iterator[None]:
    """Ignores Unreachable once `stop` is set: Ctrl-C ends the daemon in the same moment as us."""
    try:
        yield
    except Unreachable:
        if not stop.is_set():
            raise


PORTS_FILE = "ports.json"
"""In the organiser's folder: for each address to listen on that leaves its port open, the port of the first time."""

_LOOPBACK_OF = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Where a node that listens on all interfaces is sure to listen, too."""


def restore_ports(directory: Path, listen: Sequence[str]) -> tuple[str, ...]:
    """The addresses to listen on, with the ports kept in this folder instead of 0. Raises BadInput."""
    kept = _load(directory)
    return tuple(_with_port(address, kept[address]) if address in kept else address for address in listen)


def save_ports(directory: Path, listen: Sequence[str], addresses: Sequence[str]) -> None:
    """Keep the ports that the system chose, as the node's `addresses` show them; those kept before stay. Raises
    DiskFull, BadInput."""
    kept = _load(directory)
    picked = {address: port for address in listen if (port := _picked(address, addresses))}
    if not picked.keys() <= kept.keys():
        write_atomic(directory / PORTS_FILE, json.dumps(picked | kept, indent=1).encode())


def _picked(listen: str, addresses: Sequence[str]) -> int | None:
    """The port that was chosen for 0 in this address to listen on; None if it names one, or nothing shows it."""
    _, family, host, transport, port, *_ = listen.split("/")
    start = f"/{family}/{_LOOPBACK_OF.get(host, host)}/{transport}/"
    found = [address for address in addresses if address.startswith(start)]
    return int(found[0].split("/")[4]) if port == "0" and found else None


def _with_port(address: str, port: int) -> str:
    _, family, host, transport, _, *rest = address.split("/")
    return "/".join(("", family, host, transport, str(port), *rest))


def _load(directory: Path) -> dict[str, int]:
    return load_table(
        directory / PORTS_FILE, lambda port: isinstance(port, int) and 0 < port < 1 << 16,
        "write the port that your invites name with --listen, and remove the file",
    )  # fmt: skip
