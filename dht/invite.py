"""The one line that lets a stranger join: which run, who organises it, where to dial first.

`hf1:` + base64url of msgpack [fields, signature], signed by the organiser's peer id. An invite
names no code and no download address; the spec itself comes from peers and is checked by hash.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from dataclasses import dataclass
from typing import Any

import msgpack

from dht.addresses import check_dial
from dht.errors import BadAddress, BadInvite
from dht.identity import Identity, public_key_of, verify

PREFIX = "hf1:"
VERSION = 1
MAX_INVITE_CHARS = 8192
MAX_ADDRESSES = 16

_KIND = "invite"
_NAME = re.compile(r"[\w.-]{1,64}")


@dataclass(frozen=True, kw_only=True)
class Invite:
    """What an invite says. `expires` is Unix time in seconds or None."""

    run: str
    """Name of the run, for people."""
    spec_hash: bytes
    """32 bytes: the run's identity everywhere else."""
    organiser: str
    """Peer id that signed the invite and will sign the genesis."""
    addrs: tuple[str, ...]
    """Where to dial first, each with /p2p/…"""
    min_version: int = VERSION
    """Smallest version of the invite's reader that can take part."""
    token: bytes | None = None
    expires: float | None = None


def issue(
    identity: Identity,
    *,
    run: str,
    spec_hash: bytes,
    addrs: tuple[str, ...],
    token: bytes | None = None,
    expires: float | None = None,
) -> str:
    """The invite text, signed by `identity`, the organiser. Raises BadAddress."""
    assert len(spec_hash) == 32
    assert 0 < len(addrs) <= MAX_ADDRESSES
    fields: dict[str, Any] = {
        "v": VERSION,
        "run": run,
        "spec_hash": spec_hash,
        "organiser": identity.peer_id,
        "addrs": [check_dial(address) for address in addrs],
        "min_version": VERSION,
    }
    if token is not None:
        fields["token"] = token
    if expires is not None:
        fields["expires"] = float(expires)
    body = msgpack.packb(fields)
    packed = msgpack.packb([body, identity.sign(spec_hash, _KIND, body)])
    return PREFIX + base64.urlsafe_b64encode(packed).decode().rstrip("=")


def parse(text: str, now_s: float) -> Invite:
    """Read and check an invite; `now_s` is Unix time. Raises BadInvite with one line, whatever the text."""
    body, signature = _decode("".join(text.split()))
    fields = _unpack(body)
    if not isinstance(fields, dict):
        raise _damaged()
    needed = fields.get("min_version", VERSION)
    if not _is_int(needed):
        raise _damaged()
    if needed > VERSION:
        raise BadInvite(f"this invite needs invite version {needed}, this client reads {VERSION}; upgrade homefires")
    invite = _read_fields(fields)
    if not verify(invite.organiser, invite.spec_hash, _KIND, body, signature):
        raise BadInvite("this invite is not signed by the organiser it names; ask the organiser for a new one")
    if invite.expires is not None and invite.expires <= now_s:
        hours = (now_s - invite.expires) / 3600
        raise BadInvite(f"this invite expired {hours:.1f} hours ago; ask the organiser for a new one")
    return invite


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


def _read_fields(fields: dict[Any, Any]) -> Invite:
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
                min_version=fields.get("min_version", VERSION),
                token=_optional(fields, "token", bytes),
                expires=_read_expiry(fields),
            )
    raise _damaged()


def _read_addresses(addrs: list[Any]) -> tuple[str, ...]:
    if not 0 < len(addrs) <= MAX_ADDRESSES or not all(isinstance(address, str) for address in addrs):
        raise _damaged()
    try:
        return tuple(check_dial(address) for address in addrs)
    except BadAddress as error:
        raise BadInvite(f"this invite holds a bad address: {error}") from error


def _read_expiry(fields: dict[Any, Any]) -> float | None:
    expires: float | None = _optional(fields, "expires", float)
    if expires is not None and not math.isfinite(expires):
        raise _damaged()
    return expires


def _optional(fields: dict[Any, Any], name: str, kind: type) -> Any:
    value = fields.get(name)
    if value is not None and not isinstance(value, kind):
        raise _damaged()
    return value


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _damaged() -> BadInvite:
    return BadInvite("this invite is damaged or was cut off; copy it again, whole")
