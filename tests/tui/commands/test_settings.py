"""`homefires set` and `homefires snooze`, with a peer behind a socket and without one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dht.errors import DirectoryBusy
from dht.identity import Identity
from dht.invite import issue
from peer.node.control import saved_settings
from peer.schema.settings import PeerSettings
from tests.tui.fake_control import FakePeer, serving
from tui.cli import main
from tui.commands.settings import values_for_start

Said = pytest.CaptureFixture[str]


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[FakePeer]:
    with serving(tmp_path, FakePeer()) as peer:
        yield peer


@pytest.mark.outside
def test_a_setting_is_changed_and_said(peer: FakePeer, tmp_path: Path, capsys: Said) -> None:
    words = ["schedule=mon-fri 22:00-07:00", "max_power_w=180", "pause_for=steam, obs", "on_battery=yes"]
    assert main(["set", *words, "--dir", str(tmp_path)]) == 0
    given = {"schedule": "mon-fri 22:00-07:00", "max_power_w": 180, "pause_for": ["steam", "obs"], "on_battery": True}
    assert peer.asked == [("set", {"values": given})]
    assert capsys.readouterr().out.splitlines() == [
        "attic: schedule is mon-fri 22:00-07:00", "attic: max_power_w is 180 W", "attic: pause_for is steam, obs",
        "attic: on_battery is yes",
    ]  # fmt: skip


@pytest.mark.outside
def test_what_needs_a_new_start_is_said(peer: FakePeer, tmp_path: Path, capsys: Said) -> None:
    assert main(["set", "devices=cpu", "--dir", str(tmp_path)]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told == ["attic: devices is cpu", "devices takes effect when the peer starts again"]


@pytest.mark.outside
@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("max_power_w=9000", "max_power_w is 9000; it must be between 0 and 2000"),
        ("max_power_w=much", "max_power_w is 'much'; it must be between 0 and 2000"),
        ("colour=red", "there is no setting 'colour'"), ("max_power_w", "is not of the form KEY=VALUE"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_and_changes_nothing(
    peer: FakePeer, tmp_path: Path, capsys: Said, word: str, said: str
) -> None:
    before = dict(peer.settings)
    assert main(["set", "nice=19", word, "--dir", str(tmp_path)]) == 2
    told = capsys.readouterr()
    assert (told.out, told.err.count("\n")) == ("", 1)
    assert said in told.err
    assert peer.settings == before


@pytest.mark.outside
def test_the_table_has_every_setting_its_meaning_and_what_it_holds_up(
    peer: FakePeer, tmp_path: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    peer.settings |= {"schedule": "mon-fri 22:00-07:00"}
    peer.holds = [{"code": "SCHEDULE", "why": "its schedule has it rest now", "until": None}]
    assert main(["set", "--dir", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    text = "\n".join(lines)
    for name in peer.settings:
        assert name in text
    for group in ("when", "heat and power", "network", "disk and memory", "machine"):
        assert group in lines
    row = next(number for number, line in enumerate(lines) if "schedule" in line and "22:00" in line)
    assert "the hours in which it may train" in lines[row]
    assert lines[row + 1].strip() == "holds it up now: its schedule has it rest now"
    assert "as soon as nothing holds it up" in text


@pytest.mark.outside
def test_the_table_for_programs(peer: FakePeer, tmp_path: Path, capsys: Said) -> None:
    peer.holds = [{"code": "QUOTA", "why": "used up", "until": 1_900_000_000.0}]
    assert main(["set", "--json", "--dir", str(tmp_path)]) == 0
    row = json.loads(capsys.readouterr().out)
    assert (row["running"], row["until"], row["holds"][0]["code"]) == (True, 1_900_000_000.0, "QUOTA")
    assert (row["settings"]["monthly_gb"]["value"], row["settings"]["monthly_gb"]["holds"]) == (0.0, True)
    assert row["settings"]["devices"]["at_start"]


@pytest.mark.outside
def test_a_peer_that_does_not_run_starts_with_what_was_set(tmp_path: Path, capsys: Said) -> None:
    """Beside what it was set to before, and with the checks of one that runs."""
    (tmp_path / "events.jsonl").touch()
    saved_settings.write(tmp_path, PeerSettings(nice=5))
    words = ["upload_mbps=5", 'name=a "b"', "on_battery=yes", "schedule=mon-fri 22:00-07:00"]
    assert main(["set", *words, "--dir", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        'a "b": upload_mbps is 5 Mbit/s', 'a "b": name is a "b"', 'a "b": on_battery is yes',
        'a "b": schedule is mon-fri 22:00-07:00', f"no peer runs in {tmp_path}; it starts with this",
    ]  # fmt: skip
    kept = saved_settings.read_table(tmp_path)
    assert kept == {
        "nice": 5, "upload_mbps": 5, "name": 'a "b"', "on_battery": True, "schedule": "mon-fri 22:00-07:00"
    }  # fmt: skip


@pytest.mark.outside
@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("uplaod_mbps=5", "did you mean 'upload_mbps'"), ("schedule=always", "schedule"),
        ("listen=4001", "4001"), ("max_temperature_c=9", "between 30 and 120"),
    ],
)  # fmt: skip
def test_what_a_running_peer_would_refuse_is_not_kept_for_the_next(
    tmp_path: Path, capsys: Said, word: str, said: str
) -> None:
    (tmp_path / "events.jsonl").touch()
    assert main(["set", "nice=19", word, "--dir", str(tmp_path)]) == 2
    told = capsys.readouterr()
    assert (told.out, told.err.count("\n")) == ("", 1)
    assert said in told.err
    assert not (tmp_path / "settings.toml").exists()


def test_a_folder_of_nobody_is_not_written_to(tmp_path: Path, capsys: Said) -> None:
    assert main(["set", "nice=19", "--dir", str(tmp_path)]) == 3
    assert f"no peer runs in {tmp_path}, and none ever has" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def invite() -> str:
    identity = Identity.generate()
    return issue(
        identity, run="mine", spec_hash=b"\xab" * 32, addrs=(f"/ip4/127.0.0.1/tcp/4001/p2p/{identity.peer_id}",)
    )


@pytest.mark.outside
def test_a_first_join_has_its_settings_from_the_beginning(
    fake_children: Callable[[str], None], invite: str, tmp_path: Path, capsys: Said
) -> None:
    """They lie in its folder: at a later start they are what their owner has made of them."""
    fake_children("well")
    words = ["--set", "schedule=mon-fri 22:00-07:00", "--set", "max_temperature_c=70"]
    assert main(["join", invite, "--dir", str(tmp_path / "p"), "--name", "al", "--yes", "--ui", "none", *words]) == 0
    assert saved_settings.read_table(tmp_path / "p") == {"schedule": "mon-fri 22:00-07:00", "max_temperature_c": 70}


@pytest.mark.parametrize("command", [["join"], ["service", "install"]])
def test_a_mistake_in_them_starts_nothing(command: list[str], invite: str, tmp_path: Path, capsys: Said) -> None:
    assert main([*command, invite, "--dir", str(tmp_path / "p"), "--yes", "--set", "max_temperature_c=700"]) == 2
    assert "--set: max_temperature_c is 700" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.outside
def test_a_join_does_not_change_the_settings_of_a_peer_that_runs(
    peer: FakePeer, invite: str, tmp_path: Path, capsys: Said
) -> None:
    words = ["--yes", "--ui", "none", "--set", "nice=19"]
    assert main(["join", invite, "--dir", str(tmp_path), *words]) == DirectoryBusy.exit_code
    assert peer.asked == []


def test_the_table_of_a_peer_that_does_not_run_is_what_its_file_says(tmp_path: Path, capsys: Said) -> None:
    (tmp_path / "settings.toml").write_text("upload_mbps = 7.5\nnobody_knows = 1\n")
    assert main(["set", "--dir", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert f"no peer runs in {tmp_path}" in told
    assert "7.5 Mbit/s" in told
    assert "nobody_knows" not in told
    (tmp_path / "settings.toml").write_text("upload_mbps =")
    assert main(["set", "--dir", str(tmp_path)]) == 2
    assert "settings.toml is not TOML" in capsys.readouterr().err
    assert main(["set", "--dir", str(tmp_path / "nowhere")]) == 2


@pytest.mark.outside
@pytest.mark.parametrize(("words", "minutes"), [([], 60), (["3"], 180), (["0.5"], 30)])
def test_snooze_says_until_when(peer: FakePeer, tmp_path: Path, capsys: Said, words: list[str], minutes: int) -> None:
    assert main(["snooze", *words, "--dir", str(tmp_path)]) == 0
    assert peer.asked == [("snooze", {"minutes": minutes})]
    told = capsys.readouterr().out
    assert told.startswith("attic is snoozed until ")
    assert "homefires resume" in told


@pytest.mark.outside
@pytest.mark.parametrize("hours", ["0", "-1", "nan", "inf"])
def test_hours_that_are_none_are_refused(peer: FakePeer, tmp_path: Path, capsys: Said, hours: str) -> None:
    assert main(["snooze", hours, "--dir", str(tmp_path)]) == 2
    assert peer.asked == []
    assert f"HOURS is {hours}" in capsys.readouterr().err


def test_a_narrow_terminal_has_every_word_of_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Said
) -> None:
    """Each meaning below its setting: nothing is longer than a line, and nothing is cut."""
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["set", "--dir", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    assert max(map(len, lines)) <= 80
    monkeypatch.setenv("COLUMNS", "140")
    assert main(["set", "--dir", str(tmp_path)]) == 0
    assert " ".join(lines).split() == " ".join(capsys.readouterr().out.splitlines()[1:]).split()


def test_a_folder_is_meant_from_where_it_was_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service starts the peer elsewhere, and so may its owner another time."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/ada")
    assert values_for_start(["data_path=books"]) == {"data_path": str(tmp_path / "books")}
    assert values_for_start(["data_path=~/books"]) == {"data_path": "/home/ada/books"}
    assert values_for_start(["data_path="]) == {"data_path": ""}
