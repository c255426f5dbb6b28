"""The reducer behind every screen: event lines into an immutable snapshot.

No clock, no files, and no order assumed between the lines of different peers. One function per type of event: what the
line says about the peer that reported it. What it says about the whole swarm is in `tui.swarm.round_ledger`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from peer.schema.events import (
    AlertRaised,
    BoardSeen,
    CheckpointWritten,
    ClusterFormed,
    DeviceMeasured,
    DeviceReported,
    Evaluated,
    Event,
    EventLine,
    InnerProgressed,
    InviteIssued,
    MessageRefused,
    NetworkMeasured,
    PeerIntroduced,
    PeerStarted,
    PeerStateChanged,
    PeerStopped,
    PenaltyImposed,
    PhaseEntered,
    ReportReceived,
    RoundAborted,
    RoundCommitted,
    RoundForecast,
    RoundStalled,
    RoundStarted,
    RoundTripsReported,
    SampleWritten,
    SettingsChanged,
    StagesMeasured,
    TransferProgressed,
)
from peer.schema.settings import changes
from tui.swarm.builder import SnapshotBuilder
from tui.swarm.phase_styles import phase, state_named
from tui.swarm.round_ledger import commit, impose, is_excused, note_abort, note_evaluation, note_reported_loss
from tui.swarm.snapshot import PeerView, StageView, SwarmState
from tui.swarm.timeline import LONG_S, add_span, is_exchanging, training_began
from tui.text.event_text import PeerStatus, devices_words

PEER_ID = re.compile(r"\b12D3KooW[1-9A-HJ-NP-Za-km-z]{44}\b")
"""Peers write of each other by their ids, and people know names."""
MAX_ALERTS = 16
"""The maximal number of alerts that are kept per peer, the newest last."""
TRAFFIC_POINTS = 64
MAX_TRANSFERS = 8


def apply(swarm: SwarmState, line: EventLine) -> SwarmState:
    return apply_all(swarm, (line,))


def apply_all(swarm: SwarmState, lines: Iterable[EventLine | None]) -> SwarmState:
    """The swarm after these lines; None stands for a line that could not be read."""
    draft = SnapshotBuilder(swarm)
    for line in lines:
        if line is None:
            draft.skipped += 1
        else:
            _take(draft, line)
    return draft.freeze()


def _take(draft: SnapshotBuilder, line: EventLine) -> None:
    t = line.t
    draft.run = draft.run or line.run
    draft.started_t = t if draft.started_t is None else min(draft.started_t, t)
    draft.last_t = t if draft.last_t is None else max(draft.last_t, t)
    event = line.event
    if isinstance(event, ReportReceived):
        reduce_reported(draft, draft.peer(event.about), t, event)
    elif isinstance(event, InviteIssued):
        draft.note(t, "info", line.peer, "INVITE", "an invite was issued")
    elif not line.peer:
        _take_nameless(draft, t, event)
    else:
        peer = draft.peer(line.peer)
        peer.reports, peer.seq = True, line.seq
        peer.seen_t = t if peer.seen_t is None else max(peer.seen_t, t)
        if (take := _TAKERS.get(type(event))) is not None:
            take(draft, peer, t, event)


def _take_nameless(draft: SnapshotBuilder, t: float, event: Event) -> None:
    """Process a line without a peer id: from a watcher, which is not a member of the swarm, or from a process that
    ended before it had an identity."""
    match event:
        case RoundForecast():
            draft.narrator.forecast, draft.narrator.round = event, event.round - 1
        case PeerStarted() | PeerStateChanged() | RoundCommitted() | PenaltyImposed() | AlertRaised():
            _TAKERS[type(event)](draft, draft.narrator, t, event)
        case PeerStopped(why=why, exit_code=exit_code):
            draft.note(t, "error" if exit_code else "info", "", "STOPPED", why)


def lose(swarm: SwarmState, peer: str, t: float) -> SwarmState:
    """The swarm after a peer has ended without a word."""
    draft = SnapshotBuilder(swarm)
    view = draft.peer(peer)
    why = f"it ended without a word while {view.state or 'starting'}{f': {view.why}' if view.why else ''}"
    view.state, view.why, view.until, view.phase = "GONE", why, None, ""
    add_span(view.spans, t, "gone", view.round + 1)
    draft.note(t, "error", peer, "GONE", why)
    return draft.freeze()


def tell_lately(swarm: SwarmState, status: PeerStatus) -> SwarmState:
    """The swarm in which a peer does what it has just answered: its event file may lag behind, as on a full disk."""
    view = swarm.peers.get(status.peer)
    if view is None or not status.state:
        return swarm
    told = replace(view, state=status.state, why=status.why, until=status.until)
    if status.steps:
        told = replace(told, step=status.step, steps=status.steps)
    return replace(swarm, peers=MappingProxyType({**swarm.peers, status.peer: told}))


def lags(swarm: SwarmState, status: PeerStatus) -> bool:
    """Whether the event file of the peer that answered lacks lines which it had written by then."""
    view = swarm.peers.get(status.peer)
    return view is not None and view.seq < status.seq


def freeze(swarm: SwarmState, processes: Mapping[str, int]) -> SwarmState:
    """The swarm in which these peers are frozen, because their processes were stopped by a signal; they may continue
    later, or never."""
    peers = dict(swarm.peers)
    for peer, process in processes.items():
        why = f"its process {process} was told to stand still; it goes on with: kill -CONT {process}"
        peers[peer] = replace(peers[peer], state="FROZEN", why=why, until=None)
    return replace(swarm, peers=MappingProxyType(peers))


# ---- what a peer says of itself ----


def _take_started(draft: SnapshotBuilder, peer: PeerView, t: float, event: PeerStarted) -> None:
    """A new process: nothing of the previous one remains, except what it contributed."""
    peer.name, peer.version, peer.device = short_name(event.name), event.version, event.device
    peer.devices, peer.sharding = event.devices, event.sharding
    peer.lead, peer.stages, peer.step_s = "", (), None
    peer.parameters, peer.directory, peer.trains = event.parameters, event.directory, event.trains
    peer.settings = MappingProxyType(event.settings)
    peer.state, peer.why, peer.until, peer.phase = "JOINING", "", None, ""
    peer.step = peer.steps = peer.exit_code = 0
    peer.tokens_now = peer.tokens_ahead = 0
    peer.loss, peer.tokens_per_s = None, 0.0
    peer.commits, peer.alerts, peer.stopped = [], [], False
    peer.transfer, peer.transfers, peer.network = None, MappingProxyType({}), None
    peer.forecast = peer.stalled = None
    peer.started_t = t
    draft.rounds = event.rounds or draft.rounds
    add_span(peer.spans, t, "idle", peer.round + 1)
    devices = devices_words(event.devices, event.sharding) or event.device
    size = f"{event.parameters:,} parameters" if event.parameters else ""
    draft.note(t, "info", peer.peer, "STARTED", " · ".join(filter(None, ("started", devices, size))))


def _take_introduction(draft: SnapshotBuilder, peer: PeerView, t: float, event: PeerIntroduced) -> None:
    peer.name, peer.trains = short_name(event.name), event.trains or peer.trains


def _take_cluster(draft: SnapshotBuilder, peer: PeerView, t: float, event: ClusterFormed) -> None:
    if event.lead != peer.peer:
        peer.lead, peer.stages = event.lead, ()
        return
    rows = [row for row in event.stages if isinstance(row.get("peer"), str)]
    peer.lead = ""
    peer.stages = tuple(StageView(peer=row["peer"], layers=str(row.get("layers", ""))) for row in rows)
    homes = ", ".join(f"{draft.peer(stage.peer).label} {stage.layers}" for stage in peer.stages)
    draft.note(t, "info", peer.peer, "CLUSTER", f"leads a cluster: {homes}")


def _take_stages(draft: SnapshotBuilder, peer: PeerView, t: float, event: StagesMeasured) -> None:
    rows = {row.get("peer"): row for row in event.stages}
    peer.step_s = event.step_s
    peer.stages = tuple(
        replace(
            stage, compute_s=_figure(rows.get(stage.peer, {}), "compute_s"),
            wire_bytes=_figure(rows.get(stage.peer, {}), "wire_bytes"),
        )
        for stage in peer.stages
    )  # fmt: skip


def _figure(row: Mapping[str, Any], name: str) -> float | None:
    value = row.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _take_settings(draft: SnapshotBuilder, peer: PeerView, t: float, event: SettingsChanged) -> None:
    for change in changes(peer.settings, event.settings):
        draft.note(t, "info", peer.peer, "SETTINGS", change)
    peer.settings = MappingProxyType(event.settings)


def _take_state(draft: SnapshotBuilder, peer: PeerView, t: float, event: PeerStateChanged) -> None:
    state = state_named(event.state)
    is_news = (peer.state, peer.why) != (event.state, event.why)
    if is_news and state.is_here and (state.notable or state_named(peer.state).notable):
        draft.note(t, "warning" if state.urgency > 2 or event.state == "PAUSED" else "info", peer.peer, event.state,
                   event.why)  # fmt: skip
    peer.state, peer.why, peer.until = event.state, event.why, event.until
    if event.state != "SYNCING":
        peer.transfer = None
    if state.phase:
        add_span(peer.spans, t, state.phase, peer.round + 1)


def _take_round_start(draft: SnapshotBuilder, peer: PeerView, t: float, event: RoundStarted) -> None:
    if event.round != peer.round:
        peer.step = peer.tokens_now = peer.tokens_ahead = 0
    peer.round, peer.steps = event.round, event.steps
    draft.round = max(draft.round, event.round)
    peer.phase, peer.deadline = "", None
    _return(peer)
    add_span(peer.spans, t, "train", event.round + 1)


def _take_progress(draft: SnapshotBuilder, peer: PeerView, t: float, event: InnerProgressed) -> None:
    if event.loss is None and peer.loss is not None:
        draft.note(t, "error", peer.peer, "NONFINITE", "the training loss is not a number")
    peer.step, peer.steps = event.step, event.steps
    if peer.phase and event.round == peer.round + 1:
        peer.tokens_ahead += event.tokens  # made while the round is agreed, for the one after it
    else:
        peer.round, peer.tokens_now = event.round, peer.tokens_now + event.tokens
        draft.round = max(draft.round, event.round)  # it stands on that anchor, maybe since a life before
    peer.loss, peer.learning_rate, peer.tokens_per_s = event.loss, event.learning_rate, event.tokens_per_s
    _return(peer)
    if event.loss is not None:
        draft.plot(peer.losses, t, event.round, event.loss)
    draft.plot(peer.speeds, t, event.round, event.tokens_per_s)
    draft.plot(peer.learning_rates, t, event.round, event.learning_rate)
    if not is_exchanging(peer.spans):
        add_span(peer.spans, t, "train", event.round + 1)


def _take_phase(draft: SnapshotBuilder, peer: PeerView, t: float, event: PhaseEntered) -> None:
    peer.phase, peer.deadline, peer.ballot = event.phase, event.deadline, event.ballot
    peer.coordinator = event.coordinator or peer.coordinator
    if not _stands(peer):
        add_span(peer.spans, t, event.phase, event.round + 1)


def _take_commit(draft: SnapshotBuilder, peer: PeerView, t: float, event: RoundCommitted) -> None:
    peer.round = event.round
    peer.step = peer.step if peer.tokens_ahead else 0
    peer.phase, peer.deadline, peer.ballot, peer.stalled = "", None, 0, None
    if peer.state != "SYNCING":
        add_span(peer.spans, t, "paused" if peer.state == "PAUSED" else "idle", event.round + 1)
    for member, upload_bps in event.uplinks.items():
        draft.peer(member).upload_bps = upload_bps
    commit(draft, peer, t, event)


def _take_abort(draft: SnapshotBuilder, peer: PeerView, t: float, event: RoundAborted) -> None:
    note_abort(draft, event)
    if not _stands(peer):
        add_span(peer.spans, t, "failed", event.round + 1)
    draft.note(t, "warning", peer.peer, "ABORTED", f"round {event.round + 1} is tried again: {event.why}")


def _take_refusal(draft: SnapshotBuilder, peer: PeerView, t: float, event: MessageRefused) -> None:
    draft.note(
        t, "warning", event.about, event.rule,
        f"what it sent for round {event.round + 1} is refused by {peer.label}: {event.why}",
    )  # fmt: skip


def _take_penalty(draft: SnapshotBuilder, peer: PeerView, t: float, event: PenaltyImposed) -> None:
    imposed_in = min(event.until_round - 1, peer.round + 1)
    if not is_excused(draft, event, imposed_in):
        impose(draft, t, event, imposed_in)


def _take_evaluation(draft: SnapshotBuilder, peer: PeerView, t: float, event: Evaluated) -> None:
    if event.loss is None:
        draft.note(t, "error", peer.peer, "NONFINITE", f"the held-out loss at round {event.round} is not a number")
        return
    note_evaluation(draft, t, peer.peer, event.round, event.loss)
    if event.by_source:
        draft.source_losses[event.round] = MappingProxyType(event.by_source)


def _take_sample(draft: SnapshotBuilder, peer: PeerView, t: float, event: SampleWritten) -> None:
    draft.samples = (*draft.samples, event)


def _take_transfer(draft: SnapshotBuilder, peer: PeerView, t: float, event: TransferProgressed) -> None:
    peer.transfer = event
    others = [(what, known) for what, known in peer.transfers.items() if what != event.what]
    peer.transfers = MappingProxyType(dict((*others, (event.what, event))[-MAX_TRANSFERS:]))


def _take_network(draft: SnapshotBuilder, peer: PeerView, t: float, event: NetworkMeasured) -> None:
    before, before_t = peer.network, peer.network_t
    if before is not None and before_t is not None and t - before_t >= LONG_S:
        sent_bps = max(0, event.bytes_sent - before.bytes_sent) / (t - before_t)
        received_bps = max(0, event.bytes_received - before.bytes_received) / (t - before_t)
        draft.plot(peer.ups, t, peer.round, sent_bps, TRAFFIC_POINTS)
        draft.plot(peer.downs, t, peer.round, received_bps, TRAFFIC_POINTS)
    peer.network, peer.network_t = event, t


def _take_figure(draft: SnapshotBuilder, peer: PeerView, t: float, event: Event) -> None:
    """Events that are only kept, or only noted."""
    match event:
        case RoundForecast():
            peer.forecast = event
        case RoundStalled():
            peer.stalled = event
        case DeviceMeasured():
            peer.device_figures = event
        case BoardSeen():
            peer.board = event
        case DeviceReported():
            draft.peer(event.about).device_gb = event.device_gb
        case RoundTripsReported() if event.about in draft.peers:  # a relay, or somebody who watches, is no peer
            draft.peer(event.about).distances = MappingProxyType(event.rtt_s)
        case CheckpointWritten():
            draft.note(t, "info", peer.peer, "CHECKPOINT", f"checkpoint of round {event.round} written")


def _take_alert(draft: SnapshotBuilder, peer: PeerView, t: float, event: AlertRaised) -> None:
    text = PEER_ID.sub(lambda found: draft.label(found[0]), event.text)
    peer.alerts = [*peer.alerts, f"{event.level}: {text}"][-MAX_ALERTS:]
    level = event.level if event.level in ("info", "warning", "error") else "warning"
    draft.note(t, level, peer.peer, event.code, text)


def _take_stop(draft: SnapshotBuilder, peer: PeerView, t: float, event: PeerStopped) -> None:
    peer.state, peer.why, peer.until, peer.phase = "GONE", event.why, None, ""
    peer.stopped, peer.exit_code = True, event.exit_code
    add_span(peer.spans, t, "gone", peer.round + 1)
    draft.note(t, "error" if event.exit_code else "info", peer.peer, "STOPPED", f"stopped: {event.why}")


NAME_CELLS = 32
"""Longer names are cut."""


def short_name(name: str) -> str:
    """A name of at most `NAME_CELLS` columns, cut with an ellipsis. An excess of combining marks, which have no
    width, is cut, too."""
    if len(name) <= NAME_CELLS and name.isascii():
        return name
    if len(name) <= 2 * NAME_CELLS and sum(map(_cells, name)) <= NAME_CELLS:
        return name
    kept, cells = "", 0
    for char in name[: 2 * NAME_CELLS]:
        cells += _cells(char)
        if cells >= NAME_CELLS:
            break
        kept += char
    return f"{kept}…"


def _cells(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


_TAKERS: dict[type[Event], Callable[[SnapshotBuilder, PeerView, float, Any], None]] = {
    PeerIntroduced: _take_introduction,
    PeerStarted: _take_started,
    SettingsChanged: _take_settings,
    PeerStateChanged: _take_state,
    RoundStarted: _take_round_start,
    InnerProgressed: _take_progress,
    PhaseEntered: _take_phase,
    RoundCommitted: _take_commit,
    RoundAborted: _take_abort,
    MessageRefused: _take_refusal,
    PenaltyImposed: _take_penalty,
    Evaluated: _take_evaluation,
    SampleWritten: _take_sample,
    TransferProgressed: _take_transfer,
    NetworkMeasured: _take_network,
    ClusterFormed: _take_cluster,
    StagesMeasured: _take_stages,
    **dict.fromkeys(
        (RoundForecast, RoundStalled, DeviceMeasured, DeviceReported, RoundTripsReported, CheckpointWritten, BoardSeen),
        _take_figure,
    ),
    AlertRaised: _take_alert,
    PeerStopped: _take_stop,
}


def _stands(peer: PeerView) -> bool:
    """Whether the peer's lane shows its state, whatever phase the round is in."""
    state = state_named(peer.state)
    return state.is_here and phase(state.phase).stands


def _return(peer: PeerView) -> None:
    """The peer was believed gone, but it trains."""
    if peer.state == "GONE":
        peer.state, peer.why = "TRAINING", ""


def reduce_reported(draft: SnapshotBuilder, peer: PeerView, t: float, event: ReportReceived) -> None:
    """What another peer reports about itself; only a sign of life if the peer's own lines are read."""
    peer.seen_t = t if peer.seen_t is None else max(peer.seen_t, t)
    if event.evaluated is not None:
        note_reported_loss(draft, t, peer, event.evaluated_round, event.evaluated)
    if peer.reports:
        return
    peer.started_t = t if peer.started_t is None else peer.started_t
    peer.name = short_name(event.name) or peer.name
    doing, peer.state = _stage(event)
    peer.why = "sits this round out" if peer.state == "PAUSED" else ""
    peer.stopped = event.leaving
    peer.round, peer.step = event.round, event.steps
    add_span(peer.spans, t, doing, event.round + 1)
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
    if event.leaving:
        return "gone", "GONE"
    if event.ready and not event.steps and event.round >= 0:
        return "paused", "PAUSED"
    return ("prepare", "READY") if event.ready else ("train", "TRAINING")


def _estimate_speed(peer: PeerView, t: float, event: ReportReceived) -> float:
    """Tokens per second since it was first heard training in this round; 0 if that is not known."""
    began_t = training_began(peer.spans, event.round + 1)
    if not event.ready or began_t is None or t - began_t < LONG_S:
        return 0.0
    return event.tokens / (t - began_t)
