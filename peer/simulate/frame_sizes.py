"""How many bytes a message takes on the wire, from what is in it: nothing is encoded to know it.

The fixed shares are what msgpack makes of the fields; `tests/peer/simulate/test_frame_sizes.py` holds them against
the real encoding. A part, and a mean, take what the run's codec says.
"""

from __future__ import annotations

from collections.abc import Sequence

from peer.protocol.accusations import NormDispute
from peer.protocol.block import ContributionHeader, SignedNorms, Update
from peer.protocol.messages import (
    Blocks,
    GetBlocks,
    GetMeans,
    GetObjects,
    Heartbeat,
    MeanData,
    Message,
    Norms,
    NormTable,
    ObjectData,
    PartData,
    Prepare,
    Promise,
    Propose,
    Reassign,
    Start,
    VoteCast,
)

PLACE, DIGEST, SIGNATURE = 73, 34, 66
PEER = 54
"""A peer id of libp2p with its length."""
PLEDGE = PEER + 2 * DIGEST + SIGNATURE + 24
RANGE = 12
"""One range of data in a pledge."""
HEAD, VOTE = 130, PEER + 2 * DIGEST + 2 * SIGNATURE + 10
LEAST = 90


class Sizes:
    """Of the messages of one run. `token_bytes` is what stands for a part in a simulation, `part_bytes` what it takes.

    Parts of different sizes are told apart by their number in the fragment that a round averages; where a message does
    not say its round, as an answer to FETCH, a part takes the mean of all.
    """

    def __init__(self, part_bytes: Sequence[int], mean_bytes: Sequence[int], token_bytes: int) -> None:
        self._part_bytes, self._mean_bytes, self._token_bytes = tuple(part_bytes), tuple(mean_bytes), token_bytes
        self._usual_bytes = sum(mean_bytes) // len(mean_bytes)
        self._last: Message | None = None
        self._last_bytes = 0
        self._newest: tuple[bytes, int] = (b"", 0)

    def of(self, message: Message) -> int:
        """Bytes of a frame. What goes to many is looked at once."""
        if message is not self._last:
            self._last, self._last_bytes = message, self._of(message)
        return self._last_bytes

    def _of(self, message: Message) -> int:
        match message:
            case Heartbeat():
                return HEAD
            case VoteCast():
                return PLACE + VOTE
            case PartData(part=part, path=path, payload=payload):
                return PLACE + 6 + DIGEST * len(path) + self._part_bytes[part]
            case MeanData(part=part, payload=payload):
                return PLACE + PEER + 2 * DIGEST + SIGNATURE + 16 + (self._mean_bytes[part] if payload else 0)
            case ObjectData(payload=payload):
                return 5 + (self._usual_bytes if len(payload) == self._token_bytes else len(payload))
            case Prepare(electorate=electorate):
                return PLACE + 4 + PEER * len(electorate)
            case Promise(pledge=pledge):
                return PLACE + 6 + _pledge(pledge)
            case Start(pledges=pledges):
                return PLACE + 6 + sum(map(_pledge, pledges))
            case Norms(measurements=found):
                return PLACE + 4 + _measurements(found)
            case NormTable(measured=measured):
                return PLACE + 6 + sum(map(_measurements, measured))
            case Propose(update=update):
                return PLACE + SIGNATURE + self._update(update)
            case Blocks(blocks=blocks):
                return 4 + sum(self._update(block.update) + VOTE * len(block.votes) for block in blocks)
            case GetObjects(digests=named) | GetBlocks(anchors=named):
                return 5 + DIGEST * len(named)
            case GetMeans(parts=parts):
                return PLACE + 4 + 3 * len(parts)
            case Reassign(parts=orders):
                return PLACE + 4 + (PEER + 4) * len(orders)
            case NormDispute():
                return 400
        return LEAST

    def _update(self, update: Update) -> int:
        """Of the newest update, about which nearly all talk, it is known."""
        if update.digest != self._newest[0]:
            self._newest = update.digest, update_bytes(update)
        return self._newest[1]


def update_bytes(update: Update) -> int:
    """Of an update as it stands in a proposal or in the chain."""
    layers, members = len(update.weights), len(update.members)
    return (
        2 * DIGEST + PEER + 60
        + sum(map(_pledge, update.members)) + PEER * len(update.elect)
        + len(update.parts) * (DIGEST + 3) + 4 * layers * members + 90 * len(update.penalties)
        + 16 * members + 6 * layers + sum(map(_measurements, update.measured))
        + sum(PEER + 20 + 11 * len(record.stats) + len(record.roots) for record in update.records)
    )  # fmt: skip


def _pledge(pledge: ContributionHeader) -> int:
    return PLEDGE + RANGE * len(pledge.ranges) + 120 * len(pledge.reports)


def _measurements(found: SignedNorms) -> int:
    rows = sum(8 + 5 * (len(row.squares) + len(row.dots)) for row in found.rows)
    return PEER + SIGNATURE + 6 + 5 * len(found.received) + rows
