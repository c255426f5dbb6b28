"""`python -m peer watch INVITE`: prints what happens in a run without taking part in it.

Read `story` first. A watcher loads no model and no data, serves nothing, and publishes no record about itself; its
lines carry no peer id, since it is no peer of the swarm.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dht.access import AccessList
from dht.addresses import are_loopback
from dht.admission import issue_admission
from dht.errors import BadInput, HomefiresError, NotAdmitted, Unreachable
from dht.identity import Identity, fingerprint_words
from dht.invite import Invite, parse
from dht.node import NetworkConfig, Node, open_node
from dht.records import Genesis, Malformed, PeerRecord, Record, pack, unpack_body
from peer.consensus.codec.run_rules import rules_of
from peer.consensus.protocol.block import MAX_PARTS
from peer.consensus.protocol.layout import cut
from peer.consensus.protocol.rules import Rules
from peer.network.link.discovery import Announcer
from peer.network.link.gatekeeper import ADMISSION
from peer.network.sync.checkpoint_keeper import CheckpointKeeper
from peer.network.sync.run_discovery import find_spec, said_genesis, waiting_words
from peer.node.store.run_directory import genesis_head
from peer.node.telemetry.event_log import EventPrinter
from peer.node.telemetry.reporter import Reporter
from peer.planning.forecast.watched_outlook import WatchedOutlook
from peer.schema import spec as specs
from peer.schema.events import PeerStarted, PeerStopped
from peer.schema.spec import RunSpec
from peer.tools.audit.run_files import SignatureChecker
from peer.tools.watch.archive import Agreement, Archive, Retention
from peer.tools.watch.watcher import LOOK_S, AnnouncementLog, Watcher

SECOND_SIGNAL_CODE = 130


@dataclass(frozen=True, kw_only=True)
class Keep:
    """That checkpoints are kept in `folder`, and which."""

    folder: Path
    retention: Retention


async def story(
    invite: Invite, folder: Path, session: Reporter, keep: Keep | None = None, organiser: Identity | None = None
) -> None:
    """Meet the network as a client, learn what the run is and who founded it, then follow its rounds.

    Raises Unreachable, NotAdmitted. `folder` is for a key and for sockets, and can go afterwards. A run that asks for
    an admission is watched with the key of its `organiser`.
    """
    session.say("JOINING", "looking for the run")
    identity = Identity.load_or_create(folder / "identity.key")
    config = NetworkConfig(
        run=invite.spec_hash, identity_path=folder / "identity.key", socket_folder=folder / "run", listen=(),
        bootstrap=invite.addrs, public=not are_loopback(invite.addrs), client_mode=True,
    )  # fmt: skip
    async with open_node(config) as node:
        spec = specs.parse(await find_spec(node, invite, folder))
        admitted = None
        if spec.admission.policy != "open":
            admitted = OrganiserPass(node, _required(organiser), invite.spec_hash)
            await admitted.show()
        started = PeerStarted(name="watch", version=version("homefires"), rounds=spec.run.rounds, trains=spec.in_words)
        session.emit(started)
        notices = Announcer(node.board, identity, invite.spec_hash, name="")

        async def read_heads() -> Mapping[str, PeerRecord]:
            heads = await notices.read_heads()
            return heads if admitted is None else admitted.let_in(heads)

        record = await _founders(node, invite.spec_hash, read_heads, invite.organiser, session, spec.run.founders)
        genesis = unpack_body(record)
        assert isinstance(genesis, Genesis)
        keys = SignatureChecker(invite.spec_hash)
        keeper = CheckpointKeeper(
            node, keys, invite.organiser, None, node.refusals, invite.checkpoint or (0, b"")
        )  # fmt: skip
        watcher = Watcher(
            node, read_heads, lambda sizes: _rules(spec, invite.spec_hash, invite.organiser, sizes), invite.spec_hash,
            genesis_head(genesis), session, keeper, WatchedOutlook(spec),
        )  # fmt: skip
        if keep is None:
            await _first_to_end(*_stories(watcher, spec.run.rounds, admitted))
            return
        agreement = Agreement(run=invite.spec_hash, spec=(folder / "spec.toml").read_bytes(), genesis=pack(record))
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="bytes") as executor:
            archive = Archive(
                keep.folder, node, agreement, genesis_head(genesis), keep.retention, executor, session.emit
            )  # fmt: skip
            await _first_to_end(*_stories(watcher, spec.run.rounds, admitted), watcher.keep(archive))


def _stories(watcher: Watcher, rounds: int, admitted: OrganiserPass | None) -> list[Coroutine[Any, Any, None]]:
    return [watcher.follow(rounds), *([] if admitted is None else [admitted.keep()])]


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


def _required(organiser: Identity | None) -> Identity:
    """Raises NotAdmitted without one."""
    if organiser is None:
        raise NotAdmitted(
            "this run shows itself to those alone whom its organiser has admitted; watch it on a machine that takes "
            "part (homefires attach), as its organiser (homefires watch DIR, the folder of the bootstrap node), or a "
            "recording of it"
        )
    return organiser


async def _founders(
    node: Node, run: bytes, read_heads: Callable[[], Awaitable[Mapping[str, PeerRecord]]], organiser: str,
    session: Reporter, count: int,
) -> Record:  # fmt: skip
    """Who founded the run, `count` of them; until they are named, tell who waits, and for whom."""
    hearsay = AnnouncementLog()
    while (record := await said_genesis(node, run, organiser)) is None:
        heads = await read_heads()
        session.say("JOINING", waiting_words(heads, count))
        for report in hearsay.news(heads):
            session.emit(report)
        await asyncio.sleep(LOOK_S)
    return record


def _rules(spec: RunSpec, run: bytes, organiser: str, layer_sizes: tuple[int, ...]) -> Rules:
    """Raises ValueError if no model of the run has such layers."""
    if not 0 < sum(-(-size // spec.codec.part_elements) for size in layer_sizes) <= MAX_PARTS:
        raise ValueError("a model has at least one part, and no more than an update may name")
    return rules_of(spec, cut(layer_sizes, spec.codec.part_elements), SignatureChecker(run), organiser=organiser)


# ---- the process ----


def main(text: str, keep: Keep | None = None, organiser: Path | None = None) -> int:
    """Watch until the run is finished or somebody stops this process; returns its exit code.

    `organiser` is the folder of the run's organiser, for a run that asks for an admission; invites that he printed may
    be over. Raises BadInvite, BadInput for another organiser's folder.
    """
    import uvloop

    invite = parse(text, time.time() if organiser is None else float("-inf"))
    key = None if organiser is None else _key_of(organiser, invite)
    emit = EventPrinter(invite.spec_hash.hex()[:16])
    with tempfile.TemporaryDirectory(prefix="hf-") as folder:
        why, code = uvloop.run(_until_asked(story(invite, Path(folder), Reporter(emit), keep, key)))
    emit(PeerStopped(why=why, exit_code=code))
    return code


def _key_of(folder: Path, invite: Invite) -> Identity:
    """Raises BadInput."""
    path = folder / "identity.key"
    if not path.exists() or (key := Identity.load_or_create(path)).peer_id != invite.organiser:
        raise BadInput(
            f"{folder} does not hold the key of {fingerprint_words(invite.organiser)}, who organises this run; "
            "name the folder of its bootstrap node"
        )
    return key


async def _until_asked(told: Coroutine[Any, Any, None]) -> tuple[str, int]:
    """How it ended in words, and the exit code. The second signal ends it at once."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def ask() -> None:
        if stop.is_set():
            os._exit(SECOND_SIGNAL_CODE)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ask)
    watching, asked = asyncio.create_task(told), asyncio.create_task(stop.wait())
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


GUEST = "visitor"
"""Under this name the organiser's node takes an admission that is in no book of its own."""
LASTS_S = 86400.0
SHOW_S = 60.0
"""The organiser's node forgets it when it restarts."""
ASK_S = 5.0


class OrganiserPass:
    """The admission of a watcher, signed anew whenever somebody asks for it; and whom else the organiser has let in."""

    def __init__(self, node: Node, organiser: Identity, run: bytes) -> None:
        self._node, self._organiser, self._run = node, organiser, run
        self._roster = AccessList(run, organiser.peer_id, asks_admission=True)
        node.serve(ADMISSION, self._signed)

    def _signed(self) -> bytes:
        return issue_admission(self._organiser, self._run, self._node.peer_id, time.time() + LASTS_S).to_bytes()

    async def keep(self) -> None:
        while True:
            await self.show()
            await asyncio.sleep(SHOW_S)

    async def show(self) -> None:
        """Show it once; if the organiser's node is away, peers behind routers are not met."""
        with suppress(Unreachable):
            await self._node.ask(self._organiser.peer_id, GUEST, ASK_S, request=self._signed())

    def let_in(self, heads: Mapping[str, PeerRecord]) -> dict[str, PeerRecord]:
        """Of what is said on the board, where anybody can write, what members of the run say."""
        for peer, head in heads.items():
            with suppress(Malformed):
                self._roster.learn(peer, head.admission or b"")
        return {peer: head for peer, head in heads.items() if self._roster.why_not(peer) is None}
