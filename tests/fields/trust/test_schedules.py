"""One of four peers lies while others crash, are cut off and lose what they are sent."""

from __future__ import annotations

import pytest

from tests.fields.trust.schedules import ATTACKS, attack_of
from tests.night import by_day
from tests.plans import run_one

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("number", by_day(range(len(ATTACKS)), 4))
def test_no_lie_beside_other_faults_breaks_what_is_promised(number: int) -> None:
    """`python -m tests.benchmarks chaos --liars` runs as many as you like."""
    result = run_one("liars", number)
    assert not result.failure
    assert result.counts["lies"] > 0


def test_who_was_away_when_it_was_shown_prepares_no_false_mean() -> None:
    """The contributor was late and another voter was down: its vote was the third."""
    assert attack_of(375) == "owner: flip"
    assert not run_one("liars", 375).failure


def test_any_lie_meets_any_kind_of_faults() -> None:
    """Random ones, those with an aim, and long splits; the first two with Restarts and without."""
    met = {(attack_of(number), number % 6) for number in range(480)}
    assert len(met) == 6 * len(ATTACKS)
