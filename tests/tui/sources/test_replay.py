from __future__ import annotations

import os
from pathlib import Path

import pytest

from dht.errors import BadInput
from peer.schema.events import EventLine, PeerStarted, PeerStateChanged, RoundCommitted, format_line
from tests.tui.many_lines import make_lines
from tui.sources import replay
from tui.sources.replay import RecordingSource
from tui.swarm.reducer import apply_all
from tui.swarm.snapshot import SwarmState

DEMO = Path(__file__).parents[1] / "recordings" / "demo.jsonl"
COUNT = 40
EVERY_S = 2.0


def write(path: Path, count: int = COUNT) -> list[EventLine]:
    """A line every two seconds; the last two are swapped in the file."""
    lines = [
        EventLine(
            seq=n, t=1000.0 + EVERY_S * n, run="r", peer="A", event=PeerStateChanged(state="PAUSED", why=f"number {n}")
        )
        for n in range(count)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{format_line(each)}\n" for each in [*lines[:-2], lines[-1], lines[-2]]))
    return lines


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RecordingSource:
    monkeypatch.setattr(replay, "EVERY", 7)
    write(tmp_path / "events.jsonl")
    source = RecordingSource(tmp_path / "events.jsonl")
    source.open()
    return source


def why(source: RecordingSource, now_s: float = 0.0) -> str:
    swarm = source.advance(now_s)
    return swarm.peers["A"].why if swarm.peers else ""


def test_a_recording_opens_at_its_end_with_its_lines_by_time(opened: RecordingSource) -> None:
    assert (opened.position, opened.count, opened.playing) == (COUNT, COUNT, False)
    assert why(opened) == f"number {COUNT - 1}"
    assert opened.time(0.0) == 1000.0 + EVERY_S * (COUNT - 1)
    assert opened.ended == "this is the end of recording events.jsonl"
    assert (opened.control, opened.me) == (None, "")
    assert opened.playback is opened


def test_who_watches_a_file_sees_it_from_the_beginning(tmp_path: Path) -> None:
    write(tmp_path / "events.jsonl")
    source = RecordingSource(tmp_path / "events.jsonl", plays=True)
    source.open()
    assert (source.position, source.playing) == (0, True)
    source.advance(50.0)
    assert source.advance(50.0 + 2 * EVERY_S).peers["A"].why == "number 2"


@pytest.mark.parametrize("position", [0, 1, 6, 7, 8, 20, 39, 40])
def test_a_jump_leads_to_the_same_snapshot_as_reading_from_the_start(opened: RecordingSource, position: int) -> None:
    lines = opened._lines[:position]
    for start in (0, 13, COUNT):
        opened.seek(start)
        opened.seek(position)
        assert opened.advance(0.0) == apply_all(SwarmState(), lines)
        assert opened.position == position
        assert bool(opened.ended) == (position == COUNT)


def test_a_jump_beyond_an_end_stops_there(opened: RecordingSource) -> None:
    opened.seek(-5)
    assert (opened.position, opened.time(0.0)) == (0, 1000.0)
    opened.seek(10**6)
    assert opened.position == COUNT


def test_playing_takes_as_long_as_the_swarm_took(opened: RecordingSource) -> None:
    """The clock of whoever shows it begins anywhere."""
    opened.toggle()
    assert opened.playing
    assert why(opened, 77.0) == "number 0"
    assert why(opened, 77.0 + 1.9) == "number 0"
    assert why(opened, 77.0 + 2.0) == "number 1"
    assert why(opened, 77.0 + 9.0) == "number 4"
    assert opened.time(77.0 + 9.0) == 1009.0
    assert opened.ended == ""
    assert why(opened, 77.0 + 1000.0) == f"number {COUNT - 1}"
    assert not opened.playing
    assert opened.ended


def test_a_pause_stops_the_clock(opened: RecordingSource) -> None:
    opened.toggle()
    why(opened, 0.0)
    why(opened, 4.0)
    opened.toggle()
    assert why(opened, 500.0) == "number 2"
    assert opened.time(500.0) == 1004.0
    opened.toggle()
    why(opened, 600.0)
    assert why(opened, 602.0) == "number 3"


def test_a_step_pauses_and_goes_by_events(opened: RecordingSource) -> None:
    opened.toggle()
    why(opened, 0.0)
    opened.step(3)
    assert not opened.playing
    assert (why(opened, 50.0), opened.time(50.0)) == ("number 3", 1006.0)
    opened.step(-2)
    assert why(opened, 60.0) == "number 1"


def test_the_speed_goes_from_a_quarter_to_64(opened: RecordingSource) -> None:
    speeds = [opened.speed]
    for _ in range(8):
        opened.faster()
        speeds.append(opened.speed)
    assert speeds == [1, 2, 4, 8, 16, 32, 64, 64, 64]
    for _ in range(10):
        opened.slower()
    assert opened.speed == 0.25
    opened.toggle()
    why(opened, 0.0)
    assert why(opened, 8.0) == "number 1"
    opened.faster()
    assert why(opened, 12.0) == "number 2"


def test_one_advance_takes_in_a_bounded_number_and_the_playhead_waits(
    opened: RecordingSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "SLICE", 5)
    opened.toggle()
    opened.advance(0.0)
    opened.advance(1000.0)
    assert (opened.position, opened.time(1000.0)) == (6, 1010.0)
    opened.advance(1000.0 + EVERY_S)
    assert opened.position == 7


def test_a_clock_that_is_set_back_plays_on(opened: RecordingSource) -> None:
    opened.toggle()
    why(opened, 100.0)
    assert why(opened, 50.0) == "number 0"
    assert why(opened, 52.0) == "number 1"


def test_lines_that_cannot_be_read_are_counted_from_the_start(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl")
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write('rubbish\n{"v":1,"seq":9,')
    source = RecordingSource(tmp_path / "a.jsonl")
    source.open()
    source.seek(0)
    assert source.advance(0.0).skipped == 2


def test_a_run_directory_and_a_folder_of_them_are_recordings_too(tmp_path: Path) -> None:
    write(tmp_path / "peer-1" / "events.jsonl.1")
    write(tmp_path / "peer-1" / "events.jsonl", 3)
    write(tmp_path / "peer-2" / "events.jsonl", 5)
    for path, count in ((tmp_path / "peer-1", COUNT + 3), (tmp_path, COUNT + 8)):
        source = RecordingSource(path)
        source.open()
        assert source.count == count


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("missing.jsonl", "does not exist"),
        ("empty", "holds no events"),
        ("empty.jsonl", "holds no events"),
        ("image.png", "holds no events"),
        ("loop", "does not exist|cannot be read"),
    ],
)
def test_what_cannot_be_shown_is_one_line(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "image.png").write_bytes(bytes(range(256)) * 40)
    os.symlink("loop", tmp_path / "loop")
    with pytest.raises(BadInput, match=words) as caught:
        RecordingSource(tmp_path / name).open()
    assert str(caught.value).startswith(str(tmp_path / name))
    assert len(str(caught.value).splitlines()) == 1


def test_the_shipped_recording_opens_whole() -> None:
    source = RecordingSource(DEMO)
    source.open()
    swarm = source.advance(0.0)
    assert swarm.skipped == 0
    assert swarm.round == swarm.rounds > 0
    assert {outcome for view in swarm.history for outcome in view.outcomes.values()} >= {
        "accepted", "late", "rejected", "missed",
    }  # fmt: skip


@pytest.mark.slow
def test_a_large_recording_keeps_what_all_members_say_alike_once(tmp_path: Path) -> None:
    """Of a round with 64 members, 64 lines name them all."""
    path = tmp_path / "large.jsonl"
    path.write_text("\n".join(make_lines(6000)))
    source = RecordingSource(path)
    source.open()
    commits = [line.event for line in source._lines if isinstance(line.event, RoundCommitted)]
    assert len(commits) > 60
    assert len({id(event.norms) for event in commits}) == len({event.round for event in commits})
    assert len({id(line.peer) for line in source._lines if isinstance(line.event, PeerStarted)}) == 200
