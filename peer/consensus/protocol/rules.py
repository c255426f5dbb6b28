"""The constants of a run, and a cache of what peers in one process compute alike.

The cache is for simulators, where a message is one object for all peers. Real peers share nothing (`Rules.shared` is
None).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from peer.consensus.aggregation.evidence import AggregationRules
from peer.consensus.protocol.block import MAX_MEMBERS
from peer.consensus.protocol.encoding import Keys
from peer.consensus.protocol.head import ChainHead
from peer.consensus.protocol.layout import Fragment, Part, divide

DATA_SHARDS = 64
"""Shards of every run's training text. Part of the protocol: cursors in anchors count by shard."""

P = ParamSpec("P")
T = TypeVar("T")

MOST = 48
"""Results that are remembered, the newest."""


class Shared:
    """A cache of results by the objects from which they follow."""

    def __init__(self) -> None:
        self._found: dict[Hashable, tuple[tuple[Any, ...], Any]] = {}

    def once(self, key: Hashable, objects: tuple[Any, ...], compute: Callable[[], T]) -> T:
        """`compute()`, or its earlier result for this key and these very objects. They are kept as long as the
        result, so that no other object can get the identity of one of them."""
        whole = (key, *map(id, objects))
        found = self._found.get(whole)
        if found is None:
            found = self._found[whole] = objects, compute()
            if len(self._found) > MOST:
                del self._found[next(iter(self._found))]
        result: T = found[1]
        return result


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The constants of one peer in one run. Durations as in `[round]` of the spec."""

    me: str
    name: str = ""
    """The name that people see."""
    keys: Keys
    parts: tuple[Part, ...]
    """Of the whole model."""
    part_bytes: tuple[int, ...]
    """Encoded size of each part of a contribution; payloads of another size are refused."""
    mean_bytes: tuple[int, ...] = ()
    """The same for each part of a mean; empty: as in a contribution."""
    fragments: int = 1
    """The number of fragments: round r averages only number r mod `fragments`."""
    gather_s: float
    ack_s: float
    exchange_s: float
    stagger_s: float
    patience: float = 4.0
    """How many deviations later than usual a peer may be before the round goes on without it."""
    min_steps: int = 0
    """Inner steps that all ready peers must have made together before a round goes on without one that still trains."""
    restart_s: float = 0.0
    """After this time without a decision the remaining voters go on without the others, if the organiser signs that;
    0: never."""
    organiser: str = ""
    """The peer id of the organiser; empty: nobody goes on."""
    checkpoint: tuple[int, bytes] = (0, b"")
    """Round and anchor that the organiser has signed last: no chain leads through another anchor at that round."""
    row_bytes: int = 0
    """The size of the row of each contribution, which follows the mean itself."""
    min_round_s: int = 0
    keep_rounds: int = 8
    max_staleness: int = 8
    aggregation: AggregationRules
    finite: Callable[[bytes], bool] = bool
    """Whether the numbers in an encoded part are finite; by default true for all that are not empty."""
    tokens_cap: int
    steps_cap: int = 1 << 30
    """The most inner steps of one peer and round against which a norm is judged."""
    step_tokens: int = 0
    """The most tokens of one inner step; 0: steps do not bound tokens."""
    context: int = 0
    """Tokens of one window of data; 0: tokens bound no windows."""
    shards: int = 1 << 16
    """The number of shards into which the run's data is cut."""
    wall_offset_s: float = 0.0
    """Unix time minus the clock of the events, at the newest tick; that clock stands still while a laptop sleeps."""
    holds: range | None = None
    """The layers whose bytes this peer keeps, if it is a home that works for a lead: it follows the chain and
    decides nothing. None: all layers."""
    shared: Shared | None = field(default=None, repr=False, compare=False)
    """Of simulated peers that share a process."""
    divided: tuple[Fragment, ...] = field(init=False, repr=False, compare=False)
    sizes: tuple[tuple[int, ...], ...] = field(init=False, repr=False, compare=False)
    """For each fragment, the encoded sizes of its parts in a contribution."""
    mean_sizes: tuple[tuple[int, ...], ...] = field(init=False, repr=False, compare=False)
    """The same in a mean."""

    def __post_init__(self) -> None:
        divided = divide(self.parts, self.fragments)
        object.__setattr__(self, "divided", divided)
        for name, sizes in (("sizes", self.part_bytes), ("mean_sizes", self.bytes_of_means)):
            found = tuple(tuple(sizes[number] for number in fragment.numbers) for fragment in divided)
            object.__setattr__(self, name, found)

    @property
    def weighs_predicted(self) -> bool:
        """Whether the tokens of a header are those that were predicted, and not all that were read."""
        return self.aggregation.weigh == "predicted" and self.step_tokens > 0

    @property
    def steps_most(self) -> int:
        """The most inner steps that a header may claim: those of as many rounds as pass until work is too old."""
        return self.steps_cap * (self.max_staleness + 1)

    @property
    def layers(self) -> int:
        """Of the whole model."""
        return self.parts[-1].layer + 1

    def fragment(self, round: int) -> Fragment:
        """What the round from anchor `round` averages."""
        return self.divided[round % self.fragments]

    def object_bytes(self, round: int, part: int, contributors: int) -> int:
        """Size of a mean of these contributors (bits) with its rows."""
        return self.means_in(round)[part] + self.row_bytes * contributors.bit_count()

    def is_size_of_mean(self, size: int) -> bool:
        """Whether some mean of the model, with the rows of some members, has this size."""
        most = MAX_MEMBERS * self.row_bytes
        return any(
            size == mean or (mean < size <= mean + most and not (size - mean) % self.row_bytes)
            for mean in set(self.bytes_of_means)
        )

    @property
    def bytes_of_means(self) -> tuple[int, ...]:
        """Encoded size of each part of a mean of the whole model."""
        return self.mean_bytes or self.part_bytes

    def bytes_in(self, round: int) -> tuple[int, ...]:
        """Encoded sizes of the parts that the round from anchor `round` averages, as one peer gives them."""
        return self.sizes[round % self.fragments]

    def means_in(self, round: int) -> tuple[int, ...]:
        """Encoded sizes of what that round makes of them."""
        return self.mean_sizes[round % self.fragments]


def computed_once(
    compute: Callable[Concatenate[Rules, ChainHead, P], T],
) -> Callable[Concatenate[Rules, ChainHead, P], T]:
    """Where peers share a process: what one of them has computed after this head all have, for the same arguments."""

    @wraps(compute)
    def once(rules: Rules, head: ChainHead, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if rules.shared is None:
            return compute(rules, head, *args, **kwargs)
        plain = [item for item in args if _is_plain(item)]
        objects = tuple(item for item in args if not _is_plain(item))
        key = (compute.__name__, head.anchor, *plain)
        return rules.shared.once(key, objects, lambda: compute(rules, head, *args, **kwargs))

    return once


def _is_plain(value: object) -> bool:
    """A number, or names: compared by value, since each peer has its own object."""
    return isinstance(value, int) or (isinstance(value, tuple) and all(isinstance(item, str) for item in value))
