"""Where event lines go: plain text, JSON lines, or nowhere. One protocol for all of them."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from functools import partial
from typing import TextIO

from peer.schema.events import EventLine, format_line
from tui.output.plain import PlainOutput
from tui.processes.children import Output


class JsonOutput(Output):
    """Only event lines on `stream`; sentences go to `aside`."""

    def __init__(self, stream: TextIO, aside: TextIO) -> None:
        self._stream, self._aside = stream, aside

    def show(self, line: EventLine) -> None:
        print(format_line(line), file=self._stream, flush=True)

    def say(self, text: str) -> None:
        print(text, file=self._aside, flush=True)


def open_output(
    ui: str, stream: TextIO, aside: TextIO, *, rounds: int = 0, terse: bool = False, options: Sequence[str] = ()
) -> Output:
    """The output for `ui`: tui, plain, json or none. `rounds` is the run's length, if it has one.

    `options` are those of a dashboard. A person who leaves in it makes this process stop.
    """
    if ui == "json":
        return JsonOutput(stream, aside)
    if ui == "none":
        return Output()
    lines = partial(PlainOutput, rounds=rounds, terse=terse)
    if ui == "tui":
        from tui.output.viewer import DashboardOutput

        return DashboardOutput(stream, lines, partial(os.kill, os.getpid(), signal.SIGINT), options=options)
    return lines(stream)
