"""DiLoCo as the peers of a running swarm make it: of unequal speeds, and ahead while a round is being agreed.

Trainers, contribution files, codec, judge, mean, outer step and merge are the product's; only the network is missing,
and what would take time in it is a number of inner steps.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from peer.consensus.protocol.head import genesis_anchor
from peer.schema.spec import RunSpec
from peer.training.train.trainer import LocalTrainer
from tests.benchmarks.variants import (
    Outcome,
    Report,
    Rounds,
    is_measured,
    measured,
    names_of,
    outcome_of,
    plain,
)
from tests.stepping import never, steps_in_round, submit

SLOWER = (1, 1, 2, 4)
"""How many times slower than the first each peer is, in turn, where speeds are unequal."""


def fastest_steps(steps: int, slower: tuple[int, ...], peers: int) -> int:
    """Inner steps per round of a peer that is not slower, when all together make as many as with `steps` each."""
    times = [slower[index % len(slower)] for index in range(peers)]
    return round(steps * peers / sum(1 / each for each in times))


def train_paced(spec: RunSpec, report: Report, *, ahead: float = 0.0, slower: tuple[int, ...] = (1,)) -> Outcome:
    """Train `spec` to its last round.

    `ahead` is the share of a round's steps that are made while the round before it is agreed. Peer i makes a step in
    the time in which the fastest makes `slower[i]`; repeated for more peers.
    """
    names, rounds = names_of(spec), Rounds()
    with tempfile.TemporaryDirectory(prefix="homefires-") as folder:
        peers = [
            Paced(plain(spec, name, Path(folder) / name), names, ahead, slower[index % len(slower)])
            for index, name in enumerate(names)
        ]
        trainers = [peer.trainer for peer in peers]
        first, tokens = trainers[0], 0
        points = [measured(report, 0, 0, lambda: first.evaluate().loss)]
        anchor = genesis_anchor(spec.digest(), names, first.anchor.state_digest())
        for number in range(spec.run.rounds):
            began_at = time.process_time()
            for peer in peers:
                tokens += peer.train_and_freeze(anchor)
            decided = rounds.decide(trainers, anchor)
            if number + 1 < spec.run.rounds:
                for peer in peers:
                    tokens += peer.train_ahead()
            decided.apply_to(*trainers)
            anchor = decided.next_anchor
            rounds.seconds += time.process_time() - began_at
            if is_measured(spec, number + 1):
                points.append(measured(report, number + 1, tokens, lambda: first.evaluate().loss))
        return outcome_of(spec, trainers, points, rounds)


class Paced:
    """A trainer that makes as many steps as its speed allows in the time of a round, some of them ahead."""

    def __init__(self, trainer: LocalTrainer, names: tuple[str, ...], ahead: float, slower: int) -> None:
        self.trainer, self._names, self._ahead, self._slower = trainer, names, ahead, slower

    def train_and_freeze(self, anchor: bytes) -> int:
        """The steps of the round that were not made ahead; returns the tokens."""
        self.trainer.begin_round(self._names)
        tokens = self._train_to(self._part)
        submit(self.trainer, anchor)
        return tokens

    def train_ahead(self) -> int:
        """What is made of the next round's steps while this one is agreed; returns the tokens."""
        return self._train_to(int(self._ahead * self._part)) if self._ahead else 0

    @property
    def _part(self) -> int:
        """Its steps in the round that is in training. Halves are rounded up, so that unequal peers together make as
        many as equal ones."""
        return max(1, int(steps_in_round(self.trainer) / self._slower + 0.5))

    def _train_to(self, steps: int) -> int:
        """Whoever makes fewer steps walks through the same learning rates, as in `peer.node.lifecycle.pace`."""
        trainer, tokens = self.trainer, 0
        while trainer.progress.step < steps:
            whole = steps_in_round(trainer)
            position = min(whole - 1.0, trainer.progress.step * whole / self._part)
            tokens += trainer.step(position, never).tokens
        return tokens
