"""A logical swarm in which one peer lies about one field, and what must hold for the others all the same.

The honest peers commit every round within 1.5 times what the same swarm takes without the lie, have equal bits, lose
nothing of what they give, and keep as small a memory as ever.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from traceback import extract_tb
from typing import Any

from dht.streams.base import Streams
from peer.consensus.aggregation.evidence import AggregationRules
from peer.consensus.codec.run_rules import rules_of
from peer.consensus.protocol.block import ContributionHeader, Update
from peer.consensus.protocol.head import ChainHead
from peer.consensus.protocol.rules import Rules
from peer.consensus.rounds.interface import Tick
from peer.node.lifecycle.inputs_effects import Stepped
from peer.schema.events import MessageRefused
from peer.schema.spec import RunSpec, from_mapping
from peer.testing.memory_peer import STEP_TOKENS, STEPS, LogicalPeer
from peer.testing.memory_swarm import World
from tests.fields.liar import Liar, Lie, LyingStreams
from tests.peer.consensus.rounds.hostile import check_bounds

PEERS = 4
OWNED = PEERS
"""Parts of the model: everybody reduces one, as in any real model."""
LIAR = "p1"
SEED = 3
FIRST_LIE = 2
"""The round of the first lie."""
LED = 2
"""Rounds that the liar leads with its lie, and as many that others lead."""
ROUNDS_MOST, WITHOUT = 40, 4
"""By then it has; and after so many rounds without it there is nothing more to see."""
OCCASIONS = 6
"""Rounds after which it has told its lie, if it ever does: not every round has it reduce something."""
STOPPED = 4.0
"""After so many times the usual without a commit."""
TRAIN_S, TICK_S = 120.0, 4.0
UPLOAD_BPS = 20_000_000
SLOWER = 1.5
LOST = 0.01
WEIGHED_LESS = 0.02
"""Norms are held against the root of the steps, and up to twice those of a round are at their peer's word."""
CONTEXT = STEP_TOKENS // 2
WINDOWS = STEPS * STEP_TOKENS // CONTEXT
"""Of a shard that a peer reads in a round."""
SPEC = from_mapping(
    {
        "run": {"name": "fields"},
        "model": {"architecture": "llama", "context": CONTEXT},
        "inner": {"sequences": STEP_TOKENS // CONTEXT, "accumulation": 1},
        "round": {
            "steps": STEPS, "gather_s": 60.0, "ack_s": 8.0, "exchange_s": 60.0, "stagger_s": 6.0, "min_round_s": 10,
            "max_staleness": 16,
        },
    }
)  # fmt: skip
"""The waits of `peer/schema/runs/small.toml`, with the steps and tokens of a logical peer."""


class FieldPeer(LogicalPeer):
    """A peer whose steps all move the parts by about the same, so that what it gives can be told from its weight."""

    world: FieldWorld

    def connect(self) -> Streams:
        streams = super().connect()
        return LyingStreams(streams, self.world.liar) if self._lies else streams

    @property
    def _lies(self) -> bool:
        return self.world.liar is not None and self.name == LIAR

    def header(self, anchor: bytes) -> ContributionHeader:
        """With the data behind it, and the line of a home."""
        header = super().header(anchor)
        if header.root:
            first = WINDOWS * self.disk.head.round
            ranges = ((int(self.name[1:]), first, first + WINDOWS),)
            header = replace(header, ranges=ranges, bandwidth_bps=UPLOAD_BPS)
        return header

    def step_s(self) -> float:
        super().step_s()
        return TRAIN_S * self.world.rng.uniform(0.97, 1.0) / STEPS

    def train(self, steps: int, whole: float) -> Stepped:
        for part in range(OWNED):
            movement = steps * self.world.rng.randrange(99_000, 101_000)
            self.produced[part] += movement
            self._unsaved[part] += movement
            self.ledger.residual[part] += movement
        self._step, self._unoffered = self._step + steps, self._unoffered + steps
        return Stepped(steps=steps, tokens=STEP_TOKENS * steps, loss=None)

    def board_s(self) -> float:
        """Seldom: they know each other."""
        return TRAIN_S

    def _tick(self) -> None:
        """Seldom: rounds are long here."""
        self.later(TICK_S, self._tick)
        self.deliver(Tick(self.world.now))


class FieldWorld(World):
    """Four founders with the rules of a run on home lines; `lie` is what one of them does."""

    peers: list[LogicalPeer]

    def __init__(self, lie: Lie | None, seed: int = SEED) -> None:
        self.liar: Liar | None = None
        self._lie = lie
        if lie is not None:
            self.liar = Liar(lie, LIAR, lambda: self.peer(LIAR).driver.state, lambda: self.now, self.has_begun)
        self.learned: dict[bytes, dict[str, int]] = defaultdict(dict)
        """Tokens that each peer really has behind what it offered, by anchor."""
        super().__init__(seed, PEERS, parts=OWNED, restart_s=600.0, aggregation=AggregationRules(warmup_rounds=2))
        if lie is not None:
            self.liars.add(LIAR)

    def peer(self, name: str) -> LogicalPeer:
        return self.peers[self.index[name]]

    def has_begun(self) -> bool:
        return len(self.peers) == PEERS and self.peer(LIAR).disk.head.round >= FIRST_LIE

    @property
    def honest(self) -> list[LogicalPeer]:
        return [peer for peer in self.peers if peer.name != LIAR]

    def join(self) -> LogicalPeer:
        name = f"p{len(self.peers)}"
        self.index[name] = len(self.peers)
        self.history.append([])
        self.peers.append(FieldPeer(self, name))
        return self.peers[-1]

    def rules(self, name: str) -> Rules:
        """As the run's spec has them, for parts that are integers."""
        integers = super().rules(name)
        return replace(
            rules_of(SPEC, integers.parts, integers.keys, me=name), part_bytes=integers.part_bytes, mean_bytes=(),
            finite=integers.finite, restart_s=self.restart_s, organiser=integers.organiser,
            row_bytes=integers.row_bytes, aggregation=self.aggregation,
        )  # fmt: skip

    @property
    def run_spec(self) -> RunSpec:
        return SPEC

    def offered(self, peer: LogicalPeer, anchor: bytes, payloads: list[bytes]) -> None:
        super().offered(peer, anchor, payloads)
        header = peer.disk.header(anchor)
        assert header is not None
        self.learned[anchor][peer.name] = header.tokens

    # ---- what must hold ----

    def committing(self, peer: LogicalPeer, block: Any, head: ChainHead) -> None:
        """The liar's own chain is its own affair."""
        if peer.name != LIAR or self.liar is None:
            super().committing(peer, block, head)

    def check(self) -> None:
        """Of those who are honest."""
        everybody = self.peers
        self.peers = self.honest if self.liar is not None else everybody
        try:
            super().check()
        finally:
            self.peers = everybody


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a swarm with a lie."""

    told: Mapping[str, int]
    """How often which value was said."""
    rounds: int
    slowest_s: float
    """The longest time between two commits of an honest peer since the first lie."""
    share: float
    """The least weight that the honest had together in a layer of a round, over their share of what was learned."""
    lost: float
    """Of what an honest peer learned, the share that never counted."""
    failures: tuple[str, ...] = ()
    """What did not hold, in words."""


def run(lie: Lie, seed: int = SEED, led: int = LED) -> Outcome:
    """A swarm until the liar has led so many rounds with its lie."""
    usual = undisturbed(seed)
    world = FieldWorld(lie, seed)
    assert world.liar is not None
    with world.liar.tells_itself():
        failures = lived(world, led, usual.slowest_s)
    found = replace(measured(world), failures=failures, told=dict(world.liar.told))
    return replace(found, failures=(*failures, *_worse(found, usual), *_untold(world)))


@cache
def undisturbed(seed: int) -> Outcome:
    """The same swarm without a lie."""
    world = FieldWorld(None, seed)
    assert not lived(world, 2 * LED, 2 * TRAIN_S)
    return measured(world)


def lived(world: FieldWorld, led: int, round_s: float) -> tuple[str, ...]:
    """Run it; what went wrong meanwhile. Whatever an honest machine raises is a failure, too."""
    try:
        while not _has_led(world, led):
            world.scheduler.run_until(world.now + round_s / 4)
            since_s = world.now - max(at for peer in world.honest for at in (0.0, *world.committed_at[peer.name]))
            if since_s > STOPPED * round_s:
                return (f"stopped: no commit in {since_s:.0f} s",)
        world.check()
        for peer in world.honest:
            check_bounds(peer.driver.state)
    except Exception as error:
        at = extract_tb(error.__traceback__)[-1]
        return (f"{type(error).__name__}: {error} ({at.name}:{at.lineno})"[:300],)
    return ()


def _has_led(world: FieldWorld, led: int) -> bool:
    """Whether all have got past so many rounds of the liar; or past some in which it is not elected any more."""
    least = min(peer.disk.head.round for peer in world.honest)
    disk = world.honest[0].disk
    heads = [head for head in (disk.genesis, *disk.heads) if FIRST_LIE <= head.round < least]
    leads = sum(head.leader(0) == LIAR for head in heads)
    without = sum(LIAR not in head.electorate for head in heads)
    followed = len(heads) - leads
    return (min(leads, followed) >= led and _is_told(world, least)) or without >= WITHOUT or least >= ROUNDS_MOST


def _is_told(world: FieldWorld, round: int) -> bool:
    """Whether the lie was told before this round; or there was occasion enough."""
    if world.liar is None or round >= FIRST_LIE + OCCASIONS:
        return True
    return world.liar.first_told is not None and world.liar.first_told < round


def measured(world: FieldWorld) -> Outcome:
    gaps = [
        late - early
        for peer in world.honest
        for early, late in pairwise((*world.committed_at[peer.name][FIRST_LIE - 1 :], world.now))
    ]
    updates = [block.update for block in world.honest[0].disk.blocks if block.update.round > FIRST_LIE]
    books = [(peer.ledger.discounted[part], peer.produced[part]) for peer in world.honest for part in range(OWNED)]
    shares = (_honest_share(update, world.learned[update.parent]) for update in updates)
    return Outcome(
        told={}, rounds=min(peer.disk.head.round for peer in world.honest), slowest_s=max(gaps, default=0.0),
        share=min(shares, default=1.0), lost=max(lost / made for lost, made in books if made),
    )  # fmt: skip


def _untold(world: FieldWorld) -> Iterator[str]:
    """The rules that the liar broke and of which no honest peer told its people."""
    assert world.liar is not None
    reports = [event for peer in world.honest for event in peer.reports if isinstance(event, MessageRefused)]
    told = {event.rule for event in reports if event.about == LIAR}
    yield from (f"nobody is told that it broke {rule}" for rule in sorted(world.liar.broken.keys() - told) if rule)


def _worse(found: Outcome, usual: Outcome) -> Iterator[str]:
    """In what the honest are worse off."""
    if found.slowest_s > SLOWER * usual.slowest_s:
        yield f"a round takes {found.slowest_s:.0f} s, {found.slowest_s / usual.slowest_s:.2f} times the usual"
    if found.share < (1 - WEIGHED_LESS) * usual.share:
        yield f"the honest weigh {found.share:.3f} times what they learned, {usual.share:.3f} without the lie"
    if found.lost > usual.lost + LOST:
        yield f"{100 * found.lost:.1f} % of what an honest peer learned never counts"


def _honest_share(update: Update, learned: Mapping[str, int]) -> float:
    """In the layer where it is least."""
    theirs = [header.peer != LIAR for header in update.members]
    deserved = 1 - learned.get(LIAR, 0) / max(1, sum(learned.values()))
    return min(
        sum(weight for weight, honest in zip(row, theirs, strict=True) if honest) / max(1, sum(row)) / deserved
        for row in update.weights
    )
