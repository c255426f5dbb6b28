"""The ports of a bootstrap node: invites name them, so after a restart it takes the same ones again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from dht.atomic_files import write_atomic
from dht.errors import BadInput

PORTS_FILE = "ports"
"""In the organiser's folder: for each address to listen on that leaves its port open, the port of the first time."""

_LOOPBACK_OF = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Where a node that listens on all interfaces is sure to listen, too."""


def restore_ports(directory: Path, listen: Sequence[str]) -> tuple[str, ...]:
    """The addresses to listen on, with the ports that this folder keeps in the place of 0. Raises BadInput."""
    kept = _load(directory)
    return tuple(_with_port(address, kept[address]) if address in kept else address for address in listen)


def save_ports(directory: Path, listen: Sequence[str], addresses: Sequence[str]) -> None:
    """Keep the ports that the system has picked, as the node's `addresses` tell them; those kept before stay.

    Raises DiskFull, BadInput.
    """
    kept = _load(directory)
    picked = {address: port for address in listen if (port := _picked(address, addresses))}
    if not picked.keys() <= kept.keys():
        write_atomic(directory / PORTS_FILE, json.dumps(picked | kept, indent=1).encode())


def _picked(listen: str, addresses: Sequence[str]) -> int | None:
    """The port that stands for 0 in this address to listen on; None if it names one, or nothing tells."""
    _, family, host, transport, port, *_ = listen.split("/")
    start = f"/{family}/{_LOOPBACK_OF.get(host, host)}/{transport}/"
    found = [address for address in addresses if address.startswith(start)]
    return int(found[0].split("/")[4]) if port == "0" and found else None


def _with_port(address: str, port: int) -> str:
    _, family, host, transport, _, *rest = address.split("/")
    return "/".join(("", family, host, transport, str(port), *rest))


def _load(directory: Path) -> dict[str, int]:
    path = directory / PORTS_FILE
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_bytes())
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(isinstance(port, int) and 0 < port < 1 << 16 for port in found.values()):
        raise BadInput(f"{path} is damaged; write the port that your invites name with --listen, and remove the file")
    return found
