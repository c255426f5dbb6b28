"""A peer's identity: an Ed25519 key. Its public half is the libp2p peer id.

The key file is the one that libp2p's daemon reads. So the id that signs records is the id that the transport
authenticates, and a signature can be checked with nothing but the peer id.
"""

from __future__ import annotations

import functools
import hashlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import base58
import msgpack
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from dht.atomic_files import write_exclusive
from dht.errors import BadInput

PUBLIC_KEY_BYTES = 32
SIGNATURE_BYTES = 64

# libp2p protobuf messages, written by hand: field 1 (varint) key type, 1 = Ed25519; field 2 (bytes) the key.
_PRIVATE_HEADER = bytes([0x08, 0x01, 0x12, 64])
_PUBLIC_HEADER = bytes([0x08, 0x01, 0x12, PUBLIC_KEY_BYTES])
# A peer id of a short key is an "identity" multihash: code 0, length, the public key message itself.
_ID_HEADER = bytes([0x00, len(_PUBLIC_HEADER) + PUBLIC_KEY_BYTES]) + _PUBLIC_HEADER


class Identity:
    """An Ed25519 key pair; it signs in the name of `peer_id`."""

    __slots__ = ("_key", "peer_id")

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.peer_id = peer_id_of(key.public_key().public_bytes_raw())
        """Base58, `12D3Koo…`."""

    @classmethod
    def generate(cls) -> Identity:
        """A new key, which is in no file yet."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def from_seed(cls, seed: bytes) -> Identity:
        """The key of a 32-byte seed, for tests that must be repeatable."""
        return cls(Ed25519PrivateKey.from_private_bytes(seed))

    @classmethod
    def load_or_create(cls, path: Path) -> Identity:
        """Read the key file, or write a new one (0600 in a folder of 0700).

        Raises BadInput if the file is not an Ed25519 key of libp2p.
        """
        if path.exists():
            return cls._load(path)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(FileExistsError):  # another command of its owner was first
            write_exclusive(path, cls.generate().to_bytes())
        return cls._load(path)

    @classmethod
    def _load(cls, path: Path) -> Identity:
        identity = cls.from_bytes(path.read_bytes())
        if identity is None:
            raise BadInput(f"{path} is not an Ed25519 identity; move it away to become a new peer")
        path.chmod(0o600)
        return identity

    @classmethod
    def from_bytes(cls, raw: bytes) -> Identity | None:
        """The key in the bytes of a key file; None if they are not one."""
        seed = raw[len(_PRIVATE_HEADER) :][:32]
        identity = cls(Ed25519PrivateKey.from_private_bytes(seed)) if len(seed) == 32 else None
        return identity if identity is not None and identity.to_bytes() == raw else None

    def save(self, path: Path) -> None:
        """Write the key file into an existing folder. Raises DiskFull, and BadInput if there is a key file already."""
        try:
            write_exclusive(path, self.to_bytes())
        except FileExistsError as error:
            raise BadInput(f"{path} has come into being meanwhile; it is not replaced") from error

    def sign(self, run: bytes, kind: str, payload: bytes) -> bytes:
        """64 bytes over (`run`, `kind`, `payload`): a signature for one run or kind is worth nothing in another."""
        return self._key.sign(_signed_bytes(run, kind, payload))

    def to_bytes(self) -> bytes:
        """The content of the key file; whoever has it is this peer."""
        return _PRIVATE_HEADER + self._key.private_bytes_raw() + self._key.public_key().public_bytes_raw()


def verify(peer_id: str, run: bytes, kind: str, payload: bytes, signature: bytes) -> bool:
    """Whether the holder of `peer_id` signed this. False, never an error, for garbage."""
    key = _verifier(peer_id)
    if key is None or len(signature) != SIGNATURE_BYTES:
        return False
    try:
        key.verify(signature, _signed_bytes(run, kind, payload))
    except InvalidSignature:
        return False
    return True


@dataclass(frozen=True)
class RunKeys:
    """Signs with an identity, and checks what others have signed, in one run."""

    identity: Identity
    run: bytes

    def sign(self, kind: str, payload: bytes) -> bytes:
        return self.identity.sign(self.run, kind, payload)

    def verify(self, peer: str, kind: str, payload: bytes, signature: bytes) -> bool:
        return verify(peer, self.run, kind, payload, signature)


@functools.lru_cache(maxsize=4096)
def peer_id_of(public_key: bytes) -> str:
    assert len(public_key) == PUBLIC_KEY_BYTES
    return base58.b58encode(_ID_HEADER + public_key).decode()


@functools.lru_cache(maxsize=4096)
def public_key_of(peer_id: str) -> bytes | None:
    """The 32 raw public key bytes inside an Ed25519 peer id; None if it is not one."""
    if not 50 <= len(peer_id) <= 54:
        return None
    try:
        raw: bytes = base58.b58decode(peer_id)
    except ValueError:
        return None
    key = raw[len(_ID_HEADER) :]
    if not raw.startswith(_ID_HEADER) or len(key) != PUBLIC_KEY_BYTES or peer_id_of(key) != peer_id:
        return None
    return key


def id_bytes_of(peer_id: str) -> bytes | None:
    """The bytes that base58 spells in an Ed25519 peer id; None if it is not one."""
    key = public_key_of(peer_id)
    return None if key is None else _ID_HEADER + key


def peer_id_in_bytes(raw: bytes) -> str | None:
    """The peer id that `id_bytes_of` gives these bytes for; None if there is none."""
    key = raw[len(_ID_HEADER) :]
    return peer_id_of(key) if raw.startswith(_ID_HEADER) and len(key) == PUBLIC_KEY_BYTES else None


@functools.lru_cache(maxsize=4096)
def _verifier(peer_id: str) -> Ed25519PublicKey | None:
    key = public_key_of(peer_id)
    return None if key is None else Ed25519PublicKey.from_public_bytes(key)


def _signed_bytes(run: bytes, kind: str, payload: bytes) -> bytes:
    packed: bytes = msgpack.packb(["homefires", run, kind, payload])
    return packed


WORDS = 8
"""64 bits: nobody makes a second key with the same words by trying."""


def fingerprint_words(peer_id: str) -> str:
    """The fingerprint of an Ed25519 peer id, for people: always the same `WORDS` words with a space between."""
    key = public_key_of(peer_id)
    assert key is not None, peer_id
    digest = hashlib.blake2b(key, digest_size=WORDS, person=b"homefires-words").digest()
    lists = _pgp_words()
    return " ".join(lists[place % 2][byte] for place, byte in enumerate(digest))


@functools.cache
def _pgp_words() -> list[list[str]]:
    """256 words of two syllables and 256 of three, in the order of the PGP word list."""
    text = Path(__file__).with_name("pgp_words.txt").read_text()
    return [part.split() for part in text.split("\n\n")]
