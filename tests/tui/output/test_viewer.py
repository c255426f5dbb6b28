"""Real dashboards in real terminals, beside peers that only play."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from peer.testing.child_process import BUSY
from tests.tui.terminals import Terminal
from tests.waits import look_until

HERE = Path(__file__).parents[1]
ROOT = HERE.parents[1]
GONE_S = 5.0 * BUSY
SPEC = '[run]\nname = "fake"\nrounds = 3\n[model]\narchitecture = "llama"\ncontext = 64\n'
DEMO = f"""
import sys
import tui.commands.demo
from tui.cli import main
fake = [sys.executable, {str(HERE / "fake_child.py")!r}, "waits"]
tui.commands.demo.python_module = lambda module, *words: [*fake, module, *words]
sys.exit(main(sys.argv[1:]))
"""
"""`homefires` whose demo has peers that wait for SIGTERM."""

pytestmark = pytest.mark.outside
Open = Callable[..., Terminal]


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Open]:
    """Start a command in a terminal."""
    opened: list[Terminal] = []

    def start(*argv: str) -> Terminal:
        kept = {name: value for name, value in os.environ.items() if name not in ("CI", "NO_COLOR")}
        own = {"TERM": "xterm-256color", "PYTHONPATH": str(ROOT), "XDG_DATA_HOME": str(tmp_path / "data")}
        opened.append(Terminal([sys.executable, *argv], kept | own))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A peer in `tmp_path`."""
    process = subprocess.Popen(
        [sys.executable, str(HERE / "fake_peer.py"), "stays", str(tmp_path)], env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    look_until((tmp_path / "events.jsonl").exists, "the peer says nothing")
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def demo(terminal: Open, tmp_path: Path) -> Terminal:
    """A demo with its dashboard on the screen."""
    (tmp_path / "spec.toml").write_text(SPEC)
    demo = terminal(
        "-c", DEMO, "demo", "--peers", "2", "--spec", str(tmp_path / "spec.toml"), "--dir", str(tmp_path / "demo")
    )
    demo.wait_for("peer-2")
    return demo


def viewer_of(demo: Terminal) -> psutil.Process:
    (viewer,) = [child for child in psutil.Process(demo.pid).children() if "--viewer" in child.cmdline()]
    return viewer


def test_a_killed_peer_is_shown_as_such(terminal: Open, peer: subprocess.Popen[bytes], tmp_path: Path) -> None:
    """Within seconds, though it could not say so."""
    screen = terminal("-m", "tui", "attach", "--dir", str(tmp_path))
    screen.wait_for("q detach")
    drawn = len(screen.taken)
    peer.kill()
    assert screen.wait_for("ended without a word", since=drawn) < GONE_S
    screen.press("q")
    assert screen.finish() == 0
    assert "the peer has ended without a word; its log is" in screen.text


def test_a_killed_dashboard_is_no_matter_for_the_peer(
    terminal: Open, peer: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    screen = terminal("-m", "tui", "attach", "--dir", str(tmp_path))
    screen.wait_for("q detach")
    screen.kill()
    assert screen.finish() == -signal.SIGKILL
    assert peer.poll() is None
    again = terminal("-m", "tui", "attach", "--dir", str(tmp_path), "--ascii", "--mono", "--read-only")
    again.wait_for("alice")
    again.press("q")
    assert again.finish() == 0
    assert "come back with: homefires attach" in again.text


def test_a_demo_goes_on_with_lines_when_its_dashboard_is_closed(demo: Terminal) -> None:
    """And Ctrl-C means again what it means there."""
    demo.press("q")
    demo.wait_for("the dashboard is closed; the demo goes on")
    demo.press("\x03")
    demo.wait_for("stopping; once more to stop at once")
    assert demo.finish() == 130


def test_a_demo_restores_the_terminal_of_a_dashboard_that_was_killed(demo: Terminal) -> None:
    """The cursor is back, and so is the other screen."""
    drawn = len(demo.taken)
    viewer_of(demo).kill()
    demo.wait_for("the dashboard ended unexpectedly (exit code -9); the demo goes on", since=drawn)
    assert b"\x1b[?1049l" in demo.taken[drawn:]
    assert b"\x1b[?25h" in demo.taken[drawn:]
    demo.press("\x03")
    assert demo.finish() == 130


def test_a_dashboard_whose_demo_was_killed_gives_the_terminal_back(demo: Terminal) -> None:
    """The launcher cannot: somebody else's prompt is there by now."""
    viewer, drawn = viewer_of(demo), len(demo.taken)
    demo.kill()
    assert demo.finish() == -signal.SIGKILL
    assert psutil.wait_procs([viewer], timeout=GONE_S)[1] == []
    demo.read()
    assert b"\x1b[?1049l" in demo.taken[drawn:]


def test_a_demo_stops_when_its_person_leaves(demo: Terminal) -> None:
    demo.press("Q")
    demo.wait_for("Leave the run?")
    demo.press("y")
    assert demo.finish() == 130
    assert "stopping; once more to stop at once" in demo.text


def test_a_demo_that_is_asked_to_stop_takes_its_dashboard_along(demo: Terminal) -> None:
    """By a service manager, say."""
    viewer = viewer_of(demo)
    os.kill(demo.pid, signal.SIGTERM)
    assert demo.finish() == 130
    assert not viewer.is_running() or viewer.status() == psutil.STATUS_ZOMBIE
