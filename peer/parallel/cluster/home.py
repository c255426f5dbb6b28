"""This home's place in its cluster for one life of its trainer: its layers, and its connection to the other homes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Timer

import torch
from msgspec.structs import replace

from peer.consensus.codec.codec import Codec
from peer.consensus.codec.state_digest import state_digest
from peer.consensus.protocol.encoding import digest_of
from peer.consensus.protocol.layout import cut
from peer.node.store.contributions import written_leaves
from peer.node.store.snapshots import FOLDER, MANIFEST
from peer.parallel.cluster.assembly import next_epoch, with_spares
from peer.parallel.cluster.byte_exchange import ByteExchange
from peer.parallel.cluster.cut_moves import Move, best_move, measured_speeds, move_to
from peer.parallel.cluster.home_suspicion import HomeSuspicion
from peer.parallel.cluster.layer_takeover import take_over
from peer.parallel.pipeline.flow_router import FlowLine, FlowRouter
from peer.parallel.pipeline.home_group import CutMoved, HomeGone, LeadHomes, WorkerHome
from peer.parallel.pipeline.home_messages import AskBytes, BytesHere, decode_home
from peer.parallel.pipeline.lead_stage import LeadStage
from peer.parallel.pipeline.stage import StagePlace
from peer.parallel.pipeline.stage_model import initial_layer_digests, initial_span, model_layers
from peer.parallel.pipeline.step_times import MedianTimes, StepTimes
from peer.parallel.pipeline.worker_stage import WorkerStage
from peer.planning.plan.cluster_cost import layout_of
from peer.planning.plan.model_shape import shape_of
from peer.schema.events import ClusterFormed, StagesMeasured
from peer.schema.ipc import Assignment, HomeLost, HomeOffer, StageHolder, StagesAssigned
from peer.schema.spec import RunSpec
from peer.training.outer.bitwise_check import device_for
from peer.training.outer.kernels import TorchKernels
from peer.training.train.engine import Engine, HeldSpan, MakeEngine
from peer.training.train.inner_loop import Sequences
from peer.training.train.layerwise import Layerwise

HEARD_S = 8.0
"""By then every home has asked its lead what to hold."""
STEPS_WEIGHED = 12
"""By these steps at most a lead weighs whether layers should move: what was before says nothing of a home that has
changed."""


class ClusterHome:
    """This home's part in a cluster. It is made for an assignment, and closed with the life that it belongs to."""

    def __init__(
        self, assignment: Assignment, me: str, end: FlowLine, contributions: Path, ask_submit: Callable[[], None],
        changed: Callable[[Assignment], None] = lambda assignment: None, suspicion: HomeSuspicion | None = None,
    ) -> None:  # fmt: skip
        """`contributions` lies in this home's folder. `ask_submit` makes this home's life submit a contribution at its
        present anchor; `changed` is called when there are more spares, or other layers for some homes."""
        holder = assignment.of(me)
        assert holder is not None, "an assignment without this home is for others"
        self.assignment, self.me, self.holder = assignment, me, holder
        self.is_lead, self._changed = assignment.lead == me, changed
        self._suspicion = suspicion or HomeSuspicion()
        self._stage: WorkerStage | None = None
        self._first: LeadStage | None = None
        self.homes: LeadHomes | WorkerHome
        if self.is_lead:
            self.homes = LeadHomes(assignment, lambda to, frame: self.router.send(to, frame))
        else:
            self.homes = WorkerHome(
                assignment, me, lambda to, frame: self.router.send(to, frame),
                written=partial(written_leaves, contributions), ask_submit=ask_submit,
            )  # fmt: skip
        self._directory = contributions.parent
        self._bytes = ByteExchange(self._directory, lambda to, frame: self.router.send(to, frame))
        self._steps: tuple[StepTimes, ...] = ()
        """The timing of steps by which it is not sure yet whether layers should move."""
        self._move: Move | None = None
        self._anchor = b""
        """The snapshot that the homes of a move are asked for."""
        self._moves: CutMoved | None = None
        """How this life ends once the others have heard that layers move."""
        self._unheard: set[str] = set()
        """The homes that have not heard it yet."""
        self._ending: Timer | None = None
        self._lost: HomeGone | None = None
        """Of a home that was lost before this life began to train."""
        self.router = FlowRouter(end, self._take)

    @property
    def _others(self) -> list[str]:
        """The other homes, spares last."""
        held = (*self.assignment.stages, *self.assignment.spares)
        return [holder.peer for holder in held if holder.peer != self.me]

    def _take(self, sender: str, frame: bytes) -> None:
        """A frame of another home, on the reading thread."""
        with suppress(ValueError):
            message = decode_home(frame)
            if isinstance(message, AskBytes | BytesHere):
                if sender in self._others:
                    self._bytes.take(sender, message)
                return
        self.homes.take(sender, frame)

    def take_over(self, spec: RunSpec, stop: Callable[[], bool]) -> None:
        """If this home has kept other layers, get what it lacks of its own from the homes that had them. Raises
        HomeGone, as soon as one of them is known to be lost."""

        def may_stop() -> bool:
            if self._lost is not None:
                raise self._lost
            return stop()

        parts = cut([layer.size for layer in model_layers(spec)], spec.codec.part_elements)
        take_over(
            self._directory, self.holder.layers, parts, spec.round.fragments,
            lambda digests, keep: self._bytes.fetch(self._others, digests, keep, may_stop),
        )  # fmt: skip

    def engine(self, spec: RunSpec, device: torch.device, folder: Path, on_halved: Callable[[int], None]) -> MakeEngine:
        """Returns the maker of a training engine for the layers of this home."""

        def make(batches: Sequences) -> Engine:
            place = StagePlace(assignment=self.assignment, me=self.me, port=self.router)
            backend: LeadStage | WorkerStage
            if isinstance(self.homes, LeadHomes):
                backend = self._first = LeadStage(
                    spec, place, batches, device, on_halved, self.homes.require_all, folder
                )
            else:
                backend = self._stage = WorkerStage(spec, place, batches, device, folder)
            codec = Codec(spec.codec.wire)
            kernels = TorchKernels(codec, device_for(device, codec))
            span = HeldSpan(
                layers=model_layers(spec), held=place.held, homes=self.homes,
                first_state=state_digest(initial_layer_digests(spec), ()),
                initial=partial(initial_span, spec, place.held),
            )  # fmt: skip
            beside = None if spec.round.overlap == "none" else Layerwise(backend, device)
            return Engine(backend=backend, kernels=lambda: kernels, beside=beside, span=span)

        return make

    def formed(self, layers: Sequence[str]) -> ClusterFormed:
        """The event that tells people of the cluster; `layers` are the names of all layers."""
        rows = [
            {
                "peer": holder.peer,
                "first": holder.first,
                "last": holder.last,
                "layers": layer_words(layers, holder.layers),
            }
            for holder in self.assignment.stages
        ]
        return ClusterFormed(epoch=self.assignment.epoch, lead=self.assignment.lead, stages=rows)

    def measured(self) -> StagesMeasured | None:
        """The event with the timing of the newest step; None for a worker, and before the first step."""
        lead = self._first
        if lead is None or not lead.flight_seconds:
            return None
        rows = [
            {
                "peer": holder.peer, "compute_s": lead.flight_seconds.get(holder.peer, 0.0),
                "wire_bytes": lead.wire_bytes(number),
            }
            for number, holder in enumerate(self.assignment.stages)
        ]  # fmt: skip
        return StagesMeasured(step_s=lead.step_s, stages=rows)

    def moved(self, spec: RunSpec) -> Assignment | None:
        """For a lead, at the end of a round: an assignment to tell the others, if layers are to move. They move once
        all homes have a snapshot on disk, from which they go on.

        This life ends as soon as all homes that get other layers have gone to their next one, or after `HEARD_S`: not
        before, else it would begin another one without a home that has heard nothing.
        """
        if self._first is None or not isinstance(self.homes, LeadHomes) or self._moves is not None:
            return None
        if self._move is None:
            self._move = self._weigh(spec, self._first)
        wished = self._suspicion.speeds.watch.wished if self._move is None else self._move.to.stages
        has_all = bool(wished) and self._all_have(self.homes.snapshot, wished)  # asks those of a wish beforehand
        if self._move is None or not has_all:
            return None
        dealt = with_spares(
            replace(self._move.to, epoch=next_epoch()), self._suspicion.admitted(self._suspicion.speeds.homes)
        )
        held = {holder.peer: holder.layers for holder in (*self.assignment.stages, *self.assignment.spares)}
        others = {holder.peer: holder.layers for holder in (*dealt.stages, *dealt.spares)}
        self._unheard = {peer for peer, layers in others.items() if held.get(peer) != layers}
        self._unheard.discard(self.me)
        self._changed(dealt)
        self._moves = CutMoved(self.me, self._in_words(spec, self._move))
        self._ending = Timer(HEARD_S, self.homes.end, (self._moves,))
        self._ending.start()
        return dealt

    def _weigh(self, spec: RunSpec, lead: LeadStage) -> Move | None:
        """Whether layers should move, by the steps since the last look that was sure."""
        self._steps = (*self._steps, *lead.take_times())[-STEPS_WEIGHED:]
        times = MedianTimes.of(self._steps)
        if times is None:
            return None
        layout, speeds = layout_of(shape_of(spec), spec), self._suspicion.speeds
        speeds.measured |= measured_speeds(layout, self.assignment, times)
        may = {self.me, *(home.peer for home in self._suspicion.admitted(speeds.homes))}
        homes = [home for home in speeds.homes if home.peer in may]
        move = speeds.watch.look(
            best_move(layout, self.assignment, times, homes), self.assignment,
            lambda stages: move_to(stages, layout, self.assignment, times, homes),
        )  # fmt: skip
        if not speeds.watch.is_unsure:
            self._steps = ()
        return move

    def _all_have(self, newest: bytes, stages: Sequence[StageHolder]) -> bool:
        """Whether every home that holds layers, now or in these stages, has a snapshot on disk: the one that they were
        asked for, or else the `newest`. Those that have not said so are asked."""
        path = self._snapshot(self._anchor)
        if path is None:
            self._anchor, path = newest, self._snapshot(newest)
        if path is None:
            return False
        digest = digest_of((path / MANIFEST).read_bytes())
        peers = {holder.peer for holder in (*self.assignment.stages, *stages)} - {self.me}
        missing = [peer for peer in sorted(peers) if not self._bytes.has(peer, digest)]
        for peer in missing:
            self._bytes.ask(peer, (digest,))
        return not missing

    def _snapshot(self, anchor: bytes) -> Path | None:
        return next((self._directory / FOLDER).glob(f"*-{anchor.hex()}"), None) if anchor else None

    def _in_words(self, spec: RunSpec, move: Move) -> str:
        names = [layer.name for layer in model_layers(spec)]
        called = {home.peer: home.name for home in self._suspicion.speeds.homes}
        new = [
            f"{called.get(holder.peer) or holder.peer[-8:]} takes {layer_words(names, holder.layers)}"
            for holder in move.to.stages
            if holder not in self.assignment.stages
        ]
        return f"{', '.join(new)}; a step took {move.step_s:.3g} s, and should take {move.forecast_s:.3g} s"

    def enlisted(self, homes: Sequence[HomeOffer]) -> Assignment | None:
        """For a lead: the assignment with all new homes as spares; None if there are none."""
        known = {holder.peer for holder in (*self.assignment.stages, *self.assignment.spares)}
        self._suspicion.speeds.note_present(homes)
        may = self._suspicion.admitted(homes)
        if not self.is_lead or self._moves is not None or known >= {home.peer for home in may}:
            return None
        self.assignment = with_spares(self.assignment, may)
        self._changed(self.assignment)
        return self.assignment

    def hear(self, said: StagesAssigned | HomeLost) -> None:
        """Process a message of the link about the cluster. Raises HomeGone if this life cannot go on with it."""
        match said:
            case HomeLost(peer=peer, why=why) if isinstance(self.homes, LeadHomes):
                if self._moves is not None:
                    self._unheard.discard(peer)
                    if self._unheard:
                        return
                    self.homes.end(self._moves)
                    raise self._moves
                if peer in {holder.peer for holder in self.assignment.workers}:
                    raise HomeGone(peer, why)
            case StagesAssigned(assignment=assignment) if assignment.epoch > self.assignment.epoch:
                self._deal(assignment)

    def note_lost(self, said: HomeLost) -> None:
        """Let `take_over` end, and what a lead's trainer waits for from this home, also in a life that is leaving: a
        home that comes back has another connection. May be called from any thread."""
        self._lost = HomeGone(said.peer, said.why)
        is_worker = said.peer in {holder.peer for holder in self.assignment.workers}
        if isinstance(self.homes, LeadHomes) and is_worker and self._moves is None:
            self.homes.lost(said.peer, said.why)

    def _deal(self, assignment: Assignment) -> None:
        """Continue with a new assignment if this home's layers and its lead stay the same; raises HomeGone
        otherwise."""
        assert isinstance(self.homes, WorkerHome), "a lead deals itself"
        holder = assignment.of(self.me)
        is_same = holder is not None and holder.layers == self.holder.layers and assignment.lead == self.assignment.lead
        if not is_same or self._stage is None:
            raise CutMoved(assignment.lead, "its lead has dealt them anew")
        self.assignment = assignment
        self.homes.reassign(assignment)
        self._stage.deal(assignment)

    def close(self) -> None:
        if self._ending is not None:
            self._ending.cancel()
        self.router.close()


def layer_words(names: Sequence[str], held: range) -> str:
    """The held layers in words, such as `embed_tokens, blocks 0 to 3`."""
    words: list[str] = []
    blocks = [names[number] for number in held if names[number].rpartition(".")[2].isdecimal()]
    for number in held:
        if names[number] not in blocks:
            words.append(names[number].rpartition(".")[2])
        elif names[number] == blocks[0]:
            first, last = (block.rpartition(".")[2] for block in (blocks[0], blocks[-1]))
            words.append(f"block {first}" if first == last else f"blocks {first} to {last}")
    return ", ".join(words)
