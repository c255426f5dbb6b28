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

from dht.keys import MAX_TTL_S, TOPICS, dht_key
from dht.records import CLOCK_SKEW_S, MAX_RECORD_BYTES, Malformed, Record, sound, unpack


def make_validator(run: bytes) -> Any:
    """A hivemind RecordValidatorBase for the topics of `run`."""
    from hivemind.dht.routing import DHTID
    from hivemind.dht.validation import RecordValidatorBase

    topics = {DHTID.generate(source=dht_key(topic, run)).to_bytes(): topic for topic in TOPICS}

    class RecordValidator(RecordValidatorBase):  # type: ignore[misc]
        def validate(self, record: Any) -> bool:
            topic = topics.get(record.key)
            if topic is None:
                return False
            return is_valid(run, topic, record.subkey, record.value, record.expiration_time)

    return RecordValidator()


def is_valid(run: bytes, topic: str, subkey: bytes, value: bytes, expires: float) -> bool:
    """Whether `value` (msgpack of the packed record) is the statement of the peer named by `subkey`."""
    if expires > time.time() + MAX_TTL_S + CLOCK_SKEW_S:
        return False
    record = _parse(run, topic, bytes(value))
    return record is not None and record.expires == expires and msgpack.packb(record.author) == subkey


@functools.lru_cache(maxsize=2048)
def _parse(run: bytes, topic: str, value: bytes) -> Record | None:
    """The record if all that does not depend on time is right. Cached: nodes see each one many times."""
    if len(value) > MAX_RECORD_BYTES + 3:
        return None
    try:
        packed = msgpack.unpackb(value)
        record = unpack(packed) if isinstance(packed, bytes) else None
    except (Malformed, ValueError, TypeError, msgpack.UnpackException):
        return None
    return record if record is not None and record.kind == topic and sound(record, run) else None
