"""Settings for people: texts, groups, and what changed."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.schema.settings import AT_START, GROUPS, KNOWN, PeerSettings, changes, grouped, in_words, to_text, to_value
from tests.tui.fake_control import SETTINGS
from tui.text.explain import HOLDS

VALUES = st.one_of(
    st.booleans(), st.integers(-(10**9), 10**9), st.floats(-1e6, 1e6).map(lambda number: float(f"{number:.6g}")),
    st.text(st.characters(codec="ascii", categories=["L", "N", "P"])), st.lists(st.text("abc-/ .", min_size=1).map(
        lambda text: text.strip() or "x")),
)  # fmt: skip


def test_every_setting_is_explained_and_in_one_group() -> None:
    assert {field.name for field in fields(PeerSettings)} - set(KNOWN) == set()
    assert sum(len(settings) for settings in GROUPS.values()) == len(KNOWN)
    assert all(setting.meaning for setting in KNOWN.values())


def test_every_hold_of_a_setting_is_explained() -> None:
    assert {setting.hold for setting in KNOWN.values()} - {""} == set(HOLDS) - {"PAUSED", "SNOOZED"}


@given(VALUES)
def test_a_value_comes_back_as_it_was_typed(value: Any) -> None:
    assert to_value(to_text(value), value) == value


@pytest.mark.parametrize(
    ("text", "present", "value"),
    [
        ("180", 0.0, 180), ("1.5", 0, 1.5), (" 7 ", 0, 7), ("yes", False, True), ("Off", True, False), ("true", False,
        True), ("steam, obs ,", [], ["steam", "obs"]), ("", ["steam"], []), ("", "mon-fri 22:00-07:00", ""),
        ("mon-fri 22:00-07:00, sat", "", "mon-fri 22:00-07:00, sat"),
    ],
)  # fmt: skip
def test_a_value_is_read_as_the_kind_that_the_setting_has(text: str, present: Any, value: Any) -> None:
    read = to_value(text, present)
    assert (read, type(read)) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "present"), [("much", 0.0), ("nan", 0.0), ("inf", 0), ("", 0), ("1e999", 0.0), ("maybe", True)]
)
def test_what_is_no_such_value_goes_to_the_peer_as_it_was_typed(text: str, present: Any) -> None:
    """The peer refuses it in words of its own; JSON has neither infinity nor NaN."""
    assert to_value(text, present) == text


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("max_power_w", 180.0, "180 W"), ("max_power_w", 0.0, "no limit"), ("schedule", "", "always"),
        ("pause_for", ["a", "b"], "a, b"), ("on_battery", False, "no"), ("nice", 0, "0"),
        ("name", "", "the end of its id"),
    ],
)  # fmt: skip
def test_a_value_in_words(name: str, value: Any, words: str) -> None:
    assert in_words(KNOWN[name], value) == words


def test_a_setting_of_a_newer_peer_is_shown_without_a_meaning() -> None:
    rows = list(grouped({**SETTINGS, "colour": "red"}))
    assert len(rows) == len(SETTINGS) + 1
    group, setting, value = rows[-1]
    assert (group, setting.name, setting.meaning, value) == (list(GROUPS)[-1], "colour", "", "red")


def test_what_changed_is_told_with_what_it_was() -> None:
    after = {**SETTINGS, "max_power_w": 180.0, "schedule": "sat 00:00-24:00"}
    assert changes(SETTINGS, after) == ["schedule: always -> sat 00:00-24:00", "max_power_w: no limit -> 180 W"]
    assert changes({}, after) == []


def test_what_takes_effect_at_the_next_start_is_what_the_peer_says() -> None:
    assert {each.name for group in GROUPS.values() for each in group if each.at_start} == set(AT_START)
