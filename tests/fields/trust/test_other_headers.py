"""Who leads a ballot cannot turn means of others against them, and nobody holds up ballots that have not begun."""

from __future__ import annotations

import pytest

from tests.fields.trust.headers import (
    has_them_checked_before,
    leaves_one_out,
    proposes_under_others,
    refuses_what_nobody_asked,
    starts_one_with_others,
)
from tests.fields.trust.liars import LIAR, Attack, Stage, honest_rounds
from tests.night import at_night

pytestmark = pytest.mark.slow

SECONDS = 120.0


@pytest.mark.parametrize("peers", [4, *at_night(7)])
@pytest.mark.parametrize("attack", [proposes_under_others, has_them_checked_before, starts_one_with_others])
def test_means_under_other_headers_than_their_own_count_in_no_round_and_are_nobodys_fault(
    peers: int, attack: Attack, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual, stage = honest_rounds(peers, SECONDS), Stage.of(peers)
    attack(monkeypatch, stage)
    stage.run(stage.from_s)
    rounds = stage.run(SECONDS)
    assert stage.told["other headers"] > 0
    assert stage.poisoned() == []
    assert stage.accused() <= {LIAR}
    assert 1.5 * rounds >= usual


def test_who_shows_bytes_of_a_member_that_its_proposal_leaves_out_ends_nobodys_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usual, stage = honest_rounds(4, SECONDS), Stage.of(4)
    leaves_one_out(monkeypatch, stage)
    stage.run(stage.from_s)
    rounds = stage.run(SECONDS)
    assert stage.told["shown"] > 0
    assert stage.poisoned() == []
    assert stage.accused() <= {LIAR}
    assert 1.5 * rounds >= usual


@pytest.mark.parametrize("peers", [4, *at_night(7)])
def test_who_says_all_the_time_that_it_has_promised_later_ballots_delays_nobodys(
    peers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual, stage = honest_rounds(peers, SECONDS), Stage.of(peers)
    refuses_what_nobody_asked(monkeypatch, stage)
    stage.run(stage.from_s)
    rounds = stage.run(SECONDS)
    assert stage.told["said"] > 0
    assert stage.accused() == set()
    assert 1.2 * rounds >= usual
