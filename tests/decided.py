"""A decided round of trainers in one process: the product's arithmetic without the network."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from peer.averaging.codec import Codec, weighted_mean
from peer.averaging.contribution import Contribution
from peer.rounds.names import digest_of, next_anchor
from peer.rounds.update import VOID, Update, token_weights
from peer.train.trainer import Trainer


def contribution(trainer: Trainer, anchor: bytes) -> Contribution:
    """What the trainer froze for `anchor`, from its disk."""
    mine = Contribution.find(trainer._folder, anchor, trainer.parts, trainer._codec)
    assert mine is not None
    return mine


class DecidedRound:
    """The update from `anchor` that these trainers, all frozen, agree on, and the means behind it.

    The bytes of `left_out` trainers are in no part; `void` parts, and all when everybody is left out, have no mean.
    """

    def __init__(
        self,
        trainers: Sequence[Trainer],
        anchor: bytes,
        left_out: Collection[str] = (),
        void: Collection[int] = (),
    ) -> None:
        self.objects: dict[bytes, bytes] = {}
        first, codec = trainers[0], Codec(trainers[0].spec.codec.wire)
        offers = [contribution(trainer, anchor) for trainer in trainers]
        members = tuple(offer.pledge(trainer.me) for offer, trainer in zip(offers, trainers, strict=True))
        weights = token_weights(members, first.spec.tokens_cap, first.spec.round.max_staleness)
        chosen = [index for index, member in enumerate(members) if member.peer not in left_out]
        mask = sum(1 << index for index in chosen)
        parts = tuple(
            VOID if part in void or not chosen else self._mean(codec, [offers[index].payload(part) for index in chosen],
                                                 [weights[index] for index in chosen], sum(weights))
            for part in range(len(first.parts))
        )  # fmt: skip
        self.update = Update(
            parent=anchor, round=first.anchor.round + 1, time=0, members=members,
            elect=tuple(member.peer for member in members), parts=parts,
            contributors=tuple(0 if name == VOID else mask for name in parts), weights=(weights,), penalties=(),
            weight=len(members), ballot=0, coordinator=members[0].peer,
        )  # fmt: skip

    @property
    def next_anchor(self) -> bytes:
        """The anchor that this round leads to."""
        return next_anchor(self.update.parent, self.update.digest)

    def apply_to(self, *trainers: Trainer) -> None:
        """Every trainer applies the same update with the same bytes."""
        for trainer in trainers:
            trainer.apply(self.update, self.objects.__getitem__)

    def _mean(self, codec: Codec, payloads: list[bytes], weights: list[int], offered: int) -> bytes:
        """Average and encode one part as its reducer does; the digest of the mean's bytes."""
        values = [codec.decode(payload) for payload in payloads]
        mean = codec.encode(weighted_mean(values, weights, offered - sum(weights)))
        self.objects[digest_of(mean)] = mean
        return digest_of(mean)
