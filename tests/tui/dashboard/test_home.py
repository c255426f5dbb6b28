"""The first screen, for a volunteer and for whoever only watches."""

from __future__ import annotations

import re
from dataclasses import replace
from types import MappingProxyType

import pytest

from peer.schema.events import (
    AlertRaised,
    DeviceMeasured,
    EventLine,
    InnerProgressed,
    PeerStarted,
    PeerStateChanged,
    PeerStopped,
    PenaltyImposed,
    PhaseEntered,
    RoundStarted,
    SampleWritten,
    SettingsChanged,
)
from tests.tui.dashboard.canned import dashboard, peer_id, penalty, swarm_of
from tests.tui.dashboard.live import Attached
from tests.tui.dashboard.screen import opened, press, text_of
from tui.dashboard.app import Dashboard
from tui.swarm import figures
from tui.swarm.reducer import apply_all
from tui.swarm.snapshot import SwarmState

FIGURES = DeviceMeasured(gpu_percent=97.0, vram_used_bytes=7_100_000_000, vram_bytes=8_000_000_000, power_w=181.0)


def at_work() -> Attached:
    """peer-2 in the middle of a round, with everything that a volunteer may see."""
    source = Attached()
    now = source.now_s
    return Attached(
        events=[
            RoundStarted(round=source.swarm.round, steps=40),
            InnerProgressed(
                round=source.swarm.round, step=10, steps=40, loss=2.345, tokens=1000, tokens_per_s=12_345.0,
                learning_rate=1e-3,
            ),
            PeerStateChanged(state="TRAINING", why="40 steps to make", until=now + 42.0),
            FIGURES,
            AlertRaised(level="warning", code="CLOCK", text="the clock of this machine is 1.3 s ahead"),
            PenaltyImposed(
                about=source.me, code="LATE", layer="", evidence="12 of 24 parts came in time", factor=0.5,
                until_round=source.swarm.round + 2,
            ),
        ]
    )  # fmt: skip


def shown(source: Attached) -> Dashboard:
    return Dashboard(source, clock=lambda: source.now_s)


async def test_a_volunteer_reads_what_the_peer_does_and_until_when() -> None:
    app = shown(at_work())
    async with opened(app):
        text = text_of(app)
        assert "40 steps to make" in text
        assert "0:42 left" in text
        assert "10 of 40" in text
        assert "train → wait → average → apply" in text
        assert "2.345" in text
        assert "12.3k tokens/s" in text


async def test_the_newest_sample_is_shown() -> None:
    """On a few lines at most; nothing is said where the run has no prompts."""
    samples = [SampleWritten(round=n, prompt="Once", text=f" upon a time {n} " + "so it goes " * 50) for n in (2, 3)]
    app = shown(Attached(events=[*samples]))
    async with opened(app):
        text = text_of(app)
        assert "round 3:  upon a time 3 so it goes" in text
        assert 2 <= sum("so it" in line for line in text.splitlines()) <= 3
        assert "upon a time 2" not in text
        assert any("prompt" in line and "Once" in line for line in text_of(app).splitlines())
    app = shown(Attached())
    async with opened(app):
        assert "continued" not in text_of(app)


@pytest.mark.slow
@pytest.mark.parametrize(("after_s", "told"), [(42.0, "0:42 left"), (-1.0, "")])
async def test_the_end_of_the_phase_is_counted_down_to(after_s: float, told: str) -> None:
    """Where the state itself has no end; what is over is not counted."""
    now = Attached().now_s
    entered = PhaseEntered(round=3, phase="exchange", deadline=now + after_s)
    app = shown(Attached(events=[PeerStateChanged(state="AVERAGING", why="sending"), entered]))
    async with opened(app):
        second = text_of(app).splitlines()[1]
        assert second.split("sending")[1].strip() == told


async def test_one_peer_with_two_devices_shows_both_on_three_screens() -> None:
    """How they share the model, and what each of them takes."""
    gpus = [
        {
            "device": f"cuda:{n}", "gpu_percent": 97.0 - n, "vram_used_bytes": 7 * 10**9, "vram_bytes": 8 * 10**9,
            "temperature_c": 61.0 + n, "power_w": 181.0, "power_limit_w": 220.0, "fan_percent": None, "throttled": "",
        }
        for n in range(2)
    ]  # fmt: skip
    devices = ("cuda:0", "cuda:1")
    source = Attached(
        events=[
            PeerStarted(name="peer-2", version="1", device="cuda:0+1", devices=devices, sharding="full"),
            DeviceMeasured(gpu_percent=97.0, vram_bytes=8 * 10**9, gpus=gpus),
        ]
    )
    app = shown(source)
    async with opened(app, size=(120, 40)) as pilot:
        for keys in (("1",), ("2", "enter")):
            await press(pilot, *keys)
            text = text_of(app)
            assert "cuda:0, cuda:1 · full" in text
            assert re.search(r"cuda:0 +━+─+ 97 % · ━+─+ 7.0 GB of 8.0 GB", text)
            assert re.search(r"cuda:1 +━+─+ 96 % · ━+─+ 7.0 GB of 8.0 GB", text)
            assert "61 °C · 181 of 220 W" in text
            assert "62 °C · 181 of 220 W" in text
        await press(pilot, "escape")
        assert re.search(r"peer-2 .*cuda:0\+1", text_of(app))


async def test_a_volunteer_reads_what_the_peer_gave_and_what_it_counted_for() -> None:
    source = at_work()
    mine = source.swarm.peers[source.me]
    app = shown(source)
    async with opened(app):
        text = text_of(app)
        assert f"{mine.accepted} accepted · {mine.late} late" in text
        assert f"{100 * (figures.weight(source.swarm, source.me) or 0.0):.1f} % of the last round" in text


async def test_a_penalty_against_me_is_told_with_code_factor_end_and_evidence() -> None:
    source = at_work()
    app = shown(source)
    async with opened(app):
        text = text_of(app)
        until = source.swarm.round + 2
        assert f"counts 50 %, until round {until} (2 left)" in text
        assert "12 of 24 parts came in time" in text


async def test_an_alert_is_on_the_first_screen() -> None:
    app = shown(at_work())
    async with opened(app):
        assert "warning: the clock of this machine" in text_of(app)


async def test_a_figure_that_the_machine_does_not_give_is_left_out() -> None:
    app = shown(at_work())
    async with opened(app):
        lines = text_of(app).splitlines()
        at = next(number for number, line in enumerate(lines) if "97 % · " in line)
        assert "7.1 GB of 8.0 GB" in lines[at]
        assert lines[at + 1].strip().endswith("181 W")
        assert "N/A" not in "".join(lines)


async def test_a_temperature_stands_beside_its_limit() -> None:
    source = at_work()
    source.tell(SettingsChanged(settings={"max_temperature_c": 75.0}))
    source.tell(DeviceMeasured(temperature_c=71.4, throttled="heat"))
    app = shown(source)
    async with opened(app):
        assert "71 of 75 °C · throttled: heat" in text_of(app)


async def test_nothing_is_said_of_a_gpu_that_nobody_measured() -> None:
    app = shown(Attached())
    async with opened(app):
        assert "GPU" not in text_of(app)


async def test_the_smallest_screen_has_the_state_the_penalty_and_the_loss() -> None:
    app = shown(at_work())
    async with opened(app, size=(40, 12)):
        text = text_of(app)
        for fact in ("! LATE  40 steps to make", "10 of 40", "counts 50 %", "2.345"):
            assert fact in text


@pytest.mark.parametrize("name", ["peer-2", ""])
async def test_the_run_says_what_it_trains_and_when_it_is_over(name: str) -> None:
    """To a volunteer and to who watches."""
    source = at_work()
    source.me = source.me if name else ""
    app = shown(source)
    async with opened(app, size=(200, 60)):
        text = text_of(app)
        assert "model       micro: llama on Python's standard library · 205k parameters" in text
        assert re.search(r"rounds +━+─+ 7 of 20 · about \d+ s left", text)


@pytest.mark.slow
@pytest.mark.parametrize("size", [(120, 40), (200, 60)])
@pytest.mark.parametrize("mine", [True, False])
async def test_no_half_of_a_large_page_is_empty(size: tuple[int, int], mine: bool) -> None:
    """The loss by round has what the facts leave of the left half; its newest value stands beside it."""
    source = at_work()
    source.me = source.me if mine else ""
    app = shown(source)
    async with opened(app, size=size):
        halves = [(line[: size[0] // 2], line[size[0] // 2 :]) for line in text_of(app).splitlines()[4:-1]]
        left = next(left for left, _ in reversed(halves) if left.strip())
        assert halves[-1][0] == left
        assert left.split()[0] == "rounds"
        assert any(left.rstrip().endswith("o 2.519") for left, _ in halves)
        assert sum(not right.strip() for _, right in halves) < len(halves) // 2


async def test_whatever_holds_the_peer_up_is_on_the_first_screen() -> None:
    source = Attached()
    source.limited.holds = [
        {"code": "SCHEDULE", "why": "outside its hours; trains again at 22:00", "until": None},
        {"code": "TEMPERATURE", "why": "the GPU has 84 °C", "until": None},
    ]
    app = shown(source)
    async with opened(app):
        text = text_of(app)
        assert "outside its hours; trains again at 22:00" in text
        assert "TEMPERATURE the GPU has 84 °C" in text
    app = shown(source)
    async with opened(app, size=(40, 12)):
        assert "1 more: homefires status" in text_of(app)


async def test_what_holds_the_peer_up_is_said_once() -> None:
    why = "its owner paused it"
    source = Attached(events=[PeerStateChanged(state="PAUSED", why=why)])
    source.limited.holds = [{"code": "PAUSED", "why": why, "until": None}]
    app = shown(source)
    async with opened(app):
        _, page = text_of(app).split("Held up")  # the state of the peer, above, has its reason too
        assert page.count(why) == 1


async def test_a_peer_that_waits_for_the_first_ones_has_no_round_yet() -> None:
    said = (PeerStarted(name="anna", version="0", rounds=40), PeerStateChanged(state="JOINING", why="waits for 2 more"))
    lines = [EventLine(seq=seq, t=1.0 + seq, run="r", peer="A", event=event) for seq, event in enumerate(said)]
    app = dashboard(apply_all(SwarmState(), lines), me="A")
    async with opened(app):
        text = text_of(app)
        assert "waits for 2 more" in text
        assert "0 of 40" in text
        assert "0 of 0" not in text


async def test_nothing_holds_up_a_peer_that_has_stopped() -> None:
    """Its last answer said that it was paused: nobody shall try to resume what is over."""
    source = Attached(events=[PeerStopped(exit_code=0, why="the run is finished")])
    source.limited.holds = [{"code": "PAUSED", "why": "its owner paused it", "until": None}]
    app = shown(source)
    async with opened(app):
        text = text_of(app)
        assert "its owner paused it" not in text


async def test_a_peer_whose_file_has_no_room_is_shown_as_it_answers() -> None:
    """On a full disk its event file lacks lines; where it has them, they are newer than the last answer."""
    source = Attached()
    answer = source.limited.answer
    why = "the disk that holds runs/micro is full; make room, training goes on by itself"
    newest = source.swarm.peers[source.me].seq
    for seq, is_shown in ((newest, False), (newest + 3, True)):
        said = {"peer": source.me, "seq": seq, "state": "PAUSED", "why": why}
        source.limited.answer = lambda cmd, fields, said=said: answer(cmd, fields) | said  # type: ignore[misc]
        app = shown(source)
        async with opened(app):
            assert ("the disk that holds runs/micro is full" in text_of(app)) == is_shown


async def test_who_only_watches_sees_every_peer_and_every_penalty() -> None:
    app = dashboard(swarm_of(3, penalties=[penalty(until=99)]))
    async with opened(app):
        text = text_of(app)
        for fact in ("peer-1", "peer-2", "peer-3", "6 of 10", "LATE", "until round 99", "12 of 24 parts came in time"):
            assert fact in text


async def test_a_swarm_of_many_says_how_many_more_there_are() -> None:
    app = dashboard(swarm_of(40))
    async with opened(app):
        assert "and 28 more (key 2)" in text_of(app)


async def test_the_row_of_a_peer_that_is_far_behind_fits_beside_the_run() -> None:
    """With the longest words that a row can have, on the narrowest page of two columns."""
    swarm = swarm_of(2)
    slow = replace(
        swarm.peers[peer_id(2)], name="a-volunteer-with-a-name", state="PENALISED", tokens_per_s=99_900.0,
        round=7,
    )  # fmt: skip
    far = replace(swarm, round=99, peers=MappingProxyType({**swarm.peers, slow.peer: slow}))
    app = dashboard(far)
    async with opened(app, size=(120, 40)):
        row = next(line for line in text_of(app).splitlines() if "PENALISED" in line)
        assert "50.0 % 99.9k tok/s  92 behind" in row
