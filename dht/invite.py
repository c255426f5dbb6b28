"""An invite: one line that lets a stranger join. It names the run, its organiser, and the addresses to dial first.

`hf1:` + base64url of msgpack [fields, signature], signed by the organiser's peer id. An invite names no code and no
download address. The spec comes from peers and is checked by its hash.

Wherever an invite is expected, the name of a file that holds it will do, too. Our own child processes always get a
file: everybody on a machine can read command lines, and whoever reads an invite's token can join.
"""

from __future__ import annotations

import base64
import binascii
import math
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgpack

from dht.addresses import check_dial
from dht.atomic_files import write_atomic
from dht.errors import BadAddress, BadInvite, RunMismatch
from dht.identity import Identity, public_key_of, verify
from dht.protocol_version import PROTOCOL_VERSION, other_version, require_this_version

PREFIX = "hf1:"
VERSION = 3
"""Of what this client can read. 2: admissions. 3: it names the protocol version."""
MAX_INVITE_CHARS = 8192
MAX_ADDRESSES = 16
MAX_TOKEN_BYTES = 32
MAX_FILE_BYTES = 1 << 15
"""Of a file that holds an invite: a mail program may have broken its line, and put spaces around it."""
INVITE_FILE = "invite"
"""In a peer's folder the one that it joined with, in a bootstrap node's the newest that was printed (0600)."""

_LAYOUT = 1
_KIND = "invite"
_NAME = re.compile(r"[\w.-]{1,64}")


@dataclass(frozen=True, kw_only=True)
class Invite:
    """The content of an invite. `expires` is Unix time in seconds or None."""

    run: str
    """Name of the run, for people."""
    spec_hash: bytes
    """32 bytes: the run's identity everywhere else."""
    organiser: str
    """Peer id that signed the invite and will sign the genesis."""
    addrs: tuple[str, ...]
    """Where to dial first, each with /p2p/…"""
    token: bytes | None
    """In a run that asks for an admission, the organiser's node admits a peer that shows this token."""
    once: bool
    """The token admits only the first peer that shows it."""
    expires: float | None
    checkpoint: tuple[int, bytes] | None = None
    """Round and anchor of the newest checkpoint that the organiser had signed: a newcomer believes no older one."""
    text: str = field(default="", compare=False, repr=False)
    """The whole invite as it was issued."""


def issue(
    identity: Identity,
    *,
    run: str,
    spec_hash: bytes,
    addrs: tuple[str, ...],
    token: bytes | None = None,
    once: bool = False,
    expires: float | None = None,
    checkpoint: tuple[int, bytes] | None = None,
) -> str:
    """The invite text, signed by `identity`, the organiser. Raises BadAddress."""
    assert len(spec_hash) == 32
    assert 0 < len(addrs) <= MAX_ADDRESSES
    assert token is None or 0 < len(token) <= MAX_TOKEN_BYTES
    fields: dict[str, Any] = {
        "v": _LAYOUT,
        "run": run,
        "spec_hash": spec_hash,
        "organiser": identity.peer_id,
        "addrs": [check_dial(address) for address in addrs],
        "min_version": VERSION,  # readers of version 2 and before it do not look for the protocol version
        "protocol": PROTOCOL_VERSION,
    }
    if token is not None:
        fields |= {"token": token, "once": once}
    if expires is not None:
        fields["expires"] = float(expires)
    if checkpoint is not None:
        fields["checkpoint"] = list(checkpoint)
    body = msgpack.packb(fields)
    packed = msgpack.packb([body, identity.sign(spec_hash, _KIND, body)])
    return PREFIX + base64.urlsafe_b64encode(packed).decode().rstrip("=")


def parse(text: str, now_s: float) -> Invite:
    """Read and check an invite; `now_s` is Unix time. Raises BadInvite with one line, whatever the text."""
    text = "".join(text.split())
    body, signature = _decode(text)
    fields = _unpack(body)
    if not isinstance(fields, dict):
        raise _damaged()
    needed, spoken = fields.get("min_version", 1), fields.get("protocol", 1)
    if not _is_int(needed) or not _is_int(spoken):
        raise _damaged()
    if spoken != PROTOCOL_VERSION:
        text = other_version("this invite", spoken)
        raise BadInvite(f"{text}, or ask the organiser for an invite of a run of version {PROTOCOL_VERSION}")
    if needed > VERSION:
        raise BadInvite(f"this invite needs invite version {needed}, this client reads {VERSION}; upgrade homefires")
    invite = _read_fields(fields, text)
    if not verify(invite.organiser, invite.spec_hash, _KIND, body, signature):
        raise BadInvite("this invite is not signed by the organiser it names; ask the organiser for a new one")
    if invite.expires is not None and invite.expires <= now_s:
        hours = (now_s - invite.expires) / 3600
        ago = f"{hours:.1f} hours" if hours >= 1 else "less than an hour"
        raise BadInvite(f"this invite expired {ago} ago; ask the organiser for a new one")
    return invite


def parse_for(directory: Path, text: str, now_s: float) -> Invite:
    """Like `parse`, for a peer that lives in this folder: a peer that has taken part may come back with an old
    invite."""
    return parse(text, float("-inf") if (directory / "genesis").exists() else now_s)


# ---- invites in files ----


def read_text(named: str) -> str:
    """The invite that somebody names: its text, or a file that holds it. Raises BadInvite."""
    if named.lstrip().startswith(PREFIX):
        return named
    if not os.path.isfile(named):
        raise BadInvite(f"{named[:60]!r} is no invite, which starts with {PREFIX}, and no file that holds one")
    try:
        with open(named, "rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise BadInvite(f"{named} cannot be read: {os.strerror(error.errno or 0)}") from error
    text = raw.decode(errors="replace").strip()
    if len(raw) > MAX_FILE_BYTES or not text.startswith(PREFIX):
        raise BadInvite(f"{named} holds no invite; one starts with {PREFIX}, and there is nothing else in its file")
    return text


def save_in(invite: Invite, directory: Path) -> Path:
    """Keep it in the folder of a peer, where every start of that peer finds it; returns its path. Raises DiskFull
    and the errors of `kept_in`."""
    kept, path = kept_in(directory, invite), directory / INVITE_FILE
    if kept is None or kept.text != invite.text:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomic(path, invite.text.encode(), private=True)
    return path


def kept_in(directory: Path, invite: Invite) -> Invite | None:
    """The invite to the same run in a folder. Raises BadInput for a folder of another version, and RunMismatch if
    another run's invite is there: its peer may be running, and start its link again."""
    require_this_version(directory)
    kept = None
    with suppress(BadInvite):
        kept = parse(read_text(str(directory / INVITE_FILE)), float("-inf"))
    if kept is not None and (kept.spec_hash, kept.organiser) != (invite.spec_hash, invite.organiser):
        raise RunMismatch(
            f"{directory} belongs to another run, {kept.run} of {kept.organiser}; name a new folder with --dir, or "
            "remove that one"
        )
    return kept


@contextmanager
def as_temporary_file(text: str) -> Iterator[str]:
    """The path of a file (0600) that holds the invite while the block lasts, for a child without a folder of its
    own."""
    handle, path = tempfile.mkstemp(prefix="hf-invite-")
    try:
        with open(handle, "w") as file:
            file.write(text)
        yield path
    finally:
        Path(path).unlink(missing_ok=True)  # whoever sweeps the folder may have been there before


# ---- how it is written ----


def _decode(text: str) -> tuple[bytes, bytes]:
    if not text.startswith(PREFIX):
        raise BadInvite(f"{text[:24]!r} is not an invite; an invite starts with {PREFIX}")
    if len(text) > MAX_INVITE_CHARS:
        raise BadInvite(f"this invite has {len(text)} characters; none is longer than {MAX_INVITE_CHARS}")
    payload = text.removeprefix(PREFIX)
    try:
        raw = base64.b64decode(payload + "=" * (-len(payload) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise _damaged() from error
    match _unpack(raw):
        case [bytes(body), bytes(signature)]:
            return body, signature
    raise _damaged()


def _unpack(raw: bytes) -> Any:
    try:
        return msgpack.unpackb(raw, strict_map_key=False)
    except (ValueError, msgpack.UnpackException, TypeError, RecursionError) as error:
        raise _damaged() from error


def _read_fields(fields: dict[Any, Any], text: str) -> Invite:
    match fields:
        case {
            "run": str(run),
            "spec_hash": bytes(spec_hash),
            "organiser": str(organiser),
            "addrs": [*addrs],
        } if _NAME.fullmatch(run) and len(spec_hash) == 32 and public_key_of(organiser) is not None:
            return Invite(
                run=run,
                spec_hash=spec_hash,
                organiser=organiser,
                addrs=_read_addresses(addrs),
                token=_read_token(fields),
                once=_optional(fields, "once", bool) or False,
                expires=_read_expiry(fields),
                checkpoint=_read_checkpoint(fields),
                text=text,
            )
    raise _damaged()


def _read_addresses(addrs: list[Any]) -> tuple[str, ...]:
    if not 0 < len(addrs) <= MAX_ADDRESSES or not all(isinstance(address, str) for address in addrs):
        raise _damaged()
    try:
        return tuple(check_dial(address) for address in addrs)
    except BadAddress as error:
        raise BadInvite(f"this invite holds a bad address: {error}") from error


def _read_token(fields: dict[Any, Any]) -> bytes | None:
    token: bytes | None = _optional(fields, "token", bytes)
    if token is not None and not 0 < len(token) <= MAX_TOKEN_BYTES:
        raise _damaged()
    return token


def _read_expiry(fields: dict[Any, Any]) -> float | None:
    expires: float | None = _optional(fields, "expires", float)
    if expires is not None and not math.isfinite(expires):
        raise _damaged()
    return expires


def _read_checkpoint(fields: dict[Any, Any]) -> tuple[int, bytes] | None:
    match fields.get("checkpoint"):
        case None:
            return None
        case [int(round), bytes(anchor)] if _is_int(round) and 0 < round < 1 << 63 and len(anchor) == 32:
            return round, anchor
    raise _damaged()


def _optional(fields: dict[Any, Any], name: str, kind: type) -> Any:
    value = fields.get(name)
    if value is not None and not isinstance(value, kind):
        raise _damaged()
    return value


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _damaged() -> BadInvite:
    return BadInvite("this invite is damaged or was cut off; copy it again, whole")
