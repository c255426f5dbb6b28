"""Checkpoints: everything a peer needs to go on exactly where it was. Each is complete or absent, and checked before
use.

checkpoints/00000007/             the newest of them, see `Checkpoints`
    state.json                    round, anchor, the snapshot on the way to it, positions in the data, counters
    000.safetensors               of layer 0: residual, start, local, and the moments of inner optimizers
    001.safetensors               of layer 1, and so on; see `layer_state` for what may be left out
    rest.safetensors              the states of the random generators, and sequences whose step had no memory yet
    B2SUMS                        BLAKE2b-256 of the others, as `b2sum -l 256 --check B2SUMS` reads them

The anchor itself is not here: θ and m follow from a snapshot, or the initial parameters, and the chain. Neither is what
a voter must remember. Promises, votes, blocks and contributions are on disk before they are sent (`chain/`,
`contributions/`). A checkpoint names the anchor at which it was taken, and later decisions are replayed from there.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from dht.atomic_files import raising_disk_full, sync_folder
from dht.errors import DiskFull
from peer.planning.plan.disk_use import checkpoints_kept
from peer.training.checkpoint.capture import Capture, LayerCapture, bytes_of, entry_of
from peer.training.checkpoint.tensor_file import TensorFile, sync_file

VERSION = 4
SUMS = "B2SUMS"
STATE = "state.json"
REST = "rest.safetensors"


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A checkpoint on disk whose bytes were checked. Tensors are read when they are asked for."""

    path: Path
    state: Mapping[str, Any]

    @property
    def anchor(self) -> bytes:
        """The chain's name of the anchor at which it was taken."""
        return bytes.fromhex(self.state["anchor"])

    @property
    def round(self) -> int:
        return int(self.state["round"])

    def layer(self, number: int) -> Mapping[str, Tensor]:
        """What is stored of one layer, by name; on the CPU."""
        return load_file(self.path / _file_of(number))

    @property
    def rest(self) -> Mapping[str, Tensor]:
        """What belongs to no layer."""
        return load_file(self.path / REST)


class Checkpoints:
    """The checkpoints of one run directory: the newest two, or one if two would be too large."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)

    def write(self, capture: Capture) -> Path:
        """Write it to disk as the newest one, and drop those that are too many. Raises DiskFull, also if too little
        would be left for the round: earlier ones stay, and nothing is left of this one."""
        with capture.being_read():
            return self._write(capture)

    def _write(self, capture: Capture) -> Path:
        serials = [int(path.name) for path in _all(self.folder)]
        path = self.folder / f"{max(serials, default=0) + 1:08d}"
        scratch = self.folder / f"{path.name}.new"
        self._sweep()
        self._require_room(capture.most_bytes)
        try:
            with raising_disk_full(self.folder):
                _write_files(scratch, capture)
                scratch.rename(path)
                sync_folder(self.folder)
        except DiskFull:
            shutil.rmtree(scratch, ignore_errors=True)
            raise
        for old in _all(self.folder)[: -checkpoints_kept(size_bytes(path))]:
            shutil.rmtree(old)
        return path

    def set_aside(self, path: Path) -> None:
        """Do not count this one among those that are kept; the next one replaces it."""
        path.rename(path.with_suffix(".aside"))

    def _sweep(self) -> None:
        for path in [*self.folder.glob("*.new"), *self.folder.glob("*.aside")]:
            shutil.rmtree(path)

    def _require_room(self, needed_bytes: int) -> None:
        free_bytes = shutil.disk_usage(self.folder).free
        # The round itself must find room too: a contribution and the means take about a tenth of this.
        if free_bytes < 1.2 * needed_bytes:
            raise DiskFull(
                f"no room for a checkpoint: it takes {needed_bytes / 1e6:.0f} MB, "
                f"{free_bytes / 1e6:.0f} MB are free below {self.folder}"
            )


def newest(
    folder: Path, run: str, peer: str | None, say: Callable[[Path, str], None], layers: Sequence[int] | None = None
) -> Checkpoint | None:
    """The newest intact checkpoint of `peer` (None: of any) in `run`; `say` is told which ones are not used, and
    why. `layers`: the first and the one after the last that a home of a cluster holds; None for all. It only reads,
    also while another process writes there."""
    for path in reversed(_all(folder)):
        fault = find_damage(path)
        if fault:
            say(path, f"it is damaged ({fault})")
            continue
        state = json.loads((path / STATE).read_text())
        version, its_run, its_peer = (state[key] for key in ("version", "run", "peer"))
        if (version, its_run) != (VERSION, run) or peer not in (None, its_peer):
            say(path, "it is of another run, peer or version")
        elif state.get("layers") != (list(layers) if layers else None):
            say(path, "it is of other layers of the model")
        else:
            return Checkpoint(path=path, state=state)
    return None


def find_damage(path: Path) -> str:
    """What is wrong with the checkpoint in this folder, in words; empty if every byte is right."""
    try:
        told = (path / SUMS).read_bytes()
        found = _sums({file.name: _digest(file) for file in path.iterdir() if file.name != SUMS})
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    if told == found:
        return ""
    lines = set(told.split(b"\n")) ^ set(found.split(b"\n"))
    names = sorted({name for line in lines if (name := line.decode(errors="replace").partition("  ")[2])})
    return f"{', '.join(names)} and {SUMS} disagree"


def size_bytes(path: Path) -> int:
    """The size of the checkpoint in this folder on disk."""
    return sum(file.stat().st_size for file in path.iterdir())


def _all(folder: Path) -> list[Path]:
    """Oldest first; a folder with another name is incomplete."""
    return sorted(path for path in folder.glob("*") if path.name.isdecimal())


def _file_of(layer: int) -> str:
    return f"{layer:03d}.safetensors"


def _write_files(folder: Path, capture: Capture) -> None:
    folder.mkdir()
    (folder / STATE).write_text(json.dumps(dict(capture.state), indent=1) + "\n")
    files = [_begin_layer(folder / _file_of(number), capture, layer) for number, layer in enumerate(capture.layers)]
    capture.all_decided()
    for file, layer in zip(files, capture.layers, strict=True):
        file.add(capture.staying(layer))
    files.append(_rest_file(folder / REST, capture.rest))
    digests = {file.path.name: file.finish() for file in files} | {STATE: _digest(folder / STATE)}
    (folder / SUMS).write_bytes(_sums(digests))
    for name in (STATE, SUMS):
        sync_file(folder / name)
    sync_folder(folder)


def _begin_layer(path: Path, capture: Capture, layer: LayerCapture) -> TensorFile:
    """First what inner steps change, since the next one waits for that."""
    file = TensorFile(path, capture.decide(layer))
    file.add(capture.moving(layer))
    return file


def _rest_file(path: Path, rest: Mapping[str, Tensor]) -> TensorFile:
    # The widest first: each lies where a reader may look at it as it is.
    named = sorted(rest.items(), key=lambda item: (-item[1].element_size(), item[0]))
    file = TensorFile(path, [entry_of(name, tensor) for name, tensor in named])
    file.add(bytes_of(tensor) for _, tensor in named)
    return file


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=32)).hexdigest()


def _sums(digests: Mapping[str, str]) -> bytes:
    """The bytes of a sum file."""
    return "".join(f"{digest}  {name}\n" for name, digest in sorted(digests.items())).encode()


def generator_states(device: torch.device) -> dict[str, Tensor]:
    states = {"generator.cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["generator.cuda"] = torch.cuda.get_rng_state(device)
    if device.type == "mps":
        states["generator.mps"] = torch.mps.get_rng_state()
    return states


def set_generator_states(states: Mapping[str, Tensor], device: torch.device) -> None:
    """The inverse; a device that did not exist when they were taken keeps its own."""
    torch.set_rng_state(states["generator.cpu"])
    if device.type == "cuda" and "generator.cuda" in states:
        torch.cuda.set_rng_state(states["generator.cuda"], device)
    if device.type == "mps" and "generator.mps" in states:
        torch.mps.set_rng_state(states["generator.mps"])
