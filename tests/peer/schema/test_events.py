from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from peer.schema.event_fields import MAX_TEXT
from peer.schema.events import (
    MAX_LINE_BYTES,
    DeviceMeasured,
    DeviceReported,
    Evaluated,
    Event,
    EventLine,
    InnerProgressed,
    NetworkMeasured,
    PeerIntroduced,
    PeerStarted,
    PeerStateChanged,
    PeerStopped,
    PhaseEntered,
    ReportReceived,
    RoundCommitted,
    RoundTripsReported,
    event_files,
    format_line,
    parse_line,
    read_events,
    read_line,
    read_lines,
)

COMMITTED = RoundCommitted(
    round=3, digest="d3", state="s3", group=["A", "B"], weights={"A": 40_000, "B": 25_536},
    penalties=[
        {"about": "B", "code": "LATE", "layer": "", "evidence": "7 of 15", "factor": 0.4667, "until_round": 4},
    ],
    tokens=4096, bytes_sent=1, bytes_received=2, round_s=8.5, exposed_s=1.0, norms={"A": 3.5, "B": 0.5},
)  # fmt: skip
CONNECTION = {"peer": "B", "address": "", "relayed": True, "bytes_sent": 1, "bytes_received": 2, "rtt_s": None}
GPU = {
    "gpu_percent": 97.0, "vram_used_bytes": 1, "vram_bytes": None, "temperature_c": 83.0, "power_w": 300.0,
    "power_limit_w": None, "fan_percent": None,
}  # fmt: skip
EVENTS: tuple[Event, ...] = (
    COMMITTED,
    PeerStarted(name="alice", version="0.1.0", settings={"listen": ["/ip4/127.0.0.1/tcp/0"], "min_step_s": 0.5}),
    InnerProgressed(round=3, step=1, steps=9, loss=2.5, tokens=1, tokens_per_s=1.5, learning_rate=1e-3),
    NetworkMeasured(addresses=["x"], reach="", bytes_sent=1, bytes_received=2, peers=[CONNECTION]),
    DeviceMeasured(cpu_percent=12.5),
    PeerStateChanged(state="PAUSED", why="until the evening", until=1_700_000_000.0),
    PeerStopped(why="killed", exit_code=-9),
    PeerIntroduced(name="alice", trains="micro: llama on stdlib"),
    PeerStarted(name="bob", version="0.1.0", device="2 × cpu", devices=("cpu", "cpu"), sharding="replicated"),
    DeviceMeasured(temperature_c=83.0, gpus=[{"device": "cuda:0", "throttled": "too hot", **GPU}]),
)


def written(event: Event, **changes: Any) -> str:
    """The line of an event with some of its fields changed on the wire."""
    row = json.loads(format_line(EventLine(seq=1, t=1000.0, run="tiny", peer="A", event=event)))
    return json.dumps(row | changes)


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_what_is_written_is_read(event: Event) -> None:
    line = EventLine(seq=1, t=1000.0, run="tiny", peer="A", event=event)
    assert parse_line(format_line(line)) == line


@pytest.mark.parametrize(
    ("old", "new"), [("freeze", "submit"), ("group", "prepare"), ("send", "exchange"), ("judge", "weigh")]
)
def test_phases_of_older_clients_are_read_in_todays_words(old: str, new: str) -> None:
    line = parse_line(written(PhaseEntered(round=3, phase="train"), phase=old))
    assert line is not None
    assert line.event == PhaseEntered(round=3, phase=new)


def test_who_started_before_there_were_several_devices_is_read() -> None:
    row = json.loads(written(PeerStarted(name="alice", version="0.1.0", device="cuda")))
    line = parse_line(json.dumps({key: row[key] for key in row.keys() - {"devices", "sharding"}}))
    assert line is not None
    assert line.event == PeerStarted(name="alice", version="0.1.0", device="cuda", devices=(), sharding="")


@pytest.mark.parametrize(
    ("old", "event"),
    [
        ("DistancesTold", RoundTripsReported(about="B", rtt_s={"C": 0.25})),
        ("DeviceTold", DeviceReported(about="B", device_gb=8.0)),
    ],
)
def test_types_of_older_clients_are_read_in_todays_words(old: str, event: Event) -> None:
    line = parse_line(written(event, type=old))
    assert line is not None
    assert line.event == event


@pytest.mark.parametrize(
    ("event", "changes"),
    [
        (COMMITTED, {"round": "3"}),
        (COMMITTED, {"round": 3.5}),
        (COMMITTED, {"round": -1}),
        (COMMITTED, {"round": 2**70}),
        (COMMITTED, {"round": True}),
        (COMMITTED, {"round_s": None}),
        (COMMITTED, {"round_s": "8.5"}),
        (COMMITTED, {"digest": None}),
        (COMMITTED, {"group": "AB"}),
        (COMMITTED, {"group": ["A", 7]}),
        (COMMITTED, {"weights": [1, 2]}),
        (COMMITTED, {"weights": {"A": "much"}}),
        (COMMITTED, {"penalties": [{"about": "B"}]}),
        (COMMITTED, {"penalties": ["LATE"]}),
        (COMMITTED, {"penalties": None}),
        (COMMITTED, {"t": None}),
        (COMMITTED, {"t": 1e300}),
        (COMMITTED, {"t": -1}),
        (COMMITTED, {"seq": "first"}),
        (COMMITTED, {"peer": ["A"]}),
        (EVENTS[3], {"peers": [{"peer": "B"}]}),
        (EVENTS[3], {"peers": [CONNECTION | {"rtt_s": "fast"}]}),
        (EVENTS[5], {"until": 1e300}),
        (EVENTS[6], {"exit_code": 1.5}),
    ],
)
def test_a_field_of_a_wrong_type_makes_a_line_unreadable(event: Event, changes: dict[str, Any]) -> None:
    text = written(event, **changes)
    with pytest.raises(ValueError, match="wrong one"):
        parse_line(text)
    assert read_line(text.encode()) is None


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "7", '"x"', '{"v":1}', "[" * 100_000, '{"a":' * 5_000])
def test_what_is_no_event_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_line(text)


@pytest.mark.parametrize("changes", [{"v": 2}, {"v": None}, {"type": "PeerDanced"}, {"type": ["PeerStopped"]}])
def test_a_newer_version_and_an_unknown_type_are_none(changes: dict[str, Any]) -> None:
    assert parse_line(written(COMMITTED, **changes)) is None


def test_a_field_that_is_not_known_is_ignored_and_one_that_is_missing_is_not() -> None:
    line = parse_line(written(COMMITTED, colour="blue"))
    assert line is not None
    assert line.event == COMMITTED
    row = json.loads(written(COMMITTED))
    del row["digest"]
    with pytest.raises(ValueError, match="digest"):
        parse_line(json.dumps(row))


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity", "null"])
def test_a_loss_that_is_not_a_number_is_none_and_the_line_still_counts(word: str) -> None:
    """A run that diverged can be watched."""
    for event in (EVENTS[2], Evaluated(round=3, loss=2.5, tokens=1)):
        line = parse_line(written(event).replace('"loss": 2.5', f'"loss": {word}'))
        assert line is not None
        assert isinstance(line.event, InnerProgressed | Evaluated)
        assert line.event.loss is None


def test_a_norm_that_is_not_a_number_is_left_out() -> None:
    line = parse_line(format_line(EventLine(seq=1, t=0.0, run="r", peer="A", event=COMMITTED)).replace("3.5", "null"))
    assert line is not None
    assert isinstance(line.event, RoundCommitted)
    assert line.event.norms == {"B": 0.5}


@pytest.mark.parametrize("number", ["1e999", "1e101", "-1e308"])
def test_a_number_whose_sums_overflow_is_not_taken(number: str) -> None:
    """A screen adds, averages and squares what it finds; what comes of that must be finite, too."""
    assert read_line(written(COMMITTED).replace("8.5", number).encode()) is None


@pytest.mark.parametrize(
    "evil", ["\x1b[2J", "\x07", "a\nb", "\u202egnp.exe", "\u200b\u200d", "\x9b31m", "\ud800", "\x00"]
)
def test_no_text_of_a_line_can_steer_a_terminal(evil: str) -> None:
    """In fields, lists, keys, rows of penalties and settings alike."""
    penalty = COMMITTED.penalties[0] | {"evidence": evil, "about": evil}
    started = PeerStarted(name=evil, version=evil, settings={evil: [evil, {evil: evil}]})
    report = ReportReceived(about=evil, round=0, ready=True, tokens=0, steps=0, name=evil)
    changed = written(COMMITTED, group=[evil], weights={evil: 1}, penalties=[penalty], peer=evil)
    for text in (changed, written(started), written(report)):
        line = parse_line(text)
        assert line is not None
        assert repr(line).isprintable()
        assert format_line(line).encode().decode().isprintable()
        assert evil not in str(line)


def test_a_text_without_end_is_cut() -> None:
    line = parse_line(written(PeerStopped(why="x" * 10**6)))
    assert line is not None
    assert isinstance(line.event, PeerStopped)
    assert len(line.event.why) == MAX_TEXT


def test_equal_lists_of_two_lines_are_one_object() -> None:
    """Two hundred members report one round in the same words; it is kept once."""
    first, second = parse_line(written(COMMITTED)), parse_line(written(COMMITTED, peer="B"))
    assert first is not None
    assert second is not None
    assert isinstance(first.event, RoundCommitted)
    assert isinstance(second.event, RoundCommitted)
    assert first.event.group is second.event.group
    assert first.event.norms is second.event.norms
    other = parse_line(written(COMMITTED, group=["A", "C"]))
    assert other is not None
    assert isinstance(other.event, RoundCommitted)
    assert other.event.group == ["A", "C"]


def test_every_line_of_a_file_is_an_event_or_none(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    good = written(COMMITTED).encode()
    path.write_bytes(b"\n".join([good, b"", b"rubbish \xff\xfe", good, b"y" * (MAX_LINE_BYTES + 10), good, good[:40]]))
    read = [line is not None for line in read_lines(path)]
    assert read.count(True) == 3
    assert read[:3] == [True, False, True]
    assert read[-2:] == [True, False]


def test_only_event_files_are_read_oldest_first(tmp_path: Path) -> None:
    for age, name in enumerate(("events.jsonl", "events.jsonl.1", "events.jsonl.2", "events.jsonl.10")):
        (tmp_path / name).write_text(written(PeerStopped(why=name), t=100 - age))
    (tmp_path / "events.jsonl.bak").write_text(written(PeerStopped(why="not mine")))
    assert [path.name.rpartition("jsonl")[2] for path in event_files(tmp_path)] == [".10", ".2", ".1", ""]
    assert [line.t for line in read_events(tmp_path)] == [97, 98, 99, 100]
