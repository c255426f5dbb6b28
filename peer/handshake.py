"""Messages between a trainer and its link before the trainer knows its model: the run's spec, and the
pretrained model.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from dht.errors import Unreachable
from peer.network.link.cluster_invite import keep_found
from peer.network.link.handle import LeaveRequested, LinkProcess
from peer.node.lifecycle.state import SPEC_TIMEOUT_S
from peer.node.telemetry.reporter import Reporter
from peer.schema import ipc
from peer.schema.events import AlertRaised, Event
from peer.schema.settings import PeerSettings
from peer.schema.spec import RunSpec
from peer.schema.spec_fields import StartTable

T = TypeVar("T")
LOOK_S = 1.0
"""Whoever waits looks so often whether its owner wants it to leave."""


def await_message(inbox: SimpleQueue[Any], session: Reporter, kind: type[T]) -> T:
    """What comes before goes to people. Raises what the link ended with, and LeaveRequested."""
    while not session.stopping:
        with suppress(Empty):
            item = inbox.get(timeout=LOOK_S)
            if isinstance(item, kind):
                return item
            _tell(item, session)
    raise LeaveRequested


def _tell(item: object, session: Reporter) -> None:
    """Raises what the link ended with."""
    match item:
        case ipc.Waiting(why):
            session.say("JOINING", why)
        case ipc.ReportEvent(name, fields):
            session.emit(Event.registry[name](**fields))
        case Exception():
            raise item


def find_homes(
    link: LinkProcess, inbox: SimpleQueue[Any], spec: RunSpec, me: str, settings: PeerSettings, directory: Path,
    session: Reporter, avoid: Collection[str],
) -> None:  # fmt: skip
    """Find other homes with which this one can train the model, and keep its place among them on disk; the next link
    goes there. `avoid`: homes that did not come before.

    Raises LeaveRequested, what the link ended with, and BadInput if no device works."""
    from peer.parallel.cluster.home_offer import measure_offer

    mine = measure_offer(spec, settings, me)
    session.say("JOINING", "looking for other homes: the model does not fit on this one alone")
    link.send(ipc.LookForHomes(mine.memory_gb, mine.tokens_per_s, tuple(sorted(avoid))))
    found = keep_found(directory, await_message(inbox, session, ipc.HomesFound))
    role = "leads" if found.leads else "works in"
    text = f"this home {role} a cluster of {len(found.order)} homes that found each other"
    session.emit(AlertRaised(level="info", code="CLUSTER", text=text))


def await_spec(inbox: SimpleQueue[Any], session: Reporter) -> str:
    """What the run is. Raises what the link ended with, Unreachable, or LeaveRequested."""
    until = time.monotonic() + SPEC_TIMEOUT_S
    while not session.stopping and (left_s := until - time.monotonic()) > 0:
        try:
            item = inbox.get(timeout=left_s)
        except Empty:
            break
        if isinstance(item, ipc.SpecText):
            return item.toml
        _tell(item, session)
    if session.stopping:
        raise LeaveRequested
    raise Unreachable(f"the link did not get the run's spec within {SPEC_TIMEOUT_S:.0f} s")


def fetch_start_model(
    link: LinkProcess, inbox: SimpleQueue[Any], spec: RunSpec, start: StartTable, session: Reporter
) -> None:
    """Have the model from which the run starts on this machine: from huggingface.co, or else from peers.

    Raises LeaveRequested, what the link ended with, and BadSpec for another model under that name."""
    from peer.training.model.pretrained import fetch

    is_here = False
    if start.is_on_hub:
        session.say("JOINING", f"loading {start.model} from huggingface.co")
        try:
            fetch(spec)
            is_here = True
        except Unreachable as error:
            session.warn("START", f"{error}; it is loaded from other peers")
    link.send(ipc.StartLooked(is_here))
    if not is_here:
        session.say("JOINING", f"loading {start.model} from other peers")
        await_message(inbox, session, ipc.StartBrought)
