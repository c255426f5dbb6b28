"""Looking at what is written, at a peer at work, and at a run from outside."""

from __future__ import annotations

import fcntl
import io
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

import tui.commands.watch
from dht.errors import BadInput, BadInvite, HomefiresError, Unreachable
from dht.identity import Identity
from dht.invite import issue
from peer.schema.events import EventLine, PeerStarted, PeerStateChanged, format_line
from peer.testing.child_process import HANG_S
from tui.cli import main
from tui.commands.options import DisplayOptions
from tui.commands.watch import DemoControl, DemoSource, WatchCommand, watch_in_dashboard, watch_in_lines
from tui.output.output import JsonOutput, PlainOutput
from tui.output.viewer import VIEWER_CODES
from tui.processes.children import Output
from tui.sources.child import ChildSource
from tui.sources.source import EventSource

RECORDING = Path(__file__).parents[1] / "recordings" / "demo.jsonl"
LINES = [
    EventLine(seq=0, t=100.0, run="r", peer="p", event=PeerStarted(name="alice", version="0")),
    EventLine(seq=1, t=101.0, run="r", peer="p", event=PeerStateChanged(state="TRAINING", why="towards round 1")),
]
PRINTING = "print(" + repr("\n".join([*map(format_line, LINES), "noise"])) + ", flush=True)"


@pytest.fixture
def invite() -> str:
    identity = Identity.generate()
    address = f"/ip4/127.0.0.1/tcp/4001/p2p/{identity.peer_id}"
    return issue(identity, run="mine", spec_hash=b"\xab" * 32, addrs=(address,))


def test_a_recording_in_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """What the plain log of it was; `auto` is that in a pipe."""
    for words in (("--ui", "plain"), ()):
        assert main(["watch", str(RECORDING), *words]) == 0
        told = capsys.readouterr().out
        assert "round 12/20 · " in told
        assert "\x1b" not in told


def test_a_recording_as_json_is_itself(tmp_path: Path) -> None:
    """What is no event is left out."""
    path = tmp_path / "events.jsonl"
    path.write_text("\n".join(["rubbish", *map(format_line, LINES), '{"v":1']) + "\n")
    out = io.StringIO()
    assert watch_in_lines(WatchCommand(what=str(path)), JsonOutput(out, io.StringIO())) == 0
    assert out.getvalue().splitlines() == [format_line(line) for line in LINES]


def test_a_folder_in_lines(tmp_path: Path) -> None:
    """Of a peer that has ended."""
    (tmp_path / "events.jsonl").write_text(format_line(LINES[0]) + "\n")
    out = io.StringIO()
    assert watch_in_lines(WatchCommand(what=str(tmp_path)), PlainOutput(out)) == 0
    assert out.getvalue() == "00:00  alice: started\n"


@contextmanager
def at_work(directory: Path) -> Iterator[None]:
    """Somebody holds the directory."""
    (directory / "run").mkdir()
    with (directory / "run" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.mark.outside
def test_a_peer_at_work_without_a_socket_cannot_be_followed(tmp_path: Path) -> None:
    with at_work(tmp_path), pytest.raises(Unreachable):
        watch_in_lines(WatchCommand(what=str(tmp_path)), Output())


@pytest.mark.parametrize("text", ["", "rubbish\n"])
def test_what_holds_no_events_is_a_mistake(tmp_path: Path, text: str) -> None:
    path = tmp_path / "file"
    path.write_text(text)
    for what in (path, tmp_path):
        with pytest.raises(BadInput, match="holds no events"):
            watch_in_lines(WatchCommand(what=str(what)), Output())


def test_a_run_is_looked_for_only_with_a_good_invite() -> None:
    with pytest.raises(BadInvite):
        watch_in_lines(WatchCommand(what="hf1:rubbish"), Output())


@pytest.mark.outside
def test_a_run_from_outside_in_lines(invite: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tui.commands.watch, "python_module", lambda *_: [sys.executable, "-c", PRINTING])
    out = io.StringIO()
    assert watch_in_lines(WatchCommand(what=invite), PlainOutput(out)) == 0
    assert "00:01  alice: TRAINING: towards round 1" in out.getvalue()
    assert "lines of the watch's output that are no events: 1" in out.getvalue()


@pytest.mark.outside
def test_an_organiser_watches_by_the_folder_of_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its key lets the watcher in, also where the invite that it keeps is over. No token is on a command line."""
    organiser = Identity.load_or_create(tmp_path / "identity.key")
    address = f"/ip4/127.0.0.1/tcp/4001/p2p/{organiser.peer_id}"
    text = issue(organiser, run="mine", spec_hash=b"\xab" * 32, addrs=(address,), expires=1.0)
    (tmp_path / "invite").write_text(text)
    with pytest.raises(BadInput, match="holds no events"):  # so far it might be the folder of a peer
        watch_in_lines(WatchCommand(what=str(tmp_path)), Output())
    (tmp_path / "bootstrap.log").touch()
    seen: list[tuple[str, ...]] = []

    def command(*words: str) -> list[str]:
        seen.append(words)
        return [sys.executable, "-c", PRINTING]

    monkeypatch.setattr(tui.commands.watch, "python_module", command)
    assert watch_in_lines(WatchCommand(what=str(tmp_path)), Output()) == 0
    assert seen == [("peer", "watch", str(tmp_path / "invite"), "--organiser", str(tmp_path))]


@pytest.mark.outside
def test_a_run_that_cannot_be_found_is_an_error_without_a_dashboard(
    invite: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the branch of the child's exit code."""
    program = "import sys; print('homefires: nobody answered', file=sys.stderr); sys.exit(3)"
    monkeypatch.setattr(tui.commands.watch, "python_module", lambda *_: [sys.executable, "-c", program])
    monkeypatch.setattr(tui.commands.watch, "show_source", lambda *_: pytest.fail("nothing to show"))
    with pytest.raises(Unreachable, match=r"^nobody answered$"):
        watch_in_dashboard(WatchCommand(what=invite), DisplayOptions(), Output())


@pytest.mark.outside
def test_the_log_that_an_error_names_is_there(invite: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the last watch alone, so that it does not grow."""
    program = "import sys; print('Traceback', file=sys.stderr); sys.exit(1)"
    monkeypatch.setattr(tui.commands.watch, "python_module", lambda *_: [sys.executable, "-c", program])
    for _ in range(2):
        with pytest.raises(HomefiresError, match=r"its log is .*watch\.log") as caught:
            watch_in_lines(WatchCommand(what=invite), Output())
        assert Path(str(caught.value).rpartition(" is ")[2]).read_text() == "Traceback\n"


def test_a_line_that_cannot_be_read_is_no_moment_of_now(tmp_path: Path) -> None:
    """A recording has a time of its own: no sign of life is printed in the middle of an old one."""
    path = tmp_path / "events.jsonl"
    path.write_text("\n".join([format_line(LINES[0]), "rubbish", format_line(LINES[1])]) + "\n")
    out = io.StringIO()
    assert watch_in_lines(WatchCommand(what=str(path)), PlainOutput(out)) == 0
    assert out.getvalue() == "00:00  alice: started\n00:01  alice: TRAINING: towards round 1\n"


def test_a_file_that_is_still_written_is_followed_in_lines_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until somebody interrupts."""
    path = tmp_path / "events.jsonl"
    path.write_text(format_line(LINES[0]) + "\n")

    def write_on(seconds: float) -> None:
        if path.read_text().count("\n") == 2:
            raise KeyboardInterrupt
        path.write_text("".join(f"{format_line(line)}\n" for line in LINES))

    monkeypatch.setattr(tui.commands.watch.time, "sleep", write_on)
    out = io.StringIO()
    with pytest.raises(KeyboardInterrupt):
        watch_in_lines(WatchCommand(what=str(path), live=True), JsonOutput(out, io.StringIO()))
    assert out.getvalue().splitlines() == [format_line(line) for line in LINES]


def test_a_folder_without_events_has_no_dashboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for a peer that is about to write the first one."""
    monkeypatch.setattr(tui.commands.watch, "show_source", lambda *_: "ended")
    with pytest.raises(BadInput, match="holds no events"):
        watch_in_dashboard(WatchCommand(what=str(tmp_path)), DisplayOptions(), Output())
    with at_work(tmp_path):
        assert watch_in_dashboard(WatchCommand(what=str(tmp_path)), DisplayOptions(), Output()) == "ended"


@pytest.mark.outside
def test_a_run_from_outside_in_a_dashboard(invite: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the child has printed is known, its bad lines counted; it ends with the dashboard."""
    program = f"{PRINTING}\nimport signal; signal.pause()"
    monkeypatch.setattr(tui.commands.watch, "python_module", lambda *_: [sys.executable, "-c", program])
    feeds: list[ChildSource] = []

    def show(feed: ChildSource, look: DisplayOptions) -> str:
        feeds.append(feed)
        deadline = time.monotonic() + HANG_S
        while (swarm := feed.advance(time.time())).skipped == 0:
            assert time.monotonic() < deadline
        assert swarm.peers["p"].state == "TRAINING"
        assert (swarm.skipped, feed.ended, feed.control) == (1, "", None)
        return "ended"

    monkeypatch.setattr(tui.commands.watch, "show_source", show)
    assert watch_in_dashboard(WatchCommand(what=invite), DisplayOptions(), Output()) == "ended"
    assert feeds[0].title == "run mine, watching"
    assert feeds[0].child.exit_code is not None


@pytest.mark.outside
def test_a_watch_that_ends_is_shown_as_such(tmp_path: Path) -> None:
    """With how it ended."""
    with closing(ChildSource("x", [sys.executable, "-c", PRINTING], tmp_path / "watch.log")) as feed:
        feed.wait_until_started()
        deadline = time.monotonic() + HANG_S
        while not feed.ended:
            feed.advance(time.time())
            assert time.monotonic() < deadline
    assert feed.ended == "the watch has ended: ended unexpectedly with exit code 0"


def test_a_demo_can_only_be_stopped_from_its_dashboard() -> None:
    control = DemoControl()
    assert control.request("leave").ok
    assert "homefires pause --dir DIR/peer-1" in control.request("pause").error


def test_a_demo_whose_launcher_is_gone_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    (tmp_path / "events.jsonl").write_text(format_line(LINES[0]) + "\n")
    feed: EventSource = DemoSource(tmp_path / "events.jsonl")
    feed.open()
    assert feed.advance(200.0).peers["p"].label == "alice"
    assert (feed.ended, feed.title, feed.time(7.0)) == ("", "the demo", 7.0)
    parent = os.getppid()
    monkeypatch.setattr(os, "getppid", lambda: parent + 1)
    asked: list[int] = []
    monkeypatch.setattr(signal, "raise_signal", asked.append)
    feed.advance(201.0)
    assert asked == [signal.SIGTERM], "the dashboard gives the terminal back"
    assert feed.ended == "the demo is gone"
    feed.close()


@pytest.mark.parametrize("outcome", ["ended", "detach", "leave"])
def test_a_viewer_tells_by_its_exit_code_how_it_was_closed(outcome: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else's exit code says that."""
    monkeypatch.setattr("tui.commands.watch.choose_ui", lambda ui: "tui")
    monkeypatch.setattr(tui.commands.watch, "show_source", lambda *_: outcome)
    assert main(["watch", str(RECORDING), "--live", "--viewer"]) == VIEWER_CODES[outcome]
    assert main(["watch", str(RECORDING)]) == 0
