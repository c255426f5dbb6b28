"""The pytest plugin: the fixture `swarm` and the marker `swarm`, for whoever names this module in `pytest_plugins`.

A whole pytest run loads it, so it imports nothing of ours before the fixture is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, overload

import pytest

if TYPE_CHECKING:
    from peer.testing.memory_swarm import LogicalSwarm
    from peer.testing.process_swarm import RealSwarm
    from peer.testing.swarm_contract import Swarm


class StartSwarm(Protocol):
    """What the fixture `swarm` gives; each call starts one swarm.

    Logical peers (the default) share this process and a virtual clock, and take the integer `seed`:
    the same seed, the same history. With `real=True` each peer is a process of its own on loopback
    that trains the run spec `spec` (the name of a spec in `peer.schema.runs`, or a path).
    """

    @overload
    def __call__(self, *, peers: int = ..., seed: int = ...) -> LogicalSwarm: ...

    @overload
    def __call__(self, *, peers: int = ..., real: Literal[True], **options: Any) -> RealSwarm: ...

    def __call__(self, *, peers: int = 4, seed: int = 1, real: bool = False, **options: Any) -> Swarm:
        """Start a swarm; it is ended after the test."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "swarm: starts several processes on loopback")


@pytest.fixture
def swarm(tmp_path: Path) -> Iterator[StartSwarm]:
    """Start swarms of homefires peers, logical ones or processes; see `peer.testing.pytest_plugin.StartSwarm`.

    After the test they are ended. A fault that was injected and never struck is an error: such a
    test has tested less than it says.
    """
    started: list[Swarm] = []
    ends = ExitStack()

    def start(*, peers: int = 4, real: bool = False, **options: Any) -> Any:
        __tracebackhide__ = True
        if real:
            from peer.testing.process_swarm import RealSwarm

            _check_options(RealSwarm, options, "a swarm of processes (real=True)")
            started.append(RealSwarm(directory=tmp_path / f"swarm-{len(started)}", peers=peers, **options))
        else:
            from peer.testing.memory_swarm import LogicalSwarm

            _check_options(LogicalSwarm, options, "a logical swarm (without real=True)")
            started.append(LogicalSwarm(peers=peers, **{"seed": 1, **options}))
        ends.callback(started[-1].close)
        return started[-1]

    with ends:
        yield start
    waiting = [fault for one in started for fault in one.waiting]
    if waiting:
        pytest.fail(f"these faults never struck: {waiting}", pytrace=False)


def _check_options(kind: type[Swarm], options: Mapping[str, Any], in_words: str) -> None:
    """Raises BadInput, shown at the test's own line, for an option that this kind of swarm does not have."""
    __tracebackhide__ = True
    from dht.errors import BadInput

    known = sorted({*signature(kind).parameters} - {"directory", "peers"})
    unknown = sorted({*options} - {*known})
    if unknown:
        raise BadInput(f"{in_words} has no option {', '.join(unknown)}; it takes peers, {', '.join(known)}")
