"""Checkpoints: all that a peer needs to go on exactly where it was. Whole, or not there; checked before it is used.

checkpoints/00000007/             the newest `KEPT` of them
    state.json                    round, anchor, data cursors, positions in the data, counters
    anchor.safetensors            theta, momentum
    peer.safetensors              residual, start, local, the states of the random generators, and sequences whose step
                                  had no room yet, if there are any
    optimizer.safetensors         the inner optimizers
    B2SUMS                        BLAKE2b-256 of the others, as `b2sum -l 256 --check B2SUMS` reads them

What the voters of a round must remember is not here. Promises, votes, blocks and contributions are
on disk before anybody hears of them (`chain/`, `contributions/`); a checkpoint names the anchor at which it was
taken, and what was decided since is replayed from there.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from dht.atomic_files import raising_disk_full, sync_folder
from dht.errors import DiskFull
from peer.outer.outer_state import OuterState

VERSION = 3
KEPT = 2
SUMS = "B2SUMS"
STATE = "state.json"


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """What lies in the files: JSON values, and tensors on the CPU by file and name."""

    state: Mapping[str, Any]
    tensors: Mapping[str, Mapping[str, Tensor]]

    @property
    def anchor(self) -> bytes:
        """The chain's name of the anchor at which it was taken."""
        return bytes.fromhex(self.state["anchor"])

    @property
    def outer_state(self) -> OuterState:
        tensors = self.tensors["anchor"]
        layers = range(len(tensors) // 2)
        theta, momentum = ([tensors[f"{name}.{layer}"] for layer in layers] for name in ("theta", "momentum"))
        return OuterState(theta, momentum, self.state["round"], dict(self.state["cursors"]))

    @property
    def size_bytes(self) -> int:
        """Room that it takes on disk, but for a few kilobytes."""
        return sum(tensor.nbytes for named in self.tensors.values() for tensor in named.values())


class Checkpoints:
    """The checkpoints of one run directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)

    def write(self, checkpoint: Checkpoint) -> Path:
        """Put it on disk as the newest one, and drop those beyond `KEPT`.

        Raises DiskFull, also if too little would be left for the round: those that are there stay,
        and nothing is left of this one.
        """
        serials = [int(path.name) for path in _all(self.folder)]
        path = self.folder / f"{max(serials, default=0) + 1:08d}"
        scratch = self.folder / f"{path.name}.new"
        self._sweep()
        self._require_room(checkpoint.size_bytes)
        try:
            with raising_disk_full(self.folder):
                _write_files(scratch, checkpoint)
                scratch.rename(path)
                sync_folder(self.folder)
        except DiskFull:
            shutil.rmtree(scratch, ignore_errors=True)
            raise
        for old in _all(self.folder)[:-KEPT]:
            shutil.rmtree(old)
        return path

    def set_aside(self, path: Path) -> None:
        """Do not count this one among those that are kept; the next one that is written replaces it."""
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
    folder: Path, run: str, peer: str | None, say: Callable[[Path, str], None], files: str = "*"
) -> Checkpoint | None:
    """The newest intact checkpoint of `peer` (None: of anyone) in `run`; `say` is told which are not used, and why.

    Reads only, also while another process writes there. It has the tensors of those `files` whose names match.
    """
    for path in reversed(_all(folder)):
        fault = find_damage(path)
        if fault:
            say(path, f"it is damaged ({fault})")
            continue
        checkpoint = _read(path, files)
        version, its_run, its_peer = (checkpoint.state[key] for key in ("version", "run", "peer"))
        if (version, its_run) == (VERSION, run) and peer in (None, its_peer):
            return checkpoint
        say(path, "it is of another run, peer or version")
    return None


def find_damage(path: Path) -> str:
    """What is wrong with the checkpoint in this folder, in words; empty if every byte is as it was written."""
    try:
        told = (path / SUMS).read_bytes()
        found = _sums(path)
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    if told == found:
        return ""
    lines = set(told.split(b"\n")) ^ set(found.split(b"\n"))
    names = sorted({name for line in lines if (name := line.decode(errors="replace").partition("  ")[2])})
    return f"{', '.join(names)} and {SUMS} disagree"


def _all(folder: Path) -> list[Path]:
    """Oldest first; what has another name is half-written."""
    return sorted(path for path in folder.glob("*") if path.name.isdecimal())


def _write_files(folder: Path, checkpoint: Checkpoint) -> None:
    folder.mkdir()
    for name, tensors in checkpoint.tensors.items():
        _save(tensors, folder / f"{name}.safetensors")
    (folder / STATE).write_text(json.dumps(dict(checkpoint.state), indent=1) + "\n")
    (folder / SUMS).write_bytes(_sums(folder))
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
    sync_folder(folder)


def _save(tensors: Mapping[str, Tensor], path: Path) -> None:
    try:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
    except SafetensorError as error:
        # The library puts the system's error into words: 28 is ENOSPC, 122 EDQUOT.
        if "os error 28" in str(error) or "os error 122" in str(error):
            raise DiskFull(f"the disk that holds {path.parent} is full") from error
        raise


def _read(path: Path, files: str) -> Checkpoint:
    tensors = {file.stem: load_file(file) for file in path.glob(f"{files}.safetensors")}
    return Checkpoint(state=json.loads((path / STATE).read_text()), tensors=tensors)


def _sums(folder: Path) -> bytes:
    """The bytes of a sum file over everything else in the folder."""
    lines = []
    for path in sorted(folder.iterdir()):
        if path.name != SUMS:
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=32))
            lines.append(f"{digest.hexdigest()}  {path.name}\n")
    return "".join(lines).encode()


def generator_states(device: torch.device) -> dict[str, Tensor]:
    states = {"generator.cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["generator.cuda"] = torch.cuda.get_rng_state(device)
    if device.type == "mps":
        states["generator.mps"] = torch.mps.get_rng_state()
    return states


def set_generator_states(states: Mapping[str, Tensor], device: torch.device) -> None:
    """The inverse; a device that was not there when they were taken keeps its own."""
    torch.set_rng_state(states["generator.cpu"])
    if device.type == "cuda" and "generator.cuda" in states:
        torch.cuda.set_rng_state(states["generator.cuda"], device)
    if device.type == "mps" and "generator.mps" in states:
        torch.mps.set_rng_state(states["generator.mps"])
