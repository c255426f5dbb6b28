"""No two decisions and no dead end, in all states of ballots, locks and Restarts; and the model sees what it should."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from peer.consensus.protocol.electorate import majority, quorum
from tests.fields.trust.model import A, Finding, Law, Lock, Model, State, decided_by, follows

ELECTORATES = [
    (1, 0), (2, 0), (3, 0), (4, 0), (4, 1), (5, 0), (5, 1), (7, 2),
    pytest.param(6, 0, marks=pytest.mark.nightly), pytest.param(7, 1, marks=pytest.mark.nightly),
]  # fmt: skip
"""Voters, and how many of them lie; no more than a quorum bears. Those whom the organiser does not know lie. All that
a Restart can leave of each is among them, too: those are known, and honest."""


def explored(voters: int, liars: int, ballots: int, law: Law | None = None, *, named: bool = False) -> Finding:
    strangers = 0 if named else liars
    return Model(voters - liars, liars, strangers, ballots, law or Law()).explore()


@pytest.mark.slow
@pytest.mark.parametrize(("voters", "liars"), ELECTORATES)
def test_two_ballots_and_a_restart_decide_one_thing_and_never_nothing_at_all(voters: int, liars: int) -> None:
    """Of every electorate all states, with as many liars as may be."""
    found = explored(voters, liars, ballots=2)
    assert (found.broken, found.path) == ("", ())
    assert found.whole


@pytest.mark.slow
@pytest.mark.parametrize(("voters", "liars"), [(2, 0), (3, 0), (4, 1)])
def test_so_do_three_ballots(voters: int, liars: int) -> None:
    found = explored(voters, liars, ballots=3)
    assert (found.broken, found.whole) == ("", True)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize(
    ("voters", "liars", "ballots"),
    [(2, 0, 5), (3, 0, 4), (4, 1, 4), (4, 0, 3), (5, 0, 3), (5, 1, 4), (7, 0, 2), (7, 2, 3)],
)
def test_so_do_more_ballots(voters: int, liars: int, ballots: int) -> None:
    """Up to 400,000 states each, and all of them."""
    found = explored(voters, liars, ballots)
    assert (found.broken, found.whole) == ("", True)


def of_any(electorate: object, known: object, left: object) -> bool:
    """As many as an old quorum cannot do without, strangers and liars among them."""
    count = len(electorate)  # type: ignore[arg-type]
    return len(left) > count - quorum(range(count))  # type: ignore[arg-type]


def _any_certificate(lock: Lock, update: int, newest: int) -> bool:
    return follows(lock, update, -1) or newest >= 0


MUTANTS: dict[str, tuple[Law, int, int, int]] = {
    "a majority decides": (Law(quorum=majority), 5, 1, 2),
    "one voter less decides": (Law(quorum=lambda voters: quorum(voters) - 1), 7, 2, 2),
    "no certificate is asked for": (Law(follows=lambda lock, update, newest: True), 5, 1, 2),
    "any certificate is as good as a newer one": (Law(follows=_any_certificate), 3, 0, 3),
    "who is locked follows nothing else": (
        Law(follows=lambda lock, update, newest: follows(lock, update, -1)),
        4,
        1,
        2,
    ),
    "one phase": (Law(asks_prepared=False), 4, 1, 2),
    "a Stuck is not on disk": (Law(seals=False), 2, 0, 2),
    "a Stuck is not on disk, with a liar": (Law(seals=False), 4, 1, 2),
    "one of any is enough to go on": (Law(may_restart=lambda voters, known, left: len(left) > 0), 5, 1, 2),
    "nobody may ever go on": (Law(may_restart=lambda voters, known, left: False), 3, 0, 1),
}
"""With voters, liars and ballots."""


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_a_rule_less_is_seen(name: str) -> None:
    """Two decisions, or a state from which nothing is decided any more; with the way to it."""
    law, voters, liars, ballots = MUTANTS[name]
    found = explored(voters, liars, ballots, law)
    assert found.broken
    assert found.path


@pytest.mark.slow
def test_a_liar_whom_the_organiser_knows_can_hide_what_was_decided() -> None:
    """Half of four are it and another that knows nothing; and three with it bear no liar. Then the Restart outranks,
    and the liar's vote beside its Stuck convicts it (`test_hiding`). Of five some honest voter tells; and with no
    Restart there is nothing that it can do."""
    assert explored(4, 1, 2, named=True).broken
    assert Model(2, 1, ballots=1, restarts=False).explore(live=False).broken
    assert explored(5, 1, 2, named=True).broken == ""
    assert Model(3, 1, ballots=2, restarts=False).explore().broken == ""


class Plain(Model):
    """Every state stands for itself, and no two voters are alike."""

    def canonical(self, state: State) -> State:
        return state


SMALL = [name for name, (_, voters, _, ballots) in MUTANTS.items() if voters * ballots <= 8]


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_a_rule_less_is_seen_where_every_state_is_looked_at_by_itself(name: str) -> None:
    law, voters, liars, ballots = MUTANTS[name]
    assert Plain(voters - liars, liars, liars, ballots, law).explore(200_000).broken


@pytest.mark.slow
@pytest.mark.parametrize(("voters", "liars", "ballots"), [(2, 0, 2), (3, 0, 1), (4, 1, 1)])
def test_what_is_taken_for_one_state_goes_the_same_ways(voters: int, liars: int, ballots: int) -> None:
    """Those reached with every state by itself are those reached otherwise, and no others."""
    plain, model = (kind(voters - liars, liars, liars, ballots) for kind in (Plain, Model))
    assert {model.canonical(state) for state in reached(plain)} == reached(model)


def reached(model: Model) -> set[State]:
    known = {model.canonical(model.start)}
    newest = list(known)
    while newest:
        after = {model.canonical(after) for state in newest for _, after in model.successors(state)} - known
        known |= after
        newest = list(after)
    return known


@pytest.mark.parametrize("may_restart", [Law().may_restart, of_any], ids=["half of the named", "n - q + 1"])
def test_those_who_go_on_share_a_voter_with_every_quorum(may_restart: Callable[..., bool]) -> None:
    """So that whoever hid what it had accepted is found: it voted, and sealed. For all numbers of strangers."""
    for count in range(1, 65):
        voters = tuple(f"{index:02}" for index in range(count))
        for strangers in range((count - 1) // 3 + 1 if count > 3 else 1):
            known = voters[: count - strangers]
            least = next(left for left in range(count + 1) if may_restart(voters, known, known[:left]))
            assert least + quorum(voters) > count, (count, strangers)
            # Where strangers alone lie, one of those in both is honest.
            assert may_restart is of_any or least + quorum(voters) - strangers > len(known)


def test_what_the_newest_has_accepted_is_decided_by_the_products_own_rule() -> None:
    assert decided_by(((-1, -1), (0, 1), (2, A))) == (2, A)
    assert [follows((1, A), 1, newest) for newest in (-1, 0, 1, 2)] == [False, False, False, True]
