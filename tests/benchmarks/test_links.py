"""The links benchmark: lines, the rivals, what it makes of what they told, and its bars on figures that are given."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from peer.schema.events import Event, EventLine, InnerProgressed, PhaseEntered, RoundCommitted, RoundStarted
from peer.schema.spec import RunSpec, load
from peer.testing.swarm_contract import changed_spec
from peer.training.model.footprint import size_of
from tests.benchmarks import links, links_report
from tests.benchmarks.links_figures import Point, Ran, Shares, crossing
from tests.benchmarks.links_ours import shares_of, times_of
from tests.benchmarks.links_plan import SPEC, Plan
from tests.benchmarks.links_rivals import blocking_shares
from tests.benchmarks.rivals.lines import Namespaces, NotPermitted, Paced
from tests.benchmarks.rivals.trainee import Orders, all_reduce_floor_s

SHARES = Shares(computing=0.98, communicating=0.3, waiting=None, exposed=0.02, settled=0.015)


def ran(system: str, round_s: float, **changes: Any) -> Ran:
    """Loss falls by 0.5 in each of four rounds."""
    points = [Point(at_s=number * round_s, exchanges=number, loss=5.0 - number / 2) for number in range(5)]
    given = Ran(
        system=system, shaper="none", points=points, exchange_s=[round_s] * 4, tokens_per_s=100.0, shares=SHARES,
        sent_bytes=1e6, counted_in="frames", load=0.3,
    )  # fmt: skip
    return dataclasses.replace(given, **changes)


def good() -> list[Ran]:
    return [ran("bound", 10.0), ran("ours", 10.4), ran("blocking DiLoCo", 53.0)]


def missed(rows: list[Ran]) -> list[str]:
    return [bar.name for bar in links_report.judge(rows, 3.0) if not bar.met]


def test_figures_that_meet_every_bar() -> None:
    assert missed(good()) == []
    assert len(links_report.judge(good(), 3.0)) == 5


@pytest.mark.parametrize(
    ("place", "row", "name"),
    [
        (1, ran("ours", 10.51), "ours reaches the target within 1.05 × the bound's time"),
        (2, ran("blocking DiLoCo", 51.9), "ours reaches the target at least 5 × sooner than the blocking rival"),
        (1, ran("ours", 10.4, shares=dataclasses.replace(SHARES, settled=0.021)),
         "ours: at most 2% of a round exposed"),
        (2, ran("blocking DiLoCo", 53.0, load=0.61), "load of everything on this machine at most 60% of the cores"),
        (0, ran("bound", 10.0, shares=dataclasses.replace(SHARES, computing=1.02)),
         "nobody computes longer than there is time"),
    ],
)  # fmt: skip
def test_each_bar_can_be_missed(place: int, row: Ran, name: str) -> None:
    rows = good()
    rows[place] = row
    assert missed(rows) == [name]


def test_who_never_gets_there_is_judged_by_what_it_has_taken() -> None:
    """A rival that is still above the target after five times the time meets the bar; one that was stopped early
    does not, and neither do we."""
    short = ran("blocking DiLoCo", 100.0, points=ran("", 100.0).points[:4])
    assert missed([*good()[:2], short]) == []
    assert missed([*good()[:2], dataclasses.replace(short, points=short.points[:2])]) == [
        "ours reaches the target at least 5 × sooner than the blocking rival"
    ]
    assert len(missed([good()[0], ran("ours", 10.0, points=short.points[:2]), good()[2]])) == 2


def test_the_time_to_a_loss_lies_on_a_line_between_two_points() -> None:
    points = ran("", 10.0).points
    assert crossing(points, 4.0) == (20.0, 2.0)
    assert crossing(points, 4.25) == pytest.approx((15.0, 1.5))
    assert crossing(points, 5.5) == (0.0, 0.0)
    assert crossing(points, 2.9) is None


def test_who_is_done_first_waits_and_then_all_exchange() -> None:
    """Two rounds of 10 s: one peer trains 2 s, the other 8 s, and the exchange takes 2 s."""
    plan = dataclasses.replace(Plan.read(quick=True), step_s=1.0, slower=(1.0, 4.0), warm_rounds=1)
    rows = [[{"trained": 10.0 * place + trained} for place in range(2)] for trained in (2.0, 8.0)]
    shares = blocking_shares(rows, [0.0, 10.0, 20.0], 2, plan)
    assert (shares.waiting, shares.communicating) == (pytest.approx(0.3), pytest.approx(0.2))
    assert shares.computing == pytest.approx(0.5)
    assert shares.exposed == shares.settled == pytest.approx(0.5)


def line(t: float, event: Event) -> EventLine:
    return EventLine(seq=0, t=t, run="r", peer="p", event=event)


def stepped(t: float) -> EventLine:
    return line(t, InnerProgressed(round=0, step=1, steps=4, loss=1.0, tokens=32, tokens_per_s=1.0, learning_rate=0.1))


def committed(t: float, round: int) -> EventLine:
    event = RoundCommitted(
        round=round, digest="d", state="s", group=[], weights={}, penalties=[], tokens=96, bytes_sent=7,
        bytes_received=7, round_s=5.0, exposed_s=0.5,
    )  # fmt: skip
    return line(t, event)


def test_what_the_time_of_our_own_peers_went_to() -> None:
    """Two rounds of 5 s, in each four steps of 1 s, the exchange from the third second on, half a second exposed."""
    told = [line(100.0, RoundStarted(round=0, steps=4))]
    for round in range(2):
        t = 100.0 + 5 * round
        told += [stepped(t + second) for second in (1, 2, 3, 4)]
        told += [line(t + 3, PhaseEntered(round=round, phase="submit")), committed(t + 5, round + 1)]
    plan = dataclasses.replace(Plan.read(quick=True), step_s=1.0, slower=(1.0, 1.0), warm_rounds=1)
    began, ends = times_of([told, told], 2)
    assert (began, ends) == (100.0, [105.0, 110.0])
    shares = shares_of([told, told], plan, began, ends, 32)
    assert (shares.computing, shares.communicating) == (pytest.approx(0.8), pytest.approx(0.4))
    assert shares.exposed == shares.settled == pytest.approx(0.1)


def test_the_plan_and_the_spec() -> None:
    """Every system's changes are a spec; each is there once; the target is the bound's."""
    assert 4.5e6 < size_of(load(str(SPEC))).parameters < 5e6
    for quick in (False, True):
        plan = Plan.read(quick)
        assert next(iter(plan.systems)) == links_report.BOUND
        assert {links_report.OURS, links_report.BLOCKING} < set(plan.systems)
        for system in plan.systems.values():
            changed_spec(str(SPEC), [*plan.sets, *system["sets"]])
    assert list(Plan.read(False, ["bound", "ours on the rivals' lines"]).systems) == [
        "bound", "ours on the rivals' lines",
    ]  # fmt: skip


# ---- lines ----


def lines_or_skip_nothing(directory: Path, mbps: list[tuple[float, float]], delay_s: float) -> Namespaces | None:
    """None where network namespaces are not permitted: then there is nothing to test."""
    try:
        return Namespaces(directory, mbps, delay_s)
    except NotPermitted:
        assert os.geteuid() != 0 or not Path("/dev/net/tun").exists()
        return None


SEND = """
import socket, sys, time
socket.create_connection((sys.argv[1], 5000), 10).sendall(bytes(int(sys.argv[2])))
"""
TAKE = """
import socket, sys, time
listener = socket.create_server((sys.argv[1], 5000))
print("listening", flush=True)
other, _ = listener.accept()
began, got = time.monotonic(), 0
while piece := other.recv(65536):
    got += len(piece)
print(got, time.monotonic() - began, flush=True)
"""


@pytest.mark.nightly
@pytest.mark.outside
def test_a_line_carries_what_its_rate_allows_and_counts_it(tmp_path: Path) -> None:
    """A megabyte up at 8 Mbit/s takes a second, less the burst of a tenth; by the fast way down it makes no haste."""
    lines = lines_or_skip_nothing(tmp_path, [(8.0, 0.0), (0.0, 80.0)], 0.01)
    if lines is None:
        return
    try:
        sender, taker = lines.places
        began = time.time()
        argv = [*taker.prefix, sys.executable, "-c", TAKE, taker.address]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as take:
            assert take.stdout is not None
            assert take.stdout.readline() == "listening\n"
            subprocess.run(
                [*sender.prefix, sys.executable, "-c", SEND, taker.address, "1000000"], check=True, timeout=60
            )  # fmt: skip
            got, seconds = take.stdout.readline().split()
        assert int(got) == 1_000_000
        assert float(seconds) > 0.8
        sent = lines.sent_bytes(0, began, time.time())
        assert 1_000_000 < sent < 1_300_000, "headers are counted, and little is sent twice"
    finally:
        lines.close()


def test_without_lines_an_exchange_takes_as_long_as_its_bytes() -> None:
    lines = Paced(3, 20.0)
    orders = Orders(
        spec="", peers=("a", "b", "c"), me="a", founder=0, step_s=1.0, rounds=1, address=lines.places[0].address,
        device=lines.places[0].device, floor_bps=lines.floor_bps,
    )  # fmt: skip
    assert all_reduce_floor_s(orders, 15_000_000) == pytest.approx(2 * 2 / 3 * 15e6 * 8 / 20e6)
    assert lines.sent_bytes(0, 0.0, 1.0) is None


# ---- all of it ----


@pytest.mark.nightly
@pytest.mark.outside
def test_two_peers_in_each_kind_of_system(base: RunSpec, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Real processes, the smallest model, two rounds: each system, ours and rivals, learns, and DDP's steps are those
    that one process makes."""
    plan = Plan.read(quick=True, chosen=[links_report.BOUND, links_report.BLOCKING, "DDP"])
    plan = dataclasses.replace(plan, step_s=0.1, slower=(1.0, 2.0))
    spec = dataclasses.replace(base, run=dataclasses.replace(base.run, founders=2))
    rows = links.measure(tmp_path / "run", spec, plan)
    assert [row.system for row in rows] == list(plan.systems)
    for row in rows:
        assert row.points[-1].loss < row.points[0].loss
        assert row.points[0].loss == pytest.approx(rows[0].points[0].loss, abs=1e-6)
        assert row.tokens_per_s > 0
        assert row.sent_bytes > 0
    blocking = next(row for row in rows if row.system == links_report.BLOCKING)
    assert blocking.shares.waiting is not None
    assert blocking.shares.waiting > 0, "nobody waits for the slower peer"
    target = links_report.target_of(rows, plan.rounds)
    assert "DDP" in links_report.table(rows, target)
    links_report.draw(rows, target, tmp_path / "picture.png")
    assert "blocking DiLoCo: " in capsys.readouterr().out
