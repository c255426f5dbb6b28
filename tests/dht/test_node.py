"""A real node on loopback: how it starts, fails and ends."""

import asyncio
import logging
import os
import socket
import stat
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from dht.addresses import LOOPBACK, check_dial
from dht.daemon import _reason, _socket_folder
from dht.errors import BadAddress, PortInUse, Unreachable
from dht.identity import Identity
from dht.node import NetworkConfig, Node, open_node
from dht.records import HEAD
from peer.testing.child_process import BUSY, HANG_S

pytestmark = pytest.mark.swarm

RUN = b"r" * 32


def config(folder: Path, **changes: Any) -> NetworkConfig:
    Identity.load_or_create(folder / "identity.key")
    fields: dict[str, Any] = {
        "run": RUN,
        "identity_path": folder / "identity.key",
        "socket_folder": folder / "run",
        "listen": LOOPBACK,
    }
    return NetworkConfig(**(fields | changes))


def daemons() -> list[psutil.Process]:
    """That are alive. One that has ended is a zombie until somebody asks for its exit code."""
    children = psutil.Process().children(recursive=True)
    return [child for child in children if child.name() == "p2pd" and child.status() != psutil.STATUS_ZOMBIE]


def listens(node: Node) -> bool:
    """Whether the node's daemon has a port that others can connect to."""
    connections = psutil.Process(node._daemon.p2p._child.pid).net_connections("inet")
    return any(connection.status == psutil.CONN_LISTEN for connection in connections)


async def test_our_peer_id_is_the_transports(tmp_path: Path) -> None:
    identity = Identity.load_or_create(tmp_path / "identity.key")
    async with open_node(config(tmp_path)) as node:
        assert node.peer_id == identity.peer_id
        (address,) = await node.addresses()
        assert check_dial(address).startswith("/ip4/127.0.0.1/tcp/")
        assert address.endswith(f"/p2p/{identity.peer_id}")


async def test_nothing_is_left_and_nothing_was_printed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    async with open_node(config(tmp_path)):
        assert len(daemons()) == 1
        logging.getLogger("hivemind.p2p").error("a complaint of hivemind")
        start_s = time.monotonic()
    assert time.monotonic() - start_s < 3 * BUSY
    assert daemons() == []
    assert list((tmp_path / "run").iterdir()) == []
    assert capfd.readouterr() == ("", "")


async def test_a_long_directory_gets_a_short_one_for_its_sockets(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 20)
    async with open_node(config(folder)) as node:
        path = str(node._daemon.p2p.daemon_listen_maddr).removeprefix("/unix")
        assert stat.S_ISSOCK(os.stat(path).st_mode)
        assert len(os.fsencode(path)) <= 107
        assert not path.startswith(str(tmp_path))
    with pytest.raises(FileNotFoundError):
        os.stat(os.path.dirname(path))


def test_a_long_temporary_folder_is_not_taken_for_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TMPDIR may be as long as the directory: then a short one is found elsewhere."""
    long = tmp_path / ("t" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with _socket_folder(long / "run") as folder:
        assert len(str(folder)) < 60
        assert folder.is_dir()
    assert not folder.exists()


async def test_sockets_of_a_killed_process_are_swept(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "p2pd-abc.sock").touch()
    (tmp_path / "run" / "lock").touch()
    async with open_node(config(tmp_path)):
        assert not (tmp_path / "run" / "p2pd-abc.sock").exists()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["lock"]


async def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"/ip4/127.0.0.1/tcp/{taken.getsockname()[1]}"
        with pytest.raises(PortInUse, match=address):
            async with open_node(config(tmp_path, listen=(address,))):
                pass


async def test_two_nodes_do_not_share_a_port(tmp_path: Path) -> None:
    """The daemon alone would: it listens with SO_REUSEPORT."""
    async with open_node(config(tmp_path / "a")) as node:
        taken = (await node.addresses())[0].split("/p2p/")[0]
        with pytest.raises(PortInUse, match=taken):
            async with open_node(config(tmp_path / "b", listen=(taken,))):
                pass


async def test_an_address_of_another_machine_cannot_be_listened_on(tmp_path: Path) -> None:
    with pytest.raises(BadAddress, match=r"192\.0\.2\.1"):
        async with open_node(config(tmp_path, listen=("/ip4/192.0.2.1/tcp/0",))):
            pass


async def test_nobody_at_the_bootstrap_address(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    address = f"/ip4/127.0.0.1/tcp/{port}/p2p/{Identity.generate().peer_id}"
    with pytest.raises(Unreachable, match=f"nobody answers at /ip4/127.0.0.1/tcp/{port}; ask the organiser") as caught:
        async with open_node(config(tmp_path, bootstrap=(address,))):
            pass
    assert "\n" not in str(caught.value)
    assert daemons() == []


def test_a_daemon_that_gives_no_reason_is_no_bug_of_ours() -> None:
    assert _reason(OSError("Connect failed. msg=")) == "OSError"
    assert _reason(OSError("Connect failed. msg=no route\nand more")) == "no route"


async def test_a_silent_bootstrap_address_times_out(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"/ip4/127.0.0.1/tcp/{silent.getsockname()[1]}/p2p/{Identity.generate().peer_id}"
        start_s = time.monotonic()
        with pytest.raises(Unreachable, match="nobody answers at"):
            async with open_node(config(tmp_path, bootstrap=(address,), dial_timeout_s=1.0)):
                pass
        assert time.monotonic() - start_s < 5 * BUSY


async def test_one_bootstrap_address_that_answers_is_enough(tmp_path: Path) -> None:
    dead = f"/ip4/127.0.0.1/tcp/1/p2p/{Identity.generate().peer_id}"
    async with open_node(config(tmp_path / "a")) as first:
        bootstrap = (dead, *await first.addresses())
        async with open_node(config(tmp_path / "b", bootstrap=bootstrap)) as second:
            first.serve("name", lambda: b"value")
            assert await second.ask(first.peer_id, "name", HANG_S) == b"value"


async def test_an_address_with_the_wrong_peer_id_is_not_believed(tmp_path: Path) -> None:
    async with open_node(config(tmp_path / "a")) as first:
        host = (await first.addresses())[0].split("/p2p/")[0]
        wrong = f"{host}/p2p/{Identity.generate().peer_id}"
        with pytest.raises(Unreachable):
            async with open_node(config(tmp_path / "b", bootstrap=(wrong,))):
                pass


async def test_peers_that_met_the_same_bootstrap_node_reach_each_other(tmp_path: Path) -> None:
    async with open_node(config(tmp_path / "a")) as first:
        bootstrap = await first.addresses()
        async with (
            open_node(config(tmp_path / "b", bootstrap=bootstrap)) as second,
            open_node(config(tmp_path / "c", bootstrap=bootstrap)) as third,
        ):
            third.serve("name", lambda: b"value")
            assert await second.ask(third.peer_id, "name", HANG_S) == b"value"


async def test_a_client_uses_the_dht_and_its_streams_without_serving_the_dht(tmp_path: Path) -> None:
    async with open_node(config(tmp_path / "a")) as first:
        bootstrap = await first.addresses()
        async with open_node(config(tmp_path / "b", bootstrap=bootstrap, client_mode=True)) as client:
            client.serve("name", lambda: b"value")
            assert await client.board.read(HEAD) == {}
            assert await first.ask(client.peer_id, "name", HANG_S) == b"value"


async def test_who_listens_nowhere_reaches_others_and_they_answer_through_its_connection(tmp_path: Path) -> None:
    """A client that only looks: nobody can dial it, and a frame to it comes all the same."""
    async with open_node(config(tmp_path / "a")) as first:
        bootstrap = await first.addresses()
        async with open_node(config(tmp_path / "b", bootstrap=bootstrap, client_mode=True, listen=())) as client:
            assert await client.addresses() == ()
            assert (listens(first), listens(client)) == (True, False)
            arrived = asyncio.Event()
            client.streams.listen(lambda sender, frame: arrived.set())
            first.streams.send(client.peer_id, b"x")
            await asyncio.wait_for(arrived.wait(), HANG_S)


async def test_connections_are_named_with_the_address_of_the_other_end(tmp_path: Path) -> None:
    async with open_node(config(tmp_path / "a")) as first:
        assert await first.connections() == {}
        (address,) = await first.addresses()
        async with open_node(config(tmp_path / "b", bootstrap=(address,))) as second:
            assert await second.connections() == {first.peer_id: address.split("/p2p/")[0]}
            assert (await first.connections())[second.peer_id].startswith("/ip4/127.0.0.1/tcp/")


async def test_it_is_known_from_which_network_somebody_asks(tmp_path: Path) -> None:
    async with open_node(config(tmp_path / "a")) as first:
        bootstrap = await first.addresses()
        async with open_node(config(tmp_path / "b", bootstrap=bootstrap)) as second:
            assert await second.ask(first.peer_id, "nothing", HANG_S) is None
            assert first._daemon.network_of(second.peer_id) == "127.0.0.0/24"
            assert first._daemon.network_of("somebody") == ""


async def test_a_round_trip_is_measured_and_who_is_gone_has_none(tmp_path: Path) -> None:
    async with open_node(config(tmp_path / "a")) as first:
        async with open_node(config(tmp_path / "b", bootstrap=await first.addresses())) as second:
            assert 0 < await second.round_trip_s(first.peer_id, HANG_S) < BUSY
            gone = second.peer_id
        with pytest.raises(Unreachable):
            await first.round_trip_s(gone, HANG_S)


async def test_bytes_are_counted_by_peer(tmp_path: Path) -> None:
    """Frames with their headers, questions and answers: what one side sent the other received."""
    async with (
        open_node(config(tmp_path / "a")) as alice,
        open_node(config(tmp_path / "b", bootstrap=await alice.addresses())) as bob,
    ):
        bob.serve("name", lambda: b"x" * 1000)
        assert await alice.ask(bob.peer_id, "name", HANG_S) == b"x" * 1000
        arrived = asyncio.Event()
        bob.streams.listen(lambda sender, frame: arrived.set())
        alice.streams.send(bob.peer_id, b"y" * 500)
        await asyncio.wait_for(arrived.wait(), HANG_S)
        assert alice.tally.peers[bob.peer_id].received == 1000
        assert bob.tally.peers[alice.peer_id].sent == 1000 + 7, "an answer, and the question what time it is"
        assert bob.tally.peers[alice.peer_id].received == 504 + 8, "a frame, and what time it is"
        assert 504 <= alice.tally.peers[bob.peer_id].sent < 530, "a frame and a question"
        assert bob.bytes_received == 504, "a round's bytes are those of its frames"


async def test_announced_addresses_are_the_ones_to_dial(tmp_path: Path) -> None:
    announce = ("/dns/example.org/tcp/31337",)
    async with open_node(config(tmp_path, announce=announce)) as node:
        assert await node.addresses() == (f"{announce[0]}/p2p/{node.peer_id}",)


async def test_it_is_found_where_its_daemon_says_by_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A router gave it a port, or another address at night. The same in another order is no news."""
    monkeypatch.setattr("dht.reach.dialer.REMEET_S", 0.01)
    async with open_node(config(tmp_path)) as node:
        first = node.addresses_of
        assert first == await node.addresses()
        says, looks = [*first, f"/ip4/203.0.113.5/tcp/1/p2p/{node.peer_id}"], asyncio.Semaphore(0)

        async def addresses() -> tuple[str, ...]:
            looks.release()
            return tuple(says)

        monkeypatch.setattr(node._daemon, "addresses", addresses)
        async with asyncio.timeout(HANG_S):
            for _ in range(2):
                await looks.acquire()
            assert node.addresses_of == tuple(says)
            known = node.addresses_of
            says.reverse()
            while not looks.locked():
                await looks.acquire()
            for _ in range(2):
                await looks.acquire()
            assert node.addresses_of == known


async def test_asking(tmp_path: Path) -> None:
    async with (
        open_node(config(tmp_path / "a")) as server,
        open_node(config(tmp_path / "b", bootstrap=await server.addresses())) as client,
    ):
        server.serve("large", lambda: b"x" * 3_000_000)
        server.serve("empty", lambda: b"")
        server.serve("not yet", lambda: None)
        assert await client.ask(server.peer_id, "large", HANG_S) == b"x" * 3_000_000
        assert await client.ask(server.peer_id, "empty", HANG_S) == b""
        assert await client.ask(server.peer_id, "not yet", HANG_S) is None
        assert await client.ask(server.peer_id, "unknown", HANG_S) is None
        with pytest.raises(Unreachable, match="did not send large"):
            await client.ask(server.peer_id, "large", HANG_S, max_bytes=1000)
        with pytest.raises(Unreachable):
            await client.ask(Identity.generate().peer_id, "large", 2)


async def test_a_question_can_carry_a_request(tmp_path: Path) -> None:
    """The answer knows who asks, and may take its time."""
    async with (
        open_node(config(tmp_path / "a")) as server,
        open_node(config(tmp_path / "b", bootstrap=await server.addresses())) as client,
    ):

        async def echo(peer_id: str, request: bytes) -> bytes | None:
            await asyncio.sleep(0)
            return peer_id.encode() + b" asks " + request if request else None

        server.answer("echo", echo)
        answered = await client.ask(server.peer_id, "echo", HANG_S, request=b"x" * 4096)
        assert answered == client.peer_id.encode() + b" asks " + b"x" * 4096
        assert await client.ask(server.peer_id, "echo", HANG_S) is None


async def test_an_error_in_the_block_comes_out_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(BadAddress, match=r"^mine$"):
        async with open_node(config(tmp_path)):
            raise BadAddress("mine")
    assert daemons() == []


async def test_an_error_of_the_listener_ends_the_block(tmp_path: Path) -> None:
    """A bug in the protocol above must not be swallowed by the network."""

    def broken(sender: str, frame: bytes) -> None:
        raise ZeroDivisionError

    async def receive(sender: Node) -> None:
        async with open_node(config(tmp_path / "b", bootstrap=await sender.addresses())) as receiver:
            receiver.streams.listen(broken)
            sender.streams.send(receiver.peer_id, b"x")
            await asyncio.Event().wait()

    async with open_node(config(tmp_path / "a")) as sender:
        with pytest.raises(ZeroDivisionError):
            await asyncio.wait_for(receive(sender), HANG_S)


async def test_the_end_of_the_daemon_ends_the_block(tmp_path: Path) -> None:
    async def live() -> None:
        async with open_node(config(tmp_path)):
            daemons()[0].kill()
            await asyncio.Event().wait()

    with pytest.raises(Unreachable, match="p2pd"):
        await asyncio.wait_for(live(), HANG_S)


async def test_cancellation_passes_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1.0), open_node(config(tmp_path)):
            await asyncio.Event().wait()
    assert daemons() == []


async def test_peers_meet_at_the_addresses_they_publish(tmp_path: Path) -> None:
    """Without any bootstrap node; an address of somebody else, or no address at all, is not dialled."""
    async with open_node(config(tmp_path / "a")) as alice, open_node(config(tmp_path / "b")) as bob:
        addresses = await bob.addresses()
        stranger = Identity.generate().peer_id
        assert not await alice.meet(stranger, [*addresses, "nonsense"])
        assert await alice.meet(bob.peer_id, ["nonsense", *addresses])
        bob.serve("name", lambda: b"bob")
        assert await alice.ask(bob.peer_id, "name", HANG_S) == b"bob"


async def test_a_ping_that_comes_while_the_node_starts_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever knew a peer that was killed dials it the moment it is back, before hivemind has set all that it needs."""
    from hivemind.dht.protocol import DHTProtocol
    from hivemind.proto import dht_pb2

    answers: list[Any] = []
    begin = DHTProtocol.add_p2p_handlers

    async def begin_and_hear(protocol: Any, *arguments: Any, **named: Any) -> None:
        await begin(protocol, *arguments, **named)
        answers.append(await protocol.rpc_ping(dht_pb2.PingRequest(), None))

    monkeypatch.setattr(DHTProtocol, "add_p2p_handlers", begin_and_hear)
    async with open_node(config(tmp_path)):
        pass
    assert [answer.peer.node_id for answer in answers] == [b""]
