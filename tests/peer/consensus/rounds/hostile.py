"""A hand that sends one peer whatever it can: random events, most of them nearly right. See `test_hostile.py`."""

from __future__ import annotations

import struct
from collections import Counter, deque
from dataclasses import replace
from random import Random
from typing import Any

from dht.streams.base import MAX_FRAME_BYTES
from peer.consensus.aggregation.evidence import MEAN_ONLY, AggregationRules
from peer.consensus.aggregation.peer_history import NOTHING, NormStats, PeerHistory
from peer.consensus.protocol import merkle, norms, penalties
from peer.consensus.protocol.block import (
    MAX_BALLOT,
    VOID,
    Block,
    ContributionHeader,
    Restart,
    Roster,
    Stuck,
    Update,
    Vote,
)
from peer.consensus.protocol.encoding import digest_of, pack
from peer.consensus.protocol.messages import (
    BallotId,
    Blocks,
    EquivocationProof,
    GetBlocks,
    GetMeans,
    GetObjects,
    Heartbeat,
    MeanData,
    Message,
    Nack,
    ObjectData,
    Objection,
    PartData,
    Prepare,
    Promise,
    Propose,
    Reassign,
    Restarted,
    RosterSaid,
    RowDispute,
    Start,
    StuckSaid,
    VoteCast,
    decode,
    encode,
)
from peer.consensus.protocol.norms import PartNorms
from peer.consensus.protocol.refusals import MESSAGE
from peer.consensus.rounds.acceptor import PROPOSALS_KEPT, VOTES_KEPT
from peer.consensus.rounds.block_sync import MAX_HEARD
from peer.consensus.rounds.interface import (
    Applied,
    Effect,
    Input,
    Leaving,
    MeasureOwn,
    MeasurePart,
    ObjectStored,
    OwnMeasured,
    PartMeasured,
    PartReduced,
    Received,
    ReducePart,
    Send,
    SendMean,
    SendObjects,
    SendParts,
    StoreObject,
    Submitted,
    Tell,
    Tick,
    TrainingProgress,
)
from peer.consensus.rounds.machine import step
from peer.consensus.rounds.soundness import SHOWN_MOST
from peer.consensus.rounds.state import MemberState, State
from peer.schema.events import MessageRefused
from peer.testing.memory_peer import ModelKeys
from tests.peer.consensus.rounds.build import (
    HEAD,
    NAMES,
    NORMS,
    PART_BYTES,
    PAYLOADS,
    header,
    leaves_of,
    part_of,
    state_of,
    update,
    vote,
)

ME = "p0"
CROWD = (*NAMES, "x0", "x1", "x2")
GARBAGE = (b"", b"\xc1", b"8 bytes.", b"four", b"\x9c" + b"\xc0" * 12, *PAYLOADS)
HUGE = (1 << 63) - 1
COUNT = len(PART_BYTES)
ODD = (0.0, 1.0, 3e38, 1e300, float("inf"), float("nan"), -float("nan"))
ODD_NORMS = struct.pack(">9f", 0.0, 1.0, 3e38, -1.0, float("inf"), -float("inf"), float("nan"), 1e-45, -0.0)
JUDGES = (
    MEAN_ONLY,
    *(AggregationRules(rule=name, warmup_rounds=1) for name in ("edit", "centered-clip", "agreement")),
)
RECORD = PeerHistory("p1", 1, (NormStats(1.0, 0.0, 5, 0), NOTHING), b"8 bytes.")


class Hostile:
    """Random events for one peer's machine, most of them nearly right."""

    def __init__(self, seed: int) -> None:
        self.dice = Random(seed)
        self.now = 0.0
        self.state = state_of(ME)
        aggregation = self.dice.choice(JUDGES)
        self.state = replace(self.state, rules=replace(self.state.rules, aggregation=aggregation))
        self.answers: deque[Input] = deque()
        """What this peer's own disk and arithmetic will say, and what honest peers would."""
        self.sent: Counter[tuple[BallotId, type[Effect], str]] = Counter()
        """Parts to each peer in each ballot."""

    def run(self, events: int) -> None:
        for _ in range(events):
            self.now += self.dice.choice((0.0, 0.01, 0.3, 2.0))
            self._deliver(self._event())

    def _deliver(self, event: Input) -> None:
        self.state, effects = step(self.state, event)
        for effect in effects:
            self._check(effect)
            if isinstance(effect, Tell) and isinstance(effect.event, MessageRefused):
                assert effect.event.rule != MESSAGE, f"a handler raised: {effect.event.why}"
            if isinstance(effect, StoreObject):
                self.answers.append(ObjectStored(self.now, effect.digest, len(effect.payload)))
            elif isinstance(effect, MeasurePart):
                self.answers.append(self._measured(effect))
            elif isinstance(effect, MeasureOwn):
                figures = PartNorms(1.0, 0.5, 1.0 if effect.direction != VOID else None)
                self.answers.append(OwnMeasured(self.now, effect.anchor, effect.part, figures))
            elif isinstance(effect, ReducePart):
                assert sum(effect.weights) > 0
                digest, bits = digest_of(PAYLOADS[effect.part]), effect.contributors
                self.answers.append(PartReduced(self.now, effect.place, effect.part, bits, digest, effect.attempt))
            elif isinstance(effect, Send):
                for peer in filter(NAMES.__contains__, effect.to):
                    replies = self._honest_replies(peer, effect.message)
                    self.answers += [Received(self.now, peer, reply) for reply in replies]
        check_bounds(self.state)

    def _measured(self, effect: MeasurePart) -> PartMeasured:
        square = self.dice.choice(ODD) if self.dice.random() < 0.2 else 1.0
        return PartMeasured(self.now, effect.place, effect.giver, effect.part, square)

    def _honest_replies(self, peer: str, message: Message) -> list[Message]:
        """What an honest peer would say, mostly, so that the hostile ones meet rounds in all their stages."""
        exchange = self.state.exchange
        match message:
            case Prepare(place):
                if self.dice.random() < 0.8 or place.ballot == 0:
                    return [Promise(place, header(peer, anchor=place.anchor))]
                certificate = tuple(vote(name, update(), phase=1) for name in NAMES[:2])
                return [Promise(place, header(peer, anchor=place.anchor), (0, update().digest), certificate)]
            case Start(place) if exchange is not None:
                mine = [part for part, owner in enumerate(exchange.reducers) if owner == ME]
                parts = [PartData(place, 0, i, merkle.path(leaves_of(peer), i), part_of(peer, i)) for i in mine]
                theirs = [part for part, owner in enumerate(exchange.reducers) if owner == peer]
                means = [MeanData(place, 0, i, peer, 7, digest_of(PAYLOADS[i]), b"", PAYLOADS[i]) for i in theirs]
                return [*parts, *(mean.signed(ModelKeys(peer)) for mean in means)]
            case Propose(place, item, signature):
                name = self.state.head.instance
                plain = [Vote(peer, name, place.ballot, item.digest, signature, phase=phase) for phase in range(3)]
                return [VoteCast(place, one.signed(ModelKeys(peer))) for one in plain]
            case GetObjects(digests):
                known = [*GARBAGE, update().to_bytes()]
                return [ObjectData(b"", payload) for payload in known if digest_of(payload) in digests]
        return []

    def _check(self, effect: Effect) -> None:
        """What goes out can be read by others, and goes to peers with names."""
        if isinstance(effect, Send):
            frame = encode(effect.message)
            assert len(frame) <= MAX_FRAME_BYTES
            assert decode(frame) == effect.message
            assert set(effect.to) <= set(CROWD) - {ME}
        elif isinstance(effect, SendMean):
            assert effect.mean.digest in self.state.held
        elif isinstance(effect, SendParts) and self.state.exchange is not None:
            key = (effect.place, type(effect), effect.to)
            self.sent[key] += len(effect.parts)
            assert self.sent[key] <= 2 * COUNT
        elif isinstance(effect, SendObjects):
            assert len(effect.digests) <= 1024

    def _event(self) -> Input:
        dice, now = self.dice, self.now
        if self.answers and dice.random() < 0.5:
            return replace(self.answers.popleft(), now=now)
        match dice.randrange(12):
            case 0:
                return Tick(now)
            case 1:
                return TrainingProgress(now, dice.random())
            case 2:
                return Submitted(now, header(ME, anchor=self.state.head.anchor))
            case 3 if dice.random() < 0.2:
                return dice.choice((Leaving(now), Applied(now, self.state.head.anchor, digest_of(b"s"))))
        return Received(now, dice.choice(CROWD[1:]), self._message())

    # ---- messages ----

    def _message(self) -> Message:
        dice, place = self.dice, self._place()
        match dice.randrange(24):
            case 0:
                return Prepare(place)
            case 1:
                return Promise(place, self._pledge(), self._accepted(), self._certificate(place.ballot))
            case 2:
                return Nack(place, self._ballot())
            case 3:
                return Start(place, self._pledges())
            case 4 | 21 | 22:
                return self._part(place)
            case 5 | 6 | 7:
                return self._mean(place)
            case 8:
                return GetMeans(place, tuple(dice.choice((0, 1, 2, 2, 65536)) for _ in range(dice.randrange(9))))
            case 9:
                return self._propose(place)
            case 10:
                item, ballot = self._update(place.ballot), place.ballot
                return VoteCast(place, vote(dice.choice(CROWD), item, ballot, phase=dice.randrange(3)))
            case 11:
                return GetObjects(tuple(digest_of(dice.choice(GARBAGE)) for _ in range(dice.randrange(9))))
            case 12:
                payload = dice.choice(GARBAGE)
                return ObjectData(b"", dice.choice((payload, update().to_bytes(), pack(update().packed()[:-1]))))
            case 13:
                return GetBlocks((dice.choice((HEAD.anchor, digest_of(b"elsewhere"))),))
            case 14:
                return Blocks(tuple(self._block() for _ in range(dice.randrange(4))))
            case 15:
                parts = dice.choices((0, 1, 2, 2, 65535), k=dice.randrange(5))
                return Reassign(place, tuple((part, dice.choice(CROWD)) for part in parts))
            case 16:
                return Objection(place, *self._mean_named())
            case 17:
                part, digest, bits = self._mean_named()
                giver, known = dice.choice(NAMES), min(part, COUNT - 1)
                path, payload = merkle.path(leaves_of(giver), known), dice.choice((part_of(giver, known), b"other"))
                return RowDispute(place, part, digest, bits, path, payload, giver)
            case 18 | 19 | 23:
                proof = EquivocationProof(place, *(self._proposed(place) for _ in range(2)))
                word = dice.choice((StuckSaid(self._stuck()), Restarted(self._restart()), RosterSaid(self._roster())))
                return dice.choice((word, word, word, proof))
            case _:
                return self._head()

    def _ballot(self) -> int:
        return self.dice.choice((0, 0, 1, 2, 3, 4, 5, 40, MAX_BALLOT))

    def _place(self) -> BallotId:
        head, anchor = self.state.head, digest_of(b"elsewhere")
        right = BallotId(head.anchor, head.instance, self._ballot())
        lead = self.state.lead
        if lead is not None:
            right = self.dice.choice((right, replace(right, ballot=lead.ballot)))
        for exchange in (self.state.past, self.state.exchange):
            if exchange is not None:
                right = self.dice.choice((right, exchange.place))
        return self.dice.choice((right, right, right, replace(right, anchor=anchor), replace(right, instance=anchor)))

    def _pledge(self) -> ContributionHeader:
        dice, peer = self.dice, self.dice.choice(CROWD)
        anchor = dice.choice((self.state.head.anchor, self.state.head.anchor, digest_of(b"elsewhere")))
        root = dice.choice((merkle.root(leaves_of(peer)), merkle.root(leaves_of(peer)), b"", digest_of(b"root")))
        tokens, bandwidth = dice.choice((0, 100, HUGE)), dice.choice((0, 5, HUGE))
        return header(
            peer, anchor=anchor, root=root, tokens=tokens, bandwidth_bps=bandwidth, steps=HUGE,
            leaving=dice.random() < 0.2, ranges=((HUGE, HUGE, 0),), reports=self._reports(),
            away=dice.choice(((), NAMES[:1], CROWD)), norms=dice.choice((NORMS, NORMS, b"", bytes(24), ODD_NORMS)),
        )  # fmt: skip

    def _reports(self) -> tuple[tuple[str, str], ...]:
        accused = sorted(self.dice.sample(CROWD, self.dice.choice((0, 0, 1, 3))))
        return tuple((peer, "it lied " * self.dice.choice((1, 20))) for peer in accused)

    def _pledges(self) -> tuple[ContributionHeader, ...]:
        found = [self._pledge() for _ in range(self.dice.randrange(5))]
        if self.dice.random() < 0.8:
            found = [header(name, anchor=self.state.head.anchor) for name in self.dice.sample(CROWD, 3)]
            found.append(self.state.header or header(ME, anchor=self.state.head.anchor, root=b""))
            found = list({item.peer: item for item in sorted(found, key=lambda item: item.peer)}.values())
        return tuple(found)

    def _accepted(self) -> tuple[int, bytes] | None:
        named = self.dice.choice((*GARBAGE, update().to_bytes()))
        return self.dice.choice((None, (self._ballot(), digest_of(named))))

    def _part(self, place: BallotId) -> PartData:
        peer, part = self.dice.choice(CROWD), self.dice.choice((0, 1, 2, 3, 65536))
        exchange = self.state.exchange
        if exchange is not None and exchange.received:
            part = self.dice.choice((part, *exchange.received, *exchange.received))
        known = min(part, COUNT - 1)
        payload = self.dice.choice((part_of(peer, known), self.dice.choice(GARBAGE)))
        return PartData(place, self.dice.choice((0, 0, 1)), part, merkle.path(leaves_of(peer), known), payload)

    def _mean_named(self) -> tuple[int, bytes, int]:
        """(part, digest, contributors) of a mean that was proposed, or of none."""
        part = self.dice.choice((0, 1, 2, 65535))
        return part, digest_of(PAYLOADS[min(part, COUNT - 1)]), self.dice.choice((1, 3, 7, 7))

    def _certificate(self, ballot: int) -> tuple[Vote, ...]:
        item, voters = self._update(ballot), self.dice.sample(CROWD, self.dice.randrange(4))
        return tuple(vote(name, item, ballot, phase=self.dice.choice((1, 1, 2))) for name in voters)

    def _stuck(self) -> Stuck:
        dice, head = self.dice, self.state.head
        certificate, voter = self._certificate(0), dice.choice(CROWD)
        accepted = (0, certificate[0].update) if certificate else None
        plain = Stuck(voter, head.anchor, dice.choice((head.electorate, CROWD)), dice.choice((1, 1, 8)), accepted)
        return replace(plain, certificate=certificate).signed(ModelKeys(voter))

    def _restart(self) -> Restart:
        found = {stuck.voter: stuck for stuck in (self._stuck() for _ in range(3))}
        plain = Restart(self.state.head.anchor, self.dice.choice((1, 1, 2)), tuple(found.values()), True)
        return plain.signed(ModelKeys(self.dice.choice(CROWD)))

    def _roster(self) -> Roster:
        return Roster(self.dice.choice((0, 5, HUGE)), CROWD, NAMES).signed(ModelKeys(self.dice.choice(CROWD)))

    def _mean(self, place: BallotId) -> MeanData:
        exchange, part = self.state.exchange, self.dice.randrange(COUNT)
        reducer = self.dice.choice(CROWD) if exchange is None else exchange.reducers[part]
        payload = self.dice.choice((PAYLOADS[part], PAYLOADS[part], self.dice.choice(GARBAGE)))
        part = self.dice.choice((part, part, part, 65536))
        bits = self.dice.choice((0, 1, 3, 7, 1 << 63))
        mean = MeanData(place, self.dice.randrange(2), part, reducer, bits, digest_of(payload), b"", payload)
        return mean.signed(ModelKeys(reducer))

    def _update(self, ballot: int) -> Update:
        head, rules, dice, ballot = self.state.head, self.state.rules, self.dice, ballot % MAX_BALLOT
        members = tuple(header(name, anchor=head.anchor, reports=self._reports()) for name in NAMES)
        judgement = norms.judgement_of(rules, head, members)
        weights, scales, pulls = norms.table_of(judgement)
        leader = head.leader(ballot)
        honest = replace(
            update(), members=members, parent=head.anchor, round=head.round + 1, weight=head.weight + 3,
            coordinator=leader, time=dice.randrange(3), ballot=ballot, weights=weights,
            scales=scales, pulls=pulls, records=judgement.records,
        )  # fmt: skip
        honest = replace(honest, penalties=penalties.due(rules, head, honest, judgement.findings))
        name, value = dice.choice(
            (
                ("time", HUGE),
                ("parts", (digest_of(GARBAGE[3]), VOID, digest_of(GARBAGE[2]))),
                ("parts", (VOID,) * COUNT),
                ("parts", ()),
                ("contributors", (1 << 63,) * COUNT),
                ("contributors", ()),
                ("weights", ((0, 0, 0),)),
                ("weights", ((0, 0, 0), (1, 2, 3))),
                ("weights", ()),
                ("round", HUGE),
                ("elect", ()),
                ("members", ()),
                ("members", tuple(self._pledge() for _ in range(3))),
                ("records", (RECORD,) * dice.randrange(3)),
                ("scales", (0,) * dice.randrange(4)),
                ("pulls", (65_536,) * dice.randrange(4)),
                ("penalties", (("p0", "MISDECLARED", 0, HUGE, -1, "it lied"),) * dice.randrange(1, 4)),
            )
        )
        spoilt: dict[str, Any] = {name: value}
        return dice.choice((honest, honest, replace(honest, **spoilt)))

    def _propose(self, place: BallotId) -> Propose:
        item = self._update(place.ballot)
        leader = self.state.head.leader(place.ballot)
        signature = ModelKeys(leader).sign("propose", pack((place.packed(), item.digest)))
        return Propose(place, item, signature)

    def _proposed(self, place: BallotId) -> tuple[bytes, bytes]:
        digest = self.dice.choice((update().digest, digest_of(b"another")))
        leader = self.dice.choice((self.state.head.leader(place.ballot), self.dice.choice(CROWD)))
        return digest, ModelKeys(leader).sign("propose", pack((place.packed(), digest)))

    def _block(self) -> Block:
        item = self._update(0)
        return Block(item, tuple(vote(name, item) for name in self.dice.sample(CROWD, self.dice.randrange(4))))

    def _head(self) -> Heartbeat:
        dice, head = self.dice, self.state.head
        anchor = dice.choice((head.anchor, head.anchor, HEAD.anchor, digest_of(b"elsewhere")))
        return Heartbeat(
            anchor, dice.choice((0, 1, HUGE)), HUGE, dice.choice((b"", digest_of(b"t"))), dice.random() < 0.5, HUGE,
            HUGE, dice.random() < 0.2,
        )  # fmt: skip


def check_bounds(state: State) -> None:
    """No part of the state grows with what others send."""
    parts = len(state.rules.part_bytes)
    voters = len(state.head.electorate)
    assert len(state.early) <= 2 * parts
    assert len(state.proposals) <= PROPOSALS_KEPT + 8
    for votes in (state.checks, state.prepared, state.votes):
        assert sum(map(len, votes.values())) <= VOTES_KEPT * (voters + len(CROWD))
    assert len(state.objections) <= voters
    assert len(state.stucks) <= voters
    assert len(state.shown) <= SHOWN_MOST * len(CROWD)
    assert len(state.heard) <= MAX_HEARD
    assert len(state.asked) <= MAX_HEARD
    assert len(state.told) <= MAX_HEARD
    assert len(state.blocks) <= 64
    assert len(state.held) <= 64
    assert len(state.wanted.digests) <= max(parts, 1)
    assert len(state.head.electorate) <= 64
    assert len(state.head.convicted) <= len(CROWD)
    assert set(state.seen_lying) <= set(CROWD)
    if state.exchange is not None:
        assert len(state.exchange.means) <= parts
        assert len(state.exchange.received) <= parts
        assert len(state.exchange.again.received) <= parts
        assert len(state.exchange.again.redo) <= parts
        check_figures(state.exchange)
    if state.lead is not None:
        assert set(state.lead.promises) <= set(state.lead.asked)


def check_figures(exchange: MemberState) -> None:
    """Each part of each member is taken or refused, and of no other part anything is."""
    assert set(exchange.taken) | set(exchange.refused) <= set(exchange.received)
    for part, bits in exchange.received.items():
        assert bits & exchange.refused.get(part, 0) == 0
