"""What may import what. import-linter checks the same from pyproject.toml; this needs only pytest."""

from __future__ import annotations

import ast
import importlib.metadata
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from peer.testing.child_process import HANG_S

ROOT = Path(__file__).parents[1]
PACKAGES = ("bootstrap", "dht", "peer", "tui")
LAYERS = {"tui": {*PACKAGES}, "bootstrap": {"bootstrap", "peer", "dht"}, "peer": {"peer", "dht"}, "dht": {"dht"}}

TUI_MAY_IMPORT = (
    "bootstrap.config", "bootstrap.organiser", "peer.node.control.client", "peer.consensus.credit.outcomes",
    "peer.schema.events",
    "peer.network.link.cluster_invite", "peer.schema.model_layers", "peer.planning.placement", "peer.planning.plan",
    "peer.schema.settings", "peer.planning.simulate",
    "peer.schema.spec", "peer.node.telemetry.event_tail", "dht.atomic_files", "dht.errors", "dht.identity",
    "dht.invite",
)  # fmt: skip
"""Everything heavier is a child process."""
BOOTSTRAP_MAY_IMPORT = (
    "peer.node.store.start_blob",
    "peer.schema.events",
    "peer.schema.spec",
    "peer.network.sync.blob_server",
    "peer.node.telemetry",
)
"""What the node reports, what it founds, the model from which that starts, and the page that shows it."""

PURE = (
    "consensus/aggregation", "consensus/protocol", "consensus/delegates", "consensus/rounds", "planning/forecast",
    "planning/placement", "planning/plan", "planning/simulate",
)  # fmt: skip
IMPURE = {"asyncio", "datetime", "hivemind", "multiprocessing", "random", "socket", "threading", "time", "torch"}
"""What a state machine must not see: clocks, event loops, sockets, chance, tensors."""
SEEDED = {"peer/planning/simulate": {"random.Random"}}
"""Chance that a seed decides, by room."""


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


@cache
def imports_of(path: Path) -> tuple[str, ...]:
    """Every module that a file imports, also inside functions; `from a import b` gives `a.b`."""
    return tuple(_find_imports(path))


def _find_imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: say the whole name instead of a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.slow
@pytest.mark.parametrize("path", sources(*PACKAGES), ids=name_of)
def test_imports_point_down(path: Path) -> None:
    package = path.relative_to(ROOT).parts[0]
    ours = {name for name in imports_of(path) if name.split(".")[0] in PACKAGES}
    upward = {name for name in ours if name.split(".")[0] not in LAYERS[package]}
    assert upward == set()
    if package == "tui":
        foreign = {name for name in ours if not name.startswith("tui.")}
        assert {name for name in foreign if not name.startswith(TUI_MAY_IMPORT)} == set()
    else:
        assert not any(name.split(".")[0] == "textual" for name in imports_of(path))
    if package == "bootstrap":
        of_peer = {name for name in ours if name.startswith("peer.")}
        assert {name for name in of_peer if not name.startswith(BOOTSTRAP_MAY_IMPORT)} == set()


@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    sources(*(f"peer/{room}" for room in PURE)),
    ids=name_of,
)
def test_the_round_and_the_planner_are_pure(path: Path) -> None:
    assert {name for name in imports_of(path) if name.split(".")[0] in IMPURE} <= SEEDED.get(
        name_of(path.parent), set()
    )


@pytest.mark.outside
@pytest.mark.parametrize(
    ("module", "forbidden"),
    [
        ("tui.cli", {"torch", "hivemind", "textual", "pydantic", "msgpack", "msgspec", "cryptography", "asyncio"}),
        ("tui.commands.demo", {"torch", "hivemind", "textual", "transformers"}),
        ("tui.commands.join", {"torch", "hivemind", "textual", "transformers"}),
        ("tui.commands.status", {"torch", "hivemind", "textual", "transformers"}),
        ("peer.__main__", {"torch", "hivemind", "scipy", "transformers", "datasets"}),
        ("peer.network.link.link", {"torch", "hivemind", "scipy", "transformers", "datasets"}),
        ("bootstrap.__main__", {"torch", "hivemind", "numpy", "scipy"}),
        ("peer.tools.doctor.kernel_probe", {"torch", "numpy", "pydantic"}),
        ("peer.parallel.autotune.__main__", {"torch", "numpy", "pydantic"}),
        ("peer.schema.spec", {"torch", "hivemind"}),
        ("peer.schema.settings", {"torch", "hivemind", "msgpack"}),
        ("peer.__main__", {"torch", "hivemind", "transformers"}),
    ],
)
def test_a_fresh_interpreter_loads_nothing_heavy(module: str, forbidden: set[str]) -> None:
    code = f"import sys, {module}; print(*sys.modules)"
    command = [sys.executable, "-c", code]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=HANG_S)
    assert set(run.stdout.split()) & forbidden == set()


@pytest.mark.slow
@pytest.mark.parametrize("path", sources(*PACKAGES), ids=name_of)
def test_nothing_needs_the_kit_for_tests(path: Path) -> None:
    if path.is_relative_to(ROOT / "peer" / "testing"):
        return
    assert {name for name in imports_of(path) if name.startswith("peer.testing")} == set()


def test_no_other_distribution_owns_our_names() -> None:
    """peer, dht, tui and bootstrap are common words."""
    owners = importlib.metadata.packages_distributions()
    assert {owner for name in PACKAGES for owner in owners.get(name, [])} <= {"homefires"}


def test_tests_are_no_packages() -> None:
    """A tests/dht/__init__.py could be imported in place of the package dht."""
    assert list((ROOT / "tests").rglob("__init__.py")) == []
