"""`python -m tests.benchmarks.rivals.ddp FOLDER`: one rank of torch's DistributedDataParallel over gloo.

Every step averages the float32 gradients of all ranks: what one uses inside a data centre. The exchange counts into the
time that a step is declared to keep the device busy, as if all of it overlapped the backward pass: no real one could.
"""

from __future__ import annotations

import datetime
import os
import sys
import time
from pathlib import Path

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from dht.process import die_with_parent
from peer.training.train.backend import SingleDevice
from tests.benchmarks.rivals.trainee import LAST, Orders, Trainee, all_reduce_floor_s, await_go, rest_until, tell

PATIENCE = datetime.timedelta(seconds=300)
FLOAT_BYTES = 4


def main() -> int:
    """Make `rounds` steps, which is what a round is here."""
    die_with_parent()
    folder = Path(sys.argv[1])
    orders = Orders.read(folder)
    os.environ["GLOO_SOCKET_IFNAME"] = orders.device
    join(orders)
    trainee = Trainee(orders)
    average_gradients(trainee.device)
    floor_s = all_reduce_floor_s(orders, FLOAT_BYTES * trainee.flat.size)
    tell("ready")
    await_go(folder)
    for number in range(orders.rounds):
        began, began_at = time.time(), time.monotonic()
        made = trainee.step(*divmod(number, trainee.spec.round.steps))
        rest_until(began_at + floor_s)
        tell("step", number=number, began=began, tokens=made.tokens)
    if orders.founder == 0:
        trainee.save(folder / LAST)
    tell("done")
    dist.destroy_process_group()
    return 0


def join(orders: Orders) -> None:
    """Founder 0 keeps the store at which the others meet; it says where."""
    first = orders.founder == 0
    host, _, port = orders.meet.partition(":") if orders.meet else (orders.address, ":", "0")
    store = dist.TCPStore(host, int(port), is_master=first, wait_for_workers=False, timeout=PATIENCE)
    if first:
        tell("meet", where=f"{orders.address}:{store.port}")
    assert orders.founder is not None
    dist.init_process_group(
        "gloo", store=store, rank=orders.founder, world_size=len(orders.peers), timeout=PATIENCE
    )  # fmt: skip


def average_gradients(device: SingleDevice) -> None:
    """Put the stock wrapper around what computes the loss. All ranks have built the same parameters, so the first does
    not send its own."""
    whole = device._whole
    whole._net = DistributedDataParallel(whole._net, init_sync=False, broadcast_buffers=False)


if __name__ == "__main__":
    sys.exit(main())
