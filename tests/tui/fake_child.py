"""Stands in for `python -m bootstrap` and `python -m peer join`: prints their event lines without their work.

    fake_child.py BEHAVIOUR MODULE [ARGUMENTS OF THE MODULE…]

Run as a script by the tests of the launcher and the demo. Behaviours, of the second peer unless said otherwise:
`well`, `differs` (another digest in round 2), `dies` (SIGKILL after round 1), `refuses` (port in use),
`waits` (every peer trains until SIGTERM), `stubborn` (the same, and ignores SIGTERM), `mute` (a bootstrap
node without an invite, which ends).
"""

import os
import signal
import sys
import time

from dht.process import die_with_parent
from peer.schema.events import (
    AlertRaised,
    Event,
    EventLine,
    InviteIssued,
    PeerStarted,
    PeerStopped,
    RoundCommitted,
    RoundStarted,
    format_line,
)

ROUNDS = 3


class Reporter:
    def __init__(self, name: str) -> None:
        self.name, self.seq = name, 0

    def __call__(self, event: Event) -> None:
        print(
            format_line(EventLine(seq=self.seq, t=time.time(), run="fake", peer=f"id-{self.name}", event=event)),
            flush=True,
        )
        self.seq += 1


def wait_for_sigterm(report: Reporter) -> None:
    report(PeerStopped(why="asked to leave"))
    sys.exit(0)


def bootstrap(behaviour: str) -> None:
    report = Reporter("bootstrap")
    report(PeerStarted(name="bootstrap", version="0"))
    if behaviour == "mute":
        report(PeerStopped(why="/ip4/127.0.0.1/tcp/4001 is taken", exit_code=4))
        sys.exit(4)
    signal.signal(signal.SIGTERM, lambda *_: wait_for_sigterm(report))
    report(InviteIssued(invite="hf1:fake"))
    while True:
        signal.pause()


def peer(behaviour: str, name: str) -> None:
    report = Reporter(name)
    second = name == "peer-2"
    report(PeerStarted(name=name, version="0", device="cpu", parameters=1000))
    if behaviour == "refuses" and second:
        report(PeerStopped(why="/ip4/127.0.0.1/tcp/4001 is taken", exit_code=4))
        sys.exit(4)
    if behaviour in ("waits", "stubborn"):
        action = signal.SIG_IGN if behaviour == "stubborn" else lambda *_: wait_for_sigterm(report)
        signal.signal(signal.SIGTERM, action)
        report(RoundStarted(round=0, steps=10))
        while True:
            signal.pause()
    for round in range(ROUNDS):
        report(RoundStarted(round=round, steps=10))
        odd = behaviour == "differs" and second and round + 1 == 2
        report(committed(round + 1, "f00d" if odd else f"{round + 1:04x}"))
        if behaviour == "dies" and second:
            os.kill(os.getpid(), signal.SIGKILL)
    report(AlertRaised(level="info", code="DONE", text="the run has reached its last round"))
    report(PeerStopped(why="the run is finished"))


def committed(round: int, digest: str) -> RoundCommitted:
    group = ["id-peer-1", "id-peer-2"]
    return RoundCommitted(
        round=round,
        digest=digest * 16,
        state="aa" * 32,
        group=group,
        weights=dict.fromkeys(group, 32768),
        penalties=[],
        tokens=1000,
        bytes_sent=500,
        bytes_received=500,
        round_s=1.5,
        exposed_s=0.5,
    )


def main(behaviour: str, module: str, *arguments: str) -> None:
    if module == "bootstrap" and "--check" in arguments:
        print("one two three four five six seven eight")
    elif module == "bootstrap":
        bootstrap(behaviour)
    elif arguments[0] == "describe":
        print("a model that needs little")
    else:
        name = next(text for text in arguments if text.startswith("settings.name=")).partition("=")[2]
        peer(behaviour, name)


if __name__ == "__main__":
    die_with_parent()  # as the real ones do
    main(*sys.argv[1:])
