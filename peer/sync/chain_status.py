"""Who can give me a snapshot, whether I need one, and which."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dht.errors import Unreachable
from dht.streams.base import Asking
from peer.sync.blob_server import CHAIN_STATUS, STANDING_BYTES, ChainStatus, SnapshotOffer, ask_chain_status

ASK_TIMEOUT_S = 8.0
ASK_MOST = 16


@dataclass(frozen=True, kw_only=True)
class SnapshotChoice:
    """A snapshot, and who offers it."""

    offer: SnapshotOffer
    donors: tuple[str, ...]


async def query_status(asker: Asking, peers: Iterable[str], anchors: tuple[bytes, ...]) -> dict[str, ChainStatus]:
    """What these peers say of their chains, by peer; who does not answer, or says nonsense, is left out."""
    everybody = sorted(peers)
    asked = random.sample(everybody, min(ASK_MOST, len(everybody)))
    answers = await asyncio.gather(*(_ask(asker, peer, ask_chain_status(anchors)) for peer in asked))
    return {peer: answer for peer, answer in zip(asked, answers, strict=True) if answer is not None}


async def _ask(asker: Asking, peer: str, request: bytes) -> ChainStatus | None:
    try:
        answer = await asker.ask(peer, CHAIN_STATUS, ASK_TIMEOUT_S, STANDING_BYTES, request)
        return None if answer is None else ChainStatus.from_bytes(answer)
    except (Unreachable, ValueError):
        return None


def is_cut_off(standings: Mapping[str, ChainStatus], my_weight: int) -> bool:
    """Whether most have done more, and none of them still has what follows an anchor of mine."""
    ahead = [standing for standing in standings.values() if standing.weight > my_weight]
    return 2 * len(ahead) > len(standings) and all(standing.shared < 0 for standing in ahead)


def is_shorter(choice: SnapshotChoice, standings: Mapping[str, ChainStatus], my_round: int, round_bytes: int) -> bool:
    """Whether the snapshot and what follows it are fewer bytes than all updates since my round, of `round_bytes`."""
    goal = max(standing.round for standing in standings.values())
    return choice.offer.vector_bytes + (goal - choice.offer.round) * round_bytes < (goal - my_round) * round_bytes


def choose_snapshot(
    standings: Mapping[str, ChainStatus], refused: frozenset[bytes] = frozenset()
) -> SnapshotChoice | None:
    """The newest snapshot that most of those who offer any have: two at least, if two answer."""
    offered: dict[int, dict[SnapshotOffer, list[str]]] = defaultdict(lambda: defaultdict(list))
    for peer, standing in sorted(standings.items()):
        for offer in standing.offers:
            if offer.manifest not in refused:
                offered[offer.round][offer].append(peer)
    offering = sum(bool(standing.offers) for standing in standings.values())
    for round in sorted(offered, reverse=True):
        alike = sorted(offered[round].items(), key=lambda item: len(item[1]), reverse=True)
        offer, donors = alike[0]
        if len(donors) >= min(2, len(standings)) and 2 * len(donors) > offering:
            return SnapshotChoice(offer=offer, donors=tuple(donors))
    return None
