"""`python -m tests.swarm.keep_folders 0.5.0`: the folders of a node and its two founders, as this release writes them,
into `tests/swarm/kept`, for the releases after it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

KEPT = Path(__file__).parent / "kept"
LOOPBACK = ("--listen", "/ip4/127.0.0.1/tcp/0", "--ui", "json")
ROUNDS = 5
LEFT_OUT = ("run", "peer.log", "bootstrap.log")


def main(release: str) -> None:
    """Stop a run after a few rounds and pack its folders."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        node = _started("bootstrap", str(KEPT / "spec.toml"), "--dir", str(folder / "node"))
        invite = str(_told(node, "InviteIssued")["invite"])
        peers = [_started("join", invite, "--yes", "--dir", str(folder / name)) for name in ("p1", "p2")]
        while _told(peers[0], "RoundCommitted")["round"] != ROUNDS:
            pass
        for command in (*peers, node):
            command.send_signal(signal.SIGINT)
            command.communicate(timeout=60.0)
        with tarfile.open(KEPT / f"{release}.tar.xz", "w:xz") as archive:
            for name in ("node", "p1", "p2"):
                archive.add(folder / name, name, filter=_without_names)


def _started(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tui", *words, *LOOPBACK], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )


def _told(command: subprocess.Popen[str], event: str) -> dict[str, object]:
    assert command.stdout is not None
    for line in command.stdout:
        said: dict[str, object] = json.loads(line)
        if said["type"] == event:
            return said
    raise SystemExit(f"it ended before {event}")


def _without_names(item: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Nothing of the machine and account that made it."""
    if Path(item.name).name in LEFT_OUT:
        return None
    item.uid = item.gid = 0
    item.uname = item.gname = ""
    return item


if __name__ == "__main__":
    main(*sys.argv[1:])
