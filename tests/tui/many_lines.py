"""Event lines of a large swarm, as its peers write them: every type, a straggler and an anomaly in each round."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import asdict

from peer.schema.events import (
    AlertRaised,
    CheckpointWritten,
    DeviceMeasured,
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
)

BEGAN_T = 1_700_000_000.0
ROUND_S = 70.0
PROGRESS_EVERY_S = 3.0
PHASES = ("submit", "prepare", "exchange", "weigh", "reduce", "commit", "apply")


def make_lines(count: int, *, peers: int = 200, group: int = 64, seed: int = 1) -> list[str]:
    """The first `count` lines, by time, of `peers` of whom `group` are in each round."""
    rng = random.Random(seed)
    ids = [f"12D3KooW{rng.getrandbits(176):044x}" for _ in range(peers)]
    texts: list[str] = []
    round = 0
    made = [(BEGAN_T, peer, event) for peer in ids for event in _start(peer)]
    while len(texts) < count:
        if round:
            made = list(_round(round - 1, rng.sample(ids, group), BEGAN_T + round * ROUND_S, rng))
        made.sort(key=lambda item: item[0])
        texts += [
            format_line(EventLine(seq=number, t=t, run="43a57058be2b733b", peer=peer, event=event))
            for number, (t, peer, event) in enumerate(made, start=len(texts))
        ]
        round += 1
    return texts[:count]


def _start(peer: str) -> Iterator[Event]:
    yield PeerStarted(name=f"peer-{peer[-4:]}", version="0.1.0", device="cuda", parameters=10**9)
    yield PeerStateChanged(state="TRAINING", why="towards round 1")


def _round(round: int, members: list[str], t: float, rng: random.Random) -> Iterator[tuple[float, str, Event]]:
    committed = _committed(round + 1, members, rng)
    for peer in members:
        yield t, peer, RoundStarted(round=round, steps=200)
        for step in range(20):
            at = t + step * PROGRESS_EVERY_S + rng.random()
            yield at, peer, InnerProgressed(
                round=round, step=10 * step, steps=200, loss=3 + rng.random(), tokens=4096,
                tokens_per_s=1000 * rng.random(), learning_rate=1e-3,
            )  # fmt: skip
        other = members[(members.index(peer) + 1) % len(members)]
        yield t + 60, peer, ReportReceived(about=other, round=round, ready=True, tokens=81_920, steps=200)
        yield t + 60, peer, DeviceMeasured(cpu_percent=10.0, gpu_percent=98.0)
        yield t + 60, peer, NetworkMeasured(
            addresses=["/ip4/192.0.2.1/tcp/31337"], reach="direct", bytes_sent=round, bytes_received=round,
            peers=[
                {"peer": other, "address": "", "relayed": False, "bytes_sent": 1, "bytes_received": 1, "rtt_s": 0.1}
            ],
        )  # fmt: skip
        yield t + 60.5, peer, PeerStateChanged(state="AVERAGING", why=f"round {round + 1} is being agreed")
        for number, phase in enumerate(PHASES):
            yield t + 60 + number, peer, PhaseEntered(round=round, phase=phase, deadline=t + 80)
        yield t + 67, peer, committed
        for row in committed.penalties:
            yield t + 67, peer, PenaltyImposed(**row)
        yield t + 68, peer, CheckpointWritten(round=round + 1, path="checkpoints/1", bytes=10**9)
    yield t + 68, members[0], Evaluated(round=round + 1, loss=3 / (1 + round / 10), tokens=4096)
    yield t + 68, members[0], AlertRaised(level="warning", code="DISK", text="the disk is nearly full")


def _committed(round: int, members: list[str], rng: random.Random) -> RoundCommitted:
    late = PenaltyImposed(
        about=members[0], code="LATE", layer="", evidence="12 of 24 parts came in time", factor=0.5,
        until_round=round + 1,
    )  # fmt: skip
    anomaly = PenaltyImposed(
        about=members[1], code="ANOMALY", layer="model.layers.2", evidence="norm 7.3 where 0.9 is usual", factor=0.3,
        until_round=round + 1,
    )  # fmt: skip
    return RoundCommitted(
        round=round, digest=f"{rng.getrandbits(256):064x}", state=f"{rng.getrandbits(256):064x}", group=members,
        weights=dict.fromkeys(members, 65_536 // len(members)), penalties=[asdict(late), asdict(anomaly)],
        tokens=81_920 * len(members), bytes_sent=10**7, bytes_received=10**7, round_s=ROUND_S, exposed_s=8.0,
        norms={peer: rng.random() for peer in members},
    )  # fmt: skip
