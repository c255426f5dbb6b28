"""The link process: finds the others, runs the round machine, talks to the trainer. No torch of ours, no CUDA.

    python -m peer.averaging.link --fd N --dir DIR --invite INVITE [--listen ADDR …]

The story: open a node → fetch the spec by its hash → hear from the trainer what the model looks
like → wait for the organiser to name the founders → drive the round machine until told to leave.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import logging
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dht import keys as topics
from dht.addresses import are_loopback, peer_id_in
from dht.errors import HomefiresError, RunMismatch, Unreachable
from dht.identity import Identity, verify
from dht.invite import Invite, parse
from dht.lifetime import die_with_parent
from dht.node import NetworkConfig, Node, open_node
from dht.records import Genesis, sign_record, unpack_body
from dht.records import Head as HeadRecord
from peer import spec as specs
from peer.averaging.chain import ChainOnDisk
from peer.averaging.codec import Codec
from peer.averaging.contribution import write_whole
from peer.averaging.driver import Driver
from peer.averaging.pipe import LinkLost, LinkPipe
from peer.averaging.reducing import Reducer
from peer.events import Event as Reported
from peer.rounds.layout import Part, cut
from peer.rounds.machine import TICK_S, begin
from peer.rounds.messages import HeadSent
from peer.rounds.names import genesis_anchor
from peer.rounds.state import Applied, Frozen, Head, Leaving, Progressed, Received, Rules, Tick
from peer.rounds.update import Block
from peer.spec import RunSpec

log = logging.getLogger(__name__)

SPEC_TIMEOUT_S = 30.0
MAX_SPEC_BYTES = 1 << 16
READ_BOARD_S = 3.0
MEETING_S = 0.5
PUBLISH_S = 20.0
FINISH_S = 15.0
FLUSH_S = 1.0
ALONE_S = 10.0


@dataclasses.dataclass(frozen=True)
class RunKeys:
    """`peer.rounds.names.Keys` with this machine's identity."""

    identity: Identity
    run: bytes

    def sign(self, kind: str, payload: bytes) -> bytes:
        return self.identity.sign(self.run, kind, payload)

    def verify(self, peer: str, kind: str, payload: bytes, signature: bytes) -> bool:
        return verify(peer, self.run, kind, payload, signature)


class Link:
    """One peer's link for one run."""

    def __init__(self, node: Node, pipe: LinkPipe, directory: Path, invite: Invite, identity: Identity, name: str):
        self.node, self.pipe, self.directory = node, pipe, directory
        self.invite, self.identity, self.name = invite, identity, name
        self.run = invite.spec_hash
        self.state = b""
        self.driver: Driver | None = None
        self._publish_now = asyncio.Event()
        self._said: HeadSent | None = None
        self._in_step = False
        self._counted_sent = self._counted_received = 0
        self._leaving = asyncio.Event()
        self._finishing = False

    async def story(self) -> None:
        """Everything a link does, in order."""
        text = await self._find_spec()
        self.pipe.send("spec", text)
        self.node.serve("spec", text.encode)
        spec = specs.parse(text)
        kind, layer_sizes, self.state = await self.pipe.receive()
        assert kind == "model", kind
        parts = cut(layer_sizes, spec.codec.part_elements)
        genesis = await self._find_genesis()
        with ThreadPoolExecutor(max_workers=2, thread_name_prefix="bytes") as executor:
            self.driver = self._make_driver(spec, parts, genesis, executor)
            await self._take_part()

    # ---- before the first round ----

    async def _find_spec(self) -> str:
        """From my disk or from whoever the invite names; its hash must be the invite's."""
        path = self.directory / "spec.toml"
        if path.exists() and specs.parse(path.read_text()).digest() == self.run:
            return path.read_text()
        failures = []
        for address in self.invite.addrs:
            try:
                served = await self.node.ask(peer_id_in(address), "spec", SPEC_TIMEOUT_S, MAX_SPEC_BYTES)
            except Unreachable as error:
                failures.append(str(error))
                continue
            if served is not None and _matches(served, self.run):
                write_whole(path, served)
                return served.decode()
            failures.append(f"{peer_id_in(address)} serves another spec")
        raise Unreachable(f"the run's spec could not be fetched: {'; '.join(failures)}")

    async def _find_genesis(self) -> Genesis:
        """The founders, named once by the organiser; this peer offers itself until then."""
        path = self.directory / "genesis"
        if path.exists():
            return self._checked(Genesis.unpack(path.read_bytes()))
        self.pipe.send("waiting", "for the organiser to name the founders")
        offered_at = float("-inf")
        while (genesis := await self._read_genesis()) is None:
            if time.monotonic() - offered_at > PUBLISH_S:
                offered_at = time.monotonic()
                await self._publish(HeadSent(b"", -1, 0, self.state, True, 0, 0, False))
            await self._unless_leaving(MEETING_S)
        write_whole(path, genesis.pack())
        return self._checked(genesis)

    async def _read_genesis(self) -> Genesis | None:
        records = await self.node.board.read(topics.GENESIS)
        record = records.get(self.invite.organiser)
        if record is None:
            return None
        body = unpack_body(record)
        return body if isinstance(body, Genesis) else None

    async def _unless_leaving(self, seconds: float) -> None:
        """Wait, but let go at once when the trainer ends."""
        try:
            async with asyncio.timeout(seconds):
                kind, *_ = await self.pipe.receive()
        except TimeoutError:
            return
        assert kind in ("leave", "finish"), kind
        raise LinkLost

    def _checked(self, genesis: Genesis) -> Genesis:
        if genesis.state != self.state:
            raise RunMismatch(
                "this machine computed other initial parameters than the founders "
                f"({self.state.hex()[:12]}, theirs {genesis.state.hex()[:12]}); compare the torch and transformers versions"
            )
        return genesis

    def _make_driver(
        self, spec: RunSpec, parts: tuple[Part, ...], genesis: Genesis, executor: ThreadPoolExecutor
    ) -> Driver:
        codec = Codec(spec.codec.wire)
        anchor = genesis_anchor(self.run, genesis.founders, genesis.state)
        first = Head(anchor=anchor, round=0, weight=0, electorate=genesis.founders, members=genesis.founders)
        call_soon = asyncio.get_running_loop().call_soon_threadsafe
        disk = ChainOnDisk(self.directory, first, parts, codec, executor, call_soon)
        table = spec.round
        rules = Rules(
            me=self.node.peer_id, keys=RunKeys(self.identity, self.run), parts=parts,
            part_bytes=tuple(codec.part_bytes(part.size) for part in parts), gather_s=table.gather_s,
            ack_s=table.ack_s, exchange_s=table.exchange_s, patience_s=table.patience_s, stagger_s=table.stagger_s,
            tokens_cap=spec.judge.tokens_cap, wall_offset_s=time.time() - time.monotonic(),
        )  # fmt: skip
        acceptor = disk.load_acceptor()
        mine = disk.contribution(disk.head.anchor)
        state = begin(
            rules, disk.head, time.monotonic(), ancestors=disk.ancestors, acceptor=acceptor,
            accepted=disk.accepted_update(acceptor), held=disk.held(),
            pledge=mine.pledge(rules.me, leaving=False).signed(rules.keys) if mine else None,
        )  # fmt: skip
        self.pipe.send("begin", first.anchor, genesis.founders)
        for block, head in zip(disk.blocks, disk.heads[1:], strict=True):
            self._send_commit(block, head)
        self.disk = disk
        return Driver(
            state, clock=time.monotonic, streams=self.node.streams, disk=disk,
            arithmetic=Reducer(codec, disk, executor, call_soon), trainer=self, report=self._report,
            publish=self._say,
        )  # fmt: skip

    # ---- taking part ----

    async def _take_part(self) -> None:
        assert self.driver is not None
        self.node.streams.listen(self.driver.on_frame)
        async with asyncio.TaskGroup() as tasks:
            running = [
                tasks.create_task(self._tick(), name="tick"),
                tasks.create_task(self._follow_board(), name="board"),
                tasks.create_task(self._publish_heads(), name="publish"),
            ]
            try:
                await self._hear_trainer()
                await self._linger()
            except LinkLost:
                log.info("the trainer has ended")
            finally:
                for task in running:
                    task.cancel()

    async def _tick(self) -> None:
        assert self.driver is not None
        while True:
            self.driver.deliver(Tick(time.monotonic()))
            self._look_if_in_step()
            await asyncio.sleep(TICK_S)

    async def _follow_board(self) -> None:
        """Peers that I have no stream with yet are found here."""
        assert self.driver is not None
        while True:
            for author, record in (await self.node.board.read(topics.HEAD)).items():
                body = unpack_body(record)
                if author == self.node.peer_id or not isinstance(body, HeadRecord) or not body.anchor:
                    continue
                if author not in self.driver.state.heard:
                    self.driver.deliver(Received(time.monotonic(), author, _message_of(body)))
            await asyncio.sleep(READ_BOARD_S)

    async def _publish_heads(self) -> None:
        while True:
            self._publish_now.clear()
            if self._said is not None:
                await self._publish(self._said)
            try:
                async with asyncio.timeout(PUBLISH_S):
                    await self._publish_now.wait()
            except TimeoutError:
                continue

    def _say(self, head: HeadSent) -> None:
        """The machine's newest HEAD; the board hears of it when it says something new."""
        if head != self._said:
            self._said = head
            self._publish_now.set()

    async def _publish(self, head: HeadSent) -> None:
        body = HeadRecord(
            run=self.run, anchor=head.anchor, round=head.round, weight=head.weight, state=head.state,
            ready=head.ready, stuck_s=0.0, tokens=head.tokens, steps=head.steps, bandwidth_bps=0,
            leaving=head.leaving, reach=0, name=self.name, version="1",
        )  # fmt: skip
        expires = time.time() + topics.HEAD_TTL_S
        record = sign_record(self.identity, self.run, topics.HEAD, body.pack(), expires)
        await self.node.board.publish(topics.HEAD, record, topics.HEAD_TTL_S)

    def _look_if_in_step(self) -> None:
        """A peer trains once nobody it knows is ahead of it."""
        assert self.driver is not None
        if self._in_step:
            return
        state = self.driver.state
        founding = state.head.round == 0 and state.rules.me in state.head.electorate
        rounds = [head.round for head, _ in state.heard.values()]
        if founding or (rounds and max(rounds) <= state.head.round):
            self._in_step = True
            self.pipe.send("in_step")

    async def _hear_trainer(self) -> None:
        """Until the trainer leaves or has finished the run."""
        assert self.driver is not None
        while True:
            kind, *fields = await self.pipe.receive()
            now = time.monotonic()
            match kind:
                case "progress":
                    self.driver.deliver(Progressed(now, fields[0]))
                case "frozen":
                    self._frozen(fields[0])
                case "applied":
                    self.driver.deliver(Applied(now, fields[0], fields[1]))
                case "leave":
                    self.driver.deliver(Leaving(now))
                    return
                case "finish":
                    self._finishing = True
                    return
                case _:
                    raise AssertionError(f"no such message: {kind}")

    def _frozen(self, anchor: bytes) -> None:
        assert self.driver is not None
        mine = self.disk.contribution(anchor)
        assert mine is not None, "the trainer writes a contribution before it says so"
        self.driver.deliver(Frozen(time.monotonic(), mine.pledge(self.node.peer_id, leaving=False)))

    async def _linger(self) -> None:
        """Having finished the run, stay until the others have too: they may need my vote or my bytes."""
        assert self.driver is not None
        deadline = time.monotonic() + (FINISH_S if self._finishing else 0.0)
        while time.monotonic() < deadline and not self._others_have_finished():
            await asyncio.sleep(TICK_S / 5)
        if self._finishing:
            self.driver.deliver(Leaving(time.monotonic()))
        await asyncio.sleep(FLUSH_S / 5)

    def _others_have_finished(self) -> bool:
        assert self.driver is not None
        state = self.driver.state
        others = [state.heard.get(peer) for peer in state.head.electorate if peer != state.rules.me]
        return all(heard is not None and heard[0].round >= state.head.round for heard in others)

    # ---- what the driver asks of the trainer ----

    def committed(self, block: Block, head: Head) -> None:
        self._send_commit(block, head)

    def freeze(self) -> None:
        self.pipe.send("freeze")

    def _send_commit(self, block: Block, head: Head) -> None:
        sent = self.node.bytes_sent - self._counted_sent
        received = self.node.bytes_received - self._counted_received
        self._counted_sent += sent
        self._counted_received += received
        self.pipe.send("commit", block.to_bytes(), head.anchor, sent, received)

    def _report(self, event: Reported) -> None:
        self.pipe.send("report", type(event).__name__, dataclasses.asdict(event))


def _matches(served: bytes, run: bytes) -> bool:
    try:
        return specs.parse(served.decode()).digest() == run
    except (HomefiresError, UnicodeDecodeError):
        return False


def _message_of(record: HeadRecord) -> HeadSent:
    return HeadSent(
        anchor=record.anchor, round=record.round, weight=record.weight, state=record.state, ready=record.ready,
        tokens=record.tokens, steps=record.steps, leaving=record.leaving,
    )  # fmt: skip


async def _run(args: argparse.Namespace) -> int:
    pipe = await LinkPipe.open(socket.socket(fileno=args.fd))
    code = 0
    try:
        invite = parse(args.invite, time.time())
        identity = Identity.load_or_create(args.dir / "identity.key")
        config = NetworkConfig(
            run=invite.spec_hash, identity_path=args.dir / "identity.key", socket_folder=args.dir / "run",
            listen=tuple(args.listen), bootstrap=invite.addrs, public=not are_loopback(args.listen),
        )  # fmt: skip
        async with open_node(config) as node:
            await Link(node, pipe, args.dir, invite, identity, args.name).story()
    except LinkLost:
        log.info("the trainer has ended")
    except HomefiresError as error:
        pipe.send("error", type(error).__name__, str(error))
        code = error.exit_code
    await pipe.close(FLUSH_S)
    return code


def main() -> int:
    """Entry of the child process."""
    parser = argparse.ArgumentParser(prog="python -m peer.averaging.link")
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--invite", required=True)
    parser.add_argument("--name", default="")
    parser.add_argument("--listen", action="append", default=[])
    die_with_parent()
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s link %(name)s %(message)s")
    import uvloop

    return uvloop.run(_run(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
