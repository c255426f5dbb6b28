"""`python -m tests.benchmarks.rivals.open_diloco FOLDER`: one peer of a blocking DiLoCo on hivemind's stock averager.

OpenDiLoCo's scheme (arXiv:2407.07852), written anew: H inner steps, wait until all peers of whom the DHT knows have
made theirs, average the pseudo-gradients with hivemind's `DecentralizedAverager` in float16 with equal weights, make
the outer step, go on. In its favour: the second averaging of all parameters that it makes in every round is left out,
groups of the wanted size begin at once, and matchmaking begins before the last peer is ready. Who falls behind, or
comes anew, loads the state of another. An averaging that fails leaves everybody with their own pseudo-gradient, as
there.

With `--bootstrap ADDRESS` it is a DHT node at which the others meet, and nothing else.
"""

from __future__ import annotations

import signal
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from hivemind import DHT
from hivemind.averaging import DecentralizedAverager
from hivemind.compression import Float16Compression
from hivemind.p2p import P2P
from hivemind.utils import get_dht_time
from torch import Tensor

from dht.process import die_with_parent
from peer.training.outer.outer_step import momentum_at
from tests.benchmarks.rivals.trainee import (
    LAST,
    LOOK_S,
    Orders,
    Trainee,
    all_reduce_floor_s,
    await_go,
    rest_until,
    save_vector,
    tell,
)  # fmt: skip
from tests.outer_step import outer_step

PREFIX = "rival"
MATCHMAKING_S = 5.0
"""hivemind's default for an averager: a group that is not full waits so long for others."""
AVERAGING_S = 60.0
"""Until a group must be found, and again until it must be done: hivemind's default for its optimizer."""
WAIT_FOR_ALL_S = 600.0
"""OpenDiLoCo's default."""
EXPIRES_S = 60.0
"""hivemind's default for what peers tell of their progress: a dead peer is waited for so long."""
POLL_S = 0.5
"""hivemind's shortest time between two looks at it."""
LOAD_S = 120.0
HALF_BYTES = 2


class Progress:
    """Where peers are, told by the DHT: {peer: (round, Unix time at which it will have made its steps)}."""

    def __init__(self, dht: DHT, me: str) -> None:
        self._dht, self._me, self._key = dht, me, f"{PREFIX}_progress"

    def tell(self, round: int, done_at: float) -> None:
        """Without waiting for it."""
        self._store((round, done_at))

    def leave(self) -> None:
        """Nobody waits for me any more."""
        self._store(None)

    def others(self) -> dict[str, tuple[int, float]]:
        """Those whose word has not expired."""
        found = self._dht.get(self._key, latest=True)
        rows = found.value if found is not None and isinstance(found.value, dict) else {}
        return {peer: tuple(row.value) for peer, row in rows.items() if peer != self._me and row.value is not None}

    def _store(self, value: Any) -> None:
        self._dht.store(
            self._key, subkey=self._me, value=value, expiration_time=get_dht_time() + EXPIRES_S, return_future=True
        )


class StateSharing(DecentralizedAverager):
    """The stock averager, which lets others load the outer state: the hook that it has for this."""

    _rpc_handlers = _stub_type = None  # else hivemind would take those of the class above for this one
    state: Any = None
    """A function that gives (round, [θ, m])."""

    def get_current_state(self) -> tuple[Any, Sequence[Tensor], Any]:
        """What a newcomer gets."""
        round, tensors = self.state()
        return {"round": round}, tensors, None


class Peer:
    """One peer: its outer state, and its rounds."""

    def __init__(self, orders: Orders, folder: Path, dht: DHT) -> None:
        self._orders, self._folder = orders, folder
        self._trainee = Trainee(orders)
        self._flat, self.spec = self._trainee.flat, self._trainee.spec
        self.round = 0
        self._theta = self._flat.new()
        self._momentum = torch.zeros_like(self._theta)
        self._lock = threading.Lock()
        self._averager = StateSharing(
            [torch.zeros_like(self._theta)], dht, prefix=PREFIX, target_group_size=orders.most or len(orders.peers),
            min_matchmaking_time=MATCHMAKING_S, allreduce_timeout=AVERAGING_S, compression=Float16Compression(),
            start=False,
        )  # fmt: skip
        self._averager.state = self._state
        self._averager.run_in_background(await_ready=True, timeout=AVERAGING_S)
        self._progress = Progress(dht, orders.me)
        self._floor_s = all_reduce_floor_s(orders, HALF_BYTES * self._flat.size)
        self.stopped = False

    def _state(self) -> tuple[int, list[Tensor]]:
        with self._lock:
            return self.round, [self._theta.clone(), self._momentum.clone()]

    # ---- a round ----

    def make_round(self) -> None:
        """H inner steps, and their averaging; or, if the others are ahead, their state instead."""
        began, tokens, began_at = time.time(), 0, time.monotonic()
        steps = self.spec.steps_in(self.round)
        for step in range(steps):
            if self.stopped:
                return
            tokens += self._trainee.step(self.round, step).tokens
            each_s = (time.monotonic() - began_at) / (step + 1)
            self._progress.tell(self.round, time.time() + each_s * (steps - step - 1))
        trained = time.time()
        if not self._wait_for_all():
            self.catch_up()
            return
        waited, group, met = time.time(), *self._average()
        averaged = time.time()
        self._apply()
        tell(
            "round", number=self.round, began=began, trained=trained, waited=waited, met=met, averaged=averaged,
            tokens=tokens, group=group,
        )  # fmt: skip

    def _wait_for_all(self) -> bool:
        """Until the others need no longer than matchmaking does; False if one of them is in a later round."""
        deadline = time.monotonic() + WAIT_FOR_ALL_S
        while time.monotonic() < deadline and not self.stopped:
            others = self._progress.others()
            if any(round > self.round for round, _ in others.values()):
                return False
            behind = [done_at for round, done_at in others.values() if round == self.round]
            if max(behind, default=0.0) - time.time() < MATCHMAKING_S:
                return True
            time.sleep(POLL_S)
        return True

    def _average(self) -> tuple[int, float]:
        """Average what was learned, in place; (members of the group, Unix time at which it was complete)."""
        with self._averager.get_tensors() as (mine,):
            torch.sub(self._theta, self._flat.new(), out=mine)
        # Twice, since the last peer may come a moment after the time that it has told.
        scheduled = get_dht_time() + 2 * MATCHMAKING_S
        control = self._averager.step(scheduled_time=scheduled, timeout=AVERAGING_S, wait=False)
        while not control.began_allreduce and not control.done():
            time.sleep(LOOK_S)
        met, met_at = time.time(), time.monotonic()
        try:
            group = len(control.result(2 * AVERAGING_S))
        except Exception as error:  # whatever: OpenDiLoCo logs it and goes on with what the tensors hold
            tell("failed", why=repr(error), number=self.round)
            group = 1
        rest_until(met_at + self._floor_s)
        return group, met

    def _apply(self) -> None:
        with self._averager.get_tensors() as (mean,), self._lock:
            rate, factor = self.spec.outer.learning_rate, momentum_at(self.spec, self.round)
            outer_step(self._theta, self._momentum, mean, rate, factor)
            self.round += 1
        self._flat.copy_from(self._theta)
        self._progress.tell(self.round, time.time() + 3600.0)
        save_vector(self._folder / f"theta-{self.round:04d}.npy", self._theta.numpy())

    def catch_up(self) -> None:
        """Take over another peer's state; what was learned since the last round is given up."""
        began = time.time()
        loaded = self._averager.load_state_from_peers(timeout=LOAD_S)
        if loaded is None:
            tell("failed", why="no peer gives its state", number=self.round)
            time.sleep(POLL_S)
            return
        metadata, (theta, momentum) = loaded
        with self._lock:
            self.round = metadata["round"]
            self._theta.copy_(theta)
            self._momentum.copy_(momentum)
        self._flat.copy_from(self._theta)
        tell("loaded", number=self.round, began=began)

    def close(self) -> None:
        """Leave politely."""
        save_vector(self._folder / LAST, self._theta.numpy())
        self._progress.leave()
        self._averager.shutdown()


def main() -> int:
    """Take part for as many rounds as was ordered, or until SIGTERM."""
    die_with_parent()
    if sys.argv[1] == "--bootstrap":
        return keep_meeting_place(sys.argv[2])
    folder = Path(sys.argv[1])
    orders = Orders.read(folder)
    dht = open_dht(orders.address, [orders.meet])
    peer = Peer(orders, folder, dht)

    def stop(*_: Any) -> None:
        peer.stopped = True

    signal.signal(signal.SIGTERM, stop)
    tell("ready")
    await_go(folder)
    if orders.founder is None:
        peer.catch_up()
    while not peer.stopped and (orders.rounds == 0 or peer.round < orders.rounds):
        peer.make_round()
    tell("done")
    peer.close()
    dht.shutdown()
    return 0


def open_dht(address: str, meet: list[str]) -> DHT:
    """A node that listens on this address alone and asks nobody to relay."""
    P2P._UNIX_SOCKET_PREFIX = f"/unix{tempfile.gettempdir()}/hivemind-"  # a folder that goes when the benchmark ends
    return DHT(
        initial_peers=meet, host_maddrs=[f"/ip4/{address}/tcp/0"], use_relay=False, auto_nat=False, nat_port_map=False,
        start=True,
    )  # fmt: skip


def keep_meeting_place(address: str) -> int:
    """Until SIGTERM."""
    stopped = threading.Event()
    dht = open_dht(address, [])
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    tell("meet", where=str(dht.get_visible_maddrs()[0]))
    stopped.wait()
    dht.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
