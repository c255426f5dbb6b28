"""This home's place in its cluster for one life of its trainer: its layers, and its connection to the other homes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch

from peer.consensus.codec.codec import Codec
from peer.consensus.codec.state_digest import state_digest
from peer.node.store.contributions import written_leaves
from peer.parallel.cluster.assembly import with_spares
from peer.parallel.cluster.home_suspicion import HomeSuspicion
from peer.parallel.pipeline.flow_router import FlowLine, FlowRouter
from peer.parallel.pipeline.home_group import HomeGone, LeadHomes, WorkerHome
from peer.parallel.pipeline.lead_stage import LeadStage
from peer.parallel.pipeline.stage import StagePlace
from peer.parallel.pipeline.stage_model import initial_layer_digests, initial_span, model_layers
from peer.parallel.pipeline.worker_stage import WorkerStage
from peer.schema.events import ClusterFormed, StagesMeasured
from peer.schema.ipc import Assignment, HomeLost, HomeOffer, StagesAssigned
from peer.schema.spec import RunSpec
from peer.training.outer.bitwise_check import device_for
from peer.training.outer.kernels import TorchKernels
from peer.training.train.engine import Engine, HeldSpan, MakeEngine
from peer.training.train.inner_loop import Sequences
from peer.training.train.layerwise import Layerwise


class ClusterHome:
    """This home's part in a cluster. It is made for an assignment, and closed with the life that it belongs to."""

    def __init__(
        self, assignment: Assignment, me: str, end: FlowLine, contributions: Path, ask_submit: Callable[[], None],
        changed: Callable[[Assignment], None] = lambda assignment: None, suspicion: HomeSuspicion | None = None,
    ) -> None:  # fmt: skip
        """`ask_submit` makes this home's life submit a contribution at its present anchor; `changed` is called when
        there are more spares."""
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
        self.router = FlowRouter(end, self.homes.take)

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

    def enlisted(self, homes: Sequence[HomeOffer]) -> Assignment | None:
        """For a lead: the assignment with all new homes as spares; None if there are none."""
        known = {holder.peer for holder in (*self.assignment.stages, *self.assignment.spares)}
        may = self._suspicion.admitted(homes)
        if not self.is_lead or known >= {home.peer for home in may}:
            return None
        self.assignment = with_spares(self.assignment, may)
        self._changed(self.assignment)
        return self.assignment

    def hear(self, said: StagesAssigned | HomeLost) -> None:
        """Process a message of the link about the cluster. Raises HomeGone if this life cannot go on with it."""
        match said:
            case HomeLost(peer=peer, why=why) if isinstance(self.homes, LeadHomes):
                if peer in {holder.peer for holder in self.assignment.workers}:
                    self.homes.lost(peer, why)
                    raise HomeGone(peer, why)
            case StagesAssigned(assignment=assignment) if assignment.epoch > self.assignment.epoch:
                self._deal(assignment)

    def _deal(self, assignment: Assignment) -> None:
        """Continue with a new assignment if this home's layers and its lead stay the same; raises HomeGone
        otherwise."""
        assert isinstance(self.homes, WorkerHome), "a lead deals itself"
        holder = assignment.of(self.me)
        is_same = holder is not None and holder.layers == self.holder.layers and assignment.lead == self.assignment.lead
        if not is_same or self._stage is None:
            raise HomeGone(assignment.lead, "has dealt the layers anew")
        self.assignment = assignment
        self.homes.reassign(assignment)
        self._stage.deal(assignment)

    def close(self) -> None:
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
