"""What every rival's peer has in common with ours: model, data, inner optimizer and schedule, and a device as slow."""

from __future__ import annotations

import dataclasses
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from peer.schema.spec import load
from peer.training.data.open_source import open_source
from peer.training.data.sampler import ShardSampler
from peer.training.model.build import build
from peer.training.model.flat_parameters import FlatParameters
from peer.training.train.backend import SingleDevice
from peer.training.train.inner_loop import InnerStep

ORDERS = "orders.json"
GO = "go"
"""A file of this name, in the folder above a peer's, lets all of them begin."""
GO_S, LOOK_S = 300.0, 0.02
FIRST, LAST = "first.npy", "last.npy"


@dataclass(frozen=True, kw_only=True)
class Orders:
    """What one peer of a rival is to do. Lies in its folder as JSON."""

    spec: str
    """Path."""
    peers: tuple[str, ...]
    """Names of all founders: they decide who reads which shard."""
    me: str
    founder: int | None
    """Its place among them; None for a newcomer."""
    step_s: float
    """What an inner step keeps its device busy."""
    rounds: int
    """0: until it is stopped."""
    address: str
    device: str
    floor_bps: float
    """See `Lines`."""
    meet: str = ""
    """Where the others can be reached."""
    most: int = 0
    """The largest group: who averages waits for no more than these. 0: the founders."""

    def write(self, folder: Path) -> None:
        """For the peer that runs in this folder."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / ORDERS).write_text(json.dumps(dataclasses.asdict(self)))

    @classmethod
    def read(cls, folder: Path) -> Orders:
        """The inverse of `write`."""
        table = json.loads((folder / ORDERS).read_text())
        return cls(**table | {"peers": tuple(table["peers"])})


class Trainee:
    """One peer's model, data and inner loop: those of the product."""

    def __init__(self, orders: Orders) -> None:
        torch.set_num_threads(1)
        self.spec = load(orders.spec)
        self._step_s = orders.step_s
        model = build(self.spec)
        self.flat = FlatParameters(model)
        readers = orders.peers if orders.founder is not None else (*orders.peers, orders.me)
        batches = ShardSampler(open_source(self.spec, self.spec.data.path), self.spec, orders.me, readers, {})
        self.device = SingleDevice(model, self.spec, batches, torch.device("cpu"))

    def step(self, round: int, step: int) -> InnerStep:
        """One inner step, which keeps the device busy for as long as was declared: waiting inside it counts."""
        began_at = time.monotonic()
        made = self.device.step(round, step)
        rest_until(began_at + self._step_s)
        return made

    def save(self, path: Path) -> None:
        """The parameters as they are, one float32 vector; whole, or not there."""
        save_vector(path, self.flat.new().numpy())


def save_vector(path: Path, values: np.ndarray[Any, Any]) -> None:
    """Whole, or not there."""
    scratch = path.with_suffix(".new")
    with scratch.open("wb") as file:
        np.save(file, values)
    scratch.rename(path)


def rest_until(at: float) -> None:
    """By the monotonic clock."""
    time.sleep(max(0.0, at - time.monotonic()))


def all_reduce_floor_s(orders: Orders, payload_bytes: int) -> float:
    """How long one peer's part of averaging `payload_bytes` takes its uplink, if nothing else holds it back.

    2 (n − 1) / n of them leave each peer, in a ring as in a butterfly.
    """
    if not orders.floor_bps:
        return 0.0
    many = len(orders.peers)
    return 2 * (many - 1) / many * payload_bytes * 8 / orders.floor_bps


def tell(what: str, **more: Any) -> None:
    """One line of JSON on stdout."""
    print(json.dumps({"t": time.time(), "what": what} | more), flush=True)


def await_go(folder: Path) -> None:
    """Until all may begin. Raises TimeoutError."""
    deadline = time.monotonic() + GO_S
    while not (folder.parent / GO).exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"nobody said `{GO}` within {GO_S:.0f} s")
        time.sleep(LOOK_S)
