"""The plain log: one line per committed round, every change of state, alerts, and a heartbeat.

It is safe to pipe: it never contains escape bytes, whatever a peer calls itself.
"""

from __future__ import annotations

import textwrap
from typing import NamedTuple, TextIO

from peer.schema.events import (
    BoardSeen,
    Evaluated,
    EventLine,
    InviteIssued,
    PeerStateChanged,
    RoundCommitted,
    SampleWritten,
    TransferProgressed,
    printable,
)
from tui.processes.children import Output
from tui.swarm import figures
from tui.swarm.figure_text import loss_words, round_words
from tui.swarm.phase_styles import PENALTY_CODES, STATES, state_named
from tui.swarm.reducer import apply
from tui.swarm.snapshot import LogEntry, PeerView, Round, SwarmState
from tui.terminal import columns
from tui.text.event_text import with_end
from tui.text.explain import BROKEN_RULES
from tui.text.units import Bar, count, format_elapsed, format_transfer

HEARTBEAT_S = 60.0
"""After this time without a line, one is printed."""

SYNCING_EVERY_S = 5.0
"""The interval between two lines on how far a peer has caught up."""

EVALUATION_WAIT_S = 5.0
"""The time that the line of a round waits for the held-out loss."""

SAMPLE_SHOWN = 200
"""The number of characters of a sample that are printed."""

LONGEST = 10_000
"""The cells of a line where the terminal does not tell its width."""

WATCHER = "watch"
"""The name for a narrator that is not a member of the swarm."""

_OWN_LINES = frozenset({"COMMITTED", "EVALUATED", "CHECKPOINT", "INVITE", "FINGERPRINT", *STATES})
"""Log entries that have their own lines here, or none."""


class _Pending(NamedTuple):
    """A committed round whose line waits for the held-out loss."""

    t: float
    told: Round
    training_loss: float | None
    """The training loss at the commit."""


class PlainOutput(Output):
    """Prints `mm:ss  what happened`, counted from the first event.

    `rounds` is the length of the run, 0 if it has none or its peers tell it. `terse` leaves out the changes between
    TRAINING, READY and AVERAGING, since each round has its own line, and several peers in one log would drown it.
    """

    def __init__(self, stream: TextIO, *, rounds: int = 0, terse: bool = False) -> None:
        self._stream, self._rounds, self._terse = stream, rounds, terse
        self._swarm = SwarmState()
        self._pending: _Pending | None = None
        self._said_t = 0.0
        self._synced_t: dict[str, float] = {}
        """The time of the last line on how far a peer has caught up, by peer."""
        self._bars: dict[str, Bar] = {}
        """The progress bar of each peer that receives a snapshot."""

    def show(self, line: EventLine) -> None:
        before, self._swarm = self._swarm, apply(self._swarm, line)
        self._said_t = self._said_t or line.t
        for entry in _new_entries(before, self._swarm):
            self._show_entry(entry, is_old=_is_syncing(before, line))
        match line.event:
            case RoundCommitted() as event if _is_news(before, event) and not _is_syncing(before, line):
                self._flush_round(line.t)
                self._await_evaluation(line.t, event)
            case Evaluated() as event if event.loss is not None and event.round not in dict(before.losses):
                self._show_evaluation(line.t, event)
            case SampleWritten(round=round, prompt=prompt, text=text):
                shown = text if len(text) <= SAMPLE_SHOWN else f"{text[:SAMPLE_SHOWN]}…"
                self._print(line.t, f"{self._round(round)} · {prompt!r} goes on: {shown!r}")
            case PeerStateChanged() as event:
                self._show_state(before, line, event)
            case TransferProgressed(what="snapshot") as event:
                self._show_snapshot(line, event)
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

    def _show_entry(self, entry: LogEntry, *, is_old: bool) -> None:
        """Print a log entry as the Log screen shows it. With `is_old` its teller is catching up, so a penalty is an
        old one."""
        is_penalty = entry.code in PENALTY_CODES
        if is_old if is_penalty else entry.code in _OWN_LINES or (entry.code == "STOPPED" and not entry.peer):
            return
        if entry.code == "STOPPED":
            self._flush_round(entry.t)
        alert = "" if entry.level == "info" or entry.code in ("STOPPED", "ABORTED") else f"{entry.level}: "
        kind = f"{entry.code}: " if is_penalty or entry.code in BROKEN_RULES else alert
        self._print(entry.t, f"{self._called(entry.peer)}: {kind}{entry.text}")

    def _show_state(self, before: SwarmState, line: EventLine, event: PeerStateChanged) -> None:
        old = _teller(before, line)
        if old is not None and (old.state, old.why) == (event.state, event.why):
            return
        if self._terse and old is not None and not (state_named(old.state).notable or state_named(event.state).notable):
            return
        if self._terse_sync(before, line) or not state_named(event.state).is_here:  # why it stops has its own line
            return
        why = with_end(event.why, event.until, line.t) if event.state == "PAUSED" else event.why
        said = f"{event.state}: {why}" if why else event.state
        view = _teller(self._swarm, line)
        received = f" · {format_transfer(view.transfer)}" if view is not None and view.transfer is not None else ""
        self._print(line.t, f"{self._who(line)}: {said}{received}")

    def _show_snapshot(self, line: EventLine, event: TransferProgressed) -> None:
        bar = self._bars.get(line.peer)
        if bar is None or not bar.covers(event):
            bar = self._bars[line.peer] = Bar(line.t, event)
        if bar.is_due(line.t, event):
            self._print(line.t, f"{self._who(line)}: snapshot {bar.draw(line.t, event)}")

    def _terse_sync(self, before: SwarmState, line: EventLine) -> bool:
        """Whether to leave out a line: a peer that catches up reports its progress every second."""
        if not _is_syncing(self._swarm, line):
            return False
        said_t = self._synced_t.get(line.peer)
        if _is_syncing(before, line) and said_t is not None and line.t - said_t < SYNCING_EVERY_S:
            return True
        self._synced_t[line.peer] = line.t
        return False

    def _show_evaluation(self, t: float, event: Evaluated) -> None:
        if self._pending is not None and self._pending.told.round == event.round:
            self._flush_round(t)
        else:
            self._print(t, f"{self._round(event.round)} · {loss_words(self._swarm, event.round)}")

    def _await_evaluation(self, t: float, event: RoundCommitted) -> None:
        told = next((told for told in reversed(self._swarm.history) if told.digest == event.digest), None)
        if told is not None:
            self._pending = _Pending(t, told, figures.training_loss(self._swarm))

    def _flush_round(self, t: float) -> None:
        if self._pending is not None:
            (_, told, training), self._pending = self._pending, None
            self._print(t, f"{self._round(told.round)} · {round_words(self._swarm, told, training)}")

    def _heartbeat(self) -> str:
        swarm = self._swarm
        board = next((view.board for view in swarm.reporting if view.board is not None), None)
        if board is not None:
            return f"{count(board.present, 'peer')} · {self._where(board)}"
        known = swarm.reporting or [view for view in swarm.peers.values() if view.state != "GONE"]
        alive = [view for view in known if not view.stopped]
        parts = [count(len(alive), "peer"), self._round(swarm.round)]
        training = [view for view in alive if view.steps]
        if training:
            slowest = min(training, key=lambda view: (view.round, view.step))
            parts += [f"step {slowest.step}/{slowest.steps} of {slowest.label}"]
            speed = figures.throughput(swarm)
            parts += [f"{speed:,.0f} tokens/s counted"] if speed is not None else []
        return " · ".join(parts)

    def _where(self, board: BoardSeen) -> str:
        if board.round is None:
            missing = f", and waits for {count(board.missing, 'more peer')}" if board.missing else ""
            return f"the run has not begun{missing}"
        rounds = self._rounds or self._swarm.rounds
        if rounds and board.round >= rounds:
            return f"{self._round(board.round)}, the run is finished"
        return self._round(board.round) if board.present else f"last seen in {self._round(board.round)}"

    def _round(self, round: int) -> str:
        rounds = self._rounds or self._swarm.rounds
        return f"round {round}/{rounds}" if rounds else f"round {round}"

    def _who(self, line: EventLine) -> str:
        return self._called(line.peer)

    def _called(self, peer: str) -> str:
        return self._swarm.label(peer) or WATCHER

    def _print(self, t: float, text: str) -> None:
        self._said_t = max(t, self._said_t)
        started_t = self._swarm.started_t
        elapsed = format_elapsed(t - (t if started_t is None else started_t))
        print("\n".join(self._wrap(printable(f"{elapsed}  {text}"), len(elapsed) + 2)), file=self._stream, flush=True)

    def _wrap(self, line: str, indent: int) -> list[str]:
        """On a terminal its lines, broken between words alone; an invite and a path stay whole, to be copied."""
        if not self._stream.isatty():
            return [line]
        return textwrap.wrap(
            line, columns(LONGEST), subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
        )


def _new_entries(before: SwarmState, after: SwarmState) -> list[LogEntry]:
    """The entries that are new in the log, in order."""
    last, new = before.entries[-1] if before.entries else None, list[LogEntry]()
    for entry in reversed(after.entries):
        if entry is last:
            break
        new.append(entry)
    return new[::-1]


def _is_news(swarm: SwarmState, event: RoundCommitted) -> bool:
    """Whether this anchor was not reported yet: it is the next one, or one of another branch."""
    return not any(view.has_committed(event) for view in figures.tellers(swarm))


def _teller(swarm: SwarmState, line: EventLine) -> PeerView | None:
    return swarm.peers.get(line.peer) if line.peer else swarm.narrator


def _is_syncing(swarm: SwarmState, line: EventLine) -> bool:
    view = _teller(swarm, line)
    return view is not None and view.state == "SYNCING"
