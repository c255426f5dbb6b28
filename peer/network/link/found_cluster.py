"""A cluster of homes that found each other: what a home of it keeps on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from dht.atomic_files import write_atomic
from peer.network.link.cluster_invite import LINE_FILE, parse_cluster, save_line
from peer.schema.ipc import Figure, HomesFound, PeerId

FILE = "cluster.found"
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
    is_formed: bool = False
    """Whether it has trained together."""


def found_in(directory: Path) -> FoundCluster | None:
    """The cluster in which the peer in this folder has found a place; None without one, or for a damaged file: then it
    looks for another."""
    try:
        return msgspec.msgpack.decode((directory / FILE).read_bytes(), type=FoundCluster)
    except (FileNotFoundError, ValueError):
        return None


def keep_found(directory: Path, found: HomesFound) -> FoundCluster:
    """Have every start of this peer go to this cluster. Raises DiskFull, and BadInvite for a lead that gave another
    cluster's line."""
    if found.line:
        save_line(parse_cluster(found.line), directory)
    kept = FoundCluster(found.lead, found.order, found.tokens_per_s, leads=not found.line)
    write_atomic(directory / FILE, msgspec.msgpack.encode(kept))
    return kept


def note_formed(directory: Path) -> None:
    """It trains together: now its homes wait for each other."""
    found = found_in(directory)
    if found is not None and not found.is_formed:
        write_atomic(directory / FILE, msgspec.msgpack.encode(msgspec.structs.replace(found, is_formed=True)))


def forget_found(directory: Path) -> None:
    """This peer has no place in a cluster that it found; a friend's line stays."""
    found = found_in(directory)
    if found is not None and not found.leads:
        (directory / LINE_FILE).unlink(missing_ok=True)
    (directory / FILE).unlink(missing_ok=True)


def patience_of(found: FoundCluster) -> float:
    """The seconds for which a worker waits for a place."""
    return GONE_S if found.is_formed else ASSEMBLE_S
