"""`layers.json`: the layers that a home of a cluster keeps in its run directory, and since which round.

It keeps no bytes of other layers. A folder without the file belongs to a peer that keeps all layers.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from dht.atomic_files import raising_damaged, write_atomic

FILE = "layers.json"


@dataclass(frozen=True)
class HeldLayers:
    """Neighbouring ones."""

    layers: range
    since: int
    """The round at which it began to keep these: of earlier rounds it may have other layers, or none."""

    def must_have(self, layer: int, round: int) -> bool:
        """Whether a mean of this layer, in the update that made anchor `round`, is here."""
        return layer in self.layers and round > self.since


def note_held(directory: Path, layers: range, round: int) -> None:
    """From anchor `round` on the home in this folder keeps these layers. If it kept others, its chain begins anew,
    since the bytes that led here are those of others. Raises DiskFull, BadInput for a damaged file."""
    known = read_held(directory)
    if known is not None and known.layers != layers:
        _begin_anew(directory)
    if known is None or known.layers != layers:
        keep_from(directory, layers, round)


def keep_from(directory: Path, layers: range, round: int) -> None:
    """From anchor `round` on this folder keeps these layers; what it has of them since is here. Raises DiskFull."""
    text = json.dumps({"first": layers.start, "last": layers.stop - 1, "since": round})
    write_atomic(directory / FILE, text.encode())


def _begin_anew(directory: Path) -> None:
    """What this home promised and accepted as a voter stays, and with it all objects: opening the chain drops those
    that nothing names."""
    (directory / "HEAD").unlink(missing_ok=True)
    for path in (*(directory / "chain").glob("*"), *(directory / "snapshots").glob("*")):
        if path.is_dir() and path.name != "objects":
            shutil.rmtree(path)
        elif path.is_file() and path.name != "acceptors":
            path.unlink()


def read_held(directory: Path) -> HeldLayers | None:
    """None for a peer that keeps all layers. Raises BadInput for a damaged file."""
    path = directory / FILE
    if not path.exists():
        return None
    with raising_damaged(path):
        try:
            said = json.loads(path.read_text())
            return HeldLayers(range(int(said["first"]), int(said["last"]) + 1), int(said["since"]))
        except KeyError as error:
            raise ValueError(f"no {error}") from error
