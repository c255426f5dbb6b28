"""`python -m peer watch INVITE`: what happens in a run, for somebody who takes no part in it.

Read `story` first. A watcher loads no model and no data, serves nothing, and says nothing about itself; its
lines carry no peer id, for it is nobody in the swarm.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
import time
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dht.addresses import are_loopback
from dht.errors import HomefiresError, NotAdmitted
from dht.identity import Identity
from dht.invite import Invite, parse
from dht.node import NetworkConfig, Node, open_node
from dht.records import Genesis, Record, pack, unpack_body
from peer import spec as specs
from peer.audit.files import Verifier
from peer.averaging.blocks import first_head
from peer.averaging.meeting import find_spec, said_genesis
from peer.averaging.notices import Notices
from peer.averaging.rules import rules_of
from peer.events import Event, Line, PeerStarted, PeerStopped, format_line
from peer.rounds.layout import cut
from peer.rounds.state import Rules
from peer.rounds.update import MAX_PARTS
from peer.spec import RunSpec
from peer.telling import Session
from peer.watch.archive import Agreement, Archive, Retention
from peer.watch.hearsay import Hearsay
from peer.watch.watcher import LOOK_S, Watcher

SECOND_SIGNAL_CODE = 130


@dataclass(frozen=True, kw_only=True)
class Keep:
    """That checkpoints are kept in `folder`, and which."""

    folder: Path
    retention: Retention


async def story(invite: Invite, folder: Path, session: Session, keep: Keep | None = None) -> None:
    """Meet the network as a client, learn what the run is and who founded it, then follow its rounds.

    Raises Unreachable, NotAdmitted. `folder` is for a key and for sockets, and can go afterwards.
    """
    session.say("JOINING", "looking for the run")
    identity = Identity.load_or_create(folder / "identity.key")
    config = NetworkConfig(
        run=invite.spec_hash, identity_path=folder / "identity.key", socket_folder=folder / "run", listen=(),
        bootstrap=invite.addrs, public=not are_loopback(invite.addrs), client_mode=True,
    )  # fmt: skip
    async with open_node(config) as node:
        spec = specs.parse(await find_spec(node, invite, folder))
        if spec.admission.policy != "open":
            raise NotAdmitted(
                "this run shows itself to those alone whom its organiser has admitted; watch it on a machine that "
                "takes part (homefires attach), or a recording of it"
            )
        session.emit(PeerStarted(name="watch", version=version("homefires"), rounds=spec.run.rounds))
        notices = Notices(node.board, identity, invite.spec_hash, name="")
        record = await _founders(node, notices, invite.organiser, session)
        genesis = unpack_body(record)
        assert isinstance(genesis, Genesis)
        watcher = Watcher(
            node, notices.read_heads, lambda sizes: _rules(spec, invite.spec_hash, sizes), invite.spec_hash,
            first_head(genesis), session,
        )  # fmt: skip
        if keep is None:
            await watcher.follow(spec.run.rounds)
            return
        agreement = Agreement(run=invite.spec_hash, spec=(folder / "spec.toml").read_bytes(), genesis=pack(record))
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="bytes") as executor:
            archive = Archive(
                keep.folder, node, agreement, first_head(genesis), keep.retention, executor, session.emit
            )  # fmt: skip
            await _first_to_end(watcher.follow(spec.run.rounds), watcher.keep(archive))


async def _first_to_end(*stories: Coroutine[Any, Any, None]) -> None:
    """Tell these side by side until one of them ends; raises what it failed with."""
    tasks = [asyncio.create_task(story) for story in stories]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _founders(node: Node, notices: Notices, organiser: str, session: Session) -> Record:
    """Who founded the run; until they are named, tell who waits."""
    hearsay = Hearsay()
    while (record := await said_genesis(node, notices, organiser)) is None:
        session.say("JOINING", "waiting for the organiser to name the founders")
        for report in hearsay.news(await notices.read_heads()):
            session.emit(report)
        await asyncio.sleep(LOOK_S)
    return record


def _rules(spec: RunSpec, run: bytes, layer_sizes: tuple[int, ...]) -> Rules:
    """Raises ValueError if no model of the run has such layers."""
    if not 0 < sum(-(-size // spec.codec.part_elements) for size in layer_sizes) <= MAX_PARTS:
        raise ValueError("a model has at least one part, and no more than an update may name")
    return rules_of(spec, cut(layer_sizes, spec.codec.part_elements), Verifier(run))


# ---- the process ----


def main(text: str, keep: Keep | None = None) -> int:
    """Watch until the run is finished or somebody stops this process; returns its exit code. Raises BadInvite."""
    import uvloop

    invite = parse(text, time.time())
    emit = Printer(invite.spec_hash.hex()[:16])
    with tempfile.TemporaryDirectory(prefix="hf-") as folder:
        why, code = uvloop.run(_until_asked(invite, Path(folder), Session(emit), keep))
    emit(PeerStopped(why=why, exit_code=code))
    return code


class Printer:
    """Prints events, numbered, of nobody."""

    def __init__(self, run: str) -> None:
        self._run, self._seq = run, 0

    def __call__(self, event: Event) -> None:
        print(format_line(Line(seq=self._seq, t=time.time(), run=self._run, peer="", event=event)), flush=True)
        self._seq += 1


async def _until_asked(
    invite: Invite, folder: Path, session: Session, keep: Keep | None
) -> tuple[str, int]:  # fmt: skip
    """How it ended in words, and the exit code. The second signal ends it at once."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def ask() -> None:
        if stop.is_set():
            os._exit(SECOND_SIGNAL_CODE)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ask)
    watching, asked = asyncio.create_task(story(invite, folder, session, keep)), asyncio.create_task(stop.wait())
    await asyncio.wait({watching, asked}, return_when=asyncio.FIRST_COMPLETED)
    for task in (watching, asked):
        task.cancel()
    try:
        await watching
    except asyncio.CancelledError:
        return "asked to stop", 0
    except HomefiresError as error:
        if stop.is_set():  # Ctrl-C ends the daemon in the same moment
            return "asked to stop", 0
        print(f"homefires: {error}", file=sys.stderr)
        return str(error), error.exit_code
    return "the run is finished", 0
