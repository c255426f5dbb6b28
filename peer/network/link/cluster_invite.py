"""A cluster invite: one line with which friends join a cluster. It holds the lead's peer id and a secret.

`hfc1:` + base64url of msgpack [lead's peer id, secret]. Everybody with this line may train a stage of that cluster, so
it is for friends. It is of no use without an invite of the run. Homes that found each other pass the line by
themselves, and keep beside it what they agreed on.
"""

from __future__ import annotations

import base64
import binascii
import os
import secrets
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Annotated

import msgpack
import msgspec
from msgspec import Meta, Struct

from dht.atomic_files import write_atomic, write_exclusive
from dht.errors import BadInvite
from dht.identity import Identity, public_key_of
from peer.schema.ipc import Figure, HomesFound, PeerId

PREFIX = "hfc1:"
SECRET_BYTES = 24
MAX_CHARS = 512
SECRET_FILE, LINE_FILE = "cluster.secret", "cluster.invite"
"""In a lead's folder, and in a worker's; both 0600."""


@dataclass(frozen=True, kw_only=True)
class ClusterInvite:
    lead: str
    """Peer id."""
    secret: bytes = field(repr=False)

    def tag(self, epoch: int) -> bytes:
        """16 bytes that only the homes of an epoch know."""
        return blake2b(self.secret + epoch.to_bytes(8, "big"), digest_size=16, person=b"homefires flow").digest()

    def text(self) -> str:
        packed = msgpack.packb([self.lead, self.secret])
        return PREFIX + base64.urlsafe_b64encode(packed).decode().rstrip("=")


def issue_in(directory: Path) -> ClusterInvite:
    """The cluster invite of the peer in this folder, or of one that will live there; always the same. Raises
    BadInvite for a damaged secret, DiskFull."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = directory / SECRET_FILE
    if not path.exists():
        with suppress(FileExistsError):  # the peer itself, or another command of its owner, was first
            write_exclusive(path, secrets.token_bytes(SECRET_BYTES))
    secret = path.read_bytes()
    if len(secret) != SECRET_BYTES:
        raise BadInvite(f"{path} is damaged; remove it, and give your friends a new line")
    return ClusterInvite(lead=Identity.load_or_create(directory / "identity.key").peer_id, secret=secret)


def parse_cluster(text: str) -> ClusterInvite:
    """Raises BadInvite with one line, whatever the text."""
    text = "".join(text.split())
    if not text.startswith(PREFIX) or len(text) > MAX_CHARS:
        raise BadInvite(f"{text[:24]!r} is no line of a cluster, which starts with {PREFIX}")
    payload = text.removeprefix(PREFIX)
    try:
        raw = base64.b64decode(payload + "=" * (-len(payload) % 4), altchars=b"-_", validate=True)
        lead, secret = msgpack.unpackb(raw)
    except (binascii.Error, ValueError, TypeError, msgpack.UnpackException, RecursionError) as error:
        raise BadInvite("this line of a cluster is damaged or was cut off; copy it again, whole") from error
    if not isinstance(lead, str) or public_key_of(lead) is None:
        raise BadInvite("this line of a cluster names no lead; ask for a new one")
    if not isinstance(secret, bytes) or len(secret) != SECRET_BYTES:
        raise BadInvite("this line of a cluster has no secret; ask for a new one")
    return ClusterInvite(lead=lead, secret=secret)


def read_cluster_text(named: str) -> str:
    """The line that somebody names: its text, or a file that holds it. Raises BadInvite."""
    if named.lstrip().startswith(PREFIX):
        return named
    try:
        with open(named, "rb") as file:
            return file.read(MAX_CHARS + 64).decode(errors="replace").strip()
    except OSError as error:
        text = f"{named[:60]!r} is no line of a cluster, which starts with {PREFIX}, and no file that holds one"
        raise BadInvite(f"{text} ({os.strerror(error.errno or 0)})") from error


def save_line(invite: ClusterInvite, directory: Path) -> None:
    """Keep it in the folder of a worker, where every start of that peer finds it. Raises DiskFull."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomic(directory / LINE_FILE, invite.text().encode(), private=True)


def saved_line(directory: Path) -> ClusterInvite | None:
    """The line with which the peer in this folder works in a cluster; None if it does not. Raises BadInvite."""
    path = directory / LINE_FILE
    return parse_cluster(read_cluster_text(str(path))) if path.exists() else None


# ---- a cluster of homes that found each other ----

FOUND_FILE = "cluster.found"
"""In the folder of a home whose cluster was found."""
ASSEMBLE_S = 300.0
"""Homes that found each other form a cluster within this time, or look for others."""
GONE_S = 1800.0
"""A worker whose cluster stood before waits so long for its lead: its layers are on disk."""


class FoundCluster(Struct, frozen=True, forbid_unknown_fields=True):
    """As the homes agreed on it."""

    lead: PeerId
    order: Annotated[tuple[PeerId, ...], Meta(min_length=2, max_length=32)]
    tokens_per_s: Figure
    leads: bool
    """Whether this home is the lead."""
    upload_mbps: Figure = 0.0
    """Of this home's line, as it was measured in the search; 0 if it is not known."""
    is_formed: bool = False
    """Whether it has trained together."""


def found_in(directory: Path) -> FoundCluster | None:
    """The cluster in which the peer in this folder has found a place; None without one, or for a damaged file: then it
    looks for another."""
    try:
        return msgspec.msgpack.decode((directory / FOUND_FILE).read_bytes(), type=FoundCluster)
    except (FileNotFoundError, ValueError):
        return None


def keep_found(directory: Path, found: HomesFound) -> FoundCluster:
    """Have every start of this peer go to this cluster. Raises DiskFull, and BadInvite for a lead that gave another
    cluster's line."""
    if found.line:
        save_line(parse_cluster(found.line), directory)
    kept = FoundCluster(
        found.lead, found.order, found.tokens_per_s, leads=not found.line, upload_mbps=found.upload_mbps
    )
    write_atomic(directory / FOUND_FILE, msgspec.msgpack.encode(kept))
    return kept


def note_formed(directory: Path) -> None:
    """It trains together: now its homes wait for each other."""
    found = found_in(directory)
    if found is not None and not found.is_formed:
        write_atomic(directory / FOUND_FILE, msgspec.msgpack.encode(msgspec.structs.replace(found, is_formed=True)))


def forget_found(directory: Path) -> None:
    """This peer has no place in a cluster that it found; a friend's line stays."""
    found = found_in(directory)
    if found is not None and not found.leads:
        (directory / LINE_FILE).unlink(missing_ok=True)
    (directory / FOUND_FILE).unlink(missing_ok=True)


def patience_of(found: FoundCluster) -> float:
    """The seconds for which a worker waits for a place."""
    return GONE_S if found.is_formed else ASSEMBLE_S
