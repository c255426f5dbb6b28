"""A link that plays one scene, chosen by its invite; it stands in for `python -m peer.network.link.link`."""

from __future__ import annotations

import argparse
import asyncio
import signal
import socket
import sys
from contextlib import suppress

from peer.network.link.channel import LinkEnd, LinkLost
from peer.schema.events import AlertRaised
from peer.schema.ipc import (
    BeginAt,
    InStep,
    Leave,
    LinkFailed,
    OfferContribution,
    OpenLink,
    ReportEvent,
    SpecText,
    Waiting,
)

ALERT = AlertRaised(level="info", code="TEST", text="")


async def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int)
    pipe = await LinkEnd.open(socket.socket(fileno=parser.parse_known_args()[0].fd))
    opening = await pipe.receive()
    assert isinstance(opening, OpenLink)
    match opening.invite:
        case "error":
            pipe.send(LinkFailed("RunMismatch", "other parameters"))
        case "nonsense":
            pipe.send(LinkFailed("annotations", "a name that `dht.errors` has, and no error"))
        case "dies":
            return 1
        case "tells":
            pipe.send(Waiting("for the organiser"))
            pipe.report(ALERT)
            pipe.send(SpecText("text of the spec"))
            while not isinstance(await pipe.receive(), Leave):
                continue
            pipe.report(ALERT)
        case "echo":
            await _echo(pipe, opening)
        case "hangs":
            pipe.send(InStep(True))
            signal.pause()
        case "chatters":
            while True:
                pipe.send(InStep(True))
                await asyncio.sleep(0.001)
    await pipe.close(1.0)
    return 0


async def _echo(pipe: LinkEnd, opening: OpenLink) -> None:
    """Say how it was opened and what its limits become, then the anchor of every offer."""
    pipe.on_limits = lambda limits: pipe.send(Waiting(f"{limits}"))
    pipe.send(ReportEvent("opening", {"name": opening.name, "listen": opening.listen, "limits": f"{opening.limits}"}))
    with suppress(LinkLost):
        while True:
            message = await pipe.receive()
            if isinstance(message, OfferContribution):
                pipe.send(BeginAt(message.anchor, ()))


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
