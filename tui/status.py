"""`homefires status`: what the peer of a run directory does, from its event lines and its lock."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path

from dht.errors import BadInput
from peer.events import read_events
from tui.plain import printable
from tui.progress import format_transfer
from tui.snapshot import PeerView, Swarm, fold, to_json


def describe_directory(directory: Path, *, as_json: bool) -> str:
    """One JSON object, or a few lines for people. Raises BadInput if nothing was ever reported there."""
    swarm = Swarm()
    for line in read_events(directory):
        swarm = fold(swarm, line)
    if not swarm.reporting:
        raise BadInput(f"{directory} holds no events of a peer{_hint(directory)}")
    alive = is_locked(directory / "run" / "lock")
    if as_json:
        return json.dumps({"directory": str(directory), "alive": alive} | to_json(swarm), allow_nan=False)
    return "\n".join(printable(line) for line in describe(swarm, alive))


def describe(swarm: Swarm, alive: bool) -> list[str]:
    """What the peer does, why, and how far it has come."""
    mine = swarm.reporting[-1]
    lines = [f"{mine.label}: {_doing(mine, alive)}", f"run {swarm.run}, round {mine.round}{_step(mine)}"]
    if mine.transfer is not None:
        lines.append(f"received {format_transfer(mine.transfer)} of {mine.transfer.what} from {mine.transfer.source}")
    if mine.loss is not None:
        lines.append(f"training loss {mine.loss:.3f}, {mine.tokens_per_s:,.0f} tokens/s")
    if swarm.losses:
        round, loss = swarm.losses[-1]
        lines.append(f"held-out loss {loss:.3f} at round {round}")
    others = [view.label for view in swarm.peers.values() if view is not mine]
    if others:
        lines.append(f"with {', '.join(others)}")
    if mine.alerts:
        lines.append(f"last alert: {mine.alerts[-1]}")
    return lines


def newest_directory(root: Path) -> Path:
    """The run directory below `root` that reported last. Raises BadInput if there is none."""
    logs = [path for path in root.glob("*/events.jsonl") if path.is_file()]
    if not logs:
        raise BadInput(f"no run was joined yet (nothing in {root}); name a directory with --dir")
    return max(logs, key=lambda path: path.stat().st_mtime).parent


def is_locked(lock: Path) -> bool:
    """Whether a running peer holds the lock of its directory."""
    if not lock.exists():
        return False
    with lock.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _doing(view: PeerView, alive: bool) -> str:
    why = f" ({view.why})" if view.why else ""
    if alive:
        return f"{view.state}{why}"
    if view.stopped:
        return f"stopped{why}"
    return f"not running; it ended without a word while {view.state or 'starting'}{why}"


def _step(view: PeerView) -> str:
    return f", step {view.step} of {view.steps}" if view.steps else ""


def _hint(directory: Path) -> str:
    inside = sorted(path.parent.name for path in directory.glob("*/events.jsonl"))
    return f"; look at one of {', '.join(inside)} in it" if inside else ""
