"""Our own swarm on lines that are shaped from outside, and with names that are the same in every run."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from dht.identity import Identity
from peer.testing.child_process import Child
from peer.testing.process_swarm import LOOPBACK, RealSwarm
from tests.benchmarks.rivals.lines import Place


def identity_of(number: int) -> Identity:
    """Of peer `number`, in every run: who reads which shard is decided by names."""
    return Identity.from_seed(hashlib.blake2b(f"tests.benchmarks/{number}".encode(), digest_size=32).digest())


class PlacedSwarm(RealSwarm):
    """A swarm whose peers have these names; with `places` each in its own, and the bootstrap node in the last."""

    def __init__(
        self,
        directory: Path,
        peers: int,
        spec: str,
        sets: Sequence[str] = (),
        settings: Sequence[str] = (),
        *,
        own: Mapping[int, Sequence[str]],
        delay_s: float = 0.0,
        places: Sequence[Place] = (),
        paced: bool = True,
        hurry: Mapping[str, float] | None = None,
    ) -> None:
        self._places = places
        super().__init__(
            directory, peers, spec, sets, settings, own=own, paced=paced, delay_s=delay_s, hurry=hurry
        )  # fmt: skip

    def join(self) -> int:
        """Start one more peer, a newcomer; returns its index at once."""
        folder = self.directory / f"peer-{self.size}"
        folder.mkdir(mode=0o700, exist_ok=True)
        identity_of(self.size).save(folder / "identity.key")
        return super().join()

    def _child_of(self, argv: Sequence[str], log: Path) -> Child:
        if self._places:
            name = log.parent.name
            place = self._places[-1 if name == "bootstrap" else int(name.removeprefix("peer-"))]
            argv = [*place.prefix, *(word.replace(LOOPBACK, f"/ip4/{place.address}/tcp/0") for word in argv)]
        return super()._child_of(argv, log)
