"""What one bootstrap node serves, and where, as its command line says."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from bootstrap.invites import InviteTerms
from dht.admission import LASTS_S
from dht.errors import BadSpec
from dht.reach.addresses import ALL_INTERFACES


@dataclass(frozen=True, kw_only=True)
class BootstrapConfig:
    """What one bootstrap node serves, and where."""

    directory: Path
    spec: bytes
    """The spec as TOML, with every value; checked by whoever starts us."""
    spec_hash: bytes
    """32 bytes; joiners compare it with what the spec hashes to."""
    name: str
    founders: int
    listen: tuple[str, ...] = ALL_INTERFACES
    announce: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    """Where else newcomers may dial: other nodes or peers of the run. For the invites alone."""
    terms: InviteTerms = field(default_factory=InviteTerms)
    health_port: int = 0
    """Of loopback; 0 serves no health page."""
    member_s: float = LASTS_S
    """How long an admission lasts."""


def read_config(
    path: Path, spec_hash: bytes, directory: Path, listen: tuple[str, ...], announce: tuple[str, ...],
    *, also: tuple[str, ...] = (), single: int = 0, lasts_s: float = 0.0, health_port: int = 0,
    member_s: float = LASTS_S,
) -> BootstrapConfig:  # fmt: skip
    """The config for a spec file. Raises BadSpec, and BadInput for terms of invites that do not fit it."""
    try:
        spec = path.read_bytes()
        table = tomllib.loads(spec.decode())
        name, founders = table["run"]["name"], table["run"]["founders"]
        policy = table.get("admission", {}).get("policy", "open")
    except OSError as error:
        raise BadSpec(f"{path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise BadSpec(f"{path}: not a complete run spec in TOML ({error})") from error
    if not isinstance(name, str) or not isinstance(founders, int) or founders < 1:
        raise BadSpec(f"{path}: run.name must be text and run.founders a number from 1")
    return BootstrapConfig(
        directory=directory,
        spec=spec,
        spec_hash=spec_hash,
        name=name,
        founders=founders,
        listen=listen or ALL_INTERFACES,
        announce=announce,
        also=also,
        terms=InviteTerms(admits=policy == "invited", single=single, lasts_s=lasts_s),
        health_port=health_port,
        member_s=member_s,
    )
