"""`homefires export` and `audit`: a child's answer, and how it ends."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import tui.commands.artifacts
from dht.errors import BadChain, BadInput, DiskFull, HomefiresError, RunMismatch
from tui.cli import main
from tui.commands.artifacts import AuditCommand, ChatCommand, CreditCommand, ExportCommand


@pytest.fixture(autouse=True)
def _a_peers(tmp_path: Path) -> None:
    """The folder of a peer, as far as the command looks before it starts a child."""
    (tmp_path / "genesis").touch()


@pytest.mark.outside
def test_an_export_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The child's, without what libraries wrote beside it; paths reach it as they were given."""
    seen: list[str] = []

    def command(module: str, *arguments: str) -> list[str]:
        seen.extend([module, *arguments])
        return [sys.executable, "-c", "import sys; print('round 3 is in out'); print('a warning', file=sys.stderr)"]

    monkeypatch.setattr(tui.commands.artifacts, "python_module", command)
    assert ExportCommand(place=tmp_path).run() == 0
    assert ExportCommand(directory=tmp_path, to=tmp_path / "out").run() == 0
    assert capsys.readouterr().out == "round 3 is in out\n" * 2
    assert seen == [
        *("peer", "export", str(tmp_path)),
        *("peer", "export", str(tmp_path), "--to", str(tmp_path / "out")),
    ]


@pytest.mark.outside
def test_an_export_says_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """In plain lines beside the answer, as they come; without what libraries write."""
    program(
        monkeypatch,
        "import sys; print('export: round 3 of 9\\nnoise\\nexport: uploading \x1b[2J', file=sys.stderr); print('done')",
    )
    assert main(["export", str(tmp_path), "--push", "me/mine"]) == 0
    assert capfd.readouterr() == ("done\n", "export: round 3 of 9\nexport: uploading \ufffd[2J\n")


@pytest.mark.outside
def test_a_credit_that_was_killed_is_told_with_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Short of memory, most likely: its last line says nothing of that."""
    program(monkeypatch, "import os; os.kill(os.getpid(), 9)")
    with pytest.raises(HomefiresError, match="the credit was killed: it did not end within 3600 s, or the system"):
        CreditCommand(place=tmp_path).run()


@pytest.mark.outside
def test_what_is_exported_and_to_where_is_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An upload has a day, not an hour."""
    seen = program(monkeypatch, "import select; select.select([], [], [], 0.3); print('it is there')")
    monkeypatch.setattr(tui.commands.artifacts, "EXPORT_S", 0.1)
    words = ["--what", "merged", "--push", "me/mine", "--gguf", "f16"]
    assert main(["export", str(tmp_path), *words, "--homes", "b"]) == 0
    assert capsys.readouterr().out == "it is there\n"
    assert seen == ["peer", "export", str(tmp_path), *words, "--homes", "b"]


@pytest.mark.parametrize("command", ["chat", "export", "audit", "credit"])
def test_a_folder_that_is_not_there_is_said_before_anything_is_loaded(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = program(monkeypatch, "pass")
    assert main([command, str(tmp_path / "typo")]) == 2
    assert "typo is no folder; name the folder of a peer" in capsys.readouterr().err
    assert seen == []


@pytest.mark.parametrize("command", ["chat", "export", "audit", "credit"])
def test_a_folder_of_other_things_is_said_before_anything_is_loaded(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """But a folder with one of a run in it goes to the child, which says which."""
    seen, photos = program(monkeypatch, "pass"), tmp_path / "photos"
    photos.mkdir()
    (photos / "a.jpg").touch()
    assert main([command, str(photos)]) == 2
    assert "photos holds nothing of a run; name the folder of a peer" in capsys.readouterr().err
    assert seen == []
    assert main([command, str(tmp_path.parent)]) == 0
    assert seen[:2] == ["peer", command]


@pytest.mark.outside
def test_a_chat_has_the_terminal_and_its_childs_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Text that looks like an option is text."""
    seen = program(monkeypatch, "import sys; sys.exit(2)")
    assert main(["chat", str(tmp_path), "--prompt=--help", "--temperature", "0", "--tokens", "9"]) == 2
    assert seen == ["peer", "chat", str(tmp_path), "--prompt=--help", "--temperature", "0.0", "--tokens", "9"]
    monkeypatch.setattr(tui.commands.artifacts, "CHAT_S", 0.2)
    program(monkeypatch, "import signal; signal.pause()")
    with pytest.raises(BadInput, match="nobody talks for longer than 0 h"):
        ChatCommand(place=tmp_path).run()


@pytest.mark.outside
@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (2, BadInput, "^the last line$"),
        (5, RunMismatch, "^the last line$"),
        (8, DiskFull, "^the last line$"),
        (1, HomefiresError, "^the export failed: the last line; run it again with --debug$"),
        (
            -9,
            HomefiresError,
            "^the export was killed: it did not end within 3600 s, or the system was short of memory;",
        ),
    ],
)
def test_a_failed_export_is_one_line(
    code: int, kind: type[Exception], words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What the child said at last, in the branch of the error tree that its exit code stands for."""
    end = f"os.kill(os.getpid(), {-code})" if code < 0 else f"sys.exit({code})"
    program = f"import os, sys; print('noise\\nhomefires: the last line', file=sys.stderr, flush=True); {end}"
    monkeypatch.setattr(tui.commands.artifacts, "python_module", lambda *_: [sys.executable, "-c", program])
    with pytest.raises(kind, match=words) as caught:
        ExportCommand(place=tmp_path).run()
    assert type(caught.value) is kind


def program(monkeypatch: pytest.MonkeyPatch, text: str) -> list[str]:
    """Every child is this Python program; returns the command lines."""
    seen: list[str] = []

    def command(module: str, *arguments: str) -> list[str]:
        seen.extend([module, *arguments])
        return [sys.executable, "-c", text]

    monkeypatch.setattr(tui.commands.artifacts, "python_module", command)
    return seen


@pytest.mark.outside
def test_an_audit_says_how_far_it_is_and_what_it_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The verdict alone is on stdout; of what libraries write nothing is seen."""
    seen = program(
        monkeypatch,
        "import sys; print('audited round 3 of 9\\nnoise', file=sys.stderr); print('rounds 0..9 verified')",
    )
    AuditCommand(place=tmp_path).run()
    assert capfd.readouterr() == ("rounds 0..9 verified\n", "audited round 3 of 9\n")
    AuditCommand(place=tmp_path, as_json=True, debug=True).run()
    assert capfd.readouterr() == ("rounds 0..9 verified\n", "audited round 3 of 9\nnoise\n")
    assert seen == ["peer", "audit", str(tmp_path), "peer", "audit", str(tmp_path), "--json"]


@pytest.mark.outside
def test_a_bad_link_is_an_error_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """With exit code 9; what --json prints is there all the same."""
    failing = "import sys; print('{}'); print('homefires: round 2: x is gone', file=sys.stderr); sys.exit(9)"
    program(monkeypatch, failing)
    with pytest.raises(BadChain, match=r"^round 2: x is gone$") as caught:
        AuditCommand(place=tmp_path, as_json=True).run()
    assert caught.value.exit_code == 9
    assert capfd.readouterr() == ("{}\n", "")


@pytest.mark.outside
def test_an_audit_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its child is killed, and that is an error."""
    monkeypatch.setattr(tui.commands.artifacts, "AUDIT_S", 0.2)
    program(monkeypatch, "import signal; signal.pause()")
    with pytest.raises(
        HomefiresError, match="the audit was killed: it did not end within 0 s, or the system was short"
    ):
        AuditCommand(place=tmp_path).run()


@pytest.mark.outside
def test_a_child_that_does_not_end_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tui.commands.artifacts, "EXPORT_S", 0.2)
    program(monkeypatch, "import signal; signal.pause()")
    with pytest.raises(
        HomefiresError, match="the export was killed: it did not end within 0 s, or the system was short"
    ):
        ExportCommand(place=tmp_path).run()
