"""Checks of the invite, of the run to which a folder belongs, and of whether its key is already in use."""

from __future__ import annotations

import fcntl
import shlex
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from dht.errors import BadInput, BadInvite, BadSpec, DirectoryBusy, RunMismatch
from dht.invite import INVITE_FILE, Invite, kept_in, parse, parse_for, read_text
from dht.reach.peer_store import PeerStore
from peer.schema.spec import RunSpec, load
from peer.tools.doctor.check import Check, failed, one_line, passed, unknown, warned

ASK_S = 2.0
"""A peer that works takes a connection at once."""
DIALLED_MOST = 8
"""Addresses of a run that a peer has joined: it may remember a hundred."""
SOON_S = 24 * 3600.0
"""An invite that expires within a day is worth a word."""


def check_invite(text: str, now_s: float, directory: Path | None = None) -> tuple[Check, Invite | None]:
    """Signature, expiry and version; the invite if they hold. `now_s` is Unix time. The peer that lives in
    `directory` may come back with one that is over."""
    try:
        invite = parse(text, now_s) if directory is None else parse_for(directory, text, now_s)
    except BadInvite as error:
        said, _, fix = one_line(error).rpartition("; ")
        return failed("invite", said or fix, fix, BadInvite), None
    found = f"run {invite.run} of organiser {invite.organiser}, {len(invite.addrs)} to dial"
    if invite.expires is None:
        return passed("invite", found, addresses=len(invite.addrs)), invite
    left_s = invite.expires - now_s
    until = time.strftime("%Y-%m-%d %H:%M", time.localtime(invite.expires))
    if left_s <= 0:
        over = f"{found}; it expired {until}, which is no matter to a peer that has taken part"
        return passed("invite", over, expires_in_s=left_s), invite
    if left_s < SOON_S:
        fix = "join before, or ask the organiser for a new one"
        return warned("invite", f"{found}; it expires {until}", fix, expires_in_s=left_s), invite
    return passed("invite", f"{found}, until {until}", expires_in_s=left_s), invite


@dataclass(frozen=True, kw_only=True)
class JoinedRun:
    """The run whose peer lives in a folder, and where to dial others of it."""

    spec_hash: bytes
    addrs: tuple[str, ...]


KnownRun: TypeAlias = Invite | JoinedRun


def check_folder(directory: Path) -> tuple[Check, JoinedRun | None]:
    """Which run a folder is of, where no invite says it; that one, if a peer has learned there what the run is."""
    path = directory / "spec.toml"
    try:
        spec = load(str(path))
    except BadSpec as error:
        return unknown("run", f"no run is known: {one_line(error)}", "name the invite, too"), None
    met = PeerStore(directory / "peers.json").addresses
    addrs = tuple(dict.fromkeys((*_invited(directory, spec), *met)))[:DIALLED_MOST]
    return passed("run", f"{spec.run.name}, as it lies in {path}"), JoinedRun(spec_hash=spec.digest(), addrs=addrs)


def check_run_of_folder(invite: Invite, directory: Path) -> Check:
    """Whether a folder is free for the run of an invite, and no peer of another run or version lives there."""
    try:
        kept_in(directory, invite)
    except (BadInput, RunMismatch) as error:
        found, _, fix = one_line(error).partition("; ")
        return failed("run", found, fix, type(error))
    return passed("run", f"no other run lives in {directory}")


def _invited(directory: Path, spec: RunSpec) -> tuple[str, ...]:
    """Addresses of the invite that the peer keeps; whether that is over does not matter to who has joined."""
    with suppress(BadInvite):
        invite = parse(read_text(str(directory / INVITE_FILE)), float("-inf"))
        return invite.addrs if invite.spec_hash == spec.digest() else ()
    return ()


def peer_at_work(directory: Path) -> int | None:
    """The process of the peer that holds this folder and takes commands; None if there is none."""
    holder = _holder(directory)
    if not holder.isdecimal() or not _takes_commands(directory):
        return None
    return int(holder)


def check_identity(directory: Path) -> Check:
    """Whether a process on this machine uses the key in `directory`: two at once would cut each other off. Its own
    peer, at work, is as it should be."""
    holder = _holder(directory)
    if not holder:
        return passed("identity", "nobody uses the key of this folder")
    found = f"the key in {directory} is in use by"
    if _takes_commands(directory):
        return passed("identity", f"{found} its own peer, process {holder}")
    fix = f"look at it with: homefires status --dir {shlex.quote(str(directory))}; or end process {holder}"
    return failed("identity", f"{found} process {holder}, which takes no commands of a peer", fix, DirectoryBusy)


def _holder(directory: Path) -> str:
    """The process that holds a folder, as far as it is known; empty if nobody does."""
    try:
        with (directory / "run" / "lock").open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return ""
    except BlockingIOError:
        return (directory / "run" / "lock").read_text(errors="replace")[:20].strip() or "unknown"
    return ""


def _takes_commands(directory: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(ASK_S)
        try:
            asking.connect(str(directory / "run" / "control"))
        except OSError:  # nobody listens, or the path is longer than a socket's may be
            return False
    return True
