"""The node that newcomers dial first: it knows the spec, names the founders, and introduces peers to each other.

Once the run has begun the peers need it no more; whoever joins later still finds them through it.
"""

from __future__ import annotations

import asyncio
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from bootstrap.admitting import Book
from bootstrap.founding import GenesisFile, Waiting, look
from bootstrap.health import Health
from bootstrap.inviting import INVITE_FILE, Terms, issue_all
from bootstrap.ordering import OrdersFile
from bootstrap.recovering import restore
from bootstrap.report import Reporter
from dht import invite
from dht.addresses import ALL_INTERFACES, are_loopback, can_be_dialled
from dht.admission import LASTS_S
from dht.errors import BadInput, BadSpec, DiskFull, Unreachable
from dht.files import write_whole
from dht.fingerprint import words
from dht.identity import Identity
from dht.keys import GENESIS, GENESIS_TTL_S, HEAD
from dht.knocking import serve_knocks
from dht.links import LinkLimits
from dht.lock import hold_directory
from dht.logfile import bounding
from dht.loopback import serving
from dht.node import NetworkConfig, Node, open_node
from dht.probing import serve_probes
from dht.records import Genesis, Head, Malformed, pack, unpack_body
from dht.refusals import Code

LOOK_S = 1.0
"""Pause between two looks at the board while founders are missing."""
LOOK_AROUND_S = 10.0
"""The same once the run has begun."""
REPUBLISH_S = GENESIS_TTL_S / 10


@dataclass(frozen=True, kw_only=True)
class BootstrapConfig:
    """What one bootstrap node serves, and where."""

    directory: Path
    spec: bytes
    """The spec as TOML, with every value; checked by whoever starts us."""
    spec_hash: bytes
    """32 bytes; joiners compare it with what the spec hashes to."""
    name: str
    founders: int
    listen: tuple[str, ...] = ALL_INTERFACES
    announce: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    """Where else newcomers may dial: other nodes or peers of the run. For the invites alone."""
    terms: Terms = field(default_factory=Terms)
    health_port: int = 0
    """Of loopback; 0 serves no health page."""
    member_s: float = LASTS_S
    """How long an admission lasts."""


def read_config(
    path: Path, spec_hash: bytes, directory: Path, listen: tuple[str, ...], announce: tuple[str, ...],
    *, also: tuple[str, ...] = (), single: int = 0, lasts_s: float = 0.0, health_port: int = 0,
    member_s: float = LASTS_S,
) -> BootstrapConfig:  # fmt: skip
    """The config for a spec file. Raises BadSpec, and BadInput for terms of invites that do not fit it."""
    try:
        spec = path.read_bytes()
        table = tomllib.loads(spec.decode())
        name, founders = table["run"]["name"], table["run"]["founders"]
        policy = table.get("admission", {}).get("policy", "open")
    except OSError as error:
        raise BadSpec(f"{path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise BadSpec(f"{path}: not a complete run spec in TOML ({error})") from error
    if not isinstance(name, str) or not isinstance(founders, int) or founders < 1:
        raise BadSpec(f"{path}: run.name must be text and run.founders a number from 1")
    return BootstrapConfig(
        directory=directory,
        spec=spec,
        spec_hash=spec_hash,
        name=name,
        founders=founders,
        listen=listen or ALL_INTERFACES,
        announce=announce,
        also=also,
        terms=Terms(admits=policy == "invited", single=single, lasts_s=lasts_s),
        health_port=health_port,
        member_s=member_s,
    )


async def serve(config: BootstrapConfig, report: Reporter, stop: asyncio.Event) -> None:
    """Run until `stop` is set. Raises the errors of `open_node`, DirectoryBusy, RunMismatch."""
    with hold_directory(config.directory):
        identity = Identity.load_or_create(config.directory / "identity.key")
        report.run, report.peer = config.spec_hash.hex()[:16], identity.peer_id
        file = GenesisFile(config.directory / "genesis", identity, config.spec_hash)
        orders = OrdersFile(config.directory, config.spec_hash, identity.peer_id, report)
        book = Book(config.directory, identity, config.spec_hash, config.member_s) if config.terms.admits else None
        health = Health(config.name, config.directory, config.founders, time.time())
        report.listener = health.note
        report("PeerStarted", name="bootstrap", version=_version(), directory=str(config.directory))
        text = f"who joins is shown these words for you; tell them to people by another way: {words(identity.peer_id)}"
        report("AlertRaised", level="info", code="FINGERPRINT", text=text)
        with _forgiving_when(stop), _pages(config, health), bounding(config.directory / "bootstrap.log"):
            async with open_node(_network(config)) as node:
                node.refusals.hear = lambda code, who, why: report(
                    "AlertRaised", level="warning", code=code, text=f"refused {who}: {why}"
                )
                node.serve("spec", lambda: config.spec)
                node.serve("genesis", lambda: _packed_genesis(file))
                serve_probes(node)
                serve_knocks(node)
                node.answer("orders", orders.answer)
                node.relay_for(lambda peer: may_meet(peer, book, orders, time.time()))
                if book is not None:
                    _admit_who_asks(node, book, orders, report)
                await _invite(config, identity, node, report)
                await _found(config, node, file, report, stop, orders, book, health)
                await _stay(config, node, file, stop, orders, health)
        report("PeerStopped", why="asked to stop", exit_code=0)


@contextmanager
def _pages(config: BootstrapConfig, health: Health) -> Iterator[None]:
    """Serve the health page if the organiser wants one. Raises PortInUse."""
    with serving(config.health_port, health.pages()) if config.health_port else nullcontext():
        yield


def may_meet(peer: str, book: Book | None, orders: OrdersFile, now_s: float) -> bool:
    """Whether this node passes on what the peer and others say who cannot dial each other."""
    return (book is None or peer in book.members(now_s)) and peer not in orders.look().quarantined


def _admit_who_asks(node: Node, book: Book, orders: OrdersFile, report: Reporter) -> None:
    async def answer(peer: str, request: bytes) -> bytes | None:
        try:
            answered = book.answer(peer, request.decode(errors="replace"), orders.look(), time.time())
        except DiskFull as error:
            report("AlertRaised", level="error", code="DISK", text=f"{peer} waits for its admission: {error}")
            return None
        except BadInput as error:
            report("AlertRaised", level="error", code=Code.TOKEN, text=f"{peer} waits for its admission: {error}")
            return None
        if answered.admission is None:
            node.refusals(Code.TOKEN, peer, f"it is not admitted: {answered.why}")
        elif answered.is_new:
            text = f"{peer} is admitted, one of {len(book.members(time.time()))} members"
            report("AlertRaised", level="info", code="ADMITTED", text=text)
        return answered.to_bytes()

    node.answer("admit", answer)


async def _found(
    config: BootstrapConfig, node: Node, file: GenesisFile, report: Reporter, stop: asyncio.Event, orders: OrdersFile,
    book: Book | None, health: Health,
) -> None:  # fmt: skip
    """Wait until enough peers agree on the initial state, then decide who founds the run."""
    last: Waiting | None = None
    while file.genesis is None and not stop.is_set():
        heads = await _read_heads(node)
        kept_out = orders.look().quarantined
        members = None if book is None else book.members(time.time())
        seen = look(
            {
                peer: head
                for peer, head in heads.items()
                if peer not in kept_out and (members is None or peer in members)
            }
        )
        health.see(heads)
        health.found(len(seen.agreed))
        if await restore(node, file, heads):
            text = "the run has begun: a peer gave its genesis back, which was not in this folder any more"
            report("AlertRaised", level="warning", code="GENESIS", text=text)
            return
        if seen != last:
            _say_who_waits(seen, config.founders, report)
            last = seen
        founders = seen.founders(config.founders)
        if founders is None:
            await _pause(stop, LOOK_S)
            continue
        file.decide(Genesis(run=config.spec_hash, founders=founders, state=seen.state), time.time())
        text = f"the run begins with {len(founders)} founders: {', '.join(founders)}"
        report("AlertRaised", level="info", code="GENESIS", text=text)


def _say_who_waits(seen: Waiting, count: int, report: Reporter) -> None:
    if seen.odd:
        text = (
            f"these peers start from other initial parameters than the {len(seen.agreed)} others: {', '.join(seen.odd)}"
        )
        report("AlertRaised", level="error", code="STATE_DIFFERS", text=text)
    if seen.training:
        text = (
            f"these peers say that they train in this run already, but its genesis is not in this folder: "
            f"{', '.join(seen.training)}; restore it from a copy, or put who says so wrongly in quarantine"
        )
        report("AlertRaised", level="error", code="GENESIS_LOST", text=text)
        return
    text = f"{len(seen.agreed)} of {count} founders are here"
    report("AlertRaised", level="info", code="FOUNDERS", text=text)


async def _stay(
    config: BootstrapConfig, node: Node, file: GenesisFile, stop: asyncio.Event, orders: OrdersFile, health: Health
) -> None:
    """The run has begun: go on saying who founded it, obey the organiser's orders, and look who is there if somebody
    may ask."""
    if file.genesis is not None:
        health.begin()
    due_at = look_at = 0.0
    while not stop.is_set():
        orders.look()
        if time.monotonic() >= due_at:
            record = file.record(time.time() + GENESIS_TTL_S)
            assert record is not None
            stored = await node.board.publish(GENESIS, record, GENESIS_TTL_S)
            due_at = time.monotonic() + (REPUBLISH_S if stored else LOOK_S)
        if config.health_port and time.monotonic() >= look_at:
            health.see(await _read_heads(node))
            look_at = time.monotonic() + LOOK_AROUND_S
        await _pause(stop, LOOK_S)


async def _read_heads(node: Node) -> dict[str, Head]:
    heads: dict[str, Head] = {}
    for peer, record in (await node.board.read(HEAD)).items():
        with suppress(Malformed):
            body = unpack_body(record)
            if isinstance(body, Head):
                heads[peer] = body
    return heads


def _packed_genesis(file: GenesisFile) -> bytes | None:
    record = file.record(time.time() + GENESIS_TTL_S)
    return None if record is None else pack(record)


async def _invite(config: BootstrapConfig, identity: Identity, node: Node, report: Reporter) -> None:
    """Print invites, and keep one: `homefires invite` makes more like it."""
    addresses = [address for address in await node.addresses() if can_be_dialled(address)]
    beyond = [address for address in addresses if not are_loopback([address])]
    texts = issue_all(
        identity,
        run=config.name,
        spec_hash=config.spec_hash,
        addrs=(*(beyond or addresses), *config.also)[: invite.MAX_ADDRESSES],
        terms=config.terms,
        now_s=time.time(),
    )
    write_whole(config.directory / INVITE_FILE, texts[-1].encode(), private=True)  # it may hold a token
    for text in texts:
        report("InviteIssued", invite=text)


def _network(config: BootstrapConfig) -> NetworkConfig:
    return NetworkConfig(
        run=config.spec_hash,
        identity_path=config.directory / "identity.key",
        socket_folder=config.directory / "run",
        listen=config.listen,
        announce=config.announce,
        public=not are_loopback(config.listen),
        limits=LinkLimits(incoming_streams=0),  # it takes no part in rounds: frames would only fill its memory
    )


async def _pause(stop: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.wait()


@contextmanager
def _forgiving_when(stop: asyncio.Event) -> Iterator[None]:
    """Lets Unreachable pass once `stop` is set: Ctrl-C ends the daemon in the same moment as us."""
    try:
        yield
    except Unreachable:
        if not stop.is_set():
            raise


def _version() -> str:
    try:
        return version("homefires")
    except PackageNotFoundError:
        return "0"
