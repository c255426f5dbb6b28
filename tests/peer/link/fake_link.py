"""A link that plays one scene, chosen by its invite; it stands in for `python -m peer.link.link`."""

from __future__ import annotations

import argparse
import signal
import socket
import sys

from peer.link.channel import LinkLost, TrainerEnd


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int)
    parser.add_argument("--invite")
    args, _ = parser.parse_known_args()
    pipe = TrainerEnd(socket.socket(fileno=args.fd))
    match args.invite:
        case "error":
            pipe.send("error", "RunMismatch", "other parameters")
        case "dies":
            return 1
        case "tells":
            pipe.send("waiting", "for the organiser")
            pipe.send("report", "AlertRaised", {"level": "info"})
            pipe.send("spec", "text of the spec")
            _until_told(pipe, "leave")
            pipe.send("report", "AlertRaised", {"level": "info"})
        case "echo":
            _echo(pipe)
        case "hangs":
            signal.pause()
    return 0


def _until_told(pipe: TrainerEnd, kind: str) -> None:
    while (message := pipe.receive(60.0)) is None or message[0] != kind:
        continue


def _echo(pipe: TrainerEnd) -> None:
    try:
        while (message := pipe.receive(60.0)) is not None:
            pipe.send(*message)
    except LinkLost:
        return


if __name__ == "__main__":
    sys.exit(main())
