"""What one peer of a training swarm can do to the others: every attack is a `Role`, made from outside the product.

Three kinds: a contribution that is not what was learned; frames that are not what was meant; a reducer or
coordinator that lies. Whatever the attacker does not lie about it does as everybody else.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from dht.identity import RunKeys
from dht.streams.base import MakeFrame, OnFrame, Streams
from peer.consensus.protocol import merkle
from peer.consensus.protocol.block import WEIGHT_ONE, ContributionHeader, Update
from peer.consensus.protocol.encoding import digest_of, pack
from peer.consensus.protocol.messages import (
    MeanData,
    Message,
    PartData,
    Promise,
    Propose,
    Start,
    VoteCast,
    decode,
    encode,
)
from peer.consensus.protocol.norms import PartNorms
from peer.consensus.rounds.driver import ChainPort, ReductionPort
from peer.node.store.contributions import Contribution, WorkStats
from peer.schema.spec import RunSpec
from peer.training.outer.outer_step import LoadObject
from peer.training.train.trainer import LocalTrainer
from tests.stepping import steps_in_round
from tests.training_swarm import CPU, Hands, Role
from tests.vectors import fill, whole

# ---- contributions ----

Forge = Callable[["Forger", Tensor], Tensor]
"""From what was learned, flat (elements), to what is offered instead."""


class Forger(LocalTrainer):
    """Offers something else than what it has learned, and starts every round from the anchor like a newcomer."""

    def __init__(self, spec: RunSpec, me: str, folder: Path, forge: Forge) -> None:
        super().__init__(spec, me, folder, CPU, data_path=spec.data.path)
        self._forge = forge
        self.noise = torch.Generator().manual_seed(spec.run.seed)
        self.stolen: Tensor | None = None
        """What a replayer offers again and again."""

    @property
    def layer_slices(self) -> list[slice]:
        """Where the layers lie in the flat vector."""
        starts = [sum(self.layer_sizes[:index]) for index in range(len(self.layer_sizes))]
        return [slice(start, start + size) for start, size in zip(starts, self.layer_sizes, strict=True)]

    def _write_contribution(self, anchor: bytes, effort: WorkStats) -> None:
        learned = whole(self._backend.vectors.residual)
        fill(self._backend.vectors.residual, self._forge(self, learned))
        super()._write_contribution(anchor, effort)
        fill(self._backend.vectors.residual, learned)

    def apply(self, update: Update, load: LoadObject) -> float:
        """Nothing is owed to it: neither what it learned nor what it offered comes back."""
        given_up = super().apply(update, load)
        for residual in self._backend.vectors.residual:
            residual.zero_()
        self.progress.turns.work(self.anchor.round - 1).age.counted()
        self._begin_at_anchor(self.progress.turns.everything)
        return given_up


def times_100(trainer: Forger, learned: Tensor) -> Tensor:
    """A hundred times as much."""
    return 100 * learned


def nan(trainer: Forger, learned: Tensor) -> Tensor:
    """No number anywhere."""
    return torch.full_like(learned, float("nan"))


def infinite(trainer: Forger, learned: Tensor) -> Tensor:
    """Infinity everywhere."""
    return torch.full_like(learned, float("inf"))


def zeros(trainer: Forger, learned: Tensor) -> Tensor:
    """Nothing: a free rider."""
    return torch.zeros_like(learned)


def sign_flip(trainer: Forger, learned: Tensor) -> Tensor:
    """The opposite of what was learned, with its norm."""
    return -learned


def noise(trainer: Forger, learned: Tensor) -> Tensor:
    """Gaussian noise; every layer has the norm of what was learned."""
    random = torch.randn(learned.shape, generator=trainer.noise)
    for where in trainer.layer_slices:
        random[where] *= learned[where].norm() / random[where].norm()
    return random


def stale_replay(trainer: Forger, learned: Tensor) -> Tensor:
    """Honest up to the first round of full length; from then on what it learned in that one, as if it were fresh."""
    if trainer.stolen is None and steps_in_round(trainer) == trainer.spec.round.steps:
        trainer.stolen = learned
    return learned if trainer.stolen is None else trainer.stolen


class Forging(Role):
    """Contributes what `forge` makes of what it has learned."""

    honest = False

    def __init__(self, forge: Forge) -> None:
        self._forge = forge

    def trainer(self, spec: RunSpec, me: str, folder: Path) -> LocalTrainer:
        """One that forges."""
        return Forger(spec, me, folder, self._forge)


# ---- frames ----

Tamper = Callable[[str, Message], "bytes | None"]
"""Called with (receiver, message); gives the frame that is sent in its place, or none."""


class TamperedStreams:
    """Streams whose outgoing frames pass through `tamper`."""

    def __init__(self, inner: Streams, tamper: Tamper) -> None:
        self._inner, self._tamper = inner, tamper

    def send(self, to: str, frame: bytes) -> None:
        """Send what becomes of the frame."""
        tampered = self._tamper(to, decode(frame))
        if tampered is not None:
            self._inner.send(to, tampered)

    def send_bulk(self, to: str, make_frame: MakeFrame) -> None:
        """The same for a frame that is made later."""

        def make() -> bytes | None:
            frame = make_frame()
            return None if frame is None else self._tamper(to, decode(frame))

        self._inner.send_bulk(to, make)

    def listen(self, on_frame: OnFrame) -> None:
        """Set the listener."""
        self._inner.listen(on_frame)

    @property
    def unreachable(self) -> frozenset[str]:
        """Whom the inner streams cannot reach."""
        return self._inner.unreachable


class Tampering(Role):
    """Sends other frames than its driver gives it. Says what with `tamper`."""

    honest = False
    me: str
    keys: RunKeys

    def hands(self, hands: Hands) -> Hands:
        """Streams that pass through `tamper`."""
        self.me, self.keys = hands.me, hands.keys
        return dataclasses.replace(hands, streams=TamperedStreams(hands.streams, self.tamper))

    def tamper(self, to: str, message: Message) -> bytes | None:
        """What is sent in place of a message."""
        return encode(message)


class Oversized(Tampering):
    """Its parts come in frames beyond the cap of their type."""

    frame = bytes([PartData.code]) + bytes(PartData.cap_bytes)

    def tamper(self, to: str, message: Message) -> bytes | None:
        """One byte too many."""
        return self.frame if isinstance(message, PartData) else encode(message)


class PledgingTokens(Tampering):
    """Says that `tokens` stand behind its contribution. The machine that signs does not know, so this signs again."""

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens

    def header(self, header: ContributionHeader) -> ContributionHeader:
        """What its own machine hears, too, where a header can say it."""
        return dataclasses.replace(header, tokens=max(0, self._tokens))

    def tamper(self, to: str, message: Message) -> bytes | None:
        """Promises carry the header, and what it starts as coordinator."""
        if isinstance(message, Promise):
            message = dataclasses.replace(message, header=self._raised(message.header))
        elif isinstance(message, Start):
            message = dataclasses.replace(message, headers=tuple(self._raised(header) for header in message.headers))
        return encode(message)

    def _raised(self, header: ContributionHeader) -> ContributionHeader:
        if header.peer != self.me:
            return header
        return dataclasses.replace(header, tokens=self._tokens).signed(self.keys)


class ProposingWeights(Tampering):
    """As coordinator it proposes updates in which it weighs `own` and everybody else `other` over 65,536."""

    def __init__(self, own: int, other: int) -> None:
        self._own, self._other = own, other

    def tamper(self, to: str, message: Message) -> bytes | None:
        """Its proposals, signed as they are sent; its votes for what it did not send stay at home."""
        if isinstance(message, VoteCast) and message.vote.voter == self.me and message.place in self._mine:
            return None
        if not isinstance(message, Propose) or message.update.coordinator != self.me:
            return encode(message)
        self._mine.add(message.place)
        weighed = tuple(self._own if header.peer == self.me else self._other for header in message.update.members)
        update = dataclasses.replace(message.update, weights=tuple(weighed for _ in message.update.weights))
        return encode(self._signed(message, update))

    @functools.cached_property
    def _mine(self) -> set[Any]:
        """Where it has proposed."""
        return set()

    def _signed(self, message: Propose, update: Update) -> Propose:
        signature = self.keys.sign("propose", pack((message.place.packed(), update.digest)))
        return dataclasses.replace(message, update=update, signature=signature)


class TwoMeans(Tampering):
    """As reducer it sends every peer other bytes of the same mean, all signed."""

    def __init__(self) -> None:
        self._receivers: list[str] = []

    def tamper(self, to: str, message: Message) -> bytes | None:
        """The last byte, which no level of the codec is beyond, differs from receiver to receiver."""
        if not isinstance(message, MeanData) or not message.payload or message.reducer != self.me:
            return encode(message)
        if to not in self._receivers:
            self._receivers.append(to)
        last = message.payload[-1] ^ (1 + self._receivers.index(to))
        payload = message.payload[:-1] + bytes([last])
        return encode(dataclasses.replace(message, payload=payload, digest=digest_of(payload)).signed(self.keys))


# ---- disk and arithmetic ----


class Borrowed:
    """Has everything that `inner` has; what a subclass defines comes first."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class ShortParts(Borrowed):
    """A disk whose parts lack their last byte. Their Merkle root is `root`, so that only their length is wrong."""

    contribution: Callable[[bytes], Contribution | None]

    def my_part(self, anchor: bytes, part: int) -> tuple[tuple[bytes, ...], bytes] | None:
        """(Merkle path, bytes that are one too few)."""
        mine = self._inner.contribution(anchor)
        return None if mine is None else (merkle.path(self._leaves(mine), part), mine.payload(part)[:-1])

    def root(self, anchor: bytes) -> bytes:
        """What is pledged."""
        return merkle.root(self._leaves(self._inner.contribution(anchor)))

    def _leaves(self, mine: Contribution) -> list[bytes]:
        return [digest_of(mine.payload(part)[:-1]) for part in range(len(mine.leaves))]


class WholeAgain(Borrowed):
    """Arithmetic that can take a short part of its own: the byte that is missing is 0."""

    def keep(self, effect: Any) -> None:
        """Keep a part of the length that its codec gives."""
        self._inner.keep(dataclasses.replace(effect, payload=self._whole(effect.payload)))

    def measure(self, payload: bytes, *more: Any) -> None:
        """Measure one likewise."""
        self._inner.measure(self._whole(payload), *more)

    def check(self, effect: Any, me: str, whole: bytes, mine: bytes | None, *more: Any) -> None:
        """Check a mean likewise."""
        self._inner.check(effect, me, whole, None if mine is None else self._whole(mine), *more)

    def _whole(self, payload: bytes) -> bytes:
        return payload + bytes(len(payload) % 2)  # no codec gives an odd number of bytes


class WrongShapes(Role):
    """Its parts have another length than the model's, and so it has pledged them."""

    honest = False
    _disk: ShortParts

    def hands(self, hands: Hands) -> Hands:
        """A disk that gives short parts."""
        self._disk = ShortParts(hands.disk)
        disk: ChainPort = self._disk
        arithmetic: ReductionPort = WholeAgain(hands.arithmetic)
        return dataclasses.replace(hands, disk=disk, arithmetic=arithmetic)

    def header(self, header: ContributionHeader) -> ContributionHeader:
        """The root of the short parts."""
        return dataclasses.replace(header, root=self._disk.root(header.anchor))


class NotedParts(Borrowed):
    """A disk that remembers what it has given of this peer's own contributions."""

    def __init__(self, inner: ChainPort) -> None:
        super().__init__(inner)
        self.given: set[bytes] = set()
        """Digests."""

    def my_part(self, anchor: bytes, part: int) -> tuple[tuple[bytes, ...], bytes] | None:
        """As the disk itself."""
        found: tuple[tuple[bytes, ...], bytes] | None = self._inner.my_part(anchor, part)
        if found is not None:
            self.given.add(digest_of(found[1]))
        return found


class LyingScales(Borrowed):
    """Arithmetic that finds the norms of its own parts to be `factor` times what they are."""

    def __init__(self, inner: ReductionPort, own: NotedParts, factor: float) -> None:
        super().__init__(inner)
        self._own, self._factor = own, factor

    def measure(self, payload: bytes, direction: bytes, done: Callable[[PartNorms], None]) -> None:
        """Measure a part; the truth about those of others."""
        factor = self._factor if digest_of(payload) in self._own.given else 1.0

        def lie(figures: PartNorms) -> None:
            done(dataclasses.replace(figures, square=figures.square * factor**2, dot=figures.dot * factor))

        self._inner.measure(payload, direction, lie)


class MisMeasuring(Role):
    """It declares norms of its own contribution that are `factor` times what they are."""

    honest = False

    def __init__(self, factor: float) -> None:
        self._factor = factor

    def hands(self, hands: Hands) -> Hands:
        """Scales that lie."""
        disk = NotedParts(hands.disk)
        arithmetic: ReductionPort = LyingScales(hands.arithmetic, disk, self._factor)
        return dataclasses.replace(hands, disk=cast("ChainPort", disk), arithmetic=arithmetic)


HUGE = 1 << 62

ATTACKS: dict[str, Callable[[], Role]] = {
    "x100": lambda: Forging(times_100),
    "nan": lambda: Forging(nan),
    "inf": lambda: Forging(infinite),
    "zeros": lambda: Forging(zeros),
    "sign-flip": lambda: Forging(sign_flip),
    "noise": lambda: Forging(noise),
    "stale-replay": lambda: Forging(stale_replay),
    "wrong-shapes": WrongShapes,
    "oversized": Oversized,
    "tokens-negative": lambda: PledgingTokens(-1),
    "tokens-huge": lambda: PledgingTokens(HUGE),
    "weights-negative": lambda: ProposingWeights(-1, -1),
    "weights-huge": lambda: ProposingWeights(HUGE, HUGE),
    "weights-greedy": lambda: ProposingWeights(WEIGHT_ONE, 0),
    "two-means": TwoMeans,
    "norms-low": lambda: MisMeasuring(0.01),
    "norms-high": lambda: MisMeasuring(100.0),
}
"""By name, each made anew for a peer."""
