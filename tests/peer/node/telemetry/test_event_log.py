"""Events of one process on stdout and in its folder."""

from __future__ import annotations

from logging.handlers import RotatingFileHandler
from pathlib import Path

import pytest

from peer.node.telemetry.event_log import EventLog
from peer.schema.events import AlertRaised, parse_line

ALERT = AlertRaised(level="info", code="X", text="something")


def test_a_line_goes_to_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With numbers that go on after a restart."""
    for _ in range(2):
        writer = EventLog("run", "me", tmp_path)
        writer.emit(ALERT)
        writer.close()
    printed = capsys.readouterr().out
    assert printed == (tmp_path / "events.jsonl").read_text()
    lines = [parse_line(text) for text in printed.splitlines()]
    assert [line.seq for line in lines if line is not None] == [0, 1]


def test_what_a_library_prints_is_not_among_the_events(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As huggingface_hub does if a signal interrupts its import."""
    writer = EventLog("run", "me", tmp_path)
    print("Error importing huggingface_hub.file_download")
    writer.emit(ALERT)
    writer.close()
    print("after")
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [(tmp_path / "events.jsonl").read_text().strip(), "after"]
    assert printed.err == "Error importing huggingface_hub.file_download\n"


def test_a_full_disk_stops_nobody(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Lines still go to stdout; nothing is raised, nor printed elsewhere."""
    writer = EventLog("run", "me", tmp_path)
    handler = writer._file.handlers[0]
    assert isinstance(handler, RotatingFileHandler)
    usual = handler.setStream(open("/dev/full", "a"))  # noqa: SIM115
    assert usual is not None
    usual.close()
    for _ in range(200):
        writer.emit(ALERT)
    writer.close()
    printed = capsys.readouterr()
    assert len(printed.out.splitlines()) == 200
    assert printed.err == ""


def test_another_failure_is_raised(tmp_path: Path) -> None:
    """A file that went away under us is a bug."""
    writer = EventLog("run", "me", tmp_path)
    writer._file.handlers[0].stream.close()  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="closed file"):
        writer.emit(ALERT)
