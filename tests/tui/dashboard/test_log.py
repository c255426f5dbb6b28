from __future__ import annotations

from dataclasses import replace

import pytest

from tests.tui.dashboard.canned import START, Canned, peer_id, swarm_of
from tests.tui.dashboard.screen import opened, press, settled, text_of
from tui.dashboard.app import Dashboard
from tui.dashboard.screens import log
from tui.swarm.snapshot import LogEntry, SwarmState


def entry(number: int, level: str = "info", code: str = "COMMITTED") -> LogEntry:
    return LogEntry(t=START + number, level=level, peer=peer_id(1), code=code, text=f"happening {number} [b]")


def swarm_with(*entries: LogEntry) -> SwarmState:
    return replace(swarm_of(2), entries=entries)


def shown(source: Canned) -> Dashboard:
    return Dashboard(source, clock=lambda: START)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("width", "words"),
    [
        (120, "01:15 warning peer-1 STALE happening 75 [b]"), (80, "01:15 warning peer-1 STALE happening 75 [b]"),
        (79, "01:15 warning peer-1 STALE: happening 75 [b]"), (40, "01:15 peer-1 STALE: happening 75 [b]"),
    ],
)  # fmt: skip
async def test_a_line_has_time_level_peer_kind_and_text(width: int, words: str) -> None:
    app = shown(Canned(swarm_with(entry(75, "warning", "STALE"))))
    async with opened(app, size=(width, 24)) as pilot:
        await press(pilot, "6")
        lines = text_of(app).splitlines()
        first = next(number for number, line in enumerate(lines) if "01:15" in line)
        assert " ".join(" ".join(lines[first : first + 2]).split()).startswith(words)


async def test_a_change_of_state_without_a_reason_says_its_state() -> None:
    app = shown(Canned(swarm_with(replace(entry(75, code="TRAINING"), text=""))))
    async with opened(app) as pilot:
        await press(pilot, "6")
        assert next(line.split() for line in text_of(app).splitlines() if "01:15" in line)[-1] == "TRAINING"


async def test_one_kind_of_entry_is_explained_above_the_log() -> None:
    app = shown(Canned(swarm_with(entry(1, "warning", "STUCK"), entry(2))))
    async with opened(app, size=(100, 30)) as pilot:
        await press(pilot, "6")
        assert "no quorum of voters is there" not in text_of(app)
        await press(pilot, "c", "c")
        assert "no quorum of voters is there" in text_of(app)
        assert "Bring those back whom the line names." in text_of(app)


@pytest.mark.slow
async def test_levels_kinds_and_texts_narrow_it_and_esc_widens_it() -> None:
    entries = [entry(1), entry(2, "warning", "CLOCK"), entry(3, "error", "DISK")]
    app = shown(Canned(swarm_with(*entries)))
    async with opened(app) as pilot:
        await press(pilot, "6")
        assert "3 of 3" in text_of(app)
        await press(pilot, "l")
        assert "2 of 3 · alerts" in text_of(app)
        await press(pilot, "l")
        assert "1 of 3 · errors" in text_of(app)
        await press(pilot, "l", "c")
        assert "1 of 3 · all levels · CLOCK" in text_of(app)
        await press(pilot, "escape", "slash", *"ing 1", "enter")
        assert "1 of 3" in text_of(app)
        await press(pilot, "escape")
        assert "3 of 3" in text_of(app)


async def test_it_follows_until_somebody_goes_up() -> None:
    source = Canned(swarm_with(*(entry(number) for number in range(200))))
    app = shown(source)
    async with opened(app, size=(80, 24)) as pilot:
        await press(pilot, "6")
        assert "happening 199" in text_of(app)
        await press(pilot, "up")
        assert "stopped; G follows" in text_of(app)
        source.swarm = swarm_with(*(entry(number) for number in range(210)))
        app.tick()
        await settled(pilot)
        assert "happening 209" not in text_of(app)
        await press(pilot, "G")
        assert "happening 209" in text_of(app)
        await press(pilot, "g")
        assert "happening 0 " in text_of(app)


async def test_only_what_is_new_is_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [entry(number) for number in range(100)]
    source = Canned(swarm_with(*entries))
    app = shown(source)
    wrapped: list[LogEntry] = []
    wrap = log._lines_of
    monkeypatch.setattr(log, "_lines_of", lambda entry, who, view: wrapped.append(entry) or wrap(entry, who, view))
    async with opened(app) as pilot:
        await press(pilot, "6")
        assert wrapped == entries
        source.swarm = swarm_with(*entries[1:], entry(100))
        app.tick()
        assert wrapped[100:] == [entry(100)]


async def test_lines_that_could_not_be_read_are_counted() -> None:
    app = shown(Canned(replace(swarm_with(entry(1)), skipped=3)))
    async with opened(app) as pilot:
        await press(pilot, "6")
        assert "3 lines could not be read" in text_of(app)
