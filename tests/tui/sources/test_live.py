from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from peer.node.telemetry.event_log import EventLog
from peer.node.telemetry.event_tail import EventTail
from peer.schema.events import MAX_LINE_BYTES, Event, EventLine, PeerStarted, PeerStateChanged, PeerStopped, format_line
from tui.commands.status import describe_directory
from tui.sources import live
from tui.sources.live import LiveSource
from tui.swarm import figures
from tui.swarm.snapshot import SwarmState


def text(n: int, *, peer: str = "A", event: Event | None = None) -> str:
    event = event or PeerStateChanged(state="PAUSED", why=f"number {n}")
    return format_line(EventLine(seq=n, t=1000.0 + n, run="r", peer=peer, event=event)) + "\n"


def append(path: Path, *texts: str) -> None:
    with path.open("a") as file:
        file.write("".join(texts))


_open: list[EventTail | LiveSource] = []


@pytest.fixture(autouse=True)
def close() -> Iterator[None]:
    """Whatever a test opens is closed after it."""
    yield
    while _open:
        _open.pop().close()


def tail_of(path: Path) -> EventTail:
    _open.append(tail := EventTail(path))
    return tail


def live_of(directory: Path) -> LiveSource:
    _open.append(source := LiveSource(directory))
    return source


def file_of(path: Path) -> LiveSource:
    _open.append(source := LiveSource(path))
    return source


def numbers(tail: EventTail, limit: int = 1000) -> list[int | None]:
    """The sequence numbers of what there is to take."""
    return [line.seq if line is not None else None for line in tail.take(limit)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events.jsonl"


# ---- following a file ----


def test_what_was_there_before_can_be_skipped(path: Path) -> None:
    """Also where there is nothing yet, or only older files."""
    new, old, mine = tail_of(path), tail_of(path), tail_of(path)
    new.skip_to_end()
    append(path.with_name("events.jsonl.1"), text(0))
    old.skip_to_end()
    append(path, text(1))
    mine.skip_to_end()
    append(path, text(2))
    assert (numbers(new), numbers(old), numbers(mine)) == ([0, 1, 2], [1, 2], [2])


def test_a_file_that_appears_later_is_followed(path: Path) -> None:
    tail = tail_of(path)
    assert numbers(tail) == []
    append(path, text(0), text(1))
    assert numbers(tail) == [0, 1]
    assert numbers(tail) == []
    append(path, text(2))
    assert numbers(tail) == [2]


def test_half_a_line_waits_for_its_other_half(path: Path) -> None:
    tail = tail_of(path)
    append(path, text(0), text(1)[:30])
    assert numbers(tail) == [0]
    append(path, text(1)[30:-1])
    assert numbers(tail) == []
    append(path, "\n", text(2))
    assert numbers(tail) == [1, 2]


def test_no_more_than_asked_for_is_taken_and_nothing_is_lost(path: Path) -> None:
    tail = tail_of(path)
    append(path, *map(text, range(10)))
    assert numbers(tail, 4) == [0, 1, 2, 3]
    append(path, text(10))
    assert numbers(tail, 4) == [4, 5, 6, 7]
    assert numbers(tail, 4) == [8, 9, 10]


def test_old_files_come_first_and_each_line_once(path: Path) -> None:
    for age, name in enumerate(("events.jsonl.2", "events.jsonl.1", "events.jsonl")):
        append(path.with_name(name), text(2 * age), text(2 * age + 1))
    assert numbers(tail_of(path)) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("rotations", [1, 2, 3])
def test_a_rotation_loses_and_repeats_nothing(path: Path, rotations: int) -> None:
    """Also what was written just before the file was renamed, and when nobody looked during several rotations."""
    tail = tail_of(path)
    append(path, text(0))
    assert numbers(tail) == [0]
    number = 1
    for _ in range(rotations):
        append(path, text(number))
        for age in (3, 2, 1):
            if (older := path.with_name(f"events.jsonl.{age - 1}") if age > 1 else path).exists():
                older.rename(path.with_name(f"events.jsonl.{age}"))
        append(path, text(number + 1))
        number += 2
    assert numbers(tail) == list(range(1, number))


def test_the_writer_of_a_peer_is_followed_as_it_rotates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peer.node.telemetry.event_log.FILE_BYTES", 2000)
    monkeypatch.setattr("builtins.print", lambda *_, **__: None)
    writer, tail, seen = EventLog("r", "A", tmp_path), tail_of(tmp_path / "events.jsonl"), []
    for n in range(200):
        writer.emit(PeerStateChanged(state="PAUSED", why=f"number {n}"))
        if n % 17 == 0:
            seen += numbers(tail)
    writer.close()
    assert len(list(tmp_path.iterdir())) == 4
    assert seen + numbers(tail) == list(range(200))


def test_a_file_that_is_cut_is_read_from_its_start(path: Path) -> None:
    tail = tail_of(path)
    append(path, text(0), text(1), text(2)[:20])
    assert numbers(tail) == [0, 1]
    path.write_text(text(7))
    assert numbers(tail) == [None, 7]


def test_a_line_without_end_is_skipped_and_not_kept(path: Path) -> None:
    tail = tail_of(path)
    append(path, text(0), "x" * (MAX_LINE_BYTES + 10))
    assert numbers(tail) == [0]
    assert len(tail._begun) == 0
    append(path, "x" * 100, "\n", text(1))
    assert numbers(tail) == [None, 1]


# ---- a peer's run directory ----


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A directory whose peer holds its lock."""
    (tmp_path / "run").mkdir()
    descriptor = os.open(tmp_path / "run" / "lock", os.O_CREAT | os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    yield tmp_path
    os.close(descriptor)


def started(directory: Path | str = "") -> PeerStarted:
    return PeerStarted(name="alice", version="0", directory=str(directory))


def test_a_peer_that_works_is_shown_as_it_writes(home: Path) -> None:
    append(home / "events.jsonl", text(0, event=started(home)))
    source = live_of(home)
    source.open()
    append(home / "events.jsonl", text(1), "rubbish\n")
    swarm = source.advance(5.0)
    assert (swarm.peers["A"].why, swarm.skipped) == ("number 1", 1)
    assert (source.me, source.title, source.ended) == ("A", f"peer alice in {home}", "")
    assert source.control is not None
    assert source.playback is None
    assert source.time(5.0) == 5.0


def test_a_directory_of_which_nothing_is_known_yet_is_waited_for(tmp_path: Path) -> None:
    source = live_of(tmp_path / "later")
    source.open()
    assert source.advance(0.0) == SwarmState()
    assert source.ended == ""


def test_nothing_is_new_where_nothing_was_written(home: Path) -> None:
    append(home / "events.jsonl", text(0))
    source = live_of(home)
    source.open()
    assert source.advance(1.0) is source.advance(2.0)


def test_a_folder_with_another_key_is_the_peer_of_that_key(home: Path) -> None:
    """As `homefires status` has it: the one that began last."""
    append(home / "events.jsonl", text(0, event=started()), text(1, peer="B", event=started()))
    source = live_of(home)
    source.open()
    assert source.me == "B"


def test_a_backlog_is_taken_in_slices(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "SLICE", 10)
    source = live_of(home)
    source.open()
    append(home / "events.jsonl", *map(text, range(25)))
    assert [source.advance(float(n)).peers["A"].why for n in range(3)] == ["number 9", "number 19", "number 24"]


def test_opening_takes_all_that_is_there(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "BACKLOG_SLICE", 10)
    append(home / "events.jsonl", *map(text, range(25)))
    source = live_of(home)
    source.open()
    assert source.advance(0.0).peers["A"].why == "number 24"


@contextmanager
def at_work(script: str, place: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process of this Python script, once it holds its lock and has said so."""
    argv = [sys.executable, "-c", script, str(place)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process


@pytest.mark.outside
def test_a_killed_peer_is_gone_within_seconds_and_says_what_it_was_at(tmp_path: Path) -> None:
    """A real process that holds the lock, and SIGKILL."""
    (tmp_path / "run").mkdir()
    append(tmp_path / "events.jsonl", text(0, event=PeerStateChanged(state="AVERAGING", why="round 1")))
    script = "import fcntl, sys\nf = open(sys.argv[1], 'w')\nfcntl.flock(f, fcntl.LOCK_EX)\nprint(flush=True)\ninput()"
    with at_work(script, tmp_path / "run" / "lock") as process:
        source = live_of(tmp_path)
        source.open()
        assert source.advance(100.0).peers["A"].state == "AVERAGING"
        process.send_signal(signal.SIGKILL)
        process.wait(10)
    assert source.advance(100.5).peers["A"].state == "AVERAGING"
    mine = source.advance(101.0).peers["A"]
    assert source.ended == "it ended without a word while AVERAGING: round 1"
    assert (mine.state, mine.why, mine.spans[-1].phase, mine.spans[-1].t) == ("GONE", source.ended, "gone", 101.0)
    assert [entry.code for entry in source.advance(103.0).entries].count("GONE") == 1


@pytest.mark.outside
def test_a_peer_that_stands_still_looks_so_within_seconds_and_goes_on_where_it_was(tmp_path: Path) -> None:
    """A real process that holds the lock as a peer does, SIGSTOP and SIGCONT."""
    append(tmp_path / "events.jsonl", text(0, event=PeerStateChanged(state="AVERAGING", why="round 1")))
    script = "import sys\nfrom pathlib import Path\nfrom dht.process import lock_directory\n"
    script += "with lock_directory(Path(sys.argv[1])):\n    print(flush=True)\n    input()"
    with at_work(script, tmp_path) as process:
        source = live_of(tmp_path)
        source.open()
        assert source.advance(100.0).peers["A"].state == "AVERAGING"
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        swarm = source.advance(102.0)
        assert figures.state(swarm, swarm.peers["A"], 102.0).name == "FROZEN"
        assert f"kill -CONT {process.pid}" in swarm.peers["A"].why
        assert figures.own_loss(swarm, swarm.peers["A"], 102.0) is None
        said = describe_directory(tmp_path, as_json=False, now=102.0)
        assert said.startswith(f"A: FROZEN (its process {process.pid} was told to stand still")
        process.send_signal(signal.SIGCONT)
        os.waitpid(process.pid, os.WCONTINUED)
        assert source.advance(104.0).peers["A"].state == "AVERAGING"
        process.communicate(b"\n", timeout=10)


def test_its_last_words_count_even_if_it_let_go_of_its_lock_meanwhile(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(home / "events.jsonl", text(0))
    source = live_of(home)
    source.open()
    source.advance(0.0)

    def let_go(lock: Path) -> bool:
        if source._swarm.peers["A"].why == "number 0":
            append(home / "events.jsonl", text(1, event=PeerStopped(why="asked to leave")))
        return False

    monkeypatch.setattr(live, "is_locked", let_go)
    for now in (1.0, 2.0, 3.0):
        swarm = source.advance(now)
    assert swarm.peers["A"].stopped
    assert source.ended == "it stopped: asked to leave"


def test_a_peer_that_comes_back_is_followed_again(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append(home / "events.jsonl", text(0, event=started(home)))
    source = live_of(home)
    source.open()
    monkeypatch.setattr(live, "is_locked", lambda lock: False)
    assert source.advance(1.0).peers["A"].state == "GONE"
    monkeypatch.setattr(live, "is_locked", lambda lock: True)
    append(home / "events.jsonl", text(1, event=started(home)))
    assert source.advance(2.0).peers["A"].state == "JOINING"
    assert source.ended == ""
    monkeypatch.setattr(live, "is_locked", lambda lock: False)
    assert source.advance(3.0).peers["A"].state == "GONE"


def test_the_lock_is_looked_at_once_a_second(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append(home / "events.jsonl", text(0))
    looks: list[Path] = []
    monkeypatch.setattr(live, "is_locked", lambda lock: looks.append(lock) or True)  # type: ignore[func-returns-value]
    source = live_of(home)
    source.open()
    for step in range(41):
        source.advance(step * 0.25)
    assert 10 <= len(looks) <= 2 * 11


# ---- several peers ----


def test_a_merged_file_has_no_peer_of_mine_and_nothing_to_command(path: Path) -> None:
    append(path, text(0, peer="A"), text(1, peer="B"))
    source = file_of(path)
    source.open()
    assert [view.peer for view in source.advance(0.0).reporting] == ["A", "B"]
    assert (source.me, source.control, source.ended, source.title) == ("", None, "", "peers events.jsonl")


def test_of_several_peers_a_killed_one_is_shown_as_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each said where its directory is; one that is not on this machine is not looked for."""
    for name in ("a", "b"):
        (tmp_path / name / "run").mkdir(parents=True)
        (tmp_path / name / "run" / "lock").touch()
    homes: dict[str, Any] = {"A": tmp_path / "a", "B": tmp_path / "b", "C": "/nowhere/c"}
    path = tmp_path / "events.jsonl"
    append(path, *(text(n, peer=peer, event=started(where)) for n, (peer, where) in enumerate(homes.items())))
    monkeypatch.setattr(live, "is_locked", lambda lock: lock.parts[-3] != "b")
    source = file_of(path)
    source.open()
    swarm = source.advance(0.0)
    assert [swarm.peers[peer].state for peer in "ABC"] == ["JOINING", "GONE", "JOINING"]
    assert source.ended == ""


def test_when_every_peer_has_stopped_nothing_more_will_come(path: Path) -> None:
    append(path, *(text(n, peer=peer, event=PeerStopped(why="done")) for n, peer in enumerate("AB")))
    source = file_of(path)
    source.open()
    source.advance(0.0)
    assert source.ended == "every peer has stopped"


def test_the_folder_of_a_demo_has_the_lines_of_all_its_peers(tmp_path: Path) -> None:
    for n, name in enumerate("AB"):
        (tmp_path / name / "run").mkdir(parents=True)
        append(tmp_path / name / "events.jsonl", text(n, peer=name))
        append(tmp_path / "events.jsonl", text(n, peer=name))
    source = live_of(tmp_path)
    source.open()
    swarm = source.advance(0.0)
    assert [view.state for view in swarm.reporting] == ["PAUSED", "PAUSED"]
    assert (source.me, source.control, source.ended) == ("", None, "")


def test_a_folder_of_run_directories_is_followed_in_order_of_time(tmp_path: Path) -> None:
    for name, peer, n in (("peer-1", "A", 5), ("peer-2", "B", 3)):
        (tmp_path / name).mkdir()
        append(tmp_path / name / "events.jsonl", text(n, peer=peer))
    source = live_of(tmp_path)
    source.open()
    swarm = source.advance(0.0)
    assert [view.peer for view in swarm.reporting] == ["B", "A"]
    assert (source.me, source.control) == ("", None)
