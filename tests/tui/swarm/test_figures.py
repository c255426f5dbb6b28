"""Figures and states, where they are not simply what a peer has said."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import pytest

from peer.schema.events import (
    DeviceMeasured,
    EventLine,
    NetworkMeasured,
    PeerStateChanged,
    RoundForecast,
    RoundStalled,
)
from tests.tui.dashboard.canned import ROUND_S, START, Canned, dashboard, peer_id, penalty, swarm_of
from tests.tui.dashboard.screen import opened, press, text_of
from tui.dashboard.app import Dashboard
from tui.dashboard.styles import state_of
from tui.dashboard.view import View
from tui.swarm import figures
from tui.swarm.figure_text import left_words, why_words
from tui.swarm.reducer import apply_all
from tui.swarm.snapshot import LogEntry, PeerView, PenaltyRecord, Point, SwarmState

HEARD_T = START + 60.0


def swarm_with(*penalties: PenaltyRecord, rounds: int = 6, **changes: object) -> SwarmState:
    """Three peers; peer-2 is changed."""
    swarm = swarm_of(3, rounds, penalties=penalties)
    changed = replace(swarm.peers[peer_id(2)], **changes)  # type: ignore[arg-type]
    return replace(swarm, peers=MappingProxyType({**swarm.peers, peer_id(2): changed}))


def shown(swarm: SwarmState, now: float = HEARD_T) -> tuple[str, str]:
    peer = swarm.peers[peer_id(2)]
    return figures.state(swarm, peer, now).name, why_words(swarm, peer, now)


# ---- who left without a word ----


def test_who_was_not_heard_of_for_a_minute_is_gone() -> None:
    swarm = swarm_with(reports=False, seen_t=HEARD_T, why="trains")
    assert shown(swarm, HEARD_T + 60.0) == ("TRAINING", "trains")
    assert shown(swarm, HEARD_T + 60.1) == ("GONE", "not heard of since 01:00")


def test_where_rounds_take_long_silence_may_too() -> None:
    swarm = swarm_with(reports=False, seen_t=HEARD_T)
    slow = replace(swarm, history=tuple(replace(view, round_s=100.0) for view in swarm.history))
    assert shown(slow, HEARD_T + 200.0)[0] == "TRAINING"
    assert shown(slow, HEARD_T + 200.1)[0] == "GONE"
    assert slow.usual_round_s == 100.0
    assert swarm.usual_round_s == ROUND_S


def test_whose_own_lines_are_read_says_itself_that_it_goes() -> None:
    assert shown(swarm_with(seen_t=HEARD_T), HEARD_T + 1000.0)[0] == "TRAINING"


def test_before_the_first_round_there_is_nothing_to_be_heard() -> None:
    assert shown(swarm_with(rounds=0, reports=False, seen_t=HEARD_T), HEARD_T + 1000.0)[0] == "TRAINING"


def test_who_left_with_a_word_keeps_it() -> None:
    swarm = swarm_with(reports=False, seen_t=HEARD_T, state="GONE", why="asked to leave")
    assert shown(swarm, HEARD_T + 1000.0) == ("GONE", "asked to leave")


# ---- who takes part under a penalty ----


@pytest.mark.parametrize(
    ("codes", "state", "expected"),
    [
        (("LATE",), "TRAINING", "LATE"),
        (("STALE", "ABSENT"), "AVERAGING", "LATE"),
        (("ANOMALY",), "READY", "PENALISED"),
        (("LATE", "MISDECLARED"), "TRAINING", "PENALISED"),
        (("LATE",), "GONE", "GONE"),
        (("LATE",), "PAUSED", "PAUSED"),
        (("ANOMALY",), "SYNCING", "SYNCING"),
        (("ANOMALY",), "JOINING", "JOINING"),
        ((), "TRAINING", "TRAINING"),
    ],
)
def test_a_penalty_that_lasts_is_a_state(codes: tuple[str, ...], state: str, expected: str) -> None:
    swarm = swarm_with(*(penalty(code, told=6, until=7) for code in codes), state=state)
    assert shown(swarm)[0] == expected
    assert expected in state_of(swarm.peers[peer_id(2)], View(swarm=swarm, now=HEARD_T)).plain


def test_a_penalty_that_is_over_is_none() -> None:
    assert shown(swarm_with(penalty(told=5, until=6)))[0] == "TRAINING"


def test_who_needs_a_look_comes_first() -> None:
    swarm = swarm_with(penalty("ANOMALY", told=6, until=7))

    def order(peers: list[PeerView]) -> list[str]:
        return [peer.label for peer in peers]

    assert order(figures.by_urgency(swarm, HEARD_T)) == ["peer-2", "peer-1", "peer-3"]


async def test_the_screens_with_peers_show_it() -> None:
    app = dashboard(swarm_with(penalty("ANOMALY", told=6, until=7)))
    async with opened(app) as pilot:
        for key in "23":
            await press(pilot, key)
            assert "PENALISED" in text_of(app)


# ---- who has ended ----


@pytest.mark.parametrize(
    ("rounds", "exit_code", "expected"), [(10, 0, "FINISHED"), (6, 0, "LEFT"), (10, 3, "GONE"), (6, 3, "GONE")]
)
def test_who_made_all_rounds_has_finished_and_who_failed_is_gone(rounds: int, exit_code: int, expected: str) -> None:
    swarm = swarm_with(state="GONE", why="it ends", stopped=True, exit_code=exit_code, round=rounds)
    assert swarm.rounds == 10
    assert shown(swarm) == (expected, "it ends")


async def test_a_finished_run_ends_in_finished_and_in_no_alert() -> None:
    swarm = swarm_of(3)
    ended = {
        peer: replace(view, state="GONE", why="the run is finished", stopped=True, round=swarm.rounds)
        for peer, view in swarm.peers.items()
    }
    source = Canned(replace(swarm, peers=MappingProxyType(ended)))
    source.ended = "every peer has stopped"
    app = Dashboard(source, clock=lambda: HEARD_T)
    async with opened(app):
        assert "✓ 3 finished" in text_of(app).splitlines()[1]
        assert "GONE" not in text_of(app)


# ---- who is gone or rests has no live figures ----


@pytest.mark.parametrize("state", ["GONE", "PAUSED", "SYNCING", "JOINING"])
def test_who_does_not_train_has_no_speed(state: str) -> None:
    swarm = swarm_with(state=state, tokens_per_s=900.0)
    assert figures.device_speed(swarm, swarm.peers[peer_id(2)], HEARD_T) is None
    assert figures.device_speed(swarm_with(tokens_per_s=900.0), swarm.peers[peer_id(1)], HEARD_T) is None
    training = swarm_with(tokens_per_s=900.0)
    assert figures.device_speed(training, training.peers[peer_id(2)], HEARD_T) == 900.0


def test_who_is_gone_has_no_loss_no_rate_and_no_gauges() -> None:
    device, points = DeviceMeasured(cpu_percent=5.0), [Point(t=1.0, round=1, tokens=1, value=10.0)]
    for state, is_live in (("GONE", False), ("PAUSED", True)):
        swarm = swarm_with(state=state, loss=2.0, device_figures=device, ups=points, downs=points)
        peer = swarm.peers[peer_id(2)]
        live = (
            figures.own_loss(swarm, peer, HEARD_T), figures.link_rate(swarm, peer, HEARD_T),
            figures.gauges(swarm, peer, HEARD_T),
        )  # fmt: skip
        assert [each is not None for each in live] == [is_live] * 3


def test_a_forecast_ends_when_its_time_has_passed_by_its_own_width() -> None:
    forecast = RoundForecast(round=7, expected_s=20.0, low_s=15.0, high_s=25.0, took_s=10.0)
    swarm = swarm_with(forecast=forecast)
    peer, began_t = swarm.peers[peer_id(2)], swarm.history[-1].t
    assert figures.forecast_now(swarm, peer, began_t + 35.0) == forecast
    assert figures.forecast_now(swarm, peer, began_t + 36.0) is None


# ---- shares and sums ----


def test_the_weights_of_a_round_are_those_of_its_members_alone() -> None:
    """Of who was in the round before, 0: else the column would add up to more than all."""
    swarm = swarm_of(3)
    newest = replace(swarm.history[-1], weights={peer_id(1): 40_000, peer_id(3): 25_536})
    swarm = replace(swarm, history=(*swarm.history[:-1], newest))
    shares = [figures.weight(swarm, peer) for peer in swarm.peers]
    assert shares == [40_000 / 65_536, 0.0, 25_536 / 65_536]


def test_upload_is_measured_or_else_pledged() -> None:
    pledged = replace(swarm_of(1).peers[peer_id(1)], upload_bps=8_000_000)
    assert figures.upload(pledged) == figures.Upload(bps=8_000_000, is_measured=False)
    network = NetworkMeasured(addresses=[], reach="", bytes_sent=1, bytes_received=1, peers=[], upload_bps=5_000_000)
    assert figures.upload(replace(pledged, network=network)) == figures.Upload(bps=5_000_000, is_measured=True)


def test_peer_2_comes_before_peer_10_and_mine_before_all() -> None:
    peers = [PeerView(peer=name, name=name) for name in ("peer-10", "peer-2", "b", "2")]
    assert [peer.name for peer in figures.order(peers, "b")] == ["b", "2", "peer-2", "peer-10"]


def test_the_rest_of_a_run_takes_its_usual_rounds_less_what_is_made_of_this_one() -> None:
    swarm = swarm_of(3)  # 6 of 10 rounds, 10 s each
    assert figures.seconds_left(swarm, swarm.history[-1].t + 4.0) == 36.0
    assert figures.seconds_left(swarm, swarm.history[-1].t + 99.0) == 30.0
    assert figures.seconds_left(replace(swarm, rounds=0), HEARD_T) is None


@pytest.mark.parametrize(
    ("code", "before_s", "stands"),
    [
        ("STANDS_STILL", 5.0, False),
        ("STANDS_STILL", -5.0, True),
        ("CLOCK", 5.0, False),
        ("RESTART", 5.0, False),
        ("DAMAGE", 5.0, True),
    ],
)
def test_an_error_that_kept_a_peer_from_its_round_is_over_with_the_next_one(
    code: str, before_s: float, stands: bool
) -> None:
    """One of another kind stands: nobody says when it is mended."""
    swarm = swarm_of(3)
    t = swarm.history[-1].t - before_s
    entry = LogEntry(t=t, level="error", peer=peer_id(2), code=code, text="it stands still")
    assert figures.standing_alerts(replace(swarm, entries=(entry,))) == ([entry] if stands else [])


def test_what_ended_a_process_is_no_alert_of_the_next_one() -> None:
    swarm, (told_t, started_t) = swarm_of(3), (START - 20.0, START - 10.0)
    entry = LogEntry(t=told_t, level="error", peer=peer_id(2), code="STOPPED", text="stopped: it was not admitted")
    for at, standing in ((None, [entry]), (told_t - 5.0, [entry]), (started_t, [])):
        peer = replace(swarm.peers[peer_id(2)], started_t=at)
        noted = replace(swarm, entries=(entry,), peers=MappingProxyType({**swarm.peers, peer_id(2): peer}))
        assert figures.standing_alerts(noted) == standing


def test_a_pause_is_no_alert_any_more_once_the_peer_trains() -> None:
    swarm = swarm_of(3)
    entry = LogEntry(t=swarm.history[-1].t, level="warning", peer=peer_id(2), code="PAUSED", text="its owner paused it")
    noted = replace(swarm, entries=(entry,))
    assert figures.standing_alerts(noted) == []
    paused = replace(noted.peers[peer_id(2)], state="PAUSED")
    noted = replace(noted, peers=MappingProxyType({**noted.peers, peer_id(2): paused}))
    assert figures.standing_alerts(noted) == [entry]


def test_of_equal_alerts_the_newest_stands() -> None:
    swarm = swarm_of(3)
    entry = LogEntry(t=START, level="warning", peer=peer_id(2), code="NO_NODE", text="the node does not answer")
    again, other = replace(entry, t=START + 9.0), replace(entry, t=START + 5.0, peer=peer_id(3))
    assert figures.standing_alerts(replace(swarm, entries=(entry, other, again))) == [other, again]


def test_a_setting_that_is_another_now_is_no_alert() -> None:
    swarm = swarm_of(3)
    text = "memory_gb is 0.5, and a peer takes about 800 MB with the least model; allow it more"
    entry = LogEntry(t=START, level="warning", peer=peer_id(2), code="DOCTOR", text=text)
    for memory_gb, standing in ((0.5, [entry]), (2.0, []), (0.0, [])):
        peer = replace(swarm.peers[peer_id(2)], settings={"memory_gb": memory_gb})
        noted = replace(swarm, entries=(entry,), peers=MappingProxyType({**swarm.peers, peer_id(2): peer}))
        assert figures.standing_alerts(noted) == standing


def test_a_forecast_that_is_better_now_is_no_alert() -> None:
    """Nor is that of a process before this one."""
    swarm = swarm_of(3)
    entry = LogEntry(t=START, level="warning", peer=peer_id(2), code="FORECAST", text="it will be late")
    tight = RoundForecast(round=4, expected_s=9.0, low_s=8.0, high_s=10.0, took_s=9.0, advice="close other programs")
    for forecast, standing in ((tight, [entry]), (replace(tight, advice=""), []), (None, [])):
        peer = replace(swarm.peers[peer_id(2)], forecast=forecast)
        noted = replace(swarm, entries=(entry,), peers=MappingProxyType({**swarm.peers, peer_id(2): peer}))
        assert figures.standing_alerts(noted) == standing


# ---- how long it takes ----


@pytest.mark.parametrize(
    ("after_s", "round_s", "run_s"), [(0.0, 10.0, 40.0), (4.0, 6.0, 36.0), (60.0, 0.0, 30.0)], ids=str
)
def test_the_rest_of_a_round_and_of_the_run_is_as_usual(after_s: float, round_s: float, run_s: float) -> None:
    """A round that takes longer than usual is about to end."""
    swarm = swarm_of(3)
    now = swarm.history[-1].t + after_s
    assert figures.round_seconds_left(swarm, now) == round_s
    assert figures.seconds_left(swarm, now) == run_s


def test_a_forecast_says_more_of_a_round_than_what_is_usual() -> None:
    forecast = RoundForecast(round=7, expected_s=25.0, low_s=20.0, high_s=30.0, took_s=10.0)
    swarm = swarm_with(forecast=forecast)
    now = swarm.history[-1].t + 5.0
    assert figures.round_seconds_left(swarm, now, swarm.peers[peer_id(2)]) == 20.0
    assert figures.round_seconds_left(swarm, now, swarm.peers[peer_id(1)]) == 5.0
    assert figures.seconds_left(swarm, now, swarm.peers[peer_id(2)]) == 50.0


def test_the_end_of_the_run_is_as_a_peer_foretells_it_while_rounds_grow() -> None:
    """The usual pace is that of the short rounds before."""
    forecast = RoundForecast(round=7, expected_s=25.0, low_s=20.0, high_s=30.0, took_s=10.0, run_left_s=325.0)
    swarm = swarm_with(forecast=forecast)
    now = swarm.history[-1].t + 5.0
    assert figures.seconds_left(swarm, now, swarm.peers[peer_id(2)]) == 320.0


@pytest.mark.parametrize("teller", ["", peer_id(2)], ids=["a watcher", "a peer of a demo"])
def test_who_takes_no_part_has_the_forecast_of_whoever_reports(teller: str) -> None:
    forecast = RoundForecast(round=7, expected_s=25.0, low_s=20.0, high_s=30.0, took_s=10.0, run_left_s=325.0)
    swarm = swarm_of(3)
    lines = [PeerStateChanged(state="READY", why="watching"), forecast] if not teller else [forecast]
    last_t = swarm.history[-1].t
    swarm = apply_all(swarm, [EventLine(seq=0, t=last_t, run="", peer=teller, event=event) for event in lines])
    assert figures.seconds_left(swarm, last_t + 5.0) == 320.0
    assert figures.round_seconds_left(swarm, last_t + 5.0) == 20.0


def test_no_round_follows_the_last() -> None:
    """A paused peer that has the run's last anchor is in no round 7 of 6."""
    swarm = swarm_of(3)
    peer = swarm.peers[peer_id(2)]
    assert figures.in_round(swarm, peer) == 7
    assert figures.in_round(replace(swarm, rounds=6), peer) is None
    assert figures.in_round(replace(swarm, rounds=0), peer) == 7, "it has no end"


def test_without_a_timed_round_or_an_end_or_in_a_stall_nothing_is_foretold() -> None:
    assert figures.round_seconds_left(SwarmState(), 0.0) is None
    stalled = swarm_with(stalled=RoundStalled(round=6, ballots=3, rule="", about="", why="voters are missing"))
    assert figures.round_seconds_left(stalled, START) is figures.seconds_left(stalled, START) is None
    assert figures.seconds_left(replace(swarm_of(3), rounds=0), START) is None
    left = swarm_with(stopped=True)
    assert figures.seconds_left(left, START, left.peers[peer_id(2)]) is None, "it hears of no round any more"
    assert figures.seconds_left(replace(swarm_of(3), rounds=6), START) == 0.0


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(None, ""), (0.0, ""), (4.2, "about 5 s left"), (119.0, "about 119 s left"), (725.0, "about 12 min left")],
)
def test_what_is_left_is_told_in_words(seconds: float | None, words: str) -> None:
    assert left_words(seconds) == words
