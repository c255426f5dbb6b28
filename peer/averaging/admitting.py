"""How a newcomer gets its admission: once, from the organiser's node, for an invite with a token."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from typing import Any

import msgpack

from dht.addresses import peer_id_in
from dht.admission import MAX_ADMISSION_BYTES, Admission, read_admission
from dht.errors import NotAdmitted, Unreachable
from dht.files import write_whole
from dht.invite import Invite
from dht.node import Node
from dht.records import Malformed
from dht.refusals import Code
from peer.averaging.pipe import LinkPipe

log = logging.getLogger(__name__)

ADMIT = "admit"
"""Under this name the organiser's node admits whoever shows an invite that says so."""
ASK_S = 10.0
ASK_AGAIN_S = 2.0
PATIENCE_S = 45.0
MAX_ANSWER_BYTES = MAX_ADMISSION_BYTES + 1024


async def find_admission(node: Node, invite: Invite, directory: Path, me: str, pipe: LinkPipe) -> bytes:
    """The admission that this folder keeps, or the organiser's node gives now.

    Raises NotAdmitted if that refuses, Unreachable if it does not answer: nobody else can admit a newcomer.
    """
    path = directory / "admission"
    kept = _kept(path, invite, me)
    if kept is not None:
        return kept.to_bytes()
    if invite.token is None:
        raise _refused(node, "the invite holds no token; ask the organiser for one that admits")
    pipe.send("waiting", "asking the organiser's node for an admission")
    admission = await _ask(node, invite, me)
    write_whole(path, admission.to_bytes())
    return admission.to_bytes()


def _kept(path: Path, invite: Invite, me: str) -> Admission | None:
    if not path.exists():
        return None
    try:
        admission = read_admission(path.read_bytes(), invite.spec_hash, invite.organiser, me)
    except Malformed as error:
        log.warning("%s is of no use here (%s): asking for another", path, error)
        return None
    return None if admission.is_over(time.time()) else admission


async def _ask(node: Node, invite: Invite, me: str) -> Admission:
    failure = "no answer"
    try:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    answer = await node.ask(
                        invite.organiser, ADMIT, ASK_S, MAX_ANSWER_BYTES, request=invite.text.encode()
                    )
                    if answer:
                        return _read(node, answer, invite, me)
                    failure = "it admits nobody now"
                except Unreachable as error:
                    failure = str(error)
                await asyncio.sleep(ASK_AGAIN_S)
    except TimeoutError:
        tried = ", ".join(address for address in invite.addrs if peer_id_in(address) == invite.organiser)
        raise Unreachable(
            f"only the organiser's node admits newcomers, and it does not ({failure}; tried {tried or 'its id'}); "
            "try again when it runs"
        ) from None


def _read(node: Node, answer: bytes, invite: Invite, me: str) -> Admission:
    match _unpacked(answer):
        case [bytes(shown), str(why)]:
            pass
        case _:
            raise Unreachable("its answer is none that this client knows")
    if not shown:
        raise _refused(node, "".join(letter if letter.isprintable() else "\ufffd" for letter in why))
    try:
        return read_admission(shown, invite.spec_hash, invite.organiser, me)
    except Malformed as error:
        raise _refused(node, f"what the organiser's node gives is no admission: {error}") from error


def _unpacked(answer: bytes) -> Any:
    try:
        return msgpack.unpackb(answer)
    except (ValueError, msgpack.UnpackException, TypeError, RecursionError):
        return None


def _refused(node: Node, why: str) -> NotAdmitted:
    node.refusals(Code.TOKEN, "this peer", why)
    return NotAdmitted(f"this run takes those alone whom its organiser admits: {why}")
