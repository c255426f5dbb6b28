"""Before the first round: finds out what the run is, and who founds it.

Everything may come from the bootstrap node or from any peer, and is checked against the invite. So a newcomer needs no
bootstrap node if it reaches one peer of the run.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from dht.access import RejectCode
from dht.addresses import peer_id_in
from dht.atomic_files import raising_damaged, write_atomic
from dht.board import ask_genesis, genesis_in, read_peers
from dht.errors import BadSpec, RunMismatch, Unreachable
from dht.identity import fingerprint_words
from dht.invite import Invite
from dht.node import Node
from dht.records import GENESIS, Genesis, PeerRecord, Record, unpack
from dht.records import pack as pack_record
from peer.node.store.run_directory import read_genesis, require_same_start
from peer.schema import spec as specs

SPEC_TIMEOUT_S = 30.0
ASK_TIMEOUT_S = 10.0
ASK_AGAIN_S = 0.5
ASK_GENESIS_MOST = 8
"""Peers at a time."""
MAX_SPEC_BYTES = 1 << 16
LAYERS = "layer-sizes"
"""Under this name a link gives the sizes of the model's layers, for who checks the chain without a model."""
OFFER_EVERY_S = 20.0
LOOK_EVERY_S = 0.5


async def find_spec(node: Node, invite: Invite, directory: Path) -> str:
    """The spec's text, from my disk, from the nodes in the invite or from a peer; its hash is the invite's. A stream
    may be cut at any time, so all are asked again until `SPEC_TIMEOUT_S`. Raises Unreachable, and BadSpec if all of
    them serve one that is refused."""
    path = directory / "spec.toml"
    with suppress(BadSpec):
        if path.exists() and _digest(path.read_bytes()) == invite.spec_hash:
            return path.read_text()
    failures: dict[str, str] = {}
    with suppress(TimeoutError):
        async with asyncio.timeout(SPEC_TIMEOUT_S):
            served = await _ask_until_given(node, invite, failures)
            text = specs.dump(specs.parse(served.decode()))
            write_atomic(path, text.encode())  # as this program writes it, so that an audit can tell every byte
            return text
    raise Unreachable(f"the run's spec could not be fetched: {'; '.join(failures.values())}")


async def _ask_until_given(node: Node, invite: Invite, failures: dict[str, str]) -> bytes:
    """Ask one after the other; the reasons of failures are left in `failures`, by peer."""
    while True:
        asked = await around(node, map(peer_id_in, invite.addrs))
        refused: list[BadSpec] = []
        for peer in asked:
            try:
                served = await node.ask(peer, "spec", ASK_TIMEOUT_S, MAX_SPEC_BYTES)
                if served is not None and _digest(served) == invite.spec_hash:
                    return served
            except Unreachable as error:
                failures[peer] = str(error)
                continue
            except BadSpec as error:
                failures[peer] = f"{peer} serves a spec that is refused: {error}"
                refused.append(error)
                continue
            failures[peer] = f"{peer} serves no spec"
            if served is not None:
                failures[peer] = f"{peer} serves another spec"
                node.refusals(RejectCode.SPEC, peer, "it serves another spec than the invite names")
        if refused and len(refused) == len(asked):
            raise refused[0]
        await asyncio.sleep(ASK_AGAIN_S)


async def around(node: Node, named: Iterable[str]) -> tuple[str, ...]:
    """The peers that may have it: those connected with this node, and the named ones."""
    connected: Iterable[str] = ()
    with suppress(Unreachable):
        connected = await node.connections()
    return tuple(dict.fromkeys([*connected, *named]))


async def find_genesis(
    node: Node, run: bytes, organiser: str, directory: Path, state: bytes, *, count: int,
    offer: Callable[[], Awaitable[None]], wait: Callable[[str], None],
) -> Genesis:  # fmt: skip
    """The `count` founders, named once by the organiser's node. Until they are named, `offer` is called again and
    again, which tells everybody that this peer is here with its initial `state`, and `wait` is told what it waits for,
    whenever that changes. Raises RunMismatch if the founders start from other parameters or another organiser named
    them."""
    path = directory / "genesis"
    if path.exists():
        _require_organiser(path, organiser)
        return _checked(read_genesis(directory), state)
    offered_at, said = float("-inf"), ""
    while (record := await said_genesis(node, run, organiser)) is None:
        why = waiting_words(await read_peers(node.board), count, state, node.peer_id)
        if why != said:
            wait(why)
            said = why
        if time.monotonic() - offered_at > OFFER_EVERY_S:
            offered_at = time.monotonic()
            await offer()
        await asyncio.sleep(LOOK_EVERY_S)
    write_atomic(path, pack_record(record))
    return _checked(read_genesis(directory), state)


def waiting_words(heads: Mapping[str, PeerRecord], count: int, state: bytes = b"", me: str = "") -> str:
    """For whom a run waits that `count` peers begin. Those count who start from `state`, or, without one, who start;
    `me` with them, whose own head may not be there yet."""
    there = {
        peer for peer, head in heads.items() if head.round == -1 and head.state == (state or head.state or None)
        and not head.leaving
    }  # fmt: skip
    missing = count - len(there | ({me} if me and state else set()))
    if missing <= 0:
        return "the first peers are all here; the run is about to begin"
    return f"waiting for {missing} more of {count} first peers; the run then begins by itself"


async def said_genesis(node: Node, run: bytes, organiser: str) -> Record | None:
    """The organiser's record, from the board or from a peer; None before it is published."""
    said = await node.board.read(GENESIS)
    for author in said.keys() - {organiser}:
        node.refusals(RejectCode.ORGANISER, author, "it names founders, but is not the organiser of the invite")
    if organiser in said and genesis_in(said[organiser], run, organiser) is not None:
        return said[organiser]
    peers = (await around(node, ()))[:ASK_GENESIS_MOST]
    for peer, answer in zip(peers, await asyncio.gather(*(ask_genesis(node, peer) for peer in peers)), strict=True):
        if answer is None:
            continue
        if genesis_in(answer, run, organiser) is not None:
            return answer
        node.refusals(RejectCode.ORGANISER, peer, "it gives a genesis that the organiser of the invite has not signed")
    return None


def _require_organiser(path: Path, organiser: str) -> None:
    """Raises RunMismatch."""
    with raising_damaged(path):
        author = unpack(path.read_bytes()).author
    if author != organiser:
        raise RunMismatch(
            f"{path} names the founders in the name of {fingerprint_words(author)}, the invite is of "
            f"{fingerprint_words(organiser)}: another organiser; ask for an invite of the run that this folder "
            "belongs to, or join with a new folder"
        )


def _checked(genesis: Genesis, state: bytes) -> Genesis:
    require_same_start(genesis, state)
    return genesis


def _digest(served: bytes) -> bytes:
    """Raises BadSpec."""
    try:
        return specs.parse(served.decode(), "the run's spec").digest()
    except UnicodeDecodeError as error:
        raise BadSpec("the run's spec is not TOML: it is not UTF-8 text") from error
