"""`python -m peer introduce INVITE [--peer ADDR …]`: what a person must know about the run of an invite to join it.

It dials the nodes of the invite, and these peers, with a key that is thrown away, fetches the spec, and leaves. It
takes no part and writes nothing that stays. It prints one JSON object.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dht.addresses import are_loopback
from dht.errors import BadSpec
from dht.identity import Identity
from dht.invite import Invite, parse
from dht.node import NetworkConfig, open_node
from dht.reach.peer_store import PeerStore
from peer.network.sync.run_discovery import find_spec
from peer.node.host.gpu import memories_bytes, power_limit_w
from peer.node.host.processes import available_bytes

MOST_S = 20.0
"""For looking at a spec, which takes less than one."""


def main(text: str, peers: Sequence[str]) -> int:
    """Print what the run is. Raises BadInvite, Unreachable, BadSpec."""
    import uvloop

    invite = parse(text, time.time())
    with tempfile.TemporaryDirectory(prefix="hf-") as folder:
        spec = uvloop.run(fetch(invite, peers, Path(folder)))
    gpus = () if version("torch").endswith("+cpu") else memories_bytes()  # such a torch trains on none of them
    found = facts_of(invite.run, invite.organiser, spec, power_limit_w(), gpus, available_bytes())
    print(json.dumps(found | {"spec": spec}, allow_nan=False))
    return 0


async def fetch(invite: Invite, peers: Sequence[str], folder: Path) -> str:
    """The spec's text, from a node of the invite or one of these; `folder` is for a key and sockets. Raises
    Unreachable and BadSpec."""
    PeerStore(folder / "peers.json").note_named(peers)
    Identity.load_or_create(folder / "identity.key")
    config = NetworkConfig(
        run=invite.spec_hash, identity_path=folder / "identity.key", socket_folder=folder / "run", listen=(),
        bootstrap=invite.addrs, remember=folder / "peers.json", public=not are_loopback((*invite.addrs, *peers)),
        client_mode=True,
    )  # fmt: skip
    async with open_node(config) as node:
        return await find_spec(node, invite, folder)


def facts_of(
    run: str, organiser: str, spec: str, power_w: float | None, gpus: Sequence[int] = (), main_bytes: int = 0
) -> dict[str, Any]:
    """All that a consent screen says of a spec's text, numbers as numbers; see `peer.tools.watch.run_facts`.

    Raises BadSpec, also for what takes more time or memory to look at than it may.
    """
    asked = {
        "run": run, "organiser": organiser, "spec": spec, "power_w": power_w, "gpus": list(gpus),
        "main_bytes": main_bytes,
    }  # fmt: skip
    # Each thread of OpenBLAS would take address space, of which there is little.
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    try:
        told = subprocess.run(
            [sys.executable, "-m", "peer.tools.watch.run_facts"], input=json.dumps(asked), capture_output=True,
            text=True, env=environment, timeout=MOST_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise BadSpec(f"the run's spec was looked at for {MOST_S:.0f} s without an end; it is refused") from error
    if told.returncode == BadSpec.exit_code:
        raise BadSpec(told.stderr.strip())
    if told.returncode != 0:
        why = next(reversed(told.stderr.strip().splitlines()), f"code {told.returncode}")
        raise BadSpec(f"the run's spec could not be looked at within its limits of memory and time ({why})")
    facts: dict[str, Any] = json.loads(told.stdout)
    return facts
