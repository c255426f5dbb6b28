"""What invites name, and what is said of them, for nodes at home, behind a router, and on the internet."""

from __future__ import annotations

import json
import time
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from bootstrap import invites
from bootstrap.config import BootstrapConfig, InviteTerms
from bootstrap.invites import InviteIssuer, lead_outside
from dht.addresses import LOOPBACK
from dht.identity import Identity
from dht.invite import INVITE_FILE, issue, parse
from peer.node.telemetry.event_log import EventPrinter
from peer.schema.spec import load

ORGANISER = Identity.from_seed(b"o" * 32)
ME = f"/p2p/{ORGANISER.peer_id}"
LOCAL, HOME, OUTSIDE = (f"/ip4/{host}/tcp/4001" for host in ("127.0.0.1", "192.168.1.5", "84.1.2.3"))


class HomeNode:
    """Whose router may let others in by and by."""

    def __init__(self, *addresses: str) -> None:
        self.known = addresses

    async def addresses(self) -> tuple[str, ...]:
        return tuple(address + ME for address in self.known)


class Desk:
    """A node, whoever issues its invites, and what it has printed."""

    def __init__(self, directory: Path, *addresses: str, **config: Any) -> None:
        self._out, self.directory = StringIO(), directory
        self.node = HomeNode(*addresses)
        fields = {"directory": directory, "spec": load("tiny")}
        self.issuer = InviteIssuer(
            BootstrapConfig(**(fields | config)), ORGANISER, self.node, EventPrinter(out=self._out)
        )  # type: ignore[arg-type]

    def told(self, kind: str) -> list[dict[str, Any]]:
        return [line for line in map(json.loads, self._out.getvalue().splitlines()) if line["type"] == kind]

    def kept(self) -> tuple[str, ...]:
        return parse((self.directory / INVITE_FILE).read_text(), time.time()).addrs


async def test_invites_that_lead_nobody_here_from_elsewhere_are_told(tmp_path: Path) -> None:
    desk = Desk(tmp_path, LOCAL, HOME)
    await desk.issuer.issue()
    assert desk.kept() == (HOME + ME,)
    (alert,) = desk.told("AlertRaised")
    assert (alert["code"], alert["level"]) == ("ADDRESS", "warning")
    assert HOME in alert["text"]
    assert "--announce" in alert["text"]


async def test_once_the_router_lets_others_in_the_kept_invite_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No invite is printed a second time: one may be for one peer."""
    monkeypatch.setattr(invites, "LOOK_S", 0.0)
    desk = Desk(tmp_path, LOCAL, HOME)
    await desk.issuer.issue()
    await desk.issuer.look()
    assert len(desk.told("AlertRaised")) == 1
    desk.node.known = (LOCAL, HOME, OUTSIDE)
    for _ in range(2):
        await desk.issuer.look()
    assert desk.kept() == (HOME + ME, OUTSIDE + ME)
    assert [alert["level"] for alert in desk.told("AlertRaised")] == ["warning", "info"]
    assert OUTSIDE in desk.told("AlertRaised")[1]["text"]
    assert len(desk.told("InviteIssued")) == 1


async def test_a_node_that_came_back_elsewhere_says_that_old_invites_lead_nowhere(tmp_path: Path) -> None:
    """As without the --listen of the first time. Nobody would notice before people fail to join."""
    await Desk(tmp_path, OUTSIDE).issuer.issue()
    await (again := Desk(tmp_path, OUTSIDE, HOME)).issuer.issue()
    assert again.told("AlertRaised") == []
    moved = Desk(tmp_path, OUTSIDE.replace("4001", "4002"))
    await moved.issuer.issue()
    (alert,) = moved.told("AlertRaised")
    assert (alert["code"], alert["level"]) == ("ADDRESS", "warning")
    assert f"lead to {OUTSIDE}, " in alert["text"]
    assert "the --listen, --announce and --also of that time" in alert["text"]


async def test_the_end_of_the_newest_invites_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The organiser hears what to do, unless there is a newer one by then."""
    now_s = time.time()
    monkeypatch.setattr("bootstrap.invites.time.time", lambda: now_s)
    desk = Desk(tmp_path, OUTSIDE, terms=InviteTerms(lasts_s=3600.0))
    await desk.issuer.issue()
    await desk.issuer.look()
    newer = issue(ORGANISER, run="tiny", spec_hash=b"h" * 32, addrs=(OUTSIDE + ME,), expires=now_s + 7200.0)
    (tmp_path / INVITE_FILE).write_text(newer)
    now_s += 3601.0
    await desk.issuer.look()
    assert desk.told("AlertRaised") == []
    now_s += 3600.0
    for _ in range(2):
        await desk.issuer.look()
    (alert,) = desk.told("AlertRaised")
    assert (alert["code"], alert["level"]) == ("EXPIRED", "warning")
    assert alert["text"].endswith(f"print others with: homefires invite {tmp_path}")


@pytest.mark.parametrize(
    ("addresses", "config"),
    [
        ((LOCAL, HOME, OUTSIDE), {}),
        (("/dns4/my-host.example/tcp/4001",), {}),
        ((LOCAL, HOME), {"also": (OUTSIDE + ME,)}),
        ((LOCAL,), {"listen": LOOPBACK}),
    ],
)
async def test_who_can_be_reached_or_wants_nobody_hears_nothing(
    tmp_path: Path, addresses: tuple[str, ...], config: dict[str, Any]
) -> None:
    desk = Desk(tmp_path, *addresses, **config)
    await desk.issuer.issue()
    assert len(desk.told("InviteIssued")) == 1
    assert desk.told("AlertRaised") == []


@pytest.mark.parametrize(
    ("address", "outside"),
    [
        (HOME, False), ("/ip4/172.17.0.1/tcp/1", False), ("/ip4/100.64.0.1/tcp/1", False), (LOCAL, False),
        ("/ip6/fe80::1/tcp/1", False), (OUTSIDE, True), ("/ip6/2a00::1/tcp/1", True), ("/dnsaddr/x.example", True),
    ],
)  # fmt: skip
def test_which_addresses_lead_outside(address: str, outside: bool) -> None:
    assert lead_outside([address]) == outside
