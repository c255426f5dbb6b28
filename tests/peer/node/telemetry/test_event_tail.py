"""One follower for who takes lines, and for who passes on whole ones from a number on."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from peer.node.telemetry.event_tail import EventTail
from peer.schema.events import EventLine, RoundStarted, format_line


def line(seq: int) -> str:
    return format_line(EventLine(seq=seq, t=1.0, run="r", peer="p", event=RoundStarted(round=seq, steps=1))) + "\n"


def test_it_begins_in_the_file_that_has_the_number_and_goes_on_in_the_next(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    (tmp_path / "events.jsonl.1").write_text(line(0) + line(1))
    path.write_text(line(2) + line(3))
    with closing(EventTail(path, 1)) as tail:
        assert (tail.read() + tail.read()).decode() == line(1) + line(2) + line(3)
        assert tail.read() == b""
    with closing(EventTail(path, 3)) as tail:
        assert tail.read().decode() == line(3)


def test_a_line_that_was_cut_off_is_not_passed_on_and_its_number_comes_again(tmp_path: Path) -> None:
    """Who was killed within a line gives its number to the next one."""
    path = tmp_path / "events.jsonl"
    (tmp_path / "events.jsonl.1").write_text(line(0) + line(1)[:-9])
    path.write_text(line(1))
    with closing(EventTail(path)) as tail:
        assert (tail.read() + tail.read()).decode() == line(0) + line(1)
