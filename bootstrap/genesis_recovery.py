"""A genesis that the organiser's folder has lost: peers that train keep it, signed, and give it back."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from contextlib import suppress

from bootstrap.founding import GenesisFile
from dht.errors import Unreachable
from dht.node import Node
from dht.records import MAX_RECORD_BYTES, Malformed, PeerRecord, Record, unpack

ASK_S = 5.0
ASK_MOST = 8
"""Peers at a time."""


async def restore(node: Node, file: GenesisFile, heads: Mapping[str, PeerRecord]) -> bool:
    """Whether a peer that trains in this run already gave back what this organiser has signed."""
    training = [peer for peer, head in heads.items() if head.round >= 0]
    asked = random.sample(training, min(ASK_MOST, len(training)))
    answers = await asyncio.gather(*(_ask_genesis(node, peer) for peer in asked))
    for answer in answers:
        with suppress(Malformed):
            if answer is not None and file.restore(answer):
                return True
    return False


async def _ask_genesis(node: Node, peer: str) -> Record | None:
    with suppress(Unreachable, Malformed):
        served = await node.ask(peer, "genesis", ASK_S, MAX_RECORD_BYTES)
        return None if served is None else unpack(served)
    return None
