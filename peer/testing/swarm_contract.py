"""The interface of the `swarm` fixture, the same for logical peers and for processes."""

from __future__ import annotations

import tomllib
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import methodcaller

from dht.errors import BadInput
from peer.schema.spec import RunSpec, from_mapping, read_text
from peer.testing.faults import Crash, Fault, Partition

ENDS_AT_ITS_USER = methodcaller("errisinstance", (AssertionError, BadInput))
"""As `__tracebackhide__`: what fails for something of the test's is shown at the test's own line."""
__tracebackhide__ = ENDS_AT_ITS_USER


@dataclass(frozen=True, kw_only=True)
class Committed:
    """Anchor `round` exists at one peer.

    `digest` names the chain up to it, `state` the bits of the model; `group` are the indices of the
    members of the update that led to it; `at_s` is virtual or wall time since the swarm began.
    """

    round: int
    digest: str
    state: str
    group: frozenset[int]
    at_s: float


class Swarm(ABC):
    """A number of peers in one run. Indices count from 0 in order of joining."""

    def __init__(self) -> None:
        self._waiting: list[Fault] = []
        self._struck: list[Fault] = []

    # ---- to be given by the two kinds ----

    @property
    @abstractmethod
    def size(self) -> int:
        """How many peers have joined so far, the dead included."""

    @abstractmethod
    def until_round(self, round: int, *, within_s: float) -> None:
        """Run until every live peer has committed anchor `round`. A killed peer is not live until it is back.

        Raises AssertionError, saying where everybody is, if that takes longer than `within_s` seconds.
        """

    @abstractmethod
    def _run_until(self, reached: Callable[[], bool], within_s: float, failure: str) -> None:
        """Raises AssertionError with `failure`, and where everybody is, if that takes longer."""

    def until_member(self, peer: int, *, within_s: float) -> None:
        """Run until a round is committed, after those of now, of which this peer is a member: a newcomer takes part, or
        one that was killed does again. Raises AssertionError as above.
        """
        self._require_peer(peer)
        since = self._newest_round(range(self.size))
        self._run_until(lambda: self._is_member_since(peer, since), within_s, f"peer {peer} is no member of a round")

    @abstractmethod
    def join(self) -> int:
        """Start one more peer, a newcomer; returns its index at once."""

    @abstractmethod
    def committed(self, peer: int) -> Sequence[Committed]:
        """What one peer has committed, in order of rounds, each once. Raises BadInput if there is no such peer."""

    @abstractmethod
    def close(self) -> None:
        """End everything that was started."""

    def _newest_round(self, peers: Iterable[int]) -> int:
        """The newest anchor that any of them has committed; 0 before the first."""
        return max((commit.round for peer in peers for commit in self.committed(peer)), default=0)

    def _is_member_since(self, peer: int, round: int) -> bool:
        return any(
            peer in commit.group and commit.round > round
            for other in range(self.size)
            for commit in self.committed(other)
        )

    def _require_peer(self, peer: int) -> None:
        if not 0 <= peer < self.size:
            raise BadInput(f"there is no peer {peer}; they are 0 to {self.size - 1}")

    # ---- faults ----

    def inject(self, *faults: Fault) -> None:
        """Have these strike; also while the swarm runs. Raises BadInput for peers that do not exist, and for a round
        that is over there: such a fault would never strike."""
        for fault in faults:
            unknown = [peer for peer in fault.named if peer >= self.size]
            if unknown:
                raise BadInput(f"{fault}: there is no peer {unknown[0]}; they are 0 to {self.size - 1}")
            begun = min(self._newest_round([peer]) for peer in fault.victims)
            if fault.round < begun:
                raise BadInput(f"{fault}: round {fault.round} is over; the newest that has begun there is {begun}")
        self._waiting += faults

    @property
    def struck(self) -> tuple[Fault, ...]:
        """The faults that have struck, in that order."""
        return tuple(self._struck)

    @property
    def waiting(self) -> tuple[Fault, ...]:
        """The faults that have not struck yet."""
        return tuple(self._waiting)

    def _due(self, peer: int, phase: str, round: int) -> list[Fault]:
        """The faults that strike now that `peer` enters `phase` of `round`; they count as struck.

        A crash comes last, so that what strikes together with it strikes at all.
        """
        due = [
            fault
            for fault in self._waiting
            if peer in fault.victims and (fault.phase, fault.round) == (phase, round)
        ]  # fmt: skip
        due.sort(key=lambda fault: isinstance(fault, Crash))
        for fault in due:
            self._waiting.remove(fault)
            self._struck.append(fault)
        return due

    def outside(self, fault: Partition) -> list[int]:
        """The peers that a partition keeps from talking with its own: all others that have joined by now."""
        return [peer for peer in range(self.size) if peer not in fault.peers]

    # ---- what came of it ----

    def group(self, round: int) -> set[int]:
        """The members of the update that led to anchor `round`. Raises AssertionError if nobody has committed it."""
        for peer in range(self.size):
            for commit in self.committed(peer):
                if commit.round == round:
                    return set(commit.group)
        raise AssertionError(f"no peer has committed round {round}")

    def assert_agreement(self) -> None:
        """One chain digest and one state per round over all peers. Raises AssertionError that says which differ.

        A worker of a cluster knows the chain's digest alone.
        """
        holders: dict[int, dict[tuple[str, str], list[int]]] = defaultdict(lambda: defaultdict(list))
        states = {
            commit.digest: commit.state for peer in range(self.size) for commit in self.committed(peer) if commit.state
        }
        for peer in range(self.size):
            for commit in self.committed(peer):
                state = commit.state or states.get(commit.digest, "")
                holders[commit.round][commit.digest, state].append(peer)
        assert holders, "no peer has committed anything"
        for round, versions in sorted(holders.items()):
            described = "; ".join(
                f"peers {peers} have digest {digest[:12]}, state {state[:12]}"
                for (digest, state), peers in versions.items()
            )
            assert len(versions) == 1, f"round {round} differs: {described}"


def changed_spec(name: str, sets: Sequence[str]) -> RunSpec:
    """A spec that comes with the product, with TOML assignments such as `round.steps=60` over it."""
    table = tomllib.loads(read_text(name))
    for assignment in sets:
        for key, values in tomllib.loads(assignment).items():
            table[key] = table.get(key, {}) | values
    return from_mapping(table, name)
