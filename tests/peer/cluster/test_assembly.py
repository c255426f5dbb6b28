"""Who holds which stage when a cluster comes together again."""

from __future__ import annotations

from peer.cluster.assembly import dealt_again, with_spares
from peer.ipc import Assignment, StageHolder

BEFORE = Assignment(1, (StageHolder("lead", 0, 1), StageHolder("a", 2, 3), StageHolder("b", 4, 6)), (), "int8")


def held(assignment: Assignment) -> dict[str, tuple[int, int]]:
    return {holder.peer: (holder.first, holder.last) for holder in assignment.stages}


def spares(assignment: Assignment) -> dict[str, tuple[int, int]]:
    return {holder.peer: (holder.first, holder.last) for holder in assignment.spares}


def test_whoever_held_a_stage_holds_it_again() -> None:
    again = dealt_again(BEFORE, ["b", "c", "a"], 2)
    assert held(again) == held(BEFORE)
    assert again.epoch == 2
    assert spares(again) == {"c": (2, 3)}


def test_spares_share_the_stages_out() -> None:
    """The fewest first; one that kept some layers keeps these."""
    larger = with_spares(BEFORE, ["c", "d", "e"], {"e": range(4, 7)})
    assert spares(larger) == {"c": (2, 3), "d": (4, 6), "e": (4, 6)}
    assert larger.stages == BEFORE.stages


def test_a_spare_with_the_layers_of_a_lost_home_takes_its_place() -> None:
    """Not one with others, although it comes first."""
    before = with_spares(BEFORE, ["c", "d"])
    again = dealt_again(before, ["a", "c", "d"], 2)
    assert held(again) == {"lead": (0, 1), "a": (2, 3), "d": (4, 6)}
    assert spares(again) == {"c": (2, 3)}


def test_where_no_spare_has_them_a_newcomer_loads_them_or_another_spare() -> None:
    assert held(dealt_again(BEFORE, ["a", "new"], 2)) == {"lead": (0, 1), "a": (2, 3), "new": (4, 6)}
    before = with_spares(BEFORE, ["c"])
    assert held(dealt_again(before, ["a", "c"], 2)) == {"lead": (0, 1), "a": (2, 3), "c": (4, 6)}
