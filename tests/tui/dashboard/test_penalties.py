"""Penalties in words, and the panel that lists them."""

from __future__ import annotations

import pytest

from peer.consensus.aggregation import evidence
from peer.consensus.protocol import penalties as imposed
from tests.tui.dashboard.canned import dashboard, peer_id, penalty, round_view, swarm_of, visit
from tests.tui.dashboard.screen import text_of
from tui.dashboard.widgets.penalties import CATEGORIES, Penalties, narrowed
from tui.swarm.figure_text import cost_words
from tui.swarm.phase_styles import PENALTY_CODES, penalty_code
from tui.swarm.snapshot import Round, SwarmState
from tui.text.event_text import counts_words, layer_words, until_words
from tui.text.explain import PENALTY_PAGES

SOME = (
    penalty(),
    penalty("ANOMALY", about=3, told=5, factor=0.0, until=6, layer="blocks.0.attn"),
    penalty("NONFINITE", about=4, told=6, factor=0.0, until=7),
    penalty("MISDECLARED", about=1, told=6, factor=0.0, until=14),
)


@pytest.mark.parametrize(
    ("code", "factor", "words"),
    [
        ("ANOMALY", 0.0, "counts nothing"), ("LATE", 0.3, "counts 30 %"), ("CLIPPED", 0.5, "clipped to 50 %"),
        ("CLIPPED", 0.004, "clipped to 0.4 %"), ("LATE", 1.0, "counts 100 %"),
    ],
)  # fmt: skip
def test_the_factor_in_words(code: str, factor: float, words: str) -> None:
    assert counts_words(penalty(code, factor=factor)) == words


def test_how_long_a_penalty_lasts() -> None:
    lasting = penalty(until=14)
    assert until_words(lasting, 11) == "until round 14 (3 left)"
    assert until_words(lasting, 14) == "over since round 14"


def swarm_that_made(*rounds: Round) -> SwarmState:
    return SwarmState(history=rounds)


def test_the_cost_is_the_weight_against_the_share_of_the_tokens() -> None:
    told = round_view(3, [peer_id(1), peer_id(2)], weights=(49152, 16384), given=(1000, 1000))
    assert cost_words(swarm_that_made(told), penalty("CLIPPED")) == "weighed 25.0 %, by tokens 50.0 %"


def test_the_cost_falls_back_to_an_equal_share_where_tokens_are_not_known() -> None:
    told = round_view(3, [peer_id(1), peer_id(2)], weights=(49152, 16384), given=(1000, 0))
    assert cost_words(swarm_that_made(told), penalty("CLIPPED")) == "weighed 25.0 %, equal share 50.0 %"


def test_who_was_not_in_the_group_or_whose_round_is_forgotten() -> None:
    assert cost_words(swarm_that_made(round_view(3, [peer_id(1)])), penalty("ABSENT", about=9)) == "not in the group"
    assert cost_words(swarm_that_made(), penalty()) == ""


def test_the_whole_model_and_a_number_are_named() -> None:
    assert [layer_words(layer) for layer in ("", "3", "head")] == ["whole model", "layer 3", "head"]


def test_every_code_that_can_be_imposed_is_explained_and_in_a_category() -> None:
    codes = {imposed.ABSENT, imposed.LATE, imposed.STALE, imposed.CLIPPED, imposed.MISDECLARED}
    codes |= {evidence.ANOMALY, evidence.CLIPPED, evidence.NONFINITE, evidence.STALE}
    assert set(PENALTY_PAGES) == set(PENALTY_CODES) == codes
    assert {code.kind for code in PENALTY_CODES.values()} == set(CATEGORIES) - {"all"}
    assert penalty_code("NEWER").kind == "errors"


def test_categories_narrow_the_list_newest_first() -> None:
    assert [one.code for one in narrowed(SOME, "all")] == ["MISDECLARED", "NONFINITE", "ANOMALY", "LATE"]
    assert [one.code for one in narrowed(SOME, "errors")] == ["MISDECLARED", "NONFINITE"]
    assert [one.code for one in narrowed(SOME, "judge")] == ["ANOMALY"]
    assert [one.code for one in narrowed(SOME, "late")] == ["LATE"]


@pytest.mark.slow
@pytest.mark.parametrize("size", [(80, 24), (200, 60)])
async def test_the_list_says_who_what_why_how_much_and_until_when(size: tuple[int, int]) -> None:
    app = dashboard(swarm_of(4, penalties=SOME[:2]), me=peer_id(1))
    async with app.run_test(size=size) as pilot:
        await visit(pilot, "3", "tab")
        text = text_of(app)
    for fact in ("peer-2", "LATE", "12 of 24 parts came in time", "counts 50 %", "over since round 4"):
        assert fact in text
    for fact in ("peer-3", "ANOMALY", "counts nothing", "blocks.0.attn", "weighed 25.0 %, by tokens"):
        assert fact in text or size[0] == 80


async def test_c_goes_through_the_categories_from_the_lanes_too() -> None:
    app = dashboard(swarm_of(4, penalties=SOME))
    async with app.run_test(size=(120, 40)) as pilot:
        await visit(pilot, "3")
        seen = []
        for _ in CATEGORIES:
            seen.append(app.query_one(Penalties).category)
            await visit(pilot, "c")
        assert tuple(seen) == CATEGORIES
        assert app.query_one(Penalties).category == "all"


async def test_a_category_without_penalties_says_so() -> None:
    app = dashboard(swarm_of(2, penalties=SOME[:1]))
    async with app.run_test(size=(120, 40)) as pilot:
        await visit(pilot, "3", "c")
        assert "none of category errors" in text_of(app)


async def test_enter_explains_the_selected_penalty_and_escape_closes_it() -> None:
    app = dashboard(swarm_of(4, penalties=SOME))
    async with app.run_test(size=(120, 40)) as pilot:
        await visit(pilot, "3", "tab", "down", "down", "enter")
        assert app.query_one(Penalties).chosen == SOME[1]
        assert "not like its own before" in text_of(app)
        await visit(pilot, "escape")
        assert "not like its own before" not in text_of(app)
        await visit(pilot, "escape")  # is the application's now
        assert app.is_running


@pytest.mark.slow
async def test_the_list_moves_to_its_ends() -> None:
    app = dashboard(swarm_of(4, penalties=SOME))
    async with app.run_test(size=(120, 40)) as pilot:
        await visit(pilot, "3", "tab", "G")
        assert app.query_one(Penalties).chosen == SOME[0]
        await visit(pilot, "k")
        assert app.query_one(Penalties).chosen == SOME[1]
        await visit(pilot, "g")
        assert app.query_one(Penalties).chosen == SOME[-1]
        await visit(pilot, "j", "pagedown", "pageup")
        assert app.query_one(Penalties).chosen == SOME[-1]


async def test_a_long_list_scrolls_to_what_is_selected() -> None:
    many = tuple(penalty(told=number, until=number + 1) for number in range(1, 60))
    app = dashboard(swarm_of(2, penalties=many))
    async with app.run_test(size=(120, 40)) as pilot:
        await visit(pilot, "3", "tab", "G")
        assert "round 1 " in text_of(app)


async def test_evidence_is_never_read_as_markup() -> None:
    app = dashboard(swarm_of(2, penalties=[penalty(evidence="[bold]x[/nonsense] 1")]))
    async with app.run_test(size=(120, 40)) as pilot:
        await visit(pilot, "3")
        assert "[bold]x[/nonsense] 1" in text_of(app)
