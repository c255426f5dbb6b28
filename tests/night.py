"""Values of parametrised tests that wait for the night: by day some of a kind run, `.ci/run nightly` runs the rest."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from _pytest.mark import ParameterSet


def at_night(*values: Any) -> list[ParameterSet]:
    """Each of them, marked."""
    return [pytest.param(value, marks=pytest.mark.nightly) for value in values]


def by_day(values: Iterable[Any], one_of: int) -> list[Any]:
    """The first of every `one_of` as it is, the others marked."""
    return [each for at, value in enumerate(values) for each in (at_night(value) if at % one_of else [value])]
