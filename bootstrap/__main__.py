"""`python -m bootstrap SPEC.toml --dir DIR`: the process that `homefires bootstrap` and `homefires demo` start.

It prints event lines on stdout. Its log goes to stderr, and so does the one line of an error at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from bootstrap.config import BootstrapConfig, InviteTerms, parse_cap_bps, parse_duration_s
from bootstrap.public_page import PublicPage
from bootstrap.server import serve
from dht.addresses import ALL_INTERFACES, check_announce, check_dial, check_listen
from dht.admission import LASTS_S
from dht.daemon import require_free
from dht.errors import HomefiresError
from dht.identity import Identity, fingerprint_words
from dht.process import die_with_parent, lock_directory, parent_gone
from peer.node.telemetry.event_log import EventPrinter
from peer.node.telemetry.http import serving
from peer.schema import spec as specs
from peer.schema.events import PeerStopped

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    parent_pid = os.getppid()
    die_with_parent()
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    report = EventPrinter()
    try:
        config = _config(options)
        if options.check:
            print(_checked(config))
            return 0
        _run(config, report, parent_pid)
    except HomefiresError as error:
        if options.debug:
            raise
        if options.check:
            print(f"homefires: {error}", file=sys.stderr)
            return error.exit_code
        report(PeerStopped(why=str(error), exit_code=error.exit_code))
        print(f"bootstrap: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _checked(config: BootstrapConfig) -> str:
    """The organiser's words, once nothing is known that would keep the node from starting. Raises DirectoryBusy,
    PortInUse, BadAddress, BadInput."""
    pages = serving(config.health_port, {}) if config.health_port else nullcontext()
    with lock_directory(config.directory), pages:
        for address in config.listen:
            require_free(address)
        organiser = Identity.load_or_create(config.directory / "identity.key").peer_id
        if config.page is not None:
            PublicPage(config.page, config.directory, config.spec, organiser)
        return fingerprint_words(organiser)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bootstrap", description="The node that newcomers dial first.")
    parser.add_argument("spec", type=Path, metavar="SPEC.toml", help="the run spec, with every value")
    parser.add_argument("--dir", type=Path, required=True, help="holds identity.key, genesis and run/")
    parser.add_argument("--listen", action="append", default=[], metavar="ADDR", help="default: all interfaces")
    parser.add_argument("--announce", action="append", default=[], metavar="ADDR", help="what others shall dial")
    parser.add_argument("--also", action="append", default=[], metavar="ADDR", help="where else newcomers may dial")
    parser.add_argument("--invites", type=int, default=0, metavar="N", help="so many invites for one peer each")
    parser.add_argument("--founder", action="append", default=[], metavar="PEER", help="who may found the run, by id")
    parser.add_argument("--expires", default="", metavar="TIME", help="how long invites last, such as 7d or 12h")
    text = "how long an admission lasts until it is renewed, such as 30d"
    parser.add_argument("--members-for", default="", metavar="TIME", help=text)
    text = "promote strangers whose work was counted for so long, in 20 rounds, or never (default 24h)"
    parser.add_argument("--promote", default="24h", metavar="TIME|never", help=text)
    text = "limit what the node sends, in megabits per second; circuits between peers have a quarter of it"
    parser.add_argument("--upload", default="", metavar="MBPS", help=text)
    parser.add_argument("--download", default="", metavar="MBPS", help="limit what the node takes")
    text = "serve a health page and metrics on this port of loopback"
    parser.add_argument("--health-port", type=int, default=0, metavar="PORT", help=text)
    text = "write a page about the run for everybody into this folder, once a minute"
    parser.add_argument("--page", type=Path, metavar="DIR", help=text)
    text = "check these words, make the key, print the organiser's words, and end"
    parser.add_argument("--check", action="store_true", help=text)
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    return parser


def _config(options: argparse.Namespace) -> BootstrapConfig:
    listen = tuple(check_listen(address) for address in options.listen)
    announce = tuple(check_announce(address) for address in options.announce)
    lasts_s = parse_duration_s("--expires", options.expires) if options.expires else 0.0
    member_s = parse_duration_s("--members-for", options.members_for) if options.members_for else LASTS_S
    promote_s = None if options.promote == "never" else parse_duration_s("--promote", options.promote)
    spec = specs.load(str(options.spec))
    terms = InviteTerms(admits=spec.admission.policy == "invited", single=options.invites, lasts_s=lasts_s)
    return BootstrapConfig(
        directory=options.dir, spec=spec, listen=listen or ALL_INTERFACES, announce=announce, terms=terms,
        health_port=options.health_port, page=options.page, member_s=member_s, founders=tuple(options.founder),
        promote_s=promote_s,
        upload_bps=parse_cap_bps("--upload", options.upload),
        download_bps=parse_cap_bps("--download", options.download),
        also=tuple(check_dial(address) for address in options.also),
    )  # fmt: skip


def _run(config: BootstrapConfig, report: EventPrinter, parent_pid: int) -> None:
    import uvloop

    uvloop.run(_serve_until_signal(config, report, parent_pid))


async def _serve_until_signal(config: BootstrapConfig, report: EventPrinter, parent_pid: int) -> None:
    stop = asyncio.Event()

    def on_signal() -> None:
        if stop.is_set():
            os._exit(INTERRUPTED)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, on_signal)
    watch = asyncio.create_task(_stop_with_parent(parent_pid, stop))
    try:
        await serve(config, report, stop)
    finally:
        watch.cancel()


async def _stop_with_parent(parent_pid: int, stop: asyncio.Event) -> None:
    await parent_gone(parent_pid)
    stop.set()


if __name__ == "__main__":
    sys.exit(main())
