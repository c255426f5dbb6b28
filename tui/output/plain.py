"""The plain log: one line per committed round, every state change, alerts, and a heartbeat.

Safe to pipe: no escape bytes ever, whatever a peer calls itself.
"""

from __future__ import annotations

from typing import NamedTuple, TextIO

from peer.events import (
    AlertRaised,
    ClusterFormed,
    Evaluated,
    EventLine,
    InviteIssued,
    MessageRefused,
    PeerStarted,
    PeerStateChanged,
    PeerStopped,
    PenaltyImposed,
    RoundAborted,
    RoundCommitted,
    SampleWritten,
    SettingsChanged,
    TransferProgressed,
    printable,
)
from peer.settings import changes
from tui.processes.children import Output
from tui.swarm.reducer import apply
from tui.swarm.snapshot import PeerView, SwarmState
from tui.text.phrases import devices_words, with_end
from tui.text.units import Bar, count, format_bytes, format_elapsed, format_transfer

HEARTBEAT_S = 60.0
"""A line is printed after this long without one."""

SYNCING_EVERY_S = 5.0
"""How far a peer has caught up is printed this often."""

EVALUATION_WAIT_S = 5.0
"""The line of a round waits this long for its held-out loss."""

SAMPLE_SHOWN = 200
"""Characters of a continued text."""

WATCHER = "watch"
"""The name of who tells of a swarm and is nobody in it."""

_CYCLE = frozenset({"TRAINING", "READY", "AVERAGING"})


class _Pending(NamedTuple):
    """A committed round whose line waits for the held-out loss; `training_loss` is the peers' mean at the commit."""

    t: float
    event: RoundCommitted
    training_loss: float | None
    is_measured: bool
    """Whether the teller took part, and knows what the round cost it."""


class PlainOutput(Output):
    """Prints `mm:ss  what happened`, counted from the first event.

    `rounds` is the length of the run, 0 if it has none. `terse` leaves out the changes between TRAINING, READY
    and AVERAGING, which the line of the round stands for: several peers in one log would drown it.
    """

    def __init__(self, stream: TextIO, *, rounds: int = 0, terse: bool = False) -> None:
        self._stream, self._rounds, self._terse = stream, rounds, terse
        self._swarm = SwarmState()
        self._pending: _Pending | None = None
        self._said_t = 0.0
        self._synced_t: dict[str, float] = {}
        """When it was last printed how far a peer has caught up."""
        self._bars: dict[str, Bar] = {}
        """Of each peer that takes a snapshot."""

    def show(self, line: EventLine) -> None:
        before, self._swarm = self._swarm, apply(self._swarm, line)
        self._said_t = self._said_t or line.t
        match line.event:
            case RoundCommitted() as event if _is_news(before, event) and not _is_syncing(before, line):
                self._flush_round(line.t)
                self._pending = _Pending(line.t, event, self._training_loss(), bool(line.peer))
            case Evaluated() as event if event.loss is not None and event.round not in dict(before.losses):
                self._show_evaluation(line.t, event)
            case SampleWritten(round=round, prompt=prompt, text=text):
                shown = text if len(text) <= SAMPLE_SHOWN else f"{text[:SAMPLE_SHOWN]}…"
                self._print(line.t, f"{self._round(round)} · {prompt!r} goes on: {shown!r}")
            case PenaltyImposed() as event if event in self._swarm.penalties and event not in before.penalties:
                if line.peer or not _is_syncing(before, line):  # a watcher that catches up tells of old rounds
                    self._print(line.t, self._penalty(event))
            case RoundAborted() as event:
                self._print(line.t, f"{self._who(line)}: round {event.round + 1} is tried again: {event.why}")
            case MessageRefused() as event:
                what = f"what {self._swarm.label(event.about)} sent for round {event.round + 1}"
                self._print(line.t, f"{self._who(line)}: {event.rule} refuses {what}: {event.why}")
            case AlertRaised() as event:
                self._print(line.t, f"{self._who(line)}: {event.level}: {event.text}")
            case PeerStarted() as event:
                devices = devices_words(event.devices, event.sharding) or event.device
                parts = [f"{self._who(line)}: started", devices]
                parts += [f"{event.parameters:,} parameters"] if event.parameters else []
                self._print(line.t, " · ".join(part for part in parts if part))
            case ClusterFormed(lead=lead, stages=stages) if lead == line.peer:
                homes = ", ".join(f"{self._swarm.label(row['peer'])} {row['layers']}" for row in stages)
                self._print(line.t, f"{self._who(line)}: leads a cluster: {homes}")
            case SettingsChanged() as event:
                self._show_settings(before, line, event)
            case PeerStateChanged() as event:
                self._show_state(before, line, event)
            case TransferProgressed(what="snapshot") as event:
                self._show_snapshot(line, event)
            case PeerStopped() as event if line.peer:
                self._flush_round(line.t)
                self._print(line.t, f"{self._who(line)}: stopped: {event.why}")
            case InviteIssued() as event:
                self._print(line.t, f"invite: {event.invite}")

    def say(self, text: str) -> None:
        print(printable(text), file=self._stream, flush=True)

    def tick(self, now_s: float) -> None:
        if self._pending is not None and now_s - self._pending.t >= EVALUATION_WAIT_S:
            self._flush_round(now_s)
        if self._swarm.started_t is not None and now_s - self._said_t >= HEARTBEAT_S:
            self._print(now_s, self._heartbeat())

    def close(self, *, at_once: bool = False) -> None:
        if self._pending is not None:
            self._flush_round(self._pending.t)

    def _show_state(self, before: SwarmState, line: EventLine, event: PeerStateChanged) -> None:
        old = _teller(before, line)
        if old is not None and (old.state, old.why) == (event.state, event.why):
            return
        if self._terse and old is not None and {old.state, event.state} <= _CYCLE:
            return
        if self._terse_sync(before, line):
            return
        why = with_end(event.why, event.until, line.t) if event.state == "PAUSED" else event.why
        said = f"{event.state}: {why}" if why else event.state
        view = _teller(self._swarm, line)
        received = f" · {format_transfer(view.transfer)}" if view is not None and view.transfer is not None else ""
        self._print(line.t, f"{self._who(line)}: {said}{received}")

    def _show_settings(self, before: SwarmState, line: EventLine, event: SettingsChanged) -> None:
        known = _teller(before, line)
        for change in changes(known.settings if known is not None else {}, event.settings):
            self._print(line.t, f"{self._who(line)}: {change}")

    def _show_snapshot(self, line: EventLine, event: TransferProgressed) -> None:
        bar = self._bars.get(line.peer)
        if bar is None or not bar.covers(event):
            bar = self._bars[line.peer] = Bar(line.t, event)
        if bar.is_due(line.t, event):
            self._print(line.t, f"{self._who(line)}: snapshot {bar.draw(line.t, event)}")

    def _terse_sync(self, before: SwarmState, line: EventLine) -> bool:
        """A peer that catches up says each second how far it is."""
        if not _is_syncing(self._swarm, line):
            return False
        said_t = self._synced_t.get(line.peer)
        if _is_syncing(before, line) and said_t is not None and line.t - said_t < SYNCING_EVERY_S:
            return True
        self._synced_t[line.peer] = line.t
        return False

    def _show_evaluation(self, t: float, event: Evaluated) -> None:
        if self._pending is not None and self._pending.event.round == event.round:
            self._flush_round(t)
        else:
            self._print(t, f"{self._round(event.round)} · held-out loss {event.loss:.3f}{self._sources(event.round)}")

    def _flush_round(self, t: float) -> None:
        if self._pending is None:
            return
        (_, event, training, is_measured), self._pending = self._pending, None
        told_s = next((view.round_s for view in reversed(self._swarm.history) if view.round == event.round), 0.0)
        round_s = event.round_s if is_measured else told_s
        held_out = dict(self._swarm.losses).get(event.round)
        parts = [
            self._round(event.round),
            count(len(event.group), "peer"),
            f"held-out loss {held_out:.3f}{self._sources(event.round)}" if held_out is not None else "",
            f"training loss {training:.3f}" if training is not None else "",
            f"{round_s:.1f} s" if is_measured or round_s else "",
            f"{format_bytes(event.bytes_sent)} up" if is_measured else "",
            count(event.void, "void part") if event.void else "",
            f"digest {event.digest[:8]}",
        ]
        self._print(t, " · ".join(part for part in parts if part))

    def _sources(self, round: int) -> str:
        words = self._swarm.sources_in_words(round)
        return f" ({words})" if words else ""

    def _penalty(self, event: PenaltyImposed) -> str:
        """round 12: peer-3 LATE, 12 of 24 parts came in time, counted 50 %, until round 13."""
        imposed, who = f"round {event.until_round - 1}", self._swarm.label(event.about)
        counted = f"counted {100 * event.factor:.0f} %"
        return f"{imposed}: {who} {event.code}, {event.evidence}, {counted}, until round {event.until_round}"

    def _heartbeat(self) -> str:
        swarm = self._swarm
        known = swarm.reporting or [view for view in swarm.peers.values() if view.state != "GONE"]
        alive = [view for view in known if not view.stopped]
        parts = [count(len(alive), "peer"), self._round(swarm.round)]
        training = [view for view in alive if view.steps]
        if training:
            slowest = min(training, key=lambda view: (view.round, view.step))
            parts += [f"step {slowest.step}/{slowest.steps} of {slowest.label}"]
            parts += [f"{sum(view.tokens_per_s for view in training):,.0f} tokens/s"]
        return " · ".join(parts)

    def _training_loss(self) -> float | None:
        losses = [view.loss for view in self._swarm.reporting if view.loss is not None and not view.stopped]
        return sum(losses) / len(losses) if losses else None

    def _round(self, round: int) -> str:
        return f"round {round}/{self._rounds}" if self._rounds else f"round {round}"

    def _who(self, line: EventLine) -> str:
        return self._swarm.label(line.peer) or WATCHER

    def _print(self, t: float, text: str) -> None:
        self._said_t = max(t, self._said_t)
        started_t = self._swarm.started_t
        self.say(f"{format_elapsed(t - (t if started_t is None else started_t))}  {text}")


def _is_news(swarm: SwarmState, event: RoundCommitted) -> bool:
    """Whether nobody has reported this anchor: the next one, or one of another branch."""
    tellers = [*swarm.reporting, *([swarm.narrator] if swarm.narrator is not None else [])]
    return not any(view.has_committed(event) for view in tellers)


def _teller(swarm: SwarmState, line: EventLine) -> PeerView | None:
    return swarm.peers.get(line.peer) if line.peer else swarm.narrator


def _is_syncing(swarm: SwarmState, line: EventLine) -> bool:
    view = _teller(swarm, line)
    return view is not None and view.state == "SYNCING"
