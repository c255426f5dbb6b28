"""Swarms that are made up, and a source that shows one: what a screen draws is known exactly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType

from textual.pilot import Pilot

from peer.schema.events import NetworkMeasured, TransferProgressed
from tests.tui.dashboard.screen import press, settled
from tui.dashboard.app import Dashboard, ExitReason
from tui.sources.replay import RecordingSource
from tui.sources.source import PeerCommands
from tui.swarm.snapshot import WEIGHT_ONE, PeerView, PenaltyRecord, Point, Round, Span, SwarmState

START = 1_800_000_000.0
ROUND_S = 10.0
PHASES = (
    ("train", 0.0),
    ("submit", 6.0),
    ("prepare", 6.5),
    ("exchange", 7.0),
    ("weigh", 8.5),
    ("reduce", 9.0),
    ("commit", 9.5),
)


class Canned:
    """A source that always shows the same swarm; `swarm` can be replaced."""

    title = "canned"
    control: PeerCommands | None = None
    playback: RecordingSource | None = None
    ended = ""

    def __init__(self, swarm: SwarmState, *, me: str = "") -> None:
        self.swarm, self.me = swarm, me

    def open(self) -> None:
        pass

    def advance(self, now_s: float) -> SwarmState:
        return self.swarm

    def time(self, now_s: float) -> float:
        return now_s

    def close(self) -> None:
        pass


def dashboard(swarm: SwarmState, *, me: str = "", ascii_only: bool = False, mono: bool = False) -> Dashboard:
    """The application on a made-up swarm, with the clock stopped at its last moment."""
    now = swarm.last_t or START
    return Dashboard(Canned(swarm, me=me), clock=lambda: now, ascii_only=ascii_only, mono=mono)


def peer_id(number: int) -> str:
    return f"12D3KooWpeer{number:06}"


def swarm_of(peers: int, rounds: int = 6, *, penalties: Sequence[PenaltyRecord] = ()) -> SwarmState:
    """`peers` peers that made `rounds` rounds of 10 s each, peer-2 late in round 3, and are half way in the next."""
    ids = [peer_id(number) for number in range(1, peers + 1)]
    end_t = START + rounds * ROUND_S + 5.0
    return SwarmState(
        run="canned", round=rounds, rounds=rounds + 4, started_t=START, last_t=end_t, tokens=rounds * peers * 1000,
        peers=MappingProxyType({peer: peer_view(number, rounds) for number, peer in enumerate(ids, start=1)}),
        history=tuple(round_view(number, ids) for number in range(1, rounds + 1)),
        evaluations=curve(rounds, 5.0), training=curve(rounds, 5.2), speeds=curve(rounds, 900.0),
        penalty_log=tuple(penalties),
    )  # fmt: skip


def peer_view(number: int, rounds: int) -> PeerView:
    return PeerView(
        peer=peer_id(number), name=f"peer-{number}", reports=True, state="TRAINING", round=rounds, phase="",
        spans=spans_of(number, rounds), losses=curve(rounds, 5.3), norms=curve(rounds, 8.0),
        speeds=curve(rounds, 400.0), learning_rates=curve(rounds, 0.001), started_t=START,
        seen_t=START + rounds * ROUND_S,
    )  # fmt: skip


def spans_of(number: int, rounds: int) -> tuple[Span, ...]:
    spans = []
    for round in range(rounds):
        began_t = START + round * ROUND_S
        spans += [Span(t=began_t + after_s, phase=phase, round=round + 1) for phase, after_s in PHASES]
        if (number, round) == (2, 2):
            spans[-3:] = [Span(t=began_t + 8.0, phase="late", round=3)]
    return (*spans, Span(t=START + rounds * ROUND_S, phase="train", round=rounds + 1))


def round_view(number: int, ids: Sequence[str], *, weights: Sequence[int] = (), given: Sequence[int] = ()) -> Round:
    """Round `number` by these peers: equal weights and 1000 tokens each, unless said."""
    weights, given = weights or [WEIGHT_ONE // len(ids)] * len(ids), given or [1000] * len(ids)
    return Round(
        round=number, t=START + number * ROUND_S, digest=f"{number:064x}", group=tuple(ids),
        weights=MappingProxyType(dict(zip(ids, weights, strict=True))),
        norms=MappingProxyType({peer: 8.0 + index for index, peer in enumerate(ids)}), tokens=sum(given),
        median_norm=8.0 + (len(ids) - 1) / 2,
        round_s=ROUND_S, exposed_s=1.0, void=0, bytes_sent=100_000, bytes_received=90_000, penalties=(), aborted=0,
        counted=MappingProxyType(dict(zip(ids, given, strict=True))), outcomes=MappingProxyType({}), reporters=len(ids),
    )  # fmt: skip


def curve(rounds: int, first: float) -> tuple[Point, ...]:
    """A curve that falls from `first` to its half."""
    return tuple(
        Point(t=START + number * ROUND_S, round=number, tokens=number * 6000, value=first * (1 - number / rounds / 2))
        for number in range(1, rounds + 1)
    )


def penalty(
    code: str = "LATE", *, about: int = 2, told: int = 3, factor: float = 0.5, until: int = 4, layer: str = "",
    evidence: str = "12 of 24 parts came in time",
) -> PenaltyRecord:  # fmt: skip
    return PenaltyRecord(
        t=START + told * ROUND_S, imposed_in=told, about=peer_id(about), code=code, layer=layer, evidence=evidence,
        factor=factor, until_round=until,
    )  # fmt: skip


async def visit(pilot: Pilot[ExitReason], *keys: str) -> None:
    """Press keys, each once the screen has taken in the one before."""
    await settled(pilot)
    await press(pilot, *keys)


def with_network(swarm: SwarmState, peer: str, network: NetworkMeasured, *transfers: TransferProgressed) -> SwarmState:
    view = replace(
        swarm.peers[peer],
        network=network,
        transfers=MappingProxyType({transfer.what: transfer for transfer in transfers}),
        transfer=transfers[0] if transfers else None,
    )
    return replace(swarm, peers=MappingProxyType({**swarm.peers, peer: view}))
