"""`kill -9` of each kind of process of ours: nothing of it is left after seconds, and the run goes on or is resumed."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from peer.schema.events import AlertRaised, EventLine, InviteIssued, PeerStarted, RoundCommitted
from peer.testing.child_process import HANG_S, ORPHAN_S, assert_no_orphans
from tests.swarm.conftest import Homefires, pid_of
from tests.swarm.test_join import ENDLESS, LOOPBACK, SLOWLY, Run, committed

pytestmark = pytest.mark.swarm
Start = Callable[..., Homefires]

LINK, BOOTSTRAP, DAEMON, WATCH = "peer.network.link.link", "-m bootstrap", "p2pd", "peer watch"


def tree_of(pid: int) -> list[psutil.Process]:
    """A process and all that it started."""
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


def find(pid: int, words: str) -> psutil.Process:
    """The process below `pid` with these words on its command line; of the daemon and its guard, the daemon."""
    found = [process for process in tree_of(pid) if words in " ".join(process.cmdline())]
    assert found, f"no {words} below {[process.cmdline() for process in tree_of(pid)]}"
    return found[-1]


def kill(process: psutil.Process) -> None:
    """It and all that it started are gone within seconds; who started it has to see to itself."""
    below = tree_of(process.pid)
    process.kill()
    assert_gone(below)


def kill_command(command: Homefires) -> None:
    """The same for what this test started itself, and alone waits for."""
    below = tree_of(command.process.pid)[1:]
    command.signal(signal.SIGKILL)
    assert command.process.wait(HANG_S) == -signal.SIGKILL
    assert_gone(below)


def assert_gone(processes: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(processes, timeout=ORPHAN_S)
    left = [one.cmdline() for one in alive if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
    assert not left, f"still running: {left}"


def rounds_go_on(peer: Homefires) -> None:
    """Two more than it has told so far: the first may have been decided before."""
    last = max(line.event.round for line in peer.lines if isinstance(line.event, RoundCommitted))
    peer.wait_for(committed(last + 2))


def is_alert(code: str) -> Callable[[EventLine], bool]:
    return lambda line: isinstance(line.event, AlertRaised) and line.event.code == code


def is_start(line: EventLine) -> bool:
    return isinstance(line.event, PeerStarted)


@pytest.fixture
def run(homefires: Start, tmp_path: Path) -> Run:
    return Run(homefires, tmp_path, 1, *ENDLESS)


def test_kill_9_of_every_process_of_a_peer(run: Run, homefires: Start, tmp_path: Path) -> None:
    """Of its daemon and its link: the trainer starts others. Of the trainer: whoever keeps it running starts another.
    Of that one: nothing is left, and a new start goes on where it was."""
    directory = tmp_path / "p"
    words = ["join", run.invite, "--dir", str(directory), *LOOPBACK, "--ui", "json", "--keep-running", "--yes", *SLOWLY]
    peer = homefires(*words, directory=tmp_path / "p-out")
    peer.wait_for(committed(2))

    kill(find(pid_of(directory), DAEMON))
    peer.wait_for(is_alert("LINK"))
    rounds_go_on(peer)

    kill(find(pid_of(directory), LINK))
    peer.wait_for(is_alert("LINK"))
    rounds_go_on(peer)

    kill(psutil.Process(pid_of(directory)))
    peer.wait_for(is_start)
    rounds_go_on(peer)

    kill_command(peer)
    assert_no_orphans(directory)
    again = homefires(*words, directory=tmp_path / "p-again")
    reached = max(line.event.round for line in peer.lines if isinstance(line.event, RoundCommitted))
    again.wait_for(committed(reached + 1))
    assert min(line.event.round for line in again.lines if isinstance(line.event, RoundCommitted)) >= reached
    again.signal(signal.SIGTERM)
    again.finish()
    assert_no_orphans(directory)


def test_kill_9_of_every_process_of_an_organiser(run: Run, homefires: Start, tmp_path: Path) -> None:
    """Of the bootstrap node, of its daemon, of the launcher, and of a watcher's: the run goes on, the genesis stays.
    Then newcomers with the first invite and with the newest one take part in the same rounds."""
    peer = run.join("p")
    peer.wait_for(committed(1))
    genesis = (tmp_path / "b" / "genesis").read_bytes()

    watcher = homefires("watch", run.invite, "--ui", "json", directory=tmp_path / "w")
    watcher.wait_for(committed(1))
    assert find(watcher.process.pid, WATCH).pid != watcher.process.pid
    kill_command(watcher)

    for number, victim in enumerate((BOOTSTRAP, DAEMON, "")):
        if victim:
            kill(find(run.bootstrap.process.pid, victim))
            assert run.bootstrap.finish() != 0, "so that whoever keeps it running starts it again"
        else:
            kill_command(run.bootstrap)
        assert_no_orphans(tmp_path / "b")
        rounds_go_on(peer)
        run.bootstrap = homefires(*_again(tmp_path), directory=tmp_path / f"b-{number}")
        issued = run.bootstrap.wait_for(lambda line: isinstance(line.event, InviteIssued))
        assert (tmp_path / "b" / "genesis").read_bytes() == genesis

    assert isinstance(issued.event, InviteIssued)
    first, newcomers = run.invite, []
    for name, run.invite in (("old", first), ("new", issued.event.invite)):
        newcomers.append(run.join(name))
        reached = newcomers[-1].wait_for(committed(1)).event
        assert isinstance(reached, RoundCommitted)
        peer.wait_for(committed(reached.round))
        mine = {line.event.round: line.event.digest for line in peer.events(RoundCommitted)}
        assert reached.digest == mine[reached.round]

    for command in (*newcomers, run.bootstrap, peer):
        command.signal(signal.SIGTERM)
        command.finish()
    assert_no_orphans(tmp_path)


def _again(root: Path) -> list[str]:
    """The command line of the same bootstrap node, from what lies in its folder."""
    return ["bootstrap", str(root / "b" / "spec.toml"), "--dir", str(root / "b"), *LOOPBACK, "--ui", "json"]
