"""`python -m bootstrap.organiser`: what an organiser does beside a running bootstrap node, or without one.

    invite --dir DIR [--expires 7d] [--count N]    print more invites, of the run and the addresses of the last one
    quarantine PEER --dir DIR --reason TEXT        have nobody work with a peer any more, and say why
    lift PEER --dir DIR                            take that back
    list --dir DIR                                 who is in quarantine, and why
    members --dir DIR                              who is admitted, how it is called, and until when
    end PEER --dir DIR --reason TEXT               renew its admission no more
    renew PEER --dir DIR                           take that back

It needs the organiser's folder with its key, no network. A bootstrap node that runs there passes orders on at once.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bootstrap.config import InviteTerms
from bootstrap.invites import issue_all, parse_duration_s
from bootstrap.members import end, load_ended, load_names, read_book, renew
from dht.access import RejectCode
from dht.addresses import check_dial
from dht.admission import FOR_EVER, QuarantineList, load_quarantine, save_quarantine, sign_quarantine
from dht.atomic_files import file_stamp
from dht.errors import BadInput, HomefiresError
from dht.identity import Identity, fingerprint_words
from dht.invite import INVITE_FILE, MAX_ADDRESSES, Invite, parse
from peer.events import AlertRaised, Event


def main(arguments: Sequence[str] | None = None) -> int:
    """Do it and print what came of it; the exit code of `dht.errors`."""
    options = _parser().parse_args(arguments)
    try:
        run: Callable[[argparse.Namespace], str] = options.run
        print(run(options))
    except HomefiresError as error:
        if options.debug:
            raise
        print(f"homefires: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bootstrap.organiser", description="What an organiser does.")
    commands = parser.add_subparsers(required=True)
    inviting = commands.add_parser("invite", help="print more invites")
    inviting.add_argument("--expires", default="", metavar="TIME", help="how long they last, such as 7d or 12h")
    inviting.add_argument("--count", type=int, default=0, metavar="N", help="so many, for one peer each")
    inviting.add_argument("--also", action="append", default=[], metavar="ADDR", help="where else newcomers may dial")
    quarantining = commands.add_parser("quarantine", help="have nobody work with a peer any more")
    quarantining.add_argument("--reason", required=True, help="why, for everybody to read")
    lifting = commands.add_parser("lift", help="take a quarantine back")
    listing = commands.add_parser("list", help="who is in quarantine")
    telling = commands.add_parser("members", help="who is admitted, and until when")
    ending = commands.add_parser("end", help="renew a peer's admission no more")
    ending.add_argument("--reason", required=True, help="why, for its owner to read")
    renewing = commands.add_parser("renew", help="renew it again")
    for command, run in (
        (inviting, _invite), (quarantining, _quarantine), (lifting, _lift), (listing, _list), (telling, _members),
        (ending, _end), (renewing, _renew),
    ):  # fmt: skip
        command.set_defaults(run=run)
        command.add_argument("--dir", type=Path, required=True, help="the organiser's folder")
        command.add_argument("--debug", action="store_true", help="show tracebacks")
    for command in (quarantining, lifting, ending, renewing):
        command.add_argument("peer", metavar="PEER", help="its id, 12D3Koo…")
    return parser


def _invite(options: argparse.Namespace) -> str:
    organiser, last = _open(options.dir)
    lasts_s = parse_duration_s("--expires", options.expires) if options.expires else 0.0
    terms = InviteTerms(admits=last.token is not None, single=options.count, lasts_s=lasts_s)
    # What is asked for now comes first: of too many the last are left out.
    addrs = tuple(dict.fromkeys((*map(check_dial, options.also), *last.addrs)))[:MAX_ADDRESSES]
    texts = issue_all(organiser, run=last.run, spec_hash=last.spec_hash, addrs=addrs, terms=terms, now_s=time.time())
    return "\n".join(texts)


def _quarantine(options: argparse.Namespace) -> str:
    organiser, last = _open(options.dir)
    quarantine(options.dir, organiser, last.spec_hash, options.peer, options.reason.strip())
    return (
        f"{options.peer} is in quarantine: {options.reason.strip()}; peers obey once the bootstrap node has told them"
    )


def _lift(options: argparse.Namespace) -> str:
    organiser, last = _open(options.dir)
    lift(options.dir, organiser, last.spec_hash, options.peer)
    return f"the quarantine of {options.peer} is lifted; peers obey once the bootstrap node has told them"


def _list(options: argparse.Namespace) -> str:
    organiser, last = _open(options.dir)
    kept_out = load_quarantine(options.dir / ORDERS_FILE, last.spec_hash, organiser.peer_id).quarantined
    lines = [f"{peer}  {reason}" for peer, reason in sorted(kept_out.items())]
    return "\n".join(lines or [f"nobody is in quarantine in {last.run} of {fingerprint_words(organiser.peer_id)}"])


def _members(options: argparse.Namespace) -> str:
    organiser, last = _open(options.dir)
    now_s, ended, names = time.time(), load_ended(options.dir), load_names(options.dir)
    until = {row["peer"]: row["until"] for row in read_book(options.dir)}  # of a peer the newest line counts
    lines = [
        f"{peer}  {names.get(peer, '-')}  {_when(until[peer], now_s)}"
        f"{f'; not renewed: {ended[peer]}' if peer in ended else ''}"
        for peer in sorted(until)
    ]
    return "\n".join(lines or [f"nobody was admitted to {last.run} of {fingerprint_words(organiser.peer_id)}"])


def _when(until: float, now_s: float) -> str:
    if until == FOR_EVER:
        return "as long as the run lasts"
    date = time.strftime("%Y-%m-%d", time.gmtime(until))
    return f"until {date}" if until > now_s else f"ended on {date}"


def _end(options: argparse.Namespace) -> str:
    _open(options.dir)
    end(options.dir, options.peer, options.reason.strip())
    return f"the admission of {options.peer} is renewed no more: {options.reason.strip()}; it takes part until it ends"


def _renew(options: argparse.Namespace) -> str:
    _open(options.dir)
    renew(options.dir, options.peer)
    return f"the admission of {options.peer} is renewed again"


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


ORDERS_FILE = "quarantine"


class OrdersFile:
    """The newest orders of a folder; what changes in them is reported. Raises BadInput for a file that is damaged now.

    One that is damaged, gone, or older while the node runs changes nothing: what was ordered last goes on.
    """

    def __init__(self, directory: Path, run: bytes, organiser: str, report: Callable[[Event], None]) -> None:
        self._path, self._run, self._organiser, self._report = directory / ORDERS_FILE, run, organiser, report
        self._seen = file_stamp(self._path)
        self._newest, self._told = load_quarantine(self._path, run, organiser), QuarantineList()

    def look(self) -> QuarantineList:
        """What they are now."""
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
    """Keep a peer out from now on. Raises BadInput for what no peer would read, DiskFull."""
    if peer == organiser.peer_id:
        raise BadInput("this is the organiser's own key; it cannot be put in quarantine")
    known = load_quarantine(directory / ORDERS_FILE, run, organiser.peer_id)
    return _save(directory, sign_quarantine(organiser, run, _next(known), {**known.quarantined, peer: reason}))


def lift(directory: Path, organiser: Identity, run: bytes, peer: str) -> QuarantineList:
    """Let a peer in again. Raises BadInput if it is not kept out, DiskFull."""
    known = load_quarantine(directory / ORDERS_FILE, run, organiser.peer_id)
    if peer not in known.quarantined:
        kept_out = ", ".join(sorted(known.quarantined)) or "nobody"
        raise BadInput(f"{peer[:60]!r} is not in quarantine; {kept_out} is")
    others = {other: reason for other, reason in known.quarantined.items() if other != peer}
    return _save(directory, sign_quarantine(organiser, run, _next(known), others))


def _next(known: QuarantineList) -> int:
    """By the clock: they must count also where this folder was lost, or is an old copy, and others know newer ones."""
    return max(known.number + 1, round(time.time()))


def _save(directory: Path, orders: QuarantineList) -> QuarantineList:
    save_quarantine(directory / ORDERS_FILE, orders)
    return orders


if __name__ == "__main__":
    sys.exit(main())
