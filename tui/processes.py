"""A simulation on all cores: some of its groups in child processes that end with this one."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence

from peer.plan.simulate.grid import Chosen, Spread, shares
from peer.plan.simulate.part import FarPart, serve
from peer.plan.simulate.setting import Change, Setting

MOST = 8


def cores() -> int:
    """Of this machine, as far as this process may use them."""
    return min(MOST, len(os.sched_getaffinity(0)))


def spread_over(processes: int) -> Spread:
    """Deal the groups of each side out to so many processes, this one among them.

    The outcome is the same for any number: each group has dice of its own, and parts meet after every side.
    """

    def spread(
        setting: Setting, sides: tuple[int, ...], changes: Sequence[Change], chosen: Chosen
    ) -> tuple[list[FarPart], Chosen]:
        mine, *others = shares(chosen, processes)
        return [_start(serve, setting, sides, changes, each) for each in others], mine

    return spread


def _start(work: Callable[..., None], *about: object) -> FarPart:
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    context.Process(target=work, args=(there, *about), daemon=True).start()
    there.close()
    return FarPart(here)
