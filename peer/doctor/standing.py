"""Checks of papers: whether the invite holds, and whether the key of this folder is in use already."""

from __future__ import annotations

import fcntl
import time
from pathlib import Path

from dht.errors import BadInvite, DirectoryBusy
from dht.invite import Invite, parse
from peer.doctor.check import Check, failed, one_line, passed, warned

SOON_S = 24 * 3600.0
"""An invite that expires within a day is worth a word."""


def check_invite(text: str, now_s: float) -> tuple[Check, Invite | None]:
    """Signature, expiry and version; the invite if they hold. `now_s` is Unix time."""
    try:
        invite = parse(text, now_s)
    except BadInvite as error:
        said, _, fix = one_line(error).rpartition("; ")
        return failed("invite", said or fix, fix, BadInvite), None
    found = f"run {invite.run} of organiser {invite.organiser}, {len(invite.addrs)} to dial"
    if invite.expires is None:
        return passed("invite", found, addresses=len(invite.addrs)), invite
    left_s = invite.expires - now_s
    until = time.strftime("%Y-%m-%d %H:%M", time.localtime(invite.expires))
    if left_s < SOON_S:
        fix = "join before, or ask the organiser for a new one"
        return warned("invite", f"{found}; it expires {until}", fix, expires_in_s=left_s), invite
    return passed("invite", f"{found}, until {until}", expires_in_s=left_s), invite


def check_identity(directory: Path) -> Check:
    """Whether a process on this machine uses the key in `directory`: two at once would cut each other off."""
    lock = directory / "run" / "lock"
    if not lock.exists():
        return passed("identity", "no peer has run in this folder yet")
    with lock.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = file.read(20).decode(errors="replace").strip() or "unknown"
            found = f"the key in {directory} is in use by process {holder}"
            fix = "look at that peer with: homefires status; or stop it with: homefires leave"
            return failed("identity", found, fix, DirectoryBusy)
    return passed("identity", "nobody uses the key of this folder")
