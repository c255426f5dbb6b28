"""A peer that is started again after a crash, on machines where no systemd does that: `join --keep-running`.

    python -m tui.processes.supervisor LOG -- COMMAND LINE OF THE PEER

It is the peer's parent, so whoever kills it ends the peer, too; the next start goes on from what is on disk.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dht.errors import HomefiresError
from tui.output.output import NoOutput, Output
from tui.processes.children import (
    INTERRUPTED,
    ChildExited,
    ChildProcess,
    EventPrinted,
    InterruptReceived,
    ProcessGroup,
    error_of,
)
from tui.processes.systemd import FINAL, FIRST_DELAY_S, LONGEST_DELAY_S

MOST_PER_HOUR = 12
HOUR_S = 3600.0
STEADY_S = 600.0
"""Who ran for so long before the crash begins with the first delay again."""
LOOK_S = 1.0


@dataclass
class Backoff:
    """When a process that ended is started again: later and later, and not more often than `most` times an hour."""

    first_s: float = FIRST_DELAY_S
    longest_s: float = LONGEST_DELAY_S
    most: int = MOST_PER_HOUR
    _failures: int = 0
    _restarts: list[float] = field(default_factory=list)

    def delay_s(self, exit_code: int, ran_s: float, now_s: float) -> float | None:
        """Seconds to wait after such an end; None if it is the last one."""
        self._restarts = [at for at in self._restarts if now_s - at < HOUR_S]
        if exit_code in (0, INTERRUPTED, *FINAL) or len(self._restarts) >= self.most:
            return None
        self._failures = 1 if ran_s >= STEADY_S else self._failures + 1
        self._restarts.append(now_s)
        return min(self.longest_s, self.first_s * 2.0 ** (self._failures - 1))


def supervise(
    name: str, argv: Sequence[str], log: Path, output: Output, *, backoff: Backoff | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> int:  # fmt: skip
    """Run a child until it ends for good; its exit code. Raises the error that its last exit code stands for."""
    backoff = backoff or Backoff()
    with ProcessGroup() as children:
        while True:
            began_s = clock()
            child = follow_child(children, children.start(name, argv, log), output)
            if children.interrupts:
                break
            assert child.exit_code is not None
            delay_s = backoff.delay_s(child.exit_code, clock() - began_s, clock())
            if delay_s is None:
                break
            output.say(f"{name}: {child.describe_end()}; it is started again in {delay_s:.0f} s")
            if _is_interrupted_within(children, delay_s, clock):
                break
    output.close()
    if children.interrupts:
        return INTERRUPTED
    if child.exit_code != 0:
        raise error_of(child)
    return 0


def follow_child(children: ProcessGroup, child: ChildProcess, output: Output) -> ChildProcess:
    """Show what a child says until it and all that it started have ended."""
    while child in children.running:
        happened = children.next(timeout_s=LOOK_S)
        output.tick(time.time())
        match happened:
            case EventPrinted(line=line):
                output.show(line)
            case InterruptReceived() if children.interrupts == 1:
                output.say("leaving; once more to stop at once")
            case ChildExited() if child.bad_lines:
                output.say(f"{child.bad_lines} lines of the {child.name}'s output are not events")
    return child


def _is_interrupted_within(children: ProcessGroup, seconds: float, clock: Callable[[], float]) -> bool:
    """Wait; True at once if somebody asks us to stop."""
    until_s = clock() + seconds
    while not children.interrupts and (left_s := until_s - clock()) > 0:
        children.next(timeout_s=min(LOOK_S, left_s))
    return bool(children.interrupts)


def main(words: Sequence[str]) -> int:
    """Keep the peer of this command line running; the exit code of its last end."""
    log, separator, *argv = words
    assert separator == "--", words
    try:
        return supervise("peer", argv, Path(log), NoOutput())
    except HomefiresError as error:
        print(f"homefires: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
