"""Event lines of a large swarm that does not exist: always the same ones, for any clock."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from peer.schema.events import (
    AlertRaised,
    Evaluated,
    Event,
    EventLine,
    InnerProgressed,
    NetworkMeasured,
    PeerStarted,
    PeerStateChanged,
    PenaltyImposed,
    PhaseEntered,
    ReportReceived,
    RoundCommitted,
    RoundStarted,
    format_line,
)  # fmt: skip

STEPS = 12
"""Events that each peer tells of a round."""
PHASES = ("submit", "prepare", "exchange", "reduce", "commit", "apply")
WEIGHT_ONE = 65_536


@dataclass(frozen=True, kw_only=True)
class Stream:
    """`peers` peers in groups of at most `group`. Event i is told by peer i modulo `peers`, each in its own phase."""

    peers: int
    group: int = 64

    def peer_id(self, number: int) -> str:
        """As long as real ones."""
        return "12D3KooW" + hashlib.sha256(str(number).encode()).hexdigest()[:44]

    def starts(self, t: float) -> Iterator[str]:
        """Every peer is there, and trains."""
        for number in range(self.peers):
            started = PeerStarted(
                name=f"home-{number}", version="0.1.0", device="cpu", parameters=5 * 10**7, rounds=10_000
            )
            yield self._line(number, 0, t, started)
            yield self._line(number, 1, t, PeerStateChanged(state="TRAINING", why="towards round 1"))

    def line(self, index: int, t: float) -> str:
        """Event line `index` at `t`."""
        number, turn = index % self.peers, index // self.peers
        round, step = divmod(turn + number % STEPS, STEPS)
        rare = self._rare(index, number, round)
        return self._line(number, turn + 2, t, rare or self._usual(number, step, round))

    def _line(self, number: int, seq: int, t: float, event: Event) -> str:
        return format_line(EventLine(seq=seq, t=t, run="benchmark", peer=self.peer_id(number), event=event))

    def _usual(self, number: int, step: int, round: int) -> Event:
        if step == 0:
            return RoundStarted(round=round, steps=400)
        if step < 5:
            return InnerProgressed(
                round=round, step=100 * step, steps=400, loss=2.0 + 3.0 / (1 + round) + 0.01 * (number % 7),
                tokens=51_200 * step, tokens_per_s=900.0 + number, learning_rate=0.001,
            )  # fmt: skip
        if step < 11:
            return PhaseEntered(round=round, phase=PHASES[step - 5])
        return self._commit(number, round)

    def _commit(self, number: int, round: int) -> Event:
        first = number - number % self.group
        members = [self.peer_id(member) for member in range(first, min(first + self.group, self.peers))]
        return RoundCommitted(
            round=round + 1, digest=hashlib.sha256(f"{round}".encode()).hexdigest(), state="0" * 64, group=members,
            weights=dict.fromkeys(members, WEIGHT_ONE // len(members)), penalties=[], tokens=200_000 * len(members),
            bytes_sent=12_000_000, bytes_received=12_000_000, round_s=120.0, exposed_s=2.0,
            norms={member: 8.0 + index / 100 for index, member in enumerate(members)},
        )  # fmt: skip

    def _rare(self, index: int, number: int, round: int) -> Event | None:
        other = self.peer_id((number + 1) % self.peers)
        if index % 41 == 0:
            return PenaltyImposed(
                about=other, code=("LATE", "ANOMALY", "CLIPPED")[index % 3], layer="", evidence=f"event {index}",
                factor=0.5, until_round=round + 2,
            )  # fmt: skip
        if index % 53 == 0:
            return Evaluated(round=round, loss=2.0 + 3.0 / (1 + round), tokens=4096)
        if index % 61 == 0:
            return AlertRaised(level="warning", code="SLOW", text=f"event {index}")
        if index % 67 == 0:
            return ReportReceived(about=other, round=round, ready=True, tokens=51_200, steps=400)
        return self._network(index) if index % 71 == 0 else None

    def _network(self, index: int) -> Event:
        rows = [
            {"peer": self.peer_id(other), "address": f"/ip4/10.0.0.{other}/tcp/4001", "relayed": other % 5 == 0,
             "bytes_sent": index, "bytes_received": index, "rtt_s": 0.02}
            for other in range(min(self.peers, 32))
        ]  # fmt: skip
        return NetworkMeasured(
            addresses=["/ip4/10.0.0.1/tcp/4001"], reach="direct", bytes_sent=1000 * index, bytes_received=900 * index,
            peers=rows, disk_bytes=10**9, disk_quota_bytes=4 * 10**9,
        )  # fmt: skip
