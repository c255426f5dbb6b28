"""What is written for systemd, what it is asked, and what a person is told; systemd itself is played."""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dht.errors
import tui.commands.join
import tui.processes.systemd
from dht.errors import BadInput, Declined, DirectoryBusy, HomefiresError, RunMismatch, Unreachable
from dht.identity import Identity
from dht.identity import fingerprint_words as fingerprint
from dht.invite import issue
from peer.node.control import saved_settings
from peer.schema.events import PeerStarted, PeerStopped
from peer.schema.spec import load
from tests.tui.commands.test_run_end import committed, write
from tests.tui.fake_control import FakePeer, serving
from tui.cli import main, parse
from tui.commands.consent import consents
from tui.commands.join import JoinCommand
from tui.processes.systemd import FINAL, HOW_TO_LINGER, Service, UserUnits, describe, quoted, unit_name, unit_text

OLD, NEW = 252, 254


class Systemd:
    """Plays systemctl and loginctl."""

    def __init__(self, *, version: int = OLD, linger: str = "no", failing: str = "", why: str = "") -> None:
        self.asked: list[str] = []
        self._version, self._linger, self._failing, self._why = version, linger, failing, why

    def __call__(self, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
        asked = " ".join(words)
        self.asked.append(asked)
        if self._failing and self._failing in asked:
            return subprocess.CompletedProcess(words, 1, "", self._why)
        said = {"systemctl --version": f"systemd {self._version} (x)\n+PAM", "loginctl": f"Linger={self._linger}\n"}
        text = next((told for start, told in said.items() if asked.startswith(start)), "ActiveState=active\n")
        return subprocess.CompletedProcess(words, 0, text, "")


@pytest.fixture
def service(tmp_path: Path) -> Service:
    directory = tmp_path / "run 100%"
    directory.mkdir()
    argv = [sys.executable, "-m", "peer", "join", "hf1:x", "--dir", str(directory), "--set", "settings.name=a b$c"]
    return Service(argv=argv, directory=directory, log=directory / "peer.log", what="a peer of tiny")


def value_of(text: str, key: str) -> str:
    return next(line.partition("=")[2] for line in text.splitlines() if line.startswith(f"{key}="))


# ---- the unit ----


def test_delays_grow_where_systemd_can(service: Service) -> None:
    new, old = unit_text(service, NEW), unit_text(service, OLD)
    assert [value_of(new, key) for key in ("RestartSec", "RestartSteps", "RestartMaxDelaySec")] == ["10", "6", "600"]
    assert value_of(old, "RestartSec") == "120"
    assert "RestartSteps" not in old
    assert value_of(old, "Restart") == value_of(new, "Restart") == "on-failure"


def test_what_a_person_must_mend_first_is_not_started_again(service: Service) -> None:
    """Every branch of the error tree is either waited out or not; a new one must be thought about."""
    assert value_of(unit_text(service, NEW), "RestartPreventExitStatus") == "2 4 5 6 9 11 14 15 16 17"
    codes = {
        kind.exit_code
        for kind in vars(dht.errors).values()
        if isinstance(kind, type) and issubclass(kind, HomefiresError)
    }
    assert codes - set(FINAL) == {1, 3, 7, 8, 10, 12, 13}, "a bug, nobody, a demo, a full disk, a clock, a GPU"


def test_it_ends_politely_and_keeps_a_log(service: Service) -> None:
    text = unit_text(service, NEW)
    assert (value_of(text, "KillMode"), value_of(text, "SuccessExitStatus")) == ("mixed", "130")
    assert value_of(text, "StandardError") == f"append:{service.log}".replace("%", "%%")
    assert value_of(text, "WantedBy") == "default.target"


@settings(derandomize=True, max_examples=200, deadline=None)
@given(st.text(st.characters(categories=("L", "N", "P", "S", "Zs")), min_size=1))
def test_a_word_stays_one_word(word: str) -> None:
    """Quotes and backslashes as in a shell's double quotes; % and $ doubled."""
    if not word.isprintable():
        with pytest.raises(BadInput):
            quoted(word)
        return
    assert shlex.split(quoted(word).replace("%%", "%").replace("$$", "$")) == [word]


def test_no_line_can_be_smuggled_in(service: Service) -> None:
    with pytest.raises(BadInput, match="no unit file can hold"):
        unit_text(Service(argv=["x\nExecStartPre=evil"], directory=service.directory, log=service.log, what=""), NEW)


@pytest.mark.outside
@pytest.mark.parametrize("version", [OLD, NEW])
def test_systemd_itself_accepts_the_unit(
    service: Service, version: int, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Where it is installed, and knows the settings. What it does not know it names."""
    checker = shutil.which("systemd-analyze")
    if checker is None or UserUnits().version() < version:
        record_property("systemd-analyze", "not run")
        return
    path = tmp_path / service.name
    for text, fault in ((unit_text(service, version), ""), (unit_text(service, version) + "[Service]\nOdd=1\n", "Odd")):
        path.write_text(text)
        told = subprocess.run(
            [checker, "verify", "--user", "--man=no", str(path)], env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert told.returncode == 0, told.stderr
        assert fault in told.stderr
        assert (service.name in told.stderr) == bool(fault), told.stderr


def test_every_folder_has_a_unit_of_its_own(tmp_path: Path) -> None:
    names = {unit_name(tmp_path / name) for name in ("a", "b", "a b", "a_b")}
    assert len(names) == 4
    assert all(name.startswith("homefires-") and " " not in name for name in names)


# ---- install, status, remove ----


def test_a_service_is_installed_for_its_user_alone(service: Service, tmp_path: Path) -> None:
    systemd = Systemd()
    said = UserUnits(tmp_path / "units", systemd).install(service)
    path = tmp_path / "units" / service.name
    assert path.read_text() == unit_text(service, OLD)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert systemd.asked[2:5] == [
        "systemctl --user daemon-reload", f"systemctl --user enable {service.name}",
        f"systemctl --user restart {service.name}",
    ]  # fmt: skip
    assert said[1:] == [HOW_TO_LINGER], "told, not done"
    assert not any("enable-linger" in asked for asked in systemd.asked)


def test_who_lingers_already_is_not_told_to(service: Service, tmp_path: Path) -> None:
    assert len(UserUnits(tmp_path / "units", Systemd(linger="yes")).install(service)) == 1


@pytest.mark.parametrize(
    "why", ["Failed to connect to bus: No medium found", "System has not been booted with systemd as init system"]
)
def test_without_systemd_nothing_is_written_and_one_line_says_what_to_do(
    service: Service, tmp_path: Path, why: str
) -> None:
    with pytest.raises(Unreachable, match="has no systemd for its users; homefires join INVITE --keep-running"):
        UserUnits(tmp_path / "units", Systemd(failing="show-environment", why=why)).install(service)
    assert not (tmp_path / "units").exists()


@pytest.mark.outside
def test_no_systemctl_at_all_is_the_same_line(service: Service, tmp_path: Path) -> None:
    def none(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
        return tui.processes.systemd.run(["there-is-no-such-command-here"])

    with pytest.raises(Unreachable, match="has no systemd for its users"):
        UserUnits(tmp_path / "units", none).install(service)


def test_what_systemd_refuses_is_told(service: Service, tmp_path: Path) -> None:
    with pytest.raises(HomefiresError, match=r"systemctl --user enable .*: Unit is masked"):
        UserUnits(tmp_path / "units", Systemd(failing="enable", why="x\nUnit is masked")).install(service)


def test_a_removed_service_leaves_its_folder(service: Service, tmp_path: Path) -> None:
    units = UserUnits(tmp_path / "units", systemd := Systemd())
    units.install(service)
    assert units.names() == [service.name]
    units.remove(service.name)
    assert units.names() == []
    assert f"systemctl --user disable --now {service.name}" in systemd.asked
    assert service.directory.is_dir()
    with pytest.raises(BadInput, match="no service is installed as"):
        units.remove(service.name)


@pytest.mark.parametrize(
    ("known", "told"),
    [
        ({"ActiveState": "active", "NRestarts": "0", "UnitFileState": "enabled"}, "runs"),
        ({"ActiveState": "active", "NRestarts": "3", "UnitFileState": "enabled"}, "runs; started again 3 times"),
        (
            {
                "ActiveState": "activating",
                "SubState": "auto-restart",
                "ExecMainStatus": "3",
                "UnitFileState": "enabled",
            },
            "has ended with exit code 3 and is about to start again",
        ),
        (
            {"ActiveState": "failed", "ExecMainStatus": "5", "UnitFileState": "enabled"},
            "has failed with exit code 5 and is not started again: see its log",
        ),
        ({"ActiveState": "inactive"}, "does not run; does not start by itself"),
    ],
)
def test_status_is_in_words(known: dict[str, str], told: str) -> None:
    assert describe(known) == told


# ---- the command ----


@pytest.fixture
def invite() -> str:
    identity = Identity.from_seed(b"i" * 32)
    address = f"/ip4/127.0.0.1/tcp/4001/p2p/{identity.peer_id}"
    return issue(identity, run="mine", spec_hash=b"\xab" * 32, addrs=(address,))


@pytest.mark.outside
def test_print_writes_nothing(
    invite: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The right interpreter, the right folder; it goes on by itself when whoever installed it logs out. The invite is
    named by its file: everybody on the machine can read the command line."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    assert main(["service", "install", invite, "--dir", str(tmp_path / "p"), "--name", "al", "--print"]) == 0
    command = shlex.split(value_of(capsys.readouterr().out, "ExecStart"))
    assert command[:4] == [sys.executable, "-m", "peer", "join"]
    place = tmp_path / "p"
    assert command[4:] == [str(place / "invite"), "--dir", str(place), "--set", "settings.name=al", "--stay"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.outside
def test_print_is_for_the_systemd_of_this_machine(
    invite: str, systemd: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """That of 252 knows no RestartSteps."""
    assert main(["service", "install", invite, "--dir", str(tmp_path / "p"), "--print"]) == 0
    unit = capsys.readouterr().out
    assert "RestartSteps" not in unit
    assert "RestartSec=120" in unit


@pytest.mark.outside
def test_a_peer_that_has_taken_part_is_installed_with_an_invite_that_is_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    organiser = Identity.from_seed(b"i" * 32)
    address = f"/ip4/127.0.0.1/tcp/4001/p2p/{organiser.peer_id}"
    over = issue(organiser, run="mine", spec_hash=b"\xab" * 32, addrs=(address,), expires=1.0)
    assert main(["service", "install", over, "--dir", str(tmp_path), "--print"]) == 2
    (tmp_path / "genesis").touch()
    assert main(["service", "install", over, "--dir", str(tmp_path), "--print"]) == 0
    assert str(tmp_path / "invite") in capsys.readouterr().out


@pytest.mark.outside
def test_the_node_of_an_organiser_is_served_from_its_own_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--dir", str(tmp_path / "b"), "--upload", "20", "--health-port", "9100", "--print"]
    assert main(["service", "install", "micro", "--bootstrap", *words]) == 0
    text = capsys.readouterr().out
    command = shlex.split(value_of(text, "ExecStart"))
    assert command[1:5] == ["-m", "tui", "bootstrap", str(tmp_path / "b" / "spec.toml")]
    assert command[5:] == ["--dir", str(tmp_path / "b"), "--ui", "none", "--upload", "20", "--health-port", "9100"]
    assert value_of(text, "StandardError") == f"append:{tmp_path / 'b' / 'bootstrap.log'}"


def test_nothing_installed_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert main(["service", "status"]) == 0
    assert "no service is installed" in capsys.readouterr().out
    assert main(["service", "remove"]) == 2
    assert capsys.readouterr().err == "homefires: no service is installed\n"


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Commands of the system that say yes to everything. The folder of the units."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, said in (("systemctl", "systemd 252 (x)\nActiveState=active"), ("loginctl", "Linger=no")):
        (programs / name).write_text(f"#!/bin/sh\ncat <<'END'\n{said}\nEND\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=os.pathsep)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config" / "systemd" / "user"


@pytest.mark.outside
def test_a_person_installs_looks_and_removes(
    invite: str, systemd: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "p"
    name = unit_name(directory)
    assert main(["service", "install", invite, "--dir", str(directory), "--yes"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said == [f"a peer of mine runs as {name}; look with: homefires service status", HOW_TO_LINGER]
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert (directory / "invite").read_text() == invite
    assert main(["service", "status"]) == 0
    assert capsys.readouterr().out == f"{name}: runs; does not start by itself\n"
    assert main(["service", "remove", "--dir", str(directory)]) == 0
    assert not (systemd / name).exists()


@pytest.mark.outside
@pytest.mark.parametrize(("chosen", "kept"), [(None, {}), ((), {}), (("offload=yes",), {"offload": True})])
def test_what_the_owner_answers_holds_for_the_service(
    invite: str, systemd: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    chosen: tuple[str, ...] | None, kept: dict[str, bool],
) -> None:  # fmt: skip
    """A no installs nothing."""

    def answers(join: JoinCommand, **asked: Any) -> tuple[str, ...]:
        if chosen is None:
            raise Declined("not joined")
        assert consents(join, **asked | {"yes": True}) == ()
        return chosen

    monkeypatch.setattr(tui.commands.join, "consents", answers)
    code = main(["service", "install", invite, "--dir", str(tmp_path / "p")])
    assert code == (Declined.exit_code if chosen is None else 0)
    assert systemd.exists() == (chosen is not None)
    assert saved_settings.read_table(tmp_path / "p") == kept


INVITED = ("--admission", "--set", "run.founders=2")


@pytest.mark.outside
def test_an_organiser_installs_a_node_with_all_its_options(
    systemd: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run is the one that `homefires bootstrap` would start with them. Invites are for whoever asks later: nobody
    reads what the unit prints."""
    also = f"/ip4/198.51.100.7/tcp/4001/p2p/{Identity.from_seed(b'a' * 32).peer_id}"
    words = ["--listen", "/ip4/0.0.0.0/tcp/4001", "--announce", "/dns4/my.example/tcp/4001", "--also", also]
    words += ["--expires", "7d", "--members-for", "2d", "--page", str(tmp_path / "page")]
    chosen = [*INVITED, "--invites", "5", *words, "--keep", str(tmp_path / "kept")]
    assert main(["service", "install", "micro", "--bootstrap", *chosen]) == 0
    (directory,) = (tmp_path / "data" / "homefires" / "bootstrap").iterdir()
    spec = load(str(directory / "spec.toml"))
    assert (spec.admission.policy, spec.run.founders) == ("invited", 2)
    command = shlex.split(value_of((systemd / unit_name(directory)).read_text(), "ExecStart"))
    expected = ["bootstrap", command[4], *words, "--dir", str(directory), "--keep", str(tmp_path / "kept")]
    assert parse(command[3:]) == parse([*expected, "--ui", "none"])
    organiser = Identity.load_or_create(directory / "identity.key").peer_id
    assert capsys.readouterr().out.splitlines()[2:] == [
        f"people are shown these words for you; tell them by another way than the invite: {fingerprint(organiser)}",
        f"print invites with: homefires invite {directory} --invites 5 --expires 7d",
    ]


@pytest.mark.outside
def test_a_forgotten_option_does_not_found_another_run(
    systemd: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An open run beside the one that asks for an admission: who means it names a folder."""
    assert main(["service", "install", "micro", "--bootstrap", *INVITED]) == 0
    (first,) = (tmp_path / "data" / "homefires" / "bootstrap").iterdir()
    capsys.readouterr()
    for command in (["service", "install", "micro", "--bootstrap"], ["bootstrap", "micro"]):
        assert main(command) == RunMismatch.exit_code
        assert capsys.readouterr().err.startswith(f"homefires: {first} is of a run called micro already")
    assert list(first.parent.iterdir()) == [first]
    for words in (["micro", *INVITED], [str(first / "spec.toml")], ["micro", "--dir", str(tmp_path / "other")]):
        assert main(["service", "install", *words, "--bootstrap"]) == 0
    assert list(first.parent.iterdir()) == [first]


@pytest.mark.outside
def test_what_the_node_would_fail_with_is_said_before_it_is_installed(
    systemd: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["service", "install", "micro", "--bootstrap", "--dir", str(tmp_path / "b"), "--expires", "soon"]
    assert main(words) == BadInput.exit_code
    assert capsys.readouterr().err == "homefires: --expires is 'soon'; write a time such as 30m, 12h, 7d or 4w\n"
    assert not systemd.exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--announce", "/ip4/192.0.2.1/tcp/1"], "--announce is a node's: add --bootstrap"),
        (["--health-port", "9100"], "--health-port is a node's"),
        (["--keep", "kept"], "--keep is a node's"),
        (["--admission"], "--admission is a node's"),
        (["--members-for", "2d"], "--members-for is a node's"),
        (["--bootstrap", "--name", "al"], "--name is a peer's: leave it out with --bootstrap"),
        (["--bootstrap", "--devices", "cpu"], "--devices is a peer's"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(
    invite: str, tmp_path: Path, words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    what = "micro" if "--bootstrap" in words else invite
    assert main(["service", "install", what, "--dir", str(tmp_path / "p"), "--print", *words]) == 2
    assert says in capsys.readouterr().err


def test_a_folder_without_a_service_is_said_to_have_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """systemd itself calls a unit that it does not know inactive."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert main(["service", "status", "--dir", str(tmp_path / "p")]) == 0
    assert f"no service is installed for {tmp_path / 'p'}" in capsys.readouterr().out


@pytest.mark.outside
def test_a_folder_in_which_a_peer_runs_gets_no_service(
    invite: str, systemd: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would end at once and never be started again, while the person is told that it runs."""
    (tmp_path / "p" / "run").mkdir(parents=True)
    with (tmp_path / "p" / "run" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert main(["service", "install", invite, "--dir", str(tmp_path / "p"), "--yes"]) == DirectoryBusy.exit_code
    assert "a peer runs in" in capsys.readouterr().err
    assert not systemd.exists()


@pytest.mark.outside
@pytest.mark.parametrize("bootstrap", [False, True])
def test_without_systemd_nothing_is_kept_of_what_was_asked(
    invite: str, bootstrap: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither a yes, nor the invite, nor the spec of a node that nothing will start."""
    monkeypatch.setenv("PATH", str(tmp_path))
    what = ["micro", "--bootstrap"] if bootstrap else [invite, "--yes"]
    assert main(["service", "install", *what, "--dir", str(tmp_path / "p")]) == Unreachable.exit_code
    assert "has no systemd for its users" in capsys.readouterr().err
    assert not (tmp_path / "p").exists()


@pytest.mark.outside
def test_settings_are_kept_in_the_folder_and_not_in_the_unit(
    invite: str, systemd: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the unit they would undo at every start what their owner has changed since."""
    directory = tmp_path / "p"
    words = ["service", "install", invite, "--dir", str(directory), "--yes", "--set", "schedule=22:00-07:00"]
    assert main([*words, "--name", "al", "--devices", "cpu"]) == 0
    assert "--set" not in (systemd / unit_name(directory)).read_text()
    assert saved_settings.read_table(directory) == {"schedule": "22:00-07:00", "name": "al", "devices": ["cpu"]}
    assert main([*words, "--print"]) == 2
    assert "--set is kept in the peer's folder" in capsys.readouterr().err


@pytest.mark.outside
def test_a_device_that_does_not_compute_is_not_left_to_a_service(
    invite: str, systemd: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The peer would end at each start, and nobody would see why."""
    directory = tmp_path / "p"
    words = ["service", "install", invite, "--dir", str(directory), "--yes", "--devices", "cuda:99"]
    assert main(words) == BadInput.exit_code
    assert "cuda:99" in capsys.readouterr().err
    assert saved_settings.read_table(directory) == {}
    assert not list(systemd.glob("*"))


@pytest.mark.outside
def test_who_leaves_hears_that_the_service_starts_it_again(
    invite: str, systemd: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And how to have it otherwise; without a service it stays away."""
    directory = tmp_path / "p"
    with serving(tmp_path, FakePeer()):
        assert main(["leave", "--dir", str(tmp_path)]) == 0
    back = f"homefires join {tmp_path / 'invite'} --dir {tmp_path}"
    assert capsys.readouterr().out == f"attic leaves the run; come back with: {back}\n"
    assert main(["service", "install", invite, "--dir", str(directory), "--yes"]) == 0
    capsys.readouterr()
    with serving(directory, peer := FakePeer()):
        assert main(["leave", "--dir", str(directory)]) == 0
    assert [cmd for cmd, _ in peer.asked] == ["leave"]
    unit = unit_name(directory)
    then = (
        f"its service starts it again at the next login or boot, or now with: systemctl --user start {unit}; "
        f"keep it from that with: homefires service remove --dir {directory}\n"
    )
    assert capsys.readouterr().out == f"attic leaves the run; {then}"
    assert main(["leave", "--dir", str(directory)]) == 3
    assert capsys.readouterr().err == f"homefires: no peer runs in {directory}; {then}"
    write(directory, PeerStarted(name="a", version="0", rounds=1), committed(1), PeerStopped(why="the run is finished"))
    assert main(["leave", "--dir", str(directory)]) == 3
    said = capsys.readouterr().err
    assert said.startswith(f"homefires: no peer runs in {directory}: its run is finished; talk to the model")
    assert said.endswith(then)
