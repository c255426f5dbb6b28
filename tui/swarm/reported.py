"""What others received of a peer, folded: all that is known of one whose own lines are not read."""

from __future__ import annotations

from peer.events import ReportReceived
from tui.swarm.builder import PeerDraft, SnapshotBuilder
from tui.swarm.peer_names import short_name
from tui.swarm.rounds import note_reported_loss
from tui.swarm.timeline import LONG_S, add_span, training_began


def reduce_reported(draft: SnapshotBuilder, peer: PeerDraft, t: float, event: ReportReceived) -> None:
    """What another peer says of itself; nothing but a sign of life if its own lines are read."""
    peer.seen_t = t if peer.seen_t is None else max(peer.seen_t, t)
    if event.evaluated is not None:
        note_reported_loss(draft, t, peer, event.evaluated_round, event.evaluated)
    if peer.reports:
        return
    peer.started_t = t if peer.started_t is None else peer.started_t
    peer.name = short_name(event.name) or peer.name
    phase, peer.state = _stage(event)
    peer.why = "sits this round out" if event.ready and not event.steps else ""
    peer.round, peer.step = event.round, event.steps
    add_span(peer.spans, t, phase, event.round + 1)
    if event.ready and event.tokens:
        peer.tokens_now = event.tokens
    speed = event.tokens_per_s or _estimate_speed(peer, t, event)
    if speed:
        peer.tokens_per_s = speed
        draft.plot(peer.speeds, t, event.round, speed)
    peer.device_gb = event.device_gb or peer.device_gb
    if event.loss is not None:
        peer.loss = event.loss
        draft.plot(peer.losses, t, event.round, event.loss)


def _stage(event: ReportReceived) -> tuple[str, str]:
    """Phase and state of a peer that is known by hearsay."""
    if event.leaving:
        return "gone", "GONE"
    if event.ready and not event.steps and event.round >= 0:
        return "paused", "PAUSED"
    return ("group", "READY") if event.ready else ("train", "TRAINING")


def _estimate_speed(peer: PeerDraft, t: float, event: ReportReceived) -> float:
    """Tokens per second since it was first heard to train in this round; 0 if that is not known."""
    began_t = training_began(peer.spans, event.round + 1)
    if not event.ready or began_t is None or t - began_t < LONG_S:
        return 0.0
    return event.tokens / (t - began_t)
