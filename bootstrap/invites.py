"""Invites that a running node prints and keeps on disk. They name the addresses at which the node was
reached so far.
"""

from __future__ import annotations

import logging
import shlex
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from bootstrap.checkpoints import read_checkpoint
from bootstrap.config import BootstrapConfig, issue_all
from dht.addresses import are_loopback, can_be_dialled, is_global
from dht.atomic_files import write_atomic
from dht.errors import BadInvite, DiskFull, Unreachable
from dht.identity import Identity
from dht.invite import INVITE_FILE, MAX_ADDRESSES, Invite, parse, read_text
from dht.node import Node
from peer.schema.events import AlertRaised, Event, InviteIssued

LOOK_S = 10.0
CODE = "ADDRESS"

log = logging.getLogger(__name__)


class InviteIssuer:
    """Prints invites once the node has started, and keeps one, from which `homefires invite` makes more. A router
    needs some seconds to let others in (UPnP), and nobody knows the public address before. So until there is one it
    is looked for again and again."""

    def __init__(
        self, config: BootstrapConfig, identity: Identity, node: Node, report: Callable[[Event], None]
    ) -> None:
        self._config, self._identity, self._node, self._report = config, identity, node, report
        self._is_private = False
        """The newest invites lead only peers of this network here."""
        self._look_at = 0.0
        self._ends_s: float | None = None
        """When the newest invites expire, in Unix time; None: never, or it was told."""

    async def issue(self) -> None:
        """Print them, and say so if they work in this network only, or if older ones lead elsewhere. Raises
        Unreachable, DiskFull."""
        addresses = await self._addresses()
        before = self._kept(time.time())
        texts = self._make(addresses)
        for text in texts:
            self._report(InviteIssued(invite=text))
        if before is not None and not set(before.addrs) & set(addresses):
            self._report(AlertRaised(level="warning", code=CODE, text=_elsewhere(before)))
        # Who listens on loopback alone wants nobody else.
        self._is_private = not are_loopback(self._config.listen) and not lead_outside(addresses)
        if self._is_private:
            text = _only_here(addresses)
            log.warning("%s", text)  # of a service nobody sees the events
            self._report(AlertRaised(level="warning", code=CODE, text=text))
        self._look_at = time.monotonic() + LOOK_S

    async def look(self) -> None:
        """Keep a better invite once there is one, and room for it on disk. Say so once the kept one is over."""
        self._look_at_end(time.time())
        if not self._is_private or time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + LOOK_S
        addresses: tuple[str, ...] = ()
        with suppress(Unreachable):
            addresses = await self._addresses()
        if lead_outside(addresses):
            try:
                self._make(addresses)
            except DiskFull as error:  # the one that is there still leads here from this network
                log.warning("%s", error)
                return
            self._is_private = False
            text = (
                f"this machine is at {_list(filter(_leads_outside, addresses))} on the internet, by the word of its "
                "router or its peers: new invites name that; print one with homefires invite "
                f"{self._config.directory}, and try it from another network"
            )
            self._report(AlertRaised(level="info", code=CODE, text=text))

    def _look_at_end(self, now_s: float) -> None:
        if self._ends_s is None or now_s < self._ends_s:
            return
        kept = self._kept(float("-inf"))
        self._ends_s = None if kept is None else kept.expires  # of a newer one, by `homefires invite`
        if self._ends_s is not None and self._ends_s <= now_s:
            self._ends_s = None
            again = f"homefires invite {shlex.quote(str(self._config.directory))}"
            text = f"the newest invites have expired, and nobody can join by them; print others with: {again}"
            log.warning("%s", text)
            self._report(AlertRaised(level="warning", code="EXPIRED", text=text))

    def _kept(self, now_s: float) -> Invite | None:
        """The newest invite that was printed, if it holds."""
        with suppress(BadInvite):
            return parse(read_text(str(self._config.directory / INVITE_FILE)), now_s)
        return None

    async def _addresses(self) -> tuple[str, ...]:
        """The addresses for invites: those of loopback only if there are no others."""
        mine = [address for address in await self._node.addresses() if can_be_dialled(address)]
        beyond = [address for address in mine if not are_loopback([address])]
        return (*(beyond or mine), *self._config.also)[:MAX_ADDRESSES]

    def _make(self, addresses: tuple[str, ...]) -> list[str]:
        texts = issue_all(
            self._identity, run=self._config.spec.run.name, spec_hash=self._config.run, addrs=addresses,
            terms=self._config.terms, now_s=time.time(), checkpoint=read_checkpoint(self._config.directory),
        )  # fmt: skip
        write_atomic(self._config.directory / INVITE_FILE, texts[-1].encode(), private=True)  # it may hold a token
        self._ends_s = parse(texts[-1], float("-inf")).expires
        return texts


def lead_outside(addresses: Sequence[str]) -> bool:
    """Whether a peer in another network may get through to one of these: a name, or a public address."""
    return any(map(_leads_outside, addresses))


def _leads_outside(address: str) -> bool:
    family, host = address.split("/")[1:3]
    return family.startswith("dns") or is_global(host)


def _only_here(addresses: Sequence[str]) -> str:
    return (
        f"nobody outside your own network can dial what the invites name ({_list(addresses)}); have your router "
        "forward a TCP port to this machine, and start with --listen /ip4/0.0.0.0/tcp/PORT and --announce "
        "/ip4/ADDRESS/tcp/PORT, where ADDRESS is your router's on the internet"
    )


def _elsewhere(before: Invite) -> str:
    return (
        f"invites that were handed out before lead to {_list(before.addrs)}, and this node is there no more; start it "
        "with the --listen, --announce and --also of that time, or give people the new invite"
    )


def _list(addresses: Iterable[str]) -> str:
    return ", ".join(address.rpartition("/p2p/")[0] for address in addresses)
