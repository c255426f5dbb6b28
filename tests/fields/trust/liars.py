"""One member that knows the code and lies, in the logical swarm; and what must hold all the same.

Each attack is a function that takes pytest's monkeypatch and a `Stage`: it bends the product's own code for the liar
alone, from `Stage.from_s` on. An integer stands for a part, and is its own row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import pytest

from peer.consensus.protocol.block import VOID, Block, Update, Vote
from peer.consensus.protocol.encoding import digest_of, pack
from peer.consensus.protocol.messages import Message, Propose, VoteCast
from peer.consensus.rounds import collector, soundness
from peer.consensus.rounds.driver import Driver
from peer.consensus.rounds.interface import MeanChecked, ReducePart
from peer.consensus.rounds.transition import Transition
from peer.planning.simulate.memory_network import LinkModel
from peer.schema.events import AlertRaised
from peer.testing.memory_peer import IntegerSums, LogicalPeer, decoded, encoded
from peer.testing.memory_swarm import World

LIAR, VICTIM = "p0", "p1"
FALSE = 12_345
"""What a false mean is off by."""


@dataclass
class Stage:
    """A world with a liar in it."""

    world: World
    liar: str = LIAR
    from_s: float = 20.0
    second: frozenset[str] = frozenset({"p1", "p3", "p5"})
    """Who is shown the second of two proposals."""
    told: Counter[str] = field(default_factory=Counter)
    """How often the liar did what."""

    @classmethod
    def of(cls, peers: int, seed: int = 5, *, parts: int = 6, loss: float = 0.0, restart_s: float = 0.0) -> Stage:
        world = World(seed, peers, LinkModel(loss=loss), parts=parts, restart_s=restart_s)
        world.liars = {LIAR}
        return cls(world)

    @property
    def honest(self) -> list[LogicalPeer]:
        return [peer for peer in self.world.peers if peer.name != self.liar]

    @property
    def blocks(self) -> list[Block]:
        """The chain of the honest peer that is furthest."""
        return max(self.honest, key=lambda peer: peer.disk.head.round).disk.blocks

    def lies(self, me: str) -> bool:
        return me == self.liar and self.world.now >= self.from_s

    def run(self, seconds: float) -> int:
        """Rounds that the honest committed in so many more seconds; the books are in order and nobody is split."""
        before = len(self.blocks)
        self.world.scheduler.run_until(self.world.now + seconds)
        self.world.check()
        return len(self.blocks) - before

    def poisoned(self) -> list[int]:
        """Rounds with a mean that is not what the contributions behind it come to."""
        return [block.update.round for block in self.blocks if any(self._false_parts(block.update))]

    def _false_parts(self, update: Update) -> Iterator[int]:
        objects = {name: whole for peer in self.honest for name, whole in peer.disk.objects.items()}
        for part, (name, bits) in enumerate(zip(update.parts, update.contributors, strict=True)):
            if name == VOID:
                continue
            row = update.weights[0] if len(update.weights) == 1 else update.weights[part]
            counted = [header.peer for index, header in enumerate(update.members) if bits >> index & 1 and row[index]]
            total = sum(decoded(self._given(peer, update.parent, part)) for peer in counted)
            if decoded(objects[name]) // 16 != total:
                yield part

    def _given(self, member: str, anchor: bytes, part: int) -> bytes:
        """By whichever of its homes keeps that part."""
        homes = (home.name for home in self.world.homes_of(member))
        given = (self.world.contributions[home, anchor][part] for home in homes)
        return next(filter(None, given))

    def accused(self) -> set[str]:
        """Whom an honest peer took for a liar."""
        return {
            name for peer in self.honest for name in (*peer.driver.state.seen_lying, *peer.driver.state.equivocators)
        }

    def led_by_liar(self) -> int:
        return sum(block.update.coordinator == self.liar for block in self.blocks)

    def alerts(self) -> Counter[str]:
        found = (event for peer in self.honest for event in peer.reports if isinstance(event, AlertRaised))
        return Counter(event.code for event in found)


@cache
def honest_rounds(peers: int, seconds: float, seed: int = 5, parts: int = 6) -> int:
    """What the same world makes of so many seconds after `Stage.from_s` without a lie."""
    stage = Stage.of(peers, seed, parts=parts)
    stage.world.liars = set()
    stage.run(stage.from_s)
    return stage.run(seconds)


Attack = Callable[[pytest.MonkeyPatch, Stage], None]


# ---- false means ----


def owner_lies(mode: str) -> Attack:
    """As the owner of parts: `sum` has right rows under a false mean, `row` another row for the victim and the mean
    that fits, `flip` the victim's row with its sign turned, within its norm; `own` the same with its own row."""

    def attack(patch: pytest.MonkeyPatch, stage: Stage) -> None:
        reduce = IntegerSums.reduce

        def false(sums: IntegerSums, effect: ReducePart, done: Callable[[bytes], None]) -> None:
            target = LIAR if mode == "own" else VICTIM
            if not stage.lies(sums.disk.owner.name) or (mode != "sum" and target not in effect.rows):  # type: ignore[attr-defined]
                reduce(sums, effect, done)
                return

            def row(member: str) -> bytes:
                value = decoded(sums.parts[effect.place, member, effect.part][1])
                if member != target or mode == "sum":
                    return encoded(value)
                return encoded(value + FALSE) if mode == "row" else encoded(-value)

            total = sum(decoded(row(member)) for member in effect.members) + (FALSE if mode == "sum" else 0)
            whole = encoded(16 * total) + b"".join(map(row, effect.rows))
            stage.told["false means"] += 1
            digest = digest_of(whole)
            sums.disk.store(digest, whole, lambda: done(digest))

        patch.setattr(IntegerSums, "reduce", false)
        _sees_nothing_wrong(patch, stage)

    return attack


def coordinator_swaps(mode: str) -> Attack:
    """As the coordinator: other means than the owners' in its proposal. `bare` has no rows, `true` the true rows,
    `false` rows that fit the false mean."""

    def attack(patch: pytest.MonkeyPatch, stage: Stage) -> None:
        make_update = collector.make_update

        def false(turn: Transition, lead: Any, exchange: Any) -> Update:
            update = make_update(turn, lead, exchange)
            if not stage.lies(turn.me):
                return update
            disk = stage.world.peers[stage.world.index[turn.me]].disk
            part = next(part for part, name in enumerate(update.parts) if name != VOID)
            whole = disk.objects[update.parts[part]]
            mean, rows = decoded(whole) + 16 * FALSE, whole[8:]
            if mode == "bare":
                rows = bytes(len(rows))
            elif mode == "false":
                rows = encoded(decoded(rows) + FALSE) + rows[8:]
            forged = encoded(mean) + rows
            disk.objects[digest_of(forged)] = forged
            turn.set(held={**turn.state.held, digest_of(forged): len(forged)})
            stage.told["swapped"] += 1
            parts = (*update.parts[:part], digest_of(forged), *update.parts[part + 1 :])
            return replace(update, parts=parts)

        patch.setattr(collector, "make_update", false)
        _sees_nothing_wrong(patch, stage)

    return attack


def _sees_nothing_wrong(patch: pytest.MonkeyPatch, stage: Stage) -> None:
    """The liar's own machine votes for its lies."""
    on_checked = soundness.on_checked

    def blind(turn: Transition, event: MeanChecked) -> None:
        on_checked(turn, replace(event, fault="") if stage.lies(turn.me) else event)

    patch.setattr(soundness, "on_checked", blind)


# ---- two proposals ----


def equivocates(patch: pytest.MonkeyPatch, stage: Stage) -> None:
    """As the coordinator: one update for every other voter, another for the rest, and votes of all phases for both."""
    send, doubled = Driver._send, set[int]()

    def twice(driver: Driver, to: tuple[str, ...], message: Message) -> None:
        state = driver.state
        if not stage.lies(state.rules.me):
            send(driver, to, message)
            return
        if isinstance(message, VoteCast) and message.place.ballot in doubled:
            send(driver, tuple(peer for peer in to if peer not in stage.second), message)
            return
        if not isinstance(message, Propose) or message.certificate:
            send(driver, to, message)
            return
        ones = tuple(peer for peer in to if peer not in stage.second)
        others = tuple(peer for peer in to if peer in stage.second)
        send(driver, ones, message)
        update = replace(message.update, time=message.update.time + 1)
        keys, ballot = state.rules.keys, message.place.ballot
        signature = keys.sign("propose", pack((message.place.packed(), update.digest)))
        send(driver, others, Propose(message.place, update, signature))
        for phase in range(3):
            vote = Vote(LIAR, state.instance, ballot, update.digest, signature, phase=phase).signed(keys)
            send(driver, others, VoteCast(message.place, vote))
        doubled.add(ballot)
        stage.told["two proposals"] += 1

    look = soundness.look_for_another
    patch.setattr(soundness, "look_for_another", lambda turn, *what: not stage.lies(turn.me) and look(turn, *what))
    patch.setattr(Driver, "_send", twice)
