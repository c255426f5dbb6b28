"""What lines say of the swarm's rounds: each counts once however many peers report it, and a fork undoes it."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from peer.credit.outcomes import ACCEPTED, LATE, outcomes
from peer.events import PenaltyImposed, RoundAborted, RoundCommitted
from tui.swarm.builder import MAX_ROUNDS, SnapshotBuilder
from tui.swarm.snapshot import WEIGHT_ONE, PeerView, PenaltyRecord, Point, Round
from tui.swarm.timeline import SWARM_POINTS, add_point, add_span, drop_rounds, mark_tardy

MAX_COMMITS = 4096
"""Of one peer that are kept, the newest last."""
MAX_ABORTED = 64
NOTHING_READY = "had nothing ready"
"""Evidence of a LATE that says that a member gave nothing at all."""
SILENT_S = 5.0
"""Who did not answer the others, and was not heard of for this long, is gone."""

_PHASE_OF_CODE = {"LATE": "late", "ABSENT": "failed"}


def commit(draft: SnapshotBuilder, peer: PeerView, t: float, event: RoundCommitted) -> None:
    """A peer stands on a new anchor: note it for the peer, and for the swarm if it is the first to say so."""
    told = draft.commit(event.round, event.digest, event.state)
    if peer.commits and peer.commits[-1] == told:
        return
    changed_over = bool(peer.commits) and peer.commits[-1].round >= event.round
    while peer.commits and peer.commits[-1].round >= event.round:
        peer.commits.pop()
    peer.commits.append(told)
    if len(peer.commits) > MAX_COMMITS:
        del peer.commits[0]
    if changed_over:
        draft.round = max(known.commits[-1].round for known in draft.chains if known.commits)
        _undo_abandoned(draft, event.round)
    else:
        draft.round = max(draft.round, event.round)
    _count_round(draft, peer, t, event)
    # They are told after the round: what was told before is over when the swarm has moved on.
    if draft.penalties:
        draft.penalties = tuple(penalty for penalty in draft.penalties if penalty.until_round > draft.round)


def impose(draft: SnapshotBuilder, t: float, event: PenaltyImposed, imposed_in: int) -> PenaltyRecord:
    """A penalty that somebody tells; noted once."""
    penalty = PenaltyRecord(
        t=t, imposed_in=imposed_in, about=event.about, code=event.code, layer=event.layer, evidence=event.evidence,
        factor=event.factor, until_round=event.until_round,
    )  # fmt: skip
    if (known := draft.tell(penalty)) is not penalty:
        return known
    where = f"in {event.layer}: " if event.layer else ""
    text = f"{where}{event.evidence}; counted {event.factor:.0%}, until round {event.until_round}"
    draft.note(t, "error" if event.code == "MISDECLARED" else "warning", event.about, event.code, text)
    if (phase := _PHASE_OF_CODE.get(event.code)) is not None:
        peer = draft.peer(event.about)
        mark_tardy(peer.spans, t, phase, imposed_in)
        if phase == "failed" and t - (peer.seen_t or 0.0) >= SILENT_S and peer.state != "GONE":
            peer.state, peer.why, peer.until = "GONE", f"did not answer in round {imposed_in}", None
    return penalty


def is_excused(draft: SnapshotBuilder, event: PenaltyImposed, imposed_in: int) -> bool:
    """Whether this only says that somebody who had paused gave nothing. It counts for nothing, and is no fault."""
    if event.code != "LATE" or event.evidence != NOTHING_READY:
        return False
    peer = draft.peers.get(event.about)
    if peer is None:
        return False
    return peer.state == "PAUSED" or any(
        span.phase == "paused" and span.round == imposed_in for span in reversed(peer.spans)
    )


def note_abort(draft: SnapshotBuilder, event: RoundAborted) -> None:
    """A try ended without a decision; its round may yet be committed."""
    tried = (event.round + 1, event.ballot)
    if tried not in draft.aborted:
        draft.aborted = (*draft.aborted, tried)[-MAX_ABORTED:]


def note_reported_loss(draft: SnapshotBuilder, t: float, peer: PeerView, round: int, loss: float) -> None:
    """A held-out loss that a peer says it measured, as another heard it: it never replaces what is known."""
    if round > draft.round:
        peer.evaluated = Point(t=t, round=round, tokens=draft.tokens, value=loss)
    elif round not in draft.losses:
        note_evaluation(draft, t, peer.peer, round, loss)


def _take_heard(draft: SnapshotBuilder, t: float, round: int) -> None:
    """What was heard of this round before it was committed here."""
    for known in list(draft.peers.values()):
        if known.evaluated is not None and known.evaluated.round <= round:
            peer = draft.peer(known.peer)
            heard, peer.evaluated = known.evaluated, None
            note_reported_loss(draft, t, peer, heard.round, heard.value)


def note_evaluation(draft: SnapshotBuilder, t: float, peer: str, round: int, loss: float) -> None:
    """The held-out loss of an anchor; what is said of it later replaces what was said before."""
    if draft.losses.get(round) == loss:
        return
    draft.losses[round] = loss
    point = Point(t=t, round=round, tokens=draft.tokens, value=loss)
    same = next((index for index, known in enumerate(draft.evaluations) if known.round == round), None)
    if same is not None:
        draft.evaluations[same] = replace(point, t=draft.evaluations[same].t)
    elif not draft.evaluations or draft.evaluations[-1].round < round:
        add_point(draft.evaluations, point, SWARM_POINTS)
    draft.note(t, "info", peer, "EVALUATED", f"held-out loss {loss:.3f} at round {round}")


# ---- a round, once ----


def _count_round(draft: SnapshotBuilder, peer: PeerView, t: float, event: RoundCommitted) -> None:
    known = draft.history.get(event.round)
    if known is not None and known.digest == event.digest:
        if not _is_narrator(peer):
            draft.history[event.round] = _with_report(known, event)
        _plot_training(draft, peer, t, draft.history[event.round])
        return
    if known is None and len(draft.history) >= MAX_ROUNDS and event.round < min(draft.history):
        return
    if known is not None:
        if _standing_on(draft, event.round, event.digest) < _standing_on(draft, event.round, known.digest):
            return
        _undo(draft, known)
    _add_round(draft, peer, t, event)


def _with_report(view: Round, event: RoundCommitted) -> Round:
    count = view.reporters + 1
    return replace(
        view,
        reporters=count,
        exposed_s=view.exposed_s + (event.exposed_s - view.exposed_s) / count,
        bytes_sent=view.bytes_sent + event.bytes_sent,
        bytes_received=view.bytes_received + event.bytes_received,
    )


def _add_round(draft: SnapshotBuilder, peer: PeerView, t: float, event: RoundCommitted) -> None:
    measured_s = _measure(draft, peer, t, event.round)
    round_s = event.round_s if measured_s is None else measured_s
    members = f"{len(event.group)} peer{'s' * (len(event.group) != 1)}"
    took = f"{round_s:.1f} s, " if round_s else ""
    text = f"round {event.round}: {members}, {took}digest {event.digest[:8]}"
    draft.note(t, "info", peer.peer, "COMMITTED", text)
    imposed = [PenaltyImposed(**row) for row in event.penalties]
    excused = {each.about for each in imposed if is_excused(draft, each, event.round)}
    penalties = tuple(
        impose(draft, t, each, event.round) for each in imposed if not is_excused(draft, each, event.round)
    )
    excused -= {each.about for each in penalties}
    counted = outcomes(event.group, event.weights, penalties)
    told = {who: outcome for who, outcome in counted.items() if who not in excused}
    given = {who: draft.peer(who).tokens_now for who in told}
    counting = {who: given[who] if outcome in (ACCEPTED, LATE) else 0 for who, outcome in told.items()}
    if event.given:  # what the chain says, before what the peers themselves told of training
        counting = {who: event.given.get(who, 0) for who in told}
    draft.history[event.round] = Round(
        round=event.round, t=t, digest=event.digest, group=tuple(event.group),
        weights=MappingProxyType(event.weights), norms=MappingProxyType(event.norms), tokens=event.tokens,
        round_s=round_s, exposed_s=event.exposed_s, void=event.void, bytes_sent=event.bytes_sent,
        bytes_received=event.bytes_received, penalties=penalties,
        aborted=sum(round == event.round for round, _ in draft.aborted),
        given=MappingProxyType(given), counted=MappingProxyType(counting), outcomes=MappingProxyType(told),
        reporters=0 if _is_narrator(peer) else 1, live=_is_live(peer),
    )  # fmt: skip
    draft.aborted = tuple(tried for tried in draft.aborted if tried[0] > event.round)
    if len(draft.history) > MAX_ROUNDS:
        del draft.history[min(draft.history)]
    draft.tokens += event.tokens
    for who, outcome in told.items():
        _count_for_peer(draft, draft.peer(who), t, event, outcome, counting[who], live=_is_live(peer))
    _plot_training(draft, peer, t, draft.history[event.round])
    if measured_s is not None or (event.round == 1 and _is_live(peer)):
        _plot_speed(draft, t, draft.history[event.round])
    _take_heard(draft, t, event.round)


def _measure(draft: SnapshotBuilder, peer: PeerView, t: float, round: int) -> float | None:
    """Seconds since the round before was told; None if either was not told as it happened, in one go."""
    before = draft.history.get(round - 1)
    if before is None or not before.live or not _is_live(peer) or t <= before.t:
        return None
    if peer.started_t is not None and before.t < peer.started_t:  # by the process before, perhaps yesterday
        return None
    return t - before.t


def _is_live(peer: PeerView) -> bool:
    """Whether it tells of rounds as they happen."""
    return peer.state == "READY" if _is_narrator(peer) else peer.state != "SYNCING"


def _is_narrator(peer: PeerView) -> bool:
    return not peer.peer


def _count_for_peer(
    draft: SnapshotBuilder, peer: PeerView, t: float, event: RoundCommitted, outcome: str, tokens: int, *, live: bool
) -> None:
    setattr(peer, outcome, getattr(peer, outcome) + 1)
    peer.tokens += tokens
    peer.tokens_now, peer.tokens_ahead = peer.tokens_ahead, 0
    weight, norm = event.weights.get(peer.peer), event.norms.get(peer.peer)
    if weight is not None:
        peer.weight = weight / WEIGHT_ONE
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
    """The mean training loss, when the first peer tells the round that did not just catch up."""
    if not _is_live(peer) or (draft.training and draft.training[-1].round >= view.round):
        return
    losses = [
        known.loss for known in draft.peers.values() if known.reports and known.loss is not None and not known.stopped
    ]
    if losses:
        draft.plot(draft.training, t, view.round, sum(losses) / len(losses), SWARM_POINTS)


def _plot_speed(draft: SnapshotBuilder, t: float, view: Round) -> None:
    """Of a round whose time is known: catching up belongs to none."""
    if not view.round_s or (draft.speeds and draft.speeds[-1].round >= view.round):
        return
    draft.plot(draft.speeds, t, view.round, view.tokens / view.round_s, SWARM_POINTS)


# ---- a fork undoes rounds ----


def _standing_on(draft: SnapshotBuilder, round: int, digest: str) -> int:
    """How many have this anchor on their chain."""
    return sum(
        any(known.round == round and known.digest == digest for known in reversed(peer.commits))
        for peer in draft.chains
    )


def _undo_abandoned(draft: SnapshotBuilder, first: int) -> None:
    """Forget the rounds after `first` that nobody stands on any more."""
    for view in [view for view in draft.history.values() if view.round > first]:
        if not _standing_on(draft, view.round, view.digest):
            _undo(draft, view)


def _undo(draft: SnapshotBuilder, view: Round) -> None:
    """As if the round had not been: its counts are taken back, and its points in the curves."""
    del draft.history[view.round]
    draft.tokens -= view.tokens
    kept = {penalty for other in draft.history.values() for penalty in other.penalties}
    draft.take_back(set(view.penalties) - kept)
    for points in (draft.training, draft.speeds):
        drop_rounds(points, view.round)
    for who, outcome in view.outcomes.items():
        peer = draft.peer(who)
        setattr(peer, outcome, getattr(peer, outcome) - 1)
        peer.tokens -= view.counted[who]
        drop_rounds(peer.norms, view.round)
