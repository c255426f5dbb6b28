"""From what headers declare to norms of layers and the judgement of a round, and who is convicted of lying."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.consensus.aggregation.aggregate import AggregationResult, aggregate
from peer.consensus.aggregation.evidence import AggregationRules, Contributor, LayerNorms
from peer.consensus.protocol import norms, penalties
from peer.consensus.protocol.block import (
    MAX_EVIDENCE,
    MAX_REPORTS,
    WEIGHT_ONE,
    ContributionHeader,
    Update,
    givers,
)
from peer.consensus.protocol.head import MISDECLARED, ChainHead
from peer.consensus.protocol.layout import Part, divide
from peer.consensus.protocol.norms import (
    NOT_A_NUMBER,
    PartNorms,
    convictions,
    declare,
    declared,
    declared_norm,
    declared_of_part,
    declared_square,
    fault_of_declared,
    judgement_of,
    shard_owners,
    tokens_learned,
)
from peer.consensus.protocol.refusals import NORMS
from peer.consensus.protocol.rules import Rules
from peer.consensus.protocol.validation import fault_of_header
from peer.testing.memory_peer import ModelKeys
from tests.peer.consensus.rounds.build import HEAD, NAMES, header, place, rules, update

ALL = tuple(header(name) for name in NAMES)
WIDE = replace(
    rules("p0"), parts=(Part(0, 0, 2), Part(0, 2, 6), Part(1, 8, 4), Part(1, 12, 4)), part_bytes=(8, 24, 16, 16)
)
"""Two layers of eight elements, each in two parts."""
NAN = float("nan")
Said = tuple[float, float, float]
"""Square, inner product and square of the last mean of one layer."""

# ---- tokens that count ----

PREDICTED = replace(rules("p0", AggregationRules(rule="mean", weigh="predicted")), step_tokens=100, tokens_cap=900)


@pytest.mark.parametrize(
    ("said", "learned"),
    [
        ((200, 300, 250), (200, 300, 250)),
        ((1000, 300, 250), (600, 300, 250)),  # all that it can have read, where others predict a quarter
        ((100, 1000, 100), (100, 200, 100)),
        ((1000, 1000, 1000), (1000, 1000, 1000)),
        ((0, 0, 500), (0, 0, 500)),
    ],
)
def test_of_predicted_tokens_no_more_than_twice_the_usual_share_counts(
    said: tuple[int, ...], learned: tuple[int, ...]
) -> None:
    """Nobody can check them; ten steps can have read a thousand. Of tokens that were read all count."""
    members = tuple(header(name, tokens=tokens, steps=10) for name, tokens in zip(NAMES, said, strict=True))
    assert tokens_learned(PREDICTED, HEAD, members) == list(learned)
    assert tokens_learned(replace(PREDICTED, aggregation=AggregationRules()), HEAD, members) == list(said)
    weights = judgement_of(PREDICTED, HEAD, members).weights[0]
    if any(learned):
        assert [weight / WEIGHT_ONE for weight in weights] == pytest.approx(
            [min(each, 900) / sum(min(each, 900) for each in learned) for each in learned], abs=1e-3
        )


def test_one_of_two_leaves_the_other_its_tokens_by_saying_that_it_predicted_next_to_nothing() -> None:
    members = (header("p0", tokens=1, steps=10), header("p1", tokens=800, steps=10))
    assert tokens_learned(PREDICTED, HEAD, members) == [1, 800]


def test_who_says_more_predicted_tokens_than_count_is_told() -> None:
    members = tuple(header(name, tokens=tokens, steps=10) for name, tokens in zip(NAMES, (850, 300, 250), strict=True))
    due = penalties.due(PREDICTED, HEAD, update(members=members), ())
    told = [(peer, why) for peer, code, *_, why in due if code == "CLIPPED"]
    assert told == [("p0", "declared 850 predicted tokens, of which 600 count")]


def test_who_has_no_vote_does_not_say_what_is_usual() -> None:
    names = (*NAMES, "q1", "q2", "q3", "q4")
    said = dict.fromkeys(names, 1000) | dict.fromkeys(NAMES, 100)
    members = tuple(header(name, tokens=tokens, steps=10) for name, tokens in said.items())
    assert tokens_learned(PREDICTED, HEAD, members) == [100] * 3 + [200] * 4


# ---- what a contributor declares ----


def row(value: float) -> float:
    """What is left of a number that was declared."""
    return declared_square(replace(ALL[0], norms=declare(divide(WIDE.parts[:1], 1)[0], {0: PartNorms(value)})), 0)


@given(st.floats(width=32, allow_nan=False))
def test_a_float32_survives(value: float) -> None:
    """Zeros are zero, and infinity is itself."""
    assert row(value) == value


@given(st.floats())
def test_any_float_can_be_declared(value: float) -> None:
    """Beyond float32 it is infinite on its side."""
    if math.isnan(value):
        assert math.isnan(row(value))
    elif abs(value) > 3.5e38:
        assert row(value) == math.copysign(math.inf, value)
    else:
        assert row(value) == pytest.approx(value, rel=1e-7, abs=1e-44)


def test_there_is_one_nan() -> None:
    """Those of different processors differ in their sign: the same contribution has the same header everywhere."""
    (signed,) = struct.unpack("<d", struct.pack("<Q", 0xFFF8 << 48))
    assert math.copysign(1, signed) == -1
    fragment = divide(WIDE.parts, 1)[0]
    found = {declare(fragment, dict.fromkeys(range(4), PartNorms(value, value, value))) for value in (signed, NAN)}
    assert found == {NOT_A_NUMBER * 8}


def test_a_layer_is_the_sum_of_its_parts() -> None:
    """A float32 for each part, then two for each layer, big-endian; 0 where there is nothing to compare with."""
    figures = {
        0: PartNorms(1.0, 0.5, 4.0), 1: PartNorms(16.0, -2.0, 5.0), 2: PartNorms(2.0), 3: PartNorms(7.0),
    }  # fmt: skip
    fragment = divide(WIDE.parts, 1)[0]
    found = declare(fragment, figures)
    assert found == struct.pack(">8f", 1.0, 16.0, 2.0, 7.0, -1.5, 9.0, 0.0, 0.0)
    whole = replace(ALL[0], norms=found)
    assert declared(fragment, whole) == [(17.0, -1.5, 9.0), (9.0, 0.0, 0.0)]
    assert [declared_of_part(whole, part) for part in range(4)] == [1.0, 4.0, math.sqrt(2.0), math.sqrt(7.0)]
    assert declared_norm(whole, 4) == math.sqrt(26.0)


def test_of_a_fragment_its_own_layers_are_declared() -> None:
    """The second of two fragments: one layer, the parts of which are numbered from 0 there."""
    fragment = divide(WIDE.parts, 2)[1]
    assert len(declare(fragment, dict.fromkeys(range(len(fragment.parts)), PartNorms(1.0)))) == 4 * 2 + 8


def test_a_negative_square_is_no_norm() -> None:
    """It is a NaN, which nobody counts."""
    said = header("p0", norms=said_by((-1.0, 0.0, 0.0), (1.0, 0.0, 0.0)))
    assert math.isnan(declared_of_part(said, 0))
    assert declared_of_part(said, 2) == 1.0
    (first, *_), (second, *_) = declared(divide(WIDE.parts, 1)[0], said)
    assert math.isnan(first)
    assert second == 1.0
    assert math.isnan(declared_norm(header("p0", norms=said_by((-9.0, 0.0, 0.0), (1.0, 0.0, 0.0))), 4))


def test_who_gives_nothing_declares_nothing() -> None:
    nothing = header("p0", root=b"")
    assert fault_of_declared(WIDE, HEAD, nothing) == ""
    assert declared_of_part(nothing, 0) == 0.0
    with_norms = replace(nothing, norms=said_by((1.0, 0.0, 0.0)))
    assert fault_of_declared(WIDE, HEAD, with_norms) == "it declares 16 bytes of norms, not 0"


@pytest.mark.parametrize("size", [0, 24, 31, 33, 36])
def test_a_header_declares_every_layer_that_is_averaged_and_no_other(size: int) -> None:
    """Whoever signs another number of them is no member."""
    item = header("p0", norms=b"\x00" * size)
    assert fault_of_declared(WIDE, HEAD, item) == f"it declares {size} bytes of norms, not 32"
    assert fault_of_header(WIDE, HEAD, item)[0] == NORMS
    assert fault_of_header(WIDE, HEAD, header("p0", norms=b"\x00" * 32, ranges=())) == ("", "")


def test_what_is_declared_is_signed() -> None:
    assert not replace(ALL[0], norms=said_by((4.0, 0.0, 0.0), (1.0, 0.0, 0.0))).genuine(ModelKeys("p1"))


# ---- norms of layers ----


def said_by(*layers: Said) -> bytes:
    """A header's norms with these figures of each layer, which is all in the first of its two parts."""
    squares = b"".join(struct.pack(">2f", square, 0.0) for square, _, _ in layers)
    return squares + b"".join(struct.pack(">2f", *rest) for _, *rest in layers)


def saying(peer: str, *layers: Said, **changes: Any) -> ContributionHeader:
    return header(peer, norms=said_by(*layers), **changes)


Judged = Callable[..., tuple[list[Contributor], list[LayerNorms]]]


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> Judged:
    """What reaches `peer.consensus.aggregation` of these rules and members."""

    def look(rules: Rules, members: Sequence[ContributionHeader]) -> tuple[Any, Any]:
        asked: list[Any] = []

        def noting(*args: Any) -> AggregationResult:
            asked.append(args)
            return aggregate(*args)

        monkeypatch.setattr(norms, "aggregate", noting)
        judgement_of(rules, HEAD, tuple(members))
        return asked[0][3], asked[0][4]

    return look


def test_norms_of_a_layer_are_those_that_are_declared(judged: Judged) -> None:
    """In the order of members; the last mean's norm is the median of what voters say of it."""
    members = (
        saying("p0", (9, 1, 25), (25, 0, 0)), saying("p1", (16, 2, 24), (4, 0, 0)), saying("p2", (9, 4, 36), (0, 0, 0)),
    )  # fmt: skip
    _, (zero, one) = judged(WIDE, members)
    assert zero == LayerNorms((3.0, 4.0, 3.0), (1.0, 2.0, 4.0), 5.0, 8)
    assert one == LayerNorms((5.0, 2.0, 0.0), (None,) * 3, None, 8), "nobody has a last mean of it"


def test_one_voter_cannot_move_the_norm_of_the_last_mean(judged: Judged) -> None:
    """Nor can any number of those who have not earned a vote, nor what is no number, nor who knows none."""
    honest = [saying(name, (1, 0, 4), (1, 0, 4)) for name in ("p0", "p1")]
    for lie in (1e-30, 1e30, math.inf, NAN, -4.0, 0.0):
        liars = [saying("p2", (1, 0, lie), (1, 0, lie)), *(saying(f"x{i}", (1, 0, lie), (1, 0, lie)) for i in range(9))]
        _, (zero, _) = judged(WIDE, [*honest, *liars])
        assert zero.direction == 2.0


def test_who_says_nothing_of_a_layer_has_no_norm(judged: Judged) -> None:
    """Who gives nothing; its inner product is none, while another that leaves it out has 0."""
    members = (saying("p0", (1, 3, 4), (1, 0, 0)), header("p1", root=b""), saying("p2", (4, 0, 0), (1, 0, 0)))
    _, (zero, _) = judged(WIDE, members)
    assert zero == LayerNorms((1.0, None, 2.0), (3.0, None, 0.0), 2.0, 8)


def test_what_is_not_a_number_stays_none(judged: Judged) -> None:
    """NaN and infinity reach the judge, who decides."""
    members = (
        saying("p0", (NAN, NAN, NAN), (1, 0, 0)), saying("p1", (math.inf, -math.inf, NAN), (1, 0, 0)),
        saying("p2", (1, 0, NAN), (1, 0, 0)),
    )  # fmt: skip
    _, (zero, _) = judged(WIDE, members)
    assert zero.norms[1:] == (math.inf, 1.0)
    assert math.isnan(zero.norms[0] or 0.0)
    assert zero.direction is None


def test_claims_are_capped(judged: Judged) -> None:
    """Tokens and steps that no peer can have made count as what it can; age discounts; idle members share nothing."""
    one = (1.0, 0.0, 0.0)
    members = (
        saying("p0", one, one, tokens=10**12, steps=10**9), saying("p1", one, one, staleness=8, steps=0),
        header("p2", root=b"", tokens=5),
    )  # fmt: skip
    claims, _ = judged(replace(WIDE, steps_cap=50), members)
    assert [claim.steps for claim in claims] == [50, 1, 10]
    assert [claim.share for claim in claims] == [10**9 * WEIGHT_ONE, 100 * 37_449, 0]
    assert [claim.root for claim in claims] == [member.root for member in members]


numbers = st.floats(width=32) | st.sampled_from((0.0, 1.0, -1.0, math.inf, NAN, 3e38))


@given(
    reducer=st.sampled_from(("mean", "edit", "centered-clip", "agreement")),
    said=st.lists(st.tuples(numbers, numbers, numbers), min_size=6, max_size=6),
    rounds=st.integers(1, 3),
)
def test_no_numbers_stop_a_round(reducer: str, said: list[Said], rounds: int) -> None:
    """Whatever members declare is judged, to a table whose integers fit an update."""
    standards = AggregationRules(rule=reducer, warmup_rounds=1)
    members = tuple(saying(name, *said[2 * i : 2 * i + 2], ranges=()) for i, name in enumerate(NAMES))
    head = HEAD
    for _ in range(rounds):
        judgement = judgement_of(replace(WIDE, aggregation=standards), head, members)
        weights, scales, pulls = norms.table_of(judgement)
        assert {len(row) for row in weights} == {3}
        assert all(0 <= value <= WEIGHT_ONE for row in (*weights, scales, pulls) for value in row)
        assert all(finding.evidence.isprintable() for finding in judgement.findings)
        assert all(len(finding.evidence) <= MAX_EVIDENCE for finding in judgement.findings)
        item = replace(update(), weights=weights, scales=scales, pulls=pulls, records=judgement.records)
        item = replace(item, penalties=penalties.due(WIDE, head, item, judgement.findings))
        assert Update.from_bytes(item.to_bytes()) == item
        head = replace(head, round=head.round + 1, records=judgement.records)


# ---- who is convicted ----


def swarm(peers: int, reporting: int, *, accused: str = "p0") -> tuple[ContributionHeader, ...]:
    """So many members; the first of those who are not accused report it."""
    names = [f"p{index}" for index in range(peers)]
    reporters = [name for name in names if name != accused][:reporting]
    return tuple(header(name, reports=((accused, "lied"),) if name in reporters else ()) for name in names)


@pytest.mark.parametrize(("peers", "needed"), [(1, None), (2, None), (3, 2), (4, 2), (5, 3), (6, 3), (7, 4)])
def test_more_than_half_of_the_others_convict(peers: int, needed: int | None) -> None:
    """And never one: of two nobody can be convicted."""
    for reporting in range(peers):
        members = swarm(peers, reporting)
        head = replace(HEAD, electorate=tuple(member.peer for member in members))
        convicted = needed is not None and reporting >= needed
        assert convictions(head, members) == ({"p0": reporting} if convicted else {})


def test_who_has_not_earned_a_vote_convicts_nobody() -> None:
    """Names cost nothing: of nine members six accuse an honest one, and none of them is a voter."""
    newcomers = tuple(header(f"x{index}", reports=(("p0", "lied"),)) for index in range(6))
    assert convictions(HEAD, (*ALL, *newcomers)) == {}


def test_the_word_of_the_accused_does_not_count() -> None:
    """Neither for nor against itself, however often anybody says it."""
    members = list(swarm(3, 1))
    assert convictions(HEAD, members) == {}
    members[0] = header("p0", reports=(("p0", "I did"),))
    assert convictions(HEAD, members) == {}
    loud = tuple((f"p{index}", "lied") for index in range(MAX_REPORTS - 7))
    assert convictions(HEAD, (header("p0", reports=loud), *ALL[1:])) == {}


def test_who_is_not_there_can_be_convicted_too() -> None:
    """A liar may stay away for a round: then all members are the others."""
    members = tuple(header(name, reports=(("p9", "lied"),)) for name in NAMES[:2])
    assert convictions(HEAD, (*members, ALL[2])) == {"p9": 2}
    assert convictions(HEAD, (members[0], *ALL[1:])) == {}


def decided(head: ChainHead, members: tuple[ContributionHeader, ...], cooldown: int) -> Update:
    """What an honest coordinator would propose after this head."""
    theirs = replace(rules("p0"), aggregation=AggregationRules(rule="mean", cooldown_rounds=cooldown))
    judgement = judgement_of(theirs, head, members)
    weights, scales, pulls = norms.table_of(judgement)
    gave = givers(members)
    plain = replace(
        update(), members=members, parent=head.anchor, round=head.round + 1, contributors=(gave,) * 3,
        weights=weights, scales=scales, pulls=pulls, records=judgement.records,
    )  # fmt: skip
    return replace(plain, penalties=penalties.due(theirs, head, plain, judgement.findings))


@pytest.mark.parametrize("cooldown", [1, 3])
def test_a_convicted_peer_counts_and_reduces_nothing_for_so_many_rounds(cooldown: int) -> None:
    """From the round in which it is reported; afterwards it does both again."""
    accusing, quiet = swarm(3, 2), swarm(3, 0)
    head, counted, rows = HEAD, [], []
    for number in range(cooldown + 3):
        members = tuple(
            replace(item, anchor=head.anchor).signed(ModelKeys(item.peer))
            for item in (accusing if number == 1 else quiet)
        )
        item = decided(head, members, cooldown)
        reduces = "p0" in shard_owners(rules("p0"), head, members, 0)
        assert reduces == (item.weights[0][0] > 0)
        assert min(item.weights[0][1:]) > 0
        assert item.contributors[0] & 1, "what it gave was judged: it does not come back"
        counted.append(reduces)
        rows += [penalty for penalty in item.penalties if penalty[1] == MISDECLARED]
        head = head.after(item)
    assert counted == [True, *[False] * (1 + cooldown), True]
    until = HEAD.round + 2 + 1 + cooldown
    assert rows == [("p0", MISDECLARED, 0, until, -1, "2 of 3 members caught it: lied")] * (1 + cooldown)


def test_who_is_reported_again_begins_again() -> None:
    """The cool-down counts from the newest conviction."""
    head = HEAD.after(decided(HEAD, swarm(3, 2), 4))
    members = tuple(replace(item, anchor=head.anchor).signed(ModelKeys(item.peer)) for item in swarm(3, 2))
    (row,) = decided(head, members, 4).penalties
    assert row[3] == head.round + 1 + 1 + 4
    (before,) = head.convicted
    assert before[3] == row[3] - 1


def test_if_all_are_guilty_somebody_reduces_all_the_same() -> None:
    """Or the run would stand still for ever."""
    accused = tuple((name, "lied") for name in NAMES)
    members = tuple(header(name, reports=accused) for name in NAMES)
    assert set(convictions(HEAD, members)) == set(NAMES)
    assert set(shard_owners(rules("p0"), HEAD, members, 0)) <= set(NAMES)
    assert judgement_of(rules("p0"), HEAD, members).weights[0] == (0, 0, 0)


def test_a_verdict_fits_its_line() -> None:
    """However long the evidence of the reporters is."""
    long = tuple(header(name, reports=(("p9", "x" * MAX_EVIDENCE),)) for name in NAMES)
    (row,) = [row for row in decided(HEAD, long, 8).penalties if row[1] == MISDECLARED]
    assert len(row[5]) == MAX_EVIDENCE
    assert row[5].startswith("3 of 3 members caught it: xxx")


def test_reducers_are_those_of_the_ballot() -> None:
    """The runs of parts rotate with it; each part has one of the members."""
    by_ballot = {shard_owners(rules("p0"), HEAD, ALL, place(ballot).ballot) for ballot in range(20)}
    assert len(by_ballot) > 1
    assert all(set(reducers) <= set(NAMES) and len(reducers) == 3 for reducers in by_ballot)
