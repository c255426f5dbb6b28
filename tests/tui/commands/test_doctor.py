"""`homefires doctor` on the screen: a table for people, the child's objects for programs, one exit code."""

from __future__ import annotations

import io
import json
import sys

import pytest

import tui.commands.doctor
from dht.errors import BadInput, HomefiresError
from dht.identity import Identity
from dht.invite import issue
from peer.tools.doctor.check import failed, passed, warned
from peer.tools.doctor.verdict import Verdict
from tui.cli import main
from tui.commands.doctor import WIDTH, DoctorCommand, list_devices, run_doctor

pytestmark = pytest.mark.outside

CHECKS = (
    passed("device", "cpu computes"),
    warned("sleep", "this machine goes to sleep after 20 minutes", "gsettings set a b nothing"),
    failed("memory", "1 GiB of memory free, " + "and so on " * 20, "close other programs", BadInput),
)
VERDICT = Verdict(sentence="unknown: neither the line nor an inner step was measured")


def child(monkeypatch: pytest.MonkeyPatch, lines: list[str], code: int, said: str = "") -> list[str]:
    """The examination prints these lines and ends so; its command line."""
    seen: list[str] = []
    program = f"import sys; print({chr(10).join(lines)!r}); print({said!r}, file=sys.stderr); sys.exit({code})"

    def command(module: str, *words: str) -> list[str]:
        seen.extend([module, *words])
        return [sys.executable, "-c", program]

    monkeypatch.setattr(tui.commands.doctor, "python_module", command)
    return seen


def test_a_table_names_each_fix_and_ends_with_the_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    child(monkeypatch, [*(check.to_json() for check in CHECKS), VERDICT.to_json()], 2)
    stream = io.StringIO()
    assert run_doctor(DoctorCommand(), stream) == 2
    lines = stream.getvalue().splitlines()
    assert lines[0] == "PASS    device           cpu computes"
    assert lines[2].strip() == "fix: gsettings set a b nothing"
    assert max(map(len, lines)) <= WIDTH
    assert "1 of these must be mended before this machine can take part" in lines
    assert lines[-1] == f"verdict: {VERDICT.sentence}"


def test_a_narrow_terminal_has_the_same_words(monkeypatch: pytest.MonkeyPatch) -> None:
    child(monkeypatch, [*(check.to_json() for check in CHECKS), VERDICT.to_json()], 2)
    texts = []
    for width in ("80", "200"):
        monkeypatch.setenv("COLUMNS", width)
        run_doctor(DoctorCommand(), stream := io.StringIO())
        texts.append(stream.getvalue())
    assert max(map(len, texts[0].splitlines())) <= 80
    assert texts[0].split() == texts[1].split()


def test_programs_get_what_the_child_said(monkeypatch: pytest.MonkeyPatch) -> None:
    said = [CHECKS[0].to_json(), VERDICT.to_json()]
    child(monkeypatch, said, 0)
    stream = io.StringIO()
    assert run_doctor(DoctorCommand(as_json=True), stream) == 0
    assert [json.loads(line) for line in stream.getvalue().splitlines()] == [json.loads(line) for line in said]


def test_an_examination_that_breaks_off_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it had found is shown all the same."""
    child(monkeypatch, [CHECKS[0].to_json()], 1, "ZeroDivisionError: oh")
    stream = io.StringIO()
    with pytest.raises(HomefiresError, match="the examination failed: ZeroDivisionError: oh"):
        run_doctor(DoctorCommand(), stream)
    assert "PASS" in stream.getvalue()


def test_what_the_person_chose_reaches_the_examination(monkeypatch: pytest.MonkeyPatch) -> None:
    """An invite names the folder that is looked at, also when it is over; one that does not hold is for the
    examination to tell."""
    seen = child(monkeypatch, [VERDICT.to_json()], 0)
    organiser = Identity.generate()
    address = f"/ip4/127.0.0.1/tcp/1/p2p/{organiser.peer_id}"
    invite = issue(organiser, run="mine", spec_hash=b"\xab" * 32, addrs=(address,), expires=1.0)
    run_doctor(
        DoctorCommand(invite=invite, devices="cuda:0,cuda:1", listen=("/ip4/0.0.0.0/tcp/1",), as_json=True),
        io.StringIO(),
    )
    assert (seen[:2], seen[3]) == (["peer", "doctor"], "--dir")
    assert seen[4].endswith("runs/mine-abababab")
    assert seen[5:] == ["--set", "settings.devices=cuda:0,cuda:1", "--listen", "/ip4/0.0.0.0/tcp/1"]
    seen.clear()
    assert main(["doctor", "--set", "data_path=books", "--json"]) == 0
    assert seen == ["peer", "doctor", "--set", "settings.data_path=books"], "as its own advice says it"
    seen.clear()
    run_doctor(DoctorCommand(invite="hf1:rubbish", as_json=True), io.StringIO())
    assert (seen[:2], len(seen)) == (["peer", "doctor"], 3)


def test_devices_are_listed_as_the_option_calls_them(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        {"device": "cuda:1", "name": "NVIDIA X", "uuid": "GPU-1", "free_bytes": 20 * 10**9, "total_bytes": 24 * 10**9},
        {"device": "cpu", "name": "x86_64", "uuid": "", "free_bytes": 0, "total_bytes": 0},
    ]
    seen = child(monkeypatch, ["a library is loading", json.dumps({"devices": rows})], 0)
    assert list_devices().splitlines() == ["cuda:1  NVIDIA X, 24.0 GB, 20.0 GB of it free", "cpu     x86_64"]
    assert seen == ["peer.tools.doctor.kernel_probe", "list"]


def test_what_a_library_prints_is_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    child(monkeypatch, ["loading kernels", "7", CHECKS[0].to_json(), VERDICT.to_json()], 0)
    for as_json in (False, True):
        stream = io.StringIO()
        assert run_doctor(DoctorCommand(as_json=as_json), stream) == 0
        assert "loading" not in stream.getvalue()


def test_an_examination_that_was_killed_says_what_that_can_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    program = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    monkeypatch.setattr(tui.commands.doctor, "python_module", lambda *_: [sys.executable, "-c", program])
    with pytest.raises(HomefiresError, match="was killed: it did not end within 300 s, or the system was short"):
        run_doctor(DoctorCommand(), io.StringIO())
