"""Which peer a cursor is on while choices are on their way."""

from __future__ import annotations

from tui.dashboard.widgets.lines import Chosen


def test_a_choice_made_elsewhere_is_taken() -> None:
    chosen = Chosen()
    chosen.take("a")
    assert chosen.peer == "a"
    chosen.take("b")
    assert chosen.peer == "b"


def test_views_of_an_earlier_choice_do_not_move_the_cursor_back() -> None:
    chosen = Chosen()
    chosen.take("a")
    chosen.choose("b")
    chosen.choose("c")
    for seen in ("a", "b"):
        chosen.take(seen)
        assert chosen.peer == "c"
    chosen.take("c")
    chosen.take("b")  # this one was chosen elsewhere: nothing is on its way any more
    assert chosen.peer == "b"
