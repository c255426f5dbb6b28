"""Every fault in every phase of a round, among 2 to 7 peers: what the round promises holds in all of them.

With `-m chaos` each of these meets each number of peers; else some, so that any two of the three meet. A schedule that
fails says its number; `tests.chaos.run(tests.chaos.case(number))` runs it again. `python -m tests.benchmarks chaos`
runs as many as you like.
"""

from __future__ import annotations

from itertools import product

import pytest

from peer.testing.child_process import HANG_S
from tests import chaos
from tests.night import at_night
from tests.plans import run_all, run_one, summary


@pytest.mark.chaos
@pytest.mark.timeout(4 * HANG_S)
def test_the_chaos_matrix(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> None:
    """Each phase × each fault. None is skipped, none is tried twice."""
    if request.config.option.markexpr == "chaos":
        results = list(run_all(("matrix", number) for number in range(chaos.CASES)))
        assert len(results) == 420
    else:
        results = [run_one("matrix", number) for number in chaos.pairs()]
    failed = [str(result) for result in results if result.failure]
    with capsys.disabled():
        print(f"\n{summary(results)}")
    assert not failed, "\n".join(failed[:20])


@pytest.mark.slow
@pytest.mark.parametrize("number", [100, 479, *at_night(0, 333, 601)])
def test_a_schedule_is_told_by_its_number(number: int) -> None:
    """The same number, the same schedule, so that a failure can be replayed."""
    case = chaos.case(number)
    assert chaos.run(case) == chaos.run(case)


def test_the_matrix_has_every_case() -> None:
    """Once for each seed."""
    cases = [chaos.case(number) for number in range(2 * chaos.CASES)]
    assert len(set(cases)) == len(cases) == 2 * 7 * 10 * 6
    assert {case.seed for case in cases} == {0, 1}


def test_any_two_meet_in_a_part_of_it() -> None:
    cases = [chaos.case(number) for number in chaos.pairs()]
    assert len(cases) == 70
    assert {(case.phase, case.kind) for case in cases} == set(product(chaos.PHASES, chaos.KINDS))
    assert {(case.phase, case.peers) for case in cases} == set(product(chaos.PHASES, chaos.PEERS))
    assert {(case.kind, case.peers) for case in cases} == set(product(chaos.KINDS, chaos.PEERS))
