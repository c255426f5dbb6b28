from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest
from textual.pilot import Pilot

from dht.errors import BadInput
from peer.node.control.client import Reply
from peer.schema.events import PeerStateChanged
from tests.tui.dashboard.canned import Canned, dashboard, peer_id, swarm_of
from tests.tui.dashboard.live import RECORDING, Attached
from tests.tui.dashboard.screen import opened, press, settled, text_of
from tui.dashboard.app import SCREENS, Dashboard, ExitReason
from tui.dashboard.keys import MY_PEER, keys_of
from tui.dashboard.styles import shown_state
from tui.sources.replay import RecordingSource
from tui.swarm.snapshot import SwarmState
from tui.text.event_text import clock
from tui.text.explain import PENALTY_PAGES


def attached(source: Attached, *, read_only: bool = False) -> Dashboard:
    return Dashboard(source, clock=lambda: source.now_s, read_only=read_only)


def recording() -> Dashboard:
    return Dashboard(RecordingSource(RECORDING), clock=lambda: 0.0)


@pytest.mark.slow
async def test_a_digit_shows_its_screen() -> None:
    app = recording()
    async with opened(app) as pilot:
        for number, name in reversed([*enumerate(SCREENS, start=1)]):  # the first is there when it opens
            await press(pilot, str(number))
            assert [panel.id for panel in app.query("Panel").results() if panel.display] == [name]


async def test_the_header_tells_run_rounds_my_state_and_why() -> None:
    source = Attached()
    app = attached(source)
    async with opened(app):
        mine = source.swarm.peers[source.me]
        first, second = text_of(app).splitlines()[:2]
        assert f"{source.swarm.round} of 20 rounds" in first
        assert "peer-2" in first
        assert shown_state(mine, app.view()).name in second
        assert mine.why in second


async def test_the_last_line_says_what_q_and_ctrl_c_do() -> None:
    app = attached(Attached())
    async with opened(app, size=(140, 40)):
        last = text_of(app).splitlines()[-1]
        assert "q detach, training goes on" in last
        assert "Q leave" in last
        assert "ctrl+c asks which" in last


async def test_q_detaches_and_commands_nothing() -> None:
    source = Attached()
    app = attached(source)
    async with opened(app) as pilot:
        await press(pilot, "q")
    assert app.return_value == "detach"
    assert source.remembering.asked == []


async def test_q_in_a_recording_ends_it() -> None:
    app = recording()
    async with opened(app) as pilot:
        await press(pilot, "q")
    assert app.return_value == "ended"


async def test_leaving_is_asked_first_and_then_commanded() -> None:
    source = Attached()
    app = attached(source)
    async with opened(app) as pilot:
        await press(pilot, "Q")
        assert "Leave the run?" in text_of(app)
        assert source.remembering.asked == []
        await press(pilot, "y")
    assert source.remembering.asked == ["leave"]
    assert app.return_value == "leave"


async def test_esc_stays_in_the_run() -> None:
    source = Attached()
    app = attached(source)
    async with opened(app) as pilot:
        await press(pilot, "Q", "escape")
        assert "Leave the run?" not in text_of(app)
        await press(pilot, "3")
        assert app.return_value is None
    assert source.remembering.asked == []


@pytest.mark.slow
@pytest.mark.parametrize(("answer", "outcome", "asked"), [("q", "detach", []), ("Q", "leave", ["leave"])])
async def test_ctrl_c_asks_whether_to_detach_or_to_leave(answer: str, outcome: str, asked: list[str]) -> None:
    source = Attached()
    app = attached(source)
    async with opened(app) as pilot:
        await press(pilot, "ctrl+c")
        assert "Detach or leave?" in text_of(app)
        await press(pilot, answer)
    assert app.return_value == outcome
    assert source.remembering.asked == asked


async def test_ctrl_c_twice_detaches() -> None:
    source = Attached()
    app = attached(source)
    async with opened(app) as pilot:
        await press(pilot, "ctrl+c", "ctrl+c")
    assert app.return_value == "detach"
    assert source.remembering.asked == []


@pytest.mark.slow
@pytest.mark.parametrize(("key", "cmd"), [("p", "pause"), ("f", "finish")])
async def test_a_command_goes_to_the_peer_and_its_answer_is_shown(key: str, cmd: str) -> None:
    source = Attached()
    app = attached(source)
    async with opened(app) as pilot:
        await press(pilot, key)
        assert source.remembering.asked == [cmd]
        assert "then training pauses" in text_of(app) or "still counts" in text_of(app)


async def test_p_resumes_a_paused_peer() -> None:
    why = "its owner paused it; resume with: homefires resume"
    source = Attached(events=[PeerStateChanged(state="PAUSED", why=why)])
    app = attached(source)
    async with opened(app) as pilot:
        assert "p resume" in text_of(app)
        await press(pilot, "p")
    assert source.remembering.asked == ["resume"]


async def test_p_does_not_resume_what_its_owner_did_not_pause() -> None:
    """It would not train: its disk is full. It can be told to stay paused, though."""
    why = "the disk is full; make room, training goes on by itself"
    source = Attached(events=[PeerStateChanged(state="PAUSED", why=why)])
    app = attached(source)
    async with opened(app) as pilot:
        assert "p pause" in text_of(app)
        await press(pilot, "p")
    assert source.remembering.asked == ["pause"]


async def test_the_last_line_names_only_what_can_be_commanded() -> None:
    """A demo can be stopped, and nothing else."""
    source = Attached()
    source.remembering.takes = frozenset({"status", "leave"})
    app = attached(source)
    async with opened(app, size=(140, 40)):
        last = text_of(app).splitlines()[-1]
        assert "q detach" in last
        assert "Q leave" in last
        assert "pause" not in last
        assert "finish" not in last


async def test_a_refused_command_is_one_line() -> None:
    source = Attached()
    source.remembering.reply = Reply(ok=False, error="the peer did not answer within 5 s [/not markup]")
    app = attached(source)
    async with opened(app) as pilot:
        await press(pilot, "f")
        assert "finish: the peer did not answer" in text_of(app)


@pytest.mark.slow
async def test_z_snoozes_for_one_three_and_eight_hours_and_p_ends_it() -> None:
    source = Attached()
    app = attached(source)
    async with opened(app) as pilot:
        await press(pilot, "z")
        assert f"snoozed until {clock(source.now_s + 3600, source.now_s)}" in text_of(app)
        await press(pilot, "z", "z", "z")
        assert source.limited.asked == [("snooze", {"minutes": 60 * hours}) for hours in (1, 3, 8, 1)]
        app.tick()
        await settled(pilot)
        assert "1:00:00 left" in text_of(app).splitlines()[1]
        assert f"snoozed until {clock(source.now_s + 3600, source.now_s)}; sooner with" in text_of(app)
        assert "p resume" in text_of(app)
        await press(pilot, "p", "z")
    assert source.remembering.asked[-2:] == ["resume", "snooze"]
    assert source.limited.asked[-1] == ("snooze", {"minutes": 60})


async def test_a_snooze_that_was_made_elsewhere_is_made_longer() -> None:
    source = Attached()
    source.limited.answer("snooze", {"minutes": 150})
    app = attached(source)
    async with opened(app) as pilot:
        await press(pilot, "z")
    assert source.limited.asked[-1] == ("snooze", {"minutes": 180})


async def test_a_snooze_that_is_refused_begins_at_an_hour_again() -> None:
    source = Attached()
    source.remembering.reply = Reply(ok=False, error="not now")
    app = attached(source)
    async with opened(app) as pilot:
        await press(pilot, "z", "z")
        assert "snooze: not now" in text_of(app)
    assert [fields["minutes"] for _, fields in source.limited.asked] == [60, 60]


async def test_the_status_is_asked_every_two_seconds_and_never_twice_at_once() -> None:
    source = Attached()
    app = attached(source)
    async with opened(app) as pilot:
        source.limited.duty = 0.5
        app.tick()
        await settled(pilot)
        assert "computes 50 %" not in text_of(app)
        source.now_s += 2.0
        app.tick()
        await settled(pilot)
        assert "computes 50 %" in text_of(app)


async def test_a_peer_that_hangs_is_not_said_to_train(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its file says what it did last: after two questions without an answer the header says so, until it answers."""
    source = Attached()
    app = attached(source)
    hangs = Reply(ok=False, error="the peer in runs/micro did not answer in 5 s")
    async with opened(app) as pilot:
        with monkeypatch.context() as patch:
            patch.setattr(source.remembering, "request", lambda cmd, **fields: hangs)
            for told in (False, True):
                source.now_s += 2.0
                app.tick()
                await settled(pilot)
                assert ("did not answer" in text_of(app).splitlines()[1]) == told
        source.now_s += 2.0
        app.tick()
        await settled(pilot)
        assert "did not answer" not in text_of(app)


@pytest.mark.slow
async def test_read_only_commands_nothing_and_says_why() -> None:
    source = Attached()
    app = attached(source, read_only=True)
    async with opened(app) as pilot:
        for key in ("p", "f", "z", "Q"):
            await answered(pilot, key, "read-only")
    assert source.remembering.asked == []


@pytest.mark.slow
async def test_a_recording_commands_nothing_and_says_why() -> None:
    async with opened(recording()) as pilot:
        for key in ("p", "f", "z", "Q"):
            await answered(pilot, key, "this is a recording")


async def test_a_key_that_is_pressed_again_is_answered_by_one_toast() -> None:
    app = attached(Attached(), read_only=True)
    async with opened(app) as pilot:
        await press(pilot, "p")
        once = text_of(app).count("read-only")
        for key in ("p", "f", "p"):
            await press(pilot, key)
        assert text_of(app).count("read-only") == once


async def answered(pilot: Pilot[ExitReason], key: str, words: str) -> None:
    """These words are an answer to this key, and to no earlier one."""
    app = pilot.app
    assert isinstance(app, Dashboard)
    app.clear_notifications()
    await settled(pilot)
    assert words not in text_of(app)
    await press(pilot, key)
    assert words in text_of(app)


async def test_who_only_watches_is_told_that_there_is_no_peer() -> None:
    app = dashboard(swarm_of(3))
    async with opened(app) as pilot:
        await press(pilot, "p")
        assert "watching only" in text_of(app)


async def test_a_peer_that_is_gone_is_said_in_the_header() -> None:
    source = Attached()
    app = attached(source)
    async with opened(app) as pilot:
        source.ended = "the peer is gone: it ended without a word"
        app.tick()
        await settled(pilot)
        assert "it ended without a word" in text_of(app).splitlines()[1]
        await press(pilot, "q")
    assert app.return_value == "ended"


async def test_y_copies_the_id_of_the_selected_peer() -> None:
    app = dashboard(swarm_of(3))
    async with opened(app) as pilot:
        await press(pilot, "2", "down", "y")
        assert app.clipboard == peer_id(2)


@pytest.mark.slow
async def test_a_shows_only_alerts() -> None:
    app = recording()
    async with opened(app) as pilot:
        await press(pilot, "6")
        assert "all levels" in text_of(app)
        await press(pilot, "1", "a")
        text = text_of(app)
        assert "alerts" in text
        assert "warning" in text
        assert "info  " not in text


async def test_help_names_every_screen_key_and_sign() -> None:
    app = attached(Attached())
    async with opened(app, size=(120, 80)) as pilot:
        await press(pilot, "question_mark")
        text = text_of(app)
        for word in ("screens", "pause now", "finish the round", "leave the run", "PENALISED", "MISDECLARED", "weigh"):
            assert word in text
        await press(pilot, "escape")
        assert "MISDECLARED" not in text_of(app)


async def test_nothing_of_the_help_is_cut_on_a_small_screen() -> None:
    app = attached(Attached())
    async with opened(app, size=(80, 24)) as pilot:
        await press(pilot, "question_mark")
        pages = text_of(app)
        for _ in range(6):
            await press(pilot, "pagedown")
            pages += text_of(app)
    words = " ".join(word for word in pages.split() if word.strip("│▁▂▃▄▅▆▇█"))
    for told in (*(page.short for page in PENALTY_PAGES.values()), *(key.help for key in keys_of(MY_PEER))):
        assert told.split()[-1] in words, told


@pytest.mark.slow
async def test_the_palette_offers_the_screens() -> None:
    app = recording()
    async with opened(app) as pilot:
        await press(pilot, "ctrl+p", "l", "e", "a", "r", "n")
        assert "Learning" in text_of(app)
        await press(pilot, "enter")
        assert app.query_one("#learning").display


async def test_esc_goes_back_to_where_one_came_from() -> None:
    app = dashboard(swarm_of(3))
    async with opened(app) as pilot:
        await press(pilot, "2", "down", "enter")
        assert app.query_one("#peer").display
        await press(pilot, "escape")
        assert app.query_one("#peers").display


async def test_tab_moves_through_what_can_be_focused_and_back() -> None:
    app = dashboard(swarm_of(3))
    async with opened(app) as pilot:
        await press(pilot, "2", "slash")
        before = app.focused
        await press(pilot, "tab")
        assert app.focused is not before
        await press(pilot, "shift+tab")
        assert app.focused is before


@pytest.mark.slow
async def test_a_recording_plays_steps_and_jumps() -> None:
    app = recording()
    async with opened(app) as pilot:
        playback = app.view().playback
        assert playback is not None
        assert "the end" in text_of(app)
        await press(pilot, "home")
        assert playback.position == 0
        await press(pilot, "right")
        assert playback.position == 1
        await press(pilot, "shift+right", "left")
        assert playback.position == 50
        await press(pilot, "greater_than_sign", "plus")
        assert playback.speed == 4.0
        await press(pilot, "less_than_sign")
        assert playback.speed == 2.0
        assert "2x" in text_of(app)
        await press(pilot, "space")
        assert playback.playing
        assert "playing" in text_of(app)
        await press(pilot, "space", "end")
        assert playback.position == playback.count
        assert f"{playback.count:,} of {playback.count:,}" in text_of(app)


@pytest.mark.slow
async def test_the_keys_of_a_recording_work_on_every_screen() -> None:
    """Only on the third one, the lanes of the rounds, do left and right move something else."""
    app = recording()
    async with opened(app) as pilot:
        playback = app.view().playback
        assert playback is not None
        for key in ("1", "2", "4", "5", "6", "7"):
            await press(pilot, key, "end", "home", "right")
            assert playback.position == 1


async def test_the_keys_of_a_recording_are_off_for_a_live_peer() -> None:
    app = attached(Attached())
    async with opened(app) as pilot:
        await press(pilot, "space", "left", "home", "end", "plus")
        assert app.return_value is None


async def test_a_source_that_cannot_be_opened_ends_the_dashboard_with_its_error(tmp_path: Path) -> None:
    app = Dashboard(RecordingSource(tmp_path / "missing.jsonl"), clock=lambda: 0.0)
    async with app.run_test() as pilot:
        while app.return_value is None:
            await pilot.pause()
    assert isinstance(app.failure, BadInput)
    assert "missing.jsonl" in str(app.failure)


async def test_a_source_that_breaks_later_ends_the_dashboard_with_its_error() -> None:
    """The disk of a folder that is followed may go away: that is one line of the command, and no traceback."""
    source = Canned(swarm_of(2))
    app = Dashboard(source, clock=lambda: 0.0)
    async with opened(app):

        def fail(now_s: float) -> SwarmState:
            raise BadInput("events.jsonl: Input/output error")

        source.advance = fail  # type: ignore[method-assign]
        app.tick()
    assert isinstance(app.failure, BadInput)
    assert app.return_value == "ended"


async def test_nothing_is_drawn_twice() -> None:
    """A swarm in which nothing happens costs nothing."""
    app = dashboard(swarm_of(3))
    async with opened(app) as pilot:
        shown: list[object] = []
        app.query_one("#home").show = shown.append  # type: ignore[attr-defined]
        app.tick()
        app.tick()
        assert shown == []
        await press(pilot, "2", "1")
        assert len(shown) == 1


@pytest.mark.slow
async def test_a_swarm_of_nobody_is_drawn_on_every_screen() -> None:
    app = Dashboard(Canned(SwarmState()), clock=lambda: 0.0)
    async with opened(app) as pilot:
        await press(pilot, *"1234567", "2", "enter", "y")
        assert "no peer yet" in text_of(app)


@pytest.mark.slow
async def test_names_are_never_markup() -> None:
    swarm = swarm_of(2)
    peers = dict(swarm.peers)
    peers[peer_id(1)] = replace(peers[peer_id(1)], name="[red]x[/] [@click=app.exit]y", why="[bold", state="TRAINING")
    app = dashboard(replace(swarm, peers=MappingProxyType(peers)), me=peer_id(1))
    async with opened(app, size=(160, 40)) as pilot:
        await press(pilot, *"1234567", "2", "enter")
        assert "[red]x[/]" in text_of(app)
        assert "[bold" in text_of(app).splitlines()[1]
        await settled(pilot)
