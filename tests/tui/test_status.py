from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path

import pytest

from dht.errors import BadInput
from peer.events import (
    AlertRaised,
    Evaluated,
    Event,
    InnerProgressed,
    Line,
    PeerStarted,
    PeerStateChanged,
    PeerStopped,
    ReportReceived,
    TransferProgressed,
    format_line,
)
from tui.status import describe_directory, newest_directory

STORY: tuple[Event, ...] = (
    PeerStarted(name="alice", version="0.1.0"),
    PeerStateChanged(state="TRAINING", why="round 3 began"),
    Evaluated(round=3, loss=2.05, tokens=10),
    InnerProgressed(round=3, step=20, steps=50, loss=2.113, tokens=640, tokens_per_s=1234.5, learning_rate=1e-3),
    ReportReceived(about="QmBob", round=3, ready=False, tokens=1, steps=4, name="bob"),
    AlertRaised(level="warning", code="X", text="the disk is nearly full"),
)


def write(path: Path, *events: Event) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [format_line(Line(seq=n, t=1000.0 + n, run="tiny", peer="QmAlice", event=e)) for n, e in enumerate(events)]
    path.write_text("".join(f"{line}\n" for line in lines))


def lock(directory: Path) -> int:
    (directory / "run").mkdir()
    descriptor = os.open(directory / "run" / "lock", os.O_CREAT | os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def test_a_running_peer_in_words(tmp_path: Path) -> None:
    write(tmp_path / "events.jsonl", *STORY)
    descriptor = lock(tmp_path)
    try:
        text = describe_directory(tmp_path, as_json=False)
    finally:
        os.close(descriptor)
    assert text == (
        "alice: TRAINING (round 3 began)\n"
        "run tiny, round 3, step 20 of 50\n"
        "training loss 2.113, 1,234 tokens/s\n"
        "held-out loss 2.050 at round 3\n"
        "with bob\n"
        "last alert: warning: the disk is nearly full"
    )


def test_a_peer_that_was_killed_is_not_said_to_train(tmp_path: Path) -> None:
    write(tmp_path / "events.jsonl", *STORY)
    os.close(lock(tmp_path))
    first = describe_directory(tmp_path, as_json=False).splitlines()[0]
    assert first == "alice: not running; it ended without a word while TRAINING (round 3 began)"


def test_a_peer_that_left_says_why(tmp_path: Path) -> None:
    write(tmp_path / "events.jsonl", *STORY, PeerStopped(why="asked to leave"))
    assert describe_directory(tmp_path, as_json=False).startswith("alice: stopped (asked to leave)\n")


def test_json_is_one_object(tmp_path: Path) -> None:
    write(tmp_path / "events.jsonl", *STORY)
    row = json.loads(describe_directory(tmp_path, as_json=True))
    assert (row["alive"], row["run"], row["peers"][0]["loss"]) == (False, "tiny", 2.113)


def test_a_line_that_is_cut_off_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    write(path, *STORY)
    path.write_text(path.read_text() + '{"v":1,"seq":9,"t":10')
    assert "alice" in describe_directory(tmp_path, as_json=False)


def test_a_peer_that_catches_up_says_what_it_received(tmp_path: Path) -> None:
    write(
        tmp_path / "events.jsonl", *STORY, PeerStateChanged(state="SYNCING", why="round 12 of 40 from bob"),
        TransferProgressed(what="updates", source="bob", bytes_done=7_100_000, bytes_total=23_500_000),
    )  # fmt: skip
    text = describe_directory(tmp_path, as_json=False)
    assert "SYNCING (round 12 of 40 from bob)" in text
    assert "received 7.1 MB of 23.5 MB of updates from bob" in text


def test_rotated_files_are_read_oldest_first(tmp_path: Path) -> None:
    write(tmp_path / "events.jsonl.2", *STORY[:1])
    write(tmp_path / "events.jsonl.1", PeerStateChanged(state="READY", why="old"))
    write(tmp_path / "events.jsonl", PeerStateChanged(state="AVERAGING", why="new"))
    assert "AVERAGING (new)" in describe_directory(tmp_path, as_json=False)


def test_a_peers_name_cannot_write_escapes(tmp_path: Path) -> None:
    write(tmp_path / "events.jsonl", PeerStarted(name="\x1b[2Jx", version="0"))
    assert "\x1b" not in describe_directory(tmp_path, as_json=False)


def test_a_demos_folder_points_at_its_peers(tmp_path: Path) -> None:
    write(tmp_path / "peer-1" / "events.jsonl", *STORY)
    with pytest.raises(BadInput, match="look at one of peer-1 in it"):
        describe_directory(tmp_path, as_json=False)


def test_the_newest_run_is_the_one_that_reported_last(tmp_path: Path) -> None:
    for age, name in enumerate(("new", "old")):
        write(tmp_path / name / "events.jsonl", *STORY)
        os.utime(tmp_path / name / "events.jsonl", (1000.0 - age, 1000.0 - age))
    assert newest_directory(tmp_path).name == "new"
