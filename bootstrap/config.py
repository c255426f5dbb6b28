"""The settings of one bootstrap node: the run it serves, its addresses, and its terms of invitation."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from dht.addresses import ALL_INTERFACES
from dht.admission import LASTS_S
from dht.errors import BadInput
from dht.identity import Identity, public_key_of
from dht.invite import issue
from dht.streams.base import LEAST_MBPS, MOST_MBPS
from peer.consensus.organiser.checkpoints import ChainCheckpoint
from peer.schema.spec import RunSpec

SINGLE_MOST = 256
TOKEN_BYTES = 16
LONGEST_S = 10 * 365 * 86400.0

_UNITS_S = {"m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}


@dataclass(frozen=True, kw_only=True)
class InviteTerms:
    """The terms in invites. Raises BadInput for terms that contradict each other."""

    admits: bool = False
    """The run asks for an admission, so invites hold tokens."""
    single: int = 0
    """The number of invites for one peer each; 0: one invite for any number of peers."""
    lasts_s: float = 0.0
    """Seconds until they expire; 0: never."""

    def __post_init__(self) -> None:
        if not 0 <= self.single <= SINGLE_MOST:
            raise BadInput(f"{self.single} invites for one peer each; make 1 to {SINGLE_MOST} at a time")
        if self.single and not self.admits:
            raise BadInput(
                "an invite for one peer needs a run that asks for an admission; start the run with --admission"
            )


@dataclass(frozen=True, kw_only=True)
class BootstrapConfig:
    """A run, and how its node serves it. Raises BadInput for fewer founders than the run needs."""

    directory: Path
    spec: RunSpec
    listen: tuple[str, ...] = ALL_INTERFACES
    announce: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    """Other nodes or peers of the run that newcomers may dial; only for the invites."""
    terms: InviteTerms = field(default_factory=InviteTerms)
    founders: tuple[str, ...] = ()
    """The peer ids that may found the run; none: the first peers that come."""
    health_port: int = 0
    """A port of loopback; 0 serves no status page."""
    page: Path | None = None
    """The folder for a page about the run that everybody may read; None: there is none."""
    member_s: float = LASTS_S
    """How long an admission lasts."""
    promote_s: float | None = None
    """For how long the voters must have counted a stranger's work before the node promotes it; None: never."""

    upload_bps: float = 0.0
    """Of all that the node sends, and a quarter of it of what it relays; 0: no limit."""
    download_bps: float = 0.0

    def __post_init__(self) -> None:
        count = self.spec.run.founders
        for peer in self.founders:
            if public_key_of(peer) is None:
                raise BadInput(f"--founder {peer} is no peer id; status tells each peer its own")
        if self.founders and len(set(self.founders)) < count:
            raise BadInput(f"{len(set(self.founders))} founders are named, run.founders is {count}; name as many")

    @cached_property
    def run(self) -> bytes:
        """32 bytes, the spec's hash: the run's identity."""
        return self.spec.digest()


def issue_all(
    identity: Identity, *, run: str, spec_hash: bytes, addrs: tuple[str, ...], terms: InviteTerms, now_s: float,
    checkpoint: ChainCheckpoint | None,
) -> list[str]:  # fmt: skip
    """The texts of the invites, at least one. Raises BadAddress."""
    expires = now_s + terms.lasts_s if terms.lasts_s else None
    return [
        issue(
            identity,
            run=run,
            spec_hash=spec_hash,
            addrs=addrs,
            once=terms.single > 0,
            expires=expires,
            token=secrets.token_bytes(TOKEN_BYTES) if terms.admits else None,
            checkpoint=None if checkpoint is None else (checkpoint.round, checkpoint.anchor),
        )
        for _ in range(max(1, terms.single))
    ]


def parse_duration_s(flag: str, text: str) -> float:
    """`30m`, `12h`, `7d` or `4w` in seconds. Raises BadInput that names the flag."""
    match = re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?)([mhdw])", text.strip())
    seconds = float(match[1]) * _UNITS_S[match[2]] if match else 0.0
    if not 0 < seconds <= LONGEST_S:
        raise BadInput(f"{flag} is {text[:40]!r}; write a time such as 30m, 12h, 7d or 4w")
    return seconds


def parse_cap_bps(flag: str, text: str) -> float:
    """Megabits per second in bits per second; 0.0 for no words. Raises BadInput that names the flag."""
    if not text:
        return 0.0
    try:
        mbps = float(text)
    except ValueError:
        mbps = 0.0
    if not LEAST_MBPS <= mbps <= MOST_MBPS:
        raise BadInput(
            f"{flag} is {text[:40]!r}; write megabits per second, between {LEAST_MBPS:g} and {MOST_MBPS:,.0f}"
        )
    return 1e6 * mbps
