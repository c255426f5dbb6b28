"""`python -m bootstrap` as the launcher starts it."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import socket
import stat
import sys
import time
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgpack
import psutil
import pytest

from bootstrap.members import load_names
from bootstrap.organiser import quarantine
from bootstrap.peer_monitor import PEERS_FILE
from dht import invite
from dht.addresses import LOOPBACK, tcp_target
from dht.admission import issue_admission, read_admission
from dht.errors import BadInput, DirectoryBusy, PortInUse
from dht.identity import Identity, fingerprint_words
from dht.invite import INVITE_FILE
from dht.node import NetworkConfig, Node, open_node
from dht.records import (
    GENESIS,
    HEAD,
    HEAD_TTL_S,
    Genesis,
    PeerRecord,
    Record,
    pack,
    sign_record,
    unpack,
    unpack_body,
    verify_record,
)
from peer.network.link.gatekeeper import ADMIT
from peer.schema import spec as specs
from peer.schema.events import AlertRaised, Event, InviteIssued, PeerStarted, PeerStopped, parse_line
from peer.testing.child_process import HANG_S, ORPHAN_S, wait_for_ends
from tests.waits import until

pytestmark = pytest.mark.swarm

MICRO = specs.load("micro")
OPEN = replace(MICRO, run=replace(MICRO.run, name="test", founders=2))
INVITED = replace(OPEN, admission=replace(OPEN.admission, policy="invited"))
RUN = OPEN.digest()
SPEC = specs.dump(OPEN).encode()


class Bootstrap:
    """A running bootstrap process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def wait_for(self, kind: type[Event], **fields: Any) -> Any:
        """The next event of that type whose fields are these."""
        assert self.process.stdout is not None
        async with asyncio.timeout(HANG_S):
            while text := await self.process.stdout.readline():
                line = parse_line(text.decode())
                assert line is not None
                if isinstance(line.event, kind) and fields.items() <= vars(line.event).items():
                    return line.event
        raise AssertionError(f"the process ended without {kind.__name__}")

    async def rest(self) -> bytes:
        """All that it still prints."""
        assert self.process.stdout is not None
        async with asyncio.timeout(HANG_S):
            return await self.process.stdout.read()

    async def ended(self) -> tuple[int, str]:
        """Its exit code and what it wrote on stderr."""
        async with asyncio.timeout(HANG_S):
            _, stderr = await self.process.communicate()
        assert self.process.returncode is not None
        return self.process.returncode, stderr.decode()


@asynccontextmanager
async def bootstrap(
    folder: Path, *arguments: str, spec: bytes = SPEC, module: str = "bootstrap"
) -> AsyncIterator[Bootstrap]:
    path = folder / "spec.toml"
    path.write_bytes(spec)
    listen = [] if "--listen" in arguments else ["--listen", LOOPBACK[0]]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, str(path), "--dir", str(folder / "organiser"),
        *listen, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        yield Bootstrap(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


impatient = partial(bootstrap, module="tests.bootstrap.impatient")
"""Where nobody has to wait until it looks around again."""


@asynccontextmanager
async def joined(folder: Path, text: str) -> AsyncIterator[tuple[Identity, Node]]:
    identity, invited = Identity.load_or_create(folder / "identity.key"), invite.parse(text, time.time())
    config = NetworkConfig(
        run=invited.spec_hash,
        identity_path=folder / "identity.key",
        socket_folder=folder / "run",
        listen=LOOPBACK,
        bootstrap=invited.addrs,
    )
    async with open_node(config) as node:
        yield identity, node


async def publish_head(
    identity: Identity, node: Node, state: bytes, round: int = -1, name: str = "", run: bytes = RUN
) -> None:
    body = PeerRecord(
        run=run, anchor=b"", round=round, weight=0, state=state, ready=True, tokens=0, steps=0,
        leaving=False, name=name, version="0", addrs=await node.addresses(),
    )  # fmt: skip
    record = sign_record(identity, run, HEAD, body.pack(), time.time() + HEAD_TTL_S)
    assert await node.board.publish(HEAD, record, HEAD_TTL_S)


async def test_from_the_invite_to_genesis_and_through_a_restart(tmp_path: Path) -> None:
    other = f"/ip4/203.0.113.5/tcp/31337/p2p/{Identity.from_seed(b'x' * 32).peer_id}"
    async with bootstrap(tmp_path, "--also", other, "--expires", "7d") as first:
        await first.wait_for(PeerStarted, name="bootstrap")
        told = await first.wait_for(AlertRaised, code="FINGERPRINT")
        text = (await first.wait_for(InviteIssued)).invite
        parsed = invite.parse(text, time.time())
        assert (parsed.run, parsed.spec_hash) == ("test", RUN)
        kept = tmp_path / "organiser" / INVITE_FILE
        assert (kept.read_text(), stat.S_IMODE(kept.stat().st_mode)) == (text, 0o600)
        assert told.text.endswith(fingerprint_words(parsed.organiser))
        assert len(parsed.addrs) == 2
        assert parsed.addrs[1] == other
        assert parsed.expires is not None
        assert 6.9 * 86400 < parsed.expires - time.time() <= 7 * 86400
        async with joined(tmp_path / "a", text) as (alice, a), joined(tmp_path / "b", text) as (bob, b):
            assert await a.ask(parsed.organiser, "spec", 5) == SPEC
            assert await a.ask(parsed.organiser, "genesis", 5) is None
            await assert_takes_no_frames(parsed.organiser, a)
            await publish_head(alice, a, b"s" * 32)
            await first.wait_for(AlertRaised, text="1 of 2 founders are here")
            await publish_head(bob, b, b"s" * 32)
            await first.wait_for(AlertRaised, code="GENESIS")
            served = await a.ask(parsed.organiser, "genesis", 5)
        first.process.send_signal(signal.SIGTERM)
        await first.wait_for(PeerStopped, exit_code=0)
        assert (await first.ended())[0] == 0
    assert served is not None
    record = unpack(served)
    genesis = unpack_body(record)
    assert verify_record(record, RUN)
    assert record.author == parsed.organiser
    founders = tuple(sorted((alice.peer_id, bob.peer_id)))
    assert genesis == Genesis(run=RUN, founders=founders, state=b"s" * 32)
    async with bootstrap(tmp_path) as second:
        again = (await second.wait_for(InviteIssued)).invite
        assert invite.parse(again, time.time()).addrs[0] == parsed.addrs[0], "the port is that of the first invite"
        async with joined(tmp_path / "c", text) as (_, late):
            async with asyncio.timeout(HANG_S):
                found: dict[str, Record] = {}
                while not found:
                    found = await late.board.read(GENESIS)
        assert unpack_body(found[parsed.organiser]) == genesis


async def test_at_another_port_a_newcomer_finds_those_who_were_there_before(tmp_path: Path) -> None:
    """The port of its invites is taken when it starts again: it says so, and it dials whom it met itself, since they
    know it at the old port alone."""
    organiser = tmp_path / "organiser"
    async with impatient(tmp_path) as first:
        text = (await first.wait_for(InviteIssued)).invite
        (old,) = invite.parse(text, time.time()).addrs
        async with joined(tmp_path / "a", text) as (alice, a):
            await publish_head(alice, a, b"s" * 32)
            await until(lambda: (organiser / PEERS_FILE).exists())
            first.process.kill()
            await first.process.wait()
            target = tcp_target(old)
            assert target is not None
            with await taken(target):
                async with impatient(tmp_path) as second:
                    told = await second.wait_for(AlertRaised, code="ADDRESS")
                    assert old.rpartition("/p2p/")[0] in told.text
                    text = (await second.wait_for(InviteIssued)).invite
                    assert invite.parse(text, time.time()).addrs[0] != old
                    async with joined(tmp_path / "b", text) as (_, b):
                        await sees(b, alice.peer_id)
    async with impatient(tmp_path) as third:
        text = (await third.wait_for(InviteIssued)).invite
        assert invite.parse(text, time.time()).addrs[0] == old, "the port of the first invite is free again"


async def taken(target: tuple[str, int]) -> socket.socket:
    """Somebody else's socket at this port, as soon as the daemon of the killed node has let go of it."""
    found: list[socket.socket] = []

    def is_taken() -> bool:
        try:
            found.append(socket.create_server(target))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
        return bool(found)

    await until(is_taken)
    return found[0]


async def sees(node: Node, peer: str) -> None:
    """Wait until it is on the board that this node reads."""
    async with asyncio.timeout(HANG_S):
        while peer not in await node.board.read(HEAD):
            pass


async def assert_takes_no_frames(organiser: str, node: Node) -> None:
    """It ends the stream: else strangers could fill its memory with frames that nobody reads."""
    node.streams.send(organiser, b"frame")
    await until(lambda: not node._links._outgoing)


async def test_an_admission_lasts_as_long_as_the_organiser_says(tmp_path: Path) -> None:
    run = INVITED.digest()
    async with impatient(tmp_path, "--members-for", "2d", spec=specs.dump(INVITED).encode()) as running:
        text = (await running.wait_for(InviteIssued)).invite
        organiser = invite.parse(text, time.time()).organiser
        async with joined(tmp_path / "a", text) as (alice, a):
            for _ in range(2):
                shown, why = msgpack.unpackb(await a.ask(organiser, ADMIT, 5, request=text.encode()) or b"")
                admission = read_admission(shown, run, organiser, alice.peer_id)
                assert why == ""
                assert 1.9 * 86400 < admission.expires - time.time() <= 2 * 86400
            await running.wait_for(AlertRaised, code="ADMITTED", text=f"{alice.peer_id} is admitted, one of 1 members")
            for _ in range(50):
                assert msgpack.unpackb(await a.ask(organiser, ADMIT, 5, request=text.encode()) or b"")[0] == shown
            await publish_head(alice, a, b"s" * 32, name="alice", run=run)
            await until(lambda: load_names(tmp_path / "organiser") == {alice.peer_id: "alice"})
        async with joined(tmp_path / "b", text) as (bob, b):
            for _ in range(3):
                assert msgpack.unpackb(await b.ask(organiser, ADMIT, 5, request=b"nonsense") or b"")[0] == b""
            refused = await running.wait_for(AlertRaised, code="TOKEN")
            assert refused.text.startswith(f"refused {bob.peer_id}: it is not admitted")
            assert await b.ask(organiser, "visitor", 5, request=b"nonsense") is None
            key = Identity.load_or_create(tmp_path / "organiser" / "identity.key")
            signed = issue_admission(key, run, bob.peer_id, time.time() + 60).to_bytes()
            assert await b.ask(organiser, "visitor", 5, request=signed) == b"", "a watcher of the organiser's"
        running.process.send_signal(signal.SIGTERM)
        told = (await running.rest()).decode()
        assert "ADMITTED" not in told
        assert "TOKEN" not in told, "said once, however often it is asked"


async def test_a_genesis_that_was_lost_comes_back_from_a_peer(tmp_path: Path) -> None:
    """The organiser's key is left of the folder. What another key signed counts for nothing."""
    organiser = Identity.load_or_create(tmp_path / "organiser" / "identity.key")
    genesis = Genesis(run=RUN, founders=(organiser.peer_id,), state=b"s" * 32).pack()
    async with impatient(tmp_path) as running:
        text = (await running.wait_for(InviteIssued)).invite
        async with joined(tmp_path / "a", text) as (alice, a):
            served = [sign_record(alice, RUN, GENESIS, genesis, time.time() + 60)]
            a.serve("genesis", lambda: pack(served[0]))
            await publish_head(alice, a, b"s" * 32, round=7)
            await running.wait_for(AlertRaised, code="GENESIS_LOST")
            assert not (tmp_path / "organiser" / "genesis").exists()
            served[0] = sign_record(organiser, RUN, GENESIS, genesis, time.time() - 60)
            told = await running.wait_for(AlertRaised, code="GENESIS")
            assert "a peer gave its genesis back" in told.text
            again = await a.ask(organiser.peer_id, "genesis", 5)
    assert again is not None
    assert unpack(again).body == genesis
    assert unpack((tmp_path / "organiser" / "genesis").read_bytes()).body == genesis


async def test_who_says_that_a_new_run_has_begun_is_named_and_can_be_kept_out(tmp_path: Path) -> None:
    """In an open run anybody can say so; the organiser alone knows that it is not so."""
    async with impatient(tmp_path) as running:
        text = (await running.wait_for(InviteIssued)).invite
        async with (
            joined(tmp_path / "a", text) as (alice, a), joined(tmp_path / "b", text) as (bob, b),
            joined(tmp_path / "x", text) as (stranger, x),
        ):  # fmt: skip
            await publish_head(stranger, x, b"s" * 32, round=7)
            alert = await running.wait_for(AlertRaised, code="GENESIS_LOST")
            assert stranger.peer_id in alert.text
            organiser = Identity.load_or_create(tmp_path / "organiser" / "identity.key")
            quarantine(tmp_path / "organiser", organiser, RUN, stranger.peer_id, "is not in this run")
            await publish_head(alice, a, b"s" * 32)
            await publish_head(bob, b, b"s" * 32)
            begun = await running.wait_for(AlertRaised, code="GENESIS")
    assert alice.peer_id in begun.text
    assert bob.peer_id in begun.text
    assert stranger.peer_id not in begun.text


async def test_peers_with_other_initial_parameters_are_named(tmp_path: Path) -> None:
    async with impatient(tmp_path) as running:
        text = (await running.wait_for(InviteIssued)).invite
        async with joined(tmp_path / "a", text) as (alice, a), joined(tmp_path / "b", text) as (bob, b):
            await publish_head(alice, a, b"s" * 32)
            await publish_head(bob, b, b"x" * 32)
            alert = await running.wait_for(AlertRaised, code="STATE_DIFFERS")
            assert alert.level == "error"
            assert bob.peer_id in alert.text
            assert await a.ask(invite.parse(text, time.time()).organiser, "genesis", 5) is None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_ends_it_politely_and_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    async with bootstrap(tmp_path) as running:
        await running.wait_for(InviteIssued)
        family = psutil.Process(running.process.pid).children(recursive=True)
        assert [process.name() for process in family] == ["p2pd"]
        running.process.send_signal(number)
        await running.wait_for(PeerStopped, exit_code=0)
        code, stderr = await running.ended()
        assert code == 0
        assert "Traceback" not in stderr
    assert not any(process.is_running() for process in family)
    assert sorted(os.listdir(tmp_path / "organiser" / "run")) == ["lock"]


async def test_killing_it_kills_its_daemon(tmp_path: Path) -> None:
    """Even a daemon that cannot notice anything."""
    async with bootstrap(tmp_path) as running:
        await running.wait_for(InviteIssued)
        family = psutil.Process(running.process.pid).children(recursive=True)
        family[0].suspend()
        running.process.kill()
        assert len(family) == 1
        assert await asyncio.to_thread(wait_for_ends, family, ORPHAN_S) == []


async def test_mistakes_are_one_line_an_event_and_an_exit_code(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"/ip4/127.0.0.1/tcp/{taken.getsockname()[1]}"
        async with bootstrap(tmp_path, "--listen", address) as running:
            stopped = await running.wait_for(PeerStopped, exit_code=PortInUse.exit_code)
            code, stderr = await running.ended()
            assert (code, stderr) == (4, f"bootstrap: {stopped.why}\n")
            assert address in stopped.why
    async with bootstrap(tmp_path, "--listen", "/ip4/1.2.3/tcp/0") as running:
        code, stderr = await running.ended()
        assert (code, stderr.count("\n")) == (BadInput.exit_code, 1)


def read(port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
        text: str = answer.read().decode()
    return text


async def test_its_health_is_served_on_loopback(tmp_path: Path) -> None:
    """Who is here is on the pages, the invite is not. A taken port ends it with one line."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        async with bootstrap(tmp_path, "--health-port", str(port)) as running:
            code, stderr = await running.ended()
            why = f"port {port} of 127.0.0.1 is taken by another program; choose another one"
            assert (code, stderr) == (4, f"bootstrap: {why}\n")
    async with bootstrap(tmp_path, "--health-port", str(port)) as running:
        text = (await running.wait_for(InviteIssued)).invite
        async with joined(tmp_path / "a", text) as (alice, a):
            await publish_head(alice, a, b"s" * 32)
            await running.wait_for(AlertRaised, text="1 of 2 founders are here")
            known = json.loads(await asyncio.to_thread(read, port, "/health.json"))
            assert (known["founders_here"], known["founders_needed"], known["invites_issued"]) == (1, 2, 1)
            assert [seen["peer"] for seen in known["peers"]] == [alice.peer_id]
            pages = [await asyncio.to_thread(read, port, path) for path in ("/", "/metrics")]
            assert "waits for 1 more of 2 first peers; it then begins by itself" in pages[0]
            assert "homefires_founders_here 1.0" in pages[1]
            assert not any("hf1:" in page for page in pages)
        running.process.send_signal(signal.SIGTERM)
        assert (await running.ended())[0] == 0


async def test_two_in_one_directory(tmp_path: Path) -> None:
    async with bootstrap(tmp_path) as first:
        await first.wait_for(InviteIssued)
        async with bootstrap(tmp_path) as second:
            await second.wait_for(PeerStopped, exit_code=DirectoryBusy.exit_code)
            assert (await second.ended())[0] == 6


async def test_a_node_has_its_name_before_it_finds_a_damaged_file(tmp_path: Path) -> None:
    (tmp_path / "organiser").mkdir(mode=0o700)
    (tmp_path / "organiser" / "genesis").write_bytes(b"?")
    async with bootstrap(tmp_path) as running:
        started = await running.wait_for(PeerStarted, name="bootstrap")
        stopped = await running.wait_for(PeerStopped, exit_code=BadInput.exit_code)
        assert started.name
        assert "genesis is damaged" in stopped.why


async def test_a_damaged_spec_is_named(tmp_path: Path) -> None:
    async with bootstrap(tmp_path, spec=b'[run]\nname = "test"\nfounders = 0\n') as running:
        code, stderr = await running.ended()
        assert code == 2
        assert f"{tmp_path / 'spec.toml'}: run.founders is 0" in stderr


async def test_a_page_for_everybody_is_there_before_the_run_begins(tmp_path: Path) -> None:
    page = tmp_path / "page" / "index.html"
    async with bootstrap(tmp_path, "--page", str(page.parent)) as running:
        issued = await running.wait_for(InviteIssued)
        async with asyncio.timeout(HANG_S):
            await until(page.exists)
    text = page.read_text()
    assert f"homefires join {issued.invite}" in text
    assert "2 more peers: the run begins with 2" in text
