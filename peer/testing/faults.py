"""What can go wrong with a peer, and exactly when: the fault kit of the `swarm` fixture.

Every fault strikes once: when `peer` enters `phase` of `round`, in the first ballot that gets there. `peer` and `peers`
are indices, counted from 0 in order of joining. `round` is the anchor that the round starts from, as in
`peer.schema.events`: round 0 makes anchor 1.
"""

from __future__ import annotations

from dataclasses import dataclass

from dht.errors import BadInput

PHASES = ("train", "submit", "prepare", "exchange", "reduce", "commit", "apply")
"""In the order of a round. "train" begins with `RoundStarted`, the others with `PhaseEntered`."""


@dataclass(frozen=True, kw_only=True)
class _Strike:
    phase: str
    round: int

    def __post_init__(self) -> None:
        """Raises BadInput for a value that can never strike."""
        if self.phase not in PHASES:
            raise BadInput(f"{self} has no such phase; choose one of {', '.join(PHASES)}")
        for name, value in vars(self).items():
            if isinstance(value, int | float) and value < 0:
                raise BadInput(f"{self} has a negative {name}")
        if not self.victims:
            raise BadInput(f"{self} is about nobody")
        if getattr(self, "rate", 0) > 1:
            raise BadInput(f"{self} has a rate above 1; it is a share")

    @property
    def victims(self) -> tuple[int, ...]:
        """Whose entering strikes."""
        raise NotImplementedError

    @property
    def named(self) -> tuple[int, ...]:
        """Everybody it is about."""
        return self.victims


@dataclass(frozen=True, kw_only=True)
class _PeerStrike(_Strike):
    peer: int

    @property
    def victims(self) -> tuple[int, ...]:
        """The peer itself."""
        return (self.peer,)


@dataclass(frozen=True, kw_only=True)
class Crash(_PeerStrike):
    """The peer is killed (SIGKILL). It comes back from its disk `back_after_s` later, or never."""

    back_after_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Stall(_PeerStrike):
    """The peer is frozen (SIGSTOP) for `seconds`: nothing in, nothing out, its timers late."""

    seconds: float


@dataclass(frozen=True, kw_only=True)
class Slow(_PeerStrike):
    """For `seconds` no more than `bytes_per_s` leave the peer. 0 holds everything back until then."""

    seconds: float
    bytes_per_s: float


@dataclass(frozen=True, kw_only=True)
class Corrupt(_PeerStrike):
    """In each of the next `frames` frames that the peer sends, some bytes are flipped."""

    frames: int


@dataclass(frozen=True, kw_only=True)
class Loss(_PeerStrike):
    """For `seconds` this share of the frames to and from the peer is lost."""

    seconds: float
    rate: float


@dataclass(frozen=True, kw_only=True)
class Duplicate(_PeerStrike):
    """For `seconds` this share of the frames that the peer sends arrives a second time, up to `late_s` later."""

    seconds: float
    rate: float
    late_s: float


@dataclass(frozen=True, kw_only=True)
class Reorder(_PeerStrike):
    """For `seconds` every frame that the peer sends is held back for a time of its own, at most `late_s`."""

    seconds: float
    late_s: float


@dataclass(frozen=True, kw_only=True)
class Cut(_PeerStrike):
    """For `seconds` nothing passes between `peer` and `other`; both reach everybody else."""

    other: int
    seconds: float

    def __post_init__(self) -> None:
        """Raises BadInput also for a peer that would be cut off from itself."""
        super().__post_init__()
        if self.peer == self.other:
            raise BadInput(f"{self} cuts a peer off from itself; name another")

    @property
    def named(self) -> tuple[int, ...]:
        """Both ends."""
        return (self.peer, self.other)


@dataclass(frozen=True, kw_only=True)
class Partition(_Strike):
    """For `seconds` nothing passes between `peers` and the rest; strikes when the first of them gets there."""

    peers: tuple[int, ...]
    seconds: float

    @property
    def victims(self) -> tuple[int, ...]:
        """Any of them."""
        return self.peers


@dataclass(frozen=True, kw_only=True)
class Odd(_PeerStrike):
    """What the peer has learned and not yet given is `factor` times what it should be when it submits this round.

    `layer` is the name of the layer to which it happens ("0", "1", … among logical peers), or empty for all.
    The peer itself knows nothing of it, as with memory that is not to be trusted.
    """

    phase: str = "submit"
    factor: float
    layer: str = ""

    def __post_init__(self) -> None:
        """Raises BadInput also for a phase in which nothing is submitted."""
        super().__post_init__()
        if self.phase != "submit":
            raise BadInput(f"{self}: what a peer gives is fixed as it submits; leave the phase out")


Fault = Crash | Stall | Slow | Corrupt | Loss | Duplicate | Reorder | Cut | Partition | Odd
