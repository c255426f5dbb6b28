"""A decided round of trainers in one process: the product's arithmetic and judgement without the network."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Executor, Future
from typing import Any

from dht.errors import DiskFull
from peer.consensus.aggregation.aggregate import AggregationResult
from peer.consensus.codec.codec import Codec
from peer.consensus.codec.run_rules import rules_of
from peer.consensus.protocol import norms
from peer.consensus.protocol.block import VOID, ContributionHeader, Update
from peer.consensus.protocol.head import ChainHead, next_anchor
from peer.consensus.protocol.messages import BallotId
from peer.consensus.protocol.norms import PartNorms
from peer.consensus.protocol.rules import Rules
from peer.consensus.rounds.interface import BufferPart, ReducePart
from peer.network.link.reduction import ReductionWorker
from peer.node.store.contributions import Contribution
from peer.testing.memory_peer import ModelKeys
from peer.training.train.trainer import LocalTrainer


def contribution(trainer: LocalTrainer, anchor: bytes, round: int | None = None) -> Contribution:
    """What the trainer froze for `anchor`, from its disk; `round` of that, if the trainer is not there any more."""
    if hasattr(trainer, "contribution"):
        of_cluster: Contribution = trainer.contribution(anchor)
        return of_cluster
    parts = trainer.progress.turns.parts(trainer.anchor.round if round is None else round)
    mine = Contribution.find(trainer._folder, anchor, parts, trainer._codec)
    assert mine is not None
    return mine


class DecidedRound:
    """The update from `anchor` that these trainers, all frozen, agree on, and the means behind it.

    The bytes of `left_out` trainers are in no part; `void` parts, and all when everybody is left out, have no mean.
    `before` is the round that led to `anchor`: what is known of its members, and the means that contributions are
    compared with. Without it nothing is known, as in the first round of a run. `state` is the digest that the update
    names of where the trainers stand. `voters` have earned a vote; without them all have.
    """

    update: Update
    objects: dict[bytes, bytes]
    """The encoded means by digest."""
    judgement: AggregationResult
    measuring_s: float
    """Seconds of processor time to measure all contributions, as their givers do together."""
    judging_s: float
    """The same to judge them once."""

    def __init__(
        self,
        trainers: Sequence[LocalTrainer],
        anchor: bytes,
        left_out: Collection[str] = (),
        void: Collection[int] = (),
        before: DecidedRound | None = None,
        state: bytes = b"",
        voters: Collection[str] = (),
    ) -> None:
        assert before is None or before.next_anchor == anchor, "another round led to this anchor"
        first = trainers[0]
        offers = [contribution(trainer, anchor) for trainer in trainers]
        members = tuple(offer.header(trainer.me) for offer, trainer in zip(offers, trainers, strict=True))
        names = tuple(member.peer for member in members)
        self.head = head = ChainHead(
            anchor=anchor, round=first.anchor.round, weight=0, electorate=tuple(sorted(voters or names)),
            members=tuple(sorted(names)), records=before.update.records if before else (),
        )  # fmt: skip
        present = sum(1 << index for index, name in enumerate(names) if name not in left_out)
        self.rules = rules = rules_of(first.spec, first.parts, ModelKeys(first.me), me=first.me)
        self.before = before
        bench = Bench(rules, Codec(first.spec.codec.wire), head, members, offers, present, self._last(rules.fragments))

        began_at = time.process_time()
        members = bench.declare()
        self.measuring_s = time.process_time() - began_at
        self.judgement = norms.judgement_of(rules, head, members)
        self.judging_s = time.process_time() - began_at - self.measuring_s

        parts = range(len(rules.fragment(head.round).parts))
        means = {part: bench.mean(part, self.judgement) for part in parts if part not in void}
        weights, scales, pulls = norms.table_of(self.judgement)
        self.objects = bench.objects.stored
        self.update = Update(
            parent=anchor, round=head.round + 1, time=0, members=members, elect=head.electorate,
            parts=tuple(means[part][0] if part in means else VOID for part in parts),
            contributors=tuple(means[part][1] if part in means else 0 for part in parts),
            weights=weights, penalties=(), weight=len(members), ballot=0,
            coordinator=head.leader(0), scales=scales,
            pulls=pulls, records=self.judgement.records, state=state,
        )  # fmt: skip

    def _last(self, fragments: int) -> DecidedRound | None:
        """The round before that averaged the same fragment."""
        last = self.before
        for _ in range(fragments - 1):
            last = last.before if last else None
        return last

    @property
    def next_anchor(self) -> bytes:
        """The anchor that this round leads to."""
        return next_anchor(self.update.parent, self.update.digest)

    def apply_to(self, *trainers: LocalTrainer) -> None:
        """Every trainer applies the same update with the same bytes."""
        for trainer in trainers:
            trainer.apply(self.update, self.objects.__getitem__)


class Bench:
    """One reducer of all parts, which holds the bytes of those who are `present`."""

    def __init__(
        self,
        rules: Rules,
        codec: Codec,
        head: ChainHead,
        members: tuple[ContributionHeader, ...],
        offers: Sequence[Contribution],
        present: int,
        last: DecidedRound | None,
    ) -> None:
        self._round, self._fragment = head.round, rules.fragment(head.round)
        self._rules, self._members, self._offers, self._present = rules, members, offers, present
        self._chosen = [index for index in range(len(members)) if present >> index & 1]
        self._place = BallotId(head.anchor, head.instance, 0)
        self._directions = last.update.parts if last else (VOID,) * len(self._fragment.parts)
        self.objects = Memory(last.objects if last else {})
        self._reducer = ReductionWorker(codec, self.objects, AtOnce(), lambda call: call())

    def declare(self) -> tuple[ContributionHeader, ...]:
        """The members, each with what it says of its own contribution."""
        parts = range(len(self._fragment.parts))
        self._members = tuple(
            dataclasses.replace(
                header, norms=norms.declare(self._fragment, {part: self._figures(part, index) for part in parts})
            )
            for index, header in enumerate(self._members)
        )
        return self._members

    def _figures(self, part: int, index: int) -> PartNorms:
        found: list[PartNorms] = []
        self._reducer.measure(self._offers[index].payload(part), self._directions[part], found.append)
        return found[0]

    def mean(self, part: int, judgement: AggregationResult) -> tuple[bytes, int]:
        """Digest of the mean of a part, or void, and the bits of its contributors.

        If nobody counts, those who are here were judged all the same; but not if others, who are not here, do count.
        """
        layer = self._fragment.rows[part]
        row = judgement.weights[layer]
        counting = [index for index in self._chosen if row[index]]
        if not counting:
            return VOID, 0 if any(row) else self._present
        names = tuple(self._members[index].peer for index in counting)
        weights = tuple(row[index] for index in counting)
        behind = [self._members[index] for index in self._chosen]
        for header, index in zip(behind, self._chosen, strict=True):
            self._reducer.keep(BufferPart(self._place, header.peer, part, self._offers[index].payload(part)))
        digests: list[bytes] = []
        self._reducer.reduce(
            ReducePart(
                self._place, part, self._present, names, weights, 0, sum(row) - sum(weights), judgement.scales[layer],
                judgement.pulls[layer], self._directions[part], tuple(header.peer for header in behind),
                tuple(norms.declared_of_part(header, part) for header in behind),
            ),
            digests.append,
        )  # fmt: skip
        return (digests[0], self._present) if digests else (VOID, 0)


class Memory:
    """A disk that is never slow: the means of this round are written, the last ones of the fragment can be read."""

    def __init__(self, before: dict[bytes, bytes]) -> None:
        self.stored: dict[bytes, bytes] = {}
        self._before = before

    def store(self, digest: bytes, payload: bytes, done: Callable[[], None]) -> None:
        """Keep it."""
        self.stored[digest] = payload
        done()

    def load(self, digest: bytes) -> bytes | None:
        """A mean of the round before."""
        return self._before.get(digest)


class AtOnce(Executor):
    """Does what it is told before it returns."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """`fn` is done already."""
        done: Future[Any] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except DiskFull as error:
            done.set_exception(error)
        return done
