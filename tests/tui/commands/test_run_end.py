"""What a person is told when a run is over."""

from __future__ import annotations

from pathlib import Path

import pytest

from peer.schema.events import Evaluated, Event, EventLine, PeerStarted, PeerStopped, RoundCommitted, format_line
from tui.commands.run_end import end_lines


def write(directory: Path, *events: Event) -> None:
    lines = (EventLine(seq=seq, t=float(seq), run="r", peer="A", event=event) for seq, event in enumerate(events))
    (directory / "events.jsonl").write_text("".join(f"{format_line(line)}\n" for line in lines))


def committed(round: int) -> RoundCommitted:
    return RoundCommitted(
        round=round, digest=f"d{round}", state="", group=["A"], weights={}, penalties=[], tokens=1, bytes_sent=1,
        bytes_received=1, round_s=1.0, exposed_s=0.0,
    )  # fmt: skip


@pytest.mark.parametrize("rounds", [2, 3])
def test_what_was_learned_and_the_commands_that_have_it(rounds: int, tmp_path: Path) -> None:
    """Nothing while rounds are left."""
    directory = tmp_path / "my run"
    directory.mkdir()
    write(
        directory, PeerStarted(name="a", version="0", rounds=rounds), Evaluated(round=0, loss=5.352, tokens=9),
        committed(1), committed(2), Evaluated(round=2, loss=2.362, tokens=9), PeerStopped(why="the run is finished"),
    )  # fmt: skip
    expected = [
        "learned: the loss on held-out text was 5.352 at round 0, and is 2.362 at round 2",
        f"talk to the model: homefires chat '{directory}'",
        f"have it as files: homefires export '{directory}'",
    ]
    assert end_lines(directory) == (expected if rounds == 2 else [])
