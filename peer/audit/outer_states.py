"""θ, m and the data cursors along a chain, and what else was said of them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import torch

from peer.audit.fault import BadLink
from peer.events import RoundCommitted, read_events
from peer.protocol.block import Update
from peer.protocol.layout import Part
from peer.rounds.state import ChainHead
from peer.spec import RunSpec
from peer.store import snapshots
from peer.store.snapshots import SnapshotManifest
from peer.train.checkpoint import newest
from peer.train.outer_state import OuterState, advance

log = logging.getLogger(__name__)


class States:
    """The anchor, outer step after outer step. Not known where this machine computes other initial parameters."""

    def __init__(
        self, directory: Path, spec: RunSpec, layout: tuple[Part, ...], anchor: OuterState, known: bool
    ) -> None:
        self._directory, self._spec, self._layout = directory, spec, layout
        self._anchor = anchor
        self.known = known
        self._said = _said(directory, spec)

    @property
    def digest(self) -> bytes:
        return self._anchor.state_digest() if self.known else b""

    def step(self, update: Update, load: Callable[[bytes], bytes]) -> None:
        """Make the outer step of `update`."""
        advance(self._anchor, update, self._spec, self._layout, load)

    def become(self, manifest: SnapshotManifest) -> None:
        """Go on from a snapshot that was checked."""
        path = snapshots.path_of(self._directory, manifest.round, manifest.anchor)
        theta, momentum = (torch.from_numpy(vector) for vector in snapshots.read_vectors(path, manifest))
        self._anchor.become(theta, momentum, manifest.round, manifest.cursors)
        self.known = True

    def compare(self, head: ChainHead, state: bytes) -> None:
        """What this peer reported of an anchor, or had as a checkpoint. Raises BadLink if that was another state."""
        for path, said in self._said.get(head.anchor.hex(), ()):
            if said != state.hex():
                why = f"it says state {said[:12]}, where the files make {state.hex()[:12]}: one of the two miscomputed"
                raise BadLink(head.round, path, why)


Said = dict[str, list[tuple[Path, str]]]
"""Files and the state that they name, by anchor, all in hex."""


def _said(directory: Path, spec: RunSpec) -> Said:
    """What this peer reported when it committed, and what its newest intact checkpoint holds."""
    said: Said = {}
    for line in read_events(directory):
        if isinstance(line.event, RoundCommitted):
            said[line.event.digest] = [(directory / "events.jsonl", line.event.state)]
    found = newest(directory / "checkpoints", spec.digest().hex(), None, _log_unused, files="anchor")
    if found is not None:
        anchor = OuterState(**found.tensors["anchor"], round=found.state["round"], cursors=dict(found.state["cursors"]))
        checkpoint = (directory / "checkpoints", anchor.state_digest().hex())
        said.setdefault(found.anchor.hex(), []).append(checkpoint)
    return said


def _log_unused(path: Path, why: str) -> None:
    log.warning("not comparing checkpoint %s: %s", path, why)
