"""`python -m peer introduce INVITE [--peer ADDR …]`: what the run of an invite is, as far as one must know it to join.

It dials the nodes of the invite, and these peers, with a key that is thrown away, fetches the spec, and leaves: it
takes no part, and writes nothing that lasts. One JSON object on stdout.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from dht.addresses import are_loopback
from dht.errors import BadInput
from dht.identity import Identity, fingerprint_words
from dht.invite import Invite, parse
from dht.node import NetworkConfig, open_node
from dht.reach.peer_store import PeerStore
from peer import spec as specs
from peer.doctor.host import needs_of
from peer.host.gpu import power_limit_w
from peer.plan.coefficients import shipped
from peer.plan.model_shape import shape_of
from peer.plan.peer_set import HOME_FLOPS, MAX_MEMBERS, Machine, uniform_peers
from peer.plan.round_cost import predict
from peer.settings import PeerSettings
from peer.spec import RunSpec
from peer.sync.run_discovery import find_spec

LICENCES = {
    "stdlib": "the Python Software Foundation licence",
    "files": "whatever holds for these files on your machine",
    "hub": "see the page of the data set",
}
"""The spec names no licence; by `data.source`, where it stands."""


def main(text: str, peers: Sequence[str]) -> int:
    """Print what the run is. Raises BadInvite, Unreachable, BadSpec."""
    import uvloop

    invite = parse(text, time.time())
    with tempfile.TemporaryDirectory(prefix="hf-") as folder:
        spec = uvloop.run(fetch(invite, peers, Path(folder)))
    print(json.dumps(facts(invite, spec, power_limit_w()), allow_nan=False))
    return 0


async def fetch(invite: Invite, peers: Sequence[str], folder: Path) -> RunSpec:
    """The spec, from a node of the invite or one of these; `folder` is for a key and sockets. Raises Unreachable."""
    PeerStore(folder / "peers.json").note_named(peers)
    Identity.load_or_create(folder / "identity.key")
    config = NetworkConfig(
        run=invite.spec_hash, identity_path=folder / "identity.key", socket_folder=folder / "run", listen=(),
        bootstrap=invite.addrs, remember=folder / "peers.json", public=not are_loopback((*invite.addrs, *peers)),
        client_mode=True,
    )  # fmt: skip
    async with open_node(config) as node:
        return specs.parse(await find_spec(node, invite, folder))


def facts(invite: Invite, spec: RunSpec, power_w: float | None) -> dict[str, Any]:
    """All that a consent screen says, numbers as numbers. `power_w`: what the GPU may draw, None without one."""
    needs = needs_of(spec, PeerSettings().chain_bytes)
    return {
        "v": 1, "run": invite.run, "organiser": invite.organiser, "fingerprint": fingerprint_words(invite.organiser),
        "architecture": spec.model.architecture, "parameters": needs.parameters, "context": spec.model.context,
        "rounds": spec.run.rounds, "data": data_in_words(spec), "licence": LICENCES[spec.data.source],
        "device_bytes": needs.device, "main_bytes": needs.main, "disk_bytes": needs.disk,
        "least_disk_bytes": needs.least_disk, "power_w": power_w, **_traffic(spec),
    }  # fmt: skip


def data_in_words(spec: RunSpec) -> str:
    table = spec.data
    if table.source == "stdlib":
        return "the source text of the Python standard library that is on your machine"
    if table.source == "files":
        return f"text files below {table.path} on your machine"
    subset = f" ({table.subset})" if table.subset else ""
    return f"the data set {table.path}{subset} of huggingface.co, streamed while it trains"


def _traffic(spec: RunSpec) -> dict[str, float | None]:
    """Bytes that a peer sends, and as many it takes in, by the planner for as many peers as found the run."""
    unknown: dict[str, float | None] = {"round_bytes": None, "day_bytes": None, "round_s": None, "assumed_flops": None}
    with suppress(BadInput):
        members = min(MAX_MEMBERS, max(2, spec.run.founders))
        cost = predict(shape_of(spec), spec, uniform_peers(members, Machine(name="a home GPU")), shipped())
        sent = cost.traffic.up_bytes
        return {
            "round_bytes": sent, "day_bytes": sent * 86400 / cost.round_s, "round_s": cost.round_s,
            "assumed_flops": HOME_FLOPS,
        }  # fmt: skip
    return unknown
