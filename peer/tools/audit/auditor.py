"""`homefires audit`: checks the chain of a run directory from its base to HEAD and trusts nothing in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from peer.consensus.codec.codec import Codec
from peer.consensus.codec.run_rules import rules_of
from peer.consensus.protocol.block import VOID, Block, Update
from peer.consensus.protocol.head import ChainHead
from peer.consensus.protocol.layout import Part, cut
from peer.consensus.protocol.validation import after_restarts, check_block, part_bytes
from peer.node.store import snapshots
from peer.node.store.held_layers import read_held
from peer.node.store.objects import object_path
from peer.node.store.run_directory import base_path, block_files, block_path, read_organiser
from peer.node.store.snapshots import SnapshotManifest
from peer.schema.events import RoundCommitted, read_events
from peer.schema.spec import RunSpec
from peer.tools.audit.means import MeanChecker
from peer.tools.audit.run_files import BadLink, RunFiles, SignatureChecker, blaming, require, signed_for_its_parent
from peer.training.checkpoint.replay import become_snapshot
from peer.training.model.build import build
from peer.training.model.flat_parameters import FlatParameters
from peer.training.outer.outer_state import OuterState
from peer.training.outer.outer_step import advance

MEANS = "means checked against their rows and norms (where the objects are here)"
STATES = "certified states computed again"
ROWS = "rows were checked against contributions by the voters, not here"

Say = Callable[[int, int], None]
"""Told which round was checked, and which is the last."""


@dataclass(kw_only=True)
class Report:
    """What was checked, and what was not."""

    first_round: int
    last_round: int
    firm: int = 0
    """Blocks decided by the electorate of the block before."""
    restarted: int = 0
    """Blocks of those who went on without a quorum, as the organiser signed it."""
    parts: int = 0
    means: int = 0
    """Of these parts: compared with the rows behind them, and these with the norms that their givers declared."""
    states: int = 0
    """Certified by the voters of the round after, and computed again here."""
    peers: int = 0
    head: str = ""
    state: str = ""
    """Of the head; empty where it could not be computed."""
    notes: list[str] = field(default_factory=list)

    def sentence(self) -> str:
        said = [
            f"{self.firm} agreed by the voters, {self.restarted} restarted, {self.parts:,} parts, {self.peers} peers",
            f"head {self.head[:16]}, state {self.state[:16] or 'not computed'}",
        ]
        line = f"rounds {self.first_round}..{self.last_round} checked: {', '.join(said)}"
        return "; ".join([line, f"{self.means:,} {MEANS}", f"{self.states:,} {STATES}", ROWS, *self.notes])

    def to_json(self) -> dict[str, Any]:
        return {"sound": True} | asdict(self)


def audit(directory: Path, say: Say = lambda round, last: None) -> Report:
    """Check everything that the chain of a run directory holds, of a peer that is stopped or at work.

    Raises BadLink for the first file that is not what the peers agreed on, BadInput for a folder without a chain.
    """
    files = RunFiles(directory)
    return files.settled(lambda: _Audit(files, say).run())


class _Audit:
    """One way along the chain."""

    def __init__(self, files: RunFiles, say: Say) -> None:
        self._files, self._say = files, say
        self._spec, self._genesis = files.beginning()
        flat = FlatParameters(build(self._spec))
        layout = cut([layer.size for layer in flat.layers], self._spec.codec.part_elements)
        initial = OuterState.initial(flat.by_layer())
        rules = rules_of(
            self._spec, layout, SignatureChecker(self._genesis.run), organiser=read_organiser(files.directory)
        )
        self._pointer = files.pointer(self._genesis)
        self._base = files.base(self._pointer, self._genesis)
        self._heads = {self._base.head.anchor: self._base.head}
        self._means = MeanChecker(rules, Codec(self._spec.codec.wire), self._mean)
        self._layers = initial.sizes
        self._rules = rules
        self._held = read_held(files.directory)
        starts_alike = initial.state_digest() == self._genesis.state
        known = self._held is None and not self._base.before and starts_alike
        self._states = States(files.directory, self._spec, layout, initial, known)
        self._parts_checked: set[bytes] = set()
        self._members: set[str] = set()
        self.report = Report(first_round=self._base.head.round, last_round=self._pointer.round)
        if not starts_alike and not self._base.before:
            self.report.notes.append("this machine computes other initial parameters than the founders")
        if self._held is not None:
            last = self._held.layers.stop - 1
            note = f"this home of a cluster keeps layers {self._held.layers.start} to {last}, whose bytes were checked"
            self.report.notes.append(note)

    def run(self) -> Report:
        head, last = self._base.head, self._pointer.round
        self._check_base()
        self._check_state(head)
        while head.round < last:
            head = self._follow(head)
            self._say(head.round, last)
        self._files.check_pointer(self._pointer, head)
        self._check_beside(head)
        self.report.peers = len(self._members)
        self.report.head, self.report.state = head.anchor.hex(), self._states.digest.hex()
        return self.report

    # ---- along the chain ----

    def _check_base(self) -> None:
        """The updates before the first block come without votes; their digests make the anchor's name."""
        path = base_path(self._files.directory, self._base.head.anchor)
        for update in self._base.before:
            with blaming(update.round, path):
                require(self._is_whole(update), "a member has not signed its header to it")
            self._members |= {header.peer for header in update.members}
            self._means.passed(update)

    def _follow(self, head: ChainHead) -> ChainHead:
        """Check the next block with all its parts and the state that it makes; the head after it."""
        round = head.round + 1
        path = block_path(self._files.directory, round)
        named = self._heads.get(self._pointer.anchor)
        if not path.exists() and named is not None:
            why = f"it says round {self._pointer.round}, and names the model of round {named.round}"
            raise BadLink(named.round, self._files.head_path, why)
        block = self._files.block(round)
        with blaming(round, path):
            fault = check_block(self._rules, head, block)
            require(not fault, fault)
            said, made = block.update.state, self._states.digest
            why = f"its voters had state {said.hex()[:12]} before it, where the files make {made.hex()[:12]}"
            require(not made or said == made, why)
        self.report.states += bool(made)
        self._check_parts(block.update)
        before, _, _ = after_restarts(self._rules.keys, self._rules.organiser, head, block)
        self._check_means(before, block.update)
        after = head.after(block.update)
        self._heads[after.anchor] = after
        self._members |= {header.peer for header in block.update.members}
        self.report.firm += block.firm
        self.report.restarted += not block.firm
        self._check_state(after)
        return after

    def _is_whole(self, update: Update) -> bool:
        return signed_for_its_parent(update, self._genesis.run)

    def _check_parts(self, update: Update) -> None:
        expected = part_bytes(self._rules, update)
        sizes = dict(zip(update.parts, expected, strict=True))

        def load(name: bytes) -> bytes:
            self._parts_checked.add(name)
            return self._files.part(update.round, name, sizes[name])

        with blaming(update.round, block_path(self._files.directory, update.round)):
            pairs = zip(update.parts, expected, strict=True)
            require(all(sizes[name] == size for name, size in pairs if name != VOID), "its parts are of other sizes")
        agreed = [name for part, name in enumerate(update.parts) if name != VOID and self._is_here(update, part)]
        if self._states.known:
            self._states.step(update, load)
        else:
            for name in agreed:
                load(name)
        self.report.parts += len(agreed)

    def _check_means(self, head: ChainHead, update: Update) -> None:
        """Against their rows and norms, those that are here."""
        for part, name in enumerate(update.parts):
            if name == VOID or not self._is_here(update, part):
                continue
            with blaming(update.round, object_path(self._files.directory, name)):
                fault = self._means.fault_of(head, update, part)
                require(not fault, fault or "")
            self.report.means += fault is not None
        self._means.passed(update)

    def _mean(self, name: bytes) -> bytes:
        """Raises KeyError where it is not here: a mean before the base need not be, nor one of another home."""
        try:
            return object_path(self._files.directory, name).read_bytes()
        except FileNotFoundError as error:
            raise KeyError(name) from error

    def _is_here(self, update: Update, part: int) -> bool:
        """Whether the bytes of a part must be on this disk; what a home of a cluster has besides is looked at later."""
        layer = self._rules.fragment(update.round - 1).parts[part].layer
        return self._held is None or self._held.must_have(layer, update.round)

    def _check_state(self, head: ChainHead) -> None:
        """Compare with what was said of this anchor, and with its snapshot; without a state go on from that."""
        self._check_snapshot(head)
        if self._states.known:
            self._states.compare(head, self._states.digest)

    def _check_snapshot(self, head: ChainHead) -> None:
        if (head.round, head.anchor) not in snapshots.names(self._files.directory):
            return
        manifest = self._files.manifest(head.round, head.anchor, self._genesis.run, self._layers)
        self._files.check_vectors(manifest)
        if self._held is not None:
            return  # what all layers are, this home does not know
        if not self._states.known:
            self._states.become(manifest)
            self.report.notes.append(f"states from the snapshot of round {head.round} on")
        path = snapshots.path_of(self._files.directory, head.round, head.anchor) / snapshots.MANIFEST
        with blaming(head.round, path):
            require(manifest.state == self._states.digest, "its state is not the one that the blocks lead to")

    # ---- beside the chain ----

    def _check_beside(self, head: ChainHead) -> None:
        """Whatever else lies there: blocks that are not on the chain, the voter's memory, bytes that no block names."""
        directory = self._files.directory
        for path in sorted(block_files(directory)):
            if not self._base.head.round < int(path.stem) <= head.round:
                self._check_aside(int(path.stem), self._files.read_block(path, int(path.stem)), path)
        for path in sorted((directory / "chain").glob("*.base")):
            self._files.read_base(path, self._base.head.round)
        for round, anchor in snapshots.names(directory):
            if anchor not in self._heads:
                self._files.check_vectors(self._files.manifest(round, anchor, self._genesis.run, self._layers))
        for name in self._files.objects():
            if name not in self._parts_checked:
                self._files.part(head.round, name)
        self._files.check_acceptors(head.round)
        self._files.check_tallies(self._base.head.round)

    def _check_aside(self, round: int, block: Block, path: Path) -> None:
        """A block beside the chain: against the head before it if that is known, else its own signatures."""
        before = self._heads.get(block.update.parent)
        with blaming(round, path):
            if before is None:
                genuine = all(vote.genuine(SignatureChecker(self._genesis.run)) for vote in block.votes)
                require(genuine and self._is_whole(block.update), "its members or voters have not signed it")
                return
            fault = check_block(self._rules, before, block)
            require(not fault, fault)
        after = before.after(block.update)
        self._heads[after.anchor] = after


class States:
    """The anchor, outer step after outer step. Not known where this machine computes other initial parameters."""

    def __init__(
        self, directory: Path, spec: RunSpec, layout: tuple[Part, ...], anchor: OuterState, known: bool
    ) -> None:
        self._directory, self._spec, self._layout = directory, spec, layout
        self._anchor = anchor
        self.known = known
        self._said = _said(directory)

    @property
    def digest(self) -> bytes:
        return self._anchor.state_digest() if self.known else b""

    def step(self, update: Update, load: Callable[[bytes], bytes]) -> None:
        advance(self._anchor, update, self._spec, self._layout, load)

    def become(self, manifest: SnapshotManifest) -> None:
        become_snapshot(self._anchor, self._directory, manifest.round, manifest.anchor)
        self.known = True

    def compare(self, head: ChainHead, state: bytes) -> None:
        """What this peer reported of an anchor. Raises BadLink if that was another state."""
        path, said = self._said.get(head.anchor.hex(), (None, state.hex()))
        if path is not None and said != state.hex():
            why = f"it says state {said[:12]}, where the files make {state.hex()[:12]}: one of the two miscomputed"
            raise BadLink(head.round, path, why)


Said = dict[str, tuple[Path, str]]
"""A file and the state that it names, by anchor, in hex."""


def _said(directory: Path) -> Said:
    """What this peer reported when it committed."""
    path = directory / "events.jsonl"
    reported = (line.event for line in read_events(directory) if isinstance(line.event, RoundCommitted))
    return {event.digest: (path, event.state) for event in reported}
