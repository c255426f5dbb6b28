"""Stands in for `python -m peer join INVITE --dir DIR … --stay`: holds its directory and writes events there.

    fake_peer.py BEHAVIOUR DIR

`stays` (until SIGTERM, then it leaves), `refuses` (unreachable, before it starts), `crashes` (some time after
it started), `noisy` (like `stays`, with a lot on its stderr and from a child of its own).
"""

import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from peer.schema.events import Event, EventLine, PeerStarted, PeerStateChanged, PeerStopped, format_line


def main(behaviour: str, directory: Path) -> int:
    (directory / "run").mkdir(parents=True, exist_ok=True)
    lock = (directory / "run" / "lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    tell(directory, 0, PeerStateChanged(state="JOINING", why="looking for the run"))
    if behaviour == "refuses":
        print("a library says something\nhomefires: nobody answered at tcp/4001", file=sys.stderr)
        tell(directory, 1, PeerStopped(why="nobody answered at tcp/4001", exit_code=3))
        return 3
    if behaviour == "noisy":
        subprocess.run(["sh", "-c", "echo NOISE from below >&2; echo NOISE"], check=True)
        print("NOISE", file=sys.stderr)
    signal.signal(signal.SIGTERM, lambda *_: None)
    tell(directory, 1, PeerStarted(name="alice", version="0"))
    if behaviour == "crashes":
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()
    tell(directory, 2, PeerStopped(why="asked to leave"))
    return 0


def tell(directory: Path, seq: int, event: Event) -> None:
    with (directory / "events.jsonl").open("a") as file:
        print(format_line(EventLine(seq=seq, t=time.time(), run="fake", peer="id-alice", event=event)), file=file)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
