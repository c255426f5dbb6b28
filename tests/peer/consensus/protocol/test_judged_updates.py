"""What a voter computes again of a judged update, what a rolled-back layer is, and how the coordinator makes both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from peer.consensus.aggregation.evidence import MEAN_ONLY, AggregationRules
from peer.consensus.protocol import norms
from peer.consensus.protocol.block import (
    VOID,
    WEIGHT_ONE,
    ContributionHeader,
    PartOutcome,
    Update,
    part_outcomes,
)
from peer.consensus.protocol.encoding import digest_of
from peer.consensus.protocol.head import ChainHead
from peer.consensus.protocol.layout import divide
from peer.consensus.protocol.messages import Promise, Propose
from peer.consensus.protocol.norms import PartNorms
from peer.consensus.rounds.interface import (
    MeasureOwn,
    OwnMeasured,
    PartMeasured,
    PartReduced,
    Received,
    ReducePart,
    Submitted,
    Tick,
)
from peer.consensus.rounds.machine import step
from peer.consensus.rounds.reassignment import reduce
from peer.consensus.rounds.state import BallotPhase, State
from peer.consensus.rounds.transition import Transition
from peer.testing.memory_peer import Ledger, ModelKeys, encoded
from tests.peer.consensus.rounds.ballot import (
    FIGURES,
    LEADER,
    OTHERS,
    PLACE,
    figures_for,
    mean_of,
    mine,
    part_from,
    run,
)
from tests.peer.consensus.rounds.build import (
    HEAD,
    NAMES,
    PARTS,
    PAYLOADS,
    block,
    fault_of,
    header,
    proposal_signature,
    rules,
    state_of,
    update,
)

ALL = tuple(header(name) for name in NAMES)
EDIT = AggregationRules(rule="edit", warmup_rounds=1)
NAN = float("nan")
SPOILT = 1
"""The layer that is rolled back in the tests below."""


def judged(aggregation: AggregationRules = EDIT, **changes: Any) -> Update:
    """An honest update of three members whose every part came."""
    fields: dict[str, Any] = {"members": ALL, "contributors": (7, 7, 7)} | changes
    return update(aggregation=aggregation, **fields)


def norms_with(layers: tuple[int, ...], square: float) -> bytes:
    """What a header declares of whom these layers have another square than 1."""
    fragment = divide(PARTS, 1)[0]
    return norms.declare(
        fragment, {part: PartNorms(square if part in layers else 1.0) for part in range(len(PARTS))}
    )  # fmt: skip


def all_spoilt(*layers: int) -> tuple[ContributionHeader, ...]:
    """Members who all declare that these layers of theirs are no numbers."""
    return tuple(header(name, norms=norms_with(layers, NAN)) for name in NAMES)


def rolled_back(*layers: int, **changes: Any) -> Update:
    """An honest update in which these layers are rolled back."""
    parts = tuple(VOID if part in layers else digest_of(payload) for part, payload in enumerate(PAYLOADS))
    return judged(**{"members": all_spoilt(*layers), "parts": parts} | changes)


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


WEIGHTS = "its weights are not those that its headers give"
RECORDS = "its records do not follow from those before"
CONTRIBUTORS = "its contributors do not fit its parts, headers and weights"
PENALTIES = "its penalties are not those that are due"
SIGNED = "it is not signed by its author"
SIZES = "bytes of norms"
STAT = judged().records[0].stats[0]
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
    "a smaller norm than was declared": (
        lambda: with_member(replace(ALL[0], norms=norms_with((0,), 0.5))),
        SIGNED,
    ),
    "no norms": (lambda: with_member(header("p0", norms=b"")), SIZES),
    "norms of a layer less": (lambda: with_member(header("p0", norms=ALL[0].norms[:-12])), SIZES),
    "norms of who gave nothing": (
        lambda: with_member(replace(header("p0", root=b""), norms=ALL[0].norms).signed(ModelKeys("p0"))),
        SIZES,
    ),
    "the weights of what others had declared": (
        lambda: replace(judged(), members=all_spoilt(SPOILT)),
        WEIGHTS,
    ),
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


def with_member(item: ContributionHeader) -> Update:
    """An update with this header in place of the first one."""
    return replace(judged(), members=(item, *ALL[1:]))


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
    """Weights, scales, pulls, records and penalties follow from the headers, and these are signed."""
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
        state, _ = run(state, Received(4.0, LEADER, Propose(PLACE, item, proposal_signature(item))))
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


def led(*spoilt: int, liar: str = "", aggregation: AggregationRules = EDIT) -> State:
    """The coordinator after START, where all, or only this one, declare that the `spoilt` layers are no numbers."""

    def theirs(name: str) -> ContributionHeader:
        return header(name, norms=norms_with(spoilt if name == liar or not liar else (), NAN))

    mine_says = theirs(LEADER)
    state, asked = step(
        state_of(LEADER, rules=replace(rules(LEADER), aggregation=aggregation)), Submitted(0.0, mine_says)
    )
    for effect in asked:
        if isinstance(effect, MeasureOwn):
            square = norms.declared_square(mine_says, effect.part)
            state, _ = run(state, OwnMeasured(0.0, effect.anchor, effect.part, PartNorms(square)))
    state, _ = run(state, Tick(4.0), *(Received(4.0, name, Promise(PLACE, theirs(name))) for name in OTHERS))
    assert state.exchange is not None
    return replace(state, held={digest_of(payload): len(payload) for payload in PAYLOADS})


def with_all_parts(state: State, own: int) -> tuple[State, list[object]]:
    """The same once all that is its to reduce has come and was measured."""
    begun, asked = run(state, *(part_from(name, own) for name in OTHERS))
    return run(begun, *figures_for(asked), PartMeasured(4.1, PLACE, LEADER, own, FIGURES.square), Tick(4.2))


def others_parts() -> tuple[int, ...]:
    return tuple(part for name in OTHERS for part in mine(led(), name))


def proposed(state: State) -> Update:
    assert state.lead is not None
    assert state.lead.stage is BallotPhase.PROPOSING
    (proposal,) = state.proposals.values()
    assert fault_of(replace(state, lead=None), proposal.update) == ""
    return proposal.update


def test_a_rolled_back_part_is_not_waited_for() -> None:
    """No mean of it can come; the update names all whose bytes were refused, and nobody is asked again."""
    spoilt, sound = others_parts()
    (own,) = mine(led(), LEADER)
    state, effects = with_all_parts(led(spoilt), own)
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
    (own,) = mine(led(), LEADER)
    state, _ = with_all_parts(led(spoilt), own)
    state, _ = run(
        state, mean_of(state, spoilt, 7), PartReduced(4.4, PLACE, own, 7, digest_of(PAYLOADS[own])),
        mean_of(state, sound, 7),
    )  # fmt: skip
    assert proposed(state).parts[spoilt] == VOID


def test_what_one_gives_is_refused_alone() -> None:
    """Its weight in that layer is 0, it stays among the contributors, and the mean is that of the others."""
    (own,) = mine(led(), LEADER)
    honest, liar = OTHERS
    state, effects = with_all_parts(led(own, liar=liar), own)
    (reduction,) = (item for item in effects if isinstance(item, ReducePart))
    assert sorted(reduction.members) == sorted((LEADER, honest))
    assert reduction.contributors == 7
    assert reduction.rows == NAMES, "a row of each is shown, so that it can object"
    assert reduction.missing == 0
    assert state.exchange is not None
    row = state.exchange.judgement.weights[PARTS[own].layer]
    assert [weight > 0 for weight in row] == [name != liar for name in NAMES]
    assert {(found.peer, found.code) for found in state.exchange.judgement.findings} == {(liar, "NONFINITE")}


@pytest.mark.parametrize("square", [0.99, 1.01, NAN, float("inf")])
def test_who_gives_something_else_than_it_declared_is_left_out(square: float) -> None:
    """Of one part of a layer that is all of it: neither less nor more counts, and what is missing is owed."""
    (own,) = mine(led(), LEADER)
    honest, liar = OTHERS
    state, asked = run(led(), *(part_from(name, own) for name in OTHERS))
    assert len(asked) == 4
    measured = {liar: square, honest: FIGURES.square, LEADER: FIGURES.square}
    state, effects = run(state, *(PartMeasured(4.1, PLACE, giver, own, found) for giver, found in measured.items()))
    (reduction,) = (item for item in effects if isinstance(item, ReducePart))
    assert sorted(reduction.members) == sorted((LEADER, honest))
    assert reduction.missing > 0
    assert state.exchange is not None
    index = state.exchange.index_of(liar)
    assert state.exchange.refused == {own: 1 << (index or 0)}


def test_a_joiner_that_lacks_the_last_mean_does_not_reduce_with_it() -> None:
    """Centered clip pulls towards it: who came by a snapshot leaves such parts to others, or it would seem to lie."""
    state = led(aggregation=MEAN_ONLY)
    assert state.exchange is not None
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
    liar = OTHERS[0]
    state = led(0, 1, 2, liar=liar)
    assert state.exchange is not None
    alone = 1 << (state.exchange.index_of(liar) or 0)
    means: dict[int, Any] = {part: mean_of(state, part, alone).message for part in range(3)}
    exchange = replace(state.exchange, means=means, mean_at=dict.fromkeys(NAMES, 4.3))
    state = replace(state, exchange=exchange)
    for now in (5.0, 8.0, 40.0, 100.0):  # such means are asked for, and had reduced again, as missing ones
        state, _ = run(state, Tick(now))
    assert state.lead is None
    assert state.attempts.failure == "no mean of any part arrived"
