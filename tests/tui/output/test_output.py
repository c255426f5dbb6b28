"""Outputs: lines, JSON, nothing; and the dashboard of a demo, which may be closed or killed at any time."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import tui.output.viewer
from dht.errors import PortInUse
from peer.schema.events import EventLine, PeerStarted, PeerStateChanged, format_line
from peer.testing.child_process import HANG_S
from tui.commands.demo import DemoCommand, run_demo
from tui.output.output import JsonOutput, open_output
from tui.output.plain import PlainOutput
from tui.output.viewer import VIEWER_CODES, DashboardOutput
from tui.processes.children import Output

SPEC = '[run]\nname = "fake"\nrounds = 3\n[model]\narchitecture = "llama"\ncontext = 64\n'


def line(seq: int, state: str) -> EventLine:
    return EventLine(
        seq=seq, t=100.0 + seq, run="r", peer="id-alice", event=PeerStateChanged(state=state, why="because")
    )


STARTED = EventLine(seq=0, t=100.0, run="r", peer="id-alice", event=PeerStarted(name="alice", version="0"))


class Bench:
    """A dashboard output whose viewer is a small program."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.stream = io.StringIO()
        self.leaves = 0
        self.argv: list[str] = []
        self.program = ""
        self.events = folder / "events.jsonl"

        def command(module: str, *arguments: str) -> list[str]:
            self.argv = [module, *arguments]
            return [sys.executable, "-c", self.program]

        monkeypatch.setattr(tui.output.viewer, "python_module", command)
        self.output = DashboardOutput(
            self.stream, partial(PlainOutput, terse=False), self._leave, options=["--mono"]
        )  # fmt: skip

    def _leave(self) -> None:
        self.leaves += 1

    def begin(self, program: str) -> None:
        self.program = program
        self.output.begin(self.events)

    def until_gone(self) -> None:
        deadline = time.monotonic() + HANG_S
        while self.output._viewer is not None:
            assert time.monotonic() < deadline
            self.output.tick(101.0)

    @property
    def text(self) -> str:
        return self.stream.getvalue()


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Bench:
    return Bench(monkeypatch, tmp_path)


def said_by(output: Output) -> None:
    """All that a launcher asks of an output, once."""
    output.begin(Path("events.jsonl"))
    output.show(STARTED)
    output.say("hello")
    output.tick(101.0)
    output.close(at_once=True)
    output.close()


def test_plain_output_is_for_people_and_json_for_programs(capfd: pytest.CaptureFixture[str]) -> None:
    """What is said to a person stands beside the event lines, never among them; and nothing is nothing."""
    plain, lines, aside = io.StringIO(), io.StringIO(), io.StringIO()
    for output in (PlainOutput(plain), JsonOutput(lines, aside), Output()):
        said_by(output)
    assert "hello\n" in plain.getvalue()
    assert lines.getvalue() == format_line(STARTED) + "\n"
    assert aside.getvalue() == "hello\n"
    assert capfd.readouterr() == ("", "")


def test_the_name_of_an_output_opens_it() -> None:
    out, aside = io.StringIO(), io.StringIO()
    kinds = [type(open_output(ui, out, aside)) for ui in ("tui", "plain", "json", "none")]
    assert kinds == [DashboardOutput, PlainOutput, JsonOutput, Output]


@pytest.mark.outside
def test_while_a_dashboard_is_there_nothing_is_printed(bench: Bench) -> None:
    """It follows the file of the launcher, and looks as its person said."""
    bench.output.say("2 peers train")
    bench.begin("import signal; signal.pause()")
    bench.output.show(STARTED)
    bench.output.say("peer-2: killed")
    bench.output.tick(500.0)
    assert bench.text == "2 peers train\n"
    assert bench.argv == ["tui", "watch", str(bench.events), "--live", "--viewer", "--mono"]
    bench.output.close(at_once=True)


@pytest.mark.outside
@pytest.mark.parametrize(
    ("ending", "words"),
    [
        (f"import sys; sys.exit({VIEWER_CODES['detach']})", "the dashboard is closed; the demo goes on"),
        (f"import sys; sys.exit({VIEWER_CODES['ended']})", "the dashboard is closed; the demo goes on"),
        ("import os; os.kill(os.getpid(), 9)", "the dashboard ended unexpectedly (exit code -9); the demo goes on"),
        ("import sys; sys.exit(1)", "the dashboard ended unexpectedly (exit code 1); the demo goes on"),
    ],
)
def test_lines_go_on_with_what_is_known(bench: Bench, ending: str, words: str) -> None:
    """However the viewer ended: what was said meanwhile is told, and names are known."""
    bench.begin(ending)
    bench.output.show(STARTED)
    bench.output.say("bootstrap: 2 of 2 founders are here")
    bench.until_gone()
    bench.output.show(line(1, "TRAINING"))
    told = bench.text.splitlines()
    assert told[0] == "bootstrap: 2 of 2 founders are here"
    assert told[1].startswith(words)
    assert told[2] == "00:01  alice: TRAINING: because"
    assert bench.leaves == 0


@pytest.mark.outside
def test_who_leaves_stops_the_demo(bench: Bench) -> None:
    bench.begin(f"import sys; sys.exit({VIEWER_CODES['leave']})")
    bench.until_gone()
    assert bench.leaves == 1


@pytest.mark.outside
def test_the_last_screen_stays_until_it_is_closed(bench: Bench) -> None:
    """Lines that follow are seen; nothing is stopped that is over."""
    bench.begin(f"import time, sys; time.sleep(0.3); sys.exit({VIEWER_CODES['leave']})")
    bench.output.close()
    bench.output.say("3 of 3 rounds committed")
    assert bench.text == "3 of 3 rounds committed\n"
    assert bench.leaves == 0


@pytest.mark.outside
def test_the_last_screen_does_not_stay_for_ever(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody may sit there; and a viewer that does not end when asked is killed."""
    monkeypatch.setattr(tui.output.viewer, "LINGER_S", 0.5)
    monkeypatch.setattr(tui.output.viewer, "STOP_S", 0.5)
    bench.begin("import signal; signal.signal(15, signal.SIG_IGN); signal.pause()")
    began_at = time.monotonic()
    bench.output.close()
    assert time.monotonic() - began_at < HANG_S


@pytest.mark.outside
def test_a_demo_goes_on_without_its_dashboard(
    fake_children: Callable[[str], None], bench: Bench, tmp_path: Path
) -> None:
    """Every event of all peers is in one file."""
    fake_children("well")
    (tmp_path / "spec.toml").write_text(SPEC)
    demo = DemoCommand(peers=2, spec=str(tmp_path / "spec.toml"), directory=tmp_path / "demo")
    bench.program = f"import sys; sys.exit({VIEWER_CODES['detach']})"
    assert run_demo(demo, bench.output, demo.choose()) == 0
    assert "3 of 3 rounds committed by all 2 peers" in bench.text
    events = tmp_path / "demo" / "events.jsonl"
    assert bench.argv[2] == str(events)
    rows = [json.loads(text) for text in events.read_text().splitlines()]
    assert {row["peer"] for row in rows} == {"id-peer-1", "id-peer-2"}


@pytest.mark.outside
def test_a_demo_is_stopped_from_its_dashboard(
    fake_children: Callable[[str], None], bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by Ctrl-C."""
    fake_children("waits")
    (tmp_path / "spec.toml").write_text(SPEC)
    demo = DemoCommand(peers=2, spec=str(tmp_path / "spec.toml"))
    monkeypatch.setattr(bench.output, "_leave", partial(os.kill, os.getpid(), signal.SIGINT))
    bench.program = f"import sys; sys.exit({VIEWER_CODES['leave']})"
    assert run_demo(demo, bench.output, demo.choose()) == 130


@pytest.mark.outside
def test_an_error_closes_the_dashboard_first(
    fake_children: Callable[[str], None], bench: Bench, tmp_path: Path
) -> None:
    """Its one line must be seen."""
    fake_children("mute")
    (tmp_path / "spec.toml").write_text(SPEC)
    demo = DemoCommand(peers=2, spec=str(tmp_path / "spec.toml"))
    bench.program = "import signal; signal.pause()"
    with pytest.raises(PortInUse):
        run_demo(demo, bench.output, demo.choose())
    assert bench.output._viewer is None


def test_json_lines_are_events_and_nothing_else() -> None:
    out, aside = io.StringIO(), io.StringIO()
    output = JsonOutput(out, aside)
    output.say("hello")
    output.show(STARTED)
    assert (out.getvalue(), aside.getvalue()) == (format_line(STARTED) + "\n", "hello\n")
