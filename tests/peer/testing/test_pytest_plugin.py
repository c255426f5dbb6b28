"""The plugin in somebody else's tests: a fresh process, without anything of this repository but the installation."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from peer.testing.child_process import HANG_S
from peer.testing.faults import Fault

pytestmark = pytest.mark.outside

pytest_plugins = ("pytester",)

ROOT = Path(__file__).parents[3]


ASKED = 'pytest_plugins = ["peer.testing.pytest_plugin"]'
"""The line of a conftest.py that asks for the fixture."""


@pytest.fixture(autouse=True)
def no_other_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    """What else is installed here takes half of the time of such a process, and somebody else may not have it."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


def run_tests(pytester: pytest.Pytester, source: str, conftest: str = ASKED) -> pytest.RunResult:
    """Run one test file as strictly as pytest can."""
    pytester.makeconftest(conftest)
    pytester.makepyfile(source)
    pytester.makeini("[pytest]\naddopts = --strict-markers --strict-config\nfilterwarnings = error\n")
    return pytester.runpytest_subprocess("-p", "no:cacheprovider", timeout=HANG_S)


def test_the_test_in_the_readme_passes_word_for_word(pytester: pytest.Pytester) -> None:
    """Ten lines, as promised."""
    section = (
        (ROOT / "peer" / "testing" / "README.md").read_text().partition("## Test your own code against a swarm")[2]
    )
    block = section.partition("```python\n")[2].partition("```")[0]
    assert len(block.splitlines()) == 10
    assert section.partition("```python\n")[0].count(f"`{ASKED}`") == 1
    run_tests(pytester, block).assert_outcomes(passed=1)


def test_who_did_not_ask_for_it_has_no_fixture_of_that_name(pytester: pytest.Pytester) -> None:
    result = run_tests(pytester, "def test_bees(swarm): pass", conftest="")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*fixture 'swarm' not found*"])


def test_a_fault_that_never_strikes_fails_the_test(pytester: pytest.Pytester) -> None:
    """The test itself passes; what it claims to test did not happen."""
    result = run_tests(
        pytester,
        """
        from peer.testing.faults import Stall

        def test_too_short(swarm):
            run = swarm(peers=2)
            run.inject(Stall(peer=1, phase="exchange", round=7, seconds=1))
            run.until_round(1, within_s=60)
        """,
    )
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(
        ["*these faults never struck: [[]Stall(phase='exchange', round=7, peer=1, seconds=1)[]]*"]
    )


def test_one_test_may_start_several_swarms(pytester: pytest.Pytester) -> None:
    """Each is ended and asked for its faults."""
    result = run_tests(
        pytester,
        """
        from peer.testing.faults import Crash

        def test_two(swarm):
            first, second = swarm(peers=2, seed=1), swarm(peers=3, seed=1)
            for run in first, second:
                run.inject(Crash(peer=0, phase="exchange", round=0, back_after_s=1))
            second.until_round(2, within_s=60)
        """,
    )
    result.assert_outcomes(passed=1, errors=1)


def test_others_keep_their_fixture_of_that_name(pytester: pytest.Pytester) -> None:
    """Bees are a swarm too."""
    result = run_tests(
        pytester,
        """
        import pytest

        @pytest.fixture
        def swarm():
            return "bees"

        @pytest.mark.swarm
        def test_bees(swarm):
            assert swarm == "bees"
        """,
    )
    result.assert_outcomes(passed=1)


def test_the_plugin_costs_others_nothing() -> None:
    """Whoever has homefires installed loads this module in each of their test runs."""
    code = (
        "import sys, pytest; had = set(sys.modules); import peer.testing.pytest_plugin; print(*set(sys.modules) - had)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=HANG_S)
    assert set(run.stdout.split()) == {"peer", "peer.testing", "peer.testing.pytest_plugin"}


def test_a_logical_swarm_loads_neither_torch_nor_hivemind() -> None:
    """It starts in less than a second."""
    code = "import sys, peer.testing.memory_swarm; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=HANG_S)
    assert set(run.stdout.split()) & {"torch", "hivemind", "transformers", "datasets", "pytest"} == set()


def test_a_failure_ends_in_the_line_of_the_test(pytester: pytest.Pytester) -> None:
    result = run_tests(
        pytester,
        """
        def test_too_soon(swarm):
            run = swarm(peers=2)
            run.until_round(9, within_s=5)
        """,
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([">*run.until_round(9, within_s=5)", "E*not everybody is at round 9 after 5 s*"])
    result.stdout.no_fnmatch_line("*memory_swarm.py*")


TYPOS = {
    "swarm(spec='micro')": "a logical swarm (without real=True) has no option spec; it takes peers, *seed",
    "swarm(peer=3)": "a logical swarm (without real=True) has no option peer; it takes peers, *",
    "swarm(real=True, seed=2)": "a swarm of processes (real=True) has no option seed; it takes peers, *spec*",
}


def test_an_option_of_the_other_kind_is_refused_in_one_line(pytester: pytest.Pytester) -> None:
    typos = (f"def test_typo_{number}(swarm):\n    {call}\n" for number, call in enumerate(TYPOS))
    result = run_tests(pytester, "\n".join(typos))
    result.assert_outcomes(failed=len(TYPOS))
    for call, words in TYPOS.items():
        result.stdout.fnmatch_lines([f">*{call}", f"E*BadInput: {words}"])
    result.stdout.no_fnmatch_line("*pytest_plugin.py*")


def test_every_fault_is_in_the_readme() -> None:
    text = (ROOT / "peer" / "testing" / "README.md").read_text()
    assert [fault.__name__ for fault in get_args(Fault) if f"| `{fault.__name__}` |" not in text] == []
