"""A simulation on all cores: some of its groups in child processes that end with this one."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection

from peer.planning.simulate.grid import Chosen, Spread, shares
from peer.planning.simulate.grid_part import FarPart, serve
from peer.planning.simulate.scenario import ChurnEvent, Scenario


def spread_over(processes: int) -> Spread:
    """Deal the groups of each side out to so many processes, this one among them.

    The outcome is the same for any number: each group has dice of its own, and parts meet after every side.
    """

    def spread(
        setting: Scenario, sides: tuple[int, ...], changes: Sequence[ChurnEvent], chosen: Chosen
    ) -> tuple[list[FarPart], Chosen]:
        mine, *others = shares(chosen, processes)
        connections = start(serve, [(setting, sides, changes, each) for each in others])
        return [FarPart(connection) for connection in connections], mine

    return spread


def start(work: Callable[..., None], about: Sequence[tuple[object, ...]]) -> list[Connection]:
    """A child for each row of arguments, which does `work(connection, *row)`; the connections to them.

    Ctrl-C is for this process alone: its end is theirs.
    """
    context = multiprocessing.get_context("fork")
    ours: list[Connection] = []
    for row in about:
        here, there = context.Pipe()
        ours.append(here)
        with _without_interrupts():
            context.Process(target=_child, args=(tuple(ours), work, there, *row), daemon=True).start()
        there.close()
    return ours


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Ctrl-C waits until the block ends; a child that is started in it never hears of one."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def rarely_collected() -> Iterator[None]:
    """Have cycles looked for a hundredth as often, here and in children that are started meanwhile.

    A simulation leaves few, and holds so much that looking for them took a twentieth of its time.
    """
    usual = gc.get_threshold()
    gc.set_threshold(100 * usual[0], *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)


def _child(parents: Sequence[Connection], work: Callable[..., None], *about: object) -> None:
    """What a child does. `parents`: the ends of its parent, which it has a copy of."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    for connection in parents:
        connection.close()  # a copy that is open here would keep a child from seeing that the parent is gone
    work(*about)


def _end_with_parent() -> None:
    """End this child, even in the middle of its work, when its parent is gone.

    The kernel closes the pipe behind `parent_process` however the parent ended. A child also holds copies of the pipes
    of those that were started before it, so of several the last one ends first.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None, "only a child calls this"
    parent.join()
    os._exit(1)
