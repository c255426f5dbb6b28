"""What a run that is finished has come to, and what can be done with it."""

from __future__ import annotations

from pathlib import Path

from peer.schema.events import read_events
from tui.folders import quoted
from tui.swarm.reducer import apply_all
from tui.swarm.snapshot import SwarmState


def end_lines(directory: Path) -> list[str]:
    """What was learned in the run of a peer's folder, and the commands that have it; nothing while rounds are left."""
    swarm = apply_all(SwarmState(), read_events(directory))
    if not swarm.rounds or swarm.round < swarm.rounds:
        return []
    where = quoted(directory)
    return [
        *_learned(swarm),
        f"talk to the model: homefires chat {where}",
        f"have it as files: homefires export {where}",
    ]


def _learned(swarm: SwarmState) -> list[str]:
    if len(swarm.evaluations) < 2:
        return []
    first, last = swarm.evaluations[0], swarm.evaluations[-1]
    then, now = f"{first.value:.3f} at round {first.round}", f"{last.value:.3f} at round {last.round}"
    return [f"learned: the loss on held-out text was {then}, and is {now}"]
