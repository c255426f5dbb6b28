"""Coefficients come back from rounds that were made with them, and from event lines."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest

from dht.errors import BadInput
from peer.planning.plan.calibration import MeasuredRun, RoundTiming, rescale, time_rounds
from peer.planning.plan.coefficients import PHASES, Coefficients, parse, read, shipped
from peer.planning.plan.model_shape import shape_of
from peer.planning.plan.peer_set import Machine, uniform_peers
from peer.planning.plan.round_cost import predict, step_seconds
from peer.schema.events import Event, EventLine, InnerProgressed, PhaseEntered, RoundCommitted
from peer.schema.spec import RunSpec
from tests.benchmarks.fitting import calibrate, dump, residual
from tests.peer.planning.plan.plans import spec

TRUE = Coefficients(
    steps={"step": 0.004, "block": 0.003, "flop": 3e-11, "update": 4e-9},
    phases={
        phase: {term: {"fixed": 0.03, "member": 0.01, "parameter": 2e-8, "wire": 1.1}[term] for term in terms}
        for phase, terms in PHASES.items()
    },
    sharing=0.25, crowding=0.1, measured="made up",
)  # fmt: skip


def sample(given: Coefficients, peers: int, blocks: int, sequences: int, wire: str, upload: float) -> MeasuredRun:
    """A run that took exactly what `given` says."""
    run = spec(
        config={"num_hidden_layers": blocks},
        inner={"sequences": sequences},
        codec={"wire": wire, "part_elements": 65536},
    )
    swarm = uniform_peers(
        peers, Machine(name="p", upload_mbps=upload, download_mbps=5 * upload), otherwise_s=0.01, cores=2
    )
    shape = shape_of(run)
    cost = predict(shape, run, swarm, given)
    timed = RoundTiming(
        round_s=cost.round_s,
        step_s=step_seconds(shape, run, swarm.machines[0], given, swarm),
        exposed_s=cost.round_s * cost.exposed,
        tokens_per_s=cost.tokens_per_s,
        up_bytes=cost.traffic.up_bytes,
        phases=dataclasses.asdict(cost.agreement),
        rounds=5,
    )
    return MeasuredRun(spec=run, shape=shape, swarm=swarm, timed=timed)


def grid(given: Coefficients) -> list[MeasuredRun]:
    rows = itertools.product((1, 2, 4), (2, 8), (4, 16), (("int4", 0.0), ("float16", 4.0)))
    return [sample(given, peers, blocks, batch, wire, up) for peers, blocks, batch, (wire, up) in rows]


def test_rounds_made_with_coefficients_give_them_back() -> None:
    found = calibrate(grid(TRUE), "here")
    for each in grid(TRUE):  # of one width, blocks and parameters go together: the terms may differ, not the steps
        step_s = step_seconds(each.shape, each.spec, each.swarm.machines[0], found, each.swarm)
        assert step_s == pytest.approx(each.timed.step_s, rel=0.005)
    for phase, terms in TRUE.phases.items():
        for term, value in terms.items():
            assert found.phases[phase][term] == pytest.approx(value, rel=0.02, abs=1e-4), (phase, term)
    assert (found.sharing, found.crowding) == (0.25, 0.1)
    assert found.residual < 0.001
    assert (found.measured, found.figures) == ("here", 24)


def test_no_coefficient_is_negative_and_what_is_left_over_is_the_residual() -> None:
    noisy = [
        dataclasses.replace(each, timed=dataclasses.replace(each.timed, round_s=each.timed.round_s * factor))
        for each, factor in zip(grid(TRUE), itertools.cycle((0.9, 1.1)), strict=False)
    ]
    found = calibrate(noisy, "")
    assert 0.09 < found.residual < 0.13
    assert residual(noisy, found) == pytest.approx(found.residual, abs=1e-4)


def streams(run: RunSpec) -> RunSpec:
    return dataclasses.replace(run, round=dataclasses.replace(run.round, overlap="streaming"))


def test_steps_beside_an_agreement_say_what_it_takes_from_them() -> None:
    """Where several peers keep all cores busy; the steps of those that wait say nothing of it."""
    true = dataclasses.replace(TRUE, beside=0.2)
    waiting = grid(true)
    streaming = [dataclasses.replace(each, spec=streams(each.spec)) for each in waiting]
    slower = [
        dataclasses.replace(each, timed=dataclasses.replace(
            each.timed, step_s=predict(each.shape, each.spec, each.swarm, true).step_s[0],
        )) for each in streaming
    ]  # fmt: skip
    assert (len(slower[0].swarm), len(slower[-1].swarm)) == (1, 4)
    assert slower[0].timed.step_s == waiting[0].timed.step_s
    assert slower[-1].timed.step_s > 1.1 * waiting[-1].timed.step_s
    assert calibrate([*waiting, *slower], "").beside == pytest.approx(0.2, rel=0.02)
    assert calibrate(waiting, "").beside == 0


def test_peers_that_are_unlike_make_rounds_longer_than_their_mean_says() -> None:
    """The slowest of several takes 5 % longer."""
    true = dataclasses.replace(TRUE, spread=0.05)
    assert calibrate(grid(true), "").spread == pytest.approx(0.05, abs=0.002)
    assert calibrate(grid(TRUE), "").spread == pytest.approx(0, abs=0.002)


def test_without_a_run_that_waits_nothing_can_be_told_apart() -> None:
    (one, *_) = grid(TRUE)
    with pytest.raises(BadInput, match="waited for its rounds"):
        calibrate([dataclasses.replace(one, spec=streams(one.spec))], "")


def test_one_run_scales_what_many_gave() -> None:
    one = sample(TRUE, 2, 4, 8, "int4", 8.0)
    slower = dict(one.timed.phases) | {"apply": 3 * one.timed.phases["apply"]}
    found = rescale(TRUE, dataclasses.replace(one, timed=dataclasses.replace(one.timed, phases=slower)), "mine")
    assert found.phases["apply"]["parameter"] == pytest.approx(3 * TRUE.phases["apply"]["parameter"])
    assert found.phases["exchange"]["fixed"] == pytest.approx(TRUE.phases["exchange"]["fixed"], rel=1e-6)


def test_a_run_of_one_peer_scales_no_exchange() -> None:
    """It makes none, so that it says nothing of one."""
    one = sample(TRUE, 1, 4, 8, "int4", 8.0)
    longer = dataclasses.replace(one.timed, phases={phase: 1.0 for phase in PHASES})
    found = rescale(TRUE, dataclasses.replace(one, timed=longer), "mine")
    assert found.phases["exchange"] == TRUE.phases["exchange"]
    assert found.phases["apply"]["parameter"] > TRUE.phases["apply"]["parameter"]


def test_coefficients_survive_their_file(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(dump(TRUE))
    assert read(path) == TRUE
    with pytest.raises(BadInput, match="apply"):
        parse({key: value for key, value in {"steps": TRUE.steps, **TRUE.phases}.items() if key != "apply"}, "x")
    with pytest.raises(BadInput, match="No such file"):
        read(tmp_path / "nowhere.toml")
    path.write_text("\n".join(line for line in dump(TRUE).splitlines() if not line.startswith(("crowding", "beside"))))
    assert read(path) == dataclasses.replace(TRUE, crowding=0.0, beside=0.0), "of an earlier fit"
    older = dump(TRUE).replace("[submit]", "[freeze]") + "\n[judge]\nfixed = 0\nmember = 0.001086\n"
    path.write_text(older)
    assert read(path) == TRUE, "with the phases' former names, and one that is gone"
    path.write_text(dump(TRUE).replace("sharing = 0.25", 'sharing = "much"'))
    with pytest.raises(BadInput, match="is missing or no number"):
        read(path)


def test_the_shipped_ones_say_where_they_were_measured() -> None:
    assert "cores" in shipped().measured
    assert all(terms.get("wire", 1.0) > 0.5 for terms in shipped().phases.values())


# ---- from events ----


def at(t: float, event: Event) -> EventLine:
    return EventLine(seq=0, t=t, run="r", peer="p", event=event)


def committed(t: float, round: int, exposed_s: float) -> EventLine:
    return at(t, RoundCommitted(
        round=round, digest="d", state="s", group=["p"], weights={}, penalties=[], tokens=0, bytes_sent=700,
        bytes_received=7, round_s=0.0, exposed_s=exposed_s,
    ))  # fmt: skip


def told(t: float, steps: int, run: RunSpec) -> EventLine:
    tokens = steps * run.inner.sequences * run.model.context
    return at(t, InnerProgressed(
        round=0, step=1, steps=4, loss=1.0, tokens=tokens, tokens_per_s=1.0, learning_rate=0.1,
    ))  # fmt: skip


def rounds(run: RunSpec, begin_t: float = 0.0, *, twice: str = "") -> list[EventLine]:
    """Four rounds of 10 s: 8 s of 16 steps, then phases of 0.1, 0.2, 0.7, 0.5, 0.3 and 0.2 s."""
    lines = [committed(begin_t, 0, 0.0)]
    for number in range(4):
        t = begin_t + 10 * number
        lines += [told(t + 4, 8, run), told(t + 8, 8, run)]
        t += 8
        for phase, seconds in zip(PHASES, (0.1, 0.2, 0.7, 0.5, 0.3, 0.2), strict=True):
            lines += [at(t, PhaseEntered(round=number, phase=phase))] * (2 if phase == twice else 1)
            t += seconds
        lines.append(committed(begin_t + 10 * (number + 1), number + 1, 2.0))
    return [*lines, told(begin_t + 44, 8, run)]


def test_phases_steps_and_exposure_are_read_from_the_lines() -> None:
    run = spec()
    timed = time_rounds([rounds(run), rounds(run, 0.01)], run, 1, 4)
    assert timed.round_s == pytest.approx(10)
    assert timed.exposed_s == pytest.approx(2)
    assert timed.step_s == pytest.approx(0.5)
    assert timed.tokens_per_s == pytest.approx(2 * 16 * 512 / 10)
    streams = spec(round={"overlap": "streaming"})
    streamed = time_rounds([rounds(streams), rounds(streams, 0.01)], streams, 1, 4)
    assert (streamed.tokens_per_s, streamed.step_s) == (pytest.approx(timed.tokens_per_s), pytest.approx(0.5))
    assert timed.phases["submit"] == pytest.approx(0.1)
    assert timed.phases["reduce"] == pytest.approx(0.5)
    assert timed.phases["apply"] == pytest.approx(0.2)
    assert (timed.rounds, timed.up_bytes) == (3, 700)


def test_a_round_whose_ballot_failed_tells_nothing_about_phases() -> None:
    run = spec()
    assert time_rounds([rounds(run, twice="prepare")], run, 1, 4).phases == {}


@pytest.mark.parametrize(("first", "last"), [(1, 7), (3, 3)])
def test_rounds_that_are_not_there_are_refused(first: int, last: int) -> None:
    with pytest.raises(BadInput, match="are not all among these events"):
        time_rounds([rounds(spec())], spec(), first, last)


def test_events_without_steps_are_refused() -> None:
    lines: Sequence[EventLine] = [line for line in rounds(spec()) if not isinstance(line.event, InnerProgressed)]
    with pytest.raises(BadInput, match="too few inner steps"):
        time_rounds([lines], spec(), 1, 4)
