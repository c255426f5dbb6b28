"""A member that is honest but for one field costs the others nothing: each field of all that peers say.

What stands in several messages is lied about in one of them; a third of the fields by day, all of them by night. In all
messages, with all values, and each while the liar leads and while it follows: `python -m tests.benchmarks fields`.
"""

from __future__ import annotations

import zlib
from collections import defaultdict

import pytest

from peer.consensus.protocol.messages import Restarted, StuckSaid
from tests.fields.declared import SAID_AT_HOME, Field, fields, names_of, structures
from tests.fields.extremes import lies_about
from tests.fields.field_swarm import run
from tests.fields.liar import Lie


def each_once() -> list[Field]:
    """The fields of a message itself; those of what stands in it once in a message and once at home, here and there."""
    found: defaultdict[object, list[Field]] = defaultdict(list)
    for field in fields():
        *above, last = field.path
        found[last.hint, last.name, field.said_in if not above else field.said_in in SAID_AT_HOME].append(field)
    likely = ([field for field in same if is_said(field)] for same in found.values())
    return [same[drawn(same[0], len(same))] for same in likely if same]


ELSEWHERE = ("certificate", "restarts")
"""Of undisturbed rounds nothing is proposed again or restarted: what stands there is said in VoteCast and Restarted."""


def is_said(field: Field) -> bool:
    """Whether there is something to lie about in an undisturbed round; of a list the list itself, at least."""
    above = [step.name for step in field.path[:-1]]
    if str(field) in ("Update roster", "Update roster.signature"):
        return False  # it is the same list in all of them, which nobody has signed
    return field.said_in in (StuckSaid, Restarted) or not any(name in ELSEWHERE for name in above)


def drawn(field: Field, of: int) -> int:
    """A number that differs from field to field."""
    return zlib.crc32(str(field).encode()) % of


def lie_about(field: Field) -> Lie:
    """Another value for each, so that all values are said of something; the first that makes a difference."""
    values = tuple(lies_about(field.hint))
    first = drawn(field, len(values))
    return Lie(field, (*values[first:], *values[:first]))


BY_DAY = 6
"""One of so many fields."""


def of_the_day(field: Field) -> object:
    return pytest.param(field, marks=[pytest.mark.nightly] if drawn(field, BY_DAY) else [], id=str(field))


@pytest.mark.slow
@pytest.mark.parametrize("field", map(of_the_day, each_once()))
def test_a_lie_in_one_field_costs_the_others_nothing(field: Field) -> None:
    outcome = run(lie_about(field), led=1)
    assert sum(outcome.told.values()) > 0, "the lie was never told"
    assert not outcome.failures, f"{field} = {dict(outcome.told)}: {'; '.join(outcome.failures)}"


def test_every_field_of_every_structure_has_a_case() -> None:
    """Those of structures that stand in others, too."""
    lied_about = {(step.hint, step.name) for field in each_once() for step in field.path[-1:]}
    assert [
        (kind.__name__, name) for kind in structures() for name in names_of(kind) if (kind, name) not in lied_about
    ] == [("Update", "roster")]


COUNTS = ("tokens", "steps")
TOO_MANY = ("2^62", "2^63-1", "twice", "an hour ahead")
ONCE = (
    ("Update contributors.*", "1"),
    ("Prepare place.ballot", "an hour ahead"),
    ("Start headers.*.staleness", "2^31"),
    *((f"ContributionHeader {name}", value) for name in COUNTS for value in TOO_MANY),
    *((f"{where}.{name}", "2^63-1") for where in ("Promise header", "Start headers.*") for name in COUNTS),
)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "value"), ONCE, ids=str)
def test_what_once_cost_something(name: str, value: str) -> None:
    """Work that counted and was owed as well; waits as long as those of the 3,600th ballot; all parts but the liar's,
    by a header that is another one in its proposal; the others' weight, by tokens that nobody can have read and steps
    that nobody can have made."""
    field = next(field for field in fields() if str(field) == name)
    outcome = run(Lie(field, (value,)), led=1)
    assert sum(outcome.told.values()) > 0, "the lie was never told"
    assert not outcome.failures
