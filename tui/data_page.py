"""What a folder or huggingface.co holds for a run, as a child process found out: a table for people, and why it is
refused."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dht.errors import BadInput, Unreachable
from peer.schema.events import printable
from tui.processes.children import python_module
from tui.processes.one_shot import answer

INSPECT_S = 4 * 3600.0
"""The time limit for an inspection: enough for some hundred gigabytes."""
FORMAT_S = 120.0
"""The time limit for reading one row."""
ON_HUB_S = 60.0
"""The time limit for asking huggingface.co for names."""
NAMES = 14
"""The columns of the name before each line."""


@dataclass(frozen=True, kw_only=True)
class InspectedFolder:
    """One source of a run's data; see `peer.training.data.inspection`."""

    folder: str
    rows: Sequence[tuple[str, str]]
    refused: Sequence[str]
    """The first reason why nobody can train on it, and how many more there are; empty if training is possible."""

    def lines(self, width: int) -> list[str]:
        """The lines of the table."""
        found, before = [f"  {printable(self.folder)}"], ""
        for name, text in self.rows:
            shown, before = name if name != before else "", name
            found += textwrap.wrap(
                f"  {shown:<{NAMES}}{printable(text)}", width, subsequent_indent=" " * (NAMES + 2),
                break_long_words=False, break_on_hyphens=False,
            )  # fmt: skip
        return found


def inspected(spec: str, data_path: str) -> list[InspectedFolder]:
    """The result for each source with files, in the run with this spec's text. Raises BadInput, and Unreachable for
    a folder that needs too long."""
    argv = python_module("peer", "inspect", json.dumps({"spec": spec, "data_path": data_path}))
    late = Unreachable(f"{data_path} was not read through within {INSPECT_S / 3600:.0f} hours; name a smaller folder")
    told = json.loads(answer("inspection of the data", argv, INSPECT_S, late=late, apart=True))
    return [InspectedFolder(**each) for each in told]


def format_in(folder: Path) -> str:
    """`chat` if the first file of rows begins with a conversation, otherwise `text`. Raises BadInput."""
    argv = python_module("peer", "inspect", json.dumps({"format_in": str(folder)}))
    return answer("inspection of the data", argv, FORMAT_S, apart=True)


def require_on_hub(spec: str) -> None:
    """Raises BadInput for a name in this spec's text that huggingface.co does not have, and Unreachable."""
    late = Unreachable(f"huggingface.co did not answer within {ON_HUB_S:.0f} s")
    argv = python_module("peer.tools.doctor.hub_names", spec)
    answer("look at huggingface.co", argv, ON_HUB_S, late=late, apart=True)


def require_sound(found: Sequence[InspectedFolder]) -> None:
    """Raises BadInput for data that cannot be trained on. Call it after all tables were shown."""
    refused = [f"{each.folder} cannot be trained on: {'; '.join(each.refused)}" for each in found if each.refused]
    if refused:
        raise BadInput("; ".join(refused))
