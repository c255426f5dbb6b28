"""The swarm's rounds: each counts once, however many peers report it."""

from __future__ import annotations

import statistics
from dataclasses import replace
from types import MappingProxyType

from peer.consensus.credit.outcomes import ACCEPTED, IDLE, LATE, OUTCOMES, outcomes
from peer.schema.events import PenaltyImposed, RoundAborted, RoundCommitted
from tui.swarm.builder import MAX_ROUNDS, SnapshotBuilder
from tui.swarm.phase_styles import penalty_code
from tui.swarm.snapshot import PeerView, PenaltyRecord, Point, Round
from tui.swarm.timeline import SWARM_POINTS, add_span, mark_tardy
from tui.text.event_text import penalty_words
from tui.text.units import count

MAX_COMMITS = 4096
"""The maximal number of commits that are kept per peer, the newest last."""
MAX_ABORTED = 64
SILENT_S = 5.0
"""A peer that did not answer the others, and was not heard for this long, is gone."""


def commit(draft: SnapshotBuilder, peer: PeerView, t: float, event: RoundCommitted) -> None:
    """A peer has a new anchor: note it for the peer, and for the swarm if it is the first to report it."""
    told = draft.commit(event.round, event.digest, event.state)
    if peer.commits and peer.commits[-1] == told:
        return
    while peer.commits and peer.commits[-1].round >= event.round:
        peer.commits.pop()
    peer.commits.append(told)
    if len(peer.commits) > MAX_COMMITS:
        del peer.commits[0]
    draft.round = max(draft.round, event.round)
    _count_round(draft, peer, t, event)


def impose(draft: SnapshotBuilder, t: float, event: PenaltyImposed, imposed_in: int) -> PenaltyRecord:
    """Note a penalty that a peer reports; a penalty is noted only once."""
    penalty = PenaltyRecord(
        t=t, imposed_in=imposed_in, about=event.about, code=event.code, layer=event.layer, evidence=event.evidence,
        factor=event.factor, until_round=event.until_round,
    )  # fmt: skip
    if (known := draft.tell(penalty)) is not penalty:
        return known
    code = penalty_code(event.code)
    draft.note(t, code.level, event.about, event.code, penalty_words(penalty))
    if code.phase:
        peer = draft.peer(event.about)
        mark_tardy(peer.spans, t, code.phase, imposed_in)
        if code.phase == "failed" and t - (peer.seen_t or 0.0) >= SILENT_S and peer.state != "GONE":
            peer.state, peer.why, peer.until = "GONE", f"did not answer in round {imposed_in}", None
    return penalty


def is_excused(draft: SnapshotBuilder, event: PenaltyImposed, imposed_in: int) -> bool:
    """Whether this only says that a peer which had paused or just joined had nothing to contribute. That is not a
    fault: LATE is for a peer that meant to contribute."""
    told = draft.history.get(imposed_in)
    return told is not None and told.outcomes.get(event.about) == IDLE


def note_abort(draft: SnapshotBuilder, event: RoundAborted) -> None:
    """An attempt ended without a decision; its round may still be committed."""
    tried = (event.round + 1, event.ballot)
    if tried not in draft.aborted:
        draft.aborted = (*draft.aborted, tried)[-MAX_ABORTED:]


def note_reported_loss(draft: SnapshotBuilder, t: float, peer: PeerView, round: int, loss: float) -> None:
    """Note a held-out loss that a peer measured, as another peer heard it. It never replaces a known one."""
    if round > draft.round:
        peer.evaluated = Point(t=t, round=round, tokens=draft.tokens, value=loss)
    elif round not in draft.evaluated:
        note_evaluation(draft, t, peer.peer, round, loss)


def _take_heard(draft: SnapshotBuilder, t: float, round: int) -> None:
    """Note the losses of this round that were heard before it was committed here."""
    for known in list(draft.peers.values()):
        if known.evaluated is not None and known.evaluated.round <= round:
            peer = draft.peer(known.peer)
            heard, peer.evaluated = known.evaluated, None
            note_reported_loss(draft, t, peer, heard.round, heard.value)


def note_evaluation(draft: SnapshotBuilder, t: float, peer: str, round: int, loss: float) -> None:
    """Note the held-out loss of an anchor; a later report replaces an earlier one."""
    known = draft.evaluated.get(round)
    if known is not None and known.value == loss:
        return
    after = [point for later, point in draft.evaluated.items() if later > round]
    # Told after a later anchor's: a curve goes forward only.
    first_t = min((point.t for point in after), default=t)
    tokens = min((point.tokens for point in after), default=draft.tokens)
    point = Point(t=min(t, first_t), round=round, tokens=tokens, value=loss)
    draft.evaluated[round] = point if known is None else replace(known, value=loss)
    draft.note(t, "info", peer, "EVALUATED", f"held-out loss {loss:.3f} at round {round}")


# ---- a round, once ----


def _count_round(draft: SnapshotBuilder, peer: PeerView, t: float, event: RoundCommitted) -> None:
    """Note a round as it was first reported: its decisions stay."""
    known = draft.history.get(event.round)
    if known is None:
        if len(draft.history) >= MAX_ROUNDS and event.round < min(draft.history):
            return
        _add_round(draft, peer, t, event)
    elif known.digest != event.digest:
        return
    _take_report(draft, peer, t, event)


def _with_report(view: Round, peer: PeerView, event: RoundCommitted) -> Round:
    count = view.reporters + 1
    return replace(
        view, reporters=count, exposed_s=view.exposed_s + (event.exposed_s - view.exposed_s) / count,
        bytes_sent=view.bytes_sent + event.bytes_sent, bytes_received=view.bytes_received + event.bytes_received,
    )  # fmt: skip


def _add_round(draft: SnapshotBuilder, peer: PeerView, t: float, event: RoundCommitted) -> None:
    measured_s = _measure(draft, peer, t, event.round)
    round_s = event.round_s if measured_s is None else measured_s
    took = f"{round_s:.1f} s, " if round_s else ""
    text = f"round {event.round}: {count(len(event.group), 'peer')}, {took}digest {event.digest[:8]}"
    draft.note(t, "info", peer.peer, "COMMITTED", text)
    imposed = [PenaltyImposed(**row) for row in event.penalties]
    told = {who: outcome for who, outcome in event.outcomes.items() if outcome in OUTCOMES}
    told = told or outcomes(event.group, event.weights, imposed)  # as older clients leave it to their readers
    # What the chain says, before what the peers themselves told of training.
    claims = {who: draft.peer(who).tokens_now if told[who] in (ACCEPTED, LATE) else 0 for who in told}
    counted = {who: event.given.get(who, 0) for who in told} if event.given else claims
    tokens = sum(counted.values()) if event.given else event.tokens
    view = draft.history[event.round] = Round(
        round=event.round, t=t, digest=event.digest, group=tuple(event.group),
        weights=MappingProxyType(event.weights), norms=MappingProxyType(event.norms), tokens=tokens,
        median_norm=statistics.median(event.norms.values()) if event.norms else None,
        round_s=round_s, exposed_s=0.0, void=event.void, bytes_sent=0, bytes_received=0, penalties=(),
        aborted=sum(round == event.round for round, _ in draft.aborted), counted=MappingProxyType(counted),
        outcomes=MappingProxyType(told), reporters=0, live=_is_live(peer),
    )  # fmt: skip
    penalties = tuple(
        impose(draft, t, each, event.round) for each in imposed if not is_excused(draft, each, event.round)
    )
    if penalties:
        draft.history[event.round] = replace(view, penalties=penalties)
    draft.aborted = tuple(tried for tried in draft.aborted if tried[0] > event.round)
    if len(draft.history) > MAX_ROUNDS:
        del draft.history[min(draft.history)]
    draft.tokens += tokens
    for who, outcome in told.items():
        _count_for_peer(draft, draft.peer(who), t, event, outcome, counted[who], live=_is_live(peer))
    if measured_s is not None or (event.round == 1 and _is_live(peer)):
        _plot_speed(draft, t, draft.history[event.round])
    _take_heard(draft, t, event.round)


def _take_report(draft: SnapshotBuilder, peer: PeerView, t: float, event: RoundCommitted) -> None:
    """Add a reporter's own values to the round; a watcher has none."""
    view = draft.history[event.round]
    if not _is_narrator(peer):
        draft.history[event.round] = _with_report(view, peer, event)
        _add_traffic(draft, peer, event.bytes_sent, event.bytes_received)
    _plot_training(draft, peer, t, view)


def _add_traffic(draft: SnapshotBuilder, peer: PeerView, sent: int, received: int) -> None:
    peer.bytes_sent, peer.bytes_received = peer.bytes_sent + sent, peer.bytes_received + received
    draft.bytes_sent, draft.bytes_received = draft.bytes_sent + sent, draft.bytes_received + received


def _measure(draft: SnapshotBuilder, peer: PeerView, t: float, round: int) -> float | None:
    """Seconds since the report of the previous round; None unless both were reported as they happened, by one
    process."""
    before = draft.history.get(round - 1)
    if before is None or not before.live or not _is_live(peer) or t <= before.t:
        return None
    if peer.started_t is not None and before.t < peer.started_t:  # by the process before, perhaps yesterday
        return None
    return t - before.t


def _is_live(peer: PeerView) -> bool:
    """Whether the peer reports rounds as they happen."""
    return peer.state == "READY" if _is_narrator(peer) else peer.state != "SYNCING"


def _is_narrator(peer: PeerView) -> bool:
    return not peer.peer


def _count_for_peer(
    draft: SnapshotBuilder, peer: PeerView, t: float, event: RoundCommitted, outcome: str, tokens: int, *, live: bool
) -> None:
    setattr(peer, outcome, getattr(peer, outcome) + 1)
    if outcome == IDLE:
        draft.note(t, "info", peer.peer, "IDLE", f"had nothing to give to round {event.round}")
    peer.tokens += tokens
    peer.tokens_now, peer.tokens_ahead = peer.tokens_ahead, 0
    norm = event.norms.get(peer.peer)
    if norm is not None:
        peer.norm = norm
        draft.plot(peer.norms, t, event.round, norm)
    if not peer.reports and peer.peer in event.group:
        peer.round = max(peer.round, event.round)  # until it says otherwise
        if live and event.weights.get(peer.peer):
            peer.seen_t = max(peer.seen_t or t, t)
        if peer.spans and peer.spans[-1].phase == "prepare":
            add_span(peer.spans, t, "idle", event.round + 1)


def _plot_training(draft: SnapshotBuilder, peer: PeerView, t: float, view: Round) -> None:
    """Add the mean training loss to the curve, when the first peer that is not catching up reports the round."""
    if not _is_live(peer) or (draft.training and draft.training[-1].round >= view.round):
        return
    losses = [
        known.loss for known in draft.peers.values() if known.reports and known.loss is not None and not known.stopped
    ]
    if losses:
        draft.plot(draft.training, t, view.round, sum(losses) / len(losses), SWARM_POINTS)


def _plot_speed(draft: SnapshotBuilder, t: float, view: Round) -> None:
    """Add the speed of a round whose duration is known; catching up belongs to no round."""
    if not view.round_s or (draft.speeds and draft.speeds[-1].round >= view.round):
        return
    draft.plot(draft.speeds, t, view.round, view.tokens / view.round_s, SWARM_POINTS)
