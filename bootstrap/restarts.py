"""Runs that have lost their quorum: which peers wait, which of them the node lets go on, and what the organiser allows.

Everything lies in the organiser's folder: Restarts, each written before it is sent; the peers that wait; and the
organiser's word that a smaller group may go on, which the running node reads once a second.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dht.access import RejectCode
from dht.atomic_files import write_atomic
from dht.errors import BadInput, DiskFull
from dht.identity import Identity, RunKeys
from peer.consensus.organiser import restart_desk
from peer.consensus.organiser.restart_desk import RestartDesk, Standstill, read_question, read_restart
from peer.consensus.protocol.block import Restart, Roster
from peer.consensus.protocol.encoding import pack
from peer.schema.events import AlertRaised, Event

FOLDER = "restarts"
WAITING_FILE, ORDER_FILE = "waiting.json", "restart_order.json"
OBEYED_S = 15.0
"""A node looks each second, or it does not run."""
LOOK_S = 0.2
PASSED_S = 1800.0
"""Whoever has a decision and hears those who ask gives it to them within minutes: by claiming one nobody holds a run up
for longer."""

Refuse = Callable[[RejectCode, str, str], None]


class RestartBook:
    """What the node knows about restarts. `holders` names the peers that have a decision which a Restart would
    replace.

    Raises BadInput for a file that is damaged.
    """

    def __init__(
        self, directory: Path, identity: Identity, run: bytes, report: Callable[[Event], None],
        holders: Callable[[Restart], Sequence[str]] = lambda _: (),
        in_chain: Callable[[], Iterable[Restart]] = tuple,
    ) -> None:  # fmt: skip
        self._directory, self._report, self._holders = directory, report, holders
        self._told: list[Standstill] = []
        self._passed, self._passed_since = b"", 0.0
        self._keys, self._founders, self._trouble = RunKeys(identity, run), Roster(), ""
        self.desk = RestartDesk(
            self._keys, self._save, _load(directory / FOLDER), wait_s=restart_desk.WAIT_S, is_passed=self._is_passed,
            in_chain=in_chain,
        )  # fmt: skip
        _write_waiting(directory, [])  # what lies there is of an earlier life
        (directory / ORDER_FILE).unlink(missing_ok=True)

    def know(self, founders: tuple[str, ...], newest: Roster) -> None:
        """The peers that the organiser knows: first, and now."""
        self._founders, self.desk.roster = Roster(0, founders), newest

    def answer(self, peer: str, request: bytes, refuse: Refuse) -> bytes | None:
        """The answer to `restart_desk.QUESTION`; None if there is none."""
        if not request or not self.desk.roster.known:
            return b""
        try:
            stuck, roster = read_question(request)
            if stuck.voter != peer:
                raise ValueError("it shows what another has signed")
            if roster != self._founders and not self._is_mine(roster):
                raise ValueError("its list is none that this organiser has signed")
            restart = self.desk.show(stuck, time.monotonic(), roster)
        except DiskFull as error:
            self._report(AlertRaised(level="error", code="DISK", text=f"a run stands still for want of room: {error}"))
            return None
        except ValueError as error:
            refuse(RejectCode.RECORD, peer, f"it is not stuck: {error}")
            return None
        return b"" if restart is None else pack(restart.packed())

    def look(self) -> None:
        """Report the waiting peers if they have changed, and do what the organiser has ordered; when the disk has
        room."""
        try:
            self._look()
        except DiskFull as error:
            if str(error) != self._trouble:
                self._report(AlertRaised(level="error", code="DISK", text=str(error)))
            self._trouble = str(error)

    def _look(self) -> None:
        order = self._directory / ORDER_FILE
        if order.exists():
            self._obey(order)
            order.unlink()
        standing = self.desk.standing(time.monotonic())
        if standing == self._told:
            return
        _write_waiting(self._directory, standing)
        for item in standing:
            if item not in self._told:
                self._report(AlertRaised(level="warning", code="STUCK", text=words_of(item)))
        self._told = standing

    def _is_mine(self, roster: Roster) -> bool:
        return self._keys.verify(self._keys.identity.peer_id, "roster", roster.payload(), roster.signature)

    def _obey(self, order: Path) -> None:
        try:
            abouts = [bytes.fromhex(item) for item in json.loads(order.read_bytes())]
        except (ValueError, TypeError) as error:
            text = f"{order} is damaged ({error}): nobody is let go on; say homefires restart-run again"
            self._report(AlertRaised(level="error", code=RejectCode.RECORD, text=text))
            return
        for about in abouts:
            self.desk.force(about)

    def _is_passed(self, restart: Restart) -> bool:
        """Told once for an anchor."""
        holders, now = self._holders(restart), time.monotonic()
        if holders and restart.anchor != self._passed:
            self._passed, self._passed_since = restart.anchor, now
            text = (
                f"{', '.join(restart.electorate)} ask to go on before a round that was decided, and that "
                f"{', '.join(holders)} still have: one of those who ask hides what it knows, or has an older disk; "
                f"nobody is let go on for {PASSED_S / 60:.0f} minutes while the others are here, unless you say "
                "homefires restart-run"
            )
            self._report(AlertRaised(level="warning", code="PASSED", text=text))
        return bool(holders) and now - self._passed_since < PASSED_S

    def _save(self, restart: Restart) -> None:
        folder = self._directory / FOLDER
        folder.mkdir(mode=0o700, exist_ok=True)
        write_atomic(folder / restart.stuck[0].about.hex(), pack(restart.packed()))
        why = "the organiser has said so" if restart.forced else "half of those whom the organiser knows are here"
        text = f"a run goes on with {', '.join(restart.electorate)}: {why}"
        self._report(AlertRaised(level="warning", code="RESTART", text=text))


def words_of(item: Standstill) -> str:
    missing = ", ".join(item.missing) or "nobody"
    return f"a run stands still: {', '.join(item.came)} came here, {missing} did not"


def _load(folder: Path) -> list[Restart]:
    found = []
    for path in sorted(folder.glob("[0-9a-f]*[0-9a-f]")):
        try:
            found.append(read_restart(path.read_bytes()))
        except ValueError as error:
            raise BadInput(f"{path} is damaged ({error}); bring it back from a copy") from error
    return found


# ---- what the organiser does beside the node ----


@dataclass(frozen=True, kw_only=True)
class Unanswered:
    """Agreements that stand still, and what people read about each."""

    abouts: tuple[str, ...]
    lines: tuple[str, ...]


def read_waiting(directory: Path) -> Unanswered:
    """The peers that wait for the node of this folder. Raises BadInput for a damaged file."""
    path = directory / WAITING_FILE
    if not path.exists():
        return Unanswered(abouts=(), lines=())
    try:
        rows = json.loads(path.read_bytes())
        return Unanswered(
            abouts=tuple(str(row["about"]) for row in rows), lines=tuple(str(row["text"]) for row in rows)
        )
    except (ValueError, TypeError, KeyError) as error:
        raise BadInput(f"{path} is damaged; start the node again, which writes it anew") from error


def let_go_on(directory: Path, waiting: Unanswered, within_s: float = OBEYED_S) -> str:
    """Make the running node let the waiting peers go on; returns its answer. Raises BadInput if it does not run,
    DiskFull."""
    path = directory / ORDER_FILE
    write_atomic(path, json.dumps(list(waiting.abouts)).encode())
    ends_at = time.monotonic() + within_s
    while path.exists():
        if time.monotonic() > ends_at:
            path.unlink(missing_ok=True)
            raise BadInput(f"no node of {directory} has read this within {within_s:.0f} s; start it, and say it again")
        time.sleep(LOOK_S)
    went_on = any((directory / FOLDER / about).exists() for about in waiting.abouts)
    return "they go on; their screens say so within some seconds" if went_on else "nobody waits there any more"


def _write_waiting(directory: Path, standing: list[Standstill]) -> None:
    rows = [{"about": item.about.hex(), "text": words_of(item)} for item in standing]
    write_atomic(directory / WAITING_FILE, json.dumps(rows, indent=1).encode())
