"""What a round is predicted to take: the arithmetic, by hand, of cases that are simple enough."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peer.consensus.codec.codec import Codec
from peer.planning.plan.coefficients import Coefficients, shipped
from peer.planning.plan.model_shape import shape_of
from peer.planning.plan.peer_set import FASTEST_BPS, Machine, swarm_of
from peer.planning.plan.round_cost import gather_s, layerwise_s, predict
from peer.planning.plan.round_traffic import BURST_S, delays_of, line_s, runs_of, traffic_of
from tests.peer.planning.plan.plans import FREE, peers, spec

DELAYS = 9
"""One-way delays from the last HEAD to the commit, of a coordinator that is not the last to be ready: HEAD, PREPARE,
PROMISE, START, parts, NORMS, TABLE, means, PROPOSE, votes; with HEAD n − 1 times in n."""


def test_a_blocking_round_is_steps_and_two_exchanges_and_delays() -> None:
    """Two peers, 8 Mbit/s up: each sends half of the model twice."""
    run, swarm = spec(), peers(2)
    shape = shape_of(run)
    cost = predict(shape, run, swarm, FREE)
    traffic = traffic_of(shape, run, swarm)
    wires_s = line_s(traffic.send_wire_s, True) + line_s(traffic.means_wire_s, True)
    assert cost.round_s == pytest.approx(10 + wires_s + (DELAYS + 0.5) * 0.01)
    assert cost.exposed_s == pytest.approx([cost.round_s - 10] * 2)
    assert cost.tokens == 2 * 10 * 8 * 64
    half = Codec("int4").part_bytes(shape.parameters) / 2
    assert traffic.send_wire_s >= half * 8 / 8e6
    assert traffic.up_bytes == pytest.approx(2 * half, rel=0.05)


def test_a_peer_alone_sends_nothing() -> None:
    cost = predict(shape_of(spec()), spec(), peers(1), FREE)
    assert cost.round_s == pytest.approx(10)
    assert (cost.traffic.up_bytes, cost.exposed) == (0, pytest.approx(0))
    phases = predict(shape_of(spec()), spec(), peers(1), shipped()).agreement
    assert (phases.submit, phases.exchange, phases.reduce) == (0, 0, 0)
    assert phases.apply > 0


def test_streaming_hides_an_exchange_that_is_shorter_than_the_steps() -> None:
    run = spec(round={"overlap": "streaming"})
    cost = predict(shape_of(run), run, peers(3), FREE)
    assert cost.round_s == pytest.approx(10)
    assert cost.exposed == pytest.approx(0)
    assert cost.tokens == pytest.approx(3 * 10 * 512)


def test_streaming_behind_a_slow_line_makes_more_steps_per_round() -> None:
    """The exchange sets the pace; half a step passes until the commit is heard."""
    run = spec(round={"overlap": "streaming", "steps": 2})
    cost = predict(shape_of(run), run, peers(3, upload=0.5), FREE)
    assert cost.round_s == pytest.approx(cost.agreement.total + 0.5)
    assert cost.round_s > 2
    assert all(2 < steps <= 4 for steps in cost.steps)


def test_steps_beyond_what_counts_are_exposed() -> None:
    """Of a long round two times H steps count; the rest of it is wasted, whoever trains on."""
    run = spec(round={"overlap": "streaming", "steps": 2})
    cost = predict(shape_of(run), run, peers(3, upload=0.5, step_s=0.01), FREE)
    assert cost.steps == (4, 4, 4)
    assert cost.exposed_s == pytest.approx([cost.round_s - 0.04] * 3)
    assert cost.uncounted_s == pytest.approx(cost.round_s - 0.04)
    fast = spec(round={"overlap": "streaming"})
    assert predict(shape_of(fast), fast, peers(3), FREE).uncounted_s == 0


def test_a_bounded_delay_waits_for_the_rest_of_the_exchange() -> None:
    """One step is made beside the exchange, the others after it."""
    run = spec(round={"overlap": "streaming", "steps": 4, "delay": 1})
    cost = predict(shape_of(run), run, peers(3, upload=0.5), FREE)
    waits_s = cost.agreement.total - 1
    assert cost.round_s == pytest.approx(4 + waits_s)
    assert cost.exposed_s == pytest.approx([waits_s] * 3)
    nothing = spec(round={"overlap": "streaming", "steps": 4, "delay": 0})
    blocking = spec(round={"steps": 4})
    swarm = peers(3, upload=0.5)
    one, other = (predict(shape_of(run), each, swarm, FREE) for each in (nothing, blocking))
    assert one.round_s == pytest.approx(other.round_s)


def test_a_round_by_time_lasts_the_time_and_the_agreement() -> None:
    run = spec(round={"pace": "time", "max_train_s": 7.5})
    cost = predict(shape_of(run), run, peers(2), FREE)
    assert cost.steps == (7, 7)
    assert cost.round_s == pytest.approx(7 + cost.agreement.total)


def test_one_step_is_always_made() -> None:
    """Also where the time for a round is shorter than a step."""
    for overlap in ("none", "streaming"):
        run = spec(round={"pace": "time", "max_train_s": 1.0, "overlap": overlap})
        for count in (1, 2):
            cost = predict(shape_of(run), run, peers(count, step_s=5.0), FREE)
            assert cost.round_s >= 5
            assert all(steps >= 1 - 1e-9 for steps in cost.steps)


def test_by_speed_a_slow_peer_makes_its_share_and_holds_nobody_up() -> None:
    run = spec(round={"pace": "speed", "steps": 20})
    slow = [Machine(name=f"p{at}", step_s=4.0 if at == 3 else 1.0, upload_mbps=8, download_mbps=80) for at in range(4)]
    cost = predict(shape_of(run), run, swarm_of(slow), FREE)
    assert cost.steps == (20, 20, 20, 5)
    assert cost.train_s == pytest.approx(20)


def test_by_steps_two_wait_for_each_other_and_three_do_not_wait_for_one() -> None:
    """Of two the slower is the quorum; of four the deadline falls to its floor of 3 s
    (`peer/consensus/rounds/timeouts.py`), but in each fourth round, which the slow one leads: until the next one takes
    over."""
    run = spec(round={"gather_s": 60})
    assert gather_s([0.0, 40.0], run) >= 40
    assert gather_s([0.0, 0.0, 0.0, 40.0], run) == 3.0
    slow = [Machine(name=f"p{at}", step_s=4.0 if at == 3 else 1.0) for at in range(4)]
    cost = predict(shape_of(run), run, swarm_of(slow), FREE)
    patience_s = run.round.ack_s + 2 * 2.0 + run.round.stagger_s
    assert cost.train_s == pytest.approx((3 * 13 + 10 + patience_s) / 4)
    assert cost.steps[3] == pytest.approx(cost.train_s / 4)


def test_layerwise_hides_applying_but_for_what_is_checked_before() -> None:
    assert layerwise_s(1.0, 100.0) == pytest.approx(0.3)
    assert layerwise_s(1.0, 0.3) == pytest.approx(0.9)


def test_no_round_is_shorter_than_the_spec_says() -> None:
    run = spec(round={"min_round_s": 30})
    assert predict(shape_of(run), run, peers(2), FREE).round_s == 30


def test_a_sparse_codec_sends_little_up_and_more_down() -> None:
    """Parts and means are encoded differently."""
    run = spec(codec={"wire": "sparse", "part_elements": 65536})
    traffic = traffic_of(shape_of(run), run, peers(3))
    assert traffic.send_wire_s < traffic.means_wire_s
    codec, elements = Codec("sparse"), shape_of(run).parameters
    both = codec.part_bytes(elements) + codec.of_means.part_bytes(elements)
    assert traffic.up_bytes == pytest.approx(2 / 3 * both, rel=0.3)


def test_fragments_divide_what_a_round_sends() -> None:
    shape, swarm = shape_of(spec()), peers(4)
    whole = traffic_of(shape, spec(), swarm).up_bytes
    parts = traffic_of(shape, spec(round={"fragments": 4}), swarm).up_bytes
    assert parts == pytest.approx(whole / 4, rel=0.1)


def test_runs_hold_every_element_once() -> None:
    shape = shape_of(spec())
    for turn in range(3):
        layouts = runs_of(shape.layers, 10_000, 2, (1, 5, 2), turn)
        assert {len(runs.elements) for runs in layouts} == {3}
        assert sum(runs.total for runs in layouts) == shape.parameters


def test_who_sends_slowly_reduces_less() -> None:
    """A slow peer among fast ones costs less than if it had an equal run of the means to send to all."""
    run = spec(codec={"part_elements": 4096})
    equal, mixed = (
        traffic_of(
            shape_of(run), run,
            swarm_of([Machine(name=f"peer-{bps}-{number}", upload_mbps=bps) for number, bps in enumerate(lines)]),
        )
        for lines in ((100, 100, 100, 100), (25, 100, 100, 100))
    )  # fmt: skip
    assert mixed.up_bytes == pytest.approx(equal.up_bytes, rel=0.05)
    assert mixed.means_wire_s < 2 * equal.means_wire_s, "with equal runs it takes four times as long"


def test_what_peers_can_tell_apart_is_what_the_plan_knows() -> None:
    from dht.streams import traffic as uplink_estimator

    assert FASTEST_BPS == uplink_estimator.FASTEST_BPS


def test_a_line_that_was_idle_lets_a_tenth_of_a_second_pass_at_once() -> None:
    from dht.streams import shaper

    assert BURST_S == shaper.BURST_S
    assert line_s(1.0, True) == pytest.approx(0.9)
    assert line_s(0.05, True) == 0.0
    assert line_s(1.0, False) == 1.0


def test_the_farthest_pair_sets_the_delays() -> None:
    machines = [Machine(name=name, region=region) for name, region in (("a", "x"), ("b", "x"), ("c", "y"))]
    swarm = swarm_of(machines, delays={frozenset(("x", "y")): 0.1})
    delays = delays_of(swarm)
    assert (delays.leader_s, delays.longest_s) == (pytest.approx(0.1), 0.1)
    assert swarm.network.delay_s[0, 1] == 0.005


def test_the_interval_holds_nine_tenths_of_a_normal_deviation() -> None:
    given_to = dataclasses.replace(FREE, residual=0.1)
    low_s, high_s = given_to.interval(10.0)
    assert low_s * high_s == pytest.approx(100)
    assert high_s == pytest.approx(10 * 1.1788, rel=1e-3)


def test_an_assumed_speed_widens_the_interval() -> None:
    run = spec()
    known = predict(shape_of(run), run, peers(2), shipped())
    assumed = predict(shape_of(run), run, peers(2, step_s=0.0), shipped())
    assert assumed.high_s / assumed.round_s > known.high_s / known.round_s


@settings(deadline=None, max_examples=50)
@given(
    upload=st.floats(1, 100), slower=st.floats(1, 10), overlap=st.sampled_from(["none", "layerwise", "streaming"]),
    steps=st.integers(1, 50), count=st.integers(1, 6),
)  # fmt: skip
def test_a_slower_line_makes_no_round_shorter(
    upload: float, slower: float, overlap: str, steps: int, count: int
) -> None:
    run = spec(round={"overlap": overlap, "steps": steps})
    fast, slow = (
        predict(shape_of(run), run, peers(count, upload=max(0.5, each), download=200), shipped())
        for each in (upload, upload / slower)
    )
    assert slow.round_s >= fast.round_s - 1e-9
    assert 0 <= slow.exposed <= 1
    assert slow.low_s <= slow.round_s <= slow.high_s


def test_peers_on_one_machine_share_its_cores() -> None:
    shared = Coefficients(steps={}, phases={}, sharing=0.2)
    assert [shared.crowd(peers, 2) for peers in (1, 2, 4)] == pytest.approx([1.0, 1.2, 2.4])
    assert shared.crowd(7, 0) == 1.0
    crowded = Coefficients(steps={}, phases={}, crowding=0.1)
    assert [crowded.crowd(peers, 2) for peers in (1, 2, 3, 4)] == pytest.approx([1.0, 1.0, 1.5 * 1.05, 2.2])
