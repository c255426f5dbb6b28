"""Runs hivemind's libp2p daemon (p2pd) as a child process that cannot outlive us, and sends requests to it.

The daemon authenticates peers and carries streams. Frames, records and rules are ours. We write requests on hivemind's
control sockets ourselves, because hivemind's calls leak a socket when the daemon refuses or a call is cancelled.
`import hivemind` takes seconds and loads torch, so it happens inside functions.
"""

from __future__ import annotations

import asyncio
import errno
import importlib.resources
import logging
import os
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from multiaddr import Multiaddr

from dht.addresses import CIRCUIT, network_of
from dht.errors import BadAddress, BadInput, PortInUse, Unreachable
from dht.identity import id_bytes_of
from dht.process import loading

StreamHandler = Callable[[str, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
"""Called with (authenticated peer id, reader, writer) for each incoming stream."""

STOP_TIMEOUT_S = 2.0
MAX_SOCKET_PATH_BYTES = 107

# The longest name that hivemind puts after the prefix, in bytes: p2pclient-<11 characters>.sock
_SOCKET_NAME_BYTES = 26

# Runs before p2pd in its process: death with the parent, which p2pd itself would outlive by a while.
_GUARD = """
import os, sys
if sys.platform == "linux":
    import ctypes
    ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""

log = logging.getLogger(__name__)


NETWORKS_MOST = 4096
"""Peers of whom it is remembered from where they came."""


@dataclass(frozen=True, kw_only=True)
class DaemonConfig:
    """How the daemon listens. Addresses have passed `dht.addresses`."""

    identity_path: Path
    socket_folder: Path
    listen: tuple[str, ...]
    """None: nobody can connect to it; the connections that this peer opens carry streams both ways."""
    announce: tuple[str, ...]
    relays: tuple[str, ...]
    public: bool
    """Whether to reach beyond this machine: relays, hole punching, UPnP."""
    client_mode: bool
    start_timeout_s: float


class Daemon:
    """A running p2pd. Made by `open_daemon`."""

    def __init__(self, p2p: Any) -> None:
        self.p2p = p2p
        """The hivemind.P2P object, for hivemind's own DHT node."""
        self._serving: set[asyncio.Task[Any]] = set()
        self._networks: dict[str, str] = {}
        """By peer, the one noted longest ago first."""

    @property
    def peer_id(self) -> str:
        return str(self.p2p.peer_id.to_base58())

    async def addresses(self) -> tuple[str, ...]:
        """Where this peer can be dialled, each with /p2p/…, as the daemon sees it now; empty if it does not listen.
        Raises Unreachable if the daemon is gone."""
        _, addresses = await self._query(self.p2p._client.identify)
        return tuple(f"{_text_of(address)}/p2p/{self.peer_id}" for address in addresses)

    async def connections(self) -> dict[str, str]:
        """The address of the other end of each connection, by peer id, a direct one if there is one. Raises
        Unreachable if the daemon is gone."""
        peers = await self._query(self.p2p._client.list_peers)
        found = [(peer.peer_id.to_base58(), _text_of(peer.addrs[0])) for peer in peers if peer.addrs]
        found.sort(key=lambda row: CIRCUIT in row[1], reverse=True)
        for peer, address in found:
            self._note_network(peer, address)
        return dict(found)

    def network_of(self, peer_id: str) -> str:
        """The network that a peer was last seen to come from; empty if it was not seen."""
        return self._networks.get(peer_id, "")

    def _note_network(self, peer_id: str, address: str) -> None:
        self._networks.pop(peer_id, None)
        self._networks[peer_id] = network_of(address)
        if len(self._networks) > NETWORKS_MOST:
            del self._networks[next(iter(self._networks))]

    async def _query(self, question: Callable[[], Awaitable[Any]]) -> Any:
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                return await question()
        except (TimeoutError, OSError, asyncio.IncompleteReadError) as error:
            raise Unreachable("the network daemon (p2pd) does not answer") from error

    async def connect(self, address: str, timeout_s: float) -> None:
        """Connect to a dial address or a circuit, unless there is a connection already. Raises Unreachable."""
        from hivemind.proto import p2pd_pb2

        host, _, peer_id = address.rpartition("/p2p/")
        target = p2pd_pb2.ConnectRequest(
            peer=_id_bytes(peer_id), addrs=[Multiaddr(host).to_bytes()], timeout=_whole_seconds(timeout_s)
        )
        request = p2pd_pb2.Request(type=p2pd_pb2.Request.CONNECT, connect=target)
        _, writer = await self._ask(request, timeout_s, what=address)
        writer.close()

    async def open_stream(
        self, peer_id: str, protocol: str, timeout_s: float
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A stream to the peer, dialled by its id; raises Unreachable. The caller closes the writer."""
        from hivemind.proto import p2pd_pb2

        target = p2pd_pb2.StreamOpenRequest(
            peer=_id_bytes(peer_id), proto=[protocol], timeout=_whole_seconds(timeout_s)
        )
        request = p2pd_pb2.Request(type=p2pd_pb2.Request.STREAM_OPEN, streamOpen=target)
        return await self._ask(request, timeout_s, what=f"peer {peer_id}")

    async def handle(self, protocol: str, handler: StreamHandler) -> None:
        """Run `handler` for each incoming stream of `protocol`; the stream is closed when it returns."""

        async def serve(info: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._serving.add(task)
            peer_id = info.peer_id.to_base58()
            self._note_network(peer_id, _text_of(info.addr))
            try:
                await handler(peer_id, reader, writer)
            except asyncio.CancelledError:
                # The task ends here in any case, and asyncio of Python 3.11 stumbles over a cancelled one.
                return
            finally:
                self._serving.discard(task)
                writer.close()

        await self.p2p.add_binary_stream_handler(protocol, serve)

    async def ended(self) -> None:
        await self.p2p._child.wait()

    async def close(self) -> None:
        """Close every incoming stream and end the daemon, by force after STOP_TIMEOUT_S."""
        serving = list(self._serving)
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
        await _stop(self.p2p)

    async def _ask(
        self, request: Any, timeout_s: float, what: str
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        from hivemind.p2p.p2p_daemon_bindings.utils import ControlFailure

        try:
            async with asyncio.timeout(timeout_s):
                reader, writer = await self.p2p._client.control.daemon_connector.open_connection()
                try:
                    await _exchange(reader, writer, request)
                except BaseException:
                    writer.close()
                    raise
                return reader, writer
        except ControlFailure as error:
            raise Unreachable(f"cannot reach {what}: {_reason(error)}") from error
        except TimeoutError as error:
            raise Unreachable(f"cannot reach {what}: no answer within {timeout_s:g} s") from error
        except (OSError, asyncio.IncompleteReadError) as error:
            raise Unreachable(f"cannot reach {what}: the network daemon is gone") from error


async def _exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: Any) -> None:
    from hivemind.p2p.p2p_daemon_bindings.utils import raise_if_failed, read_pbmsg_safe, write_pbmsg
    from hivemind.proto import p2pd_pb2

    await write_pbmsg(writer, request)
    response = p2pd_pb2.Response()
    await read_pbmsg_safe(reader, response)
    raise_if_failed(response)


@asynccontextmanager
async def open_daemon(config: DaemonConfig) -> AsyncIterator[Daemon]:
    """Start p2pd and stop it at exit.

    Raises PortInUse or BadAddress for what it cannot listen on, BadInput if no folder is short enough for its sockets,
    Unreachable if it does not start.
    """
    for address in config.listen:
        require_free(address)
    _prepare_hivemind()
    with _socket_folder(config.socket_folder) as folder:
        daemon = Daemon(await _start(config, folder))
        try:
            yield daemon
        finally:
            await daemon.close()


async def _start(config: DaemonConfig, folder: Path) -> Any:
    from hivemind.p2p import P2P
    from hivemind.p2p.p2p_daemon_bindings.utils import P2PDaemonError

    started: list[P2P] = []

    class GuardedP2P(P2P):  # type: ignore[misc]
        _UNIX_SOCKET_PREFIX = f"/unix{folder}/"

        def __init__(self) -> None:
            super().__init__()
            started.append(self)

        @staticmethod
        def _make_process_args(*args: Any, **kwargs: Any) -> list[str]:
            # Else it would wait three minutes for more relays than there are, and ask those who cut circuits.
            words = P2P._make_process_args(*args, **kwargs, relayDiscovery=False)
            return [sys.executable, "-I", "-S", "-c", _GUARD, *words]

    try:
        return await GuardedP2P.create(
            identity_path=str(config.identity_path),
            check_if_identity_free=False,
            host_maddrs=config.listen,
            no_listen=not config.listen,
            announce_maddrs=config.announce or None,
            dht_mode="client" if config.client_mode else "server",
            use_relay=True,
            auto_nat=config.public,
            nat_port_map=config.public,
            use_auto_relay=config.public and bool(config.relays),
            trusted_relays=config.relays if config.public else None,
            startup_timeout=config.start_timeout_s,
        )
    except BaseException as error:
        # hivemind awaits the end of its child only where that took too long to start.
        for p2p in started:
            if p2p._child is not None:
                await _stop(p2p)
        if not isinstance(error, P2PDaemonError):
            raise
        if "failed to listen" in str(error) or "address already in use" in str(error):
            raise PortInUse(f"cannot listen on {', '.join(config.listen)}: {error}") from error
        raise Unreachable(f"the network daemon (p2pd) does not start: {_reason(error)}") from error


async def _stop(p2p: Any) -> None:
    try:
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await p2p.shutdown()
    except TimeoutError:
        log.warning("p2pd did not stop within %s s; killing it", STOP_TIMEOUT_S)
        await _kill(p2p._child)
    except asyncio.CancelledError:
        await _kill(p2p._child)
        raise


async def _kill(child: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        child.kill()
    await child.wait()


def require_free(address: str) -> None:
    """Raises PortInUse if the port is taken: the daemon itself shares ports (SO_REUSEPORT) and would not notice."""
    _, family, host, transport, port, *_ = address.split("/")
    kind = socket.SOCK_STREAM if transport == "tcp" else socket.SOCK_DGRAM
    with socket.socket(socket.AF_INET if family == "ip4" else socket.AF_INET6, kind) as probe:
        if transport == "tcp":
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, int(port)))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise PortInUse(
                    f"{address}: another program listens there; choose another port with --listen, or 0 for any"
                ) from error
            raise BadAddress(f"{address}: cannot listen there ({os.strerror(error.errno or 0)})") from error


def _prepare_hivemind() -> None:
    """hivemind logs to stderr by itself; its records go to the configured log instead."""
    os.environ.setdefault("GOLOG_LOG_LEVEL", "error")
    os.environ.setdefault("HIVEMIND_MEMORY_SHARING_STRATEGY", "file_descriptor")
    with loading():
        from hivemind.p2p import p2p_daemon
        from hivemind.p2p.p2p_daemon_bindings.control import DaemonConnector
        from hivemind.utils.logging import use_hivemind_log_handler

    use_hivemind_log_handler("nowhere")
    hivemind_log = logging.getLogger("hivemind")
    if not hivemind_log.handlers:
        hivemind_log.addHandler(logging.NullHandler())
    # It finds its program with importlib.resources.path, which Python 3.11 and 3.12 deprecate.
    p2p_daemon.path = lambda package, name: importlib.resources.as_file(importlib.resources.files(package) / name)
    DaemonConnector.open_connection = _open_control_socket


async def _open_control_socket(connector: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await loop.create_unix_connection(
        lambda: protocol, connector.control_maddr.value_for_protocol("unix")
    )
    return reader, _ControlWriter(transport, protocol, reader, loop)


class _ControlWriter(asyncio.StreamWriter):
    """A writer that is closed with its last reference: a cancelled call of hivemind does not close its own."""

    def __del__(self) -> None:
        if not self.transport.is_closing():
            with suppress(RuntimeError):  # the loop is closed, and its sockets with it
                self.transport.close()


@contextmanager
def _socket_folder(wanted: Path) -> Iterator[Path]:
    """`wanted`, without the sockets of earlier processes, or a short private folder if its paths would be too long."""
    wanted = wanted.absolute()
    if not _fits(wanted):
        with tempfile.TemporaryDirectory(prefix="hf-", dir=_short_folder(wanted)) as short:
            yield Path(short)
        return
    wanted.mkdir(mode=0o700, parents=True, exist_ok=True)
    _remove_sockets(wanted)
    yield wanted
    _remove_sockets(wanted)


def _fits(folder: Path) -> bool:
    return len(os.fsencode(folder)) + 1 + _SOCKET_NAME_BYTES <= MAX_SOCKET_PATH_BYTES


def _short_folder(wanted: Path) -> Path:
    """Where a folder with a short path can be made: TMPDIR may be as long as the path that did not fit."""
    for folder in (Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp")):
        if folder.is_dir() and _fits(folder / "hf-12345678"):
            return folder
    raise BadInput(f"{wanted} is too long a path for sockets, and so is the temporary folder; choose a shorter --dir")


def _remove_sockets(folder: Path) -> None:
    for path in folder.glob("p2p*-*.sock"):
        path.unlink(missing_ok=True)


def _text_of(address: Any) -> str:
    """The text of an address; hivemind's own class cannot write a circuit."""
    return str(Multiaddr(address.to_bytes()))


def _reason(error: BaseException) -> str:
    lines = str(error).removeprefix("Connect failed. msg=").strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _id_bytes(peer_id: str) -> bytes:
    raw = id_bytes_of(peer_id)
    if raw is None:
        raise Unreachable(f"{peer_id[:60]!r} is not a peer id")
    return raw


def _whole_seconds(timeout_s: float) -> int:
    return max(1, round(timeout_s))
