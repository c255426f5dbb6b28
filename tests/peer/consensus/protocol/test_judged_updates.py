"""What a voter computes again of a judged update, what a rolled-back layer is, and how the coordinator makes both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from peer.consensus.aggregation.evidence import MEAN_ONLY, AggregationRules
from peer.consensus.protocol.block import VOID, WEIGHT_ONE, PartOutcome, SignedNorms, Update, part_outcomes
from peer.consensus.protocol.encoding import digest_of
from peer.consensus.protocol.head import ChainHead
from peer.consensus.protocol.messages import Propose
from peer.consensus.protocol.norms import bits_of
from peer.consensus.rounds.interface import Input, ObjectStored, PartReduced, Received, ReducePart, Tick
from peer.consensus.rounds.reassignment import reduce
from peer.consensus.rounds.state import BallotPhase, State
from peer.consensus.rounds.transition import Transition
from peer.testing.memory_peer import Ledger, encoded
from tests.peer.consensus.rounds.ballot import (
    FIGURES,
    LEADER,
    OTHERS,
    PLACE,
    figures_for,
    gathering,
    mean_of,
    measuring,
    mine,
    norms_of,
    part_from,
    run,
)
from tests.peer.consensus.rounds.build import (
    HEAD,
    NAMES,
    ONE,
    PARTS,
    PAYLOADS,
    block,
    fault_of,
    header,
    measured_by_all,
    proposal_signature,
    state_of,
    update,
)

ALL = tuple(header(name) for name in NAMES)
EDIT = AggregationRules(rule="edit", warmup_rounds=1)
NAN = bits_of(float("nan"))
SPOILT = 1
"""The layer that is rolled back in the tests below."""


def judged(aggregation: AggregationRules = EDIT, **changes: Any) -> Update:
    """An honest update of three members of whom everything was measured."""
    fields: dict[str, Any] = {"measured": measured_by_all(ALL), "contributors": (7, 7, 7)} | changes
    return update(members=ALL, aggregation=aggregation, **fields)


def all_spoilt(*layers: int) -> tuple[SignedNorms, ...]:
    """Measurements in which these layers are not numbers, whoever gave them."""
    found = measured_by_all(ALL)
    spoilt = measured_by_all(ALL, squares=(NAN,) * 3)
    return tuple(bad if bad.rows[0].layer in layers else good for good, bad in zip(found, spoilt, strict=True))


def rolled_back(*layers: int, **changes: Any) -> Update:
    """An honest update in which these layers are rolled back."""
    parts = tuple(VOID if part in layers else digest_of(payload) for part, payload in enumerate(PAYLOADS))
    return judged(**{"measured": all_spoilt(*layers), "parts": parts} | changes)


def voter(aggregation: AggregationRules = EDIT, head: ChainHead = HEAD) -> State:
    state = state_of("p0", head=head)
    return replace(state, rules=replace(state.rules, aggregation=aggregation))


def fault(item: Update, aggregation: AggregationRules = EDIT) -> str:
    return fault_of(voter(aggregation), item)


# ---- what voters compute again ----


def changed(**changes: Any) -> Callable[[], Update]:
    return lambda: replace(judged(), **changes)


def penny(item: Update) -> tuple[int, ...]:
    first, second, *rest = item.weights[0]
    return (first - 1, second + 1, *rest)


WEIGHTS = "its weights are not those that its measurements give"
RECORDS = "its records do not follow from those before"
CONTRIBUTORS = "its contributors do not fit its parts, headers and weights"
PENALTIES = "its penalties are not those that are due"
PARTS_LISTED, LAYERS_LISTED, SIGNED = "the parts that it reduces", "the layers that it reduces", "has not signed"
STAT = judged().records[0].stats[0]
FIRST = judged().measured[0]
ROW = FIRST.rows[0]
FOUND = rolled_back(SPOILT).penalties

TAMPERED: dict[str, tuple[Callable[[], Update], str]] = {
    "a weight": (lambda: replace(judged(), weights=(penny(judged()),)), WEIGHTS),
    "a row of weights for each layer": (lambda: replace(judged(), weights=judged().weights * 3), WEIGHTS),
    "a scale": (changed(scales=(WEIGHT_ONE, WEIGHT_ONE, 1)), WEIGHTS),
    "scales that scale nothing": (changed(scales=(WEIGHT_ONE,) * 3), WEIGHTS),
    "a pull": (changed(pulls=(1, 0, 0)), WEIGHTS),
    "pulls that pull nothing": (changed(pulls=(0, 0, 0)), WEIGHTS),
    "no records": (changed(records=()), RECORDS),
    "a record less": (lambda: replace(judged(), records=judged().records[1:]), RECORDS),
    "records in another order": (lambda: replace(judged(), records=judged().records[::-1]), RECORDS),
    "another mean in a record": (
        lambda: with_record(stats=(replace(STAT, mean=STAT.mean * 2), *judged().records[0].stats[1:])),
        RECORDS,
    ),
    "another count in a record": (
        lambda: with_record(stats=(replace(STAT, count=STAT.count + 1), *judged().records[0].stats[1:])),
        RECORDS,
    ),
    "another root in a record": (lambda: with_record(roots=b"8 bytes."), RECORDS),
    "a record of another round": (lambda: with_record(seen=5), RECORDS),
    "no measurements": (changed(measured=()), WEIGHTS + "|" + RECORDS),
    "measurements of one reducer less": (lambda: replace(judged(), measured=judged().measured[1:]), RECORDS),
    "measurements out of order": (lambda: replace(judged(), measured=judged().measured[::-1]), "not in order"),
    "measurements with another square": (lambda: with_measured(rows=(replace(ROW, squares=(0, 0, 0)),)), SIGNED),
    "measurements with another list": (lambda: with_measured(received=((FIRST.received[0][0], 3),)), "does not hold"),
    "measurements of a part more": (lambda: with_measured(received=((0, 7), (1, 7), (2, 7))), PARTS_LISTED),
    "measurements without rows": (lambda: with_measured(rows=()), LAYERS_LISTED),
    "measurements of another ballot": (lambda: replace(judged(), measured=measured_by_all(ALL, 3)), "reduces|signed"),
    "a penalty that nobody found": (changed(penalties=(("p1", "ANOMALY", 0, 2, -1, "I say so"),)), PENALTIES),
    "no penalty where one was found": (lambda: replace(rolled_back(SPOILT), penalties=()), PENALTIES),
    "a milder penalty": (
        lambda: replace(rolled_back(SPOILT), penalties=tuple((*p[:2], 1, *p[3:]) for p in FOUND)),
        PENALTIES,
    ),
    "a mean where all was refused": (
        lambda: replace(rolled_back(SPOILT), parts=judged().parts),
        CONTRIBUTORS,
    ),
    "refused work that is not said to be": (lambda: rolled_back(SPOILT, contributors=(7, 0, 7)), CONTRIBUTORS),
    "refused work of some only": (lambda: rolled_back(SPOILT, contributors=(7, 3, 7)), CONTRIBUTORS),
    "void where nothing was refused": (lambda: judged(parts=(VOID, *judged().parts[1:])), CONTRIBUTORS),
}


def with_record(**changes: Any) -> Update:
    first, *rest = judged().records
    return replace(judged(), records=(replace(first, **changes), *rest))


def with_measured(**changes: Any) -> Update:
    return replace(judged(), measured=(replace(FIRST, **changes), *judged().measured[1:]))


def test_honest_judged_updates_are_valid() -> None:
    """All of the manipulations start from them; they differ in weights, and in what was found."""
    assert fault(judged()) == ""
    assert fault(rolled_back(SPOILT)) == ""
    assert fault(rolled_back(0, 1, 2)) == ""
    assert fault(judged(MEAN_ONLY), MEAN_ONLY) == ""
    assert len(judged().records) == 3
    assert [row[:2] for row in FOUND] == [(name, "NONFINITE") for name in NAMES]
    assert rolled_back(SPOILT).weights[SPOILT] == (0, 0, 0)


@pytest.mark.parametrize("what", TAMPERED)
def test_a_tampered_update_is_refused_with_its_own_words(what: str) -> None:
    """Weights, scales, pulls, records, measurements and penalties follow from each other."""
    make, words = TAMPERED[what]
    found = fault(make())
    assert any(word in found for word in words.split("|")), found


def test_judged_by_other_standards_is_refused() -> None:
    """A coordinator cannot choose how it judges."""
    assert fault(judged(MEAN_ONLY), EDIT) == RECORDS
    assert fault(judged(EDIT), MEAN_ONLY) == RECORDS


def test_records_go_on_from_those_before() -> None:
    """The next head has them; an update that starts from none is refused there."""
    after = HEAD.after(judged())
    assert after.records == judged().records
    assert fault_of(voter(EDIT, replace(HEAD, records=after.records)), judged()) in (WEIGHTS, RECORDS)


def test_nobody_votes_for_a_tampered_update() -> None:
    """As it comes from the owner of the ballot, with its signature."""
    for item, votes in ((judged(), 1), (replace(judged(), scales=(0, 0, 0)), 0)):
        name = next(name for name in NAMES if name != LEADER)
        state = state_of(name, held={digest_of(payload): len(payload) for payload in PAYLOADS})
        state = replace(state, rules=replace(state.rules, aggregation=EDIT))
        state, _ = run(state, Received(1.0, LEADER, Propose(PLACE, item, proposal_signature(item))))
        assert (state.acceptor.checked is not None) == bool(votes)


# ---- layers that are rolled back ----


def test_a_part_is_rolled_back_only_if_all_that_came_was_refused() -> None:
    """Void without contributors is another thing: nobody gave it in time."""
    item = rolled_back(SPOILT)
    assert [item.rolled_back(part) for part in range(3)] == [part == SPOILT for part in range(3)]
    void = replace(judged(), parts=(VOID, *judged().parts[1:]), contributors=(0, 7, 7))
    assert not any(void.rolled_back(part) for part in range(3))


def test_refused_work_was_judged_and_does_not_come_back() -> None:
    """The residual of every contributor is rid of it; whose part did not come keeps it."""
    assert part_outcomes(rolled_back(SPOILT), "p1", submitted=True) == (PartOutcome.COUNTED,) * 3
    some = replace(rolled_back(SPOILT), contributors=(7, 0b101, 7))
    assert part_outcomes(some, "p1", submitted=True)[SPOILT] is PartOutcome.MISSED
    ledger = Ledger(HEAD.anchor, residual=[80, 80, 80])
    objects = {name: encoded(160) for name in rolled_back(SPOILT).parts if name != VOID}
    ledger.apply("p1", rolled_back(SPOILT), [encoded(80)] * 3, objects)
    assert ledger.residual == [0, 0, 0]
    assert ledger.theta == [160, 0, 160]


def test_a_round_in_which_all_was_refused_is_a_round() -> None:
    """It commits, the chain goes on, and every peer that gave is named."""
    item = rolled_back(0, 1, 2)
    assert item.parts == (VOID,) * 3
    assert item.weights == ((0, 0, 0),)
    assert Update.from_bytes(item.to_bytes()) == item
    assert HEAD.after(block(item).update).round == 1


# ---- how the coordinator makes them ----


def led(*spoilt: int, aggregation: AggregationRules = EDIT) -> tuple[State, list[object]]:
    """The coordinator with all NORMS; those of the `spoilt` layers are not numbers."""
    state = gathering()
    state = replace(state, rules=replace(state.rules, aggregation=aggregation))
    events: list[Input] = []
    for name in OTHERS:
        received = tuple((part, 7) for part in mine(state, name))
        events.append(norms_of(state, name, received, squares=(NAN if received[0][0] in spoilt else ONE,) * 3))
    assert state.exchange is not None
    (own,) = mine(state, LEADER)
    assert own not in spoilt
    state, effects = measuring(state, *(part_from(name, own) for name in OTHERS), *events)
    return replace(state, held={digest_of(payload): len(payload) for payload in PAYLOADS}), effects


def others_parts() -> tuple[int, ...]:
    return tuple(part for name in OTHERS for part in mine(gathering(), name))


def proposed(state: State) -> Update:
    assert state.lead is not None
    assert state.lead.stage is BallotPhase.PROPOSING
    (proposal,) = state.proposals.values()
    assert fault_of(replace(state, lead=None), proposal.update) == ""
    return proposal.update


def test_a_rolled_back_part_is_not_waited_for() -> None:
    """No mean of it can come; the update names all whose bytes were refused, and nobody is asked again."""
    spoilt, sound = others_parts()
    (own,) = mine(gathering(), LEADER)
    state, effects = led(spoilt)
    assert state.lead is not None
    assert state.lead.expected == {own, sound}
    assert [item.part for item in effects if isinstance(item, ReducePart)] == [own]
    state, _ = run(state, PartReduced(4.4, PLACE, own, 7, digest_of(PAYLOADS[own])), mean_of(state, sound, 7))
    item = proposed(state)
    assert item.parts[spoilt] == VOID
    assert item.contributors == (7, 7, 7)
    assert item.rolled_back(spoilt)
    assert {row[:2] for row in item.penalties} == {(name, "NONFINITE") for name in NAMES}


def test_a_mean_of_what_was_refused_is_not_proposed() -> None:
    """A reducer that averages what counts nothing would else make every proposal invalid."""
    spoilt, sound = others_parts()
    (own,) = mine(gathering(), LEADER)
    state, _ = led(spoilt)
    state, _ = run(
        state, mean_of(state, spoilt, 7), PartReduced(4.4, PLACE, own, 7, digest_of(PAYLOADS[own])),
        mean_of(state, sound, 7),
    )  # fmt: skip
    assert proposed(state).parts[spoilt] == VOID


def test_what_one_gives_is_refused_alone() -> None:
    """Its weight in that layer is 0, it stays among the contributors, and the mean is that of the others."""
    state = gathering()
    state = replace(state, rules=replace(state.rules, aggregation=EDIT))
    (own,) = mine(state, LEADER)
    norms = []
    for name in OTHERS:
        received = tuple((part, 7) for part in mine(state, name))
        norms.append(norms_of(state, name, received))
    honest, liar = OTHERS
    state, asked = run(state, *(part_from(name, own) for name in OTHERS))
    bad = replace(FIGURES, square=float("inf"))
    for answer in figures_for(asked):
        state, _ = run(state, replace(answer, figures=bad if answer.giver == liar else FIGURES))
    state, effects = run(state, *norms)
    (reduction,) = (item for item in effects if isinstance(item, ReducePart))
    assert sorted(reduction.members) == sorted((LEADER, honest))
    assert reduction.contributors == 7
    assert reduction.missing == 0
    assert state.exchange is not None
    assert state.exchange.judgement is not None
    row = state.exchange.judgement.weights[PARTS[own].layer]
    assert [weight > 0 for weight in row] == [name != liar for name in NAMES]
    assert {(found.peer, found.code) for found in state.exchange.judgement.findings} == {(liar, "NONFINITE")}


def test_a_joiner_that_lacks_the_last_mean_does_not_reduce_with_it() -> None:
    """Centered clip pulls towards it: who came by a snapshot leaves such parts to others, or it would seem to lie."""
    state, _ = led(aggregation=MEAN_ONLY)
    assert state.exchange is not None
    assert state.exchange.judgement is not None
    pulled = replace(state.exchange.judgement, pulls=(WEIGHT_ONE // 2,) * 3)
    (own,) = mine(state, LEADER)

    def reductions(head: ChainHead) -> int:
        exchange = replace(state.exchange, judgement=pulled)  # type: ignore[type-var]
        turn = Transition(replace(state, exchange=exchange, head=head), 5.0)
        reduce(turn, exchange, own, 7)  # type: ignore[arg-type]
        return sum(isinstance(item, ReducePart) for item in turn.effects)

    assert reductions(HEAD) == 1, "at the genesis there is none"
    assert reductions(replace(HEAD, round=3)) == 0


def test_a_ballot_in_which_nothing_that_counts_arrived_ends() -> None:
    """Its update would be valid for nobody; another ballot, or more time, may bring something."""
    state, _ = led()
    assert state.lead is not None
    assert state.exchange is not None
    nothing = replace(
        state.exchange, listed=dict.fromkeys(range(3), 0), means={},
        judgement=replace(state.exchange.judgement, weights=((0, 0, 0),) * 3),  # type: ignore[type-var]
    )  # fmt: skip
    lead = replace(state.lead, expected=frozenset())
    state, _ = run(replace(state, exchange=nothing, lead=lead), Tick(5.0), ObjectStored(5.0, digest_of(b"x"), 1))
    assert state.lead is None
