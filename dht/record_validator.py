"""What hivemind's DHT may store and believe: our records, nothing else.

Every node runs these checks on what others ask it to store and on what it finds, so a forged or
oversized record dies at the first honest node. Records that expired a moment ago pass: hivemind
refuses a whole answer for one record, and the reader drops expired ones itself.
"""

from __future__ import annotations

import functools
import time
from typing import Any

import msgpack

from dht.access import RejectCode, RejectionLog
from dht.identity import public_key_of
from dht.records import CLOCK_SKEW_S, MAX_RECORD_BYTES, MAX_TTL_S, TOPICS, Malformed, Record, dht_key, is_valid, unpack

MAX_VALUE_BYTES = MAX_RECORD_BYTES + 3
"""A record as msgpack bytes."""
MAX_SUBKEY_BYTES = 64
"""A peer id as msgpack text has 54."""
AUTHORS_MOST = 1024
"""Under one topic. Keys cost nothing, so there is an end; who is on the board stays there. So many of the longest
records fit into one answer of hivemind's, which has at most 2 MiB."""
LATE_S = 60.0
"""A record that expired so long ago is nobody's answer any more, but put up again."""


def make_validator(run: bytes, refusals: RejectionLog) -> Any:
    """A hivemind RecordValidatorBase for the topics of `run`; what it refuses is told to `refusals`."""
    from hivemind.dht.routing import DHTID
    from hivemind.dht.validation import RecordValidatorBase

    topics = {DHTID.generate(source=dht_key(topic, run)).to_bytes(): topic for topic in TOPICS}

    class RecordValidator(RecordValidatorBase):  # type: ignore[misc]
        def validate(self, record: Any) -> bool:
            topic = topics.get(record.key)
            if topic is None:
                refusals(RejectCode.RECORD, "somebody", "it has no topic of this run")
                return False
            fault = rejection_of(run, topic, record.subkey, record.value, record.expiration_time)
            if fault is not None:
                refusals(fault[0], _author_of(record.subkey), fault[1])
            return fault is None

    return RecordValidator()


def bound_storage(protocol: Any) -> None:
    """Have a hivemind DHTProtocol hold so many authors under a topic, and no older record beside a newer one.

    By itself it takes as many as come, and forgets the newer record when an older one, put up again, expires.
    """
    from hivemind.dht.storage import DHTLocalStorage, DictionaryDHTValue

    class Storage(DHTLocalStorage):  # type: ignore[misc]
        def store_subkey(self, key: Any, subkey: Any, value: bytes, expiration_time: float) -> bool:
            held = self.get(key)
            authors = held.value if held is not None else None
            if isinstance(authors, DictionaryDHTValue):
                known = authors.get(subkey)
                if known is None and len(authors) >= AUTHORS_MOST:
                    return False
                if known is not None and known.expiration_time >= expiration_time:
                    return False
            return bool(super().store_subkey(key, subkey, value, expiration_time))

    for name in ("storage", "cache"):
        bounded = Storage()
        bounded.__dict__.update(getattr(protocol, name).__dict__)
        setattr(protocol, name, bounded)


def rejection_of(run: bytes, topic: str, subkey: bytes, value: bytes, expires: float) -> tuple[RejectCode, str] | None:
    """Why `value` (msgpack of the packed record) is not the statement of the peer named by `subkey`; None if it is."""
    now = time.time()
    if expires > now + MAX_TTL_S + CLOCK_SKEW_S:
        return RejectCode.RECORD, f"it is to live for {expires - now:.0f} s; none lives longer than {MAX_TTL_S:.0f} s"
    if expires < now - LATE_S:
        return RejectCode.REPLAY, f"it expired {now - expires:.0f} s ago"
    if len(value) > MAX_VALUE_BYTES:  # looked at first: what is parsed is remembered
        return RejectCode.RECORD, f"it has {len(value)} bytes; a record has at most {MAX_RECORD_BYTES}"
    record = _parse(run, topic, value)
    if record is None:
        return RejectCode.RECORD, f"it is no {topic} that its author signed for this run"
    if record.expires != expires:
        return RejectCode.REPLAY, "it is to live longer than its author signed"
    if msgpack.packb(record.author) != subkey:
        return RejectCode.RECORD, f"it is a statement of {record.author}"
    return None


def _author_of(subkey: Any) -> str:
    """Whom a record is said to be of, for the log; a stranger wrote it."""
    try:
        name = msgpack.unpackb(subkey) if len(subkey) <= MAX_SUBKEY_BYTES else None
    except (ValueError, TypeError, msgpack.UnpackException, RecursionError):
        name = None
    return name if isinstance(name, str) and public_key_of(name) is not None else "somebody"


@functools.lru_cache(maxsize=2048)
def _parse(run: bytes, topic: str, value: bytes) -> Record | None:
    """The record if all that does not depend on time is right. Cached: nodes see each one many times."""
    try:
        packed = msgpack.unpackb(value)
        record = unpack(packed) if isinstance(packed, bytes) else None
    except (Malformed, ValueError, TypeError, msgpack.UnpackException):
        return None
    return record if record is not None and record.kind == topic and is_valid(record, run) else None
