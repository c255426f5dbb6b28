"""Every mutant still fits the code that it changes, and its tests are there."""

from __future__ import annotations

import re

import pytest

from tests.mutants import PACKAGES, ROOT, Mutant, read


@pytest.mark.parametrize("mutant", read(), ids=lambda mutant: mutant.name)
def test_a_mutant_changes_one_place_and_names_tests(mutant: Mutant) -> None:
    assert mutant.file.startswith(tuple(f"{package}/" for package in PACKAGES))
    assert (ROOT / mutant.file).read_text().count(mutant.old) == 1
    assert mutant.new != mutant.old
    assert mutant.tests
    for test in mutant.tests:
        path, _, name = test.partition("::")
        function = name.rpartition("::")[2].partition("[")[0]
        assert (ROOT / path).is_file()
        assert not function or re.search(rf"def {function}\(", (ROOT / path).read_text())


def test_mutants_have_names_of_their_own() -> None:
    names = [mutant.name for mutant in read()]
    assert len(names) == len(set(names)) >= 30
