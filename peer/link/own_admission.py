"""How a peer gets its admission: from the organiser's node, for an invite with a token, and the next one in time.

Between the two nobody needs the organiser's node.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack

from dht.access import RejectCode
from dht.addresses import peer_id_in
from dht.admission import FOR_EVER, MAX_ADMISSION_BYTES, Admission, read_admission
from dht.atomic_files import write_atomic
from dht.errors import DiskFull, HomefiresError, NotAdmitted, Unreachable
from dht.invite import Invite
from dht.node import Node
from dht.records import Malformed
from peer.link.channel import LinkEnd

log = logging.getLogger(__name__)

ADMIT = "admission-request"
"""Under this name the organiser's node admits whoever shows an invite that says so, and whom it has admitted before."""
ASK_S = 10.0
ASK_AGAIN_S = 2.0
PATIENCE_S = 45.0
MAX_ANSWER_BYTES = MAX_ADMISSION_BYTES + 1024
ASK_NEXT_S = 3600.0
"""The next one is asked for so often, and oftener in the last hours. It is given once a third of the time is over."""
SOONEST_S = 1.0

FILE = "admission"
"""In a peer's folder: the newest one."""

Clock = Callable[[], float]


class Membership:
    """My admission in a run that asks for one. `clock` is Unix time in seconds."""

    def __init__(
        self, node: Node, invite: Invite, directory: Path, me: str, admission: Admission, tell: Callable[[str], None],
        clock: Clock = time.time,
    ) -> None:  # fmt: skip
        self._node, self._invite, self._path, self._me = node, invite, directory / FILE, me
        self._admission, self._tell, self._clock = admission, tell, clock
        self._failure: HomefiresError | None = None
        """Why there was no next one when it was asked for last."""

    @property
    def shown(self) -> bytes:
        """What I show to the others."""
        return self._admission.to_bytes()

    async def keep(self) -> None:
        """Have the next one well before this one is over; as long as this peer runs, or for ever if it has no end.

        Raises NotAdmitted once it is over because the organiser gives no other, Unreachable if that could not be asked.
        """
        while self._admission.expires != FOR_EVER:
            left_s = self._admission.expires - self._clock()
            await asyncio.sleep(max(SOONEST_S, min(ASK_NEXT_S, left_s / 4)))
            await self._ask()
            if self._admission.is_over(self._clock()):
                raise self._over()
        await asyncio.get_running_loop().create_future()

    async def _ask(self) -> None:
        try:
            self._admission, self._failure = await _ask_once(self._node, self._invite, self._me), None
            write_atomic(self._path, self.shown)
        except DiskFull as error:
            log.warning("the new admission is not on disk: %s", error)
        except NotAdmitted as error:
            if str(error) != str(self._failure):
                self._tell(f"{error}; the admission that this peer has ends on {_date(self._admission)}")
            self._failure = error
        except Unreachable as error:
            log.info("no new admission: %s", error)
            self._failure = error

    def _over(self) -> HomefiresError:
        ended = f"this peer's admission ended on {_date(self._admission)}"
        if isinstance(self._failure, NotAdmitted):
            return NotAdmitted(f"{ended}: {self._failure}")
        return Unreachable(
            f"{ended}, and the organiser's node, which alone renews it, was not reached ({self._failure}); start again "
            "when it runs"
        )


async def find_admission(node: Node, invite: Invite, directory: Path, me: str, pipe: LinkEnd) -> Admission:
    """The admission that this folder keeps, or the organiser's node gives now.

    Raises NotAdmitted if that refuses, Unreachable if it does not answer: nobody else can admit a newcomer.
    """
    path = directory / FILE
    kept = _kept(path, invite, me)
    if kept is not None and not kept.is_over(time.time()):
        return kept
    if kept is None and invite.token is None:
        raise _refused(node, "the invite holds no token; ask the organiser for one that admits")
    pipe.send("waiting", "asking the organiser's node for an admission")
    admission = await _ask_until_answered(node, invite, me)
    write_atomic(path, admission.to_bytes())
    return admission


def _kept(path: Path, invite: Invite, me: str) -> Admission | None:
    if not path.exists():
        return None
    try:
        return read_admission(path.read_bytes(), invite.spec_hash, invite.organiser, me)
    except Malformed as error:
        log.warning("%s is of no use here (%s): asking for another", path, error)
        return None


async def _ask_until_answered(node: Node, invite: Invite, me: str) -> Admission:
    failure = "no answer"
    try:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    return await _ask_once(node, invite, me)
                except Unreachable as error:
                    failure = str(error)
                await asyncio.sleep(ASK_AGAIN_S)
    except TimeoutError:
        tried = ", ".join(address for address in invite.addrs if peer_id_in(address) == invite.organiser)
        raise Unreachable(
            f"only the organiser's node admits newcomers, and it does not ({failure}; tried {tried or 'its id'}); "
            "try again when it runs"
        ) from None


async def _ask_once(node: Node, invite: Invite, me: str) -> Admission:
    """Raises NotAdmitted, Unreachable."""
    answer = await node.ask(invite.organiser, ADMIT, ASK_S, MAX_ANSWER_BYTES, request=invite.text.encode())
    if not answer:
        raise Unreachable("it admits nobody now")
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
    node.refusals(RejectCode.TOKEN, "this peer", why)
    return NotAdmitted(f"this run takes those alone whom its organiser admits: {why}")


def _date(admission: Admission) -> str:
    return time.strftime("%Y-%m-%d at %H:%M UTC", time.gmtime(admission.expires))
