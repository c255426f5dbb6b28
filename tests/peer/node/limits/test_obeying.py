"""The bar of all limits: a peer in the middle of a long step obeys within two seconds, and its round still counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from peer.node.lifecycle.inputs_effects import LinkEnded, Reconnect
from peer.node.limits.desired_state import Intent
from peer.node.limits.policy import LINGER_S
from peer.schema.events import AlertRaised, InnerProgressed, PeerStateChanged
from peer.schema.ipc import Leave, PausedAt, StepsGoOn
from tests.peer.consensus.rounds.build import HEAD, update
from tests.peer.node.lifecycle.story import behind, commit, in_step
from tests.peer.node.limits.machines import FREE, Home

OBEYED_S = 2.0
BEGINS_AT = 1_794_830_000.0
"""Monday, 16 November 2026, 11:53:20 UTC."""
NOON_S = 400.0
"""Then noon is so many seconds away."""


@pytest.fixture
def home() -> Home:
    """A peer at home: steps of sixteen micro-batches of half a second."""
    return Home(BEGINS_AT)


def chosen(home: Home, values: dict[str, Any]) -> None:
    home.session.change(values)
    home.enforcer.look()


def wish(home: Home, wish: Intent) -> None:
    home.wishes.wish(wish)


LIMITS: list[tuple[str, dict[str, Any], Callable[[Home], None], Callable[[Home], None]]] = [
    ("PAUSED", {}, lambda home: wish(home, Intent.PAUSE), lambda home: wish(home, Intent.TRAIN)),
    ("SNOOZED", {}, lambda home: home.wishes.snooze(60.0), lambda home: None),
    ("IDLE", {"idle_min": 5}, lambda home: home.say(idle_s=0.0), lambda home: home.say(idle_s=301.0)),
    ("BATTERY", {}, lambda home: home.say(on_battery=True), lambda home: home.say(on_battery=False)),
    ("PROGRAM", {"pause_for": "steam"}, lambda home: home.say(running=("steam",)), lambda home: home.say(running=())),
    ("DISK", {"disk_gb": 1}, lambda home: home.say(folder_bytes=10**10), lambda home: home.say(folder_bytes=0)),
    ("MEMORY", {"memory_gb": 1}, lambda home: home.say(memory_bytes=10**10), lambda home: home.say(memory_bytes=0)),
    (
        "TEMPERATURE", {"max_temperature_c": 70}, lambda home: home.say(temperature_c=90.0),
        lambda home: home.say(temperature_c=40.0),
    ),
    (
        "QUOTA", {"monthly_gb": 1}, lambda home: setattr(home.traffic, "month_bytes", 10**10),
        lambda home: setattr(home.traffic, "month_bytes", 0),
    ),
    ("SCHEDULE", {"schedule": "00:00-12:00"}, lambda home: None, lambda home: chosen(home, {"schedule": ""})),
]  # fmt: skip


@pytest.mark.parametrize(("code", "values", "reach", "lift"), LIMITS, ids=[item[0] for item in LIMITS])
def test_a_limit_is_obeyed_in_time_and_the_round_counts(
    home: Home, code: str, values: dict[str, Any], reach: Callable[[Home], None], lift: Callable[[Home], None]
) -> None:
    """Not another micro-batch later than that; what was made is given at once, and it trains again when it may."""
    story, worker = home.story, home.worker
    chosen(home, values)
    after_s = NOON_S if code == "SCHEDULE" else 11.3
    home.at(after_s, lambda: reach(home))
    reached_at = home.story.now + after_s
    while not home.wishes.pausing or not story.words(PausedAt):
        story.turns(1)
        if story.life.trainer.offered and not home.wishes.pausing:  # a round is over: the next one
            story.queue.append(commit(update(round=story.life.trainer.round + 1)))
    assert 0 <= worker.computed_until - reached_at <= OBEYED_S
    assert home.story.now - reached_at <= OBEYED_S
    assert sum(event.tokens for event in story.all(InnerProgressed)) == worker.tokens
    assert worker.done[-1] == "submit"
    assert isinstance(story.told[-1], PausedAt)
    assert not worker.status.on_device, "the device is free"
    assert home.said.state == "PAUSED"
    assert home.said.why == home.wishes.holds[0].why
    assert [hold.code for hold in home.wishes.holds] == [code]

    lift(home)
    steps, lifted_at = worker.done.count("step"), home.story.now
    while worker.done.count("step") == steps:
        story.turns(1)
    waited_s = home.story.now - 16 * worker.micro_batch_s - lifted_at
    expected = {"SNOOZED": 60.0, "BATTERY": LINGER_S, "PROGRAM": LINGER_S}.get(code, 0.0)
    assert waited_s <= expected + OBEYED_S
    assert story.words(StepsGoOn)
    assert home.said.state == "TRAINING"


def test_a_duty_is_kept_within_a_step_and_between_steps(home: Home) -> None:
    """Also by a limit that comes in the middle: of the time that passes it computes as much as the GPU may."""
    chosen(home, {"max_temperature_c": 60})
    home.say(temperature_c=64.9)
    for _ in range(3):
        story_turn(home)
    shares = []
    for _ in range(40):
        began_at, computed_s = home.story.now, home.worker.computed_s
        story_turn(home)
        shares.append((home.worker.computed_s - computed_s, home.story.now - began_at))
    assert home.wishes.duty == pytest.approx(0.05)
    share = sum(computed for computed, _ in shares) / sum(passed for _, passed in shares)
    assert share == pytest.approx(0.05, rel=0.1)


def story_turn(home: Home) -> None:
    home.story.turns(1)
    if home.story.life.trainer.offered:
        home.story.queue.append(commit(update(round=home.story.life.trainer.round + 1)))


def test_a_power_is_obeyed_in_time_and_the_steps_count(home: Home) -> None:
    """A GPU that draws a half too much computes no more than the share that is allowed, two seconds later."""
    chosen(home, {"max_power_w": 200})
    home.say(power_w=180.0)
    seen: list[tuple[float, float]] = []
    home.at(11.3, lambda: home.say(power_w=300.0))
    for after_s in (11.3 + OBEYED_S, 11.3 + OBEYED_S + 10.0):
        home.at(after_s, lambda: seen.append((home.wishes.duty, home.worker.computed_s)))
    while len(seen) < 2:
        story_turn(home)
    (duty, before_s), (_, after_s) = seen
    assert duty == pytest.approx(200 / 300, abs=0.05)
    assert (after_s - before_s) / 10.0 <= duty + 0.05
    assert sum(event.tokens for event in home.story.all(InnerProgressed)) == home.worker.tokens


def test_a_rest_ends_with_a_pause(home: Home) -> None:
    """A step whose rests would take minutes is a step of the micro-batches that were made."""
    chosen(home, {"max_temperature_c": 60})
    home.say(temperature_c=64.9)
    home.pass_time(60.0)
    home.at(21.0, lambda: home.wishes.wish(Intent.PAUSE))
    asked_at = home.story.now + 21.0
    while not home.story.words(PausedAt):
        home.story.turns(1)
    assert home.story.now - asked_at <= OBEYED_S
    assert home.worker.tokens < 160
    assert home.worker.done == ["begin", "step", "submit"]


def test_a_rest_is_not_exposed(home: Home) -> None:
    """It is what its owner wants, like a pause."""
    chosen(home, {"max_temperature_c": 60})
    home.say(temperature_c=64.9)
    home.pass_time(60.0)
    exposed_s = home.story.life.times.exposed_s
    home.story.turns(3)
    assert home.story.life.times.exposed_s - exposed_s < 1.0


def test_when_it_goes_on_is_said_with_the_state(home: Home) -> None:
    home.wishes.snooze(600.0)
    home.story.turns(2)
    assert home.said.until == pytest.approx(home.story.now + 600.0, abs=2.0)
    home.wishes.snooze(7200.0)
    home.story.turns(2)
    assert home.said.until == pytest.approx(home.story.now + 7200.0, abs=3.0)


def test_an_end_that_moves_with_every_key_is_not_said_each_time(home: Home) -> None:
    chosen(home, {"idle_min": 5})
    home.say(idle_s=0.0)
    for _ in range(120):
        home.story.turns(1)
    assert home.story.now > BEGINS_AT + 55
    assert len([said for said in home.story.all(PeerStateChanged) if said.state == "PAUSED"]) <= 2


def test_several_reasons_are_all_told_and_it_goes_on_when_the_last_is_gone(home: Home) -> None:
    chosen(home, {"pause_for": "steam"})
    home.say(running=("steam",), on_battery=True)
    home.story.turns(3)
    assert home.said.why == "steam runs; this machine runs on battery"
    home.say(running=())
    home.pass_time(2 * LINGER_S)
    home.story.turns(2)
    assert home.said.why == "this machine runs on battery"


def test_a_limit_that_nothing_can_hold_is_told_once() -> None:
    """One of a GPU only when the model would be there; and again if it is set again."""
    home = Home(BEGINS_AT, is_in_step=False)
    home.sensors.says = type(FREE)()
    chosen(home, {"idle_min": 5, "max_temperature_c": 70})
    home.pass_time(5.0)
    assert [alert.text for alert in home.alerts] == [
        "idle_min has no effect: nothing here tells when somebody last used a keyboard or a mouse"
    ]
    home.story.feed(in_step)
    home.story.turns(2)
    assert [alert.text.split()[0] for alert in home.alerts] == ["idle_min", "max_temperature_c"]
    chosen(home, {"idle_min": 0})
    chosen(home, {"idle_min": 9})
    assert [alert.text.split()[0] for alert in home.alerts][2:] == ["idle_min"]


def test_a_gpu_that_others_have_filled_is_tried_again() -> None:
    """Nothing is lost meanwhile, and it says why it does not train."""
    home = Home(BEGINS_AT, is_in_step=False)
    home.wishes.wish(Intent.PAUSE)
    home.story.feed(in_step)
    home.story.turns(2)
    home.worker.room_on_device = False
    home.wishes.wish(Intent.TRAIN)
    home.story.turns(20)
    assert "step" not in home.worker.done
    assert "no room for the model" in home.said.why
    home.worker.room_on_device = True
    home.story.until(lambda: "step" in home.worker.done)
    assert len(home.story.words(StepsGoOn)) == 1


def test_without_traffic_left_nothing_is_caught_up() -> None:
    """A peer that starts again, or has fallen behind, with the month's traffic used up: what it missed waits, too."""
    home = Home(BEGINS_AT, is_in_step=False)
    story = home.story
    chosen(home, {"monthly_gb": 1})
    home.traffic.month_bytes = 10**10
    home.pass_time(1.0)
    exposed_s = story.life.times.exposed_s
    story.turns(5)
    assert story.told == [Leave(finished=False)]
    assert (home.said.state, home.said.until) == ("PAUSED", home.wishes.until)
    assert not home.worker.status.on_device
    assert story.life.times.exposed_s == exposed_s


def test_a_pause_frees_the_device_also_while_it_catches_up(home: Home) -> None:
    """Which may take minutes; the others' updates are applied in main memory."""
    home.story.feed(behind)
    home.story.turns(1)
    assert home.worker.status.on_device
    home.wishes.wish(Intent.PAUSE)
    home.story.turns(1)
    assert not home.worker.status.on_device
    assert home.said.state == "SYNCING"


def test_without_traffic_left_its_link_leaves_once_its_work_is_given(home: Home) -> None:
    """A peer that only pauses takes in every round. In the next month it meets the others again."""
    story = home.story
    chosen(home, {"monthly_gb": 1})
    story.turns(1)
    home.traffic.month_bytes = 10**10
    home.pass_time(1.0)
    story.turns(3)
    assert story.told[-1] == PausedAt(HEAD.anchor), "its part of the round waits for the others"
    story.queue.append(commit())
    story.turns(3)
    assert story.told[-1] == Leave(finished=False)
    story.feed(lambda now: LinkEnded(now, OSError()))
    assert (home.said.state, home.said.until is None) == ("PAUSED", False)
    story.turns(20)
    assert Reconnect() not in story.effects
    home.traffic.month_bytes = 0
    home.pass_time(1.0)
    assert Reconnect() in story.effects
    assert story.all(AlertRaised) == [], "it ended as it was asked to"
