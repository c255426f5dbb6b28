"""`homefires plan`, `place` and `simulate`: the cost of a run before it is started."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from dht.errors import BadInput
from peer.schema.events import printable
from peer.schema.spec import dump
from tui.command_line import Command, Option
from tui.commands.options import AsJson
from tui.data_page import inspected, require_sound
from tui.simulation.plan_options import PlaceOptions, PlanOptions, SimulateOptions
from tui.terminal import columns


@dataclass(frozen=True, kw_only=True)
class PlanCommand(PlanOptions, Command):
    as_json: AsJson = False
    data: Annotated[
        str, Option("also show what this folder holds for the run, and how often it would be read", "DIR")
    ] = ""
    write: Annotated[Path | None, Option("write the planned spec to this file, for homefires bootstrap", "FILE")] = None

    def run(self) -> int:
        from tui.simulation.plan_page import describe, describe_options
        from tui.simulation.planner import NoPlan, answer, options_to_json, to_json, write

        found = answer(self)
        if isinstance(found, NoPlan):
            _show(options_to_json(found) if self.as_json else describe_options(found))
            found.require_way()
            if self.write:
                raise BadInput(f"{found.why}; --write {self.write} is for peers that all hold the model as it is")
            return 0
        _show(to_json(found) if self.as_json else describe(found))
        if self.data:
            self._look_at_data(dump(found.spec))
        if self.write:
            print(write(found, self.write), file=sys.stderr if self.as_json else sys.stdout)
        return 0

    def _look_at_data(self, spec: str) -> None:
        """Show what the folder contains for the run. Raises BadInput if nobody can train on it, and for a run that
        reads no files."""
        folders = inspected(spec, self.data)
        if not folders:
            raise BadInput("--data names a folder, but this run reads no files of anybody; leave it out")
        screen = sys.stderr if self.as_json else sys.stdout
        for each in folders:
            print("", *each.lines(columns(WIDTH)), sep="\n", file=screen)
        require_sound(folders)


WIDTH = 80


@dataclass(frozen=True, kw_only=True)
class PlaceCommand(PlaceOptions, Command):
    as_json: AsJson = False

    def run(self) -> int:
        from tui.simulation.place import Searching, describe, find, to_json

        searching = Searching(lambda text: print(text, file=sys.stderr, flush=True))
        found = find(self, searching.tell)
        _show(to_json(found) if self.as_json else describe(found))
        return 0


@dataclass(frozen=True, kw_only=True)
class SimulateCommand(SimulateOptions, Command):
    as_json: AsJson = False

    def run(self) -> int:
        from tui.simulation.simulate import describe, run_simulate, to_json

        outcome = run_simulate(self)
        _show(to_json(outcome) if self.as_json else describe(outcome, self.events))
        return 0


def _show(page: str) -> None:
    print("\n".join(map(printable, page.splitlines())))
