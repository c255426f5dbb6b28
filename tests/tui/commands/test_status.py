from __future__ import annotations

import fcntl
import json
import os
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from dht.errors import BadInput
from peer.node.control import saved_settings
from peer.node.control.server import Commands, ControlServer
from peer.node.limits.desired_state import Desired, Intent
from peer.node.telemetry.reporter import Reporter
from peer.schema.events import (
    AlertRaised,
    Evaluated,
    Event,
    EventLine,
    InnerProgressed,
    PeerStarted,
    PeerStateChanged,
    PeerStopped,
    PenaltyImposed,
    ReportReceived,
    RoundCommitted,
    RoundForecast,
    RoundStalled,
    TransferProgressed,
    format_line,
)
from tests.tui.fake_control import FakePeer, serving
from tui.commands.status import describe_directory
from tui.text.event_text import clock
from tui.text.explain import HOLDS

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
    lines = [
        format_line(EventLine(seq=n, t=1000.0 + n, run="tiny", peer="QmAlice", event=e)) for n, e in enumerate(events)
    ]
    path.write_text("".join(f"{line}\n" for line in lines))


def test_what_it_trains_on_is_told(tmp_path: Path) -> None:
    devices = ("cpu", "cpu")
    started = PeerStarted(name="al", version="0", device="2 × cpu", devices=devices, sharding="replicated")
    write(tmp_path / "events.jsonl", started)
    assert "trains on cpu, cpu (replicated)" in describe_directory(tmp_path, as_json=False).splitlines()
    told = json.loads(describe_directory(tmp_path, as_json=True))["peers"][0]
    assert (told["device"], told["devices"], told["sharding"]) == ("2 × cpu", ["cpu", "cpu"], "replicated")
    write(tmp_path / "events.jsonl", PeerStarted(name="al", version="0", device="cuda"))
    assert "trains on cuda" in describe_directory(tmp_path, as_json=False).splitlines()


def lock(directory: Path) -> int:
    (directory / "run").mkdir()
    descriptor = os.open(directory / "run" / "lock", os.O_CREAT | os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


@pytest.mark.outside
def test_a_running_peer_in_words(tmp_path: Path) -> None:
    write(tmp_path / "events.jsonl", *STORY)
    descriptor = lock(tmp_path)
    try:
        text = describe_directory(tmp_path, as_json=False)
    finally:
        os.close(descriptor)
    assert text == (
        "alice: TRAINING (round 3 began)\n"
        f"this is what it wrote last: it takes no commands now (no peer runs in {tmp_path})\n"
        "run tiny: 3 rounds, in round 4, step 20 of 50\n"
        "training loss 2.113, 1.23k tokens/s while it computes\n"
        "held-out loss 2.050 at round 3\n"
        "with bob\n"
        "last alert: warning: the disk is nearly full"
    )


def test_a_peer_that_was_killed_is_not_said_to_train(tmp_path: Path) -> None:
    write(tmp_path / "events.jsonl", *STORY)
    os.close(lock(tmp_path))
    first = describe_directory(tmp_path, as_json=False).splitlines()[0]
    assert first == "alice: GONE (it ended without a word while TRAINING: round 3 began)"


def test_a_peer_that_left_says_why(tmp_path: Path) -> None:
    write(tmp_path / "events.jsonl", *STORY, PeerStopped(why="asked to leave"))
    assert describe_directory(tmp_path, as_json=False).startswith("alice: LEFT (asked to leave)\n")


@pytest.mark.parametrize(
    ("wished", "said"),
    [
        (Desired(Intent.PAUSE), "its owner paused it: it starts paused, until: homefires resume"),
        (Desired(Intent.TRAIN, 1_800_007_200.0), f"snooze until {clock(1_800_007_200.0, 1_800_000_000.0)}"),
        (Desired(Intent.TRAIN, 1_799_999_999.0), ""), (Desired(), ""),
    ],
)  # fmt: skip
def test_a_peer_that_is_down_says_how_it_starts(tmp_path: Path, wished: Desired, said: str) -> None:
    """What its owner said last, at work or down; a snooze that is over is none, and a damaged file says nothing."""
    write(tmp_path / "events.jsonl", *STORY, PeerStopped(why="asked to leave"))
    saved_settings.write_wish(tmp_path, wished)
    second = describe_directory(tmp_path, as_json=False, now=NOW).splitlines()[1]
    assert said in second
    assert bool(said) != second.startswith("run tiny")
    (tmp_path / saved_settings.WISH).write_text("{")
    assert describe_directory(tmp_path, as_json=False, now=NOW).splitlines()[1].startswith("run tiny")


def test_json_is_one_object(tmp_path: Path) -> None:
    write(tmp_path / "events.jsonl", *STORY)
    row = json.loads(describe_directory(tmp_path, as_json=True))
    assert (row["alive"], row["run"], row["losses"][-1]) == (False, "tiny", [3, 2.05])
    assert (row["peers"][0]["shown"], row["peers"][0]["loss"]) == ("GONE", None), "who is gone has no live figures"


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
    assert "SYNCING: round 12 of 40 from bob)" in text
    assert "received 7.1 MB of 23.5 MB of updates from bob" in text


def committed(*penalties: PenaltyImposed) -> RoundCommitted:
    return RoundCommitted(
        round=4, digest="d4", state="s4", group=["QmAlice", "QmBob"], weights={"QmAlice": 60_000, "QmBob": 5_536},
        penalties=[asdict(penalty) for penalty in penalties], tokens=1, bytes_sent=1, bytes_received=1, round_s=1.0,
        exposed_s=1.0,
    )  # fmt: skip


def test_penalties_that_last_are_told_with_their_evidence_and_end(tmp_path: Path) -> None:
    anomaly = PenaltyImposed(
        about="QmBob", code="ANOMALY", layer="model.norm", evidence="norm 0.11 where 0.02 is usual", factor=0.25,
        until_round=5,
    )  # fmt: skip
    write(tmp_path / "events.jsonl", *STORY, committed(anomaly), anomaly)
    text = describe_directory(tmp_path, as_json=False)
    said = "norm 0.11 where 0.02 is usual; counts 25 %, until round 5"
    assert f"penalty: bob ANOMALY in model.norm: {said}" in text
    assert "rounds: 1 accepted; weight 91.6 % in round 4" in text
    row = json.loads(describe_directory(tmp_path, as_json=True))
    assert [(each["about"], each["until_round"]) for each in row["lasting"]] == [("QmBob", 5)]
    write(tmp_path / "events.jsonl", *STORY, committed(anomaly), anomaly, replace(committed(), round=5))
    assert "ANOMALY" not in describe_directory(tmp_path, as_json=False)


def test_json_has_what_a_peer_gave_and_no_long_histories(tmp_path: Path) -> None:
    write(tmp_path / "events.jsonl", *STORY, committed())
    row = json.loads(describe_directory(tmp_path, as_json=True))
    alice, bob = row["peers"]
    assert (alice["accepted"], alice["late"], alice["weight"], alice["behind"]) == (1, 0, 60_000 / 65_536, 0)
    assert bob["name"] == "bob"
    assert (row["rounds"], row["skipped"]) == (0, 0)
    assert not {"spans", "losses", "norms", "commits", "speeds"} & set(alice)


def test_lines_that_were_skipped_are_counted(tmp_path: Path) -> None:
    write(tmp_path / "events.jsonl", *STORY)
    with (tmp_path / "events.jsonl").open("a") as file:
        file.write('rubbish\n{"v":9,"type":"PeerStopped"}\n{"v":1,"seq":9,"t":10')
    assert json.loads(describe_directory(tmp_path, as_json=True))["skipped"] == 3


def test_rotated_files_are_read_oldest_first(tmp_path: Path) -> None:
    write(tmp_path / "events.jsonl.2", *STORY[:1])
    write(tmp_path / "events.jsonl.1", PeerStateChanged(state="READY", why="old"))
    write(tmp_path / "events.jsonl", PeerStateChanged(state="AVERAGING", why="new"))
    assert "AVERAGING: new)" in describe_directory(tmp_path, as_json=False)


def test_a_peers_name_cannot_write_escapes(tmp_path: Path) -> None:
    write(tmp_path / "events.jsonl", PeerStarted(name="\x1b[2Jx", version="0"))
    assert "\x1b" not in describe_directory(tmp_path, as_json=False)


def test_a_demos_folder_points_at_its_peers(tmp_path: Path) -> None:
    write(tmp_path / "peer-1" / "events.jsonl", *STORY)
    with pytest.raises(BadInput, match="look at one of peer-1 in it"):
        describe_directory(tmp_path, as_json=False)


@pytest.mark.outside
def test_a_peer_at_work_says_itself_what_it_does(tmp_path: Path) -> None:
    """Its file may lag behind, as on a full disk; whoever cannot be asked is told of from the file."""
    write(tmp_path / "events.jsonl", *STORY)
    session = Reporter(lambda event: None, state="PAUSED", why="its owner paused it")
    (tmp_path / "run").mkdir()
    with (tmp_path / "run" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "TRAINING (round 3 began)" in describe_directory(tmp_path, as_json=False)
        with ControlServer(tmp_path, Commands(session, "tiny", "QmAlice", "alice", lambda: None)):
            assert "PAUSED (its owner paused it)" in describe_directory(tmp_path, as_json=False)
            assert json.loads(describe_directory(tmp_path, as_json=True))["control"]["state"] == "PAUSED"
    assert json.loads(describe_directory(tmp_path, as_json=True))["control"] is None


NOW = 1_800_000_000.0


def held(directory: Path, **changes: object) -> FakePeer:
    """A peer of this directory's story, as its limits have it."""
    write(directory / "events.jsonl", *STORY)
    peer = FakePeer(now=NOW)
    for name, value in changes.items():
        setattr(peer, name, value)
    return peer


@pytest.mark.outside
@pytest.mark.parametrize("code", sorted(HOLDS))
@pytest.mark.parametrize("until", [None, NOW + 7200])
def test_whatever_holds_a_peer_up_is_said_with_its_reason_and_end(
    tmp_path: Path, code: str, until: float | None
) -> None:
    peer = held(tmp_path, holds=[{"code": code, "why": "for a reason", "until": until}])
    with serving(tmp_path, peer):
        lines = describe_directory(tmp_path, as_json=False, now=NOW).splitlines()
        row = json.loads(describe_directory(tmp_path, as_json=True, now=NOW))
    assert lines[0] == "alice: PAUSED (for a reason)"
    assert (row["holds"], row["until"]) == ([{"code": code, "why": "for a reason", "until": until}], until)
    if until is None:
        assert "trains again" in lines[1]
        assert row["next"] == lines[1]
    else:
        assert lines[1].startswith(f"held up by {code}: ")
        assert f"until {clock(until, NOW)}" in lines[1]
        assert "for a reason" in lines[1] or code == "SNOOZED"
        assert row["control"]["state"] == "PAUSED"


@pytest.mark.outside
def test_several_reasons_are_all_named(tmp_path: Path) -> None:
    rows = [{"code": code, "why": f"reason {code}", "until": None} for code in ("SCHEDULE", "BATTERY")]
    with serving(tmp_path, held(tmp_path, holds=rows)):
        text = describe_directory(tmp_path, as_json=False, now=NOW)
    assert "held up by SCHEDULE: reason SCHEDULE\nheld up by BATTERY: reason BATTERY\ntrains again by itself" in text


@pytest.mark.outside
def test_an_owners_pause_says_how_it_is_ended(tmp_path: Path) -> None:
    peer = held(tmp_path)
    peer.answer("pause", {})
    with serving(tmp_path, peer):
        text = describe_directory(tmp_path, as_json=False, now=NOW)
    assert text.count("homefires resume") == 1


@pytest.mark.outside
def test_a_peer_that_computes_less_of_the_time_says_how_much_and_why(tmp_path: Path) -> None:
    peer = held(tmp_path, duty=0.62)
    peer.settings["max_temperature_c"] = 75
    with serving(tmp_path, peer):
        lines = describe_directory(tmp_path, as_json=False, now=NOW).splitlines()
        row = json.loads(describe_directory(tmp_path, as_json=True, now=NOW))
    assert lines[:2] == ["alice: TRAINING (towards round 5)", "computes 62 % of the time, to stay at or below 75 °C"]
    assert (row["duty"], row["holds"], row["next"]) == (0.62, [], "")


def test_those_who_left_are_not_said_to_be_there(tmp_path: Path) -> None:
    left = ReportReceived(about="QmBob", round=4, ready=False, tokens=1, steps=4, name="bob", leaving=True)
    write(tmp_path / "events.jsonl", *STORY, replace(STORY[4], about="QmEve", name="eve"), left)  # type: ignore[call-arg]
    assert "with eve\n" in describe_directory(tmp_path, as_json=False)


EXPECTED = RoundForecast(
    round=5, expected_s=62.0, low_s=55.0, high_s=71.0, took_s=61.0, foretold_s=60.0, late_s=-12.0
)  # fmt: skip
GIVEN = replace(committed(), tokens=4000, given={"QmAlice": 1000, "QmBob": 3000})


def test_what_a_peer_gave_is_said_and_where_that_is_certified(tmp_path: Path) -> None:
    write(tmp_path / "events.jsonl", *STORY, GIVEN)
    text = describe_directory(tmp_path, as_json=False)
    assert "gave 1,000 tokens, 25.0 % of all, by its log" in text
    assert "homefires credit" in text
    row = json.loads(describe_directory(tmp_path, as_json=True))["credit"]
    assert row == {
        "tokens": 1000, "share": 0.25, "weight": 60_000 / 65_536, "accepted": 1, "late": 0, "idle": 0,
        "rejected": 0, "missed": 0,
    }  # fmt: skip


@pytest.mark.outside
def test_a_running_peer_says_whether_its_part_will_be_in_time(tmp_path: Path) -> None:
    """One that does not run expects nothing."""
    write(tmp_path / "events.jsonl", *STORY, GIVEN, EXPECTED)
    assert "nine in ten" not in describe_directory(tmp_path, as_json=False)
    assert json.loads(describe_directory(tmp_path, as_json=True))["forecast"] is None
    descriptor = lock(tmp_path)
    try:
        text = describe_directory(tmp_path, as_json=False, now=1010.0)
        row = json.loads(describe_directory(tmp_path, as_json=True, now=1010.0))["forecast"]
        over = describe_directory(tmp_path, as_json=False, now=1010.0 + 71.0 + 16.0)
        write(tmp_path / "events.jsonl", *STORY, GIVEN, replace(EXPECTED, late_s=3.0, advice="min_step_s is 2 s"))
        late = describe_directory(tmp_path, as_json=False, now=1010.0)
    finally:
        os.close(descriptor)
    assert (
        "round 5: about 62 s, nine in ten between 55 s and 71 s; its part will be in time by 12 s\n"
        "round 4 took 61 s (60 s foretold)\n"
    ) in text
    assert (row["round"], row["expected_s"], row["low_s"], row["high_s"], row["margin_s"]) == (5, 62, 55, 71, 12)
    assert "nine in ten" not in over, "a forecast ends when its time has passed"
    assert "its part will be 3 s late\n" in late
    assert "what helps: min_step_s is 2 s\n" in late


STALLED = RoundStalled(
    round=3, ballots=3, rule="RANGES", about="QmBob",
    why="round 4 stands still after 3 ballots: RANGES refuses what bob (QmBob) sent: it read shard 9",
)  # fmt: skip


@pytest.mark.outside
def test_a_round_that_stands_still_says_which_rule_refused_whom(tmp_path: Path) -> None:
    write(tmp_path / "events.jsonl", *STORY, STALLED)
    descriptor = lock(tmp_path)
    try:
        lines = describe_directory(tmp_path, as_json=False).splitlines()
        told = json.loads(describe_directory(tmp_path, as_json=True))
    finally:
        os.close(descriptor)
    assert STALLED.why in lines
    assert "what that means: homefires explain RANGES" in lines
    assert told["stalled"] == asdict(STALLED)


@pytest.mark.outside
def test_a_commit_ends_a_standstill(tmp_path: Path) -> None:
    write(tmp_path / "events.jsonl", *STORY, STALLED, replace(committed(), round=4))
    descriptor = lock(tmp_path)
    try:
        assert "stands still" not in describe_directory(tmp_path, as_json=False)
        assert json.loads(describe_directory(tmp_path, as_json=True))["stalled"] is None
    finally:
        os.close(descriptor)
