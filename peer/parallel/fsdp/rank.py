"""`python -m peer.parallel.fsdp.rank`: one rank, the process that computes on one device of a peer.

It decides nothing. One thread performs the lead's commands for inner steps, in which all ranks meet; another those for
rounds, in which no rank waits for another. So a layer is moved to the next anchor while a step computes, and a rank
whose step hangs because another rank has ended still hands out its parameters.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from dht.process import die_with_parent
from peer.node.host.threads import sleep_while_waiting
from peer.parallel.fsdp.rank_channel import HungUp, RankChannel
from peer.parallel.fsdp.rank_messages import Answer, Command, NoRoomThere, RankAnswer, RankFailed, RankSetup, StopRank
from peer.parallel.fsdp.shared_parameters import Arena, ArenaLayout

if TYPE_CHECKING:
    from peer.parallel.fsdp.rank_model import RankModel

Channel = RankChannel[Answer, Command]


def main(arguments: list[str] | None = None) -> int:
    die_with_parent()
    sleep_while_waiting()
    parser = argparse.ArgumentParser(prog="python -m peer.parallel.fsdp.rank")
    for name in ("steps", "round", "arena"):
        parser.add_argument(f"--{name}", type=int, required=True, help="a descriptor")
    parser.add_argument("--dir", required=True, help="its peer's run directory, for people who list processes")
    options = parser.parse_args(arguments)
    steps: Channel = RankChannel(socket.socket(fileno=options.steps), Command)
    round: Channel = RankChannel(socket.socket(fileno=options.round), Command)
    with suppress(HungUp):
        _serve(steps, round, options.arena)
    os._exit(0)  # a thread may be in a collective operation for ever


def _serve(steps: Channel, round: Channel, file: int) -> None:
    setup = steps.hear()
    assert isinstance(setup, RankSetup)
    arena = Arena(file, ArenaLayout(sizes=setup.sizes, payload_bytes=setup.payload_bytes))
    built: list[RankModel] = []

    def build() -> RankAnswer:
        from peer.parallel.fsdp.rank_model import RankModel  # torch takes seconds, in which the lead may end

        built.append(RankModel(setup, arena))
        return RankAnswer()

    if not _answer(steps, build) or not built:
        return  # without room for its share it is of no use to the others
    (model,) = built
    threading.Thread(target=_obey_or_end, args=(round, model.round), name="round", daemon=True).start()
    _obey(steps, model.step)


def _obey_or_end(channel: Channel, do: Callable[[Command], RankAnswer]) -> None:
    """Obey, then end the process: the other thread may be in a collective operation when the lead ends."""
    _obey(channel, do)
    os._exit(0)


def _obey(channel: Channel, do: Callable[[Command], RankAnswer]) -> None:
    """Execute commands one after another, until this rank is told to stop or fails."""
    with suppress(HungUp):
        while not isinstance(command := channel.hear(), StopRank):
            if not _answer(channel, partial(do, command)):
                return
        channel.tell(RankAnswer())


def _answer(channel: Channel, do: Callable[[], RankAnswer]) -> bool:
    """Execute a command and send its answer, even if it fails. Returns whether this rank can go on."""
    answer: Answer
    try:
        answer = do()
    except Exception as error:
        answer = _failure(error)
    channel.tell(answer)
    return not isinstance(answer, RankFailed)


def _failure(error: Exception) -> Answer:
    from peer.node.host.device import is_lost, is_out_of_memory

    text = " ".join(str(error).split()) or type(error).__name__
    if is_out_of_memory(error):
        return NoRoomThere(text)
    if os.environ.get("HOMEFIRES_DEBUG"):
        import traceback

        traceback.print_exc()
    return RankFailed(text=f"{type(error).__name__}: {text}", is_lost=is_lost(error))


if __name__ == "__main__":
    sys.exit(main())
