"""Every figure that people are shown, defined once: screens, the plain log, `status` and the report ask here.

`now` is Unix time, that of the wall clock or of a recording's playhead. None means that a figure is not known, or that
there is none: a peer that has left or rests has no live figures.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from peer.schema.events import DeviceMeasured, RoundForecast
from tui.swarm.phase_styles import STATES, ShownState, penalty_code, state_named
from tui.swarm.snapshot import WEIGHT_ONE, LogEntry, PeerView, PenaltyRecord, Point, Round, SwarmState

HASH_SHOWN = 8
"""Characters of the hash of a run that nobody names."""
SILENT_S = 60.0
"""A peer that does not report itself, and was not heard for longer than this and two rounds, is gone."""

# ---- what the run is ----


def trains(swarm: SwarmState) -> str:
    """What is trained on which texts, in the words of a peer that reports it; empty if none does."""
    return next((peer.trains for peer in tellers(swarm) if peer.trains), "")


def run_name(swarm: SwarmState) -> str:
    """As its organiser calls it, else the beginning of its hash."""
    return trains(swarm).partition(":")[0] or swarm.run[:HASH_SHOWN]


def parameters(swarm: SwarmState) -> int | None:
    """The number of trained parameters, as reported by peers."""
    return next((peer.parameters for peer in swarm.reporting if peer.parameters), None)


MENDED_BY_A_ROUND = frozenset({"STANDS_STILL", "STUCK", "ABORTED", "CLOCK", "LINK", "RESTART"})
"""Alerts of what keeps a peer from its round: once it has committed one, they are about what was."""


MENDED_BY_A_START = frozenset({"STOPPED", "GONE", "TOKEN"})
"""Alerts of what ended a process of the peer, or kept it out: once another one has started, they are about what was."""


NAMED_SETTING = re.compile(r"(memory_gb) is ([\d.]+),")
"""How an alert begins that is about a setting: with another value it is about what was."""


def standing_alerts(swarm: SwarmState) -> list[LogEntry]:
    """Warnings and errors of what is not mended yet, as far as anybody can know that; the oldest first, and of equal
    ones the newest."""
    standing = [entry for entry in swarm.entries if entry.level != "info" and not _is_mended(swarm, entry)]
    newest = {(entry.peer, entry.code, entry.text): entry for entry in standing}
    return [entry for entry in standing if newest[entry.peer, entry.code, entry.text] is entry]


def _is_mended(swarm: SwarmState, entry: LogEntry) -> bool:
    peer = swarm.peers.get(entry.peer)
    if entry.code in MENDED_BY_A_START:
        return peer is not None and peer.started_t is not None and peer.started_t > entry.t
    if peer is not None and (named := NAMED_SETTING.match(entry.text)) and named[1] in peer.settings:
        return f"{peer.settings[named[1]]:g}" != named[2]
    if entry.code == "PAUSED":
        return peer is not None and peer.state != entry.code
    if entry.code == "FORECAST":  # a later round may leave time enough, and another process knows nothing of it yet
        return peer is not None and (peer.forecast is None or not peer.forecast.advice)
    if entry.code not in MENDED_BY_A_ROUND or not swarm.history or swarm.history[-1].t <= entry.t:
        return False
    return peer is None or peer.committed >= swarm.round


# ---- what a peer does ----


def state(swarm: SwarmState, peer: PeerView, now: float) -> ShownState:
    """The state of a peer as shown to people.

    In general this is the state that the peer reports. But a peer that stopped in order, or that does not report itself
    and has been silent for long, has FINISHED if it made all rounds; otherwise it has LEFT if it said so, and is GONE
    if not. A peer that takes part under a penalty in force is LATE, or, if its work was judged, PENALISED.
    """
    if (peer.stopped and peer.exit_code == 0) or (peer.state != "GONE" and silent_since(swarm, peer, now) is not None):
        has_finished = bool(swarm.rounds) and anchor(peer) >= swarm.rounds
        return STATES["FINISHED" if has_finished else "LEFT" if peer.stopped else "GONE"]
    own = state_named(peer.state)
    lasting = swarm.active_penalties_of.get(peer.peer, ())
    if not lasting or not own.takes_part:
        return own
    return STATES["LATE" if all(penalty_code(each.code).kind == "late" for each in lasting) else "PENALISED"]


def silent_since(swarm: SwarmState, peer: PeerView, now: float) -> float | None:
    """The time since which a peer that left without a word is silent; None if it said that it left, or is still
    there.

    Before the first round no peer has anything to report.
    """
    if peer.reports or peer.state == "GONE" or peer.seen_t is None or not swarm.history:
        return None
    return peer.seen_t if now - peer.seen_t > max(SILENT_S, 2 * swarm.usual_round_s) else None


def anchor(peer: PeerView) -> int:
    """The newest round that the peer has committed."""
    return peer.committed


def in_round(swarm: SwarmState, peer: PeerView) -> int | None:
    """The round that the peer works for: the one that leads to the next anchor. None once it has the run's last."""
    return None if swarm.rounds and anchor(peer) >= swarm.rounds else anchor(peer) + 1


def order(peers: Iterable[PeerView], me: str = "") -> list[PeerView]:
    """The volunteer's own peer, then the others by name, with peer-2 before peer-10."""
    return sorted(peers, key=lambda peer: (peer.peer != me, natural(peer.label), peer.peer))


def by_urgency(swarm: SwarmState, now: float) -> list[PeerView]:
    """The peers that need attention first; equal ones in the usual order."""
    return sorted(order(swarm.peers.values()), key=lambda peer: -state(swarm, peer, now).urgency)


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """A sort key that puts peer-2 before peer-10."""
    return tuple((1, 0, part) if not part.isdigit() else (0, int(part), "") for part in re.split(r"(\d+)", name))


# ---- how fast ----


def throughput(swarm: SwarmState) -> float | None:
    """The tokens that the newest timed round counted, per second of that round."""
    return swarm.speeds[-1].value if swarm.speeds else None


def device_speed(swarm: SwarmState, peer: PeerView, now: float) -> float | None:
    """A peer's tokens per second while it computes. Per round it is less, since averaging and waiting need time,
    too."""
    return peer.tokens_per_s or None if state(swarm, peer, now).takes_part else None


def round_seconds(round: Round) -> float | None:
    """Seconds from the first report of the previous round to that of this one."""
    return round.round_s or None


def usual_round_seconds(swarm: SwarmState) -> float | None:
    return swarm.usual_round_s or None


def so_far_seconds(swarm: SwarmState, forecast: RoundForecast, now: float) -> float | None:
    """The whole seconds that the forecast's round has lasted by now; None if its beginning was not reported."""
    last = swarm.history[-1] if swarm.history else None
    if last is None or last.round != forecast.round - 1:
        return None
    return max(0.0, float(int(now - last.t)))


def forecast_now(swarm: SwarmState, peer: PeerView, now: float) -> RoundForecast | None:
    """A peer's forecast for the round that it trains for. None once the round lasts longer than the upper bound plus
    the distance between the bounds: then the forecast was wrong."""
    forecast = peer.forecast
    if forecast is None or forecast.round != peer.round + 1 or not state(swarm, peer, now).takes_part:
        return None
    so_far_s = so_far_seconds(swarm, forecast, now)
    is_over = so_far_s is not None and so_far_s > 2 * forecast.high_s - forecast.low_s
    return None if is_over else forecast


def foretellers(swarm: SwarmState, peer: PeerView | None) -> Sequence[PeerView]:
    """Whose forecasts count: a peer's own, or, for who takes no part, those of whoever reports."""
    return [peer] if peer is not None else tellers(swarm)


def tellers(swarm: SwarmState) -> list[PeerView]:
    """Whose own lines were read: the peers that report, and a narrator that is none."""
    return [*swarm.reporting, *([swarm.narrator] if swarm.narrator is not None else [])]


def round_seconds_left(swarm: SwarmState, now: float, peer: PeerView | None = None) -> float | None:
    """Seconds until the next anchor, by the forecast of a peer, or without one of those that report, or else by the
    usual duration; 0 if the round takes longer. None if no round was timed, while a round stands still, and once
    all of these have stopped."""
    said = foretellers(swarm, peer)
    if said and all(each.stopped for each in said):
        return None
    told = (forecast_now(swarm, each, now) for each in said)
    forecast = next((each for each in told if each is not None), None)
    length_s = forecast.expected_s if forecast is not None else usual_round_seconds(swarm)
    if length_s is None or not swarm.history or swarm.stalled is not None:
        return None
    return max(0.0, length_s - max(0.0, now - swarm.history[-1].t))


def seconds_left(swarm: SwarmState, now: float, peer: PeerView | None = None) -> float | None:
    """Seconds until the end of the run: this round, and the others as long as a peer forecasts them, since a run may
    begin with short rounds; without a forecast, at the usual duration. None as in `round_seconds_left`, and for a run
    without end."""
    usual_s, left_s = usual_round_seconds(swarm), round_seconds_left(swarm, now, peer)
    if not swarm.rounds or usual_s is None or left_s is None:
        return None
    if swarm.round >= swarm.rounds:
        return 0.0
    told = (each.forecast for each in foretellers(swarm, peer))
    forecast = next((each for each in told if each is not None and each.round == swarm.round + 1), None)
    if forecast is None or forecast.run_left_s is None:
        return left_s + (swarm.rounds - swarm.round - 1) * usual_s
    return left_s + forecast.run_left_s - forecast.expected_s


# ---- what a peer gives ----


def weight(swarm: SwarmState, peer: str, round: Round | None = None) -> float | None:
    """A peer's share (0 to 1) of a round, by default the newest; 0 if it was not a member, None without a round."""
    told = round or (swarm.history[-1] if swarm.history else None)
    return told.weights.get(peer, 0) / WEIGHT_ONE if told is not None and told.weights else None


def weights(swarm: SwarmState, peer: str) -> list[Point]:
    """A peer's share of each remembered round of which it was a member."""
    return [
        Point(t=told.t, round=told.round, tokens=0, value=told.weights[peer] / WEIGHT_ONE)
        for told in swarm.history
        if peer in told.weights
    ]


def mean_weight(swarm: SwarmState, peer: str) -> float | None:
    """Its mean share of the remembered rounds, also of those without it: the means of all peers add up to 1."""
    told = [round for round in swarm.history if round.weights]
    return sum(round.weights.get(peer, 0) for round in told) / WEIGHT_ONE / len(told) if told else None


def token_share(swarm: SwarmState, peer: PeerView) -> float | None:
    """A peer's share of all tokens that rounds counted."""
    return peer.tokens / swarm.tokens if swarm.tokens else None


def counts(peer: PeerView) -> Mapping[str, int]:
    """The number of committed rounds, by how the peer's contribution counted."""
    return {name: getattr(peer, name) for name in ("accepted", "late", "idle", "rejected", "missed")}


def active_penalties(swarm: SwarmState, peer: str) -> tuple[PenaltyRecord, ...]:
    """The penalties in force, of one peer, or of all if it is empty."""
    return swarm.active_penalties_of.get(peer, ()) if peer else swarm.lasting


def tokens_norms(swarm: SwarmState) -> list[Point]:
    """The median norm of each remembered round with a measurement, over the tokens of the run."""
    tokens = {point.round: point.tokens for point in (*swarm.training, *swarm.speeds)}
    return [
        Point(t=told.t, round=told.round, tokens=tokens[told.round], value=told.median_norm)
        for told in swarm.history
        if told.median_norm is not None and told.round in tokens
    ]


# ---- what is learned ----


def held_out(swarm: SwarmState) -> Point | None:
    """The newest held-out loss, nats per token."""
    return swarm.evaluations[-1] if swarm.evaluations else None


def training_loss(swarm: SwarmState) -> float | None:
    """The mean training loss of the reporting peers at the newest commit, nats per token."""
    return swarm.training[-1].value if swarm.training else None


def own_loss(swarm: SwarmState, peer: PeerView, now: float) -> float | None:
    """A peer's own training loss in nats per token; None unless it is there."""
    return peer.loss if state(swarm, peer, now).is_here else None


# ---- links and machines ----


@dataclass(frozen=True, kw_only=True)
class Volume:
    """An amount of bytes, or of bits per second, in both directions."""

    sent: float
    received: float


def round_traffic(of: SwarmState | Round | PeerView) -> Volume:
    """The bytes of reporting peers in committed rounds: of the run, of one round, or of one peer."""
    return Volume(sent=of.bytes_sent, received=of.bytes_received)


def link_traffic(peer: PeerView) -> Volume | None:
    """The bytes of everything that the peer's link carried since the peer started."""
    network = peer.network
    return Volume(sent=network.bytes_sent, received=network.bytes_received) if network is not None else None


def link_rate(swarm: SwarmState, peer: PeerView, now: float) -> Volume | None:
    """The bits per second of the peer's link between the last two measurements."""
    if not peer.ups or not peer.downs or not state(swarm, peer, now).is_here:
        return None
    return Volume(sent=8 * peer.ups[-1].value, received=8 * peer.downs[-1].value)


@dataclass(frozen=True, kw_only=True)
class Upload:
    """The bits per second that a peer can send, and whether that was measured or only pledged."""

    bps: int
    is_measured: bool


def upload(peer: PeerView) -> Upload | None:
    """A peer's upload bandwidth: measured, or else as pledged."""
    if peer.network is not None and peer.network.upload_bps:
        return Upload(bps=peer.network.upload_bps, is_measured=True)
    return Upload(bps=peer.upload_bps, is_measured=False) if peer.upload_bps else None


def connection(owner: PeerView | None, peer: str) -> Mapping[str, Any]:
    """What `owner` measured about its connection with a peer; empty if nothing."""
    rows = owner.network.peers if owner is not None and owner.network is not None else []
    return next((row for row in rows if row.get("peer") == peer), {})


def round_trip(row: Mapping[str, Any]) -> float | None:
    """The round trip of a connection in seconds."""
    rtt_s = row.get("rtt_s")
    return float(rtt_s) if isinstance(rtt_s, int | float) else None


def chain_share(peer: PeerView) -> float | None:
    """The used share of the chain's disk quota."""
    network = peer.network
    return network.disk_bytes / network.disk_quota_bytes if network is not None and network.disk_quota_bytes else None


def gauges(swarm: SwarmState, peer: PeerView, now: float) -> DeviceMeasured | None:
    """The load of training on the peer's machine, while the peer runs."""
    return peer.device_figures if state(swarm, peer, now).is_here else None


# ---- whether all have the same bits ----


@dataclass(frozen=True, kw_only=True)
class EqualBits:
    """What the reporting peers say about anchors. `differs` is the first round about which two disagree, if any."""

    reporting: int
    digest: str = ""
    """The digest of the newest anchor."""
    differs: int | None = None
    between: tuple[str, str] = ("", "")


def agreement(swarm: SwarmState) -> EqualBits:
    """Whether all peers that report a round report the same digest and the same state. A worker does not know the
    state of the whole model.

    A single peer proves nothing.
    """
    seen: dict[int, tuple[str, str, str]] = {}
    told = sorted(
        (commit.round, view.peer, commit.digest, commit.state) for view in swarm.reporting for commit in view.commits
    )
    reporting = len({peer for _, peer, _, _ in told})
    for round, peer, digest, bits in told:
        first, their_digest, their_bits = seen.setdefault(round, (peer, digest, bits))
        if not their_bits:
            seen[round] = (first, their_digest, bits)
        if digest != their_digest or (bits and their_bits and bits != their_bits):
            return EqualBits(reporting=reporting, differs=round, between=(first, peer))
    return EqualBits(reporting=reporting, digest=seen[max(seen)][1] if seen else "")
