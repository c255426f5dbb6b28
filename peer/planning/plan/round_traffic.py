"""The traffic of a round and the time it takes: bytes up and down, frames, delays.

As in the protocol (`peer/consensus/protocol/layout.py`), parts in model order are cut into contiguous runs, one per
member in proportion to its upload, which rotate. Each member sends its part of every run that is not its own (up), and
receives from each owner the means of its run (down). So each sends and receives 2 (n − 1)/n copies of what is averaged,
as in any reduce-scatter and all-gather (arXiv:2503.09799, appendix A), but not always at the same time: runs are whole
parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from peer.consensus.codec.codec import Codec
from peer.consensus.codec.rows import ROW_BYTES as SKETCH_BYTES
from peer.consensus.protocol.layout import assign, cut, divide, shares_of
from peer.planning.plan.model_shape import ModelShape
from peer.planning.plan.peer_set import FASTEST_BPS, PeerSet
from peer.schema.spec import RunSpec

BURST_S = 0.1
"""A capped line that was idle lets the data of this many seconds pass at once (`dht.streams.shaper`)."""
FRAME_BYTES = 320
"""The overhead of a part: place, path in the Merkle tree, signature, headers. Our count of the fields."""
CONTROL_BYTES = 400
"""The size of a small message: a header, a vote, a head. Our count, too."""
ROW_BYTES = 40
"""The size of an update per part, and again per layer and member: digests and declared norms."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Runs:
    """How one fragment is shared out: the elements and parts of each member's contiguous run."""

    elements: tuple[int, ...]
    parts: tuple[int, ...]
    layers: int

    @property
    def total(self) -> int:
        return sum(self.elements)


@lru_cache(maxsize=64)
def runs_of(
    layers: tuple[int, ...], part_elements: int, fragments: int, shares: tuple[int, ...], turn: int = 0
) -> tuple[Runs, ...]:
    """The runs by fragment, among members with these shares; `turn` is the member that comes first."""
    found = []
    names = [f"{member:05d}" for member in range(len(shares))]
    ranked, their_shares = [*names[turn:], *names[:turn]], [*shares[turn:], *shares[:turn]]
    for fragment in divide(cut(layers, part_elements), fragments):
        owners = assign(fragment.parts, ranked, their_shares, 0)
        elements, parts = dict.fromkeys(names, 0), dict.fromkeys(names, 0)
        for part, owner in zip(fragment.parts, owners, strict=True):
            elements[owner] += part.size
            parts[owner] += 1
        found.append(
            Runs(elements=tuple(elements.values()), parts=tuple(parts.values()), layers=len(fragment.layers))
        )  # fmt: skip
    return tuple(found)


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """The traffic of one round, averaged over fragments and rotations."""

    up_bytes: float
    """The bytes that one member sends, and receives."""
    send_wire_s: float
    """Seconds from the first part to the last, on the slowest line."""
    means_wire_s: float
    messages: float
    """The number of small frames, summed over all members."""


def traffic_of(shape: ModelShape, spec: RunSpec, swarm: PeerSet) -> Traffic:
    """The traffic of a round of all peers in a swarm, with the spec's codec and fragments."""
    return _traffic_of(shape, swarm, spec.codec.wire, spec.codec.part_elements, spec.round.fragments)


@lru_cache(maxsize=64)
def _traffic_of(shape: ModelShape, swarm: PeerSet, wire: str, part_elements: int, fragments: int) -> Traffic:
    members = len(swarm)
    if members == 1:
        return Traffic(up_bytes=0, send_wire_s=0, means_wire_s=0, messages=0)
    up, down = (np.array([getattr(machine, f"{way}_bps") for machine in swarm.machines]) / 8
                for way in ("upload", "download"))  # fmt: skip
    pairs = swarm.network.bandwidth_bps / 8
    cut_by = (shape.layers, part_elements, fragments, _shares(swarm))
    layouts = [runs for turn in _turns(members) for runs in runs_of(*cut_by, turn)]
    codec = Codec(wire)
    rows = [_exchange(runs, codec, up, down, pairs) for runs in layouts]
    send_s, means_s = (float(np.mean([row[way] for row in rows])) for way in (0, 1))
    whole, means = (
        float(np.mean([each.part_bytes(runs.total) + (FRAME_BYTES + rows) * sum(runs.parts) for runs in layouts]))
        for each, rows in ((codec, 0), (codec.of_means, SKETCH_BYTES * members))
    )
    control = float(np.mean([_control_bytes(runs, members) for runs in layouts]))
    sent = (members - 1) / members * (whole + means) + control
    return Traffic(
        up_bytes=sent, send_wire_s=send_s, means_wire_s=means_s,
        messages=4 * members + 4 * members * (members - 1),  # of a round without faults, heartbeats included
    )  # fmt: skip


def _shares(swarm: PeerSet) -> tuple[int, ...]:
    """Upload shares in 32nds of the largest: lines are measured again in every round, with nearly the same result."""
    shares = shares_of([round(min(machine.upload_bps, FASTEST_BPS)) for machine in swarm.machines])
    return tuple(max(1, round(32 * share / max(shares))) for share in shares)


def _turns(members: int) -> range:
    """All rotations of a few members, and every n-th rotation of many."""
    return range(0, members, max(1, members // 8))


def _control_bytes(runs: Runs, members: int) -> float:
    """The bytes of control messages that one member sends: its votes and heads to all, and its share of what the
    coordinator sends."""
    update = ROW_BYTES * (sum(runs.parts) + runs.layers * members) + members * CONTROL_BYTES
    return (members - 1) / members * (4 * members * CONTROL_BYTES + 2 * update)


def _exchange(
    runs: Runs, codec: Codec, up: Floats, down: Floats, pairs: Floats
) -> tuple[float, float]:  # fmt: skip
    """Seconds that lines need for parts and for means; `up`, `down` and `pairs` in bytes per second."""
    members = len(runs.elements)
    parts, means = _of_each(runs, codec, 0), _of_each(runs, codec.of_means, SKETCH_BYTES * members)
    parts_s = max(
        ((parts.sum() - parts) / up).max(), ((members - 1) * parts / down).max(), _over_pairs(parts[None, :] / pairs)
    )  # fmt: skip
    means_s = max(
        ((members - 1) * means / up).max(), ((means.sum() - means) / down).max(), _over_pairs(means[:, None] / pairs)
    )  # fmt: skip
    return float(parts_s), float(means_s)


def _of_each(runs: Runs, codec: Codec, rows_bytes: int) -> Floats:
    """The bytes of each member's run, including frames and the rows that follow each part."""
    found: Floats = np.array([codec.part_bytes(each) for each in runs.elements], dtype=np.float64)
    found += (FRAME_BYTES + rows_bytes) * np.array(runs.parts)
    return found


def _over_pairs(seconds: Floats) -> float:
    seconds = seconds.copy()
    np.fill_diagonal(seconds, 0.0)
    return float(seconds.max())


def line_s(wire_s: float, capped: bool) -> float:
    """The seconds of a transfer that are noticed: the token bucket of an idle line is full."""
    return max(0.0, wire_s - BURST_S) if capped else wire_s


@dataclass(frozen=True, kw_only=True)
class Delays:
    """One-way delays of a swarm, in seconds."""

    leader_s: float
    """From a coordinator to the farthest peer, averaged over coordinators, since peers take turns."""
    longest_s: float
    """Between the two peers that are farthest apart."""


def delays_of(swarm: PeerSet) -> Delays:
    """The delays of a swarm; zero for a single peer."""
    if len(swarm) == 1:
        return Delays(leader_s=0.0, longest_s=0.0)
    delay_s = swarm.network.symmetrised().delay_s.copy()
    np.fill_diagonal(delay_s, 0.0)
    farthest: Sequence[float] = delay_s.max(axis=1).tolist()
    return Delays(leader_s=float(np.mean(farthest)), longest_s=max(farthest))
