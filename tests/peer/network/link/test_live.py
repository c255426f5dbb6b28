"""What a link obeys while it runs: how much it gives to newcomers, and how long a chain it keeps."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from dht.identity import Identity
from peer.network.link.link import Chains, _dialable, _newcomers_bps
from peer.network.sync.blob_server import BUSY, CHUNK, MANIFEST, ask_chunk
from peer.network.sync.chain_status import CHAIN_STATUS, ChainStatus, ask_chain_status
from peer.schema.live_settings import LiveSettings
from peer.schema.settings import PeerSettings
from tests.peer.network.sync.donors import Network


async def test_newcomers_get_what_the_owner_allows_now(tmp_path: Path) -> None:
    """Nothing at 0: no offer, no manifest, no chunk; and all of it again later."""
    network = Network()
    network.add(tmp_path, "donor", 4, 2)

    async def ask(name: str, request: bytes) -> Any:
        return await network.ask("donor", name, 5.0, 1 << 20, request)

    async def offers() -> int:
        return len(ChainStatus.from_bytes(await ask(CHAIN_STATUS, ask_chain_status(()))).offers)

    (offer,) = ChainStatus.from_bytes(await ask(CHAIN_STATUS, ask_chain_status(()))).offers
    assert await ask(MANIFEST, offer.manifest)
    network.donors["donor"].allow(0)
    assert await offers() == 0
    assert await ask(MANIFEST, offer.manifest) is None
    assert await ask(CHUNK, ask_chunk(offer.manifest, 0)) == BUSY
    network.donors["donor"].allow(10**10)
    assert await offers() == 1
    assert len(await ask(CHUNK, ask_chunk(offer.manifest, 0))) > 1


def test_newcomers_get_no_more_than_the_line_carries() -> None:
    assert _newcomers_bps(PeerSettings(upload_mbps=3, newcomers_mbps=100)) == 3_000_000
    assert _newcomers_bps(PeerSettings(newcomers_mbps=0)) == 0


def test_a_chain_is_as_long_as_its_owner_wants_now(tmp_path: Path) -> None:
    """Of the one that is in use; what was left behind is not touched any more."""
    chosen = LiveSettings(PeerSettings(chain_mb=100))
    chains = Chains(tmp_path, *[None] * 4, chosen)  # type: ignore[arg-type]
    disk: Any = SimpleNamespace(quota_bytes=0)
    with chains.within_quota(disk):
        assert disk.quota_bytes == 10**8
        chosen.change({"disk_gb": 0.1})
        assert disk.quota_bytes == 50_000_000
    chosen.change({"disk_gb": 0})
    assert disk.quota_bytes == 50_000_000


def test_a_peer_publishes_addresses_that_others_believe() -> None:
    """One through a relay is too long: a HEAD with it would be refused by everybody, and the peer not be seen."""
    mine, relay = (Identity.from_seed(letter * 32).peer_id for letter in (b"m", b"r"))
    direct = f"/ip4/203.0.113.5/tcp/31337/p2p/{mine}"
    found = (
        f"/ip4/127.0.0.1/tcp/31337/p2p/{mine}",
        f"/ip4/198.51.100.7/tcp/31337/p2p/{relay}/p2p-circuit/p2p/{mine}",
        f"/dns/{'a' * 120}.example/tcp/31337/p2p/{mine}",
        direct,
    )
    assert _dialable(found) == (direct,)
    assert _dialable(found[:-1]) == found[:1], "those of this machine if there are no others"
