"""Records: small signed statements of a peer, their limits, and their bytes.

The author's peer id signs (run, kind, body, expires). The body is a msgpack map. A reader checks the fields that it
knows strictly and skips the fields of newer clients. This module is pure: no network and no clock.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import Annotated, Any, ClassVar, TypeVar

import msgpack
from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError

from dht.addresses import circuit
from dht.identity import PUBLIC_KEY_BYTES, SIGNATURE_BYTES, Identity, peer_id_of, public_key_of, verify
from dht.protocol_version import PROTOCOL_VERSION, other_version

MAX_RECORD_BYTES = 1024
MAX_FOUNDERS = 16
MAX_LABEL_CHARS = 32
"""Of a name, or of a client's version."""
MAX_ADDRESSES = 4
MAX_ADDRESS_CHARS = 128
MAX_RELAYS = 2
SHORT_ID_BYTES = 8
MAX_TRIPS = 16
MOST_TRIP_MS = 60_000
MAX_GATHERED = 32
MAX_MEASURE = 1e9
"""A larger figure is no loss, speed or duration, and its sums would overflow at whoever shows it."""
CLOCK_SKEW_S = 5.0
"""How much later than MAX_TTL_S a record may expire on our clock: the author's may be ahead."""


class Malformed(ValueError):
    """Bytes from the network are not what they should be."""


@dataclass(frozen=True, slots=True)
class Record:
    """A signed statement. `expires` is Unix time in seconds, `kind` a topic of `dht.records`."""

    author: str
    kind: str
    body: bytes
    expires: float
    signature: bytes


def sign_record(identity: Identity, run: bytes, kind: str, body: bytes, expires: float) -> Record:
    """The record of `body` in the name of `identity`, valid until `expires`."""
    signature = identity.sign(run, f"record/{kind}", _signed_part(body, expires))
    return Record(identity.peer_id, kind, body, expires, signature)


def verify_record(record: Record, run: bytes) -> bool:
    """Whether its author signed it for this run. Says nothing about expiry or content."""
    signed = _signed_part(record.body, record.expires)
    return verify(record.author, run, f"record/{record.kind}", signed, record.signature)


def is_valid(record: Record, run: bytes) -> bool:
    """Whether its size, signature and body are right for `run`; the checks that need no clock."""
    if len(pack(record)) > MAX_RECORD_BYTES or not verify_record(record, run):
        return False
    try:
        return unpack_body(record).run == run
    except Malformed:
        return False


def is_current(record: Record, run: bytes, now_s: float) -> bool:
    """Every check that a board makes: valid, not expired, and not valid for longer than MAX_TTL_S."""
    return now_s < record.expires <= now_s + MAX_TTL_S + CLOCK_SKEW_S and is_valid(record, run)


def pack(record: Record) -> bytes:
    """The record as it travels: a msgpack array, with the author as the 32 bytes of its public key."""
    author = public_key_of(record.author)
    assert author is not None, record.author
    packed: bytes = msgpack.packb(
        [PROTOCOL_VERSION, author, record.kind, record.body, record.expires, record.signature]
    )
    return packed


def unpack(data: bytes) -> Record:
    """The record in these bytes; its signature is not checked. Raises Malformed."""
    match _unpack_msgpack(data):
        case (
            int(version),
            bytes(author),
            str(kind),
            bytes(body),
            float(expires),
            bytes(signature),
            *_,
        ) if version == PROTOCOL_VERSION and len(author) == 32 and len(signature) == SIGNATURE_BYTES:
            if not math.isfinite(expires):
                raise Malformed("a record that expires never")
            return Record(peer_id_of(author), kind, body, expires, signature)
        case int(version), *_ if version != PROTOCOL_VERSION:
            raise Malformed(other_version("a record", version))
    raise Malformed("not a record")


def _digest(value: bytes) -> bytes:
    if len(value) != 32:
        raise ValueError("a digest has 32 bytes")
    return value


def _digest_or_empty(value: bytes) -> bytes:
    return value if not value else _digest(value)


def _printable(value: str) -> str:
    if not value.isprintable():
        raise ValueError("not printable")
    return value


Digest = Annotated[bytes, Field(strict=True), AfterValidator(_digest)]
DigestOrEmpty = Annotated[bytes, Field(strict=True), AfterValidator(_digest_or_empty)]
Count = Annotated[int, Field(strict=True, ge=0, lt=2**63)]
Measure = Annotated[float, Field(strict=True, ge=0, le=MAX_MEASURE, allow_inf_nan=False)]
Flag = Annotated[bool, Field(strict=True)]
Shown = Annotated[bytes, Field(strict=True, max_length=96)]
Address = Annotated[str, Field(strict=True, max_length=MAX_ADDRESS_CHARS), AfterValidator(_printable)]
PublicKey = Annotated[bytes, Field(strict=True, min_length=PUBLIC_KEY_BYTES, max_length=PUBLIC_KEY_BYTES)]
Label = Annotated[str, Field(strict=True, max_length=MAX_LABEL_CHARS), AfterValidator(_printable)]
Milliseconds = Annotated[int, Field(strict=True, ge=0, le=MOST_TRIP_MS)]
ShortId = Annotated[bytes, Field(strict=True, min_length=SHORT_ID_BYTES, max_length=SHORT_ID_BYTES)]


def short_id(peer_id: str) -> bytes:
    """A name for a peer that other records may use; to find another peer id with the same one takes 2^64 attempts."""
    return blake2b(peer_id.encode(), digest_size=SHORT_ID_BYTES, person=b"homefires short").digest()


@dataclass(frozen=True, kw_only=True)
class SoughtHomes:
    """What a home says that looks for others to train one copy of the model together, or that leads such a cluster.
    Figures of 0 are not known. Peers go by `short_id`, since a record is small."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="ignore")

    memory_gb: Measure = 0.0
    """For parameters, gradients, moments and a micro-batch, in 10^9 bytes."""
    tokens_per_s: Measure = 0.0
    """Of the whole model, if it had room for it."""
    upload_mbps: Measure = 0.0
    trips_ms: Annotated[tuple[tuple[ShortId, Milliseconds], ...], Field(max_length=MAX_TRIPS)] = ()
    """The round trips that it has measured to other homes that look."""
    gathers: Annotated[tuple[ShortId, ...], Field(max_length=MAX_GATHERED)] = ()
    """The homes, in the order of their stages and itself first, of the cluster that it would lead."""
    expects: Measure = 0.0
    """Tokens per second of that cluster."""
    leads: Flag = False
    """It leads a cluster, which anybody may join: then only the next field counts."""
    free: Count = 0
    """How many homes its cluster lacks."""


@dataclass(frozen=True, kw_only=True)
class PeerRecord:
    """What a peer says about itself, every few seconds: its sign of life, its ready record and the head of its chain
    in one."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="ignore")

    run: Digest
    anchor: DigestOrEmpty
    """Digest of the chain; empty before genesis."""
    round: Annotated[int, Field(strict=True, ge=-1, lt=2**63)]
    """-1 before genesis."""
    weight: Count
    """W of the anchor: contributions since the start of the run."""
    state: DigestOrEmpty
    """H(θ, m) of the anchor, of the initial parameters before genesis; empty while it is being computed."""
    ready: Flag
    tokens: Count
    steps: Count
    leaving: Flag
    name: Label
    version: Label
    addrs: Annotated[tuple[Address, ...], Field(max_length=MAX_ADDRESSES)] = ()
    """Where the peer can be dialled, each with /p2p/ and its own id; a reader checks them before it dials."""
    loss: Measure | None = None
    """Its last training loss in nats per token. This and the following fields are for people: nothing is decided by
    them, except that `tokens_per_s` decides how many steps others make where the run's pace is by speed."""
    tokens_per_s: Measure | None = None
    evaluated: Measure | None = None
    """The newest held-out loss that it measured, in nats per token, and the anchor."""
    evaluated_round: Count | None = None
    device_gb: Measure | None = None
    """Memory of the GPU on which it trains, in 10⁹ bytes; None if it has none, or does not know."""
    admission: Shown | None = None
    """The organiser's certificate for this peer, in a run that asks for one."""
    orders: Count | None = None
    """The number of the newest quarantine orders that this peer knows; None if there are none."""
    relays: Annotated[tuple[PublicKey, ...], Field(max_length=MAX_RELAYS)] | None = None
    """The relays at which it holds a slot: it is dialled through them if none of its own addresses answers."""
    life: Count | None = None
    """When the process began that wrote this record, in microseconds of Unix time: so a peer can tell its own
    records from those of a copy of its folder. None from older clients."""

    homes: SoughtHomes | None = None
    """What it says if it looks for other homes, or leads a cluster that others may join."""

    def ways(self, author: str) -> tuple[str, ...]:
        """Where to dial the author, relays last."""
        return (*self.addrs, *(circuit(peer_id_of(relay), author) for relay in self.relays or ()))

    def pack(self) -> bytes:
        """The body of a `head` record; fields that are None are left out."""
        packed: bytes = msgpack.packb({key: value for key, value in asdict(self).items() if value is not None})
        return packed

    @classmethod
    def unpack(cls, body: bytes) -> PeerRecord:
        """Raises Malformed for a missing field, another type or a value out of range."""
        return _validate(_HEAD, _unpack_map(body))


def _sorted_peers(value: tuple[str, ...]) -> tuple[str, ...]:
    if list(value) != sorted(set(value)):
        raise ValueError("founders must be sorted and distinct")
    return value


@dataclass(frozen=True, kw_only=True)
class Genesis:
    """The beginning of a run, published once by its organiser: its founders and the initial state."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="ignore")

    run: Digest
    founders: Annotated[tuple[str, ...], Field(min_length=1, max_length=MAX_FOUNDERS), AfterValidator(_sorted_peers)]
    """Peer ids, sorted: the first electorate."""
    state: Digest
    """H(θ, m) of the initial parameters."""

    def pack(self) -> bytes:
        """The body of a `genesis` record; founders travel as raw public keys."""
        keys = [public_key_of(founder) for founder in self.founders]
        assert None not in keys, self.founders
        packed: bytes = msgpack.packb({"run": self.run, "founders": keys, "state": self.state})
        return packed

    @classmethod
    def unpack(cls, body: bytes) -> Genesis:
        """Raises Malformed."""
        fields = _unpack_map(body)
        keys = fields.get("founders")
        if not isinstance(keys, tuple) or not all(isinstance(key, bytes) and len(key) == 32 for key in keys):
            raise Malformed("founders are not public keys")
        return _validate(_GENESIS, fields | {"founders": tuple(map(peer_id_of, keys))})


_HEAD = TypeAdapter(PeerRecord)
_GENESIS = TypeAdapter(Genesis)


def unpack_body(record: Record) -> PeerRecord | Genesis:
    """The typed body. Raises Malformed, also for a kind that this client does not know."""
    if record.kind == HEAD:
        return PeerRecord.unpack(record.body)
    if record.kind == GENESIS:
        return Genesis.unpack(record.body)
    raise Malformed(f"unknown kind of record: {record.kind[:20]!r}")


_Body = TypeVar("_Body", PeerRecord, Genesis)


def _validate(adapter: TypeAdapter[_Body], fields: dict[str, Any]) -> _Body:
    try:
        return adapter.validate_python(fields)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise Malformed(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error


def _unpack_map(body: bytes) -> dict[str, Any]:
    fields = _unpack_msgpack(body)
    if not isinstance(fields, dict) or not all(isinstance(key, str) for key in fields):
        raise Malformed("not a map of names")
    return fields


def _unpack_msgpack(data: bytes) -> Any:
    if len(data) > MAX_RECORD_BYTES:
        raise Malformed(f"{len(data)} bytes; a record has at most {MAX_RECORD_BYTES}")
    return unpack_value(data, use_list=False, strict_map_key=False)


def unpack_value(data: bytes, **options: Any) -> Any:
    """A value that a stranger has packed, of any shape. Raises Malformed."""
    try:
        return msgpack.unpackb(data, **options)
    except (ValueError, msgpack.UnpackException, TypeError, RecursionError) as error:
        raise Malformed("not msgpack") from error


def _signed_part(body: bytes, expires: float) -> bytes:
    packed: bytes = msgpack.packb([body, float(expires)])
    return packed


HEAD = "head"
"""What a peer says of itself: its anchor, its readiness, its figures."""
GENESIS = "genesis"
"""The founders of the run and the hash of its initial state, signed by the organiser."""
TOPICS = frozenset({HEAD, GENESIS})

HEAD_TTL_S = 60.0
GENESIS_TTL_S = 600.0
MAX_TTL_S = 600.0
"""Nothing on the board lives longer; whoever means it says it again."""


def dht_key(topic: str, run: bytes) -> str:
    """The DHT key of `topic` in the run with hash `run`."""
    assert topic in TOPICS, topic
    return f"homefires/{PROTOCOL_VERSION}/{run.hex()}/{topic}"
