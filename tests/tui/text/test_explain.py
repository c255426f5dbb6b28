"""Every code that the source can tell a person has a page of words."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import dht.errors
from dht.errors import HomefiresError
from peer.consensus.protocol.refusals import RULES
from peer.schema.settings import KNOWN
from tests.tui.fake_control import SETTINGS
from tui.cli import main
from tui.processes.children import INTERRUPTED
from tui.swarm.phase_styles import STATES as NAMED
from tui.text.explain import (
    ALERTS,
    BROKEN_RULES,
    EXITS,
    HOLDS,
    KINDS,
    LOG,
    PENALTY_PAGES,
    STATES,
    explain,
    list_all,
    pages_for,
)

ROOT = Path(__file__).parents[3]
PACKAGES = ("bootstrap", "dht", "peer", "tui")


@cache
def trees() -> list[tuple[Path, ast.Module]]:
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return [(path, ast.parse(path.read_text())) for path in paths if "testing" not in path.parts]


@cache
def constants() -> dict[str, set[str]]:
    """The texts that each name stands for, wherever a module, or as `Code.TOKEN` a class, gives it one."""
    known: dict[str, set[str]] = {}
    for _, tree in trees():
        classes = [(f"{node.name}.", node.body) for node in tree.body if isinstance(node, ast.ClassDef)]
        for prefix, body in [("", tree.body), *classes]:
            for name, text in texts_given(body):
                known.setdefault(prefix + name, set()).add(text)
    return known


def texts_given(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    for node in body:
        value = node.value if isinstance(node, ast.Assign) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield from ((target.id, value.value) for target in node.targets if isinstance(target, ast.Name))


def told(call: ast.Call) -> ast.expr | None:
    """What a call gives as the code of an alert or of a line of the log; None if it is about something else."""
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    first = call.args[0].value if call.args and isinstance(call.args[0], ast.Constant) else None
    if name == "AlertRaised" or first == "AlertRaised":
        return next(word.value for word in call.keywords if word.arg == "code")
    if name == "warn" and len(call.args) == 2:
        return call.args[0]
    if name == "alert" and len(call.args) == 3:
        return call.args[1]
    return call.args[3] if name == "note" and len(call.args) == 5 else None


def codes_in_the_source() -> Iterator[tuple[str, str]]:
    """(where, code) of each; a call that passes on what it was given has its caller counted."""
    known = constants()
    yield from (("an enum", text) for name, texts in known.items() if name.startswith("Code.") for text in texts)
    for path, tree in trees():
        for function in ast.walk(tree):
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            codes = [code for call in ast.walk(function) if isinstance(call, ast.Call) and (code := told(call))]
            parameters = {inner.arg for inner in ast.walk(function) if isinstance(inner, ast.arg)} if codes else set()
            for code in codes:
                name = ast.unparse(code)
                if name in parameters or name in ("event.code", "event.state", "event.rule"):
                    continue  # those of an event have a source of their own
                where = f"{path.relative_to(ROOT)}:{code.lineno}"
                texts = {code.value} if isinstance(code, ast.Constant) else known.get(name, set())
                assert texts, f"{where}: {name} is no text that can be found"
                yield from ((where, str(text)) for text in texts)


@pytest.mark.slow
def test_every_alert_and_line_of_the_log_is_explained() -> None:
    found = set(codes_in_the_source())
    missing = {
        (where, code)
        for where, code in found
        if not any(code in pages for pages in (ALERTS, LOG, STATES, PENALTY_PAGES))
    }
    assert missing == set(), "add a page for each to tui/text/explain.toml"
    assert {"RESTART", "RESYNC", "GENESIS", "WATCH", "MISDECLARED", "STOPPED"} <= {code for _, code in found}


def test_every_exit_code_is_explained() -> None:
    tree = [kind for _, kind in inspect.getmembers(dht.errors, inspect.isclass) if issubclass(kind, HomefiresError)]
    assert {str(kind.exit_code) for kind in tree} | {"0", str(INTERRUPTED)} <= set(EXITS)


def test_every_state_is_explained() -> None:
    assert set(NAMED) == set(STATES)


def test_every_reason_to_pause_is_explained() -> None:
    assert {setting.hold for name, setting in KNOWN.items() if name in SETTINGS} - {""} | {"PAUSED", "SNOOZED"} == set(
        HOLDS
    )


def test_every_rule_by_which_a_message_is_refused_is_explained() -> None:
    assert set(BROKEN_RULES) == RULES


def test_a_page_has_a_meaning_on_one_line_and_plain_words() -> None:
    for pages in KINDS.values():
        for code, page in pages.items():
            assert 0 < len(page.short) <= 80, code
            for text in (page.short, page.meaning, page.remedy):
                assert text.isascii(), code
                assert "!" not in text, code
            assert not page.short.endswith("."), code
            assert all(text.endswith((".", ")")) for text in (page.meaning, page.remedy) if text), code


def test_explain_prints_each_meaning_of_a_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "late"]) == 0
    said = capsys.readouterr().out
    assert "LATE (penalty): not all of what it gave" in said
    assert "LATE (state): it takes part" in said
    assert "What to do: Nothing is lost" in said
    assert max(len(line) for line in said.splitlines()) <= 96


def test_explain_alone_lists_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == list_all()
    for kind, pages in KINDS.items():
        at = lines.index(f"{kind}:")
        assert [line.split()[0] for line in lines[at + 1 : at + 1 + len(pages)]] == sorted(
            pages, key=lambda code: (int(code), "") if code.isdigit() else (0, code)
        )


def test_an_exit_code_is_explained_by_its_number() -> None:
    assert explain("3")[0] == "3 (exit code): nobody answered in time"


@pytest.mark.parametrize(("code", "hint"), [("ANOMLY", "ANOMALY"), ("SNOZED", "SNOOZED"), ("restrat", "RESTART")])
def test_a_misspelt_code_gets_the_closest(code: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", code]) == 2
    assert f"there is no code '{code}'; did you mean {hint}?" in capsys.readouterr().err


def test_what_is_near_nothing_points_at_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "?"]) == 2
    assert "homefires explain alone lists all" in capsys.readouterr().err


def test_a_code_of_no_kind_has_no_page() -> None:
    assert list(pages_for("")) == []
