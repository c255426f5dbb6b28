"""Two ranks, and a process whose step waits for one that is stopped: python -m tests.peer.parallel.ranks.stranded_lead
FOLDER"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

from peer.parallel.fsdp.rank_messages import Backward, RankSetup
from peer.parallel.fsdp.shared_parameters import Arena
from peer.parallel.ranks.rank_group import RankGroup
from peer.planning.plan.sharding_strategy import Sharding
from peer.schema.spec import RunSpec, dump, load
from peer.testing.child_process import HANG_S
from peer.training.model.build import build_meta
from peer.training.model.flat_parameters import FlatParameters

RANKS = 2
INT32_BYTES = 4


def setups(spec: RunSpec) -> list[RankSetup]:
    sizes = tuple(layer.size for layer in FlatParameters(build_meta(spec)).layers)
    return [
        RankSetup(
            spec=dump(spec), rank=rank, ranks=RANKS, device="cpu", sharding=Sharding.FULL, group=0, offloads=False,
            rendezvous="", sizes=sizes, payload_bytes=1 << 20, threads=1, begins=True,
        )
        for rank in range(RANKS)
    ]  # fmt: skip


def start(spec: RunSpec, directory: Path) -> tuple[RankGroup, Arena]:
    told = setups(spec)
    arena = Arena.create(told[0].sizes, told[0].payload_bytes, None)
    return RankGroup(told, arena.file, directory), arena


def batch(spec: RunSpec) -> Backward:
    """One row, which all ranks compute."""
    row = bytes(INT32_BYTES * (spec.model.context + 1))
    return Backward(tokens=row, rows=1, scale=1 / RANKS, seed=1)


def main(directory: Path) -> None:
    """The other rank waits, too, in a collective operation."""
    spec = load("micro")
    group, _ = start(spec, directory)
    os.kill(group.pids[1], signal.SIGSTOP)
    threading.Thread(target=group.step, args=(batch(spec),), daemon=True).start()
    print("ready", flush=True)
    threading.Event().wait(HANG_S)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
