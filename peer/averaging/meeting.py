"""Before the first round: find out what the run is, and who founds it."""

from __future__ import annotations

import asyncio
import itertools
import time
from contextlib import suppress
from pathlib import Path

from dht.addresses import peer_id_in
from dht.errors import HomefiresError, Unreachable
from dht.files import write_whole
from dht.invite import Invite
from dht.node import Node
from dht.records import Genesis
from dht.records import pack as pack_record
from peer import spec as specs
from peer.averaging.blocks import read_genesis, require_same_start
from peer.averaging.notices import Notices
from peer.averaging.pipe import LinkLost, LinkPipe
from peer.rounds.messages import HeadSent

SPEC_TIMEOUT_S = 30.0
ASK_TIMEOUT_S = 10.0
ASK_AGAIN_S = 0.5
MAX_SPEC_BYTES = 1 << 16
LAYERS = "layers"
"""Under this name a link gives the sizes of the model's layers, for who checks the chain without a model."""
OFFER_EVERY_S = 20.0
LOOK_EVERY_S = 0.5


async def find_spec(node: Node, invite: Invite, directory: Path) -> str:
    """The spec's text, from my disk or from whoever the invite names; its hash is the invite's.

    A stream may be cut at any time, so everyone is asked again until `SPEC_TIMEOUT_S`. Raises Unreachable.
    """
    path = directory / "spec.toml"
    if path.exists() and _matches(path.read_bytes(), invite.spec_hash):
        return path.read_text()
    failures: dict[str, str] = {}
    with suppress(TimeoutError):
        async with asyncio.timeout(SPEC_TIMEOUT_S):
            served = await _ask_until_given(node, invite, failures)
            text = specs.dump(specs.parse(served.decode()))
            write_whole(path, text.encode())  # as this program writes it, so that an audit can tell every byte
            return text
    raise Unreachable(f"the run's spec could not be fetched: {'; '.join(failures.values())}")


async def _ask_until_given(node: Node, invite: Invite, failures: dict[str, str]) -> bytes:
    """Ask one address after the other; why one failed is left in `failures`, by peer."""
    for address in itertools.cycle(invite.addrs):
        peer = peer_id_in(address)
        try:
            served = await node.ask(peer, "spec", ASK_TIMEOUT_S, MAX_SPEC_BYTES)
        except Unreachable as error:
            failures[peer] = str(error)
        else:
            if served is not None and _matches(served, invite.spec_hash):
                return served
            failures[peer] = f"{peer} serves another spec"
        await asyncio.sleep(ASK_AGAIN_S)
    raise AssertionError("an invite names at least one address")


async def find_genesis(notices: Notices, pipe: LinkPipe, organiser: str, directory: Path, state: bytes) -> Genesis:
    """The founders, named once by the organiser; until then this peer offers itself with its initial `state`.

    Raises RunMismatch if the founders start from other parameters, LinkLost if the trainer leaves.
    """
    path = directory / "genesis"
    if path.exists():
        return _checked(read_genesis(directory), state)
    offered_at = float("-inf")
    while (record := await notices.read_genesis(organiser)) is None:
        if offered_at == float("-inf"):
            pipe.send("waiting", "waiting for the organiser to name the founders")
        if time.monotonic() - offered_at > OFFER_EVERY_S:
            offered_at = time.monotonic()
            await notices.publish(HeadSent(b"", -1, 0, state, True, 0, 0, False))
        await _pause(pipe, LOOK_EVERY_S)
    write_whole(path, pack_record(record))
    return _checked(read_genesis(directory), state)


async def _pause(pipe: LinkPipe, seconds: float) -> None:
    """Wait, but let go at once when the trainer ends: it has nothing else to say yet."""
    try:
        async with asyncio.timeout(seconds):
            kind, *_ = await pipe.receive()
    except TimeoutError:
        return
    assert kind in ("leave", "finish"), kind
    raise LinkLost


def _checked(genesis: Genesis, state: bytes) -> Genesis:
    require_same_start(genesis, state)
    return genesis


def _matches(served: bytes, run: bytes) -> bool:
    try:
        return specs.parse(served.decode()).digest() == run
    except (HomefiresError, UnicodeDecodeError):
        return False
