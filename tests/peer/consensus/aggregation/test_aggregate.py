"""What a round's norms come to: who counts how much, who is told what, and what is remembered."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from peer.consensus.aggregation.aggregate import MAX_AGE, MAX_RECORDS, AggregationResult, aggregate
from peer.consensus.aggregation.evidence import MEAN_ONLY, WEIGHT_ONE, AggregationRules, Finding, LayerNorms
from peer.consensus.aggregation.peer_history import NOTHING, NormStats, PeerHistory
from peer.consensus.aggregation.weights import integer_weights
from tests.peer.consensus.aggregation.build import ELEMENTS, claims, history, name, norms, play, pointing

EDIT = AggregationRules(warmup_rounds=4, deviation_floor=0.1, temperature=1.0)
THIRD = integer_weights([1, 1, 1])
ONE = WEIGHT_ONE
SEEN_ONCE = NormStats(1.0, 0.0, 1, 0)


def test_equal_norms_equal_the_mean() -> None:
    """To the integer, whatever the tokens, and whatever the reducer."""
    members = claims(4, shares=(5, 1000, 70_001, 12))
    layers = (pointing([2.0] * 4, [0.5] * 4), pointing([0.1] * 4, [0.2] * 4))
    plain = aggregate(MEAN_ONLY, 1, (), members, layers)
    assert plain.weights == (integer_weights([5, 1000, 70_001, 12]),) * 2
    for reducer in ("edit", "agreement", "centered-clip"):
        found = aggregate(replace(EDIT, rule=reducer), 1, (), members, layers)
        assert (found.weights, found.scales, found.pulls) == (plain.weights, (ONE, ONE), (0, 0))
        assert found.findings == ()


def test_the_mean_looks_at_no_norm() -> None:
    """By shares, and nothing is remembered."""
    members, layers = claims(5), norms([1.0, 1e6, 1e-6, 0.0, 1.0])
    found = aggregate(MEAN_ONLY, 1, (), members, layers)
    assert found == AggregationResult((integer_weights([1] * 5),), (ONE,), (0,), (), ())


def test_norms_are_held_against_a_power_of_the_steps() -> None:
    """Who made 256 times the steps has 32 times the norm, and counts alike."""
    members = claims(3, steps=(1, 256, 65_536))
    assert aggregate(EDIT, 1, (), members, norms([1.0, 32.0, 1024.0])).weights == (THIRD,)


def test_larger_norms_count_less() -> None:
    """By exp(−G / median G): golden integers."""
    found = aggregate(EDIT, 1, (), claims(3), norms([1.0, 1.0, 2.0]))
    assert found.weights == (integer_weights([1, 1, 1], [10**9, 10**9, int(10**9 * math.exp(-1))]),)
    assert found.weights == ((27677, 27677, 10181),)
    warm = aggregate(replace(EDIT, temperature=1000.0), 1, (), claims(3), norms([1.0, 1.0, 2.0]))
    assert warm.weights[0][2] > 21_000


def test_with_two_peers_nobody_says_who_is_the_odd_one() -> None:
    """By shares, until there is a history."""
    found = aggregate(EDIT, 1, (), claims(2), norms([1.0, 100.0]))
    assert found.weights == (integer_weights([1, 1]),)
    assert found.scales == (ONE,)
    assert found.findings == ()


def test_a_hundredfold_norm_after_the_warm_up_counts_nothing() -> None:
    """The result is what it would be without that peer, and the peer hears why."""
    rounds = [[[1.0, 1.1, 0.9, 1.0]]] * 4 + [[[1.0, 1.1, 0.9, 100.0]]]
    last = play(EDIT, rounds)[-1]
    others = play(EDIT, [[[1.0, 1.1, 0.9]]] * 5)[-1]
    assert last.weights == ((*others.weights[0], 0),)
    assert last.findings == (Finding("p03", "ANOMALY", 0, 0, "norm 100 where 1 is usual (z 990), in 1 of 1 layers"),)
    assert last.scales == (ONE,)


def test_a_hundredfold_norm_counts_nothing_from_the_first_round_on() -> None:
    """Without a history the others' norms show it."""
    (first,) = play(EDIT, [[[1.0, 1.1, 100.0, 0.9]]])
    assert first.weights[0][2] == 0
    assert first.findings == (Finding("p02", "CLIPPED", 0, 1966, "norm 100 where 3 counts in full, in 1 of 1 layers"),)


def test_all_anomalous_rolls_the_layer_back() -> None:
    """A row of zeros, in that layer alone."""
    found = aggregate(EDIT, 1, history(3, layers=2), claims(3), norms([9.0, 8.0, 7.0], [1.0, 1.0, 1.0]))
    assert found.weights == ((0, 0, 0), THIRD)
    assert [(item.code, item.layer, item.factor) for item in found.findings] == [("ANOMALY", 0, ONE // 2)] * 3
    assert found.findings[0].evidence == "norm 9 where 2 is usual (z 35), in 1 of 2 layers"


def test_what_all_do_is_nobodys_anomaly() -> None:
    """Norms that rise by half in every round, as in the warm-up of a learning rate, and then fall."""
    sizes = [1.5**round for round in range(12)] + [1.5**12 * 0.7**round for round in range(12)]
    rounds = play(EDIT, [[[size, 1.1 * size, 0.9 * size, size]] for size in sizes])
    assert [judgement.findings for judgement in rounds] == [()] * 24


@pytest.mark.parametrize("factor", [1.3, 0.8])
def test_twice_the_norm_is_seen_while_all_norms_change(factor: float) -> None:
    """A history that lags behind would let it pass while they fall."""
    sizes = [factor**round for round in range(12)]
    rounds = [[[size, size, size, size]] for size in sizes[:-1]] + [[[sizes[-1]] * 3 + [2 * sizes[-1]]]]
    found = play(EDIT, rounds)[-1]
    assert [(item.peer, item.code) for item in found.findings] == [("p03", "ANOMALY")]


def test_who_is_refused_in_one_layer_is_held_to_half_the_threshold_in_the_others() -> None:
    """Training that went wrong shows in some layers more than in others; a layer alone may be odd in honest work."""
    known, usual = history(4, layers=4), [1.0, 1.0, 1.0, 1.0]
    suspect = aggregate(EDIT, 1, known, claims(4), norms(usual, usual, [1.0, 1.0, 1.0, 1.9], [1.0, 1.0, 1.0, 9.0]))
    assert [row[3] > 0 for row in suspect.weights] == [True, True, False, False]
    assert suspect.findings[0].evidence == "norm 9 where 1 is usual (z 80), in 2 of 4 layers"
    others = aggregate(EDIT, 1, known, claims(4), norms(usual, usual, [1.0, 1.0, 1.0, 1.9], [1.0, 1.0, 1.0, 1.9]))
    assert others.findings == ()


def test_a_whole_contribution_is_refused_for_a_deviation_that_one_layer_may_have() -> None:
    """The lower median of z over the layers decides: twice the usual norm everywhere is no chance."""
    known, usual = history(4, layers=3), [1.0, 1.0, 1.0, 1.0]
    twice = aggregate(EDIT, 1, known, claims(4), norms(*[[1.0, 1.0, 1.0, 2.0]] * 3))
    assert [row[3] for row in twice.weights] == [0, 0, 0]
    assert twice.findings == (Finding("p03", "ANOMALY", 0, 0, "norm 2 where 1 is usual (z 10), in 3 of 3 layers"),)
    once = aggregate(EDIT, 1, known, claims(4), norms(usual, usual, [1.0, 1.0, 1.0, 2.0]))
    assert once.findings == ()
    assert 0 < once.weights[2][3] <= 0.6 * ONE / 4


def test_a_norm_of_twice_the_others_weighs_at_most_six_tenths_of_its_share() -> None:
    """With the rules as they come, from three members on, whether there is a history or not."""
    for members in range(3, 10):
        for known in ((), history(members)):
            found = aggregate(AggregationRules(), 1, known, claims(members), norms([1.0] * (members - 1) + [2.0]))
            assert found.weights[0][-1] <= 0.6 * ONE / members


def test_whose_norms_are_always_larger_counts_by_its_share() -> None:
    """Its text may be unlike the others'; its own history excuses half again the usual norm."""
    rules = AggregationRules(warmup_rounds=4)
    last = play(rules, [[[1.0, 1.0, 1.0, 1.5]]] * 6)[-1]
    assert last.weights == (integer_weights([1, 1, 1, 1]),)


def test_who_was_away_while_norms_fell_makes_nobody_unusual() -> None:
    """Two of four come back from three rounds away, with norms as small as those of the others have become."""
    rules = AggregationRules(warmup_rounds=4)
    known = play(rules, [[[1.0, 1.0, 1.0, 1.0]]] * 5)[-1].records
    for round, size in enumerate((0.8, 0.64, 0.5), start=5):
        known = aggregate(rules, round, known, claims(2, round), norms([size, size])).records
    back = aggregate(rules, 8, known, claims(4, 8), norms([0.45, 0.45, 0.45, 0.45]))
    assert back.findings == ()
    assert back.weights == (integer_weights([1, 1, 1, 1]),)


def test_two_peers_that_move_alike_are_no_anomaly() -> None:
    """But one that gives less does not make the other's norm too large."""
    for alike in (1.5, 0.6):
        found = aggregate(EDIT, 1, history(2), claims(2), norms([alike, alike]))
        assert found.weights == ((ONE // 2, ONE // 2),)
    assert aggregate(EDIT, 1, history(2), claims(2), norms([1.5, 3.0])).weights[0][1] == 0
    assert aggregate(EDIT, 1, history(2), claims(2), norms([0.5, 1.0])).weights[0][1] > 0
    for less in (0.01, 0.7):
        assert aggregate(EDIT, 1, history(2), claims(2), norms([less, 1.29])).weights[0][1] > 0


@pytest.mark.parametrize("reducer", ["mean", "edit", "agreement", "centered-clip"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -1.0, 1e300])
def test_what_is_no_norm_counts_nothing(reducer: str, bad: float) -> None:
    """With any reducer, also alone; in the history it leaves a refusal."""
    standards = replace(EDIT, rule=reducer)
    found = aggregate(standards, 1, (), claims(3), norms([1.0, bad, 1.0], [1.0, 1.0, 1.0]))
    assert found.weights == (integer_weights([1, 0, 1]), THIRD)
    (finding,) = found.findings
    assert (finding.peer, finding.code, finding.layer, finding.factor) == ("p01", "NONFINITE", 0, ONE // 2)
    assert finding.evidence == f"norm {bad:.4g}, inner product 0, in 1 of 2 layers"
    if reducer != "mean":
        assert found.records[1].stats == (NormStats(0.0, 0.0, 0, 1), NormStats(1.0, 0.0, 1, 0))
    assert aggregate(standards, 1, (), claims(1), norms([bad])).weights == ((0,),)


def test_an_inner_product_that_is_no_number_is_refused() -> None:
    """Like a norm."""
    found = aggregate(EDIT, 1, (), claims(2), (LayerNorms((1.0, 1.0), (0.5, math.nan), 1.0, ELEMENTS),))
    assert [(item.peer, item.code) for item in found.findings] == [("p01", "NONFINITE")]


def test_a_free_rider_counts_nothing() -> None:
    """Softmax would give the least norm the most; zeros do not move the median down either."""
    found = aggregate(EDIT, 1, (), claims(5), norms([1.0, 0.0, 1e-6, 1.0, 1.0]))
    assert found.weights == (integer_weights([1, 0, 0, 1, 1]),)
    assert [item.evidence for item in found.findings] == [
        "norm 0 where 1 is usual in the round: a free rider, in 1 of 1 layers",
        "norm 1e-06 where 1 is usual in the round: a free rider, in 1 of 1 layers",
    ]
    assert [record.stats[0] for record in found.records] == [SEEN_ONCE, NOTHING, NOTHING, SEEN_ONCE, SEEN_ONCE]
    half = aggregate(EDIT, 1, (), claims(4), norms([1.0, 0.0, 0.0, 1.0]))
    assert half.weights == (integer_weights([1, 0, 0, 1]),)


def test_a_layer_that_nobody_moves_is_no_free_ride() -> None:
    """A frozen layer is zero for all."""
    found = aggregate(EDIT, 1, (), claims(3), norms([0.0, 0.0, 0.0]))
    assert found.weights == (THIRD,)
    assert found.findings == ()


def test_refusals_end_when_norms_have_changed_for_good() -> None:
    """Three rounds of refusals, in the last of which the new norm is learned, then it counts again."""
    rounds = [[[1.0]]] * 4 + [[[10.0]]] * 4
    found = play(EDIT, rounds)
    assert [item.weights[0][0] for item in found] == [ONE] * 4 + [0] * 3 + [ONE]
    assert [len(item.findings) for item in found] == [0] * 4 + [1] * 3 + [0]
    assert [item.records[0].stats[0].rejected for item in found] == [0, 0, 0, 0, 1, 2, 0, 0]
    assert [item.records[0].stats[0].mean for item in found[-3:]] == [1.0, 10.0, 10.0]


def test_a_joiner_starts_from_the_swarms_median_history() -> None:
    """It is judged at once, and what it gave is added to that history."""
    known = tuple(
        PeerHistory(name(index), 0, (NormStats(mean, 0.0, 50, 0),), b"") for index, mean in enumerate([1.0, 1.25, 5.0])
    )
    members = claims(5)[3:]
    found = aggregate(EDIT, 1, known, members, norms([1.25, 12.5]))
    assert found.weights == ((ONE, 0),)
    assert [item.evidence for item in found.findings] == ["norm 12.5 where 1.25 is usual (z 90), in 1 of 1 layers"]
    assert found.records[3].stats == (NormStats(1.25, 0.0, 51, 0),)
    assert found.records[4].stats == (NormStats(1.25, 0.0, 50, 1),)


def test_refusals_before_there_was_any_history_count() -> None:
    """Who has only given what is no number has its own count of refusals, and the swarm's history."""
    known = (
        PeerHistory("p00", 0, (NormStats(0.0, 0.0, 0, 3),), b""),
        PeerHistory("p01", 0, (NormStats(1.0, 0.0, 50, 0),), b""),
    )
    found = aggregate(EDIT, 1, known, claims(1), norms([9.0]))
    assert found.weights == ((0,),)
    assert found.records[0].stats == (NormStats(9.0, 0.0, 1, 0),)


def test_a_contribution_above_the_clip_counts_less() -> None:
    """With two peers against the history; its weight shrinks by the factor in the finding."""
    risen = aggregate(EDIT, 1, history(2, variance=100.0), claims(2), norms([1.0, 14.0]))
    assert risen.findings == ()  # what z accepts by an unsettled history is not clipped
    above = aggregate(
        EDIT,
        1,
        (*history(1), PeerHistory("p01", 0, (NormStats(12.0, 0.0, 50, 0),), b"")),
        claims(2),
        norms([1.0, 12.0]),
    )
    assert above.weights == (integer_weights([1, 1], [ONE, ONE // 4]),)
    assert above.findings == (
        Finding("p01", "CLIPPED", 0, ONE // 4, "norm 12 where 3 counts in full, in 1 of 1 layers"),
    )


def test_the_combined_norm_is_clipped_by_the_histories() -> None:
    """Its bound is three times the usual, so the mean is scaled to that; before the warm-up it is left alone."""
    big = tuple(PeerHistory(name(index), 0, (NormStats(1.0, 0.0, 50, 0),), b"") for index in range(4))
    restarted = tuple(
        replace(record, peer=name(index + 4), stats=(NormStats(6.0, 0.0, 1, 0),)) for index, record in enumerate(big)
    )
    found = aggregate(EDIT, 1, big + restarted, claims(8)[4:], norms([6.0] * 4))
    assert found.weights == (integer_weights([1] * 4),)
    assert found.scales == (ONE // 2,)
    assert aggregate(EDIT, 1, restarted, claims(8)[4:], norms([6.0] * 4)).scales == (ONE,)


def test_the_clip_grows_with_a_power_of_the_steps() -> None:
    """As the norms do."""
    known = tuple(PeerHistory(name(index), 0, (NormStats(6.0, 0.0, 1, 0),), b"") for index in range(1)) + history(4)[1:]
    found = aggregate(EDIT, 1, known, claims(1, steps=(256,)), norms([192.0]))
    assert found.scales == (ONE // 2,)


def test_a_replay_counts_nothing_whoever_gave_it_first() -> None:
    """It is known for eight contributions of its giver, and then for eight of whoever repeats it."""
    first = aggregate(EDIT, 1, (), claims(3, 1), norms([1.0, 1.0, 1.0]))
    members = claims(3, 2)
    copied = (members[0], replace(members[1], root=claims(3, 1)[0].root), members[2])
    second = aggregate(EDIT, 2, first.records, copied, norms([1.0, 1.0, 1.0]))
    assert second.weights == (integer_weights([1, 0, 1]),)
    assert second.findings == (Finding("p01", "STALE", -1, 0, "the same bytes as in an earlier round"),)
    assert second.records[1].stats[0].count == 1
    assert [len(record.roots) for record in second.records] == [16, 16, 16]


def test_roots_are_kept_newest_first() -> None:
    """Eight of them, each once; one of which nothing was measured may come again."""
    records: tuple[PeerHistory, ...] = ()
    for number in range(10):
        records = aggregate(
            EDIT, number, records, claims(1, roots=(b"root%04d" % number + bytes(24),)), norms([1.0])
        ).records
    assert records[0].roots == b"".join(b"root%04d" % number for number in range(9, 1, -1))
    again = aggregate(EDIT, 10, records, claims(1, roots=(b"root0005" + bytes(24),)), norms([1.0]))
    assert again.records[0].roots == b"".join(b"root%04d" % number for number in (5, 9, 8, 7, 6, 4, 3, 2))
    late = aggregate(EDIT, 10, records, claims(1, roots=(b"root0010" + bytes(24),)), norms([None]))
    assert late.records == records


@pytest.mark.parametrize("roots", [3, 8, 20])
def test_a_replay_is_known_as_long_as_it_is_to_be_remembered(roots: int) -> None:
    """What a peer gave `roots` rounds ago, and not what it gave before."""
    records: tuple[PeerHistory, ...] = ()
    given = [b"%08d" % round + bytes(24) for round in range(roots + 1)]
    for round, root in enumerate(given, 1):
        records = aggregate(EDIT, round, records, claims(1, roots=[root]), norms([1.0]), roots).records
    oldest, next_oldest = (
        aggregate(EDIT, roots + 2, records, claims(1, roots=[root]), norms([1.0]), roots).findings for root in given[:2]
    )
    assert not oldest
    assert [finding.code for finding in next_oldest] == ["STALE"]
    assert PeerHistory.unpacked(records[0].packed()) == records[0]


def test_a_replay_that_counts_nothing_anyway_is_not_mentioned() -> None:
    """It was discounted to nothing, by its age say."""
    first = aggregate(EDIT, 1, (), claims(1), norms([1.0]))
    assert aggregate(EDIT, 2, first.records, claims(1, shares=(0,)), norms([1.0])).findings == ()


def test_peers_that_are_gone_are_forgotten() -> None:
    """After 64 rounds; and the longest silent first when there are too many."""
    old = history(1)
    kept = aggregate(EDIT, MAX_AGE, old, claims(2)[1:], norms([1.0]))
    assert [record.peer for record in kept.records] == ["p00", "p01"]
    gone = aggregate(EDIT, MAX_AGE + 1, old, claims(2)[1:], norms([1.0]))
    assert [record.peer for record in gone.records] == ["p01"]
    crowd = tuple(PeerHistory(f"q{index:03}", index % 2, (NOTHING,), b"") for index in range(MAX_RECORDS))
    found = aggregate(EDIT, 2, crowd, claims(2), norms([1.0, 1.0])).records
    assert len(found) == MAX_RECORDS
    assert [record.peer for record in found] == sorted(record.peer for record in found)
    assert {record.peer for record in crowd} - {record.peer for record in found} == {"q124", "q126"}


def test_who_gives_nothing_counts_nothing() -> None:
    """No root or no share: no weight, no finding, no influence on what is usual."""
    members = claims(4, shares=(1, 0, 1, 1), roots=(b"a" * 32, b"b" * 32, b"", b"d" * 32))
    found = aggregate(EDIT, 1, history(4), members, norms([1.0, 500.0, math.nan, 1.0]))
    assert found.weights == (integer_weights([1, 0, 0, 1]),)
    assert found.findings == ()
    assert [record.stats[0].count for record in found.records] == [51, 50, 50, 51]


def test_a_layer_that_nobody_measured_goes_by_shares() -> None:
    """And who was not measured where others were counts as having the usual norm."""
    found = aggregate(EDIT, 1, (), claims(4), norms([None] * 4, [1.0, None, 1.0, 2.0]))
    assert found.weights[0] == integer_weights([1] * 4)
    assert found.weights[1] == aggregate(EDIT, 1, (), claims(4), norms([1.0, 1.0, 1.0, 2.0])).weights[0]
    assert [record.peer for record in found.records] == ["p00", "p02", "p03"]
    assert [record.stats[0] for record in found.records] == [NOTHING] * 3


def test_a_finding_names_the_worst_layer_and_counts_the_others() -> None:
    """One line per peer and code."""
    found = aggregate(
        EDIT, 1, history(3, layers=4), claims(3), norms(*[[1.0, 1.0, size] for size in (1.2, 1.0, 9.0, 3.0)])
    )
    assert found.findings == (
        Finding("p02", "ANOMALY", 2, ONE // 2, "norm 9 where 1 is usual (z 80), in 2 of 4 layers"),
    )


def test_of_layers_that_are_equally_bad_the_first_is_named() -> None:
    """So that all name the same."""
    found = aggregate(EDIT, 1, history(3, layers=3), claims(3), norms([1.0, 1.0, 1.0], *[[1.0, 1.0, 9.0]] * 2))
    assert [(item.peer, item.layer) for item in found.findings] == [("p02", 1)]


# ---- centered clipping ----


def test_centered_clip_draws_outliers_towards_the_last_mean() -> None:
    """x − v is cut to the median distance; the rest of the weight goes to v."""
    clip = replace(EDIT, rule="centered-clip")
    layer = LayerNorms((2.0, 2.0, 2.0, 2.0), (1.5, 1.5, 1.5, -1.5), 1.0, ELEMENTS)
    found = aggregate(clip, 1, (), claims(4), (layer,))
    near, far = math.sqrt(4 - 3 + 1), math.sqrt(4 + 3 + 1)
    quarter = ONE // 4
    assert found.weights == ((quarter, quarter, quarter, int(quarter * near / far)),)
    assert found.pulls == (ONE - sum(found.weights[0]),)
    assert found.findings == ()


def test_centered_clip_tells_whom_it_clips_hard() -> None:
    """More than `clip` medians away."""
    clip = replace(EDIT, rule="centered-clip")
    found = aggregate(clip, 1, (), claims(3), norms([1.0, 1.0, 8.0]))
    assert found.weights == ((21845, 21845, 21845 // 8),)
    assert found.pulls == (3 * 21845 - sum(found.weights[0]),)
    assert found.findings == (
        Finding("p02", "CLIPPED", 0, ONE // 8, "8 away from the last mean where 1 counts in full, in 1 of 1 layers"),
    )


def test_centered_clip_believes_no_impossible_inner_product() -> None:
    """By Cauchy and Schwarz it is at most the product of the norms."""
    clip = replace(EDIT, rule="centered-clip")

    def weights(dot: float) -> tuple[int, ...]:
        layer = LayerNorms((1.0, 1.0, 1.0), (0.0, 0.0, dot), 1.0, ELEMENTS)
        return aggregate(clip, 1, (), claims(3), (layer,)).weights[0]

    assert weights(-1e9) == weights(-1.0) != weights(0.0)


def test_the_bound_of_a_centered_mean_holds_the_last_mean_too() -> None:
    """It has the weight that clipping took away."""
    clip = replace(EDIT, rule="centered-clip")
    young = tuple(PeerHistory(name(index), 0, (NormStats(1.0, 0.0, 1, 0),), b"") for index in range(3))
    known = (*young, *history(4)[3:])
    layer = pointing([1.0, 1.0, 50.0], [-1.0, -1.0, -1.0], direction=100.0)
    found = aggregate(clip, 1, known, claims(3), (layer,))
    row, pull = found.weights[0], found.pulls[0]
    assert row == (21845, 21845, int(21845 * 101 / 150))
    bound = (row[0] + row[1] + 50 * row[2] + 100 * pull) / (3 * 21845)
    assert found.scales == (int(ONE * 3 / bound),)


# ---- agreement ----

AGREE = replace(EDIT, rule="agreement")


def agreed(*cosines: float) -> AggregationResult:
    """Honest norms, these cosines in both layers."""
    layer = pointing([1.0] * len(cosines), cosines)
    return aggregate(AGREE, 1, (), claims(len(cosines)), (layer, layer))


def test_who_points_away_counts_nothing() -> None:
    """A flipped sign and noise of an honest norm."""
    found = agreed(0.5, 0.4, -0.45, 0.3, 0.01)
    assert found.weights == (integer_weights([1, 1, 0, 1, 0]),) * 2
    assert found.findings == (
        Finding("p02", "ANOMALY", -1, 0, "cosine -0.450 with the last mean where 0.300 is usual"),
        Finding("p04", "ANOMALY", -1, 0, "cosine 0.010 with the last mean where 0.300 is usual"),
    )


def test_ordinary_spread_costs_nothing() -> None:
    """Down to half the median; below that it counts in proportion."""
    assert agreed(0.5, 0.4, 0.21).weights == (THIRD,) * 2
    assert agreed(0.5, 0.4, 0.1).weights == (integer_weights([2, 2, 1]),) * 2
    assert agreed(0.5, 0.4, 0.1).findings == ()
    assert agreed(0.5, 0.4, 0.1, -0.9, -0.9).weights == (integer_weights([2, 2, 1, 0, 0]),) * 2  # of the positive ones


def test_without_a_direction_that_tells_anything_agreement_is_edit() -> None:
    """No last mean, two peers, or most of them pointing away."""
    layers = norms([1.0, 1.0, 2.0])
    assert aggregate(AGREE, 1, (), claims(3), layers).weights == aggregate(EDIT, 1, (), claims(3), layers).weights
    assert agreed(0.5, -0.5).weights == (integer_weights([1, 1]),) * 2
    assert agreed(-0.5, -0.4, 0.5).weights == (THIRD,) * 2


def test_whoever_was_refused_for_its_direction_teaches_no_norms() -> None:
    """And has no part in what is usual in its round."""
    found = aggregate(AGREE, 1, (), claims(4), (pointing([1.0, 2.0, 3.0, 4.0], [-0.5, 0.5, 0.5, 0.5]),))
    others = aggregate(AGREE, 1, (), claims(3), (pointing([2.0, 3.0, 4.0], [0.5, 0.5, 0.5]),))
    assert found.weights == ((0, *others.weights[0]),)
    assert [record.stats[0].count for record in found.records] == [0, 1, 1, 1]


# ---- newcomers ----


def refused_newcomers(cosines: Sequence[float], elements: int = ELEMENTS) -> list[bool]:
    """Whether each of the members after three voters, who have a cosine of the first figure, is refused."""
    layer = replace(pointing([1.0] * (len(cosines) + 2), [cosines[0]] * 3 + [*cosines[1:]]), elements=elements)
    found = aggregate(EDIT, 9, (), claims(len(cosines) + 2), (layer,), trusted=[name(index) for index in range(3)])
    return [any(item.peer == name(index) for item in found.findings) for index in range(3, len(cosines) + 2)]


@pytest.mark.parametrize("usual", [0.5, 0.3, 0.1, 0.02, 0.001])
def test_noise_of_a_newcomer_is_refused_however_little_the_voters_agree(usual: float) -> None:
    """As of 999 in 1,000 vectors that are drawn."""
    assert refused_newcomers([usual, 3.9e-3, -3.9e-3, 0.0]) == [True] * 3
    assert refused_newcomers([usual, 3.9e-4, -3.9e-4], elements=10**8) == [True] * 2


def test_honest_newcomers_are_not_refused_late_in_a_run() -> None:
    """Figures of a run of 0.3 MB of text in its 75th round; before, all of them were."""
    for usual in (0.0005, 0.01, 0.025):
        assert refused_newcomers([usual, -0.055, -0.01, -0.039, -0.045, 0.02]) == [False] * 5


def test_a_newcomer_that_goes_against_the_voters_is_refused() -> None:
    assert refused_newcomers([0.5, 0.02, 0.03, -0.5]) == [True, False, True]
    assert refused_newcomers([0.2, -0.19, -0.21]) == [False, True]
