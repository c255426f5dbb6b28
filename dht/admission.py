"""Who may take part in a run that asks for it: certificates of the organiser, which peers check by themselves.

An admission says in the organiser's name that a peer may take part in a run for some weeks. The organiser's node gives
one for an invite that holds a token, and later the next one; the peer keeps it in its folder and shows it to whoever
asks, so that nobody else needs the organiser's node. Everything here is pure: no network, no clock.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgpack

from dht.identity import SIGNATURE_BYTES, Identity, public_key_of, verify
from dht.records import Malformed

MAX_ADMISSION_BYTES = 96
LASTS_S = 30 * 86400.0
"""Unless the organiser says otherwise. Its node may be away for some weeks, and nobody has to leave."""
RENEWED_FROM = 2 / 3
"""With less than this part of its time left an admission is followed by the next one."""
FOR_EVER = 0.0
"""As long as the run lasts: the admissions of earlier versions."""

_KIND = "admission"


@dataclass(frozen=True, slots=True)
class Admission:
    """The organiser lets `peer` take part until `expires`, in Unix seconds; FOR_EVER for as long as the run lasts."""

    peer: str
    expires: float
    signature: bytes

    def is_over(self, now_s: float) -> bool:
        return self.expires != FOR_EVER and self.expires <= now_s

    def outlasts(self, other: Admission) -> bool:
        """Whether it ends later."""
        return other.expires != FOR_EVER and (self.expires == FOR_EVER or self.expires > other.expires)

    def to_bytes(self) -> bytes:
        """As it travels: whose it is says who shows it."""
        packed: bytes = msgpack.packb([self.expires, self.signature])
        return packed


def issue_admission(organiser: Identity, run: bytes, peer: str, expires: float = FOR_EVER) -> Admission:
    """Let a peer take part."""
    return Admission(peer, float(expires), organiser.sign(run, _KIND, _signed_part(peer, expires)))


def read_admission(packed: bytes, run: bytes, organiser: str, peer: str) -> Admission:
    """The admission in bytes that `peer` shows. Raises Malformed for what the organiser has not signed for it."""
    if len(packed) > MAX_ADMISSION_BYTES:
        raise Malformed(f"{len(packed)} bytes are no admission")
    try:
        fields = msgpack.unpackb(packed)
    except (ValueError, msgpack.UnpackException, TypeError, RecursionError) as error:
        raise Malformed("not msgpack") from error
    match fields:
        case [float(expires), bytes(signature)] if math.isfinite(expires) and len(signature) == SIGNATURE_BYTES:
            if public_key_of(peer) is not None and verify(
                organiser, run, _KIND, _signed_part(peer, expires), signature
            ):
                return Admission(peer, expires, signature)
            raise Malformed("the organiser has not signed it for this peer and run")
    raise Malformed("not an admission")


def _signed_part(peer: str, expires: float) -> bytes:
    packed: bytes = msgpack.packb([public_key_of(peer), float(expires)])
    return packed
