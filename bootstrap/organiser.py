"""What an organiser can do beside a running bootstrap node, or without one: make invites, list members, quarantine
peers.

These commands need the organiser's folder with its key, and no network. Each returns the lines to print. A bootstrap
node that runs on the same folder passes new orders on at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bootstrap.checkpoints import read_checkpoint
from bootstrap.config import InviteTerms, issue_all, parse_duration_s
from bootstrap.members import end, load_ended, load_names, read_book, renew
from bootstrap.roster import demote, load_promoted, promote
from dht.access import RejectCode
from dht.addresses import check_dial
from dht.admission import FOR_EVER, QuarantineList, load_quarantine, save_quarantine, sign_quarantine
from dht.atomic_files import file_stamp
from dht.errors import BadInput
from dht.identity import Identity, fingerprint_words
from dht.invite import INVITE_FILE, MAX_ADDRESSES, Invite, parse
from peer.schema.events import AlertRaised, Event

ORDERS_FILE = "quarantine"


def more_invites(directory: Path, *, expires: str = "", count: int = 0, also: Sequence[str] = ()) -> str:
    """Further invites of the run on these terms, with the addresses of the last one. Raises BadInput."""
    organiser, last = _open(directory)
    lasts_s = parse_duration_s("--expires", expires) if expires else 0.0
    terms = InviteTerms(admits=last.token is not None, single=count, lasts_s=lasts_s)
    # What is asked for now comes first: of too many the last are left out.
    addrs = tuple(dict.fromkeys((*map(check_dial, also), *last.addrs)))[:MAX_ADDRESSES]
    texts = issue_all(
        organiser, run=last.run, spec_hash=last.spec_hash, addrs=addrs, terms=terms, now_s=time.time(),
        checkpoint=read_checkpoint(directory),
    )  # fmt: skip
    return "\n".join(texts)


def keep_out(directory: Path, peer: str, reason: str) -> str:
    """Put a peer into quarantine, with a reason. Raises BadInput, DiskFull."""
    organiser, last = _open(directory)
    quarantine(directory, organiser, last.spec_hash, peer, reason.strip())
    return f"{peer} is in quarantine: {reason.strip()}; peers obey once the bootstrap node has told them"


def let_back(directory: Path, peer: str) -> str:
    """End a quarantine. Raises BadInput, DiskFull."""
    organiser, last = _open(directory)
    lift(directory, organiser, last.spec_hash, peer)
    return f"the quarantine of {peer} is lifted; peers obey once the bootstrap node has told them"


def list_quarantine(directory: Path) -> str:
    """The peers in quarantine, and the reasons. Raises BadInput."""
    organiser, last = _open(directory)
    kept_out = load_quarantine(directory / ORDERS_FILE, last.spec_hash, organiser.peer_id).quarantined
    lines = [f"{peer}  {reason}" for peer, reason in sorted(kept_out.items())]
    return "\n".join(lines or [f"nobody is in quarantine in {last.run} of {fingerprint_words(organiser.peer_id)}"])


def list_members(directory: Path) -> str:
    """The admitted peers, their names, and the ends of their admissions; and the promoted ones. Raises BadInput."""
    organiser, last = _open(directory)
    now_s, ended, names = time.time(), load_ended(directory), load_names(directory)
    until = {row["peer"]: row["until"] for row in read_book(directory)}  # of a peer the newest line counts
    lines = [
        f"{peer}  {names.get(peer, '-')}  {_when(until[peer], now_s)}"
        f"{f'; not renewed: {ended[peer]}' if peer in ended else ''}"
        for peer in sorted(until)
    ]
    lines = lines or [f"nobody was admitted to {last.run} of {fingerprint_words(organiser.peer_id)}"]
    return "\n".join((*lines, *(f"{peer}  promoted {how}" for peer, how in sorted(load_promoted(directory).items()))))


def _when(until: float, now_s: float) -> str:
    if until == FOR_EVER:
        return "as long as the run lasts"
    date = time.strftime("%Y-%m-%d", time.gmtime(until))
    return f"until {date}" if until > now_s else f"ended on {date}"


def end_admission(directory: Path, peer: str, reason: str) -> str:
    """Do not renew a peer's admission any more. Raises BadInput, DiskFull."""
    _open(directory)
    end(directory, peer, reason.strip())
    return f"the admission of {peer} is renewed no more: {reason.strip()}; it takes part until it ends"


def renew_admission(directory: Path, peer: str) -> str:
    """Undo `end_admission`. Raises BadInput, DiskFull."""
    _open(directory)
    renew(directory, peer)
    return f"the admission of {peer} is renewed again"


def promote_peer(directory: Path, peer: str) -> str:
    """Make a peer a known one, like a founder. Raises BadInput, DiskFull."""
    _open(directory)
    promote(directory, peer, time.strftime("by hand on %Y-%m-%d", time.gmtime()))
    return f"{peer} is promoted: no stranger any more; peers know it once the bootstrap node has told them"


def demote_peer(directory: Path, peer: str) -> str:
    """Undo `promote_peer`. Raises BadInput, DiskFull."""
    _open(directory)
    demote(directory, peer)
    return f"{peer} is not promoted any more; peers know it once the bootstrap node has told them"


def _open(directory: Path) -> tuple[Identity, Invite]:
    """The organiser's key, and the newest invite of its run. Raises BadInput."""
    path = directory / INVITE_FILE
    if not path.exists() or not (directory / "identity.key").exists():
        raise BadInput(f"{directory} is no folder of an organiser, or its node never ran; see homefires bootstrap")
    organiser = Identity.load_or_create(directory / "identity.key")
    last = parse(path.read_text(errors="replace"), float("-inf"))  # it may be over: what it names is still so
    if last.organiser != organiser.peer_id:
        raise BadInput(f"{path} is of another organiser than identity.key; bring back the key that belongs to it")
    return organiser, last


class OrdersFile:
    """The newest orders of a folder; changes are reported. Raises BadInput for a file that is damaged now. A file
    that is damaged, gone, or older while the node runs changes nothing: the last orders stay in force."""

    def __init__(self, directory: Path, run: bytes, organiser: str, report: Callable[[Event], None]) -> None:
        self._path, self._run, self._organiser, self._report = directory / ORDERS_FILE, run, organiser, report
        self._seen = file_stamp(self._path)
        self._newest, self._told = load_quarantine(self._path, run, organiser), QuarantineList()

    def look(self) -> QuarantineList:
        stamp = file_stamp(self._path)
        if stamp != self._seen:
            self._seen = stamp
            self._read()
        if self._newest is not self._told:
            before, self._told = self._told, self._newest
            self._tell(before)
        return self._newest

    def _read(self) -> None:
        try:
            found = load_quarantine(self._path, self._run, self._organiser)
        except BadInput as error:
            self._keep(str(error))
            return
        if found.number < self._newest.number:
            self._keep(f"{self._path} is gone, or holds older orders")
        else:
            self._newest = found

    def _keep(self, why: str) -> None:
        text = f"{why}: what was ordered last goes on as long as this node runs"
        self._report(AlertRaised(level="warning", code=RejectCode.RECORD, text=text))

    async def answer(self, peer: str, request: bytes) -> bytes | None:
        """The orders, if they are newer than the number in the request."""
        orders = self.look()
        return orders.to_bytes() if orders.number > int.from_bytes(request[:8], "big") else None

    def _tell(self, before: QuarantineList) -> None:
        for peer, reason in sorted(self._newest.quarantined.items()):
            if before.quarantined.get(peer) != reason:
                text = f"{peer} is in quarantine: {reason}"
                self._report(AlertRaised(level="warning", code=RejectCode.QUARANTINE, text=text))
        for peer in sorted(before.quarantined.keys() - self._newest.quarantined.keys()):
            text = f"the quarantine of {peer} is lifted"
            self._report(AlertRaised(level="info", code=RejectCode.QUARANTINE, text=text))


def quarantine(directory: Path, organiser: Identity, run: bytes, peer: str, reason: str) -> QuarantineList:
    """Put a peer into quarantine. Raises BadInput for a reason that no peer would read, DiskFull."""
    if peer == organiser.peer_id:
        raise BadInput("this is the organiser's own key; it cannot be put in quarantine")
    known = load_quarantine(directory / ORDERS_FILE, run, organiser.peer_id)
    return _save(directory, sign_quarantine(organiser, run, _next(known), {**known.quarantined, peer: reason}))


def lift(directory: Path, organiser: Identity, run: bytes, peer: str) -> QuarantineList:
    """End a quarantine. Raises BadInput if the peer is not in quarantine, DiskFull."""
    known = load_quarantine(directory / ORDERS_FILE, run, organiser.peer_id)
    if peer not in known.quarantined:
        kept_out = ", ".join(sorted(known.quarantined)) or "nobody"
        raise BadInput(f"{peer[:60]!r} is not in quarantine; {kept_out} is")
    others = {other: reason for other, reason in known.quarantined.items() if other != peer}
    return _save(directory, sign_quarantine(organiser, run, _next(known), others))


def _next(known: QuarantineList) -> int:
    """The next number, taken from the clock: it must also count if this folder was lost, or is an old copy, and
    others know newer orders."""
    return max(known.number + 1, round(time.time()))


def _save(directory: Path, orders: QuarantineList) -> QuarantineList:
    save_quarantine(directory / ORDERS_FILE, orders)
    return orders
