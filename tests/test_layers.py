"""What may import what, where import-linter has no words for it: its contracts are in pyproject.toml."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from peer.testing.child_process import HANG_S

ROOT = Path(__file__).parents[1]
PACKAGES = ("bootstrap", "dht", "peer", "tui")

ALONE = {
    "tui": (
        "bootstrap.config", "bootstrap.organiser", "bootstrap.restarts", "peer.node.control.client",
        "peer.consensus.credit.outcomes",
        "peer.schema.artifact_options", "peer.schema.byte_text", "peer.schema.events", "peer.schema.extras",
        "peer.network.link.cluster_invite", "peer.schema.model_layers", "peer.planning.placement", "peer.planning.plan",
        "peer.schema.settings", "peer.planning.simulate",
        "peer.schema.spec", "peer.schema.toml_tables", "peer.node.telemetry.event_tail", "dht.addresses",
        "dht.atomic_files", "dht.errors", "dht.identity", "dht.invite",
    ),
    "bootstrap": (
        "dht", "peer.consensus.organiser", "peer.consensus.protocol", "peer.network.sync", "peer.node.store.kept_way",
        "peer.node.store.run_directory", "peer.node.store.start_blob", "peer.node.telemetry",
        "peer.schema.events", "peer.schema.spec",
    ),
}  # fmt: skip
"""All that a package takes from others. The screen has everything heavier in a child process; the organiser's node
takes what it reports, founds and signs, how a chain is followed, the model from which a run starts, and the page that
shows it."""

HEAVY = {
    "tui.cli": {"torch", "hivemind", "textual", "pydantic", "msgpack", "msgspec", "cryptography", "asyncio"},
    "tui.commands.demo": {"torch", "hivemind", "textual", "transformers"},
    "tui.commands.join": {"torch", "hivemind", "textual", "transformers"},
    "tui.commands.status": {"torch", "hivemind", "textual", "transformers"},
    "peer.__main__": {"torch", "hivemind", "scipy", "transformers", "datasets"},
    "peer.network.link.link": {"torch", "hivemind", "scipy", "transformers", "datasets"},
    "bootstrap.__main__": {"torch", "hivemind", "numpy", "scipy"},
    "peer.tools.doctor.kernel_probe": {"torch", "numpy", "pydantic"},
    "peer.parallel.autotune.__main__": {"torch", "numpy", "pydantic"},
    "peer.schema.spec": {"torch", "hivemind"},
    "peer.schema.settings": {"torch", "hivemind", "msgpack"},
}
"""What a module does not load, by the module: who starts it waits for that, or pays for it in every process."""


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
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.slow
def test_screen_and_organiser_take_nothing_else_from_other_packages() -> None:
    foreign = {
        f"{path.relative_to(ROOT)}: {name}" for package, allowed in ALONE.items() for path in sources(package)
        for name in imports_of(path)
        if name.split(".")[0] in PACKAGES and not name.startswith((package, *allowed))
    }  # fmt: skip
    assert foreign == set()


@pytest.mark.slow
def test_chance_in_a_plan_is_that_of_a_seed() -> None:
    """import-linter does not tell the class `Random`, which has a seed, from the functions beside it."""
    assert {
        f"{path.relative_to(ROOT)}: {name}" for path in sources("peer/planning") for name in imports_of(path)
        if name.split(".")[0] == "random" and not (name == "random.Random" and path.parent.name == "simulate")
    } == set()  # fmt: skip


@pytest.mark.outside
def test_a_fresh_interpreter_loads_nothing_heavy() -> None:
    loaded = {}
    for module, heavy in HEAVY.items():
        command = [sys.executable, "-c", f"import sys, {module}; print(*sys.modules)"]
        run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=HANG_S)
        loaded[module] = set(run.stdout.split()) & heavy
    assert loaded == {module: set() for module in HEAVY}
