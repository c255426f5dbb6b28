"""Checks of the network: the daemon, the addresses of the invite, clocks, reachability, the line's speed.

The node uses a key that is thrown away, so that a doctor beside a running peer does not disconnect it.
"""

from __future__ import annotations

import asyncio
import os
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from dht.addresses import are_loopback, listened_on, peer_id_in, tcp_target
from dht.board import read_peers
from dht.clock import MOST_S, read_clocks
from dht.errors import BadInput, ClockOff, HomefiresError, PortInUse, Unreachable
from dht.identity import Identity
from dht.node import NetworkConfig, Node, open_node
from dht.reach.bandwidth_probe import Bandwidth, measure_bandwidth, serve_probes
from dht.reach.dial_back import DialBack, port_of, request_dial_back
from dht.streams.base import LEAST_MBPS, Asking
from peer.network.link.network_stats import DIRECT, RELAYED, reach_of
from peer.network.sync.run_discovery import ASK_TIMEOUT_S, MAX_SPEC_BYTES
from peer.schema.byte_text import format_line_rate
from peer.tools.doctor.check import Check, count, failed, one_line, passed, unknown, warned
from peer.tools.doctor.credentials import KnownRun

DIAL_S = 5.0
ROUND_TRIP_S = 3.0
PROBE_S = 5.0
"""For one node, both directions."""
KNOCKERS = 3
"""Nodes that are asked to dial back."""
PROBED_MOST = 3
"""Bootstrap nodes and peers with which the line is measured."""
START_S = 15.0
FEW_MBPS = 5.0


class Dialling(Protocol):
    """What the checks ask of a node; `dht.node.Node` is one."""

    async def reach(self, address: str, timeout_s: float) -> None: ...
    async def round_trip_s(self, peer_id: str, timeout_s: float) -> float: ...


@dataclass
class NetworkFindings:
    """What was found on the way; other checks and the verdict go on from it."""

    node: Node
    answered: dict[str, float] = field(default_factory=dict)
    """Round trips in seconds, by peer id."""
    peers: int = 0
    """Peers on the board of the run."""
    speeds: list[Bandwidth] = field(default_factory=list)
    spec: bytes = b""


# ---- the daemon ----


def daemon_config(folder: Path, run: bytes, listen: Sequence[str]) -> NetworkConfig:
    """A node as `join` starts it, with a key that lies in `folder`."""
    Identity.load_or_create(folder / "identity.key")
    addresses = listened_on(listen)
    return NetworkConfig(
        run=run, identity_path=folder / "identity.key", socket_folder=folder / "run", listen=addresses,
        public=not are_loopback(addresses), client_mode=True, start_timeout_s=START_S,
    )  # fmt: skip


def daemon_failed(error: HomefiresError) -> Check:
    if isinstance(error, PortInUse):
        return failed("daemon", one_line(error), "choose another port with --listen, or 0 for any", PortInUse)
    if isinstance(error, BadInput):
        return failed("daemon", one_line(error), "name another address with --listen", BadInput)
    fix = "reinstall hivemind: pip install --force-reinstall hivemind; its p2pd is made for Linux on x86-64"
    return failed("daemon", one_line(error), fix, type(error))


# ---- the addresses of the invite ----


@dataclass(frozen=True, kw_only=True)
class Dialled:
    """One address: its round trip in seconds, or why nobody answered."""

    address: str
    round_trip_s: float | None
    why: str = ""


async def dial(node: Dialling, address: str) -> Dialled:
    """Connect and ask; never raises for an address that nobody answers at.

    A TCP address is knocked at first: the daemon would take any other address of the same node that it has heard of.
    """
    try:
        await _knock(address)
        await node.reach(address, DIAL_S)
        trip_s = await node.round_trip_s(peer_id_in(address), ROUND_TRIP_S)
    except Unreachable as error:
        return Dialled(address=address, round_trip_s=None, why=one_line(error))
    return Dialled(address=address, round_trip_s=trip_s)


async def _knock(address: str) -> None:
    """Raises Unreachable if nobody accepts a TCP connection there; of QUIC nothing is said."""
    target = tcp_target(address)
    if target is None:
        return
    try:
        async with asyncio.timeout(DIAL_S):
            _, writer = await asyncio.open_connection(*target)
    except TimeoutError as error:
        raise Unreachable(f"{address}: no answer within {DIAL_S:g} s") from error
    except OSError as error:
        why = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        raise Unreachable(f"{address}: {why}") from error
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


def check_bootstrap(dialled: Sequence[Dialled]) -> Check:
    """Which addresses, of the invite or of peers that were met, answered, and how fast."""
    if not dialled:
        return unknown("bootstrap", "this peer has met nobody whom it could dial", "name the invite, too")
    trips_s = {row.address: row.round_trip_s for row in dialled if row.round_trip_s is not None}
    silent = [row.address for row in dialled if row.address not in trips_s]
    if not trips_s:
        found = f"none of {len(dialled)} addresses answers: {dialled[0].why}"
        fix = (
            "see that this machine is online and its firewall lets TCP and UDP out; else ask the organiser whether the "
            "bootstrap node runs"
        )
        return failed("bootstrap", found, fix, Unreachable, dialled=len(dialled), answered=0)
    trips = ", ".join(f"{address} {1000 * trip_s:.3g} ms" for address, trip_s in trips_s.items())
    figures = {"dialled": len(dialled), "answered": len(trips_s), "round_trip_s": min(trips_s.values())}
    if silent:
        fix = "nothing must be done, one is enough to join; tell the organiser which ones are silent"
        return warned("bootstrap", f"{trips}; silent: {', '.join(silent)}", fix, **figures)
    return passed("bootstrap", trips, **figures)


# ---- reach ----


def check_reach(addresses: Sequence[str], knocked: Sequence[DialBack] = ()) -> Check:
    """Whether others can connect to this machine: what those found who tried, else what the daemon says by itself."""
    reach = reach_of(addresses)
    fix = "forward a port of the router to this machine and fix it with --listen /ip4/0.0.0.0/tcp/PORT"
    tried = [each for each in knocked if each.tells]
    if any(each.answered for each in tried):
        there = next(each for each in tried if each.answered)
        return passed("reach", f"a node of the run connected to {there.host} port {there.port}, where this machine is")
    if tried:
        where = f"{tried[0].host} port {tried[0].port}"
        found = f"{count(len(tried), 'node')} of the run could not connect to {where}: others come through a relay"
        return warned("reach", f"{found}, which is slower", fix)
    if reach == RELAYED:
        return warned("reach", "others reach this machine through a relay, which is slower", fix)
    if reach == DIRECT and are_loopback(addresses):
        return unknown("reach", "it listens on this machine alone, where nobody else can dial")
    if reach == DIRECT:
        return passed("reach", "this machine has an address of the open internet")
    if any(each.answered for each in knocked):
        return unknown("reach", "a node of the same network can connect to it; nobody outside it has tried", fix)
    return unknown("reach", "nobody has dialled back: behind a router others may reach it through a relay alone", fix)


async def have_knocked(met: NetworkFindings, addresses: Sequence[str]) -> list[DialBack]:
    """What those found who answered and tried to connect to this node."""
    port = port_of(addresses)
    if port is None:
        return []
    peers = list(met.answered)[:KNOCKERS]
    found = await asyncio.gather(*(request_dial_back(met.node, peer, port) for peer in peers))
    return [each for each in found if each is not None]


# ---- the line ----


async def measure_line(met: NetworkFindings) -> None:
    """With the nodes that answered first, then with peers of the board; what was found is added to `met`."""
    serve_probes(met.node)
    candidates = [*met.answered, *await _peers(met)]
    for peer in list(dict.fromkeys(candidates))[:PROBED_MOST]:
        trip_s = met.answered.get(peer, 0.0)
        met.speeds.append(await measure_bandwidth(met.node, peer, trip_s, PROBE_S))


async def _peers(met: NetworkFindings) -> list[str]:
    """Others on the board that could be met; how many there are at all is noted."""
    heads = await read_peers(met.node.board)
    met.peers = len(heads)
    found = []
    for peer, head in list(heads.items())[:PROBED_MOST]:
        with suppress(Unreachable, TimeoutError):
            async with asyncio.timeout(DIAL_S):
                if await met.node.meet(peer, head.ways(peer)):
                    met.answered.setdefault(peer, await met.node.round_trip_s(peer, ROUND_TRIP_S))
                    found.append(peer)
    return found


def best(speeds: Sequence[Bandwidth]) -> Bandwidth:
    """The fastest of each direction: a slow one says more about the other end."""
    up = [each.upload_mbps for each in speeds if each.upload_mbps is not None]
    down = [each.download_mbps for each in speeds if each.download_mbps is not None]
    return Bandwidth(upload_mbps=max(up, default=None), download_mbps=max(down, default=None))


def check_line(speeds: Sequence[Bandwidth]) -> Check:
    """Megabits per second that went between this machine and others, the best of some."""
    speed = best(speeds)
    if speed.upload_mbps is None and speed.download_mbps is None:
        return unknown("line", "no node of the run let its line be measured just now", "try again in a minute")
    known = {"upload_mbps": speed.upload_mbps, "download_mbps": speed.download_mbps}
    figures = {key: value for key, value in known.items() if value is not None}
    nodes = count(len(speeds), "node")
    found = f"{_mbps(speed.upload_mbps)} up, {_mbps(speed.download_mbps)} down, with {nodes} of the run"
    slowest = min(figures.values())
    fix = "stop what else uses the line, use a cable instead of radio, or join a run with a smaller model"
    if slowest < LEAST_MBPS:
        return failed("line", f"{found}; a run needs {LEAST_MBPS:g} Mbit/s", fix, Unreachable, **figures)
    if slowest < FEW_MBPS:
        return warned("line", found, fix, **figures)
    return passed("line", found, **figures)


def _mbps(value: float | None) -> str:
    return "unknown" if value is None else format_line_rate(value)


# ---- all of it ----


async def examine_network(
    run: KnownRun | None, listen: Sequence[str], tell: Callable[[Check], None], *, beside_peer: bool = False
) -> NetworkFindings | None:
    """Every check of this family, in order; what was learned on the way, None without a daemon.

    Beside a peer that runs its ports are taken: others are listened on, and those who dial back try its own.
    """
    met = None
    with tempfile.TemporaryDirectory(prefix="hf-") as folder:
        try:
            on_free_ports = [re.sub(r"/(tcp|udp)/\d+", r"/\1/0", address) for address in listen]
            run_hash = run.spec_hash if run else b"\0" * 32
            config = daemon_config(Path(folder), run_hash, on_free_ports if beside_peer else listen)
            started = time.perf_counter()
            async with open_node(config) as node:
                seconds = time.perf_counter() - started
                tell(passed("daemon", f"the network daemon (p2pd) starts in {seconds:.1f} s", start_s=seconds))
                met = NetworkFindings(node)
                if run is not None:
                    await _examine_others(met, run, tell)
                addresses = await node.addresses()
                knocked_at = listen if beside_peer and port_of(listen) else addresses
                tell(check_reach(addresses, await have_knocked(met, knocked_at)))
        except HomefiresError as error:
            broke_off = unknown("network", f"the examination broke off: {one_line(error)}", "run it again")
            tell(daemon_failed(error) if met is None else broke_off)
    return met


async def _examine_others(met: NetworkFindings, run: KnownRun, tell: Callable[[Check], None]) -> None:
    dialled = await asyncio.gather(*(dial(met.node, address) for address in run.addrs))
    tell(check_bootstrap(dialled))
    for row in dialled:
        if row.round_trip_s is not None:
            met.answered[peer_id_in(row.address)] = row.round_trip_s
    tell(check_clock(await measure_skew_s(met.node, list(met.answered))))
    for peer in list(met.answered):
        with suppress(Unreachable):
            met.spec = met.spec or await met.node.ask(peer, "spec", ASK_TIMEOUT_S, MAX_SPEC_BYTES) or b""
    await measure_line(met)
    tell(check_line(met.speeds))


SKEW_S = 1.0


async def measure_skew_s(node: Asking, peers: Sequence[str], clock: Callable[[], float] = time.time) -> float | None:
    """By how many seconds this machine's clock is ahead of the others', the median; None if none told.

    The one place where the doctor looks at clocks; `check_clock` says what it means.
    """
    readings = await read_clocks(node, peers, clock)
    return statistics.median(reading.ahead_s for reading in readings) if readings else None


def check_clock(skew_s: float | None) -> Check:
    """Records carry times, so clocks must agree within seconds."""
    if skew_s is None:
        return unknown("clock", "no node told its time")
    way = "ahead of" if skew_s > 0 else "behind"
    found = f"this clock is {abs(skew_s):.1f} s {way} the others'"
    fix = "set the clock: sudo timedatectl set-ntp true"
    if abs(skew_s) > MOST_S:
        return failed("clock", f"{found}; more than {MOST_S:.0f} s is refused", fix, ClockOff, skew_s=skew_s)
    if abs(skew_s) > SKEW_S:
        return warned("clock", found, fix, skew_s=skew_s)
    return passed("clock", f"within {max(0.1, abs(skew_s)):.1f} s of the others'", skew_s=skew_s)
