"""A peer in the background, and a dashboard that comes and goes."""

from __future__ import annotations

import fcntl
import io
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

import tui.commands.attach
import tui.commands.join
from dht.errors import BadInvite, DirectoryBusy, HomefiresError, Unreachable
from dht.identity import Identity
from dht.invite import issue
from peer.schema.events import EventLine, PeerStarted, format_line
from peer.testing.child_process import HANG_S
from tui.command_line import words_of
from tui.commands.attach import attach, how_to_come_back, join_and_attach
from tui.commands.join import JoinCommand
from tui.commands.options import DisplayOptions
from tui.folders import is_at_work
from tui.output.output import PlainOutput

FAKE_PEER = Path(__file__).parents[1] / "fake_peer.py"
LOOK = DisplayOptions()


class Bench:
    """`join` with a peer that only plays, and a dashboard that is closed at once."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.directory = directory / "peer"
        self.stream = io.StringIO()
        self.output = PlainOutput(self.stream)
        self.shown: list[Path] = []
        self.argv: list[str] = []
        self._monkeypatch = monkeypatch
        identity = Identity.generate()
        address = f"/ip4/127.0.0.1/tcp/4001/p2p/{identity.peer_id}"
        self.invite = issue(identity, run="mine", spec_hash=b"\xab" * 32, addrs=(address,))

    def run(self, behaviour: str, outcome: Callable[[], str] = lambda: "detach") -> int:
        """The exit code of `join`, whose dashboard is closed with that outcome."""

        def command(module: str, *arguments: str) -> list[str]:
            self.argv = [module, *arguments]
            return [sys.executable, str(FAKE_PEER), behaviour, str(self.directory)]

        def show(directory: Path, look: DisplayOptions) -> str:
            self.shown.append(directory)
            return outcome()

        self._monkeypatch.setattr(tui.commands.join, "python_module", command)
        self._monkeypatch.setattr(tui.commands.attach, "show_peer", show)
        return join_and_attach(JoinCommand(invite=self.invite, directory=self.directory), LOOK, self.output)

    @property
    def text(self) -> str:
        return self.stream.getvalue()

    def processes(self) -> list[psutil.Process]:
        return [
            process
            for process in psutil.process_iter(["cmdline"])
            if str(self.directory) in (process.info["cmdline"] or [])
        ]

    def stop_peer(self) -> None:
        for process in self.processes():
            process.terminate()
            process.wait(HANG_S)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setenv("PYTHONPATH", str(FAKE_PEER.parents[2]))
    bench = Bench(tmp_path, monkeypatch)
    yield bench
    for process in bench.processes():
        process.kill()


@pytest.mark.outside
def test_a_detached_peer_goes_on_in_a_session_of_its_own(bench: Bench) -> None:
    """Nothing that ends the launcher's terminal ends it; the person is told how to come back and how to stop it."""
    assert bench.run("stays") == 0
    assert bench.shown == [bench.directory]
    (process,) = bench.processes()
    assert os.getsid(process.pid) == process.pid
    assert is_at_work(bench.directory)
    assert "looking for the run" in bench.text
    where = f" --dir {bench.directory}"
    assert f"come back with: homefires attach{where}; stop with: homefires leave{where}" in bench.text
    bench.stop_peer()


@pytest.mark.outside
def test_nothing_that_the_peer_or_its_children_print_is_seen(bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    """It would land in the middle of the dashboard; stderr is in the log."""
    bench.run("noisy")
    bench.stop_peer()
    assert capfd.readouterr() == ("", "")
    assert "NOISE" not in bench.text
    assert (bench.directory / "peer.log").read_text().splitlines() == ["NOISE from below", "NOISE"]


@pytest.mark.outside
def test_a_peer_that_fails_before_it_starts_is_an_error_as_ever(bench: Bench) -> None:
    """Its one line, in the branch of its exit code; no dashboard was opened."""
    with pytest.raises(Unreachable, match=r"^nobody answered at tcp/4001$"):
        bench.run("refuses")
    assert bench.shown == []
    assert bench.processes() == []


def test_a_bad_invite_starts_nothing(bench: Bench) -> None:
    bench.invite = "hf1:rubbish"
    with pytest.raises(BadInvite):
        bench.run("stays")
    assert not bench.directory.exists()


@pytest.mark.outside
def test_leaving_waits_for_the_end(bench: Bench) -> None:
    """The dashboard asked the peer; what it says at last is told."""

    def leave() -> str:
        for process in bench.processes():
            process.terminate()
        return "leave"

    assert bench.run("stays", leave) == 0
    assert "the peer has stopped: asked to leave" in bench.text
    assert bench.processes() == []


@pytest.mark.outside
def test_a_peer_that_crashes_under_the_dashboard_is_an_error_that_names_its_log(bench: Bench) -> None:
    def watch() -> str:
        with (bench.directory / "run" / "lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH)  # ours once the peer is gone; the test itself has a time-out
        return "ended"

    with pytest.raises(HomefiresError, match=r"^peer: killed by SIGKILL; its log is .*peer\.log$") as caught:
        bench.run("crashes", watch)
    assert caught.value.exit_code == 1


@pytest.mark.outside
def test_a_directory_that_is_served_offers_the_dashboard(bench: Bench) -> None:
    bench.run("stays")
    with pytest.raises(DirectoryBusy, match=r"already; look at it with: homefires attach --dir ") as caught:
        bench.run("stays")
    assert caught.value.exit_code == 6
    assert len(bench.processes()) == 1
    bench.stop_peer()


@pytest.mark.outside
def test_what_the_person_chose_reaches_the_peer_that_stays(bench: Bench) -> None:
    assert bench.run("stays") == 0
    assert bench.argv == ["peer", "join", str(bench.directory / "invite"), "--dir", str(bench.directory)]
    assert (bench.directory / "invite").read_text() == bench.invite
    assert bench.processes()[0].cmdline()[-1] == "--stay"
    bench.stop_peer()


@pytest.mark.outside
def test_an_interrupt_while_it_starts_stops_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has seen a dashboard yet: Ctrl-C means what it meant."""

    class Impatient(PlainOutput):
        def show(self, line: EventLine) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr(tui.commands.attach, "POLL_S", 0.01)
    bench.output = Impatient(bench.stream)
    assert bench.run("stays") == 130
    assert bench.processes() == []
    assert "the peer is stopped: its dashboard was not open yet" in bench.text


@pytest.mark.outside
def test_an_interrupt_while_the_dashboard_opens_tells_that_the_peer_goes_on(bench: Bench) -> None:
    """It trains by then, and nobody sees it."""

    def interrupt() -> str:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bench.run("stays", interrupt)
    assert "training goes on; come back with: homefires attach" in bench.text
    assert len(bench.processes()) == 1
    bench.stop_peer()


@pytest.mark.outside
def test_an_interrupt_while_it_leaves_says_where_to_look(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(subprocess.Popen[bytes]):
        def wait(self, timeout: float | None = None) -> int:
            raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "Popen", Slow)
    assert bench.run("stays", lambda: "leave") == 130
    assert "not waited for; look with: homefires status" in bench.text
    bench.stop_peer()


@pytest.mark.outside
def test_what_was_written_before_is_not_read_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer of long standing has megabytes of events: its dashboard must not wait for them."""
    bench.directory.mkdir()
    line = EventLine(
        seq=0, t=time.time() + 3600.0, run="fake", peer="id-old", event=PeerStarted(name="old", version="0")
    )
    (bench.directory / "events.jsonl").write_text((format_line(line) + "\n") * 20_000)
    monkeypatch.setattr(tui.commands.attach, "SLICE", 1)
    assert bench.run("stays") == 0
    assert "old" not in bench.text
    assert "alice: started" in bench.text
    bench.stop_peer()


def test_attaching_where_no_peer_runs_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(Unreachable, match=r"no peer runs in .*homefires watch"):
        attach(tmp_path, LOOK)


@pytest.mark.outside
@pytest.mark.parametrize(
    ("outcome", "words"), [("detach", "training goes on; come back with"), ("leave", "the peer leaves the run")]
)
def test_what_is_told_after_a_dashboard(
    bench: Bench, outcome: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the peer goes on."""
    bench.run("stays")
    monkeypatch.setattr(tui.commands.attach, "show_peer", lambda directory, look: outcome)
    assert words in attach(bench.directory, LOOK)
    bench.stop_peer()


@pytest.mark.outside
def test_a_peer_that_ended_while_it_was_shown(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not go on, however the dashboard was closed."""
    bench.run("stays")

    def stop(directory: Path, look: DisplayOptions) -> str:
        bench.stop_peer()
        return "detach"

    monkeypatch.setattr(tui.commands.attach, "show_peer", stop)
    assert attach(bench.directory, LOOK) == "the peer has stopped: asked to leave"


def test_the_peer_that_reported_last_needs_no_name(tmp_path: Path) -> None:
    """The commands find it by themselves."""
    mine = tmp_path / "data" / "homefires" / "runs" / "tiny-00000000"
    mine.mkdir(parents=True)
    line = EventLine(seq=0, t=0.0, run="r", peer="p", event=PeerStarted(name="x", version="0"))
    (mine / "events.jsonl").write_text(format_line(line) + "\n")
    assert "homefires attach; stop with: homefires leave" in how_to_come_back(mine)
    assert "homefires leave --dir '/a b'" in how_to_come_back(Path("/a b"))


def test_a_look_is_the_same_on_a_command_line() -> None:
    assert words_of(DisplayOptions(read_only=True, ascii_only=True, mono=True)) == ["--ascii", "--mono", "--read-only"]
    assert words_of(LOOK) == []
