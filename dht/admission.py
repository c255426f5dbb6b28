"""Admissions: certificates of the organiser that let a peer take part in a run. Peers check them by themselves.

An admission is valid for some weeks. The organiser's node gives the first one for an invite with a token, and renews it
later. A peer keeps its admission in its folder and shows it to others, so that they need not ask the node. This module
is pure: no network and no clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgpack

from dht.atomic_files import write_atomic
from dht.errors import BadInput
from dht.identity import SIGNATURE_BYTES, Identity, peer_id_of, public_key_of, verify
from dht.records import Malformed, unpack_value

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
        return other.expires != FOR_EVER and (self.expires == FOR_EVER or self.expires > other.expires)

    def to_bytes(self) -> bytes:
        """The bytes on the wire; the peer that shows them says whose admission it is."""
        packed: bytes = msgpack.packb([self.expires, self.signature])
        return packed


def issue_admission(organiser: Identity, run: bytes, peer: str, expires: float = FOR_EVER) -> Admission:
    return Admission(peer, float(expires), organiser.sign(run, _KIND, _signed_part(peer, expires)))


def read_admission(packed: bytes, run: bytes, organiser: str, peer: str) -> Admission:
    """The admission in these bytes, which `peer` shows. Raises Malformed if the organiser has not signed it for this
    peer."""
    if len(packed) > MAX_ADMISSION_BYTES:
        raise Malformed(f"{len(packed)} bytes are no admission")
    match unpack_value(packed):
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


MAX_QUARANTINED = 256
MAX_REASON = 200
MAX_ORDERS_BYTES = 1 << 18
"""There is room for the longest reasons, at 4 bytes a character, of all of them."""

_QUARANTINE_KIND = "orders"
NOBODY: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class QuarantineList:
    """The organiser's newest orders. Number 0: nothing was ever ordered."""

    number: int = 0
    quarantined: Mapping[str, str] = field(default_factory=lambda: NOBODY)
    """The reason by peer id, for everybody to read."""
    signature: bytes = b""

    def to_bytes(self) -> bytes:
        packed: bytes = msgpack.packb([_quarantine_signed_part(self.number, self.quarantined), self.signature])
        return packed


def sign_quarantine(organiser: Identity, run: bytes, number: int, quarantined: Mapping[str, str]) -> QuarantineList:
    """Sign a list. Raises BadInput for a list that no peer would read."""
    if len(quarantined) > MAX_QUARANTINED:
        raise BadInput(f"{len(quarantined)} peers are in quarantine; there is room for {MAX_QUARANTINED}: lift some")
    for peer, reason in quarantined.items():
        if public_key_of(peer) is None:
            raise BadInput(f"{peer[:60]!r} is not a peer id (12D3Koo…); the Peers screen shows it")
        if not 0 < len(reason) <= MAX_REASON or not reason.isprintable():
            raise BadInput(f"the reason must be 1 to {MAX_REASON} printable characters, for everybody reads it")
    signature = organiser.sign(run, _QUARANTINE_KIND, _quarantine_signed_part(number, quarantined))
    return QuarantineList(number, MappingProxyType(dict(quarantined)), signature)


def read_quarantine(packed: bytes, run: bytes, organiser: str) -> QuarantineList:
    """Raises Malformed if the organiser has not signed it for this run."""
    if len(packed) > MAX_ORDERS_BYTES:
        raise Malformed(f"{len(packed)} bytes are no orders")
    match unpack_value(packed):
        case [bytes(signed), bytes(signature)]:
            pass
        case _:
            raise Malformed("not orders")
    if not verify(organiser, run, _QUARANTINE_KIND, signed, signature):
        raise Malformed("the organiser has not signed them for this run")
    match unpack_value(signed, strict_map_key=False):
        case [int(number), dict(rows)] if 0 < number < 2**63 and len(rows) <= MAX_QUARANTINED:
            found = dict(_read_row(key, reason) for key, reason in rows.items())
            return QuarantineList(number, MappingProxyType(found), signature)
    raise Malformed("not orders")


def load_quarantine(path: Path, run: bytes, organiser: str) -> QuarantineList:
    """The orders that a folder keeps. Raises BadInput for a damaged file, or one of another organiser."""
    if not path.exists():
        return QuarantineList()
    try:
        return read_quarantine(path.read_bytes(), run, organiser)
    except Malformed as error:
        raise BadInput(f"{path} is damaged ({error}); move it away, the newest orders come from the others") from error


def save_quarantine(path: Path, orders: QuarantineList) -> None:
    """Raises DiskFull."""
    write_atomic(path, orders.to_bytes())


def _read_row(key: Any, reason: Any) -> tuple[str, str]:
    if not isinstance(key, bytes) or len(key) != 32 or not isinstance(reason, str):
        raise Malformed("not a peer and a reason")
    if not 0 < len(reason) <= MAX_REASON or not reason.isprintable():
        raise Malformed("not a reason")
    return peer_id_of(key), reason


def _quarantine_signed_part(number: int, quarantined: Mapping[str, str]) -> bytes:
    packed: bytes = msgpack.packb(
        [number, {public_key_of(peer): reason for peer, reason in sorted(quarantined.items())}]
    )
    return packed
