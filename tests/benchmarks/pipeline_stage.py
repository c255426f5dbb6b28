"""`python -m tests.benchmarks.pipeline_stage FOLDER`: one home of a cluster, on a line of its own.

Stages, the line between trainer and link, and the flow between homes are those of the product; but trainer and link are
threads of one process. The device is paced: it sleeps for most of a pass, so that two cores can be a whole cluster.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import torch
from torch import Tensor
from torch.autograd.graph import register_multi_grad_hook

from dht.node import NetworkConfig, Node, open_node
from dht.process import die_with_parent
from peer.network.link.flow_channel import FlowEnd, FlowLinkEnd
from peer.parallel.pipeline.flight_port import FlightPort
from peer.parallel.pipeline.lead_stage import LeadStage
from peer.parallel.pipeline.span_choice import choose_spans
from peer.parallel.pipeline.stage import StageDevice, StagePlace
from peer.parallel.pipeline.worker_stage import WorkerStage
from peer.planning.plan.cluster_cost import layout_of
from peer.planning.plan.model_shape import shape_of
from peer.schema.ipc import HomeOffer
from peer.schema.spec import load
from peer.training.data.open_source import open_source
from peer.training.data.sampler import IdleSampler, ShardSampler
from tests.benchmarks.placed import identity_of
from tests.benchmarks.rivals.trainee import Orders, await_go, rest_until, tell
from tests.stepping import never

TAG = b"pipeline" * 2
BACKWARD = 2
"""Times as long as the forward pass before it (arXiv:2001.08361, section 2.1)."""
WARM_LOOKS = 50
"""The first step is a short one: a stream begins slowly. A lead looks before every flight, and whenever one is back."""
FORWARDS = 2 + BACKWARD
"""What a flight costs a stage, in forward passes: on the way back it is computed again. The last stage saves one."""
CPU = torch.device("cpu")


class PacedDevice(StageDevice):
    """A device that takes `forward_s` to compute a micro-batch forward, and twice that backward."""

    _forward_s = _until = 0.0

    def pace(self, forward_s: float) -> None:
        """From now on."""
        self._forward_s = forward_s
        register_multi_grad_hook(self._parameters, lambda _: rest_until(self._until))  # runs when backward is done

    def _computed(self, entering: Tensor, tokens_BT: Tensor, number: int, *, measures: bool = False) -> Tensor:
        with self._paced():
            return super()._computed(entering, tokens_BT, number, measures=measures)

    def _loss_of(self, entering: Tensor, tokens_BT: Tensor, number: int, *, measures: bool = False) -> Tensor:
        with self._paced():
            return super()._loss_of(entering, tokens_BT, number, measures=measures)

    @contextmanager
    def _paced(self) -> Iterator[None]:
        until = time.monotonic() + self._forward_s
        yield
        rest_until(until)
        self._until = until + BACKWARD * self._forward_s


class PacedLead(PacedDevice, LeadStage):
    pass


class PacedWorker(PacedDevice, WorkerStage):
    pass


class CountedPort:
    """Counts what a stage sends."""

    def __init__(self, port: FlightPort) -> None:
        self._port = port
        self.sent_bytes = 0

    def send(self, to: str, frame: bytes) -> None:
        self.sent_bytes += len(frame)
        self._port.send(to, frame)

    def receive(self, timeout_s: float) -> tuple[str, bytes] | None:
        return self._port.receive(timeout_s)


def in_order(homes: Sequence[str]) -> list[HomeOffer]:
    """Offers of homes of which nothing is known, which are given their stages in this order."""
    return [HomeOffer(home, home, 0.0, 0.0, 0.0) for home in homes]


def train(orders: Orders, folder: Path, port: FlightPort) -> None:
    """Make `rounds` steps with the others. `step_s` is that of a forward pass of one micro-batch."""
    torch.set_num_threads(1)
    spec = load(orders.spec)
    counted, homes = CountedPort(port), len(orders.peers)
    assignment = choose_spans(layout_of(shape_of(spec), spec), in_order(orders.peers), homes, 1, "int8")
    place = StagePlace(assignment=assignment, me=orders.me, port=counted)
    stage: PacedLead | PacedWorker
    if orders.founder == 0:
        batches = ShardSampler(open_source(spec, spec.data.path), spec, orders.me, (orders.me,), {})
        stage = PacedLead(spec, place, batches, CPU, lambda smaller: None, lambda: None, folder)
    else:
        stage = PacedWorker(spec, place, IdleSampler(), CPU, folder)
    stage.pace(orders.step_s)
    assert stage.anchor.round == 0, "made before the first step"
    tell("ready")
    await_go(folder)
    for number in range(orders.rounds):
        began, sent = time.time(), counted.sent_bytes
        made = stage.step(0, number, _after(WARM_LOOKS) if orders.founder == 0 and number == 0 else never)
        tell("step", began=began, tokens=made.tokens, loss=made.loss, sent=counted.sent_bytes - sent)
    tell("done")


def _after(looks: int) -> Callable[[], bool]:
    """Whether it was asked so often."""
    asked = count(1)
    return lambda: next(asked) > looks


async def live(orders: Orders, folder: Path) -> None:
    """A node, and a stage beside it, until SIGTERM."""
    assert orders.founder is not None
    folder.joinpath("run").mkdir(exist_ok=True)
    identity_of(orders.founder).save(folder / "identity.key")
    config = NetworkConfig(
        run=load(orders.spec).digest(), identity_path=folder / "identity.key", socket_folder=folder / "run",
        listen=(f"/ip4/{orders.address}/tcp/0",), bootstrap=(orders.meet,) if orders.meet else (),
        upload_bps=orders.floor_bps,
    )  # fmt: skip
    async with open_node(config) as node:
        if not orders.meet:
            tell("meet", where=(await node.addresses())[0])
        mine, theirs = socket.socketpair()
        end = FlowLinkEnd(theirs)
        node.flow.listen(end.send, _cut)
        for peer in orders.peers:
            if peer != orders.me:
                node.flow.admit(peer, TAG)
        passing = asyncio.create_task(_pass_on(end, node))
        await asyncio.to_thread(train, orders, folder, FlowEnd(mine))
        await passing


async def _pass_on(end: FlowLinkEnd, node: Node) -> None:
    while True:
        await node.flow.send(*await end.receive())


def _cut(peer: str, why: str) -> None:
    raise AssertionError(f"the way to {peer} is cut: {why}")


def main() -> int:
    die_with_parent()
    folder = Path(sys.argv[1])
    asyncio.run(live(Orders.read(folder), folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
