"""What an organiser orders after a run has begun: whom nobody shall work with, and why.

One signed list with a number; the highest number counts, so that an old list that is shown again changes nothing. It
passes from peer to peer, and every peer keeps the newest in its folder: the organiser's node need not be there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgpack

from dht.atomic_files import write_atomic
from dht.errors import BadInput
from dht.identity import Identity, peer_id_of, public_key_of, verify
from dht.records import Malformed

MAX_QUARANTINED = 256
MAX_REASON = 200
MAX_ORDERS_BYTES = 1 << 18
"""There is room for the longest reasons, at 4 bytes a character, of all of them."""

_KIND = "orders"
NOBODY: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class QuarantineList:
    """The organiser's newest word. Number 0: nothing was ever ordered."""

    number: int = 0
    quarantined: Mapping[str, str] = field(default_factory=lambda: NOBODY)
    """By peer id the reason, for everybody to read."""
    signature: bytes = b""

    def to_bytes(self) -> bytes:
        packed: bytes = msgpack.packb([_signed_part(self.number, self.quarantined), self.signature])
        return packed


def sign_quarantine(organiser: Identity, run: bytes, number: int, quarantined: Mapping[str, str]) -> QuarantineList:
    """Sign a list. Raises BadInput for what no peer would read."""
    if len(quarantined) > MAX_QUARANTINED:
        raise BadInput(f"{len(quarantined)} peers are in quarantine; there is room for {MAX_QUARANTINED}: lift some")
    for peer, reason in quarantined.items():
        if public_key_of(peer) is None:
            raise BadInput(f"{peer[:60]!r} is not a peer id (12D3Koo…); the Peers screen shows it")
        if not 0 < len(reason) <= MAX_REASON or not reason.isprintable():
            raise BadInput(f"the reason must be 1 to {MAX_REASON} printable characters, for everybody reads it")
    signature = organiser.sign(run, _KIND, _signed_part(number, quarantined))
    return QuarantineList(number, MappingProxyType(dict(quarantined)), signature)


def read_quarantine(packed: bytes, run: bytes, organiser: str) -> QuarantineList:
    """Raises Malformed for what the organiser has not signed for this run."""
    if len(packed) > MAX_ORDERS_BYTES:
        raise Malformed(f"{len(packed)} bytes are no orders")
    match _unpacked(packed):
        case [bytes(signed), bytes(signature)]:
            pass
        case _:
            raise Malformed("not orders")
    if not verify(organiser, run, _KIND, signed, signature):
        raise Malformed("the organiser has not signed them for this run")
    match _unpacked(signed):
        case [int(number), dict(rows)] if 0 < number < 2**63 and len(rows) <= MAX_QUARANTINED:
            found = dict(_read_row(key, reason) for key, reason in rows.items())
            return QuarantineList(number, MappingProxyType(found), signature)
    raise Malformed("not orders")


def load_quarantine(path: Path, run: bytes, organiser: str) -> QuarantineList:
    """Those that a folder keeps. Raises BadInput for a file that is damaged or of somebody else."""
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


def _unpacked(packed: bytes) -> Any:
    try:
        return msgpack.unpackb(packed, strict_map_key=False)
    except (ValueError, msgpack.UnpackException, TypeError, RecursionError) as error:
        raise Malformed("not msgpack") from error


def _signed_part(number: int, quarantined: Mapping[str, str]) -> bytes:
    packed: bytes = msgpack.packb(
        [number, {public_key_of(peer): reason for peer, reason in sorted(quarantined.items())}]
    )
    return packed
