"""What one bootstrap node serves, where, and on which terms it invites."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from dht.addresses import ALL_INTERFACES
from dht.admission import LASTS_S
from dht.errors import BadInput
from peer.spec import RunSpec

SINGLE_MOST = 256


@dataclass(frozen=True, kw_only=True)
class InviteTerms:
    """What invites say. Raises BadInput for terms that contradict each other."""

    admits: bool = False
    """The run asks for an admission, so they hold tokens."""
    single: int = 0
    """So many, each for one peer; 0: one for as many peers as have it."""
    lasts_s: float = 0.0
    """Seconds until they are over; 0: never."""

    def __post_init__(self) -> None:
        if not 0 <= self.single <= SINGLE_MOST:
            raise BadInput(f"{self.single} invites for one peer each; make 1 to {SINGLE_MOST} at a time")
        if self.single and not self.admits:
            raise BadInput(
                "an invite for one peer needs a run that asks for an admission; start the run with --admission"
            )


@dataclass(frozen=True, kw_only=True)
class BootstrapConfig:
    """A run, and how its node serves it."""

    directory: Path
    spec: RunSpec
    listen: tuple[str, ...] = ALL_INTERFACES
    announce: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    """Where else newcomers may dial: other nodes or peers of the run. For the invites alone."""
    terms: InviteTerms = field(default_factory=InviteTerms)
    health_port: int = 0
    """Of loopback; 0 serves no health page."""
    member_s: float = LASTS_S
    """How long an admission lasts."""

    @cached_property
    def run(self) -> bytes:
        """32 bytes, the spec's hash: the run's identity."""
        return self.spec.digest()
